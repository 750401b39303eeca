//! The document: OpenAPI 3.1, in the order of the routes.

use std::collections::BTreeMap;

use schemars::{Schema, json_schema};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use super::Refusal;
use super::operation::{Body, Operation, Parameter, Place, Success, Values};
use super::schema::Schemas;
use crate::routes::Described;
use crate::wire::ErrorBody;

const ABOUT: &str = "Jobs, files and models in the shape of OpenAI's fine-tuning API under `/v1`, and what that has no room for under `/api` and in fields named \
                     `model_garden`. Any other method of a path is answered with 405. Fields may be added to answers.";
/// The name of the key in the description.
const KEY: &str = "key";

/// Pairs in their order.
struct Ordered<V>(Vec<(&'static str, V)>);

impl<V> Ordered<V> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<V: Serialize> Serialize for Ordered<V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

#[derive(Serialize)]
struct Document<'a> {
    openapi: &'static str,
    info: Info,
    servers: [Address; 1],
    /// None, or a key.
    security: [BTreeMap<&'static str, [&'static str; 0]>; 2],
    paths: Ordered<Ordered<OperationObject>>,
    components: Components<'a>,
}

#[derive(Serialize)]
struct Info {
    title: &'static str,
    version: &'static str,
    description: &'static str,
}

#[derive(Serialize)]
struct Address {
    url: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Components<'a> {
    security_schemes: Ordered<SecurityScheme>,
    responses: Ordered<ResponseObject>,
    schemas: &'a Map<String, Value>,
}

#[derive(Serialize)]
struct SecurityScheme {
    r#type: &'static str,
    scheme: &'static str,
    description: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct OperationObject {
    operation_id: &'static str,
    summary: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    security: Option<[&'static str; 0]>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    parameters: Vec<ParameterObject>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_body: Option<BodyObject>,
    responses: BTreeMap<String, Referred>,
}

#[derive(Serialize)]
struct ParameterObject {
    name: String,
    r#in: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    description: &'static str,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    required: bool,
    #[serde(flatten)]
    style: Option<Style>,
    schema: Schema,
}

/// How pairs are written in a query.
#[derive(Serialize)]
struct Style {
    style: &'static str,
    explode: bool,
}

#[derive(Serialize)]
struct BodyObject {
    required: bool,
    content: Ordered<MediaType>,
}

#[derive(Serialize)]
struct MediaType {
    #[serde(skip_serializing_if = "Option::is_none")]
    schema: Option<Schema>,
    #[serde(skip_serializing_if = "Option::is_none")]
    example: Option<&'static str>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Referred {
    There {
        #[serde(rename = "$ref")]
        path: String,
    },
    Here(ResponseObject),
}

#[derive(Serialize)]
struct ResponseObject {
    description: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    headers: Option<Ordered<HeaderObject>>,
    #[serde(skip_serializing_if = "Ordered::is_empty")]
    content: Ordered<MediaType>,
}

#[derive(Serialize)]
struct HeaderObject {
    required: bool,
    schema: Schema,
}

/// The text of the document, and the schemas in it.
pub(super) fn write(routes: &[Described]) -> (String, Map<String, Value>) {
    let mut schemas = Schemas::new();
    let paths = routes.iter().map(|route| {
        let operations = route.operations.iter();
        let operations = operations.map(|(method, operation)| (*method, describe(route.path, operation, &mut schemas)));
        (route.path, Ordered(operations.collect()))
    });
    let paths = Ordered(paths.collect());
    let responses = Refusal::ALL.map(|refusal| (refusal.name(), refused(refusal, &mut schemas)));
    let schemas = schemas.end();
    let key = SecurityScheme { r#type: "http", scheme: "bearer", description: "Where the server has keys." };
    let document = Document {
        openapi: "3.1.0",
        info: Info { title: "Model Garden", version: env!("CARGO_PKG_VERSION"), description: ABOUT },
        servers: [Address { url: "/" }],
        security: [BTreeMap::new(), BTreeMap::from([(KEY, [])])],
        paths,
        components: Components {
            security_schemes: Ordered(vec![(KEY, key)]),
            responses: Ordered(responses.into()),
            schemas: &schemas,
        },
    };
    // Texts, numbers and lists of them can always be written.
    (serde_json::to_string(&document).unwrap_or_default(), schemas)
}

fn describe(path: &str, operation: &Operation, schemas: &mut Schemas) -> OperationObject {
    let names: Vec<&str> = path.split('{').skip(1).filter_map(|rest| rest.split('}').next()).collect();
    let in_path = names.iter().map(|name| ParameterObject {
        name: (*name).to_string(),
        r#in: "path",
        description: "",
        required: true,
        style: None,
        schema: json_schema!({"type": "string"}),
    });
    let mut parameters: Vec<ParameterObject> = in_path.collect();
    parameters.extend(operation.parameters.iter().map(|parameter| describe_parameter(parameter, schemas)));
    let refusals = operation.refusals(!names.is_empty()).into_iter().map(|refusal| {
        let path = format!("#/components/responses/{}", refusal.name());
        (refusal.status().as_str().to_string(), Referred::There { path })
    });
    let mut responses: BTreeMap<String, Referred> = refusals.collect();
    responses.insert("200".into(), Referred::Here(success(&operation.success, schemas)));
    for (status, other) in &operation.others {
        responses.insert(status.to_string(), Referred::Here(success(other, schemas)));
    }
    OperationObject {
        operation_id: operation.id,
        summary: operation.summary,
        security: operation.is_open.then_some([]),
        parameters,
        request_body: operation.body.map(|body| describe_body(body, schemas)),
        responses,
    }
}

fn describe_parameter(parameter: &Parameter, schemas: &mut Schemas) -> ParameterObject {
    let schema = match parameter.values {
        Values::Type(of) | Values::Pairs(of) => schemas.request(of),
        Values::Whole { least, most, usual } => {
            json_schema!({"type": "integer", "minimum": least, "maximum": most, "default": usual})
        }
    };
    ParameterObject {
        name: parameter.name.to_string(),
        r#in: match parameter.place {
            Place::Query => "query",
            Place::Header => "header",
        },
        description: parameter.description,
        required: false,
        style: matches!(parameter.values, Values::Pairs(_)).then_some(Style { style: "deepObject", explode: true }),
        schema,
    }
}

fn describe_body(body: Body, schemas: &mut Schemas) -> BodyObject {
    let content = MediaType { schema: Some(schemas.request(body.schema)), example: body.example };
    BodyObject { required: body.is_required, content: Ordered(vec![(body.kind, content)]) }
}

fn success(success: &Success, schemas: &mut Schemas) -> ResponseObject {
    let kinds = success.kinds.iter();
    let content = kinds.map(|(kind, of)| (*kind, MediaType { schema: of.map(|of| schemas.answer(of)), example: None }));
    ResponseObject { description: success.description, headers: None, content: Ordered(content.collect()) }
}

fn refused(refusal: Refusal, schemas: &mut Schemas) -> ResponseObject {
    let schema = schemas.answer(|generator| generator.subschema_for::<ErrorBody>());
    let header = match refusal {
        Refusal::NoKey => Some(("WWW-Authenticate", json_schema!({"type": "string", "const": "Bearer"}))),
        Refusal::TooOften => Some(("Retry-After", json_schema!({"type": "integer"}))),
        _ => None,
    };
    ResponseObject {
        description: refusal.description(),
        headers: header.map(|(name, schema)| Ordered(vec![(name, HeaderObject { required: true, schema })])),
        content: Ordered(vec![("application/json", MediaType { schema: Some(schema), example: None })]),
    }
}

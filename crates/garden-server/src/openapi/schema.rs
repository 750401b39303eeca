//! Schemas of types, as OpenAPI 3.1 has them.

use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform};
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value};

use super::operation::SchemaOf;

/// Schemas of all types that were asked for. What an answer always has a request may leave out, so the two differ.
pub(super) struct Schemas {
    answers: SchemaGenerator,
    requests: SchemaGenerator,
}

impl Schemas {
    pub fn new() -> Schemas {
        let settings = SchemaSettings::draft2020_12().with(|settings| {
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
            settings.transforms.push(Box::new(RecursiveTransform(list_names)));
        });
        Schemas {
            answers: settings.clone().for_serialize().into_generator(),
            requests: settings.for_deserialize().into_generator(),
        }
    }

    /// The schema of an answer.
    pub fn answer(&mut self, of: SchemaOf) -> Schema {
        finished(of(&mut self.answers))
    }

    /// The schema of something that a request has.
    pub fn request(&mut self, of: SchemaOf) -> Schema {
        finished(of(&mut self.requests))
    }

    /// The types behind all references.
    pub fn end(mut self) -> Map<String, Value> {
        let mut all = self.answers.take_definitions(true);
        all.extend(self.requests.take_definitions(true));
        all
    }
}

/// A schema that is not a reference is not among the definitions, so the generator does not change it.
fn finished(mut schema: Schema) -> Schema {
    RecursiveTransform(list_names).transform(&mut schema);
    schema
}

/// Names with a comment each become a list of names, which generators of clients know better, with the comments below the description.
fn list_names(schema: &mut Schema) {
    let Some(Value::Array(variants)) = schema.get("oneOf") else { return };
    let names: Option<Vec<Value>> =
        variants.iter().map(|one| one.get("const").filter(|name| name.is_string()).cloned()).collect();
    let Some(names) = names else { return };
    let lines = variants.iter().filter_map(|one| {
        let (name, words) = (one.get("const")?.as_str()?, one.get("description")?.as_str()?);
        Some(format!("- `{name}`: {words}"))
    });
    let lines: Vec<String> = lines.collect();
    let before = schema.get("description").and_then(Value::as_str).map(|words| format!("{words}\n\n"));
    let description = before.unwrap_or_default() + &lines.join("\n");
    schema.remove("oneOf");
    schema.insert("type".into(), "string".into());
    schema.insert("enum".into(), names.into());
    schema.insert("description".into(), description.into());
}

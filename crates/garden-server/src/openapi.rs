//! The description of the API: written once, from the routes and the types of `wire.rs`. What it says is also what is taken: `Query` asks it for the parameters of a
//! path, `Fields` and `Form` for the fields of a body.

mod document;
mod operation;
mod refusal;
mod schema;

use std::sync::OnceLock;

use schemars::JsonSchema;
use serde_json::{Map, Value};

use crate::routes::{self, Described};
pub(crate) use operation::{Operation, Parameter, key_of};
pub(crate) use refusal::Refusal;

/// What is described, and its text.
struct Description {
    text: String,
    schemas: Map<String, Value>,
    routes: Vec<Described>,
}

fn description() -> &'static Description {
    static DESCRIPTION: OnceLock<Description> = OnceLock::new();
    DESCRIPTION.get_or_init(|| {
        let routes: Vec<Described> = routes::table().into_iter().map(|route| route.described).collect();
        let (text, schemas) = document::write(&routes);
        Description { text, schemas, routes }
    })
}

/// The text of `/openapi.json`.
pub fn text() -> &'static str {
    &description().text
}

/// What is described for a method of a path.
pub(crate) fn operation(path: &str, method: &str) -> Option<&'static Operation> {
    let route = description().routes.iter().find(|route| route.path == path)?;
    route.operations.iter().find(|(known, _)| *known == method).map(|(_, operation)| operation)
}

/// The fields that an object of a request may have.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shape {
    /// Whatever a client likes to call them.
    Any,
    /// Those of a type.
    Of(&'static Map<String, Value>),
    /// None.
    Empty,
}

impl Shape {
    /// Those of a type that is the body of a route.
    pub fn of<T: JsonSchema>() -> Shape {
        description().schemas.get(T::schema_name().as_ref()).map_or(Shape::Empty, shape)
    }

    /// Whether it has a field.
    pub fn has(self, field: &str) -> bool {
        match self {
            Shape::Any => true,
            Shape::Of(fields) => fields.contains_key(field),
            Shape::Empty => false,
        }
    }

    /// The fields of an object in a field.
    pub fn inside(self, field: &str) -> Shape {
        match self {
            Shape::Of(fields) => fields.get(field).map_or(Shape::Empty, shape),
            Shape::Any => Shape::Any,
            Shape::Empty => Shape::Empty,
        }
    }
}

fn shape(schema: &'static Value) -> Shape {
    if let Some(name) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
        return description().schemas.get(name).map_or(Shape::Empty, shape);
    }
    // An object that may be null.
    if let Some(one) = schema["anyOf"].as_array().and_then(|all| all.iter().find(|one| one["type"] != "null")) {
        return shape(one);
    }
    match schema["properties"].as_object() {
        Some(fields) => Shape::Of(fields),
        None if schema["additionalProperties"] == false => Shape::Empty,
        None => Shape::Any,
    }
}

#[cfg(test)]
mod tests;

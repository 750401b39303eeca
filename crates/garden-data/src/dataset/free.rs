//! JSON that only the chat template interprets: tools, tool calls, and other fields of messages.
//!
//! Fields keep their order and integers stay integers, since templates print such values and Python's `json` preserves both.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use minijinja::Value;
use minijinja::value::{Enumerator, Object, ObjectExt};

use crate::fingerprint::Fingerprint;

/// A JSON value for a chat template.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Json {
    /// Null.
    Null,
    /// A boolean.
    Bool(bool),
    /// An integer.
    Integer(i128),
    /// A number not written as an integer.
    Real(Real),
    /// A string.
    Text(String),
    /// A list.
    List(Vec<Json>),
    /// An object, with its fields in order.
    Object(Vec<(String, Json)>),
}

/// A floating-point number compared by its bits.
#[derive(Clone, Copy, Debug)]
pub struct Real(pub f64);

impl PartialEq for Real {
    fn eq(&self, other: &Real) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Real {}

impl Hash for Real {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}

impl Json {
    /// A string value.
    pub fn text(text: &str) -> Json {
        Json::Text(text.to_string())
    }

    /// Adds the value to a fingerprint: kind, length and contents, recursively and in order.
    pub(crate) fn mark(&self, made: &mut Fingerprint) {
        match self {
            Json::Null => made.bytes(b"null"),
            Json::Bool(value) => made.bytes(if *value { b"true" } else { b"false" }),
            Json::Integer(value) => {
                made.bytes(b"integer");
                made.bytes(&value.to_le_bytes());
            }
            Json::Real(Real(value)) => {
                made.bytes(b"real");
                made.number(value.to_bits());
            }
            Json::Text(text) => {
                made.bytes(b"text");
                made.text(text);
            }
            Json::List(list) => {
                made.bytes(b"list");
                made.number(list.len() as u64);
                list.iter().for_each(|value| value.mark(made));
            }
            Json::Object(fields) => {
                made.bytes(b"object");
                made.number(fields.len() as u64);
                for (name, value) in fields {
                    made.text(name);
                    value.mark(made);
                }
            }
        }
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Json::Text(text) => text.len(),
            Json::List(list) => list.iter().map(Json::bytes).sum(),
            Json::Object(fields) => fields.iter().map(|(name, value)| name.len() + value.bytes()).sum(),
            _ => size_of::<Json>(),
        }
    }

    /// The value as the template engine sees it.
    pub(crate) fn value(&self) -> Value {
        match self {
            Json::Null => Value::from(()),
            Json::Bool(value) => Value::from(*value),
            Json::Integer(value) => Value::from(*value),
            Json::Real(value) => Value::from(value.0),
            Json::Text(text) => Value::from(text.as_str()),
            Json::List(list) => list.iter().map(Json::value).collect(),
            Json::Object(fields) => ordered(fields.iter().map(|(name, value)| (name.clone(), value.value())).collect()),
        }
    }
}

/// A mapping that keeps the order of its fields, like Python's.
pub(crate) fn ordered(fields: Vec<(String, Value)>) -> Value {
    Value::from_object(Ordered(fields))
}

#[derive(Debug)]
struct Ordered(Vec<(String, Value)>);

impl Object for Ordered {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get_value_by_str(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value.clone())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.mapped_enumerator(|this| Box::new(this.0.iter().map(|(name, _)| Value::from(name.as_str()))))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.0.len())
    }
}

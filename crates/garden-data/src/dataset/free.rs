//! JSON of a row that only the chat template understands: tools, calls of them, and whatever else messages hold.
//!
//! Fields keep their order and integers stay integers, since templates write such values out and Python's `json` keeps both.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use minijinja::Value;
use minijinja::value::{Enumerator, Object, ObjectExt};

use crate::fingerprint::Fingerprint;

/// A value of a row as a template is given it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Json {
    /// Nothing.
    Null,
    /// Yes or no.
    Bool(bool),
    /// A whole number.
    Integer(i128),
    /// A number that was not written as a whole one.
    Real(Real),
    /// A text.
    Text(String),
    /// Values in their order.
    List(Vec<Json>),
    /// Fields in their order.
    Object(Vec<(String, Json)>),
}

/// A number of which two are the same if their bits are.
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
    /// A text.
    pub fn text(text: &str) -> Json {
        Json::Text(text.to_string())
    }

    /// Adds it to a fingerprint: kind, length and contents of every value, in their order.
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

    /// Bytes that it holds.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Json::Text(text) => text.len(),
            Json::List(list) => list.iter().map(Json::bytes).sum(),
            Json::Object(fields) => fields.iter().map(|(name, value)| name.len() + value.bytes()).sum(),
            _ => size_of::<Json>(),
        }
    }

    /// As templates see it.
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

/// A mapping that keeps the order of its fields, as Python's do.
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

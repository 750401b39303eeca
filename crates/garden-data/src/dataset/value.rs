//! A row before interpretation: the data model shared by JSON and Parquet.
//!
//! Strings without escapes are borrowed from the row's bytes. Base64 has none, so a picture of several megabytes
//! is not copied before decoding.

use std::borrow::Cow;
use std::fmt;

use memchr::memchr3_iter;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::error::Error;

/// Maximum number of values per row. Each takes about 50 bytes of memory and as little as 2 of the file.
const MOST_VALUES: usize = 4_000_000;
/// Characters of a string shown in an error.
const SHOWN: usize = 40;

/// A value of a row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value<'a> {
    Null,
    Bool(bool),
    Integer(i128),
    Number(f64),
    Text(Cow<'a, str>),
    /// Only in Parquet and archives.
    Bytes(Vec<u8>),
    List(Vec<Value<'a>>),
    Object(Object<'a>),
}

/// The fields of an object, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Object<'a>(pub Vec<(Cow<'a, str>, Value<'a>)>);

impl<'a> Object<'a> {
    /// Removes and returns a field. Null counts as missing: tables must write something.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value<'a>> {
        let place = self.0.iter().rposition(|(key, value)| key == name && *value != Value::Null)?;
        Some(self.0.remove(place).1)
    }

    /// Removes and returns the first of several fields that is present.
    pub(crate) fn take_any(&mut self, names: &[&'static str]) -> Option<(&'static str, Value<'a>)> {
        names.iter().find_map(|name| Some((*name, self.take(name)?)))
    }

    /// The names of the fields, for errors.
    pub(crate) fn names(&self) -> String {
        let names: Vec<String> = self.0.iter().map(|(name, _)| format!("`{}`", shortened(name))).collect();
        if names.is_empty() { "no fields".to_string() } else { names.join(", ") }
    }
}

impl Value<'_> {
    /// Whether the value is empty: null, or an empty string, list or object.
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Value::Null => true,
            Value::Text(text) => text.is_empty(),
            Value::List(list) => list.is_empty(),
            Value::Object(object) => object.0.iter().all(|(_, value)| value.is_empty()),
            _ => false,
        }
    }
}

impl fmt::Display for Value<'_> {
    /// The value as shown in errors.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Null => f.write_str("null"),
            Value::Bool(value) => write!(f, "{value}"),
            Value::Integer(value) => write!(f, "the number {value}"),
            Value::Number(value) => write!(f, "the number {value}"),
            Value::Text(text) => write!(f, "the string `{}`", shortened(text)),
            Value::Bytes(bytes) => write!(f, "{} bytes", bytes.len()),
            Value::List(list) => write!(f, "a list of {}", list.len()),
            Value::Object(object) => write!(f, "an object with {}", object.names()),
        }
    }
}

/// The start of a text, for errors.
pub(crate) fn shortened(text: &str) -> String {
    let mut short: String = text.chars().take(SHOWN).collect();
    if short.len() < text.len() {
        short.push_str("...");
    }
    short
}

/// Parses JSON, unless it has too many values for memory.
pub(crate) fn parse_json<'a>(place: &str, bytes: &'a [u8]) -> Result<serde_json::Result<Value<'a>>, Error> {
    // Strings contain commas, too, but no row has that many.
    if memchr3_iter(b',', b'[', b'{', bytes).take(MOST_VALUES + 1).count() > MOST_VALUES {
        return Err(Error::row(place, format!("the row has more than {MOST_VALUES} values or commas")));
    }
    Ok(serde_json::from_slice(bytes))
}

impl<'de> Deserialize<'de> for Value<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Value<'de>, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Value<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value<'de>, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value<'de>, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value<'de>, E> {
        Ok(Value::Integer(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value<'de>, E> {
        Ok(Value::Integer(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value<'de>, E> {
        Ok(Value::Number(value))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Value<'de>, E> {
        Ok(Value::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value<'de>, E> {
        Ok(Value::Text(Cow::Owned(text.to_string())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value<'de>, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element()? {
            values.push(value);
        }
        Ok(Value::List(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value<'de>, A::Error> {
        let mut fields = Vec::new();
        while let Some(Key(key)) = map.next_key()? {
            fields.push((key, map.next_value()?));
        }
        Ok(Value::Object(Object(fields)))
    }
}

/// A field name. With a plain `Cow`, serde would always copy.
struct Key<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Key<'de>, D::Error> {
        match deserializer.deserialize_str(Reader)? {
            Value::Text(text) => Ok(Key(text)),
            _ => Err(serde::de::Error::custom("a field's name is not text")),
        }
    }
}

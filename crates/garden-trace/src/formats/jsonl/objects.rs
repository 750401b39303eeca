//! JSON objects as flat rows: each number or text with its key, without building a tree.
//!
//! One level of nesting is opened, so `{"memory":{"rss":1}}` has the key `memory.rss`. Lists and deeper objects are
//! passed over.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// A value for a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scalar<'a> {
    Number(f64),
    Text(&'a str),
}

/// Calls `each` with every key and value of an object; `path` is scratch space.
pub(crate) fn visit_object(
    text: &[u8],
    path: &mut String,
    each: &mut impl FnMut(&str, Scalar<'_>),
) -> Result<(), serde_json::Error> {
    path.clear();
    let strict = visit_strict(text, path, each);
    // Python writes NaN and Infinity, which JSON does not have; a loss of NaN must not cost the line its memory value.
    if strict.is_err() {
        let text = String::from_utf8_lossy(text);
        if text.contains("NaN") || text.contains("Infinity") {
            let repaired = text.replace("NaN", "null").replace("-Infinity", "null").replace("Infinity", "null");
            path.clear();
            return visit_strict(repaired.as_bytes(), path, each);
        }
    }
    strict
}

fn visit_strict(
    text: &[u8],
    path: &mut String,
    each: &mut impl FnMut(&str, Scalar<'_>),
) -> Result<(), serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    deserializer.deserialize_map(Fields { path, each, nested: false })?;
    deserializer.end()
}

/// The fields of an object; `path` is the prefix of their keys.
struct Fields<'p, 'e, F> {
    path: &'p mut String,
    each: &'e mut F,
    nested: bool,
}

impl<'de, F: FnMut(&str, Scalar<'_>)> Visitor<'de> for Fields<'_, '_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let prefix = self.path.len();
        while map.next_key_seed(Key { path: self.path })?.is_some() {
            map.next_value_seed(Field { path: self.path, each: self.each, nested: self.nested })?;
            self.path.truncate(prefix);
        }
        Ok(())
    }
}

/// Appends a key to the path.
struct Key<'p> {
    path: &'p mut String,
}

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Key<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<(), E> {
        self.path.push_str(key);
        Ok(())
    }
}

/// One value; `path` is its key.
struct Field<'p, 'e, F> {
    path: &'p mut String,
    each: &'e mut F,
    nested: bool,
}

impl<'de, F: FnMut(&str, Scalar<'_>)> DeserializeSeed<'de> for Field<'_, '_, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, F: FnMut(&str, Scalar<'_>)> Visitor<'de> for Field<'_, '_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<(), E> {
        self.visit_f64(number as f64)
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<(), E> {
        self.visit_f64(number as f64)
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<(), E> {
        (self.each)(self.path, Scalar::Number(number));
        Ok(())
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        (self.each)(self.path, Scalar::Text(text));
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        if self.nested {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            return Ok(());
        }
        self.path.push('.');
        Fields { path: self.path, each: self.each, nested: true }.visit_map(map)
    }
}

/// Cuts the objects out of a list, byte by byte, so that only one object of a list of any length is in memory.
#[derive(Default)]
pub(crate) struct Objects {
    object: Vec<u8>,
    depth: usize,
    in_text: bool,
    escaped: bool,
}

impl Objects {
    /// Takes in one byte; true when `object()` is complete.
    pub(crate) fn push(&mut self, byte: u8) -> bool {
        if self.depth == 0 {
            self.object.clear();
            self.in_text = false;
            if byte != b'{' {
                return false;
            }
        }
        // One byte beyond the limit shows that the object was too long.
        if self.object.len() <= crate::lines::LONGEST_LINE {
            self.object.push(byte);
        }
        match byte {
            _ if std::mem::take(&mut self.escaped) => {}
            b'\\' if self.in_text => self.escaped = true,
            b'"' => self.in_text = !self.in_text,
            b'{' if !self.in_text => self.depth += 1,
            b'}' if !self.in_text => self.depth -= 1,
            _ => {}
        }
        self.depth == 0
    }

    /// The object so far, or its beginning if it is too long.
    pub(crate) fn object(&self) -> &[u8] {
        &self.object
    }

    /// Whether an object has begun and not ended.
    pub(crate) fn is_inside(&self) -> bool {
        self.depth > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(text: &str) -> String {
        let mut shown = Vec::new();
        let mut path = String::new();
        let result = visit_object(text.as_bytes(), &mut path, &mut |key, value| shown.push(format!("{key}={value:?}")));
        if result.is_err() { "error".to_string() } else { shown.join(" ") }
    }

    #[test]
    fn an_object_is_a_row_of_keys_and_values() {
        assert_eq!(
            seen(r#"{"step":10,"m":{"rss":1.5,"deep":{"x":1}},"l":[1,{}],"s":"a\nb","n":null}"#),
            "step=Number(10.0) m.rss=Number(1.5) s=Text(\"a\\nb\")"
        );
        assert_eq!(seen(r#"{"loss":NaN,"a":-Infinity,"rss":7}"#), "rss=Number(7.0)");
        assert_eq!([seen("[1]"), seen("{\"a\":1"), seen("{} x")], ["error", "error", "error"]);
    }

    #[test]
    fn objects_are_cut_out_of_a_list() {
        let mut objects = Objects::default();
        let text = br#"[ {"a":"}\"{"}, 7, {"b":{"c":1}} , {"torn": "#;
        let mut found = Vec::new();
        for &byte in text {
            if objects.push(byte) {
                found.push(String::from_utf8_lossy(objects.object()).into_owned());
            }
        }
        assert_eq!(found, [r#"{"a":"}\"{"}"#, r#"{"b":{"c":1}}"#]);
        assert!(objects.is_inside());
    }
}

//! Fields of `config.json`, as families read them: each error names the file, the field and what it has.

use std::path::Path;

use serde_json::Value;

use crate::error::Error;

/// The largest number in a configuration. Vocabularies have a few hundred thousand tokens, everything else is smaller, and products of three fit into 64 bits.
const LARGEST: u64 = 1 << 20;

/// Fields of a JSON object, with their path for error messages.
#[derive(Clone, Copy)]
pub struct Fields<'a> {
    /// The file.
    pub path: &'a Path,
    value: &'a Value,
    name: &'a str,
}

impl<'a> Fields<'a> {
    /// The fields of a whole file.
    pub fn of(path: &'a Path, value: &'a Value) -> Fields<'a> {
        Fields { path, value, name: "" }
    }

    /// A field that is not null.
    pub fn get(self, name: &str) -> Option<&'a Value> {
        self.value.get(name).filter(|value| !value.is_null())
    }

    /// Whether a field is true.
    pub fn is_true(self, name: &str) -> bool {
        self.get(name).and_then(Value::as_bool) == Some(true)
    }

    /// The fields of an object inside.
    pub fn inside(self, name: &'a str) -> Option<Fields<'a>> {
        let value = self.get(name).filter(|value| value.is_object())?;
        Some(Fields { value, name, ..self })
    }

    /// The whole name of a field, for error messages.
    pub fn way(self, field: &str) -> String {
        if self.name.is_empty() { field.to_string() } else { format!("{}.{field}", self.name) }
    }

    /// The error for a field that is missing.
    pub fn missing(self, field: &str) -> Error {
        Error::field(self.path, self.way(field), "is missing")
    }

    /// A whole number from 1 up.
    pub fn whole(self, field: &str) -> Result<usize, Error> {
        let value = self.get(field).ok_or_else(|| self.missing(field))?;
        let number = value.as_u64().filter(|number| (1..=LARGEST).contains(number));
        number.map(|number| number as usize).ok_or_else(|| {
            Error::field(self.path, self.way(field), format!("is {value}; expected a whole number from 1 to {LARGEST}"))
        })
    }

    /// A number.
    pub fn number(self, field: &str) -> Result<f64, Error> {
        let value = self.get(field).ok_or_else(|| self.missing(field))?;
        value.as_f64().ok_or_else(|| Error::field(self.path, self.way(field), format!("is {value}; expected a number")))
    }

    /// Refuses another value than this one.
    pub fn must_be(self, field: &str, wanted: &str) -> Result<(), Error> {
        match self.get(field).and_then(Value::as_str) {
            None => Ok(()),
            Some(value) if value == wanted => Ok(()),
            Some(value) => {
                Err(Error::field(self.path, self.way(field), format!("is `{value}`; only `{wanted}` is supported")))
            }
        }
    }

    /// A list of three whole numbers.
    pub fn three(self, field: &str) -> Result<[usize; 3], Error> {
        let given = self.get(field).and_then(Value::as_array).ok_or_else(|| self.missing(field))?;
        let numbers: Vec<usize> = given.iter().filter_map(|one| Some(one.as_u64()? as usize)).collect();
        numbers.try_into().map_err(|_| {
            Error::field(self.path, self.way(field), format!("is {given:?}; expected three whole numbers"))
        })
    }

    /// The objects of a list.
    pub fn objects(self, field: &'a str) -> Result<Vec<Fields<'a>>, Error> {
        let given = self.get(field).and_then(Value::as_array).ok_or_else(|| self.missing(field))?;
        Ok(given.iter().map(|value| Fields { value, name: field, ..self }).collect())
    }
}

//! Tool definitions and tool calls of a row, in the shapes found in datasets, converted for chat templates.
//!
//! OpenAI stores call arguments as a JSON string, and others store tools or whole calls so. Templates expect objects, as transformers'
//! documentation asks and as servers pass them; a string would be rendered with its quotes escaped.

use super::value::{Object, Value, shortened};
use crate::dataset::free::{Json, Real};
use crate::error::Error;

/// 2^64: larger integers are parsed as floating point, which is inexact.
const INEXACT: f64 = 18_446_744_073_709_551_616.0;

/// The meaning of a null inside a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nulls {
    /// Written explicitly, in JSON.
    Written,
    /// Absent: columns of tables have the same fields in each row, and other rows fill them.
    Fillers,
}

/// Reads tools and calls, with the row's position for errors.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'p> {
    pub place: &'p str,
    pub nulls: Nulls,
}

impl Reader<'_> {
    fn error(self, field: &str, problem: impl Into<String>) -> Error {
        Error::row_field(self.place, field, problem)
    }

    /// A value, converted as it is.
    pub(crate) fn free(self, field: &str, value: Value) -> Result<Json, Error> {
        Ok(match value {
            Value::Null => Json::Null,
            Value::Bool(value) => Json::Bool(value),
            Value::Integer(value) => Json::Integer(value),
            Value::Number(value) if value.abs() >= INEXACT => {
                let problem = format!("is the number {value}, which does not fit into 64 bits and would be changed");
                return Err(self.error(field, problem).with_hint("write it as a string"));
            }
            Value::Number(value) => Json::Real(Real(value)),
            Value::Text(text) => Json::Text(text.into_owned()),
            Value::Bytes(bytes) => return Err(self.error(field, format!("is {} bytes, not JSON", bytes.len()))),
            Value::List(list) => {
                let element = |(index, value)| self.free(&format!("{field}[{index}]"), value);
                Json::List(list.into_iter().enumerate().map(element).collect::<Result<_, Error>>()?)
            }
            Value::Object(Object(fields)) => {
                let mut read: Vec<(String, Json)> = Vec::with_capacity(fields.len());
                for (name, value) in fields {
                    if self.nulls == Nulls::Fillers && value == Value::Null {
                        continue;
                    }
                    let value = self.free(&format!("{field}.{name}"), value)?;
                    // Of duplicate names the last one counts, as in Python.
                    match read.iter_mut().find(|(known, _)| *known == name) {
                        Some((_, known)) => *known = value,
                        None => read.push((name.into_owned(), value)),
                    }
                }
                Json::Object(read)
            }
        })
    }

    /// A value that may be a JSON string.
    fn parsed(self, field: &str, value: Value) -> Result<Json, Error> {
        let Value::Text(text) = value else { return self.free(field, value) };
        if text.trim().is_empty() {
            return Ok(Json::Null);
        }
        let value: Value = serde_json::from_str(&text).map_err(|error| {
            self.error(field, format!("is the string `{}`, which is not JSON: {error}", shortened(&text)))
        })?;
        Reader { nulls: Nulls::Written, ..self }.free(field, value)
    }

    /// The tools of a row: a list of definitions, or such a list as a string.
    pub(crate) fn tools(self, field: &str, value: Value) -> Result<Vec<Json>, Error> {
        let tools = match self.parsed(field, value)? {
            Json::Null => Vec::new(),
            Json::List(tools) => tools,
            _ => return Err(self.error(field, "is not a list of tools")),
        };
        match tools.iter().position(|tool| !matches!(tool, Json::Object(_))) {
            None => Ok(tools),
            Some(index) => {
                let error = self.error(&format!("{field}[{index}]"), "is not a tool description");
                Err(error.with_hint("use an object such as {\"type\": \"function\", \"function\": {\"name\": ...}}"))
            }
        }
    }

    /// The calls of a message: a list, a single call, or either as a string.
    pub(crate) fn calls(self, field: &str, value: Value) -> Result<Vec<Json>, Error> {
        let (calls, is_list) = match self.parsed(field, value)? {
            Json::Null => (Vec::new(), true),
            Json::List(calls) => (calls, true),
            call => (vec![call], false),
        };
        let place = |index| if is_list { format!("{field}[{index}]") } else { field.to_string() };
        calls.into_iter().enumerate().map(|(index, call)| self.call(&place(index), call)).collect()
    }

    /// A call: an object with a name and arguments, or with such an object as its `function`.
    fn call(self, field: &str, call: Json) -> Result<Json, Error> {
        let hint = "use {\"type\": \"function\", \"function\": {\"name\": ..., \"arguments\": {...}}}";
        let Json::Object(mut fields) = call else {
            return Err(self.error(field, "is not a tool call").with_hint(hint));
        };
        if let Some((_, function)) = fields.iter_mut().find(|(name, _)| name == "function") {
            *function = self.call(&format!("{field}.function"), std::mem::replace(function, Json::Null))?;
            return Ok(Json::Object(fields));
        }
        if !fields.iter().any(|(name, value)| name == "name" && matches!(value, Json::Text(_))) {
            return Err(self.error(&format!("{field}.name"), "is missing: a call names its tool").with_hint(hint));
        }
        let place = format!("{field}.arguments");
        match fields.iter_mut().find(|(name, _)| name == "arguments") {
            None => fields.push(("arguments".to_string(), Json::Object(Vec::new()))),
            Some((_, arguments)) => {
                *arguments = match std::mem::replace(arguments, Json::Null) {
                    Json::Text(text) => self.parsed(&place, Value::Text(text.into()))?,
                    other => other,
                };
                match arguments {
                    Json::Object(_) => {}
                    Json::Null => *arguments = Json::Object(Vec::new()),
                    _ => return Err(self.error(&place, "is not an object of arguments, or the JSON of one")),
                }
            }
        }
        Ok(Json::Object(fields))
    }
}

//! Bodies of requests: never longer than allowed, never slower than they may be.

use std::time::Duration;

use axum::body::Body;
use futures_util::StreamExt as _;
use schemars::JsonSchema;
use serde_json::{Map, Value};
use tokio::time::{Instant, timeout_at};

use crate::error::ApiError;
use crate::openapi::Shape;

/// How long nothing may come.
const SILENCE: Duration = Duration::from_secs(20);
/// Bytes that have to come in a second, on average.
const SLOWEST: u64 = 8 << 10;
/// The largest body that is no file or trace: what a job is asked for is kept and shown in every list, and each body is in memory while it comes.
pub(crate) const LARGEST_REQUEST: u64 = 64 << 10;
/// The largest one of a request that has no fields.
pub(crate) const EMPTY: u64 = 1 << 10;

/// How fast a body comes. One byte every nineteen seconds would otherwise hold a connection for ever.
#[derive(Debug)]
pub(crate) struct Pace {
    began: Instant,
    bytes: u64,
}

impl Pace {
    pub fn new() -> Pace {
        Pace { began: Instant::now(), bytes: 0 }
    }

    /// Waits for the next piece.
    pub async fn wait<T>(&self, next: impl Future<Output = T>) -> Result<T, ApiError> {
        let on_average = self.began + SILENCE + Duration::from_secs(self.bytes / SLOWEST);
        let deadline = on_average.min(Instant::now() + SILENCE);
        timeout_at(deadline, next).await.map_err(|_| ApiError::too_slow())
    }

    /// Counts what came; more than `limit` is too much.
    pub fn count(&mut self, bytes: usize, limit: u64) -> Result<(), ApiError> {
        self.bytes += bytes as u64;
        match self.bytes > limit {
            true => Err(ApiError::too_large(format!("more than {limit} bytes"))),
            false => Ok(()),
        }
    }
}

/// A body as a whole.
pub(crate) async fn read(body: Body, limit: u64) -> Result<Vec<u8>, ApiError> {
    let mut stream = body.into_data_stream();
    let (mut pace, mut all) = (Pace::new(), Vec::new());
    while let Some(piece) = pace.wait(stream.next()).await? {
        let piece = piece.map_err(|error| ApiError::invalid(format!("the body cannot be read: {error}")))?;
        pace.count(piece.len(), limit)?;
        all.extend_from_slice(&piece);
    }
    Ok(all)
}

/// A body that is a JSON object with the fields of a type.
pub(crate) async fn read_fields<T: JsonSchema>(body: Body) -> Result<Fields, ApiError> {
    Fields::parse::<T>(&read(body, LARGEST_REQUEST).await?)
}

/// The fields of an object, taken one by one: what its type does not have is refused by name instead of being ignored.
#[derive(Debug)]
pub(crate) struct Fields {
    path: String,
    map: Map<String, Value>,
    shape: Shape,
}

impl Fields {
    fn new(path: String, map: Map<String, Value>, shape: Shape) -> Result<Fields, ApiError> {
        let fields = Fields { path, map, shape };
        match fields.map.keys().find(|name| !shape.has(name)) {
            None => Ok(fields),
            Some(unknown) => Err(fields.unknown(unknown)),
        }
    }

    /// The fields of a type.
    pub fn parse<T: JsonSchema>(text: &[u8]) -> Result<Fields, ApiError> {
        let shape = Shape::of::<T>();
        match serde_json::from_slice(text) {
            Ok(Value::Object(map)) => Fields::new(String::new(), map, shape),
            Ok(_) => Err(ApiError::invalid("the body has to be a JSON object")),
            Err(error) => Err(ApiError::invalid(format!("the body is not JSON: {error}"))),
        }
    }

    /// A body that may be empty.
    pub fn parse_optional<T: JsonSchema>(text: &[u8]) -> Result<Fields, ApiError> {
        if text.iter().all(u8::is_ascii_whitespace) {
            return Ok(Fields::empty());
        }
        Fields::parse::<T>(text)
    }

    /// The full name of a field.
    pub fn name(&self, field: &str) -> String {
        if self.path.is_empty() { field.to_string() } else { format!("{}.{field}", self.path) }
    }

    fn unknown(&self, field: &str) -> ApiError {
        self.wrong(field, "is not a parameter here").with_code("unknown_parameter")
    }

    /// A field that is wrong.
    pub fn wrong(&self, field: &str, problem: &str) -> ApiError {
        let name = self.name(field);
        ApiError::field(&name, format!("`{name}` {problem}"))
    }

    /// Any value; `null` is none.
    pub fn value(&mut self, field: &str) -> Option<Value> {
        debug_assert!(self.shape.has(field), "`{}` is not described", self.name(field));
        self.map.remove(field).filter(|value| !value.is_null())
    }

    pub fn text(&mut self, field: &str) -> Result<Option<String>, ApiError> {
        match self.value(field) {
            None => Ok(None),
            // No text of ours has one, and a C library behind it would stop there.
            Some(Value::String(text)) if !text.contains('\0') => Ok(Some(text)),
            Some(_) => Err(self.wrong(field, "has to be a text")),
        }
    }

    pub fn needed_text(&mut self, field: &str) -> Result<String, ApiError> {
        self.text(field)?.ok_or_else(|| {
            let error = self.wrong(field, "is missing");
            error.with_code("missing_required_parameter")
        })
    }

    pub fn whole(&mut self, field: &str, least: i64, most: i64) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.value(field) else { return Ok(None) };
        // 3.0 is a whole number in JSON.
        let number = value.as_i64().or_else(|| {
            let real = value.as_f64().filter(|real| real.fract() == 0.0 && real.abs() < 9e15)?;
            Some(real as i64)
        });
        match number.filter(|number| (least..=most).contains(number)) {
            Some(number) => Ok(Some(number)),
            None => Err(self.wrong(field, &format!("has to be a whole number from {least} to {most}"))),
        }
    }

    pub fn real(&mut self, field: &str) -> Result<Option<f64>, ApiError> {
        match self.value(field) {
            None => Ok(None),
            Some(Value::Number(number)) => Ok(number.as_f64()),
            Some(_) => Err(self.wrong(field, "has to be a number")),
        }
    }

    /// A list of texts.
    pub fn texts(&mut self, field: &str) -> Result<Option<Vec<String>>, ApiError> {
        let Some(value) = self.value(field) else { return Ok(None) };
        let problem = "has to be a list of texts";
        let Value::Array(items) = value else { return Err(self.wrong(field, problem)) };
        let texts: Option<Vec<String>> =
            items.iter().map(|item| item.as_str().filter(|text| !text.contains('\0')).map(str::to_string)).collect();
        texts.map(Some).ok_or_else(|| self.wrong(field, problem))
    }

    pub fn object(&mut self, field: &str) -> Result<Option<Fields>, ApiError> {
        match self.value(field) {
            None => Ok(None),
            Some(Value::Object(map)) => Fields::new(self.name(field), map, self.shape.inside(field)).map(Some),
            Some(_) => Err(self.wrong(field, "has to be an object")),
        }
    }

    /// All that is left, by name.
    pub fn rest(&mut self) -> Map<String, Value> {
        std::mem::take(&mut self.map)
    }

    /// Nothing may be left.
    pub fn end(mut self) -> Result<(), ApiError> {
        match std::mem::take(&mut self.map).keys().next() {
            None => Ok(()),
            Some(field) => Err(self.unknown(field)),
        }
    }
}

impl Fields {
    /// No fields at all.
    pub fn empty() -> Fields {
        Fields { path: String::new(), map: Map::new(), shape: Shape::Any }
    }

    /// Takes a field away if it has this value.
    pub fn forget(&mut self, field: &str, value: &Value) {
        if self.map.get(field) == Some(value) {
            self.map.remove(field);
        }
    }
}

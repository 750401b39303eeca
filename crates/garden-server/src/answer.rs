//! Answers and the queries behind a path, in the ways that all routes share.

use std::collections::BTreeMap;

use axum::extract::{FromRequestParts, Path, Query as UrlQuery};
use axum::http::header;
use axum::http::request::Parts;
use axum::response::{IntoResponse as _, Response};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::store::{Listed, MetadataFilter, Page};

/// What every route gives.
pub(crate) type Answer = Result<Response, ApiError>;

/// Pairs that a client may attach to a job.
pub(crate) const MOST_PAIRS: usize = 16;
/// Rows of a page, where nobody says.
const PAGE: usize = 20;

pub(crate) fn json_answer(value: &Value) -> Answer {
    Ok(([(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response())
}

pub(crate) fn text_answer(kind: &'static str, text: String) -> Answer {
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

/// A page in OpenAI's shape.
pub(crate) fn list<T>(listed: &Listed<T>, to_json: impl Fn(&T) -> Value) -> Value {
    let data: Vec<Value> = listed.rows.iter().map(to_json).collect();
    let id = |value: Option<&Value>| value.map_or(Value::Null, |value| value["id"].clone());
    let (first, last) = (id(data.first()), id(data.last()));
    json!({"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": listed.has_more})
}

/// The names in a path. What is no UTF-8 is refused in the shape of every other error.
#[derive(Debug)]
pub(crate) struct UrlPath<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for UrlPath<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<UrlPath<T>, ApiError> {
        let names = Path::<T>::from_request_parts(parts, state).await;
        names
            .map(|Path(names)| UrlPath(names))
            .map_err(|error| ApiError::invalid(format!("the path cannot be read: {}", error.body_text())))
    }
}

/// What stands behind the `?`, in order.
#[derive(Debug)]
pub(crate) struct Query(Vec<(String, String)>);

impl<S: Send + Sync> FromRequestParts<S> for Query {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Query, ApiError> {
        let pairs = UrlQuery::<Vec<(String, String)>>::from_request_parts(parts, state).await;
        let UrlQuery(pairs) =
            pairs.map_err(|error| ApiError::invalid(format!("the query cannot be read: {}", error.body_text())))?;
        // As in a body: no text of ours has one, and it could not be an argument of a program.
        match pairs.iter().find(|(_, value)| value.contains('\0')) {
            Some((name, _)) => Err(ApiError::field(name, format!("`{name}` has to be a text"))),
            None => Ok(Query(pairs)),
        }
    }
}

impl Query {
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Anything else is refused by name instead of being ignored, and so is the same twice.
    pub fn only(&self, names: &[&str]) -> Result<(), ApiError> {
        for (index, (name, _)) in self.0.iter().enumerate() {
            let is_known = names.contains(&name.as_str()) || (names.contains(&"metadata[]") && key_of(name).is_some());
            // Azure's clients send it with every request.
            if name == "api-version" {
                continue;
            }
            if !is_known {
                return Err(ApiError::field(name, "is not a parameter here").with_code("unknown_parameter"));
            }
            if self.0[..index].iter().any(|(other, _)| other == name) {
                return Err(ApiError::field(name, format!("`{name}` is there twice")));
            }
        }
        Ok(())
    }

    /// A whole number.
    pub fn whole(&self, name: &str, least: i64, most: i64) -> Result<Option<i64>, ApiError> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        let problem = format!("`{name}` has to be a whole number from {least} to {most}");
        number.map(Some).ok_or_else(|| ApiError::field(name, problem))
    }

    /// The page that is asked for.
    pub fn page(&self, most: usize) -> Result<Page, ApiError> {
        let limit = self.whole("limit", 1, most as i64)?.map_or(PAGE.min(most), |limit| limit.unsigned_abs() as usize);
        let is_ascending = match self.get("order") {
            None | Some("desc") => false,
            Some("asc") => true,
            Some(_) => return Err(ApiError::field("order", "`order` has to be `asc` or `desc`")),
        };
        // Pagers may send an empty one with the first page.
        let after = self.get("after").filter(|after| !after.is_empty()).map(str::to_string);
        Ok(Page { after, behind: None, limit, is_ascending })
    }

    /// The filter `metadata[k]=v`, or `metadata=null`.
    pub fn metadata(&self) -> Result<MetadataFilter, ApiError> {
        let wanted: BTreeMap<String, String> =
            self.0.iter().filter_map(|(name, value)| Some((key_of(name)?.to_string(), value.clone()))).collect();
        // Clients that have none may say so.
        match self.get("metadata").filter(|text| !text.is_empty()) {
            None if wanted.is_empty() => Ok(MetadataFilter::All),
            // No job has more, and the database refuses conditions of any length.
            None if wanted.len() > MOST_PAIRS => {
                Err(ApiError::field("metadata", format!("`metadata` may have {MOST_PAIRS} pairs at most")))
            }
            None => Ok(MetadataFilter::With(wanted)),
            Some("null") if wanted.is_empty() => Ok(MetadataFilter::None),
            Some(_) => Err(ApiError::field("metadata", "send `metadata[key]=value`, or `metadata=null`, not both")),
        }
    }
}

/// The k of `metadata[k]`.
fn key_of(name: &str) -> Option<&str> {
    name.strip_prefix("metadata[")?.strip_suffix(']')
}

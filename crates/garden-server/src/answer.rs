//! Answers and the queries behind a path, in the ways that all routes share.

use std::collections::BTreeMap;

use axum::extract::{FromRequestParts, MatchedPath, Path, Query as UrlQuery};
use axum::http::request::Parts;
use axum::http::{Method, header};
use axum::response::{IntoResponse as _, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::ApiError;
use crate::openapi::{self, Operation, key_of};
use crate::store::{MetadataFilter, Page};

/// What every route gives.
pub(crate) type Answer = Result<Response, ApiError>;

/// Pairs that a client may attach to a job.
pub(crate) const MOST_PAIRS: usize = 16;
/// Rows of a page, where nobody says.
pub(crate) const PAGE: i64 = 20;

pub(crate) fn json_answer(value: &impl Serialize) -> Answer {
    text_answer("application/json", json_text(value)?)
}

pub(crate) fn json_text(value: &impl Serialize) -> Result<String, ApiError> {
    serde_json::to_string(value).map_err(|error| ApiError::internal("the answer cannot be written", &error))
}

pub(crate) fn text_answer(kind: &'static str, text: String) -> Answer {
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
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

/// What stands behind the `?`, in order: parameters that the path has, each once.
#[derive(Debug)]
pub(crate) struct Query {
    pairs: Vec<(String, String)>,
    operation: &'static Operation,
}

impl<S: Send + Sync> FromRequestParts<S> for Query {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Query, ApiError> {
        let pairs = UrlQuery::<Vec<(String, String)>>::from_request_parts(parts, state).await;
        let UrlQuery(pairs) =
            pairs.map_err(|error| ApiError::invalid(format!("the query cannot be read: {}", error.body_text())))?;
        // As in a body: no text of ours has one, and it could not be an argument of a program.
        if let Some((name, _)) = pairs.iter().find(|(_, value)| value.contains('\0')) {
            return Err(ApiError::field(name, format!("`{name}` has to be a text")));
        }
        let missing = || ApiError::internal("the parameters of this path are not known", &parts.uri.path());
        let operation = operation_of(parts).ok_or_else(missing)?;
        only_known(&pairs, operation)?;
        Ok(Query { pairs, operation })
    }
}

/// What the description says about the path and method of a request.
fn operation_of(parts: &Parts) -> Option<&'static Operation> {
    let path = parts.extensions.get::<MatchedPath>()?;
    let method = match parts.method {
        Method::POST => "post",
        Method::DELETE => "delete",
        // Those who ask for a head are answered like those who ask for everything.
        _ => "get",
    };
    openapi::operation(&crate::routes::described_path(path.as_str()), method)
}

/// Anything else is refused by name instead of being ignored, and so is the same twice.
fn only_known(pairs: &[(String, String)], operation: &Operation) -> Result<(), ApiError> {
    for (index, (name, _)) in pairs.iter().enumerate() {
        if !operation.has_in_query(name) {
            return Err(
                ApiError::field(name, format!("`{name}` is not a parameter here")).with_code("unknown_parameter")
            );
        }
        if pairs[..index].iter().any(|(other, _)| other == name) {
            return Err(ApiError::field(name, format!("`{name}` is there twice")));
        }
    }
    Ok(())
}

impl Query {
    pub fn get(&self, name: &str) -> Option<&str> {
        self.pairs.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The page that is asked for, within the bounds that the description says.
    pub fn page(&self) -> Result<Page, ApiError> {
        let (least, most, usual) = self.operation.whole("limit").unwrap_or((1, PAGE, PAGE));
        let problem = || ApiError::field("limit", format!("`limit` has to be a whole number from {least} to {most}"));
        let limit = match self.get("limit") {
            None => usual,
            Some(text) => text.parse().ok().filter(|limit| (least..=most).contains(limit)).ok_or_else(problem)?,
        };
        let limit = limit.unsigned_abs() as usize;
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
        let wanted: BTreeMap<String, String> = self
            .pairs
            .iter()
            .filter_map(|(name, value)| Some((key_of("metadata", name)?.to_string(), value.clone())))
            .collect();
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

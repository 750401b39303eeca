//! What goes wrong with a request, in the shape that clients of OpenAI's API know.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::wire::{ErrorBody, ErrorDetail, ErrorExtension, ErrorKind};

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ApiError {
    /// The status of the answer.
    pub status: StatusCode,
    /// What is wrong and what would help, in words.
    pub message: String,
    /// The field that is wrong, where it is one.
    pub param: Option<String>,
    /// What a program can tell it by.
    pub code: Option<&'static str>,
    /// More of ours, under `model_garden`.
    pub details: Option<ErrorExtension>,
}

impl ApiError {
    fn new(status: StatusCode, message: impl Into<String>) -> ApiError {
        ApiError { status, message: message.into(), param: None, code: None, details: None }
    }

    /// A request that cannot be met as it is.
    pub fn invalid(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, message)
    }

    /// A field that cannot be what it is.
    pub fn field(param: &str, message: impl Into<String>) -> ApiError {
        ApiError { param: Some(param.to_string()), code: Some("invalid_value"), ..ApiError::invalid(message) }
    }

    /// Something that is not there.
    pub fn missing(what: &str, id: &str) -> ApiError {
        let message = format!("no {what} `{}` is here", shortened(id));
        ApiError { code: Some("not_found"), ..ApiError::new(StatusCode::NOT_FOUND, message) }
    }

    /// Something that cannot be done as things are now. Not 409: OpenAI's clients send that again and again.
    pub fn wrong_state(message: impl Into<String>) -> ApiError {
        ApiError { code: Some("wrong_state"), ..ApiError::invalid(message) }
    }

    /// A key of a request that came before with another body.
    pub fn other_body() -> ApiError {
        let message = "this `Idempotency-Key` was sent with another body before: use a new key for a new request";
        ApiError { code: Some("idempotency_key_reused"), ..ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, message) }
    }

    /// What the disk did not let us do.
    pub fn of_disk(what: &str, error: &std::io::Error) -> ApiError {
        match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                ApiError::no_space("the server's disk is full")
            }
            _ => ApiError::internal(what, error),
        }
    }

    /// Something that is not allowed.
    pub fn forbidden(message: impl Into<String>) -> ApiError {
        ApiError { code: Some("forbidden"), ..ApiError::new(StatusCode::FORBIDDEN, message) }
    }

    /// No key, or a wrong one.
    pub fn unauthorised(message: impl Into<String>) -> ApiError {
        ApiError { code: Some("invalid_api_key"), ..ApiError::new(StatusCode::UNAUTHORIZED, message) }
    }

    /// More than is taken.
    pub fn too_large(message: impl Into<String>) -> ApiError {
        ApiError { code: Some("too_large"), ..ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message) }
    }

    /// More often than is taken.
    pub fn too_often() -> ApiError {
        let message = "too many requests: wait a second before the next one";
        ApiError { code: Some("rate_limit_exceeded"), ..ApiError::new(StatusCode::TOO_MANY_REQUESTS, message) }
    }

    /// Too many wait for the same.
    pub fn busy() -> ApiError {
        let message = "the server is busy with other requests of this kind: try again in a minute";
        ApiError { code: Some("server_busy"), ..ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message) }
    }

    /// A body that does not come.
    pub fn too_slow() -> ApiError {
        let message = "the request's body came too slowly, or not at all";
        ApiError { code: Some("timeout"), ..ApiError::new(StatusCode::REQUEST_TIMEOUT, message) }
    }

    /// No space, neither by quota nor on the disk.
    pub fn no_space(message: impl Into<String>) -> ApiError {
        ApiError { code: Some("insufficient_storage"), ..ApiError::new(StatusCode::INSUFFICIENT_STORAGE, message) }
    }

    /// Whether it is for want of space.
    pub fn is_no_space(&self) -> bool {
        self.status == StatusCode::INSUFFICIENT_STORAGE
    }

    /// A method that a path does not have.
    pub fn method() -> ApiError {
        let message = "this path does not have that method; GET /openapi.json lists both";
        ApiError { code: Some("method_not_allowed"), ..ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message) }
    }

    /// Something on our side. The words are for the operator's log too, and hold nothing secret.
    pub fn internal(what: &str, error: &dyn std::fmt::Display) -> ApiError {
        let message = format!("{what}: {error}");
        ApiError { code: Some("internal_error"), ..ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message) }
    }

    /// With more of ours.
    pub fn with_details(self, details: ErrorExtension) -> ApiError {
        ApiError { details: Some(details), ..self }
    }

    /// With another code.
    pub fn with_code(self, code: &'static str) -> ApiError {
        ApiError { code: Some(code), ..self }
    }

    /// The body of the answer.
    fn body(&self) -> ErrorBody {
        let kind = match self.status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => ErrorKind::Authentication,
            StatusCode::TOO_MANY_REQUESTS => ErrorKind::RateLimit,
            status if status.is_server_error() => ErrorKind::Server,
            _ => ErrorKind::Invalid,
        };
        ErrorBody {
            error: ErrorDetail {
                message: self.message.clone(),
                r#type: kind,
                param: self.param.clone(),
                code: self.code,
                model_garden: self.details.clone(),
            },
        }
    }
}

/// Names from outside are not repeated at any length.
fn shortened(id: &str) -> String {
    const SHOWN: usize = 80;
    match id.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &id[..end]),
        None => id.to_string(),
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let text = serde_json::to_string(&self.body()).unwrap_or_default();
        let mut answer = (self.status, [(header::CONTENT_TYPE, "application/json")], text).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            answer.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.status == StatusCode::TOO_MANY_REQUESTS {
            answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        answer
    }
}

impl From<crate::store::StoreError> for ApiError {
    fn from(error: crate::store::StoreError) -> ApiError {
        match error {
            crate::store::StoreError::NoSuchPlace => {
                ApiError::field("after", "`after` is not the id of anything in this list")
            }
            // A client would send it again and again after an error of ours.
            error @ crate::store::StoreError::Unreadable(_) => ApiError::wrong_state(error.to_string()),
            error if error.is_disk_full() => ApiError::no_space("the server's disk is full"),
            error => ApiError::internal("the server's database cannot be used", &error),
        }
    }
}

//! What goes wrong, in OpenAI's shape.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::Plan;

/// What is wrong, in OpenAI's shape.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Error")]
pub(crate) struct ErrorBody {
    pub error: ErrorDetail,
}

/// What is wrong.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct ErrorDetail {
    /// What is wrong and what would help, in words.
    pub message: String,
    pub r#type: ErrorKind,
    /// The field or parameter that is wrong.
    pub param: Option<String>,
    /// What a program can tell it by.
    pub code: Option<&'static str>,
    /// With the code `does_not_fit`: the plan, with the changes that would make it fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ErrorExtension")]
    pub model_garden: Option<ErrorExtension>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) enum ErrorKind {
    #[serde(rename = "invalid_request_error")]
    Invalid,
    #[serde(rename = "authentication_error")]
    Authentication,
    #[serde(rename = "rate_limit_error")]
    RateLimit,
    #[serde(rename = "server_error")]
    Server,
}

/// What OpenAI's error has no room for.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(crate) struct ErrorExtension {
    #[schemars(with = "Option<Plan>")]
    pub plan: Option<Value>,
}

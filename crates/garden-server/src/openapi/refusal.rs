//! The ways in which a request is refused.

use axum::http::StatusCode;

/// A status other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Invalid,
    NoKey,
    Forbidden,
    Missing,
    TooSlow,
    OtherBody,
    TooLarge,
    TooOften,
    Internal,
    Busy,
    NoSpace,
}

impl Refusal {
    pub const ALL: [Refusal; 11] = [
        Refusal::Invalid,
        Refusal::NoKey,
        Refusal::Forbidden,
        Refusal::Missing,
        Refusal::TooSlow,
        Refusal::OtherBody,
        Refusal::TooLarge,
        Refusal::TooOften,
        Refusal::Internal,
        Refusal::Busy,
        Refusal::NoSpace,
    ];

    pub fn status(self) -> StatusCode {
        match self {
            Refusal::Invalid => StatusCode::BAD_REQUEST,
            Refusal::NoKey => StatusCode::UNAUTHORIZED,
            Refusal::Forbidden => StatusCode::FORBIDDEN,
            Refusal::Missing => StatusCode::NOT_FOUND,
            Refusal::TooSlow => StatusCode::REQUEST_TIMEOUT,
            Refusal::OtherBody => StatusCode::UNPROCESSABLE_ENTITY,
            Refusal::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Refusal::TooOften => StatusCode::TOO_MANY_REQUESTS,
            Refusal::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Refusal::Busy => StatusCode::SERVICE_UNAVAILABLE,
            Refusal::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
        }
    }

    /// Its name in the description.
    pub fn name(self) -> &'static str {
        match self {
            Refusal::Invalid => "Invalid",
            Refusal::NoKey => "NoKey",
            Refusal::Forbidden => "Forbidden",
            Refusal::Missing => "Missing",
            Refusal::TooSlow => "TooSlow",
            Refusal::OtherBody => "OtherBody",
            Refusal::TooLarge => "TooLarge",
            Refusal::TooOften => "TooOften",
            Refusal::Internal => "Internal",
            Refusal::Busy => "Busy",
            Refusal::NoSpace => "NoSpace",
        }
    }

    pub fn description(self) -> &'static str {
        match self {
            Refusal::Invalid => "The request cannot be met as it is; `param` names what is wrong.",
            Refusal::NoKey => "An API key is needed, or this one is not the server's.",
            Refusal::Forbidden => {
                "Not allowed here: the operator's decision, another site's page, or a host name that is not the server's."
            }
            Refusal::Missing => "There is nothing of this name.",
            Refusal::TooSlow => "The body came too slowly, or not at all.",
            Refusal::OtherBody => "The same `Idempotency-Key` came before with another body.",
            Refusal::TooLarge => "The body is larger than is taken.",
            Refusal::TooOften => "Too many requests of this address.",
            Refusal::Internal => "A fault of the server or its machine.",
            Refusal::Busy => "Not now: the server is busy with others, or one of its parts fails.",
            Refusal::NoSpace => "No space is left, by quota or on the disk.",
        }
    }
}

//! What viewers of a job hear.

use schemars::JsonSchema;

/// A server-sent event.
#[expect(dead_code, reason = "only its schema is used: the event itself is axum's")]
#[derive(JsonSchema)]
pub(crate) struct Live {
    event: LiveKind,
    data: String,
    /// A place to go on from.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Place")]
    id: Option<String>,
}

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(rename_all = "snake_case", inline)]
pub(crate) enum LiveKind {
    /// A line of the trace.
    Sample,
    /// An event as in the list of events.
    Event,
    /// A line of the log as a JSON string.
    Log,
    /// The job is over or paused.
    End,
    /// A fault of the server.
    Error,
}

impl LiveKind {
    pub fn name(self) -> &'static str {
        match self {
            LiveKind::Sample => "sample",
            LiveKind::Event => "event",
            LiveKind::Log => "log",
            LiveKind::End => "end",
            LiveKind::Error => "error",
        }
    }
}

/// A place in the stream of a job.
#[expect(dead_code, reason = "only its schema is used: `live.rs` reads places")]
#[derive(JsonSchema)]
#[schemars(extend("pattern" = "^(start|now|t[0-9]{1,18}-e[0-9]{1,18}-l[0-9]{1,18})$"))]
pub(crate) struct Place(String);

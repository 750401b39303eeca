//! What goes over the wire: a type for each answer, in OpenAI's shape where it has one, and for each request.
//!
//! Answers are made of records by the constructors beside them and serialised as they are. The schemas of all these types, with their comments as descriptions, are the
//! API's description (`openapi.rs`). Requests are read by `Fields`, which names what is wrong with a value better than a deserialiser would; the names that it takes are
//! those of the request's type.

mod check;
mod checkpoint;
mod diagnosis;
mod error;
mod event;
mod file;
mod job;
mod list;
mod live;
mod model;
mod plan;
mod planned;
mod request;
mod system;
mod upload;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use crate::answer::MOST_PAIRS;
use crate::asked::LONGEST;

pub(crate) use check::Check;
pub(crate) use checkpoint::{Checkpoint, CheckpointMetrics};
pub(crate) use diagnosis::Diagnosis;
pub(crate) use error::{ErrorBody, ErrorDetail, ErrorExtension, ErrorKind};
pub(crate) use event::{EVENT, EvaluationMetrics, Event, Metrics, StepMetrics};
pub(crate) use file::{DeletedFile, File};
pub(crate) use job::{DeletedJob, Job};
pub(crate) use list::{All, Identified, Page};
pub(crate) use live::{Live, LiveKind, Place};
pub(crate) use model::{DeletedModel, Model, ModelFile};
pub(crate) use plan::Plan;
pub(crate) use planned::PlanAnswer;
pub(crate) use request::{
    EventAfter, IdempotencyKey, MetadataQuery, NewCheck, NewCommand, NewFile, NewJob, NewPart, NewUpload, Nothing,
    Order, Purpose, Text, UploadEnd,
};
pub(crate) use system::{Document, FileSpace, Gpu, Health, HealthPart, ServerMemory, System};
pub(crate) use upload::{Part, Upload};

/// A type of one value, which says what an object is.
macro_rules! constant {
    ($name:ident = $value:literal) => {
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub(crate) struct $name;

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serde::Serialize::serialize(&$value, serializer)
            }
        }

        impl schemars::JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                let value = serde_json::Value::from($value);
                let kind = if value.is_boolean() { "boolean" } else { "string" };
                schemars::json_schema!({"type": kind, "const": value})
            }
        }
    };
}
use constant;

constant!(True = true);
constant!(Local = "local");
constant!(AutoWord = "auto");

/// Seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Time(pub i64);

/// What a client has attached to a job.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(extend(
    "maxProperties" = MOST_PAIRS,
    "propertyNames" = {"maxLength": LONGEST.0},
    "additionalProperties" = {"type": "string", "maxLength": LONGEST.1},
))]
pub(crate) struct Metadata(pub BTreeMap<String, String>);

/// A value, or `auto`, which leaves it to us.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub(crate) enum OrAuto<T> {
    Auto(AutoWord),
    Is(T),
}

impl<T> From<Option<T>> for OrAuto<T> {
    fn from(value: Option<T>) -> OrAuto<T> {
        value.map_or(OrAuto::Auto(AutoWord), OrAuto::Is)
    }
}

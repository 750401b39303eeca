//! Events of a job, and the numbers in them. The store keeps those numbers as they go out.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Time, constant};
use crate::store::{EventRecord, Level};

/// How names of events begin.
pub(crate) const EVENT: &str = "ftevent-";

constant!(EventObject = "fine_tuning.job.event");

/// Something that happened to a job.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Event {
    pub created_at: Time,
    /// Numbers, where it is about these.
    pub data: Option<Metrics>,
    pub id: String,
    pub level: EventLevel,
    pub message: String,
    pub object: EventObject,
    pub r#type: EventKind,
}

#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(crate) enum EventLevel {
    Info,
    Warn,
    Error,
}

#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(crate) enum EventKind {
    Message,
    Metrics,
}

impl From<&EventRecord> for Event {
    fn from(event: &EventRecord) -> Event {
        let data = event.data.as_ref().and_then(Metrics::read);
        Event {
            created_at: Time(event.created_at),
            id: format!("{EVENT}{:012}", event.seq),
            level: match event.level {
                Level::Info => EventLevel::Info,
                Level::Warn => EventLevel::Warn,
                Level::Error => EventLevel::Error,
            },
            message: event.message.clone(),
            object: EventObject,
            r#type: if data.is_some() { EventKind::Metrics } else { EventKind::Message },
            data,
        }
    }
}

/// Numbers of a step or an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum Metrics {
    // First: an evaluation has neither `epoch` nor `tokens`.
    Step(StepMetrics),
    Evaluation(EvaluationMetrics),
}

impl Metrics {
    /// As the store has them.
    pub fn read(value: &Value) -> Option<Metrics> {
        Metrics::deserialize(value).ok()
    }

    pub fn step(self) -> Option<StepMetrics> {
        match self {
            Metrics::Step(metrics) => Some(metrics),
            Metrics::Evaluation(_) => None,
        }
    }

    pub fn evaluation(self) -> Option<EvaluationMetrics> {
        match self {
            Metrics::Step(_) => None,
            Metrics::Evaluation(metrics) => Some(metrics),
        }
    }

    /// For the store.
    pub fn value(&self) -> Option<Value> {
        serde_json::to_value(self).ok()
    }
}

/// Numbers of a step. A loss that is not a number is null.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct StepMetrics {
    pub epoch: f64,
    pub learning_rate: Option<f64>,
    pub step: usize,
    /// Tokens of this and all earlier steps.
    pub tokens: u64,
    pub total_steps: Option<usize>,
    pub train_loss: Option<f64>,
    pub train_mean_token_accuracy: Option<f64>,
}

/// Numbers of an evaluation. A loss that is not a number is null.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct EvaluationMetrics {
    /// The share of answers that are right, letter by letter.
    pub exact_match: Option<f64>,
    /// The share of fields that are right, in answers that are JSON.
    pub field_accuracy: Option<f64>,
    pub full_valid_loss: Option<f64>,
    pub full_valid_mean_token_accuracy: Option<f64>,
    pub step: usize,
    pub total_steps: Option<usize>,
    pub valid_loss: Option<f64>,
    pub valid_mean_token_accuracy: Option<f64>,
}

//! Checkpoints of a job.

use schemars::JsonSchema;
use serde::Serialize;

use super::{EvaluationMetrics, StepMetrics, Time, constant};
use crate::catalogue::checkpoint_name;
use crate::job::JobRecord;

constant!(CheckpointObject = "fine_tuning.job.checkpoint");

/// A checkpoint of a job.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Checkpoint {
    pub id: String,
    pub object: CheckpointObject,
    pub created_at: Time,
    pub fine_tuning_job_id: String,
    pub step_number: u64,
    /// Its name as a model.
    pub fine_tuned_model_checkpoint: String,
    pub metrics: CheckpointMetrics,
}

impl Checkpoint {
    pub fn of(job: &JobRecord, created: i64, metrics: CheckpointMetrics) -> Checkpoint {
        let step = metrics.step;
        Checkpoint {
            id: format!("ftckpt_{}_{step}", job.id().trim_start_matches("ftjob-")),
            object: CheckpointObject,
            created_at: Time(created),
            fine_tuning_job_id: job.id().to_string(),
            step_number: step,
            fine_tuned_model_checkpoint: checkpoint_name(job, step),
            metrics,
        }
    }
}

/// Numbers of a checkpoint's step; those that are not known are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub(crate) struct CheckpointMetrics {
    step: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "f64")]
    train_loss: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "f64")]
    train_mean_token_accuracy: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "f64")]
    valid_loss: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "f64")]
    valid_mean_token_accuracy: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "f64")]
    full_valid_loss: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "f64")]
    full_valid_mean_token_accuracy: Option<f64>,
}

impl CheckpointMetrics {
    pub fn of(step: u64, trained: Option<StepMetrics>, evaluated: Option<EvaluationMetrics>) -> CheckpointMetrics {
        CheckpointMetrics {
            step,
            train_loss: trained.and_then(|metrics| metrics.train_loss),
            train_mean_token_accuracy: trained.and_then(|metrics| metrics.train_mean_token_accuracy),
            valid_loss: evaluated.and_then(|metrics| metrics.valid_loss),
            valid_mean_token_accuracy: evaluated.and_then(|metrics| metrics.valid_mean_token_accuracy),
            full_valid_loss: evaluated.and_then(|metrics| metrics.full_valid_loss),
            full_valid_mean_token_accuracy: evaluated.and_then(|metrics| metrics.full_valid_mean_token_accuracy),
        }
    }
}

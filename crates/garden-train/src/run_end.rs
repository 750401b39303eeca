//! How a run ended: the file that the process that trains writes last, and everybody who tells about the run reads.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::checkpoint::Progress;
use crate::observer::EvalReport;

/// The file in the output folder. Whoever finds it knows that training came to its end.
pub const RUN_END: &str = "result.json";

/// Why training ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// All steps are made.
    Done,
    /// Evaluations got no better.
    #[serde(rename = "early_stopping")]
    NoBetter,
    /// Somebody asked for it; a checkpoint was written.
    Asked,
}

/// The loss of a micro-batch with the trained weights as they were read again from the output folder, and without an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Proof {
    /// As read again.
    #[serde(rename = "loss")]
    pub with: f64,
    /// With every B zero, as the base model has it; nothing where all weights were trained.
    #[serde(rename = "loss_without_adapter")]
    pub without: Option<f64>,
    /// Before the values were rounded to the type of the result, where they were.
    #[serde(rename = "loss_unrounded")]
    pub unrounded: Option<f64>,
}

/// Memory of the process that trains, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Resident {
    /// Anonymous memory at the start.
    pub start: u64,
    /// The same when everything was on the device.
    pub began: u64,
    /// The same at most.
    pub most: u64,
    /// The most that was resident, as the kernel has it.
    pub peak: u64,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunEnd {
    /// Why.
    pub end: End,
    /// How far it came.
    pub progress: Progress,
    /// The first training loss that was logged.
    pub first_loss: Option<f64>,
    /// The last one.
    pub last_loss: Option<f64>,
    /// The share of trained tokens whose logit no other one exceeded, as logged with the first loss.
    #[serde(default)]
    pub first_mean_token_accuracy: Option<f64>,
    /// The same as logged with the last loss.
    #[serde(default)]
    pub last_mean_token_accuracy: Option<f64>,
    /// The last evaluation.
    pub evaluation: Option<EvalReport>,
    /// What the result was proven by.
    pub proof: Option<Proof>,
    /// Seconds of all starts.
    pub seconds: f64,
    /// Those of the last start.
    #[serde(default)]
    pub seconds_of_last_start: Option<f64>,
    /// Bytes of the device's buffers by purpose.
    #[serde(default)]
    pub arena: BTreeMap<String, u64>,
    /// Memory of the process.
    #[serde(default)]
    pub resident: Resident,
    /// What was taken of a GPU's memory.
    #[serde(default)]
    pub gpu_bytes: Option<u64>,
    /// The share of the time of steps in which the device had nothing to do, where it could have.
    #[serde(default)]
    pub idle_share: Option<f64>,
    /// The share of the time of steps that telling about them took.
    #[serde(default)]
    pub share_of_telling: f64,
}

impl RunEnd {
    /// The one of an output folder; none if training did not come to its end.
    pub fn read(folder: &Path) -> Option<RunEnd> {
        serde_json::from_slice(&std::fs::read(folder.join(RUN_END)).ok()?).ok()
    }

    /// Whether the adapter changes nothing.
    pub fn is_no_op(&self) -> bool {
        self.proof.is_some_and(|proof| proof.without == Some(proof.with))
    }
}

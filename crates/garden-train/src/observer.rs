//! Who is told how training goes, and may ask it to end.

use std::collections::BTreeMap;
use std::path::Path;

use garden_device::Plan;
use serde::{Deserialize, Serialize};

/// A step that was made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// Its number, counted from 1.
    pub step: usize,
    /// Steps of the run.
    pub steps: usize,
    /// Epochs that are done, with a fraction.
    pub epoch: f64,
    /// The loss before the update.
    pub loss: f64,
    /// The mean loss of the steps since the last line of the log, this one included: what the log says where this step has a line.
    pub mean_loss: f64,
    /// The norm of all gradients before clipping.
    pub gradient_norm: f64,
    /// The learning rate.
    pub rate: f64,
    /// Tokens that were read.
    pub tokens: usize,
    /// Tokens that were trained.
    pub trained: usize,
    /// Of these, tokens whose logit no other one exceeded.
    pub hits: usize,
    /// Seconds that it took, and those of them that it waited for rows.
    pub seconds: f64,
    /// Seconds that it waited for rows.
    pub waited: f64,
    /// Seconds that the device had nothing to do, since the step before.
    pub idle: f64,
    /// Seconds that it was at work for this step.
    pub busy: f64,
}

/// What an evaluation found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EvalReport {
    /// The step it came after.
    pub step: usize,
    /// The mean loss of a trained token.
    pub loss: f64,
    /// The share of trained tokens whose logit no other one exceeded.
    #[serde(default)]
    pub mean_token_accuracy: Option<f64>,
    /// Rows that were read.
    pub rows: usize,
    /// Rows for which an answer was generated.
    pub answers: usize,
    /// The share of answers that are right as a whole.
    pub exact_match: Option<f64>,
    /// The share of fields of JSON answers that are right.
    pub field_accuracy: Option<f64>,
    /// The same for each field.
    pub fields: BTreeMap<String, f64>,
    /// How much answered boxes and right ones overlap, on average (intersection over union).
    #[serde(default)]
    pub mean_iou: Option<f64>,
    /// The share of boxes that overlap by half at least.
    #[serde(default)]
    pub iou_50: Option<f64>,
    /// Seconds that it took.
    pub seconds: f64,
    /// Whether it is the best so far.
    pub is_best: bool,
}

/// Is told how training goes. All of it happens on the thread that trains, so it should not take long.
pub trait Observer {
    /// Everything is on the device; steps begin after this one.
    fn began(&mut self, step: usize, plan: &Plan);
    /// A step was made.
    fn stepped(&mut self, report: &StepReport);
    /// An evaluation begins.
    fn evaluating(&mut self);
    /// An evaluation is done.
    fn evaluated(&mut self, report: &EvalReport);
    /// A checkpoint was written.
    fn saved(&mut self, path: &Path);
    /// Something that a person should know.
    fn say(&mut self, line: &str);
    /// Whether training should save and end.
    fn wants_end(&mut self) -> bool;
}

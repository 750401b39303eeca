//! Everything that a run has left in its output folder, for those who tell about it: the page and the model card.

use std::path::Path;

use garden_guard::Summary;
use garden_memory::{Bytes, Question};
use garden_trace::{ReadOptions, read_path};
use garden_train::{EvalReport, Job, LOG, Prediction, read_predictions, report_of};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::files::{FINISH, JOB, JobFile, TRACE, write_json};
use super::result;
use crate::commands::diagnose::Judged;
use crate::failure::Failure;

/// What was planned, kept for a page that is made again.
const PLANNED: &str = ".planned.json";
/// How the guard says how it ended, in its folder.
const EXIT: &str = "exit.json";

/// What memory was planned for, beside what was measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Planned {
    /// All of it, if there was a plan.
    pub total: Option<Bytes>,
    /// What each part is for.
    pub rows: Vec<PlannedRow>,
}

/// A part of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedRow {
    /// What it is for.
    pub purpose: String,
    /// What was planned.
    pub planned: Bytes,
    /// What it came to.
    pub measured: Bytes,
}

/// A step that the log has.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Step {
    pub step: usize,
    pub epoch: f64,
    /// The mean since the line before.
    pub loss: f64,
    pub gradient_norm: f64,
    pub rate: f64,
    pub seconds: f64,
    /// Of these, seconds that it waited for rows.
    pub waited: f64,
    /// Tokens that were read up to here.
    pub tokens: f64,
}

/// A run, as its files tell it.
pub struct Story<'a> {
    pub job: &'a Job,
    pub summary: Option<&'a Summary>,
    pub judged: Option<&'a Judged>,
    /// What it came to, in a sentence.
    pub answer: String,
    pub seconds: f64,
    pub planned: Planned,
    /// What the process that trains wrote at its end.
    pub finish: Option<Value>,
    pub steps: Vec<Step>,
    pub evaluations: Vec<EvalReport>,
    /// The answers of the newest evaluation.
    pub predictions: Vec<Prediction>,
}

impl<'a> Story<'a> {
    /// Reads what the run has left.
    pub fn of(
        job: &'a Job,
        summary: Option<&'a Summary>,
        judged: Option<&'a Judged>,
        seconds: f64,
        planned: Planned,
    ) -> Story<'a> {
        let folder = job.recipe.output_dir.as_path();
        let (steps, evaluations) = read_log(folder);
        let finish = read_finish(folder);
        let words = summary.map_or("it did not come to its end", |summary| summary.words.as_str());
        let ends = garden_train::read_evaluations(folder, job.recipe.best_by());
        let ends = ends.as_ref().map(|(first, best)| (first, best));
        let seconds = whole_time(finish.as_ref(), judged, seconds);
        let answer = result::answer(finish.as_ref(), words, seconds, ends);
        let predictions = read_predictions(folder);
        Story { job, summary, judged, answer, seconds, planned, finish, steps, evaluations, predictions }
    }

    /// A number of what was written at the end.
    pub fn number(&self, path: &[&str]) -> Option<f64> {
        path.iter().try_fold(self.finish.as_ref()?, |value, name| value.get(name))?.as_f64()
    }

    /// The best evaluation after a step: what is in the folder is that of its step.
    pub fn best(&self) -> Option<&EvalReport> {
        self.job.recipe.best_by().best(&self.evaluations)
    }

    /// The last step that was made, as far as the files tell.
    pub fn last_step(&self) -> usize {
        let logged = self.steps.last().map_or(0, |step| step.step);
        self.number(&["progress", "step"]).map_or(logged, |step| step as usize)
    }

    /// Keeps what no other file has.
    pub fn keep(&self) -> Result<(), Failure> {
        if self.planned == Planned::default() {
            return Ok(());
        }
        let value = serde_json::to_value(&self.planned).unwrap_or_default();
        write_json(&self.job.recipe.output_dir.join(PLANNED), &value)
    }
}

/// How long all starts of a run took: that of the steps that count, where it came to its end; else that of the trace.
pub fn whole_time(finish: Option<&Value>, judged: Option<&Judged>, seconds: f64) -> f64 {
    let told = finish.and_then(|finish| finish["progress"]["seconds"].as_f64());
    told.unwrap_or_else(|| judged.map_or(0.0, Judged::seconds).max(seconds))
}

/// What a story that is told later borrows from.
pub struct Remains {
    pub job: Job,
    pub summary: Option<Summary>,
    pub judged: Option<Judged>,
    pub planned: Planned,
}

impl Remains {
    /// Reads the output folder of a run, wherever it is now.
    pub fn read(folder: &Path) -> Result<Remains, Failure> {
        let mut job = JobFile::read(&folder.join(JOB))?.job;
        job.recipe.output_dir = folder.to_path_buf();
        let read = read_path(&folder.join(TRACE), &ReadOptions::default()).ok();
        Ok(Remains {
            job,
            summary: read_json(&folder.join(super::GUARD).join(EXIT)),
            judged: read.map(|read| Judged::of(read, Question::default())),
            planned: read_json(&folder.join(PLANNED)).unwrap_or_default(),
        })
    }

    /// The story of the run.
    pub fn story(&self) -> Story<'_> {
        let attempts = self.summary.iter().flat_map(|summary| &summary.attempts);
        let seconds = attempts.map(|attempt| attempt.seconds).sum();
        Story::of(&self.job, self.summary.as_ref(), self.judged.as_ref(), seconds, self.planned.clone())
    }
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

/// What the process that trains wrote at its end.
pub fn read_finish(folder: &Path) -> Option<Value> {
    read_json(&folder.join(FINISH))
}

fn read_log(folder: &Path) -> (Vec<Step>, Vec<EvalReport>) {
    let text = std::fs::read_to_string(folder.join(LOG)).unwrap_or_default();
    let lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    (lines.iter().filter_map(step_of).collect(), lines.iter().filter_map(report_of).collect())
}

fn step_of(line: &Value) -> Option<Step> {
    let number = |name: &str| line.get(name).and_then(Value::as_f64);
    let or_unknown = |name: &str| number(name).unwrap_or(f64::NAN);
    Some(Step {
        step: number("step")? as usize,
        epoch: number("epoch").unwrap_or(0.0),
        loss: number("loss")?,
        gradient_norm: or_unknown("grad_norm"),
        rate: or_unknown("learning_rate"),
        seconds: or_unknown("step_seconds"),
        waited: or_unknown("waited_seconds"),
        tokens: number("tokens").unwrap_or(0.0),
    })
}

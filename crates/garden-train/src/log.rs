//! The run's log: a JSON line for each that Hugging Face's trainer would have in its `log_history`, by the same names, and more.
//!
//! The file is the only place where lines are kept, so a long run holds none of them. A run that resumes cuts off what came after its checkpoint.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::checkpoint::{LossWindow, Progress};
use crate::error::Error;
use crate::observer::{EvalReport, StepReport};
use crate::tensorboard::EventFile;

/// How the file is called.
pub const LOG: &str = "log.jsonl";

/// The folder of TensorBoard's files.
const EVENTS: &str = "runs";

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum LogLine {
    /// An evaluation: it has an `eval_loss`.
    Evaluation(EvalLine),
    /// Some steps: they have a `loss`.
    Step(StepLine),
    /// A row that was left out: it has a `left_out`.
    LeftOut(LeftOutLine),
}

/// A row that could not be used when it was its turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOutLine {
    /// The step that went without it; that of an evaluation.
    pub step: usize,
    /// What is wrong with it, with its place.
    pub left_out: String,
    /// Its index in the dataset, counted from 0.
    pub row: usize,
    /// Whether it is a row to evaluate on.
    #[serde(default)]
    pub is_evaluated: bool,
}

/// The steps since the line before, by the names of Hugging Face's trainer. What is no number is `null` in the file.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepLine {
    /// The last of them.
    pub step: usize,
    /// Epochs that are done, with a fraction.
    #[serde(default)]
    pub epoch: f64,
    /// Their mean loss.
    pub loss: f64,
    /// The share of their trained tokens whose logit no other one exceeded, as TRL names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_token_accuracy: Option<f64>,
    /// The norm of all gradients before clipping.
    #[serde(default = "unknown", deserialize_with = "or_unknown")]
    pub grad_norm: f64,
    /// The learning rate.
    #[serde(default = "unknown", deserialize_with = "or_unknown")]
    pub learning_rate: f64,
    /// Seconds of the last step.
    #[serde(default = "unknown", deserialize_with = "or_unknown")]
    pub step_seconds: f64,
    /// Of these, seconds that it waited for rows.
    #[serde(default = "unknown", deserialize_with = "or_unknown")]
    pub waited_seconds: f64,
    /// Seconds that the device had nothing to do, since the step before.
    #[serde(default = "unknown", deserialize_with = "or_unknown")]
    pub idle_seconds: f64,
    /// Tokens that were read up to here.
    #[serde(default)]
    pub tokens: u64,
}

/// An evaluation, by the names of Hugging Face's trainer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvalLine {
    #[serde(default)]
    step: usize,
    #[serde(default)]
    epoch: f64,
    eval_loss: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    eval_mean_token_accuracy: Option<f64>,
    #[serde(default)]
    eval_rows: usize,
    #[serde(default)]
    eval_runtime: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    eval_answers: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    eval_exact_match: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    eval_field_accuracy: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    eval_fields: Option<BTreeMap<String, f64>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    eval_mean_iou: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    eval_iou_50: Option<f64>,
}

fn unknown() -> f64 {
    f64::NAN
}

fn or_unknown<'de, D: Deserializer<'de>>(number: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(number)?.unwrap_or_else(unknown))
}

/// Four digits behind the point: what nobody reads is not written.
fn rounded(number: f64) -> f64 {
    (number * 1e4).round() / 1e4
}

impl StepLine {
    pub(crate) fn of(report: &StepReport, window: &LossWindow, tokens: u64) -> StepLine {
        StepLine {
            step: report.step,
            epoch: rounded(report.epoch),
            loss: window.loss(),
            mean_token_accuracy: window.accuracy(),
            grad_norm: report.gradient_norm,
            learning_rate: report.rate,
            step_seconds: rounded(report.seconds),
            waited_seconds: rounded(report.waited),
            idle_seconds: rounded(report.idle),
            tokens,
        }
    }
}

impl EvalLine {
    pub(crate) fn of(report: &EvalReport, epoch: f64) -> EvalLine {
        EvalLine {
            step: report.step,
            epoch: rounded(epoch),
            eval_loss: report.loss,
            eval_mean_token_accuracy: report.mean_token_accuracy,
            eval_rows: report.rows,
            eval_runtime: rounded(report.seconds),
            eval_answers: report.exact_match.map(|_| report.answers),
            eval_exact_match: report.exact_match,
            eval_field_accuracy: report.field_accuracy,
            eval_fields: report.field_accuracy.map(|_| report.fields.clone()),
            eval_mean_iou: report.mean_iou,
            eval_iou_50: report.iou_50,
        }
    }

    /// The evaluation. Which one is the best is not in the log.
    pub fn report(self) -> EvalReport {
        EvalReport {
            step: self.step,
            loss: self.eval_loss,
            mean_token_accuracy: self.eval_mean_token_accuracy,
            rows: self.eval_rows,
            answers: self.eval_answers.unwrap_or(0),
            exact_match: self.eval_exact_match,
            field_accuracy: self.eval_field_accuracy,
            fields: self.eval_fields.unwrap_or_default(),
            mean_iou: self.eval_mean_iou,
            iou_50: self.eval_iou_50,
            seconds: self.eval_runtime,
            is_best: false,
        }
    }
}

/// All lines of a run's log; what cannot be read is left out.
pub fn read_log(folder: &Path) -> Vec<LogLine> {
    let text = std::fs::read_to_string(folder.join(LOG)).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// A log that is being written.
#[derive(Debug)]
pub(crate) struct Log {
    path: PathBuf,
    file: File,
    /// The same numbers for TensorBoard.
    events: EventFile,
}

impl Log {
    /// Opens the log of a folder to go on from where a run is: what came later is cut off.
    pub fn open(folder: &Path, progress: &Progress) -> Result<Log, Error> {
        let path = folder.join(LOG);
        let failed = |error| Error::file(&path, error);
        let end = end_of(&path, progress).map_err(failed)?;
        let mut file = OpenOptions::new().create(true).append(true).read(true).open(&path).map_err(failed)?;
        file.set_len(end).and_then(|()| file.flush()).map_err(failed)?;
        let events = folder.join(EVENTS);
        let opened = EventFile::create(&events, SystemTime::now(), &host());
        let events = opened.map_err(|error| Error::file(&events, error))?;
        Ok(Log { path, file, events })
    }

    /// Adds a line.
    pub fn add(&mut self, line: &LogLine) -> Result<(), Error> {
        let line = serde_json::to_value(line).unwrap_or_default();
        // One write for the line and its end, so that a reader sees all of it or nothing.
        self.file.write_all(format!("{line}\n").as_bytes()).map_err(|error| Error::file(&self.path, error))?;
        self.draw(&line).map_err(|error| Error::file(self.events.path(), error))
    }

    /// Adds the numbers of a line to TensorBoard's file, by the tags of Hugging Face's trainer.
    fn draw(&mut self, line: &Value) -> std::io::Result<()> {
        let step = line.get("step").and_then(Value::as_u64).unwrap_or(0);
        for (name, value) in line.as_object().into_iter().flatten().filter(|(name, _)| *name != "step") {
            let tag = match name.strip_prefix("eval_") {
                Some(rest) => format!("eval/{rest}"),
                None => format!("train/{name}"),
            };
            match value {
                Value::Number(number) => self.events.scalar(step, &tag, number.as_f64().unwrap_or(f64::NAN) as f32)?,
                Value::Object(fields) => {
                    for (field, share) in fields {
                        let share = share.as_f64().unwrap_or(f64::NAN) as f32;
                        self.events.scalar(step, &format!("{tag}/{field}"), share)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Copies all lines into a JSON list that is being written elsewhere.
    pub fn copy_as_list(&self, to: &mut impl Write) -> std::io::Result<()> {
        let mut is_first = true;
        to.write_all(b"[")?;
        for line in BufReader::new(File::open(&self.path)?).split(b'\n') {
            let line = line?;
            if line.is_empty() {
                continue;
            }
            to.write_all(if is_first { b"\n    " } else { b",\n    " })?;
            to.write_all(&line)?;
            is_first = false;
        }
        to.write_all(b"\n  ]")
    }
}

/// The name of the machine, which TensorBoard has in the names of its files.
fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "localhost".to_string() } else { name.trim().to_string() }
}

/// Where the lines end that a run had when it was there. A line that was torn is not counted, nor an evaluation that the run does not know of: it is
/// made again.
fn end_of(path: &Path, progress: &Progress) -> std::io::Result<u64> {
    let mut reader = match File::open(path) {
        Ok(file) => BufReader::new(file),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    };
    let (mut end, mut line) = (0, Vec::new());
    loop {
        line.clear();
        let read = reader.by_ref().read_until(b'\n', &mut line)?;
        let value = serde_json::from_slice::<Value>(&line).ok().filter(|_| line.ends_with(b"\n"));
        let Some(value) = value else { return Ok(end) };
        let at = value.get("step").and_then(Value::as_u64).map(|step| step as usize);
        let is_evaluation = value.get("eval_loss").is_some() || value.get("is_evaluated") == Some(&Value::Bool(true));
        match at {
            Some(at) if at < progress.step => {}
            Some(at) if at == progress.step && (!is_evaluation || progress.evaluated == Some(at)) => {}
            _ => return Ok(end),
        }
        end += read as u64;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use serde_json::json;

    #[test]
    fn a_resumed_log_ends_at_its_checkpoint() {
        let folder = std::env::temp_dir().join(format!("garden-log-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let at = |step, evaluated| Progress { step, evaluated, ..Progress::default() };
        let mut log = Log::open(&folder, &at(0, None)).unwrap();
        let line = |value: Value| serde_json::from_value::<LogLine>(value).unwrap();
        log.add(&line(json!({"step": 0, "eval_loss": 0.5}))).unwrap();
        (1..=5).for_each(|step| log.add(&line(json!({"step": step, "loss": 0.5}))).unwrap());
        log.file.write_all(b"{\"step\": 6, \"lo").unwrap();
        let mut log = Log::open(&folder, &at(3, Some(0))).unwrap();
        log.add(&line(json!({"step": 4, "loss": 0.5}))).unwrap();
        log.add(&line(json!({"step": 4, "eval_loss": 0.4}))).unwrap();
        // What could not be written as a number is unknown, not zero; a line of neither kind is left out.
        let end = log.file.metadata().unwrap().len();
        log.file.write_all(b"{\"step\": 4, \"note\": 1}\n").unwrap();
        let read = read_log(&folder);
        assert_eq!(read.len(), 6);
        let LogLine::Evaluation(first) = read[0].clone() else { panic!("{:?}", read[0]) };
        assert_eq!((first.clone().report().loss, first.report().mean_token_accuracy), (0.5, None));
        assert!(matches!(read[1], LogLine::Step(line) if line.grad_norm.is_nan() && line.loss == 0.5));
        assert!(matches!(read[1], LogLine::Step(line) if line.mean_token_accuracy.is_none()));
        log.file.set_len(end).unwrap();
        let mut list = Vec::new();
        log.copy_as_list(&mut list).unwrap();
        let steps: Vec<Value> = serde_json::from_slice(&list).unwrap();
        assert_eq!(steps.iter().map(|line| line["step"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 4]);
        // An evaluation stays where the run knows that it was made.
        let lines = |progress: &Progress| {
            Log::open(&folder, progress).unwrap();
            std::fs::read_to_string(folder.join(LOG)).unwrap().lines().count()
        };
        assert_eq!(lines(&at(4, Some(4))), 6);
        assert_eq!(lines(&at(4, Some(0))), 5);
        assert_eq!(lines(&at(0, Some(0))), 1);
        assert_eq!(lines(&at(0, None)), 0);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

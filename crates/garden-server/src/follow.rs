//! What a run's folder tells about a job: metrics, checkpoints, memory, and the table of results.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

use garden_run::GUARD;
use garden_train::{LOG, LogLine, read_log};
use serde_json::{Value, json};

use crate::Server;
use crate::error::ApiError;
use crate::files::RESULTS;
use crate::job::{JobRecord, Status};
use crate::store::{FileRecord, NewEvent};

/// Bytes of a log that are read at once.
const MOST_READ: u64 = 1 << 20;
/// The share of the newest step in the time of a step.
const NEWEST: f64 = 0.1;

/// How far a job's log was read.
#[derive(Debug, Default)]
pub(crate) struct Followed {
    offset: u64,
    step: usize,
    seconds: Option<f64>,
}

/// How far a job is, and how fast.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub step: usize,
    pub left: Duration,
    pub at: Instant,
}

/// The paces of jobs that run.
#[derive(Debug, Default)]
pub(crate) struct Live(Mutex<HashMap<String, Pace>>);

impl Live {
    pub fn note(&self, job: &str, pace: Pace) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(job.to_string(), pace);
    }

    pub fn forget(&self, job: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(job);
    }

    pub fn get(&self, job: &str) -> Option<Pace> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(job).copied()
    }
}

impl Followed {
    /// Events of the lines that were added since. A log that has become shorter, since a run went on from an earlier step, is read anew: what was noted once is
    /// not noted twice.
    pub fn read(&mut self, folder: &Path, total: Option<usize>) -> Vec<NewEvent> {
        let mut events = Vec::new();
        let Ok(mut file) = File::open(folder.join(LOG)) else { return events };
        let length = file.metadata().map_or(0, |found| found.len());
        if length < self.offset {
            self.offset = 0;
        }
        while self.offset < length {
            let mut text = Vec::new();
            let read = file
                .seek(SeekFrom::Start(self.offset))
                .and_then(|_| file.by_ref().take(MOST_READ).read_to_end(&mut text));
            // Up to the last whole line.
            let end = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            if read.is_err() || end == 0 {
                break;
            }
            for line in text[..end].split(|byte| *byte == b'\n') {
                if let Ok(line) = serde_json::from_slice::<LogLine>(line) {
                    events.push(self.event(&line, total));
                }
            }
            self.offset += end as u64;
        }
        events
    }

    fn event(&mut self, line: &LogLine, total: Option<usize>) -> NewEvent {
        let of = total.map_or_else(String::new, |total| format!("/{total}"));
        match line {
            LogLine::Step(line) => {
                self.step = line.step;
                if line.step_seconds.is_finite() {
                    let before = self.seconds.unwrap_or(line.step_seconds);
                    self.seconds = Some(before + NEWEST * (line.step_seconds - before));
                }
                let mut event = NewEvent::of(
                    format!("step:{}", line.step),
                    format!("Step {}{of}: training loss={:.4}", line.step, line.loss),
                );
                event.data = Some(json!({
                    "step": line.step, "total_steps": total, "train_loss": finite(line.loss),
                    "train_mean_token_accuracy": line.mean_token_accuracy,
                    "learning_rate": finite(line.learning_rate), "epoch": line.epoch, "tokens": line.tokens,
                }));
                event
            }
            LogLine::Evaluation(line) => {
                let report = line.clone().report();
                let mut event = NewEvent::of(
                    format!("eval:{}", report.step),
                    format!("Step {}{of}: validation loss={:.4}", report.step, report.loss),
                );
                event.data = Some(json!({
                    "step": report.step, "total_steps": total, "valid_loss": finite(report.loss),
                    "valid_mean_token_accuracy": report.mean_token_accuracy, "full_valid_loss": finite(report.loss),
                    "full_valid_mean_token_accuracy": report.mean_token_accuracy,
                    "exact_match": report.exact_match, "field_accuracy": report.field_accuracy,
                }));
                event
            }
        }
    }

    /// How far it is.
    pub fn pace(&self, total: Option<usize>) -> Option<Pace> {
        let left = total?.saturating_sub(self.step) as f64 * self.seconds?;
        Some(Pace { step: self.step, left: Duration::try_from_secs_f64(left).ok()?, at: Instant::now() })
    }
}

fn finite(number: f64) -> Option<f64> {
    number.is_finite().then_some(number)
}

/// How far a job is now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    pub step: Option<u64>,
    pub total_steps: Option<u64>,
    pub estimated_finish: Option<i64>,
    pub memory_bytes: Option<u64>,
    pub verdict: Option<String>,
    pub summary: Option<String>,
}

/// Asks the guard's own folder how a job is.
pub(crate) fn progress(server: &Server, job: &JobRecord) -> Progress {
    let total_steps = job.findings.as_ref().and_then(|found| found.steps).map(|steps| steps as u64);
    let mut now = Progress { total_steps, ..Progress::default() };
    if !matches!(job.status, Status::Running) {
        return now;
    }
    if let Some(pace) = server.live.get(job.id()) {
        let left = pace.left.saturating_sub(pace.at.elapsed());
        (now.step, now.estimated_finish) = (Some(pace.step as u64), Some(server.now() + left.as_secs() as i64));
    }
    if let Some(told) = garden_guard::read_state(&server.disk.job(job.id()).output().join(GUARD)) {
        now.step = told.step.map(|step| step as u64).or(now.step);
        (now.memory_bytes, now.verdict, now.summary) = (Some(told.held_bytes), told.verdict, told.summary);
    }
    now
}

/// Checkpoints of a folder by their steps.
fn checkpoint_steps(folder: &Path) -> Vec<(u64, i64)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let step = name.to_str().and_then(|name| name.strip_prefix("checkpoint-")).and_then(|step| step.parse().ok());
        let Some(step) = step else { continue };
        let changed = entry.metadata().and_then(|found| found.modified()).unwrap_or(UNIX_EPOCH);
        found.push((step, changed.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)));
    }
    found.sort_unstable();
    found
}

/// The step of the newest one.
pub(crate) fn newest_step(folder: &Path) -> Option<u64> {
    checkpoint_steps(folder).last().map(|(step, _)| *step)
}

/// The checkpoints that a job has on the disk, the newest first, in OpenAI's shape.
pub(crate) fn checkpoints(server: &Server, job: &JobRecord) -> Result<Vec<Value>, ApiError> {
    let model = job.result_model.clone().unwrap_or_else(|| crate::catalogue::result_name(job));
    let mut listed = Vec::new();
    for (step, created) in checkpoint_steps(&server.disk.job(job.id()).output()).into_iter().rev() {
        let mut metrics = json!({"step": step});
        for name in [format!("step:{step}"), format!("eval:{step}")] {
            let Some((_, Some(Value::Object(data)))) = server.store.event_data(job.id(), &name)? else { continue };
            let names = [
                "train_loss",
                "train_mean_token_accuracy",
                "valid_loss",
                "valid_mean_token_accuracy",
                "full_valid_loss",
                "full_valid_mean_token_accuracy",
            ];
            for name in names {
                if let Some(value) = data.get(name).filter(|value| !value.is_null()) {
                    metrics[name] = value.clone();
                }
            }
        }
        listed.push(json!({
            "id": format!("ftckpt_{}_{step}", job.id().trim_start_matches("ftjob-")), "object": "fine_tuning.job.checkpoint",
            "created_at": created, "fine_tuning_job_id": job.id(), "step_number": step, "metrics": metrics,
            "fine_tuned_model_checkpoint": format!("{model}:ckpt-step-{step}"),
        }));
    }
    Ok(listed)
}

/// The table of a job's steps as a file; its name. Done twice it is the same file.
pub(crate) fn write_results(server: &Server, job: &JobRecord) -> Result<String, ApiError> {
    let mut rows: BTreeMap<usize, [Option<f64>; 4]> = BTreeMap::new();
    for line in read_log(&server.disk.job(job.id()).output()) {
        match line {
            LogLine::Step(line) => {
                let row = rows.entry(line.step).or_default();
                (row[0], row[1]) = (finite(line.loss), line.mean_token_accuracy);
            }
            LogLine::Evaluation(line) => {
                let report = line.report();
                let row = rows.entry(report.step).or_default();
                (row[2], row[3]) = (finite(report.loss), report.mean_token_accuracy);
            }
        }
    }
    let mut text = String::from("step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy\n");
    for (step, row) in &rows {
        let cells: Vec<String> =
            row.iter().map(|cell| cell.map_or_else(String::new, |number| number.to_string())).collect();
        text.push_str(&format!("{step},{}\n", cells.join(",")));
    }
    let id = job.id().replacen("ftjob-", "file-", 1);
    let file = FileRecord {
        id: id.clone(),
        bytes: text.len() as u64,
        created_at: server.now(),
        filename: "step_metrics.csv".into(),
        purpose: RESULTS.into(),
        extension: "csv".into(),
        expires_at: None,
    };
    if server.store.file(&id)?.is_none() {
        let failed = |error: std::io::Error| ApiError::internal("the table of results cannot be written", &error);
        garden_files::replace(&server.disk.file(&file), &text).map_err(failed)?;
        server.store.add_file(&file)?;
    }
    Ok(id)
}

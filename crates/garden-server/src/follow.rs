//! What a run's folder tells about a job: metrics, checkpoints, memory, and the table of results.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, BufWriter, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

use garden_run::GUARD;
use garden_train::{LOG, LogLine};

use crate::Server;
use crate::error::ApiError;
use crate::files::RESULTS;
use crate::job::{JobRecord, Status};
use crate::store::{FileRecord, NewEvent};
use crate::wire::{Checkpoint, CheckpointMetrics, EvaluationMetrics, Metrics, StepMetrics};

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
    /// Events of some of the lines that were added since, until there are none. A log that has become shorter, since a run went on from an earlier step, is read
    /// anew: what was noted once is not noted twice.
    pub fn read(&mut self, folder: &Path, total: Option<usize>) -> Option<Vec<NewEvent>> {
        let (mut file, _) = garden_files::open(&folder.join(LOG)).ok()?;
        if file.metadata().ok()?.len() < self.offset {
            self.offset = 0;
        }
        let mut text = Vec::new();
        file.seek(SeekFrom::Start(self.offset)).ok()?;
        file.take(MOST_READ).read_to_end(&mut text).ok()?;
        // Up to the last whole line.
        let end = text.iter().rposition(|byte| *byte == b'\n')? + 1;
        self.offset += end as u64;
        let lines = text[..end].split(|byte| *byte == b'\n');
        let lines = lines.filter_map(|line| serde_json::from_slice::<LogLine>(line).ok());
        Some(lines.map(|line| self.event(&line, total)).collect())
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
                let metrics = StepMetrics {
                    epoch: line.epoch,
                    learning_rate: finite(line.learning_rate),
                    step: line.step,
                    tokens: line.tokens,
                    total_steps: total,
                    train_loss: finite(line.loss),
                    train_mean_token_accuracy: line.mean_token_accuracy,
                };
                event.data = Metrics::Step(metrics).value();
                event
            }
            LogLine::Evaluation(line) => {
                let report = line.clone().report();
                let mut event = NewEvent::of(
                    format!("eval:{}", report.step),
                    format!("Step {}{of}: validation loss={:.4}", report.step, report.loss),
                );
                let metrics = EvaluationMetrics {
                    exact_match: report.exact_match,
                    field_accuracy: report.field_accuracy,
                    full_valid_loss: finite(report.loss),
                    full_valid_mean_token_accuracy: report.mean_token_accuracy,
                    step: report.step,
                    total_steps: total,
                    valid_loss: finite(report.loss),
                    valid_mean_token_accuracy: report.mean_token_accuracy,
                };
                event.data = Metrics::Evaluation(metrics).value();
                event
            }
            // Where its files are is nobody's business.
            LogLine::LeftOut(line) => {
                let what = if line.is_evaluated { "validation row" } else { "training row" };
                let message =
                    format!("Step {}{of}: {what} {} cannot be used and was left out", line.step, line.row + 1);
                NewEvent::of(format!("left_out:{}:{}:{}", line.step, line.row, line.is_evaluated), message)
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

/// The checkpoints that a job has on the disk, the newest first.
pub(crate) fn checkpoints(server: &Server, job: &JobRecord) -> Result<Vec<Checkpoint>, ApiError> {
    let metrics = |name: String| -> Result<Option<Metrics>, ApiError> {
        let found = server.store.event_data(job.id(), &name)?;
        Ok(found.and_then(|(_, data)| data).and_then(|data| Metrics::read(&data)))
    };
    let mut listed = Vec::new();
    for (step, created) in checkpoint_steps(&server.disk.job(job.id()).output()).into_iter().rev() {
        let trained = metrics(format!("step:{step}"))?.and_then(Metrics::step);
        let evaluated = metrics(format!("eval:{step}"))?.and_then(Metrics::evaluation);
        listed.push(Checkpoint::of(job, created, CheckpointMetrics::of(step, trained, evaluated)));
    }
    Ok(listed)
}

/// The table of a job's steps as a file; its name. Done twice it is the same file.
pub(crate) fn write_results(server: &Server, job: &JobRecord) -> Result<String, ApiError> {
    let id = job.id().replacen("ftjob-", "file-", 1);
    if server.store.file(&id)?.is_some() {
        return Ok(id);
    }
    let failed = |error: io::Error| ApiError::internal("the table of results cannot be written", &error);
    let draft = server.disk.incoming(&id);
    let bytes = write_table(&server.disk.job(job.id()).output().join(LOG), &draft).map_err(failed)?;
    let file = FileRecord {
        id: id.clone(),
        bytes,
        created_at: server.now(),
        filename: "step_metrics.csv".into(),
        purpose: RESULTS.into(),
        extension: "csv".into(),
        expires_at: None,
    };
    server.disk.keep(&draft, &server.disk.file(&file)).map_err(failed)?;
    // A result is not refused for want of space: it is small, and what was paid for it is not.
    server.store.add_file(&file, u64::MAX)?;
    Ok(id)
}

/// Writes the steps of a log as a table, line by line; its length. Lines of a step stand beside each other in a log.
fn write_table(log: &Path, table: &Path) -> io::Result<u64> {
    let mut out = BufWriter::new(File::create(table)?);
    out.write_all(b"step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy\n")?;
    let mut row: Option<(usize, [Option<f64>; 4])> = None;
    let mut end_row = |row: Option<(usize, [Option<f64>; 4])>| -> io::Result<()> {
        let Some((step, cells)) = row else { return Ok(()) };
        let cells = cells.map(|cell| cell.map_or_else(String::new, |number| number.to_string()));
        writeln!(out, "{step},{}", cells.join(","))
    };
    let lines = BufReader::new(garden_files::open(log)?.0).split(b'\n');
    for line in lines {
        let Ok(line) = serde_json::from_slice::<LogLine>(&line?) else { continue };
        let (step, at, cells) = match line {
            LogLine::Step(line) => (line.step, 0, [finite(line.loss), line.mean_token_accuracy]),
            LogLine::Evaluation(line) => {
                let report = line.report();
                (report.step, 2, [finite(report.loss), report.mean_token_accuracy])
            }
            LogLine::LeftOut(_) => continue,
        };
        if row.is_none_or(|(before, _)| before != step) {
            end_row(row.replace((step, [None; 4])))?;
        }
        if let Some((_, row)) = &mut row {
            row[at..at + 2].copy_from_slice(&cells);
        }
    }
    end_row(row)?;
    let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()?;
    Ok(file.metadata()?.len())
}

//! Everything that a run has left in its output folder.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use garden_guard::Summary;
use garden_memory::{Bytes, Question, elapsed};
use garden_report::JudgedTrace;
use garden_trace::{ReadOptions, read_path};
use garden_train::{
    End, EvalReport, Job, LeftOutLine, LogLine, MemoryPlan, PlanItem, Prediction, RunEnd, StepLine, first_and_best,
    read_log, read_predictions,
};
use serde::{Deserialize, Serialize};

use crate::card;
use crate::files::{
    CARD, EXIT, FileError, GUARD, JOB, JobFile, PLANNED, REPORT, TRACE, read_json, write_json, write_text,
};
use crate::format::percent;
use crate::page::page;

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

/// A run, as its files tell it.
#[derive(Clone, Debug)]
pub struct RunRecord {
    /// What was to be done.
    pub job: Job,
    /// What the guard did; nothing if it did not come to its end.
    pub guard: Option<Summary>,
    /// The trace of memory, judged.
    pub judged: Option<JudgedTrace>,
    /// The plan beside what was measured.
    pub planned: Planned,
    /// How training ended; nothing if it did not.
    pub end: Option<RunEnd>,
    /// The steps that the log has.
    pub steps: Vec<StepLine>,
    /// The evaluations that it has.
    pub evaluations: Vec<EvalReport>,
    /// Rows that turned out broken while training and were left out, once for each time.
    pub left_out: Vec<LeftOutLine>,
    /// The answers of the evaluation whose step the result is.
    pub predictions: Vec<Prediction>,
}

impl RunRecord {
    /// Reads the output folder of a run, wherever it is now. Only the job has to be there.
    pub fn read(folder: &Path) -> Result<RunRecord, FileError> {
        let mut job = JobFile::read(&folder.join(JOB))?.job;
        job.recipe.output_dir = folder.to_path_buf();
        let judge = |read: garden_trace::ReadTrace| {
            JudgedTrace::of(read.trace, read.input, Question::default(), garden_probe::memory_limit())
        };
        let (mut steps, mut evaluations, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
        for line in read_log(folder) {
            match line {
                LogLine::Step(step) => steps.push(step),
                LogLine::Evaluation(line) => evaluations.push(line.report()),
                LogLine::LeftOut(line) => left_out.push(line),
            }
        }
        let mut predictions = read_predictions(folder);
        // Answers of an evaluation that the run has not made are those of another run in this folder.
        predictions.retain(|answer| evaluations.iter().any(|report: &EvalReport| report.step == answer.step));
        Ok(RunRecord {
            job,
            guard: read_json(&folder.join(GUARD).join(EXIT)),
            judged: read_path(&folder.join(TRACE), &ReadOptions::default()).ok().map(judge),
            planned: read_json(&folder.join(PLANNED)).unwrap_or_default(),
            end: RunEnd::read(folder),
            steps,
            evaluations,
            left_out,
            predictions,
        })
    }

    /// Puts a plan beside what was measured, and keeps both in the folder. Nothing was measured of a run that did not end.
    pub fn compare_with(&mut self, plan: &MemoryPlan) -> Result<(), FileError> {
        self.planned = Planned { total: Some(Bytes(plan.total_bytes)), rows: self.by_purpose(plan) };
        write_json(&self.job.recipe.output_dir.join(PLANNED), &self.planned)
    }

    /// What was planned for each purpose and what was held at most; the host's own as one, as the system counts it so.
    fn by_purpose(&self, plan: &MemoryPlan) -> Vec<PlannedRow> {
        let Some(end) = &self.end else { return Vec::new() };
        let row = |purpose: &str, planned: u64, measured: u64| PlannedRow {
            purpose: purpose.to_string(),
            planned: Bytes(planned),
            measured: Bytes(measured),
        };
        let resident = self.resident_peak();
        let held: u64 = end.arena.values().sum();
        let is_cpu = plan.device.is_host();
        let arena = end.arena.iter().map(|(name, bytes)| {
            let planned = PlanItem::of_buffers(name).map_or(0, |item| plan.bytes(item));
            row(name, planned, *bytes)
        });
        let arena = arena.filter(|row| row.planned.0 + row.measured.0 > 0);
        let host = resident.saturating_sub(if is_cpu { held } else { 0 });
        let rest = match is_cpu {
            true => [row("loader and the rest", plan.host_bytes, host), row("all", plan.total_bytes, resident)],
            // What the driver says, beside what was asked for; its own share was taken before.
            false => [
                row("all on the GPU", plan.device_bytes - plan.bytes(PlanItem::Driver), end.gpu_bytes.unwrap_or(0)),
                row("all on the host", plan.host_bytes, host),
            ],
        };
        arena.chain(rest).collect()
    }

    /// The most that was resident in any start: the process that ended has seen its own only.
    fn resident_peak(&self) -> u64 {
        let own = self.end.as_ref().map_or(0, |end| end.resident.peak);
        self.judged.as_ref().map_or(0, JudgedTrace::resident_peak).max(own)
    }

    /// The most memory that was resident and what was planned, in words: a plan is of what is resident, too.
    pub(crate) fn memory_words(&self) -> Option<String> {
        let most = Some(self.resident_peak()).filter(|most| *most > 0);
        let most = most.map(|most| format!("at most {} resident", Bytes(most)));
        let planned = self.planned.total.map(|planned| format!("{planned} planned"));
        let words: Vec<String> = most.into_iter().chain(planned).collect();
        (!words.is_empty()).then(|| words.join(", "))
    }

    /// The best evaluation after a step: what is in the folder is that of its step.
    pub fn best(&self) -> Option<&EvalReport> {
        self.job.recipe.best_by().best(&self.evaluations)
    }

    /// The last step that was made, as far as the files tell: not each is logged or told, but where a run was stopped there is a checkpoint.
    pub fn last_step(&self) -> usize {
        let logged = self.steps.last().map_or(0, |step| step.step);
        let attempt = self.guard.as_ref().and_then(|summary| summary.attempts.last());
        let told = attempt.and_then(|attempt| attempt.last_step).map_or(0, |step| step as usize);
        let saved = attempt.and_then(|attempt| attempt.checkpoint_step).map_or(0, |step| step as usize);
        self.end.as_ref().map_or(logged.max(told).max(saved), |end| end.progress.step)
    }

    /// The evaluation before the first step, where the result is worse than that.
    pub(crate) fn better_start(&self) -> Option<&EvalReport> {
        let best_by = self.job.recipe.best_by();
        let start = self.evaluations.first().filter(|first| first.step == 0)?;
        let (before, result) = (best_by.score(start)?, best_by.score(self.best()?)?);
        best_by.is_better(before, result).then_some(start)
    }

    /// What was wrong with rows that were left out, each once: an epoch meets the same ones again.
    pub(crate) fn left_out_rows(&self) -> Vec<&str> {
        let mut seen = BTreeSet::new();
        self.left_out.iter().map(|line| line.left_out.as_str()).filter(|row| seen.insert(*row)).collect()
    }

    /// Tokens that were read, as far as the files tell.
    pub(crate) fn tokens(&self) -> Option<u64> {
        let ended = self.end.as_ref().map(|end| end.progress.tokens);
        ended.or_else(|| self.steps.last().map(|step| step.tokens))
    }

    /// How long all starts of the run took: that of the steps that count, where it came to its end; else that of the trace.
    pub fn seconds(&self) -> f64 {
        let attempts = self.guard.iter().flat_map(|summary| &summary.attempts);
        let watched: f64 = attempts.map(|attempt| attempt.seconds).sum();
        let traced = self.judged.as_ref().map_or(0.0, JudgedTrace::seconds);
        self.end.as_ref().map_or_else(|| traced.max(watched), |end| end.progress.seconds)
    }

    /// What the run came to, in a sentence; how it ended counts where it did not come to its end.
    pub fn answer(&self) -> String {
        let Some(end) = &self.end else {
            return match &self.guard {
                // Somebody asked for it.
                Some(summary) if summary.is_stopped() => {
                    let saved = summary.attempts.last().and_then(|attempt| attempt.checkpoint.as_deref());
                    let saved = saved.and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
                    let saved =
                        saved.map_or_else(|| "no checkpoint yet".to_string(), |name| format!("{name} is saved"));
                    format!("stopped at step {} of {}; {saved}", self.last_step(), self.job.steps())
                }
                Some(summary) => format!("not finished: {}", summary.words),
                None => "not finished: the run did not complete".to_string(),
            };
        };
        let early = if end.end == End::NoBetter { " until it stopped improving" } else { "" };
        let mut text = format!("trained {} steps{early} in {}", end.progress.step, elapsed(self.seconds()));
        if let (Some(first), Some(last)) = (end.first_loss, end.last_loss) {
            let _ = write!(text, ": mean loss {first:.3} → {last:.3} (first and last line of the log)");
        }
        if let Some((before, after)) = first_and_best(&self.evaluations, self.job.recipe.best_by()) {
            let _ = write!(text, "; on held-out rows {:.3} → {:.3}", before.loss, after.loss);
            if let Some((before, after)) = before.field_accuracy.zip(after.field_accuracy) {
                let _ = write!(text, ", correct fields {} → {}", percent(before), percent(after));
            }
            if self.better_start().is_some() {
                text += ": worse than before training";
            }
        }
        text
    }

    /// Writes the page and, where there is a result, its card; a card that somebody edited stays. `command` is the command line that asks for it.
    pub fn write_pages(&self, command: Option<String>) -> Result<(), FileError> {
        let folder = self.job.recipe.output_dir.as_path();
        let written = write_text(&folder.join(REPORT), &page(self, command).html());
        let card = folder.join(CARD);
        if self.end.is_some() && card::may_write(&card) {
            return written.and(write_text(&card, &card::card(self)));
        }
        written
    }
}

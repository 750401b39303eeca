//! What ends a start of a job: its files are fine, it waits for something, begins again, or is over.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use garden_train::Recipe;
use serde_json::Value;

use super::next::{Why, starts_without_progress};
use super::{Queue, lack_words};
use crate::catalogue::{result_name, trains};
use crate::error::ApiError;
use crate::follow::{newest_step, write_results};
use crate::id::new_id;
use crate::job::{Findings, Hold, JobError, JobRecord, Status, Wish, Work};
use crate::store::NewEvent;

/// Problems of rows that lists of jobs show.
const LISTED_PROBLEMS: usize = 5;

impl Queue {
    /// A job whose files are fine waits for its turn.
    pub(super) fn queue(&mut self, job: &JobRecord, findings: Findings) -> Result<(), ApiError> {
        let findings = shortened(findings);
        let notes = findings.notes.iter().enumerate();
        let mut events: Vec<NewEvent> =
            notes.map(|(index, note)| NewEvent::warning(format!("note:{index}"), note)).collect();
        if let Some(plan) = &findings.plan {
            events.push(NewEvent::of("plan", format!("Memory plan: {}", plan.headline)));
        }
        events.push(NewEvent::of("validated", "Files validated, moving job to queued state"));
        self.change(job, |job| {
            if let (Work::Training { recipe }, Some(steps)) = (&mut job.order.work, findings.steps) {
                // Once an epoch, as OpenAI does it, unless somebody wants it otherwise.
                let epoch = (steps as f64 / recipe.epochs.max(1.0)).ceil() as usize;
                if recipe.save_steps == Recipe::default().save_steps && recipe.max_steps.is_none() {
                    recipe.save_steps = epoch.clamp(1, recipe.save_steps);
                }
            }
            (job.findings, job.starts) = (Some(findings), 0);
            if job.status == Status::ValidatingFiles {
                job.status = Status::Queued;
            }
            events
        })?;
        self.watched.remove(job.id());
        Ok(())
    }

    /// A job whose files cannot be used is over.
    pub(super) fn refuse(&mut self, job: &JobRecord, findings: Findings, error: JobError) -> Result<(), ApiError> {
        self.change(job, |job| {
            job.findings = Some(shortened(findings));
            Vec::new()
        })?;
        self.fail(job, error)
    }

    /// It waits for something that the server lacks. Nothing was tried, so it was no start.
    pub(super) fn hold(&mut self, job: &JobRecord, hold: Hold, words: &str) -> Result<(), ApiError> {
        let at = self.tried_again_at();
        let newest = newest_step(&self.folder(job).output());
        let message = format!("{} {}", lack_words(hold), going_on(newest, words));
        let name = format!("hold:{hold:?}:{}", newest.unwrap_or(0));
        self.settle(job, |job| {
            job.starts = starts_without_progress(job, newest).saturating_sub(1);
            (job.status, job.hold, job.newest_step) = (Status::Queued, Some(hold), newest);
            // The quota is looked at before each start. What a job needs of memory and disk is only known once it has tried.
            job.not_before = if hold == Hold::Quota { 0 } else { at };
            vec![NewEvent::warning(name, message)]
        })
    }

    /// It starts again from its newest checkpoint, each time a little later.
    pub(super) fn again(&mut self, job: &JobRecord, why: &Why) -> Result<(), ApiError> {
        let newest = newest_step(&self.folder(job).output());
        let starts = starts_without_progress(job, newest);
        let why = match why {
            Why::Asked(words) => format!("The job was paused and resumed: {words}."),
            Why::StoppedFromOutside(words) => format!("The job was stopped from outside: {words}."),
            Why::Died => match self.ended.remove(job.id()) {
                Some(status) => format!("The job's process {}.", end_words(status)),
                None => "The job's process is gone: it was killed, or the machine went down.".to_string(),
            },
        };
        let next = match newest {
            Some(step) => format!("{why} It will go on from step {step}."),
            None => format!("{why} It will start again."),
        };
        let at = self.server.now() + i64::from(starts.saturating_sub(1));
        self.settle(job, |job| {
            (job.status, job.starts, job.newest_step, job.not_before) = (Status::Queued, starts, newest, at);
            vec![NewEvent::warning(new_id("again-"), next)]
        })
    }

    pub(super) fn succeed(&mut self, job: &JobRecord, tokens: Option<u64>, words: &str) -> Result<(), ApiError> {
        let model = trains(job).then(|| result_name(job));
        let file = if trains(job) { Some(write_results(&self.server, job)?) } else { None };
        let mut events: Vec<NewEvent> =
            model.iter().map(|model| NewEvent::of("model", format!("New fine-tuned model created: {model}"))).collect();
        events.push(NewEvent::of("end", format!("The job has successfully completed: {words}")));
        let now = self.server.now();
        let is_ours = self.change(job, |job| {
            (job.status, job.finished_at, job.wish) = (Status::Succeeded, Some(now), Wish::GoOn);
            (job.result_model, job.result_file, job.trained_tokens) = (model, file, tokens);
            events
        })?;
        self.clear_if(job, is_ours);
        Ok(())
    }

    pub(super) fn fail(&mut self, job: &JobRecord, error: JobError) -> Result<(), ApiError> {
        let event = NewEvent::bad("end", format!("The job failed: {}", error.message));
        self.end(job, Status::Failed, event, Some(error))
    }

    pub(super) fn end(
        &mut self,
        job: &JobRecord,
        status: Status,
        event: NewEvent,
        error: Option<JobError>,
    ) -> Result<(), ApiError> {
        let now = self.server.now();
        let is_ours = self.change(job, |job| {
            (job.status, job.finished_at, job.wish, job.error) = (status, Some(now), Wish::GoOn, error);
            vec![event]
        })?;
        self.clear_if(job, is_ours);
        Ok(())
    }

    /// A job that is over needs no rows, and nothing is waited for any more. One that changed meanwhile keeps them: the next round decides anew.
    pub(super) fn clear_if(&mut self, job: &JobRecord, is_over: bool) {
        if !is_over {
            return;
        }
        self.server.disk.forget_rows(job.id());
        self.server.live.forget(job.id());
        self.watched.remove(job.id());
        self.measure_one(job.id());
    }
}

/// Findings for the store: the whole plan and all problems are in the job's folder, and every list of jobs would have to read past them.
fn shortened(mut findings: Findings) -> Findings {
    if let Some(plan) = &mut findings.plan {
        plan.told = Value::Null;
    }
    findings.problems.truncate(LISTED_PROBLEMS);
    findings
}

fn going_on(newest: Option<u64>, words: &str) -> String {
    match newest {
        Some(step) => format!("The job waits and will go on from step {step} ({words})."),
        None => format!("The job waits and will start then ({words})."),
    }
}

fn end_words(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was killed by signal {signal}"),
        (None, Some(code)) => format!("ended with exit code {code} and without a result"),
        (None, None) => "ended without a result".to_string(),
    }
}

//! What starts a job: looks at files whose turn it is, and jobs that have room.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use garden_files::folder_bytes;
use garden_guard::{end_now, start_in_background};
use garden_memory::Bytes;

use super::next::{Action, FolderState, MOST_LOOKS, PASSING, Process, Waits, next};
use super::place::{Free, GpuMemory, Need, Waiting, place};
use super::{LEAST_FREE, Queue, Watched, lack_words};
use crate::error::ApiError;
use crate::follow::newest_step;
use crate::job::{Hold, JobError, JobRecord, Status, Wish, Work};
use crate::places::placed_order;
use crate::store::NewEvent;
use crate::turns::{self, Turn};

/// Nothing is waited for longer than this many seconds: a later moment was noted before the clock went back.
const LONGEST_WAIT: i64 = 60;
/// Bytes that a job takes at least before its first checkpoint tells more.
const FIRST_CHECKPOINT: u64 = 64 << 10;

/// Which work a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// A look at model, rows and memory.
    Look,
    /// The work itself.
    Work,
}

impl Queue {
    /// Starts looks at files of jobs whose turn it is.
    pub(super) fn start_looks(&mut self, looking: &[JobRecord], mut waiting: Vec<&JobRecord>) {
        // One that was stopped for others comes behind them.
        waiting.sort_by_key(|job| job.starts);
        let running = looking.iter().filter(|job| waiting.iter().all(|other| other.id() != job.id()));
        let (running, turns): (Vec<&JobRecord>, Vec<Turn>) = running
            .filter_map(|job| {
                let began = self.watched.get(job.id())?.looked?;
                Some((job, Turn { owner: job.owner.clone(), age: began.elapsed() }))
            })
            .unzip();
        let owners: Vec<&str> = waiting.iter().map(|job| job.owner.as_str()).collect();
        let patience = self.server.settings.patience;
        for index in turns::grant(&turns, &owners, patience) {
            let job = waiting[index];
            let started = self.start_look(job);
            self.note(job, started);
        }
        // One that was killed leaves its place at once, unless the system keeps it.
        let is_leaving = |job: &&JobRecord| {
            let killed = self.watched.get(job.id()).and_then(|watched| watched.killed);
            killed.is_some_and(|(_, at)| at.elapsed() < PASSING)
        };
        if running.iter().any(is_leaving) {
            return;
        }
        if let Some(index) = turns::give_way(&turns, &owners, patience) {
            let stopped = self.stop_look(running[index], turns[index].age);
            self.note(running[index], stopped);
        }
    }

    /// Stops a look that has had its time, since others wait. It begins again behind them, or is over if that did not help often enough.
    fn stop_look(&mut self, job: &JobRecord, age: Duration) -> Result<(), ApiError> {
        let (Process::Running(pid) | Process::Stopped(pid) | Process::Starting(Some(pid))) = self.process(job) else {
            return Ok(());
        };
        end_now(pid);
        let taken = format!("checking its files had taken {} s, and others waited", age.as_secs());
        if job.starts >= MOST_LOOKS {
            let message = format!("{taken}; it was begun {MOST_LOOKS} times");
            return self.fail(job, JobError { code: "validation_timeout".into(), message, param: None });
        }
        self.watched.entry(job.id().to_string()).or_default().killed = Some((pid, Instant::now()));
        let words = format!("The look at its files was stopped and begins again later: {taken}.");
        self.note_once(job, &format!("gave-way:{}", job.starts), &words)
    }

    pub(super) fn start_look(&mut self, job: &JobRecord) -> Result<(), ApiError> {
        let order = match placed_order(&self.server, job) {
            Ok(order) => order,
            // Rows that a client has sent and that are gone do not come back; anything else may.
            Err(problem) if problem.code == Some("not_found") => {
                let (code, param) = ("not_found".to_string(), problem.param);
                return self.fail(job, JobError { code, message: problem.message, param });
            }
            Err(problem) => return Err(problem),
        };
        let is_ours = self.change(job, |job| {
            job.starts += 1;
            vec![NewEvent::of("validating", format!("Validating training file: {}", job.training_file))]
        })?;
        if !is_ours {
            return Ok(());
        }
        let started = self.write_order(job, &order).and_then(|()| self.start(job, Task::Look));
        if let Err(error) = &started {
            // Nothing has begun, so the next round tries again, however often.
            let event = not_started(error);
            self.settle(job, |job| {
                job.starts = job.starts.saturating_sub(1);
                vec![event]
            })?;
            return started;
        }
        // What was asked of an earlier process is over.
        self.watched.insert(job.id().to_string(), Watched { looked: Some(Instant::now()), ..Watched::default() });
        Ok(())
    }

    /// Starts jobs whose turn it is.
    pub(super) fn start_next(&mut self) -> Result<(), ApiError> {
        let at_work = self.jobs(Status::Running)?;
        let mut running: Vec<Need> = at_work.iter().map(need).collect();
        let mut queued = self.jobs(Status::Queued)?;
        // Wishes first: those jobs do not wait any more.
        queued.retain(|job| {
            let action = next(job, &FolderState::default(), Process::None, &Waits::default());
            let is_waiting = action == Action::Nothing;
            let done = self.act(job, action);
            self.note(job, done);
            is_waiting
        });
        if queued.is_empty() || running.len() >= self.server.settings.slots {
            return Ok(());
        }
        let now = self.server.now();
        let kept = self.server.store.bytes()?;
        // What those that run were planned to write is theirs.
        let promised: u64 = at_work.iter().map(|job| self.disk_left(job)).sum();
        let mut free = Free {
            slots: self.server.settings.slots,
            host: self.server.memory().map(|bytes| bytes.0),
            gpu: match (self.server.is_looking_for_gpu(), self.server.gpu_memory()) {
                (true, _) => GpuMemory::NotKnownYet,
                (false, None) => GpuMemory::None,
                (false, Some(bytes)) => GpuMemory::Bytes(bytes),
            },
            disk: self.server.disk.free_bytes().saturating_sub(LEAST_FREE).saturating_sub(promised),
            quota: self.server.settings.quota_bytes.saturating_sub(kept),
        };
        let mut waiting: Vec<Waiting> = queued
            .iter()
            .map(|job| {
                let soon = self.server.disk.checkpoint_bytes(job.id()).max(FIRST_CHECKPOINT);
                let disk = self.disk_left(job).max(soon);
                Waiting { need: need(job), disk, soon, is_due: is_due(job.not_before, now) }
            })
            .collect();
        // One after the other: one that cannot begin leaves its place to the next.
        loop {
            let placed = place(&waiting, &running, &free);
            for (index, hold) in placed.holds {
                let job = &queued[index];
                if job.hold != Some(hold) && waiting[index].is_due {
                    let words = match hold {
                        Hold::Disk => disk_words(waiting[index].disk, free.disk),
                        _ => "It waits in the queue.".to_string(),
                    };
                    let held = self.hold_queued(job, hold, &words);
                    self.note(job, held);
                    // It has been said.
                    waiting[index].is_due = false;
                }
            }
            let Some(index) = placed.starts.first().copied() else { return Ok(()) };
            waiting[index].is_due = false;
            match self.begin(&queued[index]) {
                Ok(false) => {}
                // One that could not be started has taken its turn: it is running for all that is known.
                begun => {
                    let Waiting { need, disk, soon, .. } = waiting[index];
                    running.push(need);
                    (free.disk, free.quota) = (free.disk.saturating_sub(disk), free.quota.saturating_sub(soon));
                    self.note(&queued[index], begun.map(drop));
                }
            }
        }
    }

    /// Bytes of the disk that a job may still come to write, by its plan.
    fn disk_left(&self, job: &JobRecord) -> u64 {
        planned_left(job, || folder_bytes(&self.folder(job).output()))
    }

    /// Says what a queued job waits for.
    pub(super) fn hold_queued(&mut self, job: &JobRecord, hold: Hold, words: &str) -> Result<(), ApiError> {
        let name = format!("hold:{hold:?}:{}", job.newest_step.unwrap_or(0));
        let message = format!("{} {words}", lack_words(hold));
        self.settle(job, |job| {
            job.hold = Some(hold);
            vec![NewEvent::warning(name, message)]
        })
    }

    /// Starts a job, if it is still queued and what it needs is there.
    pub(super) fn begin(&mut self, job: &JobRecord) -> Result<bool, ApiError> {
        // Its model may be gone for a while: the server was started without its folder, say.
        if let Err(problem) = placed_order(&self.server, job) {
            let words = format!("{}. It waits in the queue.", problem.message);
            if job.hold != Some(Hold::Files) {
                let held = self.hold_queued(job, Hold::Files, &words);
                self.note(job, held);
            }
            return Ok(false);
        }
        let folder = self.folder(job);
        let now = self.server.now();
        let newest = newest_step(&folder.output());
        let mut is_ours = false;
        // Noted before it is done: a process that nobody knows of would be worse than one that is missing.
        let begun = self.server.store.change_job(job.id(), now, |job| {
            is_ours = job.status == Status::Queued && matches!(job.wish, Wish::GoOn | Wish::Finish);
            if !is_ours {
                return None;
            }
            (job.status, job.hold, job.stop) = (Status::Running, None, None);
            job.started_at = job.started_at.or(Some(now));
            job.starts += 1;
            if let (Wish::Finish, Work::Training { recipe }, Some(step)) = (job.wish, &mut job.order.work, newest) {
                // Nothing is left to train then, and the result is written.
                recipe.max_steps = Some(step as usize);
                job.wish = Wish::GoOn;
            }
            Some(vec![NewEvent::of("started", "Fine-tuning job started")])
        })?;
        let Some(begun) = begun.filter(|_| is_ours) else { return Ok(false) };
        if job.started_at.is_none() {
            self.server.queue_waited(now - begun.created_at.min(now));
        }
        self.watched.remove(job.id());
        let order = placed_order(&self.server, &begun)?;
        let started = self.write_order(job, &order).and_then(|()| self.start(job, Task::Work));
        if let Err(error) = started {
            // Nothing has begun: it waits, and that was no start.
            let (hold, at, event) =
                (error.is_no_space().then_some(Hold::Disk), self.tried_again_at(), not_started(&error));
            self.settle(&begun, |job| {
                (job.status, job.hold, job.not_before) = (Status::Queued, hold, at);
                job.starts = job.starts.saturating_sub(1);
                vec![event]
            })?;
            return Err(error);
        }
        Ok(true)
    }

    pub(super) fn write_order(&self, job: &JobRecord, order: &crate::job::JobOrder) -> Result<(), ApiError> {
        let written = self.folder(job).write_order(order);
        written.map_err(|error| ApiError::of_disk("the order cannot be written", &error))
    }

    /// Starts a process for a job, which outlives us.
    pub(super) fn start(&mut self, job: &JobRecord, task: Task) -> Result<(), ApiError> {
        let folder = self.folder(job);
        let failed = |error: std::io::Error| ApiError::of_disk("a process for a job cannot be started", &error);
        let log = garden_files::open_log(&folder.log()).map_err(failed)?;
        let mut words: Vec<OsString> = vec!["serve-job".into(), folder.0.into_os_string()];
        if task == Task::Look {
            words.push("--look".into());
        }
        let environment = crate::environment::of_jobs(&self.server);
        let child =
            start_in_background(&self.server.settings.program, &words, Some(&environment), log).map_err(failed)?;
        self.ended.remove(job.id());
        let earlier = self.children.insert(job.id().to_string(), child);
        self.leaving.extend(earlier.map(|child| (child, Instant::now())));
        self.server.changed();
        Ok(())
    }
}

/// Why a process was not started. Each reason is told once.
fn not_started(error: &ApiError) -> NewEvent {
    let words = match error.is_no_space() {
        true => format!("{} The job waits.", lack_words(Hold::Disk)),
        false => format!("The job could not be started, and is tried again: {}", error.message),
    };
    NewEvent::warning(format!("no-start:{words}"), words)
}

/// Bytes that a job was planned to write and has not written.
fn planned_left(job: &JobRecord, written: impl FnOnce() -> u64) -> u64 {
    let planned = job.findings.as_ref().and_then(|found| found.plan.as_ref()).and_then(|plan| plan.disk_bytes);
    let last = job.recipe().and_then(|recipe| recipe.max_steps);
    let is_at_its_end = last.zip(job.newest_step).is_some_and(|(last, newest)| newest >= last as u64);
    match planned {
        // It ends where it is, and writes no more checkpoints.
        _ if job.wish == Wish::Finish || is_at_its_end => 0,
        planned => planned.map_or(0, |planned| planned.saturating_sub(written())),
    }
}

/// Why a job does not begin on this disk.
fn disk_words(needed: u64, free: u64) -> String {
    let (needed, free) = (Bytes(needed), Bytes(free));
    format!(
        "The job needs {needed} for its checkpoints and its result, and {free} are left for it. It waits in the queue."
    )
}

/// Whether a moment has come. One that is far away was noted before the clock went back, and nothing waits for it.
fn is_due(not_before: i64, now: i64) -> bool {
    !(now + 1..=now + LONGEST_WAIT).contains(&not_before)
}

/// What a job takes of the host's memory and of a GPU's.
fn need(job: &JobRecord) -> Need {
    if let Work::Command { memory_limit, .. } = &job.order.work {
        return Need { host: memory_limit.unwrap_or(0), gpu: 0 };
    }
    let plan = job.findings.as_ref().and_then(|found| found.plan.as_ref());
    plan.map_or(Need::default(), |plan| Need { host: plan.host_bytes, gpu: plan.gpu_bytes.unwrap_or(0) })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn why_a_job_did_not_start_is_said() {
        let full = not_started(&ApiError::no_space("the server's disk is full"));
        assert_eq!(full.message, "The server's disk has too little space. The job waits.");
        let other = not_started(&ApiError::internal("a process for a job cannot be started", &"too many of them"));
        assert!(
            other.message.ends_with("a process for a job cannot be started: too many of them"),
            "{}",
            other.message
        );
        assert_ne!(full.name, other.name, "each reason is told");
    }

    #[test]
    fn a_job_that_ends_where_it_is_needs_no_room_for_more_checkpoints() {
        let plan = serde_json::json!({"fits": true, "host_bytes": 1, "disk_bytes": 100, "headline": "h", "told": null});
        let mut job: JobRecord = serde_json::from_value(serde_json::json!({
            "order": {"id": "a", "work": {"kind": "training", "recipe": {}}}, "status": "queued",
            "findings": {"plan": plan}, "newest_step": 20,
        }))
        .unwrap();
        let recipe = garden_train::Recipe { max_steps: Some(50), ..Default::default() };
        job.order.work = Work::Training { recipe: Box::new(recipe) };
        assert_eq!([planned_left(&job, || 30), planned_left(&job, || 300)], [70, 0]);
        job.newest_step = Some(50);
        assert_eq!(planned_left(&job, || 30), 0);
        (job.newest_step, job.wish) = (Some(20), Wish::Finish);
        assert_eq!(planned_left(&job, || 30), 0);
        job.findings = None;
        assert_eq!(planned_left(&job, || 30), 0, "nothing was planned");
    }

    #[test]
    fn a_clock_that_goes_back_stalls_nothing() {
        assert!(is_due(0, 1000) && is_due(1000, 1000) && !is_due(1001, 1000) && !is_due(1030, 1000));
        assert!(is_due(1000 + 86_400, 1000), "it was noted a day later than now");
    }
}

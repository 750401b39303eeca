//! The queue: one thread that looks at every job that is not over, and does what comes next.
//!
//! What a job's folder says about its work is true whatever became of the server, and what the store says about a job is true whatever became of its process.
//! Each round brings the two together, so a round after a kill does the same as any other. What comes next is decided by pure functions (`next.rs`, `place.rs`,
//! `turns.rs`); this file gathers what they ask for and does what they say. A process that works on a job holds a lock in its folder: a second one that a
//! confused server might start finds it held and ends.

mod keep;
mod next;
mod place;

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use garden_guard::{
    Stop, ask_to_end, end_now, is_stopped, pass_stop_on, start_in_background, supervisor_of, unguarded,
};
use garden_run::GUARD;
use garden_train::Recipe;
use serde_json::Value;

use self::next::{Action, FolderState, Process, Waits, Why, next, starts_without_progress};
use self::place::{Free, GpuMemory, Need, Waiting, place};
use crate::Server;
use crate::catalogue::{result_name, trains};
use crate::error::ApiError;
use crate::follow::{Followed, newest_step, write_results};
use crate::id::new_id;
use crate::job::{Findings, Hold, JobError, JobFolder, JobRecord, Status, Wish, Work};
use crate::places::placed_order;
use crate::store::{Entry, NewEvent};
use crate::turns::{self, Turn};

/// Jobs of one status that a round looks at: those that come first.
pub(crate) const AT_ONCE: usize = 100;
/// How often the queue looks by itself.
const ROUND: Duration = Duration::from_millis(500);
/// A queue that has not finished a round for this long hangs.
pub(crate) const HANGS: Duration = Duration::from_secs(60);
/// How long a process of a server that was killed may take until it holds its lock.
const BIRTH: Duration = Duration::from_secs(3);
/// Seconds until a job that did not find room is tried again.
const NO_ROOM: i64 = 30;
/// Nothing is waited for longer than this many seconds: a later moment was noted before the clock went back.
const LONGEST_WAIT: i64 = 60;
/// Bytes of the disk that jobs leave free, so that checkpoints, logs and the database have room for what is under way.
const LEAST_FREE: u64 = 16 << 20;
/// Bytes that a job takes at least before its first checkpoint tells more.
const FIRST_CHECKPOINT: u64 = 64 << 10;

/// Problems of rows that lists of jobs show.
const LISTED_PROBLEMS: usize = 5;

/// Which work a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    /// A look at model, rows and memory.
    Look,
    /// The work itself.
    Work,
}

/// What is known of a job's process, as long as there is one.
#[derive(Debug, Default)]
struct Watched {
    /// The process that was asked to end, and when; a second time would be an order to end at once.
    asked: Option<(u32, Instant)>,
    killed: Option<(u32, Instant)>,
    /// Whether it was asked since the server lacks something.
    was_held: bool,
    looked: Option<Instant>,
    orphaned: Option<Instant>,
    followed: Followed,
}

pub(crate) struct Queue {
    server: Arc<Server>,
    began: Instant,
    /// Processes that this server has started, by job.
    children: HashMap<String, Child>,
    /// How those of them ended that did, until somebody asks.
    ended: HashMap<String, ExitStatus>,
    watched: HashMap<String, Watched>,
    /// What went wrong with a job last: that is told once, not twice a second.
    troubles: HashMap<String, String>,
    /// What the server has too little of in this round.
    lack: Option<Hold>,
    /// When folders of running jobs are measured next.
    measured: Option<Instant>,
    kept_house: Option<Instant>,
}

impl Queue {
    pub fn new(server: Arc<Server>) -> Queue {
        Queue {
            server,
            began: Instant::now(),
            children: HashMap::new(),
            ended: HashMap::new(),
            watched: HashMap::new(),
            troubles: HashMap::new(),
            lack: None,
            measured: None,
            kept_house: None,
        }
    }

    /// Looks at all jobs, again and again, until whoever wakes it is gone.
    pub fn run(mut self, wakes: &Receiver<()>) {
        // Not before the server listens: what it says first is where.
        let _ = wakes.recv();
        while !self.server.is_ending() {
            match self.round() {
                Ok(()) => {
                    self.troubles.remove("");
                    self.server.queue_beat();
                }
                Err(error) => self.trouble("", "the queue", error.message),
            }
            match wakes.recv_timeout(ROUND) {
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return,
                _ => while wakes.try_recv().is_ok() {},
            }
        }
    }

    fn round(&mut self) -> Result<(), ApiError> {
        self.reap();
        let looking = self.jobs(Status::ValidatingFiles)?;
        let running = self.jobs(Status::Running)?;
        self.forget_others(looking.iter().chain(&running));
        self.measure(&running);
        self.server.disk.keep_reserve();
        self.lack = self.find_lack();
        let mut lookers: Vec<&JobRecord> = Vec::new();
        for job in looking.iter().chain(&running) {
            let action = self.decide(job);
            if action == Action::Look {
                lookers.push(job);
                continue;
            }
            let done = self.act(job, action);
            self.note(job, done);
        }
        self.start_looks(&looking, &lookers);
        self.start_next()?;
        self.keep_house()
    }

    /// A process that has ended is a zombie until it was waited for.
    fn reap(&mut self) {
        let ended = &mut self.ended;
        self.children.retain(|id, child| match child.try_wait() {
            Ok(None) => true,
            Ok(Some(status)) => {
                ended.insert(id.clone(), status);
                false
            }
            Err(_) => false,
        });
    }

    /// Jobs of a status. Those whose records cannot be read are left as they are, and named once.
    fn jobs(&mut self, status: Status) -> Result<Vec<JobRecord>, ApiError> {
        let entries: Vec<Entry> = self.server.store.jobs_with(status, AT_ONCE)?;
        let mut jobs = Vec::with_capacity(entries.len());
        for entry in entries {
            match entry {
                Ok(job) => jobs.push(*job),
                Err(broken) => {
                    let problem = format!("its record cannot be read, so it is left alone: {}", broken.problem);
                    self.trouble(&broken.id, &broken.id, problem);
                }
            }
        }
        Ok(jobs)
    }

    /// Nothing is known of jobs that nobody works on: years of them would add up.
    fn forget_others<'a>(&mut self, jobs: impl Iterator<Item = &'a JobRecord>) {
        let ids: HashSet<&str> = jobs.map(JobRecord::id).collect();
        self.watched.retain(|id, _| ids.contains(id.as_str()));
        self.ended.retain(|id, _| ids.contains(id.as_str()));
    }

    /// What goes wrong with one job is no reason to leave the others alone; the next round tries again.
    fn note(&mut self, job: &JobRecord, done: Result<(), ApiError>) {
        match done {
            Ok(()) => drop(self.troubles.remove(job.id())),
            Err(error) => {
                // The next round has a little space for what it notes.
                if error.code == Some("insufficient_storage") {
                    self.server.disk.give_reserve();
                }
                self.trouble(job.id(), job.id(), error.message);
            }
        }
    }

    fn trouble(&mut self, key: &str, who: &str, problem: String) {
        if self.troubles.get(key) != Some(&problem) {
            self.server.say(&format!("{who}: {problem}"));
            self.troubles.insert(key.to_string(), problem);
        }
    }

    fn folder(&self, job: &JobRecord) -> JobFolder {
        self.server.disk.job(job.id())
    }

    /// The process that works on a job.
    fn process(&self, job: &JobRecord) -> Process {
        match supervisor_of(&self.folder(job).supervisor()).ok().flatten() {
            Some(pid) if is_stopped(pid) => Process::Stopped(pid),
            Some(pid) => Process::Running(pid),
            None if self.children.contains_key(job.id()) => {
                Process::Starting(self.children.get(job.id()).map(Child::id))
            }
            None if self.began.elapsed() < BIRTH && job.starts > 0 => Process::Starting(None),
            None => Process::None,
        }
    }

    /// What comes next for a job.
    fn decide(&mut self, job: &JobRecord) -> Action {
        let folder = self.folder(job);
        let process = self.process(job);
        let lack = self.lack;
        let watched = self.watched.entry(job.id().to_string()).or_default();
        let mut state = FolderState::default();
        match job.status {
            Status::ValidatingFiles => {
                state.findings = folder.read_findings();
                if process != Process::None {
                    watched.looked.get_or_insert_with(Instant::now);
                }
            }
            _ if process == Process::None => {
                state.newest_step = newest_step(&folder.output());
                state.orphan = unguarded(&folder.output().join(GUARD));
                state.outcome = folder.read_outcome();
            }
            _ => {}
        }
        // What was asked of one process is not asked of the next.
        let of_this = |noted: Option<(u32, Instant)>| match (process, noted) {
            (Process::Running(pid) | Process::Stopped(pid), Some((asked, at))) if asked == pid => Some(at.elapsed()),
            _ => None,
        };
        let waits = Waits {
            asked: of_this(watched.asked),
            killed: of_this(watched.killed),
            looked: watched.looked.map_or(Duration::ZERO, |at| at.elapsed()),
            orphaned: state.orphan.and(watched.orphaned).map(|at| at.elapsed()),
            lack,
            was_held: watched.was_held,
        };
        match state.orphan {
            Some(_) => drop(watched.orphaned.get_or_insert_with(Instant::now)),
            None => watched.orphaned = None,
        }
        next(job, &state, process, &waits)
    }

    /// What the server has too little of for jobs that run.
    fn find_lack(&self) -> Option<Hold> {
        if self.server.disk.free_bytes() < LEAST_FREE / 2 {
            return Some(Hold::Disk);
        }
        let kept = self.server.store.bytes().unwrap_or(0);
        (kept > self.server.settings.quota_bytes).then_some(Hold::Quota)
    }

    /// Does what was decided.
    fn act(&mut self, job: &JobRecord, action: Action) -> Result<(), ApiError> {
        let is_over = !matches!(
            action,
            Action::Nothing
                | Action::Look
                | Action::Ask(_)
                | Action::AskToWait(..)
                | Action::Kill(_)
                | Action::AskOrphan(_)
                | Action::KillOrphan(_)
        );
        if job.status == Status::Running {
            let followed = self.follow(job, is_over);
            // What is asked of a process, or waited for, does not wait for a disk that is full; what its log says is read again later.
            if is_over && !matches!(action, Action::Hold(..)) {
                followed?;
            }
        }
        if is_over {
            self.measure_one(job.id());
        }
        match action {
            Action::Nothing | Action::Look => Ok(()),
            Action::Ask(pid) => self.ask(job, pid),
            Action::AskToWait(pid, hold) => {
                self.ask(job, pid)?;
                self.watched.entry(job.id().to_string()).or_default().was_held = true;
                let words = format!("{} The job saves and waits.", lack_words(hold));
                // It says so again when it waits.
                drop(self.note_once(job, &format!("lack:{}", job.starts), &words));
                Ok(())
            }
            Action::Kill(pid) => {
                self.server.say(&format!("{}: process {pid} does not end, so it is killed", job.id()));
                self.watched.entry(job.id().to_string()).or_default().killed = Some((pid, Instant::now()));
                end_now(pid);
                Ok(())
            }
            Action::AskOrphan(pid) => {
                let words = format!("its guard was killed; its program, process {pid}, is asked to end");
                self.server.say(&format!("{}: {words}", job.id()));
                pass_stop_on(pid, Stop::Terminate);
                Ok(())
            }
            Action::KillOrphan(pid) => {
                end_now(pid);
                Ok(())
            }
            Action::Queue(findings) => self.queue(job, *findings),
            Action::Refuse(findings, error) => {
                self.change(job, |job| {
                    job.findings = Some(shortened(*findings));
                    Vec::new()
                })?;
                self.fail(job, error)
            }
            Action::Succeed { tokens, words } => self.succeed(job, tokens, &words),
            Action::Fail(error) => self.fail(job, error),
            Action::Cancel(words) => self.end(job, Status::Cancelled, NewEvent::of("end", words), None),
            Action::Pause(words) => self.settle(job, |job| {
                (job.status, job.wish, job.hold) = (Status::Paused, Wish::GoOn, None);
                vec![NewEvent::of(new_id("paused-"), format!("The job has been paused: {words}."))]
            }),
            Action::Finish => self.settle(job, |job| {
                job.status = Status::Queued;
                Vec::new()
            }),
            Action::Hold(hold, words) => self.hold(job, hold, &words),
            Action::Again(why) => self.again(job, &why),
        }
    }

    /// Passes a wish on to the process of a job. One that was stopped hears it once it goes on.
    fn ask(&mut self, job: &JobRecord, pid: u32) -> Result<(), ApiError> {
        ask_to_end(pid).map_err(|error| ApiError::internal("a job's process cannot be asked to end", &error))?;
        self.watched.entry(job.id().to_string()).or_default().asked = Some((pid, Instant::now()));
        Ok(())
    }

    /// Starts looks at files of jobs whose turn it is.
    fn start_looks(&mut self, looking: &[JobRecord], waiting: &[&JobRecord]) {
        let running: Vec<Turn> = looking
            .iter()
            .filter(|job| waiting.iter().all(|other| other.id() != job.id()))
            .filter_map(|job| {
                let began = self.watched.get(job.id())?.looked?;
                Some(Turn { owner: job.owner.clone(), age: began.elapsed() })
            })
            .collect();
        let owners: Vec<&str> = waiting.iter().map(|job| job.owner.as_str()).collect();
        for index in turns::grant(&running, &owners) {
            let job = waiting[index];
            let started = self.start_look(job);
            self.note(job, started);
        }
    }

    fn start_look(&mut self, job: &JobRecord) -> Result<(), ApiError> {
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
        self.write_order(job, &order)?;
        self.watched.entry(job.id().to_string()).or_default().looked = Some(Instant::now());
        self.start(job, Task::Look)
    }

    /// A job whose files are fine waits for its turn.
    fn queue(&mut self, job: &JobRecord, findings: Findings) -> Result<(), ApiError> {
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

    /// It waits for something that the server lacks. Nothing was tried, so it was no start.
    fn hold(&mut self, job: &JobRecord, hold: Hold, words: &str) -> Result<(), ApiError> {
        let at = self.server.now() + NO_ROOM;
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
    fn again(&mut self, job: &JobRecord, why: &Why) -> Result<(), ApiError> {
        let newest = newest_step(&self.folder(job).output());
        let starts = starts_without_progress(job, newest);
        let why = match why {
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

    fn succeed(&mut self, job: &JobRecord, tokens: Option<u64>, words: &str) -> Result<(), ApiError> {
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

    fn fail(&mut self, job: &JobRecord, error: JobError) -> Result<(), ApiError> {
        let event = NewEvent::bad("end", format!("The job failed: {}", error.message));
        self.end(job, Status::Failed, event, Some(error))
    }

    fn end(
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
    fn clear_if(&mut self, job: &JobRecord, is_over: bool) {
        if !is_over {
            return;
        }
        self.server.disk.forget_rows(job.id());
        self.server.live.forget(job.id());
        self.watched.remove(job.id());
        self.measure_one(job.id());
    }

    /// Starts jobs whose turn it is.
    fn start_next(&mut self) -> Result<(), ApiError> {
        let mut running: Vec<Need> = self.jobs(Status::Running)?.iter().map(need).collect();
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
        let mut free = Free {
            slots: self.server.settings.slots,
            host: self.server.memory().map(|bytes| bytes.0),
            gpu: match (self.server.is_looking_for_gpu(), self.server.gpu_memory()) {
                (true, _) => GpuMemory::NotKnownYet,
                (false, None) => GpuMemory::None,
                (false, Some(bytes)) => GpuMemory::Bytes(bytes),
            },
            disk: self.server.disk.free_bytes().saturating_sub(LEAST_FREE),
            quota: self.server.settings.quota_bytes.saturating_sub(kept),
        };
        let mut waiting: Vec<Waiting> = queued
            .iter()
            .map(|job| Waiting {
                need: need(job),
                disk: self.server.disk.checkpoint_bytes(job.id()).max(FIRST_CHECKPOINT),
                is_due: is_due(job.not_before, now),
            })
            .collect();
        // One after the other: one that cannot begin leaves its place to the next.
        loop {
            let placed = place(&waiting, &running, &free);
            for (index, hold) in placed.holds {
                let job = &queued[index];
                if job.hold != Some(hold) && waiting[index].is_due {
                    let held = self.hold_queued(job, hold, "It waits in the queue.");
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
                    let Waiting { need, disk, .. } = waiting[index];
                    running.push(need);
                    (free.disk, free.quota) = (free.disk.saturating_sub(disk), free.quota.saturating_sub(disk));
                    self.note(&queued[index], begun.map(drop));
                }
            }
        }
    }

    /// Says what a queued job waits for.
    fn hold_queued(&mut self, job: &JobRecord, hold: Hold, words: &str) -> Result<(), ApiError> {
        let name = format!("hold:{hold:?}:{}", job.newest_step.unwrap_or(0));
        let message = format!("{} {words}", lack_words(hold));
        self.settle(job, |job| {
            job.hold = Some(hold);
            vec![NewEvent::warning(name, message)]
        })
    }

    /// Starts a job, if it is still queued and what it needs is there.
    fn begin(&mut self, job: &JobRecord) -> Result<bool, ApiError> {
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
            (job.status, job.hold) = (Status::Running, None);
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
            let (at, words) = (now + NO_ROOM, format!("{} {}.", lack_words(Hold::Disk), error.message));
            self.settle(&begun, |job| {
                (job.status, job.hold, job.not_before) = (Status::Queued, Some(Hold::Disk), at);
                job.starts = job.starts.saturating_sub(1);
                vec![NewEvent::warning("no-start", words)]
            })?;
            return Err(error);
        }
        Ok(true)
    }

    fn write_order(&self, job: &JobRecord, order: &crate::job::JobOrder) -> Result<(), ApiError> {
        let written = self.folder(job).write_order(order);
        written.map_err(|error| ApiError::internal("the order cannot be written", &error))
    }

    /// Starts a process for a job, which outlives us.
    fn start(&mut self, job: &JobRecord, task: Task) -> Result<(), ApiError> {
        let folder = self.folder(job);
        let failed = |error: std::io::Error| ApiError::internal("a process for a job cannot be started", &error);
        let log = File::options().create(true).append(true).open(folder.log()).map_err(failed)?;
        let mut words: Vec<OsString> = vec!["serve-job".into(), folder.0.into_os_string()];
        if task == Task::Look {
            words.push("--look".into());
        }
        let environment = crate::environment::of_jobs(&self.server.settings.pass_env);
        let child =
            start_in_background(&self.server.settings.program, &words, Some(&environment), log).map_err(failed)?;
        self.ended.remove(job.id());
        self.children.insert(job.id().to_string(), child);
        self.server.changed();
        Ok(())
    }

    /// Notes what a job's log says that was not noted yet; all of it at its end.
    fn follow(&mut self, job: &JobRecord, is_over: bool) -> Result<(), ApiError> {
        if !trains(job) {
            return Ok(());
        }
        let output = self.folder(job).output();
        let followed = &mut self.watched.entry(job.id().to_string()).or_default().followed;
        if is_over {
            *followed = Followed::default();
        }
        let total = job.findings.as_ref().and_then(|found| found.steps);
        // In pieces: a long log as a whole would be in memory for good.
        while let Some(events) = followed.read(&output, total) {
            if self.server.store.add_events(job.id(), self.server.now(), &events)? > 0 {
                self.server.changed();
            }
        }
        if let Some(pace) = followed.pace(total) {
            self.server.live.note(job.id(), pace);
        }
        Ok(())
    }

    fn note_once(&self, job: &JobRecord, name: &str, words: &str) -> Result<(), ApiError> {
        self.server.store.add_events(job.id(), self.server.now(), &[NewEvent::warning(name, words)])?;
        self.server.changed();
        Ok(())
    }

    /// Changes a job, whatever is wished now, if it still is where it was when that was decided; whether it was.
    fn change(&self, job: &JobRecord, change: impl FnOnce(&mut JobRecord) -> Vec<NewEvent>) -> Result<bool, ApiError> {
        let (status, mut is_same) = (job.status, false);
        self.server.store.change_job(job.id(), self.server.now(), |job| {
            is_same = job.status == status;
            is_same.then(|| change(job))
        })?;
        self.server.changed();
        Ok(is_same)
    }

    /// Changes a job as was decided by what was wished; if something else is wished by now, the next round decides anew.
    fn settle(&self, job: &JobRecord, change: impl FnOnce(&mut JobRecord) -> Vec<NewEvent>) -> Result<(), ApiError> {
        let (wish, status) = (job.wish, job.status);
        let is_same = |job: &JobRecord| job.wish == wish && job.status == status;
        self.server.store.change_job(job.id(), self.server.now(), |job| is_same(job).then(|| change(job)))?;
        self.server.changed();
        Ok(())
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

fn lack_words(hold: Hold) -> &'static str {
    match hold {
        Hold::Memory => "There is not enough free memory now.",
        Hold::Disk => "The server's disk is full.",
        Hold::Quota => "The quota of this server is used up: files, jobs or models that are not needed can be deleted.",
        Hold::Files => "What the job needs is missing:",
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_goes_back_stalls_nothing() {
        assert!(is_due(0, 1000) && is_due(1000, 1000) && !is_due(1001, 1000) && !is_due(1030, 1000));
        assert!(is_due(1000 + 86_400, 1000), "it was noted a day later than now");
    }
}

//! The queue: one thread that looks at every job that is not over, and does what comes next.
//!
//! What a job's folder says about its work is true whatever became of the server, and what the store says about a job is true whatever became of its process.
//! Each round brings the two together, so a round after a kill does the same as any other. A process that works on a job holds a lock in its folder: a second
//! one that a confused server might start finds it held and ends.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::{self, File};
use std::process::Child;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use garden_guard::{Stop, ask_to_end, end_now, pass_stop_on, start_in_background, supervisor_of, unguarded};
use garden_run::GUARD;
use garden_train::Recipe;
use serde_json::Value;

use crate::catalogue::{result_name, trains};
use crate::error::ApiError;
use crate::follow::{Followed, newest_step, write_results};
use crate::id::new_id;
use crate::job::{Findings, JobError, JobFolder, JobOutcome, JobRecord, Status, Wish, Work};
use crate::jobs::DOES_NOT_FIT;
use crate::store::NewEvent;
use crate::{KEYS_VARIABLE, Server};

/// Jobs of one status that a round looks at: those that come first.
pub(crate) const AT_ONCE: usize = 100;
/// How often the queue looks by itself.
const ROUND: Duration = Duration::from_millis(500);
/// Files that are looked at at the same time.
const LOOKERS: usize = 2;
/// How long a process of a server that was killed may take until it holds its lock.
const BIRTH: Duration = Duration::from_secs(3);
/// Starts in a row without a newer checkpoint.
const MOST_STARTS: u32 = 10;
/// Starts of a look at a job's files.
const MOST_LOOKS: u32 = 3;
/// How long such a look may take.
const LONGEST_LOOK: Duration = Duration::from_secs(6 * 3600);
/// How long a program whose guard was killed may take to end.
const ORPHAN: Duration = Duration::from_secs(60);
/// Seconds until a job that did not find room is tried again.
const NO_ROOM: i64 = 30;
/// How often files whose time is over are looked for.
const HOUSEKEEPING: Duration = Duration::from_secs(60);

/// Who does a job's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    /// A look at model, rows and memory.
    Look,
    /// The work itself.
    Work,
}

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Wait {
    Look,
    Orphan,
}

pub(crate) struct Queue {
    server: Arc<Server>,
    began: Instant,
    /// Processes that this server has started, by job.
    children: HashMap<String, Child>,
    /// Those that were asked to end; a second time would be an order to end at once.
    asked: HashMap<String, u32>,
    followed: HashMap<String, Followed>,
    /// Since when jobs are looked at, and programs of jobs without a guard are waited for.
    since: HashMap<(String, Wait), Instant>,
    /// What went wrong with a job last: that is told once, not twice a second.
    troubles: HashMap<String, String>,
    kept_house: Option<Instant>,
}

impl Queue {
    pub fn new(server: Arc<Server>) -> Queue {
        Queue {
            server,
            began: Instant::now(),
            children: HashMap::new(),
            asked: HashMap::new(),
            followed: HashMap::new(),
            since: HashMap::new(),
            troubles: HashMap::new(),
            kept_house: None,
        }
    }

    /// Looks at all jobs, again and again, until whoever wakes it is gone.
    pub fn run(mut self, wakes: &Receiver<()>) {
        loop {
            if let Err(error) = self.round() {
                self.server.say(&format!("the queue: {}", error.message));
            }
            match wakes.recv_timeout(ROUND) {
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return,
                _ => while wakes.try_recv().is_ok() {},
            }
            if self.server.is_ending() {
                return;
            }
        }
    }

    fn round(&mut self) -> Result<(), ApiError> {
        // A process that has ended is a zombie until it was waited for.
        self.children.retain(|_, child| matches!(child.try_wait(), Ok(None)));
        let looking = self.server.store.jobs_with(Status::ValidatingFiles, AT_ONCE)?;
        let running = self.server.store.jobs_with(Status::Running, AT_ONCE)?;
        self.forget_others(looking.iter().chain(&running));
        let mut lookers = looking.iter().filter(|job| self.is_alive(job).is_some()).count();
        for job in looking {
            let looked = self.look_after_look(&job, &mut lookers);
            self.note(&job, looked);
        }
        for job in running {
            let looked = self.look_after_work(&job);
            self.note(&job, looked);
        }
        self.start_next()?;
        if self.kept_house.is_none_or(|last| last.elapsed() >= HOUSEKEEPING) {
            self.kept_house = Some(Instant::now());
            self.keep_house()?;
        }
        Ok(())
    }

    /// Nothing is known of jobs that nobody works on: years of them would add up.
    fn forget_others<'a>(&mut self, jobs: impl Iterator<Item = &'a JobRecord>) {
        let ids: HashSet<&str> = jobs.map(JobRecord::id).collect();
        self.asked.retain(|id, _| ids.contains(id.as_str()));
        self.followed.retain(|id, _| ids.contains(id.as_str()));
        self.since.retain(|(id, _), _| ids.contains(id.as_str()));
    }

    /// What goes wrong with one job is no reason to leave the others alone; the next round tries again.
    fn note(&mut self, job: &JobRecord, done: Result<(), ApiError>) {
        match done {
            Ok(()) => drop(self.troubles.remove(job.id())),
            Err(error) if self.troubles.get(job.id()) == Some(&error.message) => {}
            Err(error) => {
                self.server.say(&format!("{}: {}", job.id(), error.message));
                self.troubles.insert(job.id().to_string(), error.message);
            }
        }
    }

    /// How long something has been waited for.
    fn waited(&mut self, job: &JobRecord, what: Wait) -> Duration {
        self.since.entry((job.id().to_string(), what)).or_insert_with(Instant::now).elapsed()
    }

    /// Whoever works on a job: its process id, or 0 for one that has only been started.
    fn is_alive(&self, job: &JobRecord) -> Option<u32> {
        let held = supervisor_of(&self.folder(job).supervisor()).ok().flatten();
        held.or_else(|| self.children.contains_key(job.id()).then_some(0))
            .or_else(|| (self.began.elapsed() < BIRTH && job.starts > 0).then_some(0))
    }

    fn folder(&self, job: &JobRecord) -> JobFolder {
        self.server.disk.job(job.id())
    }

    /// Passes a wish on to whoever works on a job.
    fn ask(&mut self, job: &JobRecord, pid: u32) {
        if pid == 0 || self.asked.get(job.id()) == Some(&pid) {
            return;
        }
        match ask_to_end(pid) {
            Ok(()) => drop(self.asked.insert(job.id().to_string(), pid)),
            Err(error) => self.server.say(&format!("{}: process {pid} cannot be asked to end: {error}", job.id())),
        }
    }

    /// A job whose files are looked at.
    fn look_after_look(&mut self, job: &JobRecord, lookers: &mut usize) -> Result<(), ApiError> {
        let folder = self.folder(job);
        let alive = self.is_alive(job);
        if job.wish == Wish::Cancel {
            return match alive {
                Some(pid) => {
                    self.ask(job, pid);
                    Ok(())
                }
                None => self.end(job, Status::Cancelled, NewEvent::of("end", "The job has been cancelled.")),
            };
        }
        if let Some(findings) = folder.read_findings() {
            return self.found(job, findings);
        }
        if let Some(pid) = alive {
            if self.waited(job, Wait::Look) < LONGEST_LOOK {
                return Ok(());
            }
            end_now(pid);
            let message = format!("the look at its files took more than {} hours", LONGEST_LOOK.as_secs() / 3600);
            return self.fail(job, JobError { code: "validation_timeout".into(), message, param: None });
        }
        self.since.remove(&(job.id().to_string(), Wait::Look));
        if job.starts >= MOST_LOOKS {
            let message =
                format!("the look at its files ended {MOST_LOOKS} times without an answer; see the job's log");
            return self.fail(job, JobError { code: "validation_died".into(), message, param: None });
        }
        if *lookers < LOOKERS {
            *lookers += 1;
            self.change(job, |job| {
                job.starts += 1;
                vec![NewEvent::of("validating", format!("Validating training file: {}", job.training_file))]
            })?;
            self.start(job, Task::Look)?;
        }
        Ok(())
    }

    /// What a look found decides whether a job waits for its turn.
    fn found(&mut self, job: &JobRecord, mut findings: Findings) -> Result<(), ApiError> {
        self.asked.remove(job.id());
        // The whole plan is in the job's folder: every list of jobs would have to read past it.
        if let Some(plan) = &mut findings.plan {
            plan.told = Value::Null;
        }
        let no_fit = findings.plan.as_ref().filter(|plan| !plan.fits).map(|plan| JobError {
            code: DOES_NOT_FIT.into(),
            message: format!("this job does not fit into the server's memory: {}", plan.headline),
            param: Some("model".into()),
        });
        if let Some(error) = findings.error.clone().or(no_fit) {
            self.change(job, |job| {
                job.findings = Some(findings);
                Vec::new()
            })?;
            return self.fail(job, error);
        }
        let mut events: Vec<NewEvent> = findings
            .notes
            .iter()
            .enumerate()
            .map(|(index, note)| NewEvent::warning(format!("note:{index}"), note))
            .collect();
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
        })
    }

    /// A job that is worked on, or should be.
    fn look_after_work(&mut self, job: &JobRecord) -> Result<(), ApiError> {
        if let Some(pid) = self.is_alive(job) {
            if job.wish != Wish::GoOn {
                self.ask(job, pid);
            }
            return self.follow(job, false);
        }
        if !self.is_orphan_gone(job) {
            return Ok(());
        }
        self.asked.remove(job.id());
        self.follow(job, true)?;
        self.followed.remove(job.id());
        self.server.live.forget(job.id());
        match self.folder(job).read_outcome() {
            // A command that was asked to end may call that an error.
            Some(JobOutcome::Failed { .. }) if job.wish == Wish::Cancel => self.died(job),
            Some(JobOutcome::Done { tokens, words }) => self.succeed(job, tokens, &words),
            Some(JobOutcome::Failed { error }) => self.fail(job, error),
            Some(JobOutcome::Stopped { step, words }) => self.stopped(job, step, &words),
            Some(JobOutcome::NoRoom { words }) => {
                let waits = format!("There is no room for it now, so it waits: {words}");
                let at = self.server.now() + NO_ROOM;
                let name = format!("no-room:{}", job.starts);
                self.settle(job, |job| {
                    // It was no start: nothing was tried.
                    job.starts = job.starts.saturating_sub(1);
                    (job.status, job.not_before) = (Status::Queued, at);
                    vec![NewEvent::warning(name, waits)]
                })
            }
            None => self.died(job),
        }
    }

    /// Whether no program of this job runs without its guard. One that does ends: a trainer notices by itself, saves and ends, any other program is asked to; after
    /// a minute it is killed. Then the job can start again without there being two of it.
    fn is_orphan_gone(&mut self, job: &JobRecord) -> bool {
        let key = (job.id().to_string(), Wait::Orphan);
        let Some(pid) = unguarded(&self.folder(job).output().join(GUARD)) else {
            self.since.remove(&key);
            return true;
        };
        let is_new = !self.since.contains_key(&key);
        if self.waited(job, Wait::Orphan) >= ORPHAN {
            end_now(pid);
        } else if is_new && !trains(job) {
            self.server
                .say(&format!("{}: its guard was killed; its program, process {pid}, is asked to end", job.id()));
            pass_stop_on(pid, Stop::Terminate);
        }
        false
    }

    /// It was asked to end, and has saved.
    fn stopped(&mut self, job: &JobRecord, step: Option<u64>, words: &str) -> Result<(), ApiError> {
        match job.wish {
            Wish::Cancel => {
                self.end(job, Status::Cancelled, NewEvent::of("end", format!("The job has been cancelled: {words}.")))
            }
            Wish::Pause => self.settle(job, |job| {
                (job.status, job.wish) = (Status::Paused, Wish::GoOn);
                vec![NewEvent::of(new_id("paused-"), format!("The job has been paused: {words}."))]
            }),
            Wish::Finish if step.is_none_or(|step| step == 0) => self.nothing_learnt(job),
            Wish::Finish => self.settle(job, |job| {
                job.status = Status::Queued;
                Vec::new()
            }),
            // Not us: the machine is shut down, or its operator has done it.
            Wish::GoOn => self.again(job, &format!("The job was stopped from outside: {words}.")),
        }
    }

    /// Whoever worked on it ended without a word.
    fn died(&mut self, job: &JobRecord) -> Result<(), ApiError> {
        match job.wish {
            Wish::Cancel => self.end(job, Status::Cancelled, NewEvent::of("end", "The job has been cancelled.")),
            Wish::Pause => self.stopped(job, None, "its process ended while it was asked to"),
            Wish::Finish if newest_step(&self.folder(job).output()).is_none() => self.nothing_learnt(job),
            Wish::Finish | Wish::GoOn => self.again(job, "The job's process was killed."),
        }
    }

    fn nothing_learnt(&mut self, job: &JobRecord) -> Result<(), ApiError> {
        let words = "The job has been cancelled: it had not learnt anything yet.";
        self.end(job, Status::Cancelled, NewEvent::of("end", words))
    }

    /// Starts it again, from its newest checkpoint, unless that has not helped often enough; each time a little later.
    fn again(&mut self, job: &JobRecord, why: &str) -> Result<(), ApiError> {
        let newest = newest_step(&self.folder(job).output());
        let starts = if newest > job.newest_step { 1 } else { job.starts };
        if starts >= MOST_STARTS {
            let message = format!("it ended {starts} times without a newer checkpoint; see the job's log");
            return self.fail(job, JobError { code: "supervisor_died".into(), message, param: None });
        }
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
        self.change(job, |job| {
            (job.status, job.finished_at, job.wish) = (Status::Succeeded, Some(now), Wish::GoOn);
            (job.result_model, job.result_file, job.trained_tokens) = (model, file, tokens);
            events
        })?;
        self.server.disk.forget_rows(job.id());
        Ok(())
    }

    fn fail(&mut self, job: &JobRecord, error: JobError) -> Result<(), ApiError> {
        let event = NewEvent::bad("end", format!("The job failed: {}", error.message));
        self.end_with(job, Status::Failed, event, Some(error))
    }

    fn end(&mut self, job: &JobRecord, status: Status, event: NewEvent) -> Result<(), ApiError> {
        self.end_with(job, status, event, None)
    }

    fn end_with(
        &mut self,
        job: &JobRecord,
        status: Status,
        event: NewEvent,
        error: Option<JobError>,
    ) -> Result<(), ApiError> {
        let now = self.server.now();
        self.change(job, |job| {
            (job.status, job.finished_at, job.wish, job.error) = (status, Some(now), Wish::GoOn, error);
            vec![event]
        })?;
        self.server.disk.forget_rows(job.id());
        Ok(())
    }

    /// Starts jobs whose turn it is, in their order: a small one does not overtake a large one that waits for others of ours, which would then never find room. One
    /// that found no room because of what else runs on the machine is passed by until it is tried again.
    fn start_next(&mut self) -> Result<(), ApiError> {
        let running = self.server.store.jobs_with(Status::Running, AT_ONCE)?;
        let mut slots = self.server.settings.slots.saturating_sub(running.len());
        let mut used = running.iter().fold((0, 0), |(host, gpu), job| {
            let (more_host, more_gpu) = needs(job);
            (host + more_host, gpu + more_gpu)
        });
        let now = self.server.now();
        for job in self.server.store.jobs_with(Status::Queued, AT_ONCE)? {
            // What was wished while it changed its place.
            let wished = match job.wish {
                Wish::Cancel => {
                    Some(self.end(&job, Status::Cancelled, NewEvent::of("end", "The job has been cancelled.")))
                }
                Wish::Pause => Some(self.stopped(&job, None, "it had not started")),
                Wish::Finish | Wish::GoOn => None,
            };
            if let Some(done) = wished {
                self.note(&job, done);
                continue;
            }
            if slots == 0 {
                break;
            }
            if job.not_before > now {
                continue;
            }
            let (host, gpu) = needs(&job);
            let is_too_much =
                |used: u64, more: u64, all: Option<u64>| all.is_some_and(|all| used > 0 && used + more > all);
            let (all_host, all_gpu) = (self.server.memory().map(|bytes| bytes.0), self.server.gpu_memory());
            let is_gpu_unknown = gpu > 0 && used.1 > 0 && self.server.is_looking_for_gpu();
            if is_gpu_unknown || is_too_much(used.0, host, all_host) || is_too_much(used.1, gpu, all_gpu) {
                break;
            }
            let begun = self.begin(&job);
            // One that could not be started has taken its turn: it is running for all that is known.
            if !matches!(begun, Ok(false)) {
                slots -= 1;
                used = (used.0 + host, used.1 + gpu);
            }
            self.note(&job, begun.map(drop));
        }
        Ok(())
    }

    /// Starts a job, if it is still queued.
    fn begin(&mut self, job: &JobRecord) -> Result<bool, ApiError> {
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
            job.status = Status::Running;
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
        folder.write_order(&begun.order).map_err(|error| ApiError::internal("the order cannot be written", &error))?;
        self.start(job, Task::Work)?;
        Ok(true)
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
        let child =
            start_in_background(&self.server.settings.program, &words, &[KEYS_VARIABLE], log).map_err(failed)?;
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
        let followed = self.followed.entry(job.id().to_string()).or_default();
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

    /// Changes a job, whatever is wished now.
    fn change(&self, job: &JobRecord, change: impl FnOnce(&mut JobRecord) -> Vec<NewEvent>) -> Result<(), ApiError> {
        self.server.store.change_job(job.id(), self.server.now(), |job| Some(change(job)))?;
        self.server.changed();
        Ok(())
    }

    /// Changes a job as was decided by what was wished; if something else is wished by now, the next round decides anew.
    fn settle(&self, job: &JobRecord, change: impl FnOnce(&mut JobRecord) -> Vec<NewEvent>) -> Result<(), ApiError> {
        let wish = job.wish;
        self.server.store.change_job(job.id(), self.server.now(), |job| (job.wish == wish).then(|| change(job)))?;
        self.server.changed();
        Ok(())
    }

    /// Removes what has had its time.
    fn keep_house(&mut self) -> Result<(), ApiError> {
        let now = self.server.now();
        for file in self.server.store.expired_files(now)? {
            crate::files::remove(&self.server, &file)?;
        }
        for upload in self.server.store.expired_uploads(now)? {
            crate::files::end(&self.server, upload, "expired")?;
        }
        Ok(())
    }
}

/// What a job takes of the host's memory and of a GPU's.
fn needs(job: &JobRecord) -> (u64, u64) {
    if let Work::Command { memory_limit, .. } = &job.order.work {
        return (memory_limit.unwrap_or(0), 0);
    }
    let plan = job.findings.as_ref().and_then(|found| found.plan.as_ref());
    plan.map_or((0, 0), |plan| (plan.host_bytes, plan.gpu_bytes.unwrap_or(0)))
}

/// Forgets a job that was refused when it was submitted.
pub(crate) fn forget(server: &Server, id: &str) -> Result<(), ApiError> {
    server.store.delete_job(id)?;
    drop(fs::remove_dir_all(server.disk.job(id).0));
    Ok(())
}

//! The queue: one thread that looks at every job that is not over, and does what comes next.
//!
//! What a job's folder says about its work is true whatever became of the server, and what the store says about a job is true whatever became of its process.
//! Each round brings the two together, so a round after a kill does the same as any other. A process that works on a job holds a lock in its folder: a second
//! one that a confused server might start finds it held and ends.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::process::Child;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use garden_guard::{ask_to_end, start_in_background, supervisor_of};
use garden_train::Recipe;
use serde_json::Value;

use crate::Server;
use crate::catalogue::{result_name, trains};
use crate::error::ApiError;
use crate::follow::{Followed, newest_step, write_results};
use crate::id::new_id;
use crate::job::{Findings, JobError, JobFolder, JobOutcome, JobRecord, Status, Wish, Work};
use crate::jobs::DOES_NOT_FIT;
use crate::store::NewEvent;

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

pub(crate) struct Queue {
    server: Arc<Server>,
    began: Instant,
    /// Processes that this server has started, by job.
    children: HashMap<String, Child>,
    /// Those that were asked to end; a second time would be an order to end at once.
    asked: HashMap<String, u32>,
    followed: HashMap<String, Followed>,
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
        let mut lookers = looking.iter().filter(|job| self.is_alive(job).is_some()).count();
        for job in looking {
            self.look_after_look(&job, &mut lookers)?;
        }
        for job in self.server.store.jobs_with(Status::Running, AT_ONCE)? {
            self.look_after_work(&job)?;
        }
        self.start_next()?;
        if self.kept_house.is_none_or(|last| last.elapsed() >= HOUSEKEEPING) {
            self.kept_house = Some(Instant::now());
            self.keep_house()?;
        }
        Ok(())
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
        if alive.is_some() {
            return Ok(());
        }
        if job.starts >= MOST_LOOKS {
            let message =
                format!("the look at its files ended {MOST_LOOKS} times without an answer; see the job's log");
            return self.fail(job, JobError { code: "validation_died".into(), message, param: None });
        }
        if *lookers < LOOKERS {
            *lookers += 1;
            if job.starts == 0 {
                let event = NewEvent::of("validating", format!("Validating training file: {}", job.training_file));
                self.tell(job, &[event])?;
            }
            self.change(job, |job| job.starts += 1)?;
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
            self.change(job, |job| job.findings = Some(findings))?;
            return self.fail(job, error);
        }
        let mut order = job.order.clone();
        if let (Work::Training { recipe }, Some(steps)) = (&mut order.work, findings.steps) {
            // At the end of each epoch as OpenAI does it, unless somebody wants it otherwise.
            let epoch = (steps as f64 / recipe.epochs.max(1.0)).ceil() as usize;
            if recipe.save_steps == Recipe::default().save_steps && recipe.max_steps.is_none() {
                recipe.save_steps = epoch.clamp(1, recipe.save_steps);
            }
            self.folder(job)
                .write_order(&order)
                .map_err(|error| ApiError::internal("the order cannot be written", &error))?;
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
        self.tell(job, &events)?;
        self.change(job, |job| {
            (job.order, job.findings, job.starts) = (order, Some(findings), 0);
            if job.status == Status::ValidatingFiles {
                job.status = Status::Queued;
            }
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
        let folder = self.folder(job);
        self.asked.remove(job.id());
        self.follow(job, true)?;
        self.followed.remove(job.id());
        self.server.live.forget(job.id());
        match folder.read_outcome() {
            // A command that was asked to end may call that an error.
            Some(JobOutcome::Failed { .. }) if job.wish == Wish::Cancel => self.died(job),
            Some(JobOutcome::Done { tokens, words }) => self.succeed(job, tokens, &words),
            Some(JobOutcome::Failed { error }) => self.fail(job, error),
            Some(JobOutcome::Stopped { step, words }) => self.stopped(job, step, &words),
            Some(JobOutcome::NoRoom { words }) => {
                let waits = format!("There is no room for it now, so it waits: {words}");
                self.tell(job, &[NewEvent::warning(format!("no-room:{}", job.starts), waits)])?;
                let at = self.server.now() + NO_ROOM;
                self.change(job, |job| (job.status, job.not_before) = (Status::Queued, at))
            }
            None => self.died(job),
        }
    }

    /// Somebody has asked it to end, and it has saved.
    fn stopped(&mut self, job: &JobRecord, step: Option<u64>, words: &str) -> Result<(), ApiError> {
        match job.wish {
            Wish::Cancel => {
                self.end(job, Status::Cancelled, NewEvent::of("end", format!("The job has been cancelled: {words}.")))
            }
            Wish::Pause => {
                self.tell(job, &[NewEvent::of(new_id("paused-"), format!("The job has been paused: {words}."))])?;
                self.change(job, |job| (job.status, job.wish) = (Status::Paused, Wish::GoOn))
            }
            Wish::Finish => {
                let learnt = step.filter(|step| *step > 0);
                if learnt.is_none() {
                    return self.end(
                        job,
                        Status::Cancelled,
                        NewEvent::of("end", "The job has been cancelled: it had not learnt anything yet."),
                    );
                }
                self.change(job, |job| job.status = Status::Queued)
            }
            // Not us: the machine is shut down, or its operator has done it.
            Wish::GoOn => {
                self.tell(
                    job,
                    &[NewEvent::warning(
                        new_id("stopped-"),
                        format!("The job was stopped from outside and will go on: {words}."),
                    )],
                )?;
                self.change(job, |job| job.status = Status::Queued)
            }
        }
    }

    /// Whoever worked on it ended without a word.
    fn died(&mut self, job: &JobRecord) -> Result<(), ApiError> {
        match job.wish {
            Wish::Cancel => {
                return self.end(job, Status::Cancelled, NewEvent::of("end", "The job has been cancelled."));
            }
            Wish::Pause => return self.stopped(job, None, "its process ended while it was asked to"),
            Wish::Finish | Wish::GoOn => {}
        }
        let newest = newest_step(&self.folder(job).output());
        let starts = if newest > job.newest_step { 1 } else { job.starts };
        if starts >= MOST_STARTS {
            let message = format!("its process ended {starts} times without a newer checkpoint; see the job's log");
            return self.fail(job, JobError { code: "supervisor_died".into(), message, param: None });
        }
        let message = match newest {
            Some(step) => format!("The job's process was killed: it will go on from step {step}."),
            None => "The job's process was killed: it will start again.".to_string(),
        };
        self.tell(job, &[NewEvent::warning(new_id("died-"), message)])?;
        let at = self.server.now() + i64::from(starts.saturating_sub(1));
        self.change(job, |job| {
            (job.status, job.starts, job.newest_step, job.not_before) = (Status::Queued, starts, newest, at);
        })
    }

    fn succeed(&mut self, job: &JobRecord, tokens: Option<u64>, words: &str) -> Result<(), ApiError> {
        let model = trains(job).then(|| result_name(job));
        let file = if trains(job) { Some(write_results(&self.server, job)?) } else { None };
        let mut events: Vec<NewEvent> =
            model.iter().map(|model| NewEvent::of("model", format!("New fine-tuned model created: {model}"))).collect();
        events.push(NewEvent::of("end", format!("The job has successfully completed: {words}")));
        self.tell(job, &events)?;
        let now = self.server.now();
        self.change(job, |job| {
            (job.status, job.finished_at, job.wish) = (Status::Succeeded, Some(now), Wish::GoOn);
            (job.result_model, job.result_file, job.trained_tokens) = (model, file, tokens);
        })
    }

    fn fail(&mut self, job: &JobRecord, error: JobError) -> Result<(), ApiError> {
        let event = NewEvent::bad("end", format!("The job failed: {}", error.message));
        self.change(job, |job| job.error = Some(error))?;
        self.end(job, Status::Failed, event)
    }

    fn end(&mut self, job: &JobRecord, status: Status, event: NewEvent) -> Result<(), ApiError> {
        self.tell(job, &[event])?;
        let now = self.server.now();
        self.change(job, |job| (job.status, job.finished_at, job.wish) = (status, Some(now), Wish::GoOn))
    }

    /// Starts jobs whose turn it is, in their order: a small one does not overtake a large one, which would then never find room.
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
            match job.wish {
                Wish::Cancel => {
                    self.end(&job, Status::Cancelled, NewEvent::of("end", "The job has been cancelled."))?;
                    continue;
                }
                Wish::Pause => {
                    self.stopped(&job, None, "it had not started")?;
                    continue;
                }
                Wish::Finish | Wish::GoOn => {}
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
            if is_too_much(used.0, host, all_host) || is_too_much(used.1, gpu, all_gpu) {
                break;
            }
            if self.begin(&job)? {
                slots -= 1;
                used = (used.0 + host, used.1 + gpu);
            }
        }
        Ok(())
    }

    /// Starts a job, if it is still queued.
    fn begin(&mut self, job: &JobRecord) -> Result<bool, ApiError> {
        let folder = self.folder(job);
        let mut order = None;
        if let (Wish::Finish, Work::Training { recipe }, Some(step)) =
            (job.wish, &job.order.work, newest_step(&folder.output()))
        {
            // Nothing is left to train then, and the result is written.
            let recipe = Box::new(Recipe { max_steps: Some(step as usize), ..(**recipe).clone() });
            order = Some(crate::job::JobOrder { work: Work::Training { recipe }, ..job.order.clone() });
        }
        if let Some(order) = &order {
            folder.write_order(order).map_err(|error| ApiError::internal("the order cannot be written", &error))?;
        }
        let now = self.server.now();
        let mut is_ours = false;
        // Noted before it is done: a process that nobody knows of would be worse than one that is missing.
        self.server.store.change_job(job.id(), |job| {
            is_ours = job.status == Status::Queued;
            if is_ours {
                job.status = Status::Running;
                job.started_at = job.started_at.or(Some(now));
                job.starts += 1;
                if let Some(order) = order {
                    (job.order, job.wish) = (order, Wish::GoOn);
                }
            }
            is_ours
        })?;
        if is_ours {
            self.tell(job, &[NewEvent::of("started", "Fine-tuning job started")])?;
            self.start(job, Task::Work)?;
        }
        Ok(is_ours)
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
        let child = start_in_background(&self.server.settings.program, &words, log).map_err(failed)?;
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
        let events = followed.read(&output, total);
        if let Some(pace) = followed.pace(total) {
            self.server.live.note(job.id(), pace);
        }
        if !events.is_empty() {
            self.tell(job, &events)?;
        }
        Ok(())
    }

    fn tell(&self, job: &JobRecord, events: &[NewEvent]) -> Result<(), ApiError> {
        if self.server.store.add_events(job.id(), self.server.now(), events)? > 0 {
            self.server.changed();
        }
        Ok(())
    }

    fn change(&self, job: &JobRecord, change: impl FnOnce(&mut JobRecord)) -> Result<(), ApiError> {
        self.server.store.change_job(job.id(), |job| {
            change(job);
            true
        })?;
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

//! The queue: one thread that looks at every job that is not over, and does what comes next.
//!
//! What a job's folder says about its work is true whatever became of the server, and what the store says about a job is true whatever became of its process.
//! Each round brings the two together, so a round after a kill does the same as any other. What comes next is decided by pure functions (`next.rs`, `place.rs`,
//! `turns.rs`); this file gathers what they ask for and has done what they say (`start.rs`, `end.rs`; `keep.rs` looks after the rest). A process that works on a job holds a lock in its folder: a second one that a
//! confused server might start finds it held and ends.

mod end;
mod keep;
mod next;
mod place;
mod start;

use std::collections::{HashMap, HashSet};
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use garden_files::Allowance;
use garden_guard::{Stop, ask_to_end, end_now, is_stopped, pass_stop_on, supervisor_of, unguarded};
use garden_run::GUARD;

use self::next::{Action, FolderState, PASSING, Process, Waits, next};
use crate::Server;
use crate::catalogue::trains;
use crate::error::ApiError;
use crate::follow::{Followed, newest_step};
use crate::id::new_id;
use crate::job::{Hold, JobFolder, JobRecord, Status, StopRequest, Wish};
use crate::store::{Entry, NewEvent};

/// Jobs that wait and that a round looks at: the first of each line (of a client, by what it waits for), and all together.
const OF_LINE: usize = 20;
const AT_ONCE: usize = 100;
/// Jobs that run and that a round looks at: more than there are places for.
pub(crate) const RUNNING: usize = 1000;
/// How often the queue looks by itself.
const ROUND: Duration = Duration::from_millis(500);
/// A queue that has not finished a round for so many times the server's patience hangs: a minute.
pub(crate) const HANGS: u32 = 3;
/// How long a process of a server that was killed may take until it holds its lock.
const BIRTH: Duration = Duration::from_secs(3);
/// Bytes of the disk that jobs leave free, so that checkpoints, logs and the database have room for what is under way.
const LEAST_FREE: u64 = 16 << 20;

/// What is known of a job's process, as long as there is one.
#[derive(Debug, Default)]
struct Watched {
    /// The process that was asked to end, and when; a second time would be an order to end at once.
    asked: Option<(u32, Instant)>,
    killed: Option<(u32, Instant)>,
    looked: Option<Instant>,
    /// The process that was seen without its lock, and since when.
    passing: Option<(u32, Instant)>,
    orphaned: Option<Instant>,
    followed: Followed,
}

pub(crate) struct Queue {
    server: Arc<Server>,
    began: Instant,
    /// Processes that this server has started, by job.
    children: HashMap<String, Child>,
    /// Those that are not needed any more, and since when: they have done their work, and are about to end.
    leaving: Vec<(Child, Instant)>,
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
    /// Up to where the time that the server runs was counted.
    counted: Instant,
    /// How many changes the database was said to have seen.
    noted_changes: Option<u64>,
}

impl Queue {
    pub fn new(server: Arc<Server>) -> Queue {
        Queue {
            server,
            began: Instant::now(),
            children: HashMap::new(),
            leaving: Vec::new(),
            ended: HashMap::new(),
            watched: HashMap::new(),
            troubles: HashMap::new(),
            lack: None,
            measured: None,
            kept_house: None,
            counted: Instant::now(),
            noted_changes: None,
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
            self.note_changes();
            match wakes.recv_timeout(ROUND) {
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break,
                _ => while wakes.try_recv().is_ok() {},
            }
        }
        // What the last requests have changed.
        self.note_changes();
    }

    fn round(&mut self) -> Result<(), ApiError> {
        self.reap();
        let looking = self.jobs(Status::ValidatingFiles)?;
        let running = self.jobs(Status::Running)?;
        self.forget_others(looking.iter().chain(&running));
        self.measure(looking.iter().filter(|job| job.starts > 0).chain(&running));
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
        self.start_looks(&looking, lookers);
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
        self.leaving.retain_mut(|(child, since)| {
            if since.elapsed() >= PASSING {
                end_now(child.id());
            }
            matches!(child.try_wait(), Ok(None))
        });
    }

    /// Jobs of a status. Those whose records cannot be read are left as they are, and named once.
    fn jobs(&mut self, status: Status) -> Result<Vec<JobRecord>, ApiError> {
        let entries: Vec<Entry> = match status {
            Status::Running => self.server.store.jobs_with(status, RUNNING)?,
            _ => self.server.store.first_of_lines(status, OF_LINE, AT_ONCE)?,
        };
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
        let left = self.children.extract_if(|id, _| !ids.contains(id.as_str()));
        self.leaving.extend(left.map(|(_, child)| (child, Instant::now())));
    }

    /// What goes wrong with one job is no reason to leave the others alone; the next round tries again.
    fn note(&mut self, job: &JobRecord, done: Result<(), ApiError>) {
        match done {
            Ok(()) => drop(self.troubles.remove(job.id())),
            Err(error) => {
                // The next round has a little space for what it notes.
                if error.is_no_space() {
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

    /// When a job that did not find room is tried again: after 30 s.
    fn tried_again_at(&self) -> i64 {
        let wait = self.server.settings.patience * 3 / 2;
        self.server.now() + i64::try_from(wait.as_secs()).unwrap_or(i64::MAX).max(1)
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
        // An earlier server may have asked; how long ago is counted from now on.
        if watched.asked.is_none() {
            watched.asked = job.stop.map(|stop| (stop.pid, Instant::now()));
        }
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
        watched.passing = match (process, watched.passing) {
            (Process::Starting(Some(pid)), Some((known, since))) if known == pid => Some((pid, since)),
            (Process::Starting(Some(pid)), _) => Some((pid, Instant::now())),
            _ => None,
        };
        // What was asked of one process is not asked of the next.
        let of_this = |noted: Option<(u32, Instant)>| match (process, noted) {
            (Process::Running(pid) | Process::Stopped(pid) | Process::Starting(Some(pid)), Some((asked, at)))
                if asked == pid =>
            {
                Some(at.elapsed())
            }
            _ => None,
        };
        let waits = Waits {
            asked: of_this(watched.asked),
            killed: of_this(watched.killed),
            passing: watched.passing.map_or(Duration::ZERO, |(_, since)| since.elapsed()),
            looked: watched.looked.map_or(Duration::ZERO, |at| at.elapsed()),
            orphaned: state.orphan.and(watched.orphaned).map(|at| at.elapsed()),
            lack,
        };
        match state.orphan {
            Some(_) => drop(watched.orphaned.get_or_insert_with(Instant::now)),
            None => watched.orphaned = None,
        }
        next(job, &state, process, &waits)
    }

    /// What the server has too little of for jobs that run.
    fn find_lack(&self) -> Option<Hold> {
        let (kept, quota) = (self.server.store.bytes().unwrap_or(0), self.server.settings.quota_bytes);
        // What is written between two rounds is bounded by those who write it.
        drop(Allowance::at(&self.server.disk.allowance()).set(quota.saturating_sub(kept)));
        match self.server.disk.free_bytes() < LEAST_FREE / 2 {
            true => Some(Hold::Disk),
            false => (kept > quota).then_some(Hold::Quota),
        }
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
            Action::Ask(pid) => self.ask(job, pid, None),
            Action::AskToWait(pid, hold) => {
                self.ask(job, pid, Some(hold))?;
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
            Action::Refuse(findings, error) => self.refuse(job, *findings, error),
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
    fn ask(&mut self, job: &JobRecord, pid: u32, hold: Option<Hold>) -> Result<(), ApiError> {
        // Noted first, with the reserve where the disk is full: whoever sees its end knows why. Where even that fails it is asked all the same.
        let note = |store: &crate::store::Store| {
            store.change_job(job.id(), self.server.now(), |job| {
                job.stop = Some(StopRequest { pid, hold });
                Some(Vec::new())
            })
        };
        drop(self.server.change_even_if_full(note));
        ask_to_end(pid).map_err(|error| ApiError::internal("a job's process cannot be asked to end", &error))?;
        self.watched.entry(job.id().to_string()).or_default().asked = Some((pid, Instant::now()));
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

fn lack_words(hold: Hold) -> &'static str {
    match hold {
        Hold::Memory => "There is not enough free memory now.",
        Hold::Disk => "The server's disk has too little space.",
        Hold::Quota => "The quota of this server is used up: files, jobs or models that are not needed can be deleted.",
        Hold::Files => "What the job needs is missing:",
    }
}

//! Guards a program from its first start to its last end: watches it, stops it before memory runs out, and starts it again.
//!
//! One attempt is one start of the program. Within it the guard is in one of four phases: it lets the program run; it waits
//! for the next checkpoint because it was asked to end a program that cannot save on request; it has asked the program to save
//! and waits for a complete checkpoint; or it is ending what is left.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::time::{Duration, Instant};
use std::{fmt, io};

use garden_memory::{Bytes, EventKind, Quantity, RunFacts, Sample};
use garden_probe::{Sampler, open_for_writing};
use regex_lite::Regex;
use serde::Serialize;

use crate::attempt::{Attempt, Outcome, Summary, Torn};
use crate::channel::{Channel, ENVIRONMENT};
use crate::checkpoint::{Checkpoint, newest_complete};
use crate::fence::Fence;
use crate::launch::{Ending, Launch, Notice, Stage, launch};
use crate::live::{Happening, Live};
use crate::method::{Method, kill, terminate};
use crate::policy::{Moment, Outlook, Pace, Reason, Rules, decide, is_last_chance};
use crate::recorder::Recorder;
use crate::resume::resume_words;
use crate::saves::{Saved, Saves};
use crate::signals::{Stop, listen_for_stops, pass_stop_on};
use crate::state::StateFolder;
use crate::watch::Watch;

/// The environment variable that names the checkpoint to go on from.
pub const RESUME: &str = "MODEL_GARDEN_RESUME";

/// A program that has saved is given this long to end by itself.
const EXIT_PATIENCE: Duration = Duration::from_secs(15);
/// What was told to end is killed after this time.
const TERM_PATIENCE: Duration = Duration::from_secs(3);
/// Children that outlive the program after a normal end are given this long.
const LINGER: Duration = Duration::from_secs(10);
/// How often the best way to stop is looked for.
const METHOD_PAUSE: Duration = Duration::from_secs(5);
/// A program that tells no steps is taken to train after this time.
const SILENT_START: Duration = Duration::from_secs(30);
/// The shortest pause between samples when memory is about to run out, or something is being saved.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
/// Samples that are taken at least before the limit would be reached.
const LOOKS_BEFORE: u32 = 20;
/// The first pause before a restart; doubled after each attempt that was over within [`SHORT_ATTEMPT`].
const FIRST_BACKOFF: Duration = Duration::from_millis(500);
const LONGEST_BACKOFF: Duration = Duration::from_secs(60);
const SHORT_ATTEMPT: f64 = 60.0;

/// What to do when the limit is near.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnLimit {
    /// Stop with a checkpoint.
    Stop,
    /// Stop with a checkpoint, and start again from it.
    Restart,
}

/// What is to be run, and how it is to be guarded.
#[derive(Debug)]
pub struct Orders {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Memory that it may use, if that is less than the machine or the control group allows.
    pub limit: Option<Bytes>,
    /// Share of the limit that is the backstop.
    pub stop_at: f64,
    /// How long a program that was asked to save may take.
    pub grace: Duration,
    /// What to do when the limit is near.
    pub on_limit: OnLimit,
    /// How often it is started again at most.
    pub max_restarts: u32,
    /// Words that make it go on from a checkpoint.
    pub resume_with: Option<String>,
    /// Where its checkpoints are.
    pub checkpoint_dir: Option<PathBuf>,
    /// Time between samples.
    pub interval: Duration,
    /// What is known about the run.
    pub facts: RunFacts,
    /// How the step is found in what it prints.
    pub step_pattern: Option<Regex>,
    /// Where its output goes.
    pub stage: Stage,
    /// The hard fence, if one was built.
    pub fence: Option<Fence>,
    /// Where the trace goes.
    pub trace: PathBuf,
    /// Where the state is told.
    pub state: Option<StateFolder>,
}

/// Who is told what happens, and may ask for an end.
pub trait Observer {
    /// The guarding begins; whoever has something to say of their own may wake the guard with a notice.
    fn begin(&mut self, notices: &SyncSender<Notice>);
    /// Something that a person should know.
    fn say(&mut self, line: &str);
    /// Something happened; `guard` is what the guard does, in a sentence.
    fn happened(&mut self, happening: &Happening, live: &mut Live, guard: &str) -> Option<Stop>;
}

/// Why a run could not be guarded.
#[derive(Debug)]
pub enum Error {
    /// The program could not be started.
    Start(OsString, io::Error),
    /// It could not be watched.
    Watch(u32, io::Error),
    /// The trace could not be written.
    Trace(PathBuf, io::Error),
    /// Signals cannot be heard.
    Signals(io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Start(program, _) => write!(f, "cannot start `{}`", program.to_string_lossy()),
            Error::Watch(pid, _) => write!(f, "cannot watch process `{pid}`"),
            Error::Trace(path, _) => write!(f, "cannot write the trace `{}`", path.display()),
            Error::Signals(_) => f.write_str("cannot listen for signals"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Start(_, error) | Error::Watch(_, error) | Error::Trace(_, error) | Error::Signals(error) => {
                Some(error)
            }
        }
    }
}

/// What a supervisor tells in `state.json`.
#[derive(Serialize)]
struct State<'a> {
    pid: u32,
    state: &'static str,
    guard: &'a str,
    attempt: u32,
    program_pid: u32,
    step: Option<f64>,
    total_steps: Option<u64>,
    held_bytes: u64,
    limit_bytes: Option<u64>,
    verdict: Option<&'static str>,
    summary: Option<&'a str>,
    checkpoint: Option<&'a Path>,
    trace: &'a Path,
    command: Vec<String>,
}

/// What the guard is doing.
enum Phase {
    Running,
    /// Asked to end a program that only saves by itself.
    Waiting,
    Saving(Saving),
    Ending {
        since: Instant,
        is_killed: bool,
    },
}

/// A program that was asked to save.
struct Saving {
    since: Instant,
    deadline: Instant,
    /// Whether SIGTERM was sent.
    is_signalled: bool,
    /// Whether it has begun to save.
    has_begun: bool,
    /// When it had saved.
    saved: Option<Instant>,
}

/// Runs the program under guard until it, and everything it started, has ended.
pub fn supervise(orders: &Orders, observer: &mut dyn Observer) -> Result<Summary, Error> {
    let (sender, notices) = mpsc::sync_channel(256);
    listen_for_stops(sender.clone()).map_err(Error::Signals)?;
    // Orphans of the program become our children instead of the system's; where that is not possible they are still found
    // by their session.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let channel = Channel::open(sender.clone()).ok();
    observer.begin(&sender);
    let mut supervisor = Supervisor {
        orders,
        observer,
        sender,
        channel,
        saves: None,
        folder: orders.checkpoint_dir.clone(),
        pace: Pace::default(),
        attempts: Vec::new(),
        live: None,
        was_asked: false,
    };
    let summary = supervisor.run(notices)?;
    if let Some(state) = &orders.state {
        // Whoever asks for it will not find it then; the exit code is still ours.
        drop(state.write("exit.json", &summary));
    }
    Ok(summary)
}

struct Supervisor<'a> {
    orders: &'a Orders,
    observer: &'a mut dyn Observer,
    sender: SyncSender<Notice>,
    channel: Option<Channel>,
    /// Where checkpoints are, given or learnt.
    folder: Option<PathBuf>,
    saves: Option<Saves>,
    pace: Pace,
    attempts: Vec<Attempt>,
    live: Option<Live>,
    was_asked: bool,
}

/// What follows an attempt.
enum Next {
    Finish(Outcome, String),
    Restart(Option<Checkpoint>, Vec<Torn>),
}

impl Supervisor<'_> {
    fn run(&mut self, notices: Receiver<Notice>) -> Result<Summary, Error> {
        let mut notices = Some(notices);
        let mut resume: (Option<Checkpoint>, Vec<Torn>) = (None, Vec::new());
        let mut backoff = FIRST_BACKOFF;
        loop {
            let (checkpoint, skipped) = std::mem::take(&mut resume);
            let (ending, at_limit) = self.attempt(checkpoint, skipped, &mut notices)?;
            match self.next(ending, at_limit) {
                Next::Finish(outcome, words) => {
                    let attempts = std::mem::take(&mut self.attempts);
                    return Ok(Summary { code: outcome.code(), outcome, words, attempts });
                }
                Next::Restart(checkpoint, skipped) => {
                    let was_short = self.attempts.last().is_some_and(|attempt| attempt.seconds < SHORT_ATTEMPT);
                    std::thread::sleep(backoff);
                    backoff = if was_short { (backoff * 2).min(LONGEST_BACKOFF) } else { FIRST_BACKOFF };
                    resume = (checkpoint, skipped);
                }
            }
        }
    }

    /// Starts the program once, and sees it to its end; says whether it was ended because of the limit.
    fn attempt(
        &mut self,
        resume: Option<Checkpoint>,
        skipped: Vec<Torn>,
        notices: &mut Option<Receiver<Notice>>,
    ) -> Result<(Ending, Option<Reached>), Error> {
        let number = self.attempts.len() as u32 + 1;
        let pid = self.start(resume.as_ref(), notices)?;
        self.pace.restart();
        self.attempts.push(Attempt {
            number,
            pid,
            resumed_from: resume.map(|checkpoint| checkpoint.path),
            skipped,
            ..Attempt::default()
        });
        // Taken out for the attempt, so that it can be lent to others.
        let mut live = self.live.take().unwrap_or_else(|| unreachable!("made by start"));
        let result = self.follow(&mut live);
        self.live = Some(live);
        Ok(result)
    }

    fn start(&mut self, resume: Option<&Checkpoint>, notices: &mut Option<Receiver<Notice>>) -> Result<u32, Error> {
        let orders = self.orders;
        let mut environment: Vec<(&str, OsString)> = Vec::new();
        environment.extend(self.channel.as_ref().map(|channel| (ENVIRONMENT, channel.path().as_os_str().to_owned())));
        environment.extend(resume.map(|checkpoint| (RESUME, checkpoint.path.clone().into_os_string())));
        let before = orders.fence.as_ref().map_or(&[][..], Fence::words_before);
        let words_after = match (resume, &orders.resume_with) {
            (Some(checkpoint), Some(template)) => resume_words(template, &checkpoint.path),
            _ => Vec::new(),
        };
        let words = [before, &orders.command, &words_after].concat();
        let failed = |error| Error::Start(orders.command.first().cloned().unwrap_or_default(), error);
        let group = orders.fence.as_ref().map(Fence::entrance).transpose().map_err(failed)?.flatten();
        let what = Launch { words: &words, environment: &environment, stage: &orders.stage, group };
        let launched = launch(what, &self.sender).map_err(failed)?;
        let pid = launched.pid;
        let sampler = Sampler::of(pid).map_err(|error| Error::Watch(pid, error))?;
        match (&mut self.live, notices.take()) {
            (Some(live), _) => {
                // A trace that cannot be written is told at the end.
                drop(live.watch.restarted(sampler));
            }
            (None, Some(notices)) => {
                let origin = origin(&sampler, orders.interval);
                let recorder = Recorder::create(&orders.trace, orders.facts.clone(), &origin)
                    .map_err(|error| Error::Trace(orders.trace.clone(), error))?;
                let watch = Watch::new(sampler, recorder, orders.step_pattern.clone());
                self.live = Some(Live::new(watch, notices, orders.interval));
            }
            (None, None) => unreachable!("the notices go into the first watch"),
        }
        launched.follow(self.sender.clone());
        Ok(pid)
    }

    /// Follows the program until it and its children have ended.
    fn follow(&mut self, live: &mut Live) -> (Ending, Option<Reached>) {
        let mut guard = Guard::new(live.watch.elapsed().as_secs_f64());
        if self.saves.is_none() {
            self.saves = self.folder.as_deref().map(|folder| Saves::of(folder, self.sender.clone()));
        }
        let ending = loop {
            // The recorder keeps what it cannot write to itself, so there is no error to act on.
            let Ok(Some(happening)) = live.next(None) else { continue };
            let asked = self.observer.happened(&happening, live, &guard.words);
            match happening {
                Happening::Sampled => self.sampled(live, &mut guard),
                Happening::Printed(_) => self.stepped(live),
                Happening::Told(message) => {
                    self.stepped(live);
                    if self.folder.is_none()
                        && let Some(folder) = message.path.as_deref().and_then(Path::parent)
                    {
                        self.folder = Some(folder.to_path_buf());
                        self.saves = Some(Saves::of(folder, self.sender.clone()));
                    }
                }
                Happening::Ended(ending) => break ending,
                Happening::Asked(stop) => self.asked(stop, live, &mut guard),
                Happening::Woken => self.woken(live, &mut guard),
                Happening::Gone => {}
            }
            if let Some(stop) = asked {
                self.asked(stop, live, &mut guard);
            }
        };
        if let Some(saves) = &mut self.saves {
            saves.forget_unfinished();
        }
        // An event that cannot be written is no reason to leave children behind.
        drop(live.watch.event(EventKind::Exit));
        self.clear(live, guard.reached.is_some() || guard.was_asked);
        self.settle_accounts(live, &guard, ending);
        (ending, guard.reached)
    }

    /// Takes in the step that the program told.
    fn stepped(&mut self, live: &Live) {
        let Some(step) = live.watch.recorder().step() else { return };
        self.pace.step(step, live.watch.elapsed().as_secs_f64());
        if let Some(attempt) = self.attempts.last_mut() {
            attempt.first_step.get_or_insert(step);
            attempt.last_step = Some(step);
        }
    }

    /// Looks at the new sample and does what must be done.
    fn sampled(&mut self, live: &mut Live, guard: &mut Guard) {
        let moment = self.moment(live);
        if let Some(attempt) = self.attempts.last_mut() {
            attempt.highest_bytes = attempt.highest_bytes.max(moment.held);
        }
        if let Some(saves) = &mut self.saves {
            saves.holds(moment.held);
        }
        let completed = self.look_for_saves(live, guard, moment);
        if !self.is_saving() {
            self.pace.sample(moment, guard.pause_s);
        }
        match guard.phase {
            Phase::Running => self.guard_running(live, guard, moment, completed),
            Phase::Waiting if completed => self.end(live, guard),
            Phase::Waiting => {}
            Phase::Saving(_) => self.guard_saving(live, guard, completed),
            Phase::Ending { .. } => self.guard_ending(live, guard),
        }
        let pause = self.pause(guard, moment);
        live.hurry(pause);
        guard.pause_s = pause.as_secs_f64();
        self.tell_state(live, guard, moment);
    }

    /// A file was made or closed: a checkpoint may have become complete, and then every moment counts.
    fn woken(&mut self, live: &mut Live, guard: &mut Guard) {
        let moment = self.moment(live);
        if !self.look_for_saves(live, guard, moment) {
            return;
        }
        match guard.phase {
            Phase::Running => self.guard_running(live, guard, moment, true),
            Phase::Waiting => self.end(live, guard),
            Phase::Saving(_) => self.guard_saving(live, guard, true),
            Phase::Ending { .. } => {}
        }
    }

    /// The run as the last sample saw it.
    fn moment(&self, live: &Live) -> Moment {
        let held = held(live.watch.last());
        Moment { time_s: live.watch.elapsed().as_secs_f64(), held, limit: self.limit(live, held) }
    }

    fn is_saving(&self) -> bool {
        self.saves.as_ref().is_some_and(Saves::is_saving)
    }

    /// Looks at the checkpoints; true if one was completed.
    fn look_for_saves(&mut self, live: &mut Live, guard: &mut Guard, moment: Moment) -> bool {
        let Some(saves) = &mut self.saves else { return false };
        let processes = &live.watch.tree().processes;
        let writers = || processes.iter().flat_map(|process| open_for_writing(process.identity.pid)).collect();
        let saved = saves.look(moment.time_s, writers);
        if let Phase::Saving(saving) = &mut guard.phase
            && !saving.has_begun
            && (saves.is_saving() || !saved.is_empty())
        {
            saving.has_begun = true;
            self.pace.reaction(saving.since.elapsed().as_secs_f64());
        }
        let is_complete = !saved.is_empty();
        for Saved { checkpoint, seconds, bytes } in saved {
            self.pace.save(seconds, bytes, moment.held);
            let name = checkpoint.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            self.observer.say(&format!("{name} is complete ({}, {seconds:.1} s)", Bytes(checkpoint.size())));
            // A program on the event channel tells it itself.
            if guard.method != Method::Channel {
                drop(live.watch.event(EventKind::Checkpoint));
            }
            guard.newest = Some(checkpoint);
        }
        is_complete
    }

    fn guard_running(&mut self, live: &mut Live, guard: &mut Guard, moment: Moment, completed: bool) {
        if Instant::now() >= guard.method_due {
            self.find_method(live, guard);
        }
        // It is about to end by itself.
        if self.is_at_its_end(live) {
            return;
        }
        let rules = Rules { stop_at: self.orders.stop_at, interval_s: guard.pause_s };
        let facts = RunFacts { memory_limit: Some(Bytes(moment.limit)), ..self.orders.facts.clone() };
        let watch = &mut live.watch;
        let judge = || Outlook::of(watch.judge_now(&facts));
        let reason = if completed && !guard.can_save_on_request() {
            is_last_chance(moment, &self.pace, rules, judge)
        } else {
            decide(moment, &self.pace, rules, judge)
        };
        let Some(reason) = reason else { return };
        // A handler may have been set, or a connection closed, since it was last looked at.
        self.find_method(live, guard);
        let must_end = matches!(reason, Reason::LastLine { .. });
        if guard.can_save_on_request() {
            self.reach(guard, &reason, Reached::Asked);
            self.ask_to_save(guard);
        } else if completed {
            self.reach(guard, &reason, Reached::JustSaved);
            self.end(live, guard);
        } else if must_end && (!self.is_saving() || moment.held >= moment.limit) {
            self.reach(guard, &reason, Reached::Unsaved);
            self.end(live, guard);
        }
    }

    fn reach(&mut self, guard: &mut Guard, reason: &Reason, how: Reached) {
        let words = reason.words();
        self.observer.say(&match how {
            Reached::Asked => format!("stopping: {words}"),
            Reached::JustSaved => {
                format!("stopping just after a checkpoint: {words}")
            }
            Reached::Unsaved => format!("ending it without a checkpoint: {words}"),
        });
        guard.reached = Some(how);
        guard.stop_asked = Some(Instant::now());
        if let Some(attempt) = self.attempts.last_mut() {
            attempt.stopped_because = Some(words);
        }
    }

    /// Looks for the best way to stop, now and then, and says it when it is known or changes.
    fn find_method(&mut self, live: &Live, guard: &mut Guard) {
        let has_begun = self.pace.has_begun() || guard.began.elapsed() >= SILENT_START;
        if !has_begun {
            return;
        }
        guard.method_due = Instant::now() + METHOD_PAUSE;
        let processes = &live.watch.tree().processes;
        let method = Method::find(self.channel.as_ref(), processes, self.saves.is_some());
        if method != guard.method || guard.words.is_empty() {
            guard.method = method;
            guard.words = guard.method.words();
            self.observer.say(&format!("guard: {}", guard.words));
        }
    }

    fn ask_to_save(&mut self, guard: &mut Guard) {
        let is_signalled = match &guard.method {
            Method::Channel => {
                self.channel.as_ref().map(Channel::ask_to_stop);
                false
            }
            Method::Signal(pids) => {
                terminate(pids);
                true
            }
            Method::AfterCheckpoint | Method::None => false,
        };
        let now = Instant::now();
        guard.words = "asked for a checkpoint, waits until it is complete".into();
        guard.phase = Phase::Saving(Saving {
            since: now,
            deadline: now + self.orders.grace,
            is_signalled,
            has_begun: self.is_saving(),
            saved: None,
        });
    }

    fn guard_saving(&mut self, live: &mut Live, guard: &mut Guard, completed: bool) {
        let is_writing = self.is_saving();
        let Phase::Saving(saving) = &mut guard.phase else { return };
        let now = Instant::now();
        if completed {
            saving.saved = Some(now);
        }
        if let Some(saved) = saving.saved {
            if now - saved >= EXIT_PATIENCE.min(self.orders.grace) && !is_writing {
                self.observer.say("the checkpoint is complete but the program goes on: ending it");
                self.end(live, guard);
            }
            return;
        }
        // A save that is under way is given as long again.
        let patience = if is_writing { self.orders.grace } else { Duration::ZERO };
        if now < saving.deadline + patience {
            return;
        }
        if !saving.is_signalled
            && let Method::Signal(pids) = Method::find(None, &live.watch.tree().processes, true)
        {
            self.observer.say("no checkpoint came after the request over the event channel: sending SIGTERM");
            terminate(&pids);
            saving.is_signalled = true;
            saving.deadline = now + self.orders.grace;
            return;
        }
        let waited = now.duration_since(saving.since).as_secs();
        self.observer.say(&format!("no complete checkpoint after {waited} s: ending the program"));
        self.end(live, guard);
    }

    /// Ends everything: SIGTERM first, SIGKILL after a while.
    fn end(&mut self, live: &Live, guard: &mut Guard) {
        terminate(&everybody(live));
        guard.words = "ending what is left".into();
        guard.phase = Phase::Ending { since: Instant::now(), is_killed: false };
    }

    fn guard_ending(&mut self, live: &Live, guard: &mut Guard) {
        let Phase::Ending { since, is_killed } = &mut guard.phase else { return };
        if since.elapsed() >= TERM_PATIENCE {
            if !*is_killed {
                self.observer.say("it did not end on SIGTERM: killing it");
            }
            *is_killed = true;
            kill(&everybody(live));
        }
    }

    /// Somebody asked us to end: once means with a checkpoint, twice means now.
    fn asked(&mut self, stop: Stop, live: &mut Live, guard: &mut Guard) {
        if stop == Stop::HungUp {
            return self.observer.say("the terminal has gone; the guard goes on");
        }
        if self.was_asked {
            self.observer.say("asked again: ending it now");
            return self.end(live, guard);
        }
        self.was_asked = true;
        guard.was_asked = true;
        if !matches!(guard.phase, Phase::Running) {
            return;
        }
        guard.stop_asked = Some(Instant::now());
        guard.method = Method::find(self.channel.as_ref(), &live.watch.tree().processes, self.saves.is_some());
        match guard.method {
            Method::Channel | Method::Signal(_) => {
                self.observer.say("asked to stop: the program is asked to save first; once more ends it now");
                self.ask_to_save(guard);
            }
            Method::AfterCheckpoint if guard.newest.is_some() => {
                self.observer.say("asked to stop: waiting for the next periodic checkpoint; once more ends it now");
                guard.words = "waits for the next periodic checkpoint, then ends the program".into();
                guard.phase = Phase::Waiting;
            }
            Method::AfterCheckpoint | Method::None => {
                self.observer.say("asked to stop: the program cannot save on request, so the signal is passed on");
                if let Some(attempt) = self.attempts.last() {
                    pass_stop_on(attempt.pid, stop);
                }
            }
        }
    }

    /// Waits for what the program left behind, and ends it.
    fn clear(&mut self, live: &mut Live, at_once: bool) {
        let begin = Instant::now();
        let patience = if at_once { Duration::from_millis(500) } else { LINGER };
        let mut has_asked = false;
        loop {
            reap();
            if !live.watch.sample().unwrap_or(false) {
                return;
            }
            let waited = begin.elapsed();
            if waited >= patience + TERM_PATIENCE {
                kill(&everybody(live));
            } else if waited >= patience && !has_asked {
                has_asked = true;
                let left = everybody(live);
                self.observer.say(&format!(
                    "ending {} that the program left behind",
                    counted(left.len(), "process", "processes")
                ));
                terminate(&left);
            }
            std::thread::sleep(SHORTEST_PAUSE);
        }
    }

    /// Writes down what the attempt cost and gave.
    fn settle_accounts(&mut self, live: &Live, guard: &Guard, ending: Ending) {
        let newest = self.folder.as_deref().and_then(|folder| newest_complete(folder).ok()?.complete);
        let Some(attempt) = self.attempts.last_mut() else { return };
        attempt.seconds = (live.watch.elapsed().as_secs_f64() * 1000.0).round() / 1000.0 - guard.began_s;
        attempt.ending = match (&guard.phase, ending) {
            (Phase::Ending { .. }, Ending::Signal(signal)) => format!("was ended by the guard (signal {signal})"),
            _ => ending.words(),
        };
        attempt.stopping_seconds = guard.stop_asked.map(|asked| asked.elapsed().as_secs_f64());
        attempt.checkpoint_step = newest.as_ref().and_then(|checkpoint| checkpoint.step);
        attempt.checkpoint = newest.map(|checkpoint| checkpoint.path);
        attempt.lost_steps = match (attempt.last_step, attempt.checkpoint_step) {
            (Some(last), Some(kept)) => Some((last - kept as f64).max(0.0)),
            (last, None) => last,
            _ => None,
        };
    }

    /// Decides what follows an attempt.
    fn next(&mut self, ending: Ending, reached: Option<Reached>) -> Next {
        let Some(attempt) = self.attempts.last() else {
            return Next::Finish(Outcome::Own { code: ending.code() }, ending.words());
        };
        let was_killed = ending == Ending::Signal(9);
        let is_done = self.live.as_ref().is_some_and(|live| self.is_at_its_end(live));
        if self.was_asked || (reached.is_none() && !was_killed) || (is_done && ending == Ending::Code(0)) {
            return Next::Finish(Outcome::Own { code: ending.code() }, format!("the program {}", ending.words()));
        }
        let kept = match (&attempt.checkpoint, attempt.lost_steps) {
            (None, _) => "there is no complete checkpoint".to_string(),
            (Some(path), Some(lost)) if lost > 0.0 => {
                format!("{} is complete, {lost:.0} steps after it are lost", path.display())
            }
            (Some(path), _) => format!("{} is complete, nothing is lost", path.display()),
        };
        let is_saved = attempt.checkpoint.is_some() && attempt.lost_steps.is_none_or(|lost| lost == 0.0);
        let is_kept = is_saved || (reached == Some(Reached::JustSaved) && attempt.checkpoint.is_some());
        if self.orders.on_limit == OnLimit::Stop {
            return match (was_killed && reached.is_none(), is_kept) {
                (false, true) => Next::Finish(Outcome::StoppedWithCheckpoint, format!("stopped at the limit: {kept}")),
                (true, _) => Next::Finish(Outcome::CouldNotSave, format!("the program {}; {kept}", ending.words())),
                (false, false) => Next::Finish(Outcome::CouldNotSave, format!("stopped at the limit: {kept}")),
            };
        }
        self.restart(&kept)
    }

    fn restart(&mut self, kept: &str) -> Next {
        let used = self.attempts.len() as u32 - 1;
        if used >= self.orders.max_restarts {
            let words = format!("stopped at the limit again, and all {used} restarts are used up: {kept}");
            return Next::Finish(Outcome::BudgetSpent, words);
        }
        let (newest, torn) = match self.folder.as_deref().map(newest_complete) {
            Some(Ok(found)) => (found.complete, found.torn),
            _ => (None, Vec::new()),
        };
        let last = self.attempts.last();
        // The first attempt may have begun from nothing; from then on each must bring a newer checkpoint.
        let is_stuck = self.attempts.len() > 1 && {
            let before = last.and_then(|attempt| attempt.resumed_from.as_deref());
            before == newest.as_ref().map(|checkpoint| checkpoint.path.as_path())
        };
        if is_stuck {
            let words = format!("no progress was made since the last restart, so another would not help: {kept}");
            return Next::Finish(Outcome::BudgetSpent, words);
        }
        let torn: Vec<Torn> = torn.into_iter().map(|(checkpoint, why)| Torn { path: checkpoint.path, why }).collect();
        for torn in &torn {
            let aside = set_aside(&torn.path).map_or(String::new(), |aside| format!(" (now {})", aside.display()));
            self.observer.say(&format!("skipping {}{aside}: {}", torn.path.display(), torn.why));
        }
        let from = newest.as_ref().map_or("the beginning".into(), |checkpoint| checkpoint.path.display().to_string());
        self.observer.say(&format!("restart {} of {}: going on from {from}", used + 1, self.orders.max_restarts));
        Next::Restart(newest, torn)
    }

    /// Whether the last step has been done, as far as that is known.
    fn is_at_its_end(&self, live: &Live) -> bool {
        let last = self.attempts.last().and_then(|attempt| attempt.last_step);
        live.watch.recorder().facts().total_steps.zip(last).is_some_and(|(total, last)| last >= total as f64)
    }

    /// What the tree may hold: the smallest of what was asked for and what the control group and the machine have left.
    fn limit(&self, live: &Live, held: u64) -> u64 {
        let around = live.watch.tree().around.headroom.map(|headroom| held.saturating_add(headroom));
        let asked = self.orders.limit.map(|limit| limit.0);
        around.into_iter().chain(asked).min().unwrap_or(u64::MAX)
    }

    /// The pause until the next sample: the interval, or less where that would be too long.
    fn pause(&self, guard: &Guard, moment: Moment) -> Duration {
        let interval = self.orders.interval;
        if !matches!(guard.phase, Phase::Running) || self.is_saving() {
            return interval.min(SHORTEST_PAUSE);
        }
        let left = self.pace.time_to(moment.limit, moment).and_then(|left| Duration::try_from_secs_f64(left).ok());
        left.map_or(interval, |left| interval.min((left / LOOKS_BEFORE).max(SHORTEST_PAUSE)))
    }

    fn tell_state(&self, live: &mut Live, guard: &Guard, moment: Moment) {
        let Some(folder) = &self.orders.state else { return };
        let Some(attempt) = self.attempts.last() else { return };
        let facts = RunFacts { memory_limit: Some(Bytes(moment.limit)), ..self.orders.facts.clone() };
        let (step, total_steps) = (live.watch.recorder().step(), live.watch.recorder().facts().total_steps);
        let diagnosis = live.watch.verdict(&facts);
        let state = State {
            pid: std::process::id(),
            state: match guard.phase {
                Phase::Running => "running",
                Phase::Waiting => "waiting_for_checkpoint",
                Phase::Saving(_) => "saving",
                Phase::Ending { .. } => "ending",
            },
            guard: &guard.words,
            attempt: attempt.number,
            program_pid: attempt.pid,
            step,
            total_steps,
            held_bytes: moment.held,
            limit_bytes: (moment.limit < u64::MAX).then_some(moment.limit),
            verdict: diagnosis.map(|diagnosis| diagnosis.verdict.name()),
            summary: diagnosis.map(|diagnosis| diagnosis.summary.as_str()),
            checkpoint: guard.newest.as_ref().map(|checkpoint| checkpoint.path.as_path()),
            trace: &self.orders.trace,
            command: self.orders.command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        };
        // A full disk must not stop the guard; the next sample tries again.
        drop(folder.write("state.json", &state));
    }
}

/// How an attempt came to its end because of the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reached {
    /// It was asked to save.
    Asked,
    /// It was ended just after a periodic checkpoint.
    JustSaved,
    /// It had to be ended as it was.
    Unsaved,
}

/// The guard of one attempt.
struct Guard {
    phase: Phase,
    method: Method,
    method_due: Instant,
    /// What it does, in a sentence.
    words: String,
    newest: Option<Checkpoint>,
    began: Instant,
    began_s: f64,
    /// Seconds until the next sample.
    pause_s: f64,
    reached: Option<Reached>,
    stop_asked: Option<Instant>,
    was_asked: bool,
}

impl Guard {
    fn new(began_s: f64) -> Guard {
        Guard {
            phase: Phase::Running,
            method: Method::None,
            method_due: Instant::now(),
            words: String::new(),
            newest: None,
            began: Instant::now(),
            began_s,
            pause_s: 0.0,
            reached: None,
            stop_asked: None,
            was_asked: false,
        }
    }

    fn can_save_on_request(&self) -> bool {
        matches!(self.method, Method::Channel | Method::Signal(_))
    }
}

/// Renames a torn checkpoint: a program that looks for the newest one by itself must not find it, and one that saves into the
/// same folder again must not leave a mixture of both.
fn set_aside(torn: &Path) -> Option<PathBuf> {
    let name = torn.file_name()?.to_string_lossy();
    let free =
        (1..100).map(|number| torn.with_file_name(format!(".{name}.torn-{number}"))).find(|path| !path.exists())?;
    std::fs::rename(torn, &free).ok().map(|()| free)
}

/// What the kernel cannot take back from a tree.
pub fn held(sample: &Sample) -> u64 {
    [Quantity::Anon, Quantity::Shmem, Quantity::Swap].iter().filter_map(|&quantity| sample.get(quantity)).sum()
}

/// Where a trace comes from, for its header.
pub fn origin(sampler: &Sampler, interval: Duration) -> Vec<(String, String)> {
    vec![
        ("command".to_string(), sampler.root().command.clone()),
        ("process".to_string(), sampler.root().pid.to_string()),
        ("interval".to_string(), format!("{interval:?}")),
    ]
}

fn everybody(live: &Live) -> Vec<u32> {
    live.watch.tree().processes.iter().map(|process| process.identity.pid).collect()
}

/// Takes note of orphans that ended as our children.
fn reap() {
    while matches!(rustix::process::wait(rustix::process::WaitOptions::NOHANG), Ok(Some(_))) {}
}

fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

//! Guards one start of a program: from its launch to the end of everything that it started.
//!
//! The guard is in one of four phases: it lets the program run; it was asked to end a program that cannot save on request, and
//! waits for its next checkpoint; it has asked the program to save, and waits for a complete checkpoint; or it is ending
//! what is left.

mod accounts;
mod session;

use std::time::{Duration, Instant};

use garden_memory::{Bytes, EventKind, RunFacts, Sample};
use garden_probe::{Role, open_for_writing};

use crate::attempt::Attempt;
use crate::channel::Channel;
use crate::checkpoint::Checkpoint;
use crate::config::{OnWarning, Remark};
use crate::launch::Ending;
use crate::live::{Happening, Live};
use crate::method::{Method, Who, forward_warning, kill, terminate};
use crate::policy::{LAST_LINE, Moment, Outlook, Reason, Rules, at_last_line, decide, is_last_chance};
use crate::saves::{Look, Saved};
use crate::signals::{Stop, pass_stop_on};
use crate::state::State;

pub(crate) use accounts::Recovered;
pub(crate) use session::GuardSession;

/// A program that has saved is given this long to end by itself.
const EXIT_PATIENCE: Duration = Duration::from_secs(30);
/// What was told to end is killed after this time.
const TERM_PATIENCE: Duration = Duration::from_secs(3);
/// Children that outlive the program are given this long after a normal end, and hardly any time otherwise.
const LINGER: Duration = Duration::from_secs(10);
const SHORT_LINGER: Duration = Duration::from_millis(500);
/// How often the best way to stop is looked for.
const METHOD_PAUSE: Duration = Duration::from_secs(5);
/// A program that tells no steps is taken to train after this time.
const SILENT_START: Duration = Duration::from_secs(30);
/// The shortest pause between samples when memory is about to run out, or something is being saved.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
/// Samples that are taken at least before the limit would be reached.
const LOOKS_BEFORE: u32 = 20;
/// A save that is under way may take memory this far above the limit, as a share of it, before the program is ended.
const SAVE_MAY_REACH: f64 = 1.05;

/// How far a start may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// As far as the forecast says is safe.
    Forecast,
    /// To the limit itself: stopping it before brought no newer checkpoint.
    Limit,
}

/// Memory that is known by bounds only is measured if it may be above this share of the limit: below, nothing is decided by it.
const BOUNDS_MATTER: f64 = 0.5;

/// How an attempt came to its end because of the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reached {
    /// It was asked to save.
    Asked,
    /// It was ended just after a checkpoint.
    JustSaved,
    /// It had to be ended as it was.
    Unsaved,
    /// It held as much as it may before its first step.
    TooLarge,
}

/// What came of one start.
pub(crate) struct GuardedAttempt {
    pub attempt: Attempt,
    pub ending: Ending,
    pub reached: Option<Reached>,
    pub kept: Recovered,
    /// Whether the last step of the whole run has been done, as far as that is known.
    pub is_done: bool,
}

enum Phase {
    Running,
    Waiting,
    Saving(Saving),
    Ending { since: Instant, is_killed: bool },
}

/// A program that was asked to save.
struct Saving {
    deadline: Instant,
    /// Whether SIGTERM was sent.
    is_signalled: bool,
    /// Whether it has begun to save.
    has_begun: bool,
    /// When it had answered: a checkpoint was begun after the request, and is complete.
    answered: Option<Instant>,
}

/// The guard of one start.
pub(crate) struct Guard<'k, 'a> {
    session: &'k mut GuardSession<'a>,
    live: &'k mut Live,
    attempt: Attempt,
    reach: Reach,
    phase: Phase,
    method: Method,
    method_due: Instant,
    /// What it does, in a sentence; empty until that is known.
    words: String,
    /// The newest checkpoint of this start.
    newest: Option<Checkpoint>,
    /// Whether the program told of a checkpoint after it was asked for one.
    has_told: bool,
    /// How the first process ended, while others go on.
    ended: Option<Ending>,
    began: Instant,
    /// Until the next sample.
    pause: Duration,
    reached: Option<Reached>,
    /// When the program was asked to save or ended.
    asked_at: Option<Asked>,
}

/// A moment on our clock and the watch's.
#[derive(Clone, Copy)]
struct Asked {
    at: Instant,
    time_s: f64,
}

impl<'k, 'a> Guard<'k, 'a> {
    pub(crate) fn new(
        session: &'k mut GuardSession<'a>,
        live: &'k mut Live,
        attempt: Attempt,
        reach: Reach,
    ) -> Guard<'k, 'a> {
        session.pace.restart();
        let now = Instant::now();
        Guard {
            session,
            live,
            attempt,
            reach,
            phase: Phase::Running,
            method: Method::None,
            method_due: now,
            words: String::new(),
            newest: None,
            has_told: false,
            ended: None,
            began: now,
            pause: Duration::ZERO,
            reached: None,
            asked_at: None,
        }
    }

    /// Follows the program until it and its children have ended.
    pub(crate) fn follow(mut self) -> GuardedAttempt {
        let ending = loop {
            // The recorder keeps what it cannot write to itself, so there is no error to act on.
            let Ok(Some(happening)) = self.live.next(None) else { continue };
            let wish = self.session.observer.happened(&happening, self.live, &self.words);
            match happening {
                Happening::Sampled => self.sampled(),
                Happening::Printed(_) => self.stepped(),
                Happening::Told(message) => {
                    self.stepped();
                    if let Some(checkpoint) = &message.path {
                        self.session.learn_checkpoint(checkpoint);
                    }
                    self.has_told |= message.event == Some(EventKind::Checkpoint) && self.asked_at.is_some();
                    if message.at_limit {
                        self.ends_itself();
                    }
                }
                Happening::Ended(ending) if self.goes_on() => self.ended = Some(ending),
                Happening::Ended(ending) => break ending,
                Happening::Asked(stop) => self.asked(stop),
                Happening::Woken => self.woken(),
                Happening::Gone => {
                    if let Some(ending) = self.ended {
                        break ending;
                    }
                }
            }
            if let Some(stop) = wish {
                self.asked(stop);
            }
        };
        // An event that cannot be written is no reason to leave children behind.
        drop(self.live.watch.event(EventKind::Exit));
        let moment = self.moment();
        let was_full = moment.held as f64 >= LAST_LINE * moment.limit as f64;
        if matches!(ending, Ending::Signal(9) | Ending::Code(137)) && was_full {
            self.session.pace.outgrew();
        }
        self.clear();
        // What it saved last may have become complete with its end.
        self.look_for_saves(moment, true);
        let kept = self.settle_accounts(ending);
        let is_done = self.is_at_its_end();
        GuardedAttempt { attempt: self.attempt, ending, reached: self.reached, kept, is_done }
    }

    /// Whether training goes on although the process that was started has ended, as with a program that becomes a daemon.
    fn goes_on(&mut self) -> bool {
        if self.reached.is_some() || self.session.asked.is_some() || !self.live.watch.sample().unwrap_or(false) {
            return false;
        }
        let training = self.live.watch.tree().processes.iter().find(|process| process.role == Role::Training);
        let Some(pid) = training.map(|process| process.identity.pid) else { return false };
        self.say(&format!(
            "the process that was started has ended, but process {pid} is still running: it is guarded until it ends"
        ));
        true
    }

    /// Takes in the step that the program told.
    fn stepped(&mut self) {
        if self.live.watch.has_told_training() {
            self.session.pace.begin();
        }
        let Some(step) = self.live.watch.recorder().step() else { return };
        self.session.pace.step(step, self.live.watch.elapsed().as_secs_f64());
        self.attempt.first_step.get_or_insert(step);
        self.attempt.last_step = Some(step);
    }

    /// Looks at the new sample and does what must be done.
    fn sampled(&mut self) {
        let mut moment = self.moment();
        if self.live.watch.last().held_at_most() as f64 > BOUNDS_MATTER * moment.limit as f64 {
            // The recorder keeps what it cannot write to itself.
            drop(self.live.watch.measure());
            moment = self.moment();
        }
        self.attempt.highest_bytes = self.attempt.highest_bytes.max(moment.held);
        if let Some(saves) = &mut self.session.saves {
            saves.holds(moment.time_s, moment.held);
        }
        if self.began.elapsed() >= SILENT_START {
            self.session.pace.begin();
        }
        self.reap();
        let completed = self.look_for_saves(moment, false);
        if self.session.is_saving() {
            self.session.pace.saving();
        } else {
            self.session.pace.sample(moment, self.pause.as_secs_f64());
        }
        // The forecast reaches to the next sample, so that must be known first; what is done may call for an earlier one.
        self.pause = self.next_pause(moment);
        self.act(moment, completed);
        self.pause = self.next_pause(moment);
        self.live.hurry(self.pause);
        self.tell_state(moment);
    }

    /// A file was made or closed: a checkpoint may have become complete, and then every moment counts.
    fn woken(&mut self) {
        let moment = self.moment();
        if self.look_for_saves(moment, false) {
            self.act(moment, true);
        }
    }

    fn act(&mut self, moment: Moment, completed: bool) {
        match self.phase {
            Phase::Running => self.guard_running(moment, completed),
            Phase::Waiting if completed => self.end(),
            Phase::Waiting => self.guard_waiting(moment),
            Phase::Saving(_) => self.guard_saving(moment, completed),
            Phase::Ending { .. } => self.guard_ending(moment),
        }
    }

    /// The run as the last sample saw it.
    fn moment(&self) -> Moment {
        let held = self.live.watch.last().held();
        // The smallest of what was asked for and what the control group and the machine have left.
        let around = self.live.watch.tree().around.headroom.map(|headroom| held.saturating_add(headroom));
        let asked = self.session.config.limit.map(|limit| limit.0);
        let limit = around.into_iter().chain(asked).min().unwrap_or(u64::MAX);
        let moment = Moment::new(self.live.watch.elapsed().as_secs_f64(), held, limit);
        match (self.reach, &self.session.config.fence) {
            (Reach::Limit, Some(_)) => Moment { last_line: u64::MAX, ..moment },
            // The machine's own last memory is not there to be used up.
            (Reach::Limit, None) if asked == Some(limit) => Moment { last_line: limit, ..moment },
            _ => moment,
        }
    }

    /// Looks at the checkpoints; true if one was completed.
    fn look_for_saves(&mut self, moment: Moment, is_last: bool) -> bool {
        let Some(saves) = &mut self.session.saves else { return false };
        let processes = &self.live.watch.tree().processes;
        let writers = || processes.iter().flat_map(|process| open_for_writing(process.identity.pid)).collect();
        let saved = saves.look(
            Look {
                time_s: moment.time_s,
                step: self.attempt.last_step,
                is_urgent: at_last_line(moment).is_some(),
                is_last,
            },
            writers,
        );
        if let (Phase::Saving(saving), Some(asked)) = (&mut self.phase, self.asked_at) {
            if !saving.has_begun && (saves.is_saving() || !saved.is_empty()) {
                saving.has_begun = true;
                self.session.pace.reaction(asked.at.elapsed().as_secs_f64());
            }
            // One that was under way when it was asked may be a periodic one; another will follow.
            if saved.iter().any(|saved| saved.began_s >= asked.time_s) {
                saving.answered.get_or_insert_with(Instant::now);
            }
        }
        let is_complete = !saved.is_empty();
        for Saved { checkpoint, cost, .. } in saved {
            self.session.pace.save(cost, moment.held);
            let name = checkpoint.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            self.say(&format!("{name} is complete ({}, {:.1} s)", Bytes(checkpoint.size()), cost.seconds));
            // A program on the event channel tells it itself, and behind the end of the program nothing is written.
            if self.method != Method::Channel && !is_last {
                drop(self.live.watch.event(EventKind::Checkpoint));
            }
            self.newest = Some(checkpoint);
        }
        is_complete
    }

    fn guard_running(&mut self, moment: Moment, completed: bool) {
        let has_begun = self.session.pace.has_begun();
        if has_begun && Instant::now() >= self.method_due {
            self.find_method();
        }
        let Some(reason) = self.reason_to_stop(moment, completed) else { return };
        // A handler may have been set, or a connection closed, since it was last looked at.
        self.find_method();
        if self.method.saves_on_request() {
            self.reach(&reason, Reached::Asked);
            self.ask_to_save();
        } else if completed {
            self.reach(&reason, Reached::JustSaved);
            self.end();
        } else if matches!(reason, Reason::LastLine { .. })
            && (!self.session.is_saving() || moment.held >= moment.limit)
        {
            self.reach(&reason, if has_begun { Reached::Unsaved } else { Reached::TooLarge });
            self.end();
        }
    }

    fn reason_to_stop(&mut self, moment: Moment, completed: bool) -> Option<Reason> {
        // Memory that is taken for a save goes back; and after the last step the program ends by itself.
        if (self.session.is_saving() && !completed) || self.is_at_its_end() || self.reach == Reach::Limit {
            return at_last_line(moment);
        }
        let config = self.session.config;
        let rules = Rules { stop_at: config.stop_at, interval_s: self.pause.as_secs_f64() };
        let facts = RunFacts { memory_limit: Some(Bytes(moment.limit)), ..config.facts.clone() };
        let watch = &mut self.live.watch;
        let judge = || Outlook::of(watch.judge_now(&facts));
        if completed && !self.method.saves_on_request() {
            is_last_chance(moment, &self.session.pace, rules, judge)
        } else {
            decide(moment, &self.session.pace, rules, judge)
        }
    }

    /// The program has found between two of our samples that it holds too much: it saves and ends as if we had asked.
    fn ends_itself(&mut self) {
        if !matches!(self.phase, Phase::Running) || self.session.asked.is_some() {
            return;
        }
        // The recorder keeps what it cannot write to itself.
        drop(self.live.watch.sample());
        let moment = self.moment();
        self.attempt.highest_bytes = self.attempt.highest_bytes.max(moment.held);
        self.find_method();
        self.reach(&Reason::Told { held: moment.held, limit: moment.limit }, Reached::Asked);
        self.ask_to_save();
    }

    /// Asked to end after the next periodic checkpoint: the limit still holds.
    fn guard_waiting(&mut self, moment: Moment) {
        if let Some(reason) = at_last_line(moment).filter(|_| !self.session.is_saving()) {
            self.reach(&reason, Reached::Unsaved);
            self.end();
        }
    }

    fn reach(&mut self, reason: &Reason, how: Reached) {
        let words = reason.words();
        self.say(&match how {
            Reached::Asked => format!("stopping: {words}"),
            Reached::JustSaved => format!("stopping just after a checkpoint: {words}"),
            Reached::Unsaved => format!("ending it without a checkpoint: {words}"),
            Reached::TooLarge => format!("ending it: {words}, before its first step; the limit is too small for it"),
        });
        self.reached = Some(how);
        match how {
            Reached::Asked | Reached::JustSaved => self.session.pace.stopped(),
            Reached::Unsaved | Reached::TooLarge => self.session.pace.outgrew(),
        }
        self.asked_now();
        self.attempt.stopped_because = Some(words);
    }

    fn asked_now(&mut self) {
        let time_s = self.live.watch.elapsed().as_secs_f64();
        self.asked_at = Some(Asked { at: Instant::now(), time_s });
    }

    /// Looks for the best way to stop, and says it when it is known or changes.
    fn find_method(&mut self) {
        self.method_due = Instant::now() + METHOD_PAUSE;
        let method = self.best_method();
        if method != self.method || self.words.is_empty() {
            self.words = method.words();
            self.session.observer.say(&Remark::Method(self.words.clone()));
            self.method = method;
        }
    }

    fn best_method(&self) -> Method {
        let processes = &self.live.watch.tree().processes;
        Method::find(self.session.channel.as_ref(), processes, self.session.saves.is_some())
    }

    fn ask_to_save(&mut self) {
        match &self.method {
            Method::Channel => drop(self.session.channel.as_ref().map(Channel::ask_to_stop)),
            Method::Signal(pids) => terminate(pids),
            Method::AfterCheckpoint | Method::None => {}
        }
        self.words = "asked for a checkpoint; waiting until it is complete".into();
        self.phase = Phase::Saving(Saving {
            deadline: Instant::now() + self.session.config.grace,
            is_signalled: matches!(self.method, Method::Signal(_)),
            has_begun: self.session.is_saving(),
            answered: None,
        });
    }

    fn guard_saving(&mut self, moment: Moment, completed: bool) {
        let (now, grace, is_writing) = (Instant::now(), self.session.config.grace, self.session.is_saving());
        let is_full = at_last_line(moment).is_some();
        let Phase::Saving(saving) = &mut self.phase else { return };
        if let Some(answered) = saving.answered {
            if !is_writing && (is_full || now - answered >= EXIT_PATIENCE.min(grace)) {
                self.say("the checkpoint is complete but the program is still running: ending it");
                self.end_saved(completed);
            }
            return;
        }
        if is_full && completed {
            self.say("memory is used up, and a checkpoint is complete: ending it");
            return self.end_saved(completed);
        }
        // A save that is under way is given as long again.
        let is_late = now >= saving.deadline + if is_writing { grace } else { Duration::ZERO };
        if !is_late && !is_full {
            return;
        }
        if !saving.is_signalled
            && let Method::Signal(processes) = Method::find(None, &self.live.watch.tree().processes, true)
        {
            terminate(&processes);
            saving.is_signalled = true;
            saving.deadline = now + grace;
            return self.say("no checkpoint after the request over the event channel: sent SIGTERM");
        }
        if is_late {
            self.say("no complete checkpoint within the grace time: ending the program");
            self.end();
        } else if !is_writing && moment.held >= moment.limit {
            self.say("the limit is reached and nothing is being saved: ending the program");
            self.end();
        } else if moment.held as f64 >= SAVE_MAY_REACH * moment.limit as f64 {
            self.say("saving takes more memory than there is: ending the program");
            self.end();
        }
    }

    /// Ends a program that was asked to save and has; one that did so a moment ago was stopped in time.
    fn end_saved(&mut self, is_just_saved: bool) {
        if is_just_saved && self.reached == Some(Reached::Asked) {
            self.reached = Some(Reached::JustSaved);
        }
        self.end();
    }

    /// Ends everything: SIGTERM first, SIGKILL after a while, or as soon as what is added meanwhile would pass the limit.
    fn end(&mut self) {
        terminate(&self.everybody());
        self.words = "ending the processes that are left".into();
        self.phase = Phase::Ending { since: Instant::now(), is_killed: false };
    }

    fn guard_ending(&mut self, moment: Moment) {
        let everybody = self.everybody();
        let left = self.session.pace.time_to(moment.limit, moment);
        let left = left.and_then(|left| Duration::try_from_secs_f64(left).ok()).unwrap_or(TERM_PATIENCE);
        let Phase::Ending { since, is_killed } = &mut self.phase else { return };
        if since.elapsed() < TERM_PATIENCE && (left > SHORTEST_PAUSE || since.elapsed() < SHORTEST_PAUSE) {
            return;
        }
        kill(&everybody);
        if !std::mem::replace(is_killed, true) {
            self.say("it did not end on SIGTERM: killed");
        }
    }

    /// Somebody asked us to end: once means with a checkpoint, twice means now.
    fn asked(&mut self, stop: Stop) {
        if stop == Stop::HungUp {
            return self.say("the terminal is gone; the guard keeps watching");
        }
        if self.is_forwarded(stop) {
            return;
        }
        if self.session.asked.is_some() {
            self.session.is_hurried = true;
            self.say("asked again: ending it now");
            return self.end();
        }
        self.session.asked = Some(stop);
        if !matches!(self.phase, Phase::Running) {
            return self.say("already stopping; Ctrl-C or SIGTERM again ends it now");
        }
        self.asked_now();
        self.method = self.best_method();
        match self.method {
            Method::Channel | Method::Signal(_) => {
                self.say("saving a checkpoint before stopping; Ctrl-C or SIGTERM again ends it now");
                self.ask_to_save();
            }
            Method::AfterCheckpoint if self.newest.is_some() => {
                self.say("stopping after the next periodic checkpoint; Ctrl-C or SIGTERM again ends it now");
                self.words = "waiting for the next periodic checkpoint, then ending the program".into();
                self.phase = Phase::Waiting;
            }
            Method::AfterCheckpoint | Method::None => {
                self.say(match stop {
                    Stop::Warned(_) => "asked to stop: the program cannot save on request, so it gets SIGTERM",
                    _ => "asked to stop: the program cannot save on request, so the signal is passed on",
                });
                pass_stop_on(self.attempt.pid, stop);
            }
        }
    }

    /// Passes a scheduler's warning on to a program that catches it, and so has plans of its own.
    fn is_forwarded(&mut self, stop: Stop) -> bool {
        let Stop::Warned(warning) = stop else { return false };
        let is_left_alone = matches!(self.phase, Phase::Running) && self.session.asked.is_none();
        if !is_left_alone || self.session.config.on_warning == OnWarning::Stop {
            return false;
        }
        let processes = &self.live.watch.tree().processes;
        let Some(heard) = forward_warning(processes, self.attempt.pid, warning) else { return false };
        let names: Vec<String> = heard.iter().map(ToString::to_string).collect();
        if !names.is_empty() {
            self.say(&format!(
                "{} is left to the program, which catches it: process {}",
                warning.name(),
                names.join(" and ")
            ));
        }
        self.session.was_forwarded = true;
        true
    }

    /// Waits for what the program left behind, and ends it.
    fn clear(&mut self) {
        let is_hurried = self.reached.is_some() || self.session.asked.is_some();
        let patience = if is_hurried { SHORT_LINGER } else { LINGER };
        let begin = Instant::now();
        let mut was_told = false;
        loop {
            self.reap();
            reap_all();
            if !self.live.watch.sample().unwrap_or(false) {
                return;
            }
            let left = self.everybody();
            if begin.elapsed() >= patience + TERM_PATIENCE {
                kill(&left);
            } else if begin.elapsed() >= patience && !was_told {
                was_told = true;
                let count = if left.len() == 1 { "a process".into() } else { format!("{} processes", left.len()) };
                self.say(&format!("ending {count} that the program left behind"));
                terminate(&left);
            }
            std::thread::sleep(SHORTEST_PAUSE);
        }
    }

    fn is_at_its_end(&self) -> bool {
        let total = self.live.watch.recorder().facts().total_steps;
        total.zip(self.attempt.last_step).is_some_and(|(total, last)| last >= total as f64)
    }

    /// The pause until the next sample: the interval, or less where that would be too long.
    fn next_pause(&self, moment: Moment) -> Duration {
        let interval = self.session.config.interval;
        if !matches!(self.phase, Phase::Running) || self.session.is_saving() {
            return interval.min(SHORTEST_PAUSE);
        }
        let left = self.session.pace.time_to(moment.limit, moment);
        let left = left.and_then(|left| Duration::try_from_secs_f64(left).ok());
        left.map_or(interval, |left| interval.min((left / LOOKS_BEFORE).max(SHORTEST_PAUSE)))
    }

    fn tell_state(&mut self, moment: Moment) {
        let config = self.session.config;
        let Some(folder) = &config.state else { return };
        let facts = RunFacts { memory_limit: Some(Bytes(moment.limit)), ..config.facts.clone() };
        let (step, total_steps) = (self.live.watch.recorder().step(), self.live.watch.recorder().facts().total_steps);
        let bound = Some(self.live.watch.last()).filter(|last| last.is_bound());
        let held_at_most_bytes = bound.map(Sample::held_at_most);
        let diagnosis = self.live.watch.verdict(&facts);
        let state = State {
            pid: std::process::id(),
            state: match self.phase {
                Phase::Running => "running",
                Phase::Waiting => "waiting_for_checkpoint",
                Phase::Saving(_) => "saving",
                Phase::Ending { .. } => "ending",
            },
            guard: &self.words,
            attempt: self.attempt.number,
            program_pid: self.attempt.pid,
            program_started: self.attempt.started,
            folder: std::fs::canonicalize(folder.path("")).ok(),
            step,
            total_steps,
            held_bytes: moment.held,
            held_at_most_bytes,
            limit_bytes: (moment.limit < u64::MAX).then_some(moment.limit),
            verdict: diagnosis.map(|diagnosis| diagnosis.verdict.name()),
            summary: diagnosis.map(|diagnosis| diagnosis.summary.as_str()),
            checkpoint: self.newest.as_ref().map(|checkpoint| checkpoint.path.as_path()),
            trace: &config.trace,
            command: config.command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        };
        // A full disk must not stop the guard; the next sample tries again.
        drop(folder.write("state.json", &state));
    }

    fn say(&mut self, line: &str) {
        self.session.observer.say(&Remark::News(line.to_string()));
    }

    fn everybody(&self) -> Vec<Who> {
        let processes = self.live.watch.tree().processes.iter();
        processes.map(|process| (process.identity.pid, process.identity.started)).collect()
    }

    /// Takes note of orphans of the program that have ended as our children, so that they do not pile up.
    fn reap(&self) {
        for &pid in self.live.watch.sampler().zombies().iter().filter(|&&pid| pid != self.attempt.pid) {
            let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
            // It is not ours if its own parent is still there.
            let _ = pid.map(|pid| rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::NOHANG));
        }
    }
}

/// Takes note of every child that has ended, once the program itself has.
fn reap_all() {
    while matches!(rustix::process::wait(rustix::process::WaitOptions::NOHANG), Ok(Some(_))) {}
}

//! Sees a program through: starts it, has it guarded, and starts it again from its newest checkpoint where that is wanted.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, SystemTime};

use garden_probe::Sampler;
use serde::Serialize;

use crate::attempt::{Attempt, Outcome, Skipped, Summary, Troubles};
use crate::channel::{Channel, ENVIRONMENT};
use crate::checkpoint::{Checkpoint, Flaw};
use crate::config::{Error, GuardConfig, Observer, OnLimit, Remark};
use crate::fence::Fence;
use crate::guard::{Guard, GuardSession, GuardedAttempt, Reach, Reached, Recovered};
use crate::launch::{Ending, Launch, Notice, launch, name_of};
use crate::live::Live;
use crate::policy::Pace;
use crate::recorder::Recorder;
use crate::resume::resume_words;
use crate::saves::Saves;
use crate::signals::{REQUEUE, Stop, listen_for_stops};
use crate::state::FOLDER;
use crate::watch::Watch;

/// The environment variable that names the checkpoint to go on from.
pub const RESUME: &str = "MODEL_GARDEN_RESUME";

/// The first pause before a restart; doubled after each attempt that was over within [`SHORT_ATTEMPT`] seconds.
const FIRST_BACKOFF: Duration = Duration::from_millis(500);
const LONGEST_BACKOFF: Duration = Duration::from_secs(60);
const SHORT_ATTEMPT: f64 = 60.0;

/// Runs the program under guard until it, and everything it started, has ended.
pub fn supervise(config: &GuardConfig, observer: &mut dyn Observer) -> Result<Summary, Error> {
    let (sender, notices) = mpsc::sync_channel(256);
    listen_for_stops(sender.clone()).map_err(Error::Signals)?;
    // Orphans of the program become our children instead of the system's; where that is not possible they are still found
    // by their session.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let channel = Channel::open(sender.clone()).ok();
    observer.begin(&sender);
    let mut session = GuardSession {
        config,
        observer,
        notices: sender,
        channel,
        saves: None,
        pace: Pace::default(),
        asked: None,
        is_hurried: false,
        was_forwarded: false,
    };
    if let Some(folder) = &config.checkpoint_dir {
        session.watch_saves(folder);
    }
    let older = session.saves.as_ref().map_or(0, Saves::older);
    if older > 0 {
        session.observer.say(&Remark::OlderCheckpoints);
    }
    let result = Supervisor { session, attempts: Vec::new(), furthest: None, barren: 0 }.run(notices);
    if let Some(state) = &config.state {
        // Whoever asks for it will not find it then; the exit code is still ours.
        drop(match &result {
            Ok(summary) => state.write("exit.json", summary),
            Err(error) => state.write("exit.json", &Failed { code: FAILED, words: error.to_string() }),
        });
    }
    result
}

/// The exit code of a run that could not be started or watched.
const FAILED: i32 = 2;

/// What `exit.json` says then.
#[derive(Serialize)]
struct Failed {
    code: i32,
    words: String,
}

struct Supervisor<'a> {
    session: GuardSession<'a>,
    attempts: Vec<Attempt>,
    /// The furthest checkpoint that a start has brought.
    furthest: Option<Mark>,
    /// Starts in a row that brought no newer checkpoint.
    barren: u32,
}

/// How far a checkpoint is: by its step, for a program that begins anew each time writes new ones for ever; where a name has none,
/// by when it was written.
#[derive(Clone, Copy)]
struct Mark {
    step: Option<u64>,
    written: Option<SystemTime>,
}

impl Mark {
    fn of(checkpoint: &Checkpoint) -> Mark {
        Mark { step: checkpoint.step, written: checkpoint.written().map(|(_, last)| last) }
    }

    fn is_beyond(self, other: Mark) -> bool {
        match (self.step, other.step) {
            (Some(step), Some(other)) => step > other,
            _ => self.written > other.written,
        }
    }
}

/// What the next start goes on from.
#[derive(Default)]
struct Resume {
    checkpoint: Option<Checkpoint>,
    skipped: Vec<Skipped>,
}

/// How it all ends, and in words.
type End = (Outcome, String);

/// What follows an attempt.
enum Next {
    Finish(End),
    /// Another start, or this end if somebody asks for one before it.
    Restart(Resume, End),
}

impl Supervisor<'_> {
    fn run(mut self, notices: Receiver<Notice>) -> Result<Summary, Error> {
        let config = self.session.config;
        // A trace that cannot be written must be known before anything runs.
        let program = config.command.first().map(|program| name_of(program));
        let words = program.into_iter().chain(config.command.iter().skip(1).map(OsString::as_os_str));
        let command = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        let (facts, origin) = (config.facts.clone(), origin(&command, config.interval));
        let created = match config.goes_on {
            true => Recorder::go_on(&config.trace, facts, &origin),
            false => Recorder::create(&config.trace, facts, &origin).map(|recorder| (recorder, Duration::ZERO)),
        };
        let (recorder, earlier) = created.map_err(|error| Error::Trace(config.trace.clone(), error))?;
        let forget = || {
            // A trace of nothing is of no use to anybody.
            if !config.goes_on {
                drop(fs::remove_file(&config.trace));
            }
        };
        let (first, sampler) = self.start(Resume::default()).inspect_err(|_| forget())?;
        let mut watch = Watch::new(sampler, recorder, config.step_pattern.clone());
        watch.pass_time(earlier);
        let mut live = Live::new(watch, notices, config.interval);
        let mut attempt = first;
        let mut backoff = FIRST_BACKOFF;
        loop {
            let reach = if self.barren == 0 { Reach::Forecast } else { Reach::Limit };
            let guarded = Guard::new(&mut self.session, &mut live, attempt, reach).follow();
            let was_short = guarded.attempt.seconds < SHORT_ATTEMPT;
            match self.next(guarded) {
                Next::Finish(end) => return Ok(self.summary(end, &live)),
                Next::Restart(resume, end) => {
                    if let Some(stop) = live.asked_within(backoff) {
                        self.session.observer.say(&Remark::News("asked to stop: not restarting".into()));
                        self.session.asked = Some(stop);
                        let is_warned = matches!(stop, Stop::Warned(_));
                        let outcome = if is_warned { Outcome::StoppedByScheduler } else { end.0 };
                        return Ok(self.summary((outcome, end.1), &live));
                    }
                    backoff = if was_short { (backoff * 2).min(LONGEST_BACKOFF) } else { FIRST_BACKOFF };
                    let (next, sampler) = self.start(resume)?;
                    // A trace that cannot be written is told at the end.
                    drop(live.watch.restarted(sampler));
                    attempt = next;
                }
            }
        }
    }

    fn summary(self, (outcome, words): End, live: &Live) -> Summary {
        let unwritten = live.watch.recorder().failures().map_or(0, |(lines, _)| lines);
        let troubles = Troubles {
            late_samples: live.late(),
            failed_readings: live.watch.sampler().failed(),
            unwritten_lines: unwritten,
        };
        let was_asked = self.session.asked.is_some() || self.session.was_forwarded;
        Summary { code: outcome.code(), outcome, words, was_asked, attempts: self.attempts, troubles }
    }

    /// Starts the program, from a checkpoint if there is one.
    fn start(&mut self, resume: Resume) -> Result<(Attempt, Sampler), Error> {
        let config = self.session.config;
        let Resume { checkpoint, skipped } = resume;
        let resumed_from = checkpoint.map(|checkpoint| checkpoint.path);
        let channel = self.session.channel.as_ref().map(|channel| (ENVIRONMENT, channel.path().as_os_str().to_owned()));
        let place = resumed_from.as_ref().map(|path| (RESUME, path.clone().into_os_string()));
        let state = config.state.as_ref().and_then(|state| fs::canonicalize(state.path("")).ok());
        let state = state.map(|folder| (FOLDER, folder.into_os_string()));
        let given = config.environment.iter().map(|(name, value)| (*name, value.clone()));
        let environment: Vec<(&str, OsString)> = given.chain(channel).chain(place).chain(state).collect();
        let before = config.fence.as_ref().map_or(&[][..], Fence::words_before);
        let after = resumed_from.as_deref().zip(config.resume_with.as_deref());
        let after = after.map_or_else(Vec::new, |(path, template)| resume_words(template, path));
        let words = [before, &config.command, &after].concat();
        let failed = |error| Error::Start(config.command.first().cloned().unwrap_or_default(), error);
        let group = config.fence.as_ref().map(Fence::entrance).transpose().map_err(failed)?.flatten();
        let what = Launch { words: &words, environment: &environment, output_mode: &config.output_mode, group };
        let launched = launch(what, &self.session.notices).map_err(failed)?;
        let pid = launched.pid;
        let mut sampler = Sampler::of(pid).map_err(|error| Error::Watch(pid, error))?;
        sampler.set_guardian(std::process::id());
        launched.follow(self.session.notices.clone());
        let (number, started) = (self.attempts.len() as u32 + 1, sampler.root().started);
        Ok((Attempt { number, pid, started, resumed_from, skipped, ..Attempt::default() }, sampler))
    }

    /// Decides what follows an attempt.
    fn next(&mut self, guarded: GuardedAttempt) -> Next {
        let GuardedAttempt { attempt, ending, reached, kept, is_done } = guarded;
        // A shell tells the end of its command by signal 9 as 137.
        let is_kill = matches!(ending, Ending::Signal(9) | Ending::Code(137));
        let was_killed = is_kill && reached.is_none() && self.session.asked.is_none();
        let kept_words = kept_words(&attempt, kept);
        let how = format!("the program {}", attempt.ending);
        let is_own = reached.is_none() && !was_killed;
        // One that was warned, or wants to be started again later, has not failed because of its checkpoint.
        let is_failure = !matches!(ending, Ending::Code(0 | REQUEUE)) && !self.session.was_forwarded;
        let has_failed_at_once = is_own && is_failure && self.is_over_at_once(&attempt);
        let resumed_from = attempt.resumed_from.clone().filter(|_| has_failed_at_once);
        self.attempts.push(attempt);
        if let Some(words) = self.why_warned(ending, &how)
            && !(is_done && ending == Ending::Code(0))
        {
            return Next::Finish((Outcome::StoppedByScheduler, format!("{words}: {kept_words}")));
        }
        let can_restart = self.session.config.on_limit == OnLimit::Restart && self.session.asked.is_none();
        if let Some(tried) = resumed_from.filter(|_| can_restart) {
            return self.try_the_one_before(&tried, ending, &how);
        }
        if is_own || (is_done && ending == Ending::Code(0)) {
            return Next::Finish((Outcome::Own { code: ending.code() }, how));
        }
        let what = if was_killed { how } else { "stopped at the limit".into() };
        if reached == Some(Reached::TooLarge) {
            let words = "it reached the limit before its first step: the limit is too small for it".into();
            return Next::Finish((Outcome::CouldNotSave, words));
        }
        let is_saved = kept == Recovered::All && !was_killed;
        let outcome = if is_saved { Outcome::StoppedWithCheckpoint } else { Outcome::CouldNotSave };
        let end = (outcome, format!("{what}: {kept_words}"));
        if can_restart { self.restart(&what, &kept_words, end) } else { Next::Finish(end) }
    }

    /// How a scheduler's warning came to end the program, if one did. Where every process of a job got it, the program may be dead before we have heard it.
    fn why_warned(&self, ending: Ending, how: &str) -> Option<String> {
        let is_obeyed = !self.session.is_hurried || matches!(ending, Ending::Code(0 | REQUEUE));
        match (self.session.asked, ending.warning()) {
            (Some(Stop::Warned(warning)), _) if is_obeyed => Some(format!("stopped because of {}", warning.name())),
            (None, Some(_)) => Some(how.to_string()),
            _ => None,
        }
    }

    /// Whether a start ended before its first step; where no steps are told, within a minute.
    fn is_over_at_once(&self, attempt: &Attempt) -> bool {
        let tells_steps = self.attempts.iter().any(|attempt| attempt.first_step.is_some());
        attempt.first_step.is_none() && (tells_steps || attempt.seconds < SHORT_ATTEMPT)
    }

    /// The program could not go on from a checkpoint: perhaps it can from an older one.
    fn try_the_one_before(&mut self, tried: &Path, ending: Ending, how: &str) -> Next {
        let end = (Outcome::Own { code: ending.code() }, format!("{how} when it was resumed from {}", tried.display()));
        let Some(saves) = &mut self.session.saves else { return Next::Finish(end) };
        saves.distrust(tried);
        if saves.newest().complete.is_none() {
            return Next::Finish((end.0, format!("{}; there is no other checkpoint to try", end.1)));
        }
        self.session.observer.say(&Remark::News(format!("{}: leaving it in place and trying the one before", end.1)));
        self.restart(&end.1.clone(), "there is an older checkpoint", end)
    }

    /// Starts it again from the newest checkpoint, unless that has brought nothing too often.
    fn restart(&mut self, what: &str, kept: &str, end: End) -> Next {
        let allowed = self.session.config.max_restarts;
        let found = self.session.saves.as_ref().map(Saves::newest).unwrap_or_default();
        let mark = found.complete.as_ref().map(Mark::of);
        let is_newer = mark.is_some_and(|mark| self.furthest.is_none_or(|furthest| mark.is_beyond(furthest)));
        if is_newer {
            self.furthest = mark;
        }
        self.barren = if is_newer { 0 } else { self.barren + 1 };
        if self.barren > allowed {
            let starts =
                if self.barren == 1 { "its last start".into() } else { format!("its last {} starts", self.barren) };
            return Next::Finish((
                Outcome::BudgetSpent,
                format!("{what}; {starts} brought no newer checkpoint: {kept}"),
            ));
        }
        let skipped = found.flawed.into_iter().map(|(checkpoint, flaw)| self.skip(checkpoint, &flaw)).collect();
        let from = found.complete.as_ref().map_or("the beginning".into(), |found| found.path.display().to_string());
        let to_the_limit = match self.barren {
            0 => String::new(),
            barren => format!(" (no newer checkpoint, {barren} of {allowed}: it may go up to the limit)"),
        };
        self.session
            .observer
            .say(&Remark::News(format!("restart {}: starting from {from}{to_the_limit}", self.attempts.len())));
        Next::Restart(Resume { checkpoint: found.complete, skipped }, end)
    }

    /// Passes over a checkpoint that cannot be used; only a damaged one is set aside.
    fn skip(&mut self, checkpoint: Checkpoint, flaw: &Flaw) -> Skipped {
        let now = matches!(flaw, Flaw::Damaged(_)).then(|| set_aside(&checkpoint.path)).flatten();
        let place = now.as_ref().map_or("left in place".into(), |now| format!("now {}", now.display()));
        self.session.observer.say(&Remark::News(format!(
            "skipping {} ({place}): {}",
            checkpoint.path.display(),
            flaw.words()
        )));
        Skipped { path: checkpoint.path, why: flaw.words().into(), now }
    }
}

fn kept_words(attempt: &Attempt, kept: Recovered) -> String {
    let path = attempt.checkpoint.as_ref().map_or("a checkpoint".into(), |path| path.display().to_string());
    match kept {
        Recovered::All if attempt.lost_steps.is_none_or(|lost| lost <= 0.0) => {
            format!("{path} is complete, nothing is lost")
        }
        Recovered::All | Recovered::Part => {
            format!("{path} is complete, {:.0} steps after it are lost", attempt.lost_steps.unwrap_or(0.0))
        }
        Recovered::Nothing => "there is no complete checkpoint".into(),
        Recovered::Unknown => {
            "it ended by itself, but whether it saved is unknown (pass its folder with --checkpoint-dir)".into()
        }
    }
}

/// Renames a damaged checkpoint: a program that looks for the newest one by itself must not find it, and one that saves into the
/// same folder again must not leave a mixture of both.
fn set_aside(torn: &Path) -> Option<PathBuf> {
    let name = torn.file_name()?.to_string_lossy();
    let free =
        (1..100).map(|number| torn.with_file_name(format!(".{name}.torn-{number}"))).find(|path| !path.exists())?;
    fs::rename(torn, &free).ok().map(|()| free)
}

/// Where a trace comes from, for its header.
pub fn origin(command: &str, interval: Duration) -> Vec<(String, String)> {
    vec![("command".to_string(), command.to_string()), ("interval".to_string(), format!("{interval:?}"))]
}

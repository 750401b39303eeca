//! Sees a program through: starts it, has it guarded, and starts it again from its newest checkpoint where that is wanted.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use garden_probe::Sampler;

use crate::attempt::{Attempt, Outcome, Summary, Torn};
use crate::channel::{Channel, ENVIRONMENT};
use crate::checkpoint::{Checkpoint, newest_complete};
use crate::fence::Fence;
use crate::guard::{Guard, Keeper, Reached, Result as Guarded};
use crate::launch::{Ending, Launch, Notice, launch};
use crate::live::Live;
use crate::orders::{Error, Observer, OnLimit, Orders};
use crate::policy::Pace;
use crate::recorder::Recorder;
use crate::resume::resume_words;
use crate::signals::listen_for_stops;
use crate::watch::Watch;

/// The environment variable that names the checkpoint to go on from.
pub const RESUME: &str = "MODEL_GARDEN_RESUME";

/// The first pause before a restart; doubled after each attempt that was over within [`SHORT_ATTEMPT`] seconds.
const FIRST_BACKOFF: Duration = Duration::from_millis(500);
const LONGEST_BACKOFF: Duration = Duration::from_secs(60);
const SHORT_ATTEMPT: f64 = 60.0;

/// Runs the program under guard until it, and everything it started, has ended.
pub fn supervise(orders: &Orders, observer: &mut dyn Observer) -> Result<Summary, Error> {
    let (sender, notices) = mpsc::sync_channel(256);
    listen_for_stops(sender.clone()).map_err(Error::Signals)?;
    // Orphans of the program become our children instead of the system's; where that is not possible they are still found
    // by their session.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let channel = Channel::open(sender.clone()).ok();
    observer.begin(&sender);
    let mut keeper =
        Keeper { orders, observer, notices: sender, channel, saves: None, pace: Pace::default(), was_asked: false };
    if let Some(folder) = &orders.checkpoint_dir {
        keeper.watch_saves(folder);
    }
    let summary = Supervisor { keeper, attempts: Vec::new() }.run(notices)?;
    if let Some(state) = &orders.state {
        // Whoever asks for it will not find it then; the exit code is still ours.
        drop(state.write("exit.json", &summary));
    }
    Ok(summary)
}

struct Supervisor<'a> {
    keeper: Keeper<'a>,
    attempts: Vec<Attempt>,
}

/// What the next start goes on from.
#[derive(Default)]
struct Resume {
    checkpoint: Option<Checkpoint>,
    skipped: Vec<Torn>,
}

/// What follows an attempt.
enum Next {
    Finish(Outcome, String),
    Restart(Resume),
}

impl Supervisor<'_> {
    fn run(mut self, notices: Receiver<Notice>) -> Result<Summary, Error> {
        let orders = self.keeper.orders;
        let (first, sampler) = self.start(Resume::default())?;
        let recorder = Recorder::create(&orders.trace, orders.facts.clone(), &origin(&sampler, orders.interval))
            .map_err(|error| Error::Trace(orders.trace.clone(), error))?;
        let watch = Watch::new(sampler, recorder, orders.step_pattern.clone());
        let mut live = Live::new(watch, notices, orders.interval);
        let mut attempt = first;
        let mut backoff = FIRST_BACKOFF;
        loop {
            let guarded = Guard::new(&mut self.keeper, &mut live, attempt).follow();
            let was_short = guarded.attempt.seconds < SHORT_ATTEMPT;
            match self.next(guarded) {
                Next::Finish(outcome, words) => {
                    return Ok(Summary { code: outcome.code(), outcome, words, attempts: self.attempts });
                }
                Next::Restart(resume) => {
                    std::thread::sleep(backoff);
                    backoff = if was_short { (backoff * 2).min(LONGEST_BACKOFF) } else { FIRST_BACKOFF };
                    let (next, sampler) = self.start(resume)?;
                    // A trace that cannot be written is told at the end.
                    drop(live.watch.restarted(sampler));
                    attempt = next;
                }
            }
        }
    }

    /// Starts the program, from a checkpoint if there is one.
    fn start(&mut self, resume: Resume) -> Result<(Attempt, Sampler), Error> {
        let orders = self.keeper.orders;
        let Resume { checkpoint, skipped } = resume;
        let resumed_from = checkpoint.map(|checkpoint| checkpoint.path);
        let channel = self.keeper.channel.as_ref().map(|channel| (ENVIRONMENT, channel.path().as_os_str().to_owned()));
        let place = resumed_from.as_ref().map(|path| (RESUME, path.clone().into_os_string()));
        let environment: Vec<(&str, OsString)> = channel.into_iter().chain(place).collect();
        let before = orders.fence.as_ref().map_or(&[][..], Fence::words_before);
        let after = resumed_from.as_deref().zip(orders.resume_with.as_deref());
        let after = after.map_or_else(Vec::new, |(path, template)| resume_words(template, path));
        let words = [before, &orders.command, &after].concat();
        let failed = |error| Error::Start(orders.command.first().cloned().unwrap_or_default(), error);
        let group = orders.fence.as_ref().map(Fence::entrance).transpose().map_err(failed)?.flatten();
        let what = Launch { words: &words, environment: &environment, stage: &orders.stage, group };
        let launched = launch(what, &self.keeper.notices).map_err(failed)?;
        let pid = launched.pid;
        let sampler = Sampler::of(pid).map_err(|error| Error::Watch(pid, error))?;
        launched.follow(self.keeper.notices.clone());
        let number = self.attempts.len() as u32 + 1;
        Ok((Attempt { number, pid, resumed_from, skipped, ..Attempt::default() }, sampler))
    }

    /// Decides what follows an attempt.
    fn next(&mut self, guarded: Guarded) -> Next {
        let Guarded { attempt, ending, reached, is_done } = guarded;
        let was_killed = ending == Ending::Signal(9) && reached.is_none();
        let is_normal = (reached.is_none() && !was_killed) || (is_done && ending == Ending::Code(0));
        let kept = kept_words(&attempt);
        let is_saved = attempt.checkpoint.is_some()
            && (reached == Some(Reached::JustSaved) || attempt.lost_steps.is_none_or(|lost| lost == 0.0));
        self.attempts.push(attempt);
        if is_normal || self.keeper.was_asked {
            return Next::Finish(Outcome::Own { code: ending.code() }, format!("the program {}", ending.words()));
        }
        let what = if was_killed { format!("the program {}", ending.words()) } else { "stopped at the limit".into() };
        match self.keeper.orders.on_limit {
            OnLimit::Restart => self.restart(&what, &kept),
            OnLimit::Stop if is_saved && !was_killed => {
                Next::Finish(Outcome::StoppedWithCheckpoint, format!("{what}: {kept}"))
            }
            OnLimit::Stop => Next::Finish(Outcome::CouldNotSave, format!("{what}: {kept}")),
        }
    }

    fn restart(&mut self, what: &str, kept: &str) -> Next {
        let (used, allowed) = (self.attempts.len() as u32 - 1, self.keeper.orders.max_restarts);
        if used >= allowed {
            let words = format!("{what}, and all {used} restarts are used up: {kept}");
            return Next::Finish(Outcome::BudgetSpent, words);
        }
        let found = self.keeper.folder().and_then(|folder| newest_complete(folder).ok()).unwrap_or_default();
        // The first start may have had nothing to go on from; from then on each must bring a newer checkpoint.
        let before = self.attempts.last().and_then(|attempt| attempt.resumed_from.as_deref());
        let newest = found.complete.as_ref().map(|checkpoint| checkpoint.path.as_path());
        if used > 0 && before == newest {
            let words =
                format!("{what}; no progress was made since the last restart, so another would not help: {kept}");
            return Next::Finish(Outcome::BudgetSpent, words);
        }
        let from = newest.map_or("the beginning".into(), |path| path.display().to_string());
        let mut skipped = Vec::new();
        for (checkpoint, why) in found.torn {
            let aside =
                set_aside(&checkpoint.path).map_or(String::new(), |aside| format!(" (now {})", aside.display()));
            self.keeper.observer.say(&format!("skipping {}{aside}: {why}", checkpoint.path.display()));
            skipped.push(Torn { path: checkpoint.path, why });
        }
        self.keeper.observer.say(&format!("restart {} of {allowed}: going on from {from}", used + 1));
        Next::Restart(Resume { checkpoint: found.complete, skipped })
    }
}

fn kept_words(attempt: &Attempt) -> String {
    match (&attempt.checkpoint, attempt.lost_steps) {
        (None, _) => "there is no complete checkpoint".to_string(),
        (Some(path), Some(lost)) if lost > 0.0 => {
            format!("{} is complete, {lost:.0} steps after it are lost", path.display())
        }
        (Some(path), _) => format!("{} is complete, nothing is lost", path.display()),
    }
}

/// Renames a torn checkpoint: a program that looks for the newest one by itself must not find it, and one that saves into the
/// same folder again must not leave a mixture of both.
fn set_aside(torn: &Path) -> Option<PathBuf> {
    let name = torn.file_name()?.to_string_lossy();
    let free =
        (1..100).map(|number| torn.with_file_name(format!(".{name}.torn-{number}"))).find(|path| !path.exists())?;
    fs::rename(torn, &free).ok().map(|()| free)
}

/// Where a trace comes from, for its header.
pub fn origin(sampler: &Sampler, interval: Duration) -> Vec<(String, String)> {
    vec![
        ("command".to_string(), sampler.root().command.clone()),
        ("process".to_string(), sampler.root().pid.to_string()),
        ("interval".to_string(), format!("{interval:?}")),
    ]
}

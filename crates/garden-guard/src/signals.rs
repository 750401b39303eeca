//! Signals that ask us to end, and passing them on to the program under watch.
//!
//! SIGUSR1 and SIGUSR2 are how batch schedulers warn a job before they end or suspend it. A scheduler may send one to the process that it started, to its
//! group, or to every process of the job, and may do so by several ways at once. Nothing tells a process who else got the signal (`si_pid` names the
//! sender alone), so the same warning within [`ECHO`] is taken for an echo, and a program that catches warnings may get one twice.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

use garden_probe::{Identity, Process};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use crate::launch::Notice;

/// The exit code of what was stopped and can go on: `EX_TEMPFAIL` of `sysexits.h`, try again later.
///
/// Grid Engine requeues on 99 and nothing else. For Slurm, LSF and HTCondor it is the job or the site that names the codes, so none of them speaks against
/// the one that this project already gives to a run stopped with a complete checkpoint.
pub const REQUEUE: i32 = 75;

/// The same warning within this time of the last is that one by another way, as when a scheduler signals a launcher that passes it on.
const ECHO: Duration = Duration::from_secs(2);

/// Whether nobody listens to warnings yet.
static IS_UNHEARD: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| Arc::new(AtomicBool::new(true)));

/// How we were asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Ctrl-C.
    Interrupt,
    /// SIGTERM.
    Terminate,
    /// The terminal has gone.
    HungUp,
    /// A scheduler will soon end or suspend the job.
    Warned(Warning),
}

/// A signal by which a scheduler warns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warning {
    /// SIGUSR1.
    User1,
    /// SIGUSR2.
    User2,
}

impl Warning {
    /// Its number.
    pub fn number(self) -> i32 {
        match self {
            Warning::User1 => SIGUSR1,
            Warning::User2 => SIGUSR2,
        }
    }

    /// The warning of this number.
    pub(crate) fn of(number: i32) -> Option<Warning> {
        [Warning::User1, Warning::User2].into_iter().find(|warning| warning.number() == number)
    }

    /// Its name, as `kill -l` has it.
    pub fn name(self) -> &'static str {
        match self {
            Warning::User1 => "SIGUSR1",
            Warning::User2 => "SIGUSR2",
        }
    }

    pub(crate) fn signal(self) -> Signal {
        match self {
            Warning::User1 => Signal::USR1,
            Warning::User2 => Signal::USR2,
        }
    }
}

/// Until [`listen_for_stops`], a scheduler's warning ends us with [`REQUEUE`]: there is nothing yet that could be saved.
pub fn leave_on_warnings() -> io::Result<()> {
    for signal in [SIGUSR1, SIGUSR2] {
        signal_hook::flag::register_conditional_shutdown(signal, REQUEUE, Arc::clone(&IS_UNHEARD))?;
    }
    Ok(())
}

/// From now on Ctrl-C, SIGTERM and warnings of schedulers do not end us but are sent to `notices`.
pub fn listen_for_stops(notices: SyncSender<Notice>) -> io::Result<()> {
    // A job script ignores warnings so that it outlives them, and its commands inherit that: unlike SIGHUP they are listened to all the same.
    let mut wanted = vec![SIGINT, SIGTERM, SIGUSR1, SIGUSR2];
    // `nohup` has us ignore this one, and so it shall be.
    let me = Identity::of(std::process::id()).and_then(|identity| Process::open(identity).ok());
    if !me.is_some_and(|me| me.ignores(SIGHUP)) {
        wanted.push(SIGHUP);
    }
    let mut signals = Signals::new(wanted)?;
    IS_UNHEARD.store(false, Ordering::SeqCst);
    thread::spawn(move || {
        let mut warned: Option<(Warning, Instant)> = None;
        for signal in signals.forever() {
            let stop = match (signal, Warning::of(signal)) {
                (_, Some(warning)) => Stop::Warned(warning),
                (SIGINT, _) => Stop::Interrupt,
                (SIGTERM, _) => Stop::Terminate,
                _ => Stop::HungUp,
            };
            if let Stop::Warned(warning) = stop {
                let is_echo = warned.is_some_and(|(last, when)| last == warning && when.elapsed() < ECHO);
                warned = Some((warning, Instant::now()));
                if is_echo {
                    continue;
                }
            }
            if notices.send(Notice::Asked(stop)).is_err() {
                return;
            }
        }
    });
    Ok(())
}

/// Asks a supervisor to end: it passes that on with a checkpoint. One that was stopped goes on, since it could not hear it otherwise.
pub fn ask_to_end(pid: u32) -> io::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    kill_process(pid, Signal::TERM)?;
    Ok(kill_process(pid, Signal::CONT)?)
}

/// Ends a program and its whole group at once; it cannot do anything about it.
pub fn end_now(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // It may have ended meanwhile.
        let _ = kill_process_group(pid, Signal::KILL);
    }
}

/// Passes a stop on as the terminal would have done: to the program's whole group, since it has one of its own.
pub fn pass_stop_on(pid: u32, stop: Stop) {
    let signal = match stop {
        Stop::Interrupt => Signal::INT,
        // A program that does not catch a warning would die of it, and cleans up on SIGTERM if on anything.
        Stop::Terminate | Stop::Warned(_) => Signal::TERM,
        Stop::HungUp => Signal::HUP,
    };
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // It may have ended meanwhile.
        let _ = kill_process_group(pid, signal);
    }
}

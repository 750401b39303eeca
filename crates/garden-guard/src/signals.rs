//! Signals that ask us to end, and passing them on to the program under watch.

use std::io;
use std::sync::mpsc::SyncSender;
use std::thread;

use garden_probe::{Identity, Process};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::launch::Notice;

/// How we were asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Ctrl-C.
    Interrupt,
    /// SIGTERM.
    Terminate,
    /// The terminal has gone.
    HungUp,
}

/// From now on Ctrl-C and SIGTERM do not end us but are sent to `notices`.
pub fn listen_for_stops(notices: SyncSender<Notice>) -> io::Result<()> {
    let mut wanted = vec![SIGINT, SIGTERM];
    // `nohup` has us ignore this one, and so it shall be.
    let me = Identity::of(std::process::id()).and_then(|identity| Process::open(identity).ok());
    if !me.is_some_and(|me| me.ignores(SIGHUP)) {
        wanted.push(SIGHUP);
    }
    let mut signals = Signals::new(wanted)?;
    thread::spawn(move || {
        for signal in signals.forever() {
            let stop = match signal {
                SIGINT => Stop::Interrupt,
                SIGTERM => Stop::Terminate,
                _ => Stop::HungUp,
            };
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
        Stop::Terminate => Signal::TERM,
        Stop::HungUp => Signal::HUP,
    };
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // It may have ended meanwhile.
        let _ = kill_process_group(pid, signal);
    }
}

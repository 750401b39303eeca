//! Signals that ask us to end, and passing them on to the program under watch.

use std::io;
use std::sync::mpsc::Sender;
use std::thread;

use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::launch::Notice;

/// How we were asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Ctrl-C.
    Interrupt,
    /// SIGTERM.
    Terminate,
}

/// From now on Ctrl-C and SIGTERM do not end us but are sent to `notices`.
pub fn listen_for_stops(notices: Sender<Notice>) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    thread::spawn(move || {
        for signal in signals.forever() {
            let stop = if signal == SIGINT { Stop::Interrupt } else { Stop::Terminate };
            if notices.send(Notice::Asked(stop)).is_err() {
                return;
            }
        }
    });
    Ok(())
}

/// Passes a stop on as the terminal would have done: to the program's whole group, since it has one of its own.
pub fn pass_stop_on(pid: u32, stop: Stop) {
    let signal = match stop {
        Stop::Interrupt => Signal::INT,
        Stop::Terminate => Signal::TERM,
    };
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // It may have ended meanwhile.
        let _ = kill_process_group(pid, signal);
    }
}

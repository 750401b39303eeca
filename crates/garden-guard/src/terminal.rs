//! A pseudo-terminal for the command, and our keyboard connected to it.
//!
//! The command should not notice that somebody stands in between: it has the window's size, hears when that changes, and gets
//! each key as it is pressed. Only Ctrl-C stays ours: what it means is decided by who watches.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{
    InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios, Winsize, isatty, tcgetattr, tcgetwinsize,
    tcsetattr, tcsetwinsize,
};

/// How often the window's size is compared, and the end of the command noticed.
const PAUSE: Duration = Duration::from_millis(200);

/// Our end of a pseudo-terminal; the command has the far end.
pub(crate) struct Terminal {
    ours: File,
}

impl Terminal {
    /// Gives a command a pseudo-terminal, of our own terminal's size if no other is asked for.
    pub(crate) fn open(command: &mut Command, size: Option<(u16, u16)>) -> io::Result<Terminal> {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&ours)?;
        unlockpt(&ours)?;
        let name = ptsname(&ours, Vec::new())?;
        let open = || -> io::Result<OwnedFd> {
            let path = name.to_str().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
            Ok(File::options().read(true).write(true).open(path)?.into())
        };
        let size = match size {
            Some((columns, rows)) => Some(Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }),
            None => tcgetwinsize(rustix::stdio::stdout()).ok(),
        };
        if let Some(size) = size {
            // A terminal of unknown size still works; bars are then 80 columns wide.
            let _ = tcsetwinsize(&ours, size);
        }
        command.stdin(open()?).stdout(open()?).stderr(open()?);
        Ok(Terminal { ours: ours.into() })
    }

    /// What the command prints.
    pub(crate) fn into_output(self) -> File {
        self.ours
    }
}

/// Our keyboard, connected to the command's terminal until this is dropped.
pub(crate) struct Keyboard {
    before: Termios,
    is_over: Arc<AtomicBool>,
    hands: Option<thread::JoinHandle<()>>,
}

impl Keyboard {
    /// Connects standard input, if it is a terminal, and keeps the window's size the same on both sides.
    pub(crate) fn connect(terminal: &Terminal) -> io::Result<Keyboard> {
        let keys = rustix::stdio::stdin();
        if !isatty(keys) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let before = tcgetattr(keys)?;
        let mut single = before.clone();
        // Keys go through as they are; what is printed keeps its line ends, since we print lines ourselves.
        single.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::IEXTEN;
        single.input_modes -= InputModes::IXON | InputModes::ICRNL;
        // Ctrl-Z would stop us, but not the command, which is in a session of its own; so it is a key like any other.
        single.special_codes[SpecialCodeIndex::VSUSP] = 0;
        tcsetattr(keys, OptionalActions::Now, &single)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let (far, over) = (terminal.ours.try_clone()?, Arc::clone(&is_over));
        let hands = thread::spawn(move || pass_keys(far, &over));
        Ok(Keyboard { before, is_over, hands: Some(hands) })
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        if let Some(hands) = self.hands.take() {
            drop(hands.join());
        }
        // There is nothing to be done if the terminal has gone meanwhile.
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &self.before);
    }
}

fn pass_keys(mut far: File, is_over: &AtomicBool) {
    let mut size = tcgetwinsize(rustix::stdio::stdout()).ok();
    let mut buffer = [0; 1024];
    let pause = Timespec { tv_sec: 0, tv_nsec: PAUSE.subsec_nanos().into() };
    while !is_over.load(Ordering::Acquire) {
        let now = tcgetwinsize(rustix::stdio::stdout()).ok();
        let differs = |a: &Winsize, b: &Winsize| (a.ws_row, a.ws_col) != (b.ws_row, b.ws_col);
        if let (Some(old), Some(new)) = (&size, &now)
            && differs(old, new)
        {
            let _ = tcsetwinsize(&far, *new);
            size = now;
        }
        let keys = rustix::stdio::stdin();
        let mut ready = [PollFd::from_borrowed_fd(keys.as_fd(), PollFlags::IN)];
        if poll(&mut ready, Some(&pause)).unwrap_or(0) == 0 {
            continue;
        }
        match io::stdin().read(&mut buffer) {
            Ok(count) if count > 0 && far.write_all(&buffer[..count]).is_ok() => {}
            _ => return,
        }
    }
}

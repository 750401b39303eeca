//! Starts a command and tells what it prints and how it ends.
//!
//! On a terminal the command gets a pseudo-terminal of its own, so that its progress bars look as before; otherwise pipes. Its
//! output is passed on as it comes, and told to the watcher as well. The command leads a session of its own either way, so
//! that its orphans can be found.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::channel::Message;
use crate::signals::Stop;

/// How long the output of a program that has ended is waited for.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Where the command's output goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// To a pseudo-terminal, and from there to our terminal.
    Terminal,
    /// To pipes, and from there to our standard output and standard error.
    Pipes,
}

/// Something that happened to a program under watch.
#[derive(Debug)]
pub enum Notice {
    /// It printed this.
    Output(Vec<u8>),
    /// It sent this over the event channel.
    Message(Message),
    /// It ended.
    Ended(Ending),
    /// We were asked to end.
    Asked(Stop),
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

impl Ending {
    /// The exit code that a shell would report.
    pub fn code(self) -> i32 {
        match self {
            Ending::Code(code) => code,
            Ending::Signal(signal) => 128 + signal,
        }
    }
}

impl From<ExitStatus> for Ending {
    fn from(status: ExitStatus) -> Ending {
        match (status.code(), status.signal()) {
            (Some(code), _) => Ending::Code(code),
            (None, signal) => Ending::Signal(signal.unwrap_or(0)),
        }
    }
}

/// Starts a command with these variables added to its environment, and says its process id; what happens to it is sent to
/// `notices`.
pub fn launch(
    words: &[OsString],
    environment: &[(&str, OsString)],
    stage: Stage,
    notices: &Sender<Notice>,
) -> io::Result<u32> {
    let Some((program, arguments)) = words.split_first() else { return Err(io::ErrorKind::InvalidInput.into()) };
    let mut command = Command::new(program);
    command.args(arguments).envs(environment.iter().map(|(name, value)| (name, value)));
    let terminal = if stage == Stage::Terminal { Some(Terminal::open(&mut command)?) } else { None };
    if terminal.is_none() {
        command.stdin(Stdio::inherit()).stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    let has_terminal = terminal.is_some();
    // SAFETY: between fork and exec only async-signal-safe system calls are made: setsid and an ioctl.
    unsafe {
        command.pre_exec(move || {
            rustix::process::setsid()?;
            if has_terminal {
                rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
            }
            Ok(())
        });
    }
    let mut child = command.spawn()?;
    // Our copies of the child's end must go, or its output would never end.
    drop(command);
    let pid = child.id();
    let mut readers = Vec::new();
    if let Some(out) = child.stdout.take() {
        readers.push(pass_on(out, io::stdout(), notices.clone()));
    }
    if let Some(err) = child.stderr.take() {
        readers.push(pass_on(err, io::stderr(), notices.clone()));
    }
    if let Some(terminal) = terminal {
        readers.push(pass_on(terminal.ours, io::stdout(), notices.clone()));
    }
    let notices = notices.clone();
    thread::spawn(move || {
        let ending = child.wait().map_or(Ending::Signal(0), Ending::from);
        // What it printed last comes before its end; descendants that keep its output open are not waited for long.
        let patience = Instant::now() + LAST_WORDS;
        while Instant::now() < patience && !readers.iter().all(thread::JoinHandle::is_finished) {
            thread::sleep(Duration::from_millis(5));
        }
        drop(notices.send(Notice::Ended(ending)));
    });
    Ok(pid)
}

/// A pseudo-terminal: the command gets the far end.
struct Terminal {
    ours: File,
}

impl Terminal {
    fn open(command: &mut Command) -> io::Result<Terminal> {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&ours)?;
        unlockpt(&ours)?;
        let name = ptsname(&ours, Vec::new())?;
        let open = || -> io::Result<OwnedFd> {
            let path = name.to_str().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
            Ok(File::options().read(true).write(true).open(path)?.into())
        };
        if let Ok(size) = rustix::termios::tcgetwinsize(rustix::stdio::stdout()) {
            // A terminal of unknown size still works; bars are then 80 columns wide.
            let _ = rustix::termios::tcsetwinsize(&ours, size);
        }
        command.stdin(open()?).stdout(open()?).stderr(open()?);
        Ok(Terminal { ours: ours.into() })
    }
}

/// Passes output on and tells the watcher, until it ends.
fn pass_on(
    mut from: impl Read + Send + 'static,
    mut to: impl Write + Send + 'static,
    notices: Sender<Notice>,
) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut buffer = [0; 16384];
        loop {
            match from.read(&mut buffer) {
                // A pseudo-terminal ends with an error (EIO) instead of an end of file.
                Ok(0) | Err(_) => break,
                Ok(count) => {
                    // If our own output is closed, the program goes on all the same.
                    drop(to.write_all(&buffer[..count]).and_then(|()| to.flush()));
                    if notices.send(Notice::Output(buffer[..count].to_vec())).is_err() {
                        break;
                    }
                }
            }
        }
    })
}

//! Starts a command and tells what it prints and how it ends.
//!
//! On a terminal the command gets a pseudo-terminal of its own, so that its progress bars look as before; otherwise pipes, or a
//! log file that it writes to by itself and so does not miss us if we are killed. Its output is passed on as it comes, and
//! told to the watcher as well. The command leads a session of its own in each case, so that its orphans can be found.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crate::channel::Message;
use crate::signals::Stop;
use crate::terminal::{Keyboard, Terminal};

/// How long the output of a program that has ended is waited for.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// How often a log file is looked at for more.
const LOG_PAUSE: Duration = Duration::from_millis(50);

/// Where the command's output goes; the watcher is told of it in each case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputMode {
    /// To a pseudo-terminal, and from there to our terminal; our keyboard is its keyboard.
    Terminal,
    /// To a pseudo-terminal of this many columns, and nowhere else: somebody draws it.
    View {
        /// Width of the pseudo-terminal.
        columns: u16,
        /// Height of the pseudo-terminal.
        rows: u16,
    },
    /// To pipes, and from there to our standard output and standard error.
    Pipes,
    /// To this file, at its end, and from there to our standard output: the command does not need us to go on.
    Log(PathBuf),
}

/// Something that happened to a program under watch.
#[derive(Debug)]
pub enum Notice {
    /// It printed this.
    Output(Vec<u8>),
    /// It sent this over the event channel.
    Message(Box<Message>),
    /// It ended.
    Ended(Ending),
    /// We were asked to end.
    Asked(Stop),
    /// Somebody else has something for the one who reads the notices.
    Woken,
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

/// A command to be started.
#[derive(Debug)]
pub struct Launch<'a> {
    /// The program and its arguments.
    pub words: &'a [OsString],
    /// Added to its environment.
    pub environment: &'a [(&'a str, OsString)],
    /// Where its output goes.
    pub output_mode: &'a OutputMode,
    /// A control group's list of processes, to which it adds itself before it begins.
    pub group: Option<File>,
}

/// A command that was started. Its process id stays its own, even if it ends at once, until it is followed.
pub struct Launched {
    /// Process id.
    pub pid: u32,
    /// Taken when it is followed.
    child: Option<Child>,
    readers: Vec<thread::JoinHandle<()>>,
    keyboard: Option<Keyboard>,
    has_ended: Arc<AtomicBool>,
}

impl Launched {
    /// From now on its end is noticed.
    pub fn follow(mut self, notices: SyncSender<Notice>) {
        let Some(mut child) = self.child.take() else { return };
        let (readers, keyboard) = (std::mem::take(&mut self.readers), self.keyboard.take());
        let has_ended = Arc::clone(&self.has_ended);
        thread::spawn(move || {
            let ending = child.wait().map_or(Ending::Signal(0), Ending::from);
            has_ended.store(true, Ordering::Release);
            // What it printed last comes before its end; descendants that keep its output open are not waited for long.
            let patience = Instant::now() + LAST_WORDS;
            while Instant::now() < patience && !readers.iter().all(thread::JoinHandle::is_finished) {
                thread::sleep(Duration::from_millis(5));
            }
            // The terminal is as it was before anything else is printed.
            drop(keyboard);
            drop(notices.send(Notice::Ended(ending)));
        });
    }
}

impl Drop for Launched {
    /// A command that nobody follows must not go on: whoever started it has failed.
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself.
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// Starts a command; what it prints is sent to `notices`.
pub fn launch(what: Launch<'_>, notices: &SyncSender<Notice>) -> io::Result<Launched> {
    let Some((program, arguments)) = what.words.split_first() else { return Err(io::ErrorKind::InvalidInput.into()) };
    let mut command = command_of(program);
    command.args(arguments).envs(what.environment.iter().map(|(name, value)| (name, value)));
    let mut terminal = None;
    match what.output_mode {
        OutputMode::Terminal => terminal = Some(Terminal::open(&mut command, None)?),
        OutputMode::View { columns, rows } => terminal = Some(Terminal::open(&mut command, Some((*columns, *rows)))?),
        OutputMode::Pipes => {
            command.stdin(Stdio::inherit()).stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        OutputMode::Log(path) => {
            let log = garden_files::open_log(path)?;
            command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        }
    }
    let has_terminal = terminal.is_some();
    let mut group = what.group;
    // SAFETY: between fork and exec only async-signal-safe system calls are made: setsid, an ioctl and a write.
    unsafe {
        command.pre_exec(move || {
            rustix::process::setsid()?;
            if has_terminal {
                rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
            }
            // 0 stands for the process that writes it.
            group.as_mut().map_or(Ok(()), |group| group.write_all(b"0"))
        });
    }
    let log = match what.output_mode {
        OutputMode::Log(path) => Some(File::open(path).and_then(|mut log| log.seek(SeekFrom::End(0)).map(|_| log))?),
        _ => None,
    };
    let mut child = command.spawn()?;
    // Our copies of the child's end must go, or its output would never end.
    drop(command);
    let pid = child.id();
    let has_ended = Arc::new(AtomicBool::new(false));
    let mut readers = Vec::new();
    if let Some(out) = child.stdout.take() {
        readers.push(pass_on(out, io::stdout(), notices.clone()));
    }
    if let Some(err) = child.stderr.take() {
        readers.push(pass_on(err, io::stderr(), notices.clone()));
    }
    if let Some(log) = log {
        let tail = Tail { log, has_ended: Arc::clone(&has_ended) };
        readers.push(pass_on(tail, io::stdout(), notices.clone()));
    }
    let mut keyboard = None;
    if let Some(terminal) = terminal {
        if *what.output_mode == OutputMode::Terminal {
            keyboard = Keyboard::connect(&terminal).ok();
            readers.push(pass_on(terminal.into_output(), io::stdout(), notices.clone()));
        } else {
            readers.push(pass_on(terminal.into_output(), io::sink(), notices.clone()));
        }
    }
    Ok(Launched { pid, child: Some(child), readers, keyboard, has_ended })
}

/// Where our own program was at the first call, for whoever starts it again.
pub fn own_program() -> io::Result<&'static Path> {
    match OWN.get() {
        Some(own) => Ok(own),
        None => std::env::current_exe().map(|found| OWN.get_or_init(|| found).as_path()),
    }
}

static OWN: OnceLock<PathBuf> = OnceLock::new();

/// A command for a program. Our own is called by its name, so that traces and lists of processes do not say where it is. It may have been taken away since we began, as an
/// upgrade does for a moment: then the one that runs is started once more.
pub fn command_of(program: &OsStr) -> Command {
    let Some(own) = OWN.get().filter(|own| own.as_os_str() == program) else { return Command::new(program) };
    let mut command = Command::new(if own.exists() { own.as_path() } else { Path::new("/proc/self/exe") });
    command.arg0(name_of(program));
    command
}

/// What a program is called: our own by its name, any other as it was given.
pub(crate) fn name_of(program: &OsStr) -> &OsStr {
    let own = OWN.get().filter(|own| own.as_os_str() == program);
    own.and_then(|own| own.file_name()).unwrap_or(program)
}

/// Starts a program in a session of its own that outlives us, with this environment and nothing of ours, or else with ours; all it prints goes to a log.
pub fn start_in_background(
    program: &Path,
    words: &[OsString],
    environment: Option<&[(OsString, OsString)]>,
    log: File,
) -> io::Result<Child> {
    let mut command = command_of(program.as_os_str());
    if let Some(environment) = environment {
        command.env_clear().envs(environment.iter().map(|(name, value)| (name, value)));
    }
    command.args(words).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    // SAFETY: setsid is async-signal-safe and the only call between fork and exec.
    unsafe {
        command.pre_exec(|| Ok(rustix::process::setsid().map(drop)?));
    }
    command.spawn()
}

/// A log file read while somebody else writes it; it ends when the writer has ended.
struct Tail {
    log: File,
    has_ended: Arc<AtomicBool>,
}

impl Read for Tail {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            // Asked before reading, so that what was written last is not missed.
            let is_last = self.has_ended.load(Ordering::Acquire);
            match self.log.read(buffer)? {
                0 if is_last => return Ok(0),
                0 => thread::sleep(LOG_PAUSE),
                count => return Ok(count),
            }
        }
    }
}

/// Passes output on and tells the watcher, until it ends.
fn pass_on(
    mut from: impl Read + Send + 'static,
    mut to: impl Write + Send + 'static,
    notices: SyncSender<Notice>,
) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut buffer = [0; 16384];
        loop {
            match from.read(&mut buffer) {
                // A pseudo-terminal ends with an error (EIO) instead of an end of file.
                Ok(0) | Err(_) => break,
                Ok(count) => {
                    // Told first: our own output may be blocked by whoever reads it.
                    if notices.send(Notice::Output(buffer[..count].to_vec())).is_err() {
                        break;
                    }
                    // If our own output is closed, the program goes on all the same.
                    drop(to.write_all(&buffer[..count]).and_then(|()| to.flush()));
                }
            }
        }
    })
}

/// Begins this process anew, as the same one with the same words and more in its environment: what a library reads there at its start. Returns only if that
/// cannot be done.
pub fn begin_anew(environment: &[(&str, &str)]) -> io::Error {
    match own_program() {
        Err(error) => error,
        Ok(program) => Command::new(program).args(std::env::args_os().skip(1)).envs(environment.iter().copied()).exec(),
    }
}

/// Becomes another program: signals and the exit code are its own from then on. Returns only if that fails.
pub fn become_program(program: &OsStr, arguments: &[OsString]) -> io::Error {
    Command::new(program).args(arguments).exec()
}

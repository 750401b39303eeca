//! A program that answers and ends: for how long it may run and how much it may say is bounded.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, setpriority_process};

use crate::launch::command_of;

/// How often a program that closed its output is asked whether it has ended.
const PAUSE: Duration = Duration::from_millis(5);
/// Its niceness, as `nice` has it by default.
const LOW: i32 = 10;

/// What a program said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Brief {
    /// Its exit code; none if a signal ended it.
    pub code: Option<i32>,
    /// What it printed.
    pub output: Vec<u8>,
    /// What it printed as errors.
    pub error: Vec<u8>,
}

/// Kills a program that nobody waits for any more.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Runs a program to its end, with this environment and nothing of ours. One that takes longer than `patience`, or says more than `most` bytes, is killed, and that is an error.
pub fn run_briefly(
    program: &Path,
    words: &[OsString],
    environment: &[(OsString, OsString)],
    input: Option<File>,
    patience: Duration,
    most: u64,
) -> io::Result<Brief> {
    let deadline = Instant::now() + patience;
    let input = input.map_or_else(Stdio::null, Stdio::from);
    let mut command = command_of(program.as_os_str());
    command.env_clear().envs(environment.iter().map(|(name, value)| (name, value)));
    let child = command.args(words).stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut started = Started(child);
    // It takes the processor time that whoever waits for it does not need for others.
    if let Some(pid) = i32::try_from(started.0.id()).ok().and_then(Pid::from_raw) {
        let _ = setpriority_process(Some(pid), LOW);
    }
    let output = started.0.stdout.take().map(|pipe| thread::spawn(move || read(pipe, most)));
    let error = started.0.stderr.take().map(|pipe| thread::spawn(move || read(pipe, most)));
    let status = loop {
        if let Some(status) = started.0.try_wait()? {
            break status;
        }
        if Instant::now() >= deadline {
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {} s", patience.as_secs())));
        }
        thread::sleep(PAUSE);
    };
    let joined = |reader: Option<thread::JoinHandle<io::Result<Vec<u8>>>>| match reader.map(thread::JoinHandle::join) {
        Some(Ok(text)) => text,
        _ => Ok(Vec::new()),
    };
    Ok(Brief { code: status.code(), output: joined(output)?, error: joined(error)? })
}

/// Reads to the end; the pipe is closed where that is too far, which ends whoever writes.
fn read(pipe: impl Read, most: u64) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    pipe.take(most + 1).read_to_end(&mut text)?;
    match text.len() as u64 > most {
        true => Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("an answer of more than {most} bytes"))),
        false => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, patience: Duration, most: u64) -> io::Result<Brief> {
        run_briefly(
            Path::new("/bin/sh"),
            &["-c".into(), script.into()],
            &[("GIVEN".into(), "here".into())],
            None,
            patience,
            most,
        )
    }

    #[test]
    fn an_answer_has_its_bounds() {
        let minute = Duration::from_secs(60);
        let said = shell("echo one; echo two >&2; exit 3", minute, 100).unwrap();
        assert_eq!(said, Brief { code: Some(3), output: b"one\n".to_vec(), error: b"two\n".to_vec() });
        assert_eq!(shell("echo ${HOME-gone} $GIVEN", minute, 100).unwrap().output, b"gone here\n");
        assert_eq!(shell("yes", minute, 1000).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        let began = Instant::now();
        let late = shell("exec sleep 50", Duration::from_millis(100), 100).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        assert!(began.elapsed() < Duration::from_secs(40));
    }
}

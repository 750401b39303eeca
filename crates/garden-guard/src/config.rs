//! What is to be run and how it is to be guarded, who is told, and what can go wrong.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::mpsc::SyncSender;
use std::time::Duration;
use std::{fmt, io};

use garden_memory::{Bytes, RunFacts};
use regex_lite::Regex;
use serde::Serialize;

use crate::fence::Fence;
use crate::launch::{Notice, OutputMode};
use crate::live::{Happening, Live};
use crate::signals::Stop;
use crate::state::StateFolder;

/// What to do when the limit is near.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnLimit {
    /// Stop with a checkpoint.
    Stop,
    /// Stop with a checkpoint, and start again from it.
    Restart,
}

/// What to do when a scheduler warns with SIGUSR1 or SIGUSR2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnWarning {
    /// Pass it on to a program that catches it, and stop another as on SIGTERM.
    Forward,
    /// Stop as on SIGTERM: the program catches it only for the case that the guard does not get it.
    Stop,
}

/// What is to be run, and how it is to be guarded.
#[derive(Debug)]
pub struct GuardConfig {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Variables added to its environment.
    pub environment: Vec<(&'static str, OsString)>,
    /// Memory that it may use, if that is less than the machine or the control group allows.
    pub limit: Option<Bytes>,
    /// Share of the limit that is the backstop.
    pub stop_at: f64,
    /// How long a program that was asked to save may take.
    pub grace: Duration,
    /// What to do when the limit is near.
    pub on_limit: OnLimit,
    /// What to do when a scheduler warns.
    pub on_warning: OnWarning,
    /// How many starts in a row may bring no newer checkpoint before it is not started again.
    pub max_restarts: u32,
    /// Words that make it go on from a checkpoint.
    pub resume_with: Option<String>,
    /// Where its checkpoints are.
    pub checkpoint_dir: Option<PathBuf>,
    /// Whether that was asked for, rather than guessed from the command.
    pub is_folder_given: bool,
    /// Time between samples.
    pub interval: Duration,
    /// What is known about the run.
    pub facts: RunFacts,
    /// How the step is found in what it prints.
    pub step_pattern: Option<Regex>,
    /// Where its output goes.
    pub output_mode: OutputMode,
    /// The hard fence, if one was built.
    pub fence: Option<Fence>,
    /// Where the trace goes.
    pub trace: PathBuf,
    /// Whether a trace that is there is of an earlier part of this run, and gone on with.
    pub goes_on: bool,
    /// Where the state is told.
    pub state: Option<StateFolder>,
}

/// Who is told what happens, and may ask for an end.
pub trait Observer {
    /// The guarding begins; whoever has something to say of their own may wake the guard with a notice.
    fn begin(&mut self, notices: &SyncSender<Notice>);
    /// Something that a person should know.
    fn say(&mut self, remark: &Remark);
    /// Something happened; `guard` is what the guard does, in a sentence.
    fn happened(&mut self, happening: &Happening, live: &mut Live, guard: &str) -> Option<Stop>;
}

/// Something that a person should know; its words are those of [`fmt::Display`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remark {
    /// How the program will be stopped, as far as is known now.
    Method(String),
    /// Checkpoints of an earlier run are there.
    OlderCheckpoints,
    /// What was done, or will be.
    News(String),
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Remark::Method(words) => write!(f, "guard: {words}"),
            Remark::OlderCheckpoints => f.write_str("there are checkpoints of an earlier run; only new ones count"),
            Remark::News(words) => f.write_str(words),
        }
    }
}

/// Why a run could not be guarded.
#[derive(Debug)]
pub enum Error {
    /// The program could not be started.
    Start(OsString, io::Error),
    /// It could not be watched.
    Watch(u32, io::Error),
    /// The trace could not be written.
    Trace(PathBuf, io::Error),
    /// Signals cannot be heard.
    Signals(io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Start(program, _) => write!(f, "cannot start `{}`", program.to_string_lossy()),
            Error::Watch(pid, _) => write!(f, "cannot watch process `{pid}`"),
            Error::Trace(path, _) => write!(f, "cannot write the trace `{}`", path.display()),
            Error::Signals(_) => f.write_str("cannot listen for signals"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Start(_, error) | Error::Watch(_, error) | Error::Trace(_, error) | Error::Signals(error) => {
                Some(error)
            }
        }
    }
}

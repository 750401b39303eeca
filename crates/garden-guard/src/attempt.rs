//! What one start of a program cost and gave.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::launch::Ending;
use crate::signals::{REQUEUE, Warning};

/// One start of the program, from its launch to its end.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Attempt {
    /// 1 for the first.
    pub number: u32,
    /// Process id.
    pub pid: u32,
    /// When that process was started, in clock ticks since boot: a later one may have the same id.
    pub started: u64,
    /// The checkpoint that it went on from.
    pub resumed_from: Option<PathBuf>,
    /// Checkpoints that were newer but could not be used, with what is wrong with them.
    pub skipped: Vec<Skipped>,
    /// The first step that it told.
    pub first_step: Option<f64>,
    /// The last step that it told.
    pub last_step: Option<f64>,
    /// How long it ran.
    pub seconds: f64,
    /// The most memory that it held.
    pub highest_bytes: u64,
    /// Why it was told to stop, if it was.
    pub stopped_because: Option<String>,
    /// The newest complete checkpoint at its end.
    pub checkpoint: Option<PathBuf>,
    /// The step of that checkpoint.
    pub checkpoint_step: Option<u64>,
    /// Steps that were done after that checkpoint, and so are done again or lost.
    pub lost_steps: Option<f64>,
    /// Seconds from being told to stop to its end.
    pub stopping_seconds: Option<f64>,
    /// How it ended.
    pub ending: String,
}

/// A checkpoint that cannot be used.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Skipped {
    /// Where it was.
    pub path: PathBuf,
    /// What is wrong with it.
    pub why: String,
    /// Where it was set aside, if it is damaged; renaming it back undoes that.
    pub now: Option<PathBuf>,
}

/// How the whole run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The program ended by itself, or because we were asked to end it.
    Own {
        /// Its exit code, or 128 and the signal.
        code: i32,
    },
    /// It was stopped at the limit and has a checkpoint that holds all its steps, as far as it told them.
    StoppedWithCheckpoint,
    /// A scheduler's warning, SIGUSR1 or SIGUSR2, ended it: by way of the guard, or because it died of the signal itself.
    StoppedByScheduler,
    /// The restart budget is spent: too many starts in a row brought no newer checkpoint.
    BudgetSpent,
    /// It ended at the limit without having saved its last steps.
    CouldNotSave,
}

impl Outcome {
    /// The exit code.
    pub fn code(self) -> i32 {
        match self {
            Outcome::Own { code } => code,
            Outcome::StoppedWithCheckpoint | Outcome::StoppedByScheduler => REQUEUE,
            Outcome::BudgetSpent => 76,
            Outcome::CouldNotSave => 77,
        }
    }
}

/// What went wrong in watching a program; none of it ended the watching.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "WrittenTroubles")]
pub struct Troubles {
    /// Samples that were late.
    pub late_samples: u64,
    /// Readings that failed.
    pub failed_readings: u64,
    /// Lines of the trace that could not be written.
    pub unwritten_lines: u64,
}

impl Troubles {
    /// Whether there were any.
    pub fn any(self) -> bool {
        self != Troubles::default()
    }
}

// Earlier versions wrote a list without names.
#[derive(Deserialize)]
#[serde(untagged)]
enum WrittenTroubles {
    Named { late_samples: u64, failed_readings: u64, unwritten_lines: u64 },
    List(u64, u64, u64),
}

impl From<WrittenTroubles> for Troubles {
    fn from(written: WrittenTroubles) -> Troubles {
        let (WrittenTroubles::Named { late_samples, failed_readings, unwritten_lines }
        | WrittenTroubles::List(late_samples, failed_readings, unwritten_lines)) = written;
        Troubles { late_samples, failed_readings, unwritten_lines }
    }
}

/// A run from its first start to its last end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Summary {
    /// What went wrong in watching it.
    pub troubles: Troubles,
    /// The exit code.
    pub code: i32,
    /// How it ended.
    pub outcome: Outcome,
    /// How it ended, in a sentence.
    pub words: String,
    /// Whether we were asked to end it, by a signal to us; also by one that was passed on to it.
    #[serde(default)]
    pub was_asked: bool,
    /// Each start.
    pub attempts: Vec<Attempt>,
}

impl Summary {
    /// Whether it was stopped as somebody asked, and can go on.
    pub fn is_stopped(&self) -> bool {
        matches!(self.code, 0 | REQUEUE)
    }
}

impl Ending {
    /// The warning of a scheduler that it died of; a shell reports that of its command as a code.
    pub fn warning(self) -> Option<Warning> {
        match self {
            Ending::Signal(signal) => Warning::of(signal),
            Ending::Code(code) => Warning::of(code - 128),
        }
    }

    /// How it ended, in words.
    pub fn words(self) -> String {
        match self {
            Ending::Code(0) => "ended normally".into(),
            Ending::Code(code) => format!("ended with code {code}"),
            Ending::Signal(9) => "was killed (signal 9; the kernel does that when memory runs out)".into(),
            Ending::Signal(signal) => format!("was ended by signal {signal}"),
        }
    }
}

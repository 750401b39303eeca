//! Arguments of the commands that watch a program, `monitor` and `run`, and what `diagnose` shares with them: run facts and the gate.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use garden_memory::{Bytes, RunFacts, Stability};
use regex_lite::Regex;

use super::duration;

pub const MONITOR_HELP: &str = "\
Exit codes:
  as for `diagnose`     0, 1 for bad news or a failed assertion, 3 for too little data
  4                     the command failed or was killed without being asked to end
  2                     it could not be started or watched
  With --passthrough, the command's own code instead.

Examples:
  model-garden monitor python train.py
  model-garden monitor --report report.html python train.py --epochs 3
  model-garden monitor --stable-after 90 --max-growth 500MB python train.py
  model-garden monitor --pid 4711 --interval 5s --duration 10m
  model-garden monitor --find-training --steps-per-epoch 83";

/// Arguments of `model-garden monitor`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("target").required(true))]
pub struct Monitor {
    /// Watch this process and its descendants.
    #[arg(long, group = "target")]
    pub pid: Option<u32>,

    /// Watch the Python process with the most memory on this machine.
    #[arg(long, group = "target")]
    pub find_training: bool,

    /// Start this command and watch it; our own options come before it.
    #[arg(trailing_var_arg = true, group = "target", value_name = "COMMAND")]
    pub command: Vec<OsString>,

    /// Stop watching after this time; a command that was started keeps running, its output passed through.
    #[arg(long, value_parser = duration)]
    pub duration: Option<Duration>,

    /// Listen for the program's messages on a Unix socket at this path; watching ends with its exit message.
    #[arg(long, value_name = "SOCKET", conflicts_with = "command")]
    pub channel: Option<PathBuf>,

    /// Exit with the command's own code, whatever the verdict.
    #[arg(long, requires = "command")]
    pub passthrough: bool,

    #[command(flatten)]
    pub watching: Watching,
}

pub const RUN_HELP: &str = "\
Exit codes:
  the command's own   it ended by itself, or on request
  75                  stopped at the limit with a complete checkpoint, or by a batch
                      scheduler's SIGUSR1 or SIGUSR2 that it does not catch
  76                  more than --max-restarts starts in a row without a newer checkpoint
  77                  ended at the limit, or killed, with its last steps unsaved
  1                   it ended with 0, but --stable-after or --stable-between failed
  2                   it could not be started or watched

Examples:
  model-garden run --memory-limit 28GB python train.py --output_dir out
  model-garden run --memory-limit 28GB --on-limit restart \\
      --resume-with '--resume_from_checkpoint {checkpoint}' \\
      accelerate launch train.py --output_dir out
  model-garden run --state-dir job7 --detach python train.py
  model-garden run --state-dir job7 --attach
  model-garden run --state-dir job7 --stop";

/// Arguments of `model-garden run`.
#[derive(Debug, Args)]
pub struct Run {
    /// The command to run; our own options come before it.
    #[arg(trailing_var_arg = true, value_name = "COMMAND", required_unless_present_any = ["attach", "stop"])]
    pub command: Vec<OsString>,

    /// Share of the limit to stay below, unless the growth is known to end below the limit.
    #[arg(long, value_name = "SHARE", default_value = "90%", value_parser = share)]
    pub stop_at: f64,

    /// Time the program gets to save when asked to.
    #[arg(long, default_value = "120s", value_parser = duration)]
    pub grace: Duration,

    /// What to do at the limit.
    #[arg(long, value_enum, default_value_t = OnLimit::Stop)]
    pub on_limit: OnLimit,

    /// Starts in a row to allow without a newer checkpoint.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub max_restarts: u32,

    /// Arguments added to the command on a restart, for example '--resume_from_checkpoint {checkpoint}'.
    ///
    /// The checkpoint's path is also in the environment variable MODEL_GARDEN_RESUME.
    #[arg(long, value_name = "WORDS", allow_hyphen_values = true, required_if_eq("on_limit", "restart"))]
    pub resume_with: Option<String>,

    /// Folder of the program's checkpoints [default: its --output_dir, or as reported over the event channel].
    #[arg(long, value_name = "DIR")]
    pub checkpoint_dir: Option<PathBuf>,

    /// Enforce the limit with a hard fence: a control group or a systemd scope.
    #[arg(long)]
    pub fence: bool,

    /// Keep the run's state in this folder; the program then writes to a log there and can outlive the guard.
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,

    /// Continue in the background and return immediately.
    #[arg(long, requires = "state_dir")]
    pub detach: bool,

    /// Follow the run in --state-dir: its output, then its exit code.
    #[arg(long, requires = "state_dir", conflicts_with_all = ["command", "detach"])]
    pub attach: bool,

    /// Ask the run in --state-dir to save and exit, and wait until it has.
    #[arg(long, requires = "state_dir", conflicts_with_all = ["command", "detach", "attach"])]
    pub stop: bool,

    #[command(flatten)]
    pub watching: Watching,
}

/// What to do when the limit is near.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnLimit {
    /// Stop with a checkpoint.
    Stop,
    /// Stop with a checkpoint and start again from it.
    Restart,
}

fn share(text: &str) -> Result<f64, String> {
    let wrong = || format!("`{text}` is not a share between 10% and 100%");
    let number = |text: &str| text.trim().parse::<f64>().map_err(|_| wrong());
    let share = match text.strip_suffix('%') {
        Some(percent) => number(percent)? / 100.0,
        None => number(text)?,
    };
    if (0.1..=1.0).contains(&share) { Ok(share) } else { Err(wrong()) }
}

/// How something is watched.
#[derive(Debug, Args)]
pub struct Watching {
    /// Time between samples, for example 500ms, 1s or 1m.
    #[arg(long, default_value = "1s", value_parser = duration)]
    pub interval: Duration,

    /// Write the trace to this file [default: a new one in ~/.local/state/model-garden/traces, which keeps the last 100].
    #[arg(short, long, value_name = "TRACE")]
    pub output: Option<PathBuf>,

    /// Write a report to this file at the end: a page with charts that works offline, or JSON, Markdown or text by its ending
    /// (.json, .md, .txt).
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,

    /// Print a line per sample and event instead of the live view; the default without a terminal.
    #[arg(long)]
    pub plain: bool,

    /// Regex for the step in the command's output, for example 'iter (\d+)'; the first numeric group counts.
    #[arg(long, value_name = "REGEX", value_parser = pattern)]
    pub step_pattern: Option<Regex>,

    #[command(flatten)]
    pub facts: Facts,

    #[command(flatten)]
    pub gate: Gate,
}

fn pattern(text: &str) -> Result<Regex, String> {
    Regex::new(text).map_err(|error| error.to_string())
}

/// What is known about a run besides its memory.
#[derive(Debug, Args)]
#[command(next_help_heading = "Run facts")]
pub struct Facts {
    /// Examples in the training set.
    #[arg(long, value_name = "N", value_parser = at_least_one, requires = "batch_size")]
    pub examples: Option<u64>,

    /// Examples per micro-batch.
    #[arg(long, value_name = "B", value_parser = at_least_one)]
    pub batch_size: Option<u64>,

    /// Micro-batches per optimizer step [default: 1].
    #[arg(long, value_name = "G", value_parser = at_least_one, requires = "batch_size")]
    pub gradient_accumulation: Option<u64>,

    /// Optimizer steps per epoch, instead of --examples.
    #[arg(long, value_name = "S", value_parser = at_least_one, conflicts_with = "examples")]
    pub steps_per_epoch: Option<u64>,

    /// Optimizer steps in the whole run.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub total_steps: Option<u64>,

    /// Memory limit, for example 32GB (powers of 1024) [default: this machine's].
    #[arg(long, value_name = "SIZE")]
    pub memory_limit: Option<Bytes>,
}

fn at_least_one(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(number) if number >= 1 => Ok(number),
        _ => Err("expected a whole number of at least 1".into()),
    }
}

impl From<&Facts> for RunFacts {
    fn from(facts: &Facts) -> RunFacts {
        RunFacts {
            examples: facts.examples,
            batch_size: facts.batch_size,
            gradient_accumulation: facts.gradient_accumulation,
            steps_per_epoch: facts.steps_per_epoch,
            total_steps: facts.total_steps,
            memory_limit: facts.memory_limit,
        }
    }
}

/// What memory must do for a run to pass: a gate for CI.
#[derive(Debug, Args)]
#[command(next_help_heading = "Assertion")]
#[command(group = clap::ArgGroup::new("stretch"))]
#[command(group = clap::ArgGroup::new("bound").multiple(true))]
pub struct Gate {
    /// Fail (exit 1) unless memory stays within the bounds from this step on.
    #[arg(long, value_name = "STEP", group = "stretch", requires = "bound")]
    pub stable_after: Option<u64>,

    /// Fail (exit 1) unless memory stays within the bounds between these steps, for example 90..120.
    #[arg(long, value_name = "FROM..TO", group = "stretch", requires = "bound", value_parser = stretch)]
    pub stable_between: Option<(u64, u64)>,

    /// Maximum difference between the highest and lowest level there, for example 500MB.
    #[arg(long, value_name = "SIZE", group = "bound", requires = "stretch")]
    pub max_variation: Option<Bytes>,

    /// Maximum rise above an earlier level there; any fall is fine.
    #[arg(long, value_name = "SIZE", group = "bound", requires = "stretch")]
    pub max_growth: Option<Bytes>,
}

impl Gate {
    /// What is asserted, if anything is.
    pub fn stability(&self) -> Option<Stability> {
        let between = self.stable_between.map(|(from, to)| (from, Some(to)));
        let (from, to) = between.or(self.stable_after.map(|from| (from, None)))?;
        let to = to.map(|to| to as f64);
        Some(Stability { from: from as f64, to, max_variation: self.max_variation, max_growth: self.max_growth })
    }
}

fn stretch(text: &str) -> Result<(u64, u64), String> {
    let wrong = || format!("`{text}` is not a range of steps; use for example 90..120");
    let (from, to) = text.split_once("..").ok_or_else(wrong)?;
    let step = |text: &str| text.trim().parse::<u64>().map_err(|_| wrong());
    let (from, to) = (step(from)?, step(to)?);
    if from < to { Ok((from, to)) } else { Err(format!("{from} is not before {to}")) }
}

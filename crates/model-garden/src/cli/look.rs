//! Arguments of the commands that look at memory: `diagnose`, `compare`, `bisect` and `audit`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use garden_memory::Bytes;
use garden_trace::Unit;

use super::watch::{Facts, Gate};
use super::{Format, duration};

pub const DIAGNOSE_HELP: &str = "\
Verdicts and exit codes:
  flat          no growth beyond noise after start-up                             0
  sawtooth      oscillates on a flat floor                                        0
  settled       grew, then stopped: bounded                                       0
  growing       too early to tell; 1 if even the bounded forecast exceeds the limit
  leak          unbounded growth of the floor                                     1
  insufficient  too little data, and what is missing                              3
  A memory limit in reach exits with 1, whatever the verdict, as does a failed --stable-after or --stable-between;
  unreadable input or wrong arguments with 2.

Examples:
  model-garden diagnose train.log --examples 663 --batch-size 2 \\
      --gradient-accumulation 4
  model-garden diagnose memory.csv --steps-per-epoch 83 --memory-limit 32GB \\
      --format json
  model-garden diagnose memory.csv --steps-per-epoch 83 --format html \\
      -o report.html
  mprof run train.py && model-garden diagnose mprofile_*.dat
  nvidia-smi --query-gpu=timestamp,index,memory.used,memory.total --format=csv \\
      -l 1 > gpus.csv
  model-garden diagnose gpus.csv --select 'GPU 1'
  grep RAM train.log | model-garden diagnose -";

/// Arguments of `model-garden diagnose`.
#[derive(Debug, Args)]
pub struct Diagnose {
    /// The trace: our own format, CSV, TSV, JSON lines, a training log, the output of ps, free, top, nvidia-smi, docker or mprof;
    /// `-` for standard input.
    ///
    /// The format is recognised by the content, not by the name.
    pub trace: PathBuf,

    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,

    /// Write to this file instead of standard output.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    #[command(flatten)]
    pub facts: Facts,

    /// Judge this column (or, in a log, the value after this label) instead of the one found by name.
    #[arg(long, value_name = "NAME")]
    pub column: Option<String>,

    /// Unit of the judged column, whatever its name says, and of values without one: mib, kib, gib or bytes.
    #[arg(long)]
    pub unit: Option<Unit>,

    /// Of several series in the file (ranks, GPUs, processes, containers): judge only this one, for example `GPU 1`.
    #[arg(long, value_name = "NAME")]
    pub select: Option<String>,

    /// The data has no epochs (a stream, a server): judge growth by its length in time, not by passes over the data.
    #[arg(long)]
    pub no_epochs: bool,

    /// Without epochs: call steady growth a leak once it has lasted this long, for example 30m, or `never` [default: 6h].
    #[arg(long, value_name = "DURATION", value_parser = leak_after)]
    pub leak_after: Option<f64>,

    #[command(flatten)]
    pub gate: Gate,
}

/// Seconds after which growth without epochs is a leak; infinite for never.
fn leak_after(text: &str) -> Result<f64, String> {
    if text == "never" { Ok(f64::INFINITY) } else { duration(text).map(|time| time.as_secs_f64()) }
}

pub const COMPARE_HELP: &str = "\
Answers:
  same          no effect on growth that matters
  ends, less    the growth has ended, or is slower
  more          new growth, or more of it
  unclear       too noisy to tell: the interval includes both no effect and one that matters
  insufficient  too little data, and what is missing

Exit codes: 0 for a comparison, whatever it says; 1 for an answer that --fail-on names; 3 for too little data; 2 for unreadable input or wrong
arguments.

Examples:
  model-garden compare before.jsonl after.jsonl
  model-garden compare --before a1.jsonl a2.jsonl a3.jsonl \\
      --after b1.jsonl b2.jsonl b3.jsonl
  model-garden compare before.csv after.csv --from 20 --format html \\
      -o compare.html
  model-garden compare before.csv after.csv --fail-on more";

/// Arguments of `model-garden compare`.
#[derive(Debug, Args)]
pub struct Compare {
    /// The trace before a change and the one after it, in any format that `diagnose` reads.
    #[arg(value_names = ["BEFORE", "AFTER"], num_args = 2, required_unless_present_any = ["before", "after"])]
    pub traces: Vec<PathBuf>,

    /// Traces of runs before the change.
    #[arg(long, value_name = "TRACE", num_args = 1.., requires = "after", conflicts_with = "traces")]
    pub before: Vec<PathBuf>,

    /// Traces of runs after the change.
    #[arg(long, value_name = "TRACE", num_args = 1.., requires = "before", conflicts_with = "traces")]
    pub after: Vec<PathBuf>,

    /// Skip everything before this step, or second in traces without steps [default: the first tenth].
    #[arg(long, value_name = "STEP")]
    pub from: Option<f64>,

    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,

    /// Write to this file instead of standard output.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    #[command(flatten)]
    pub facts: Facts,

    /// Compare this column (or, in logs, the value after this label) instead of the one found by name.
    #[arg(long, value_name = "NAME")]
    pub column: Option<String>,

    /// Unit of the compared column, whatever its name says, and of values without one: mib, kib, gib or bytes.
    #[arg(long)]
    pub unit: Option<Unit>,

    /// Of several series in each file (ranks, GPUs, processes): compare this one, for example `rank 0`.
    #[arg(long, value_name = "NAME")]
    pub select: Option<String>,

    /// Exit with 1 on these answers, for continuous integration.
    #[arg(long, value_enum, value_name = "ANSWER", value_delimiter = ',')]
    pub fail_on: Vec<FailOn>,
}

/// An answer of `compare` that fails a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FailOn {
    /// Memory needs more after the change: it grows more, or stands higher.
    More,
    /// Steps take longer after it.
    Slower,
    /// The runs are too noisy to tell whether memory grows more.
    Unclear,
}

pub const BISECT_HELP: &str = "\
The function takes no arguments and returns a dict: `dataset`; optionally `processor`, `collator`, `model`, `loss`, `optimizer` and
`callbacks`; and the settings `batch_size`, `workers` and `device`.

Exit codes: 0 no growth, or harmless growth; 1 a leak, or a cache that will not fit; 2 an error.

Examples:
  model-garden bisect train:pieces
  model-garden bisect train:pieces --examples 100 --passes 5 \\
      --record pieces.json
  model-garden bisect pieces.json --format html -o bisect.html";

/// Arguments of `model-garden bisect`.
#[derive(Debug, Args)]
pub struct Bisect {
    /// module:function that returns the pieces, or the record of an earlier experiment.
    #[arg(value_name = "MODULE:FUNCTION")]
    pub target: String,

    /// Examples per pass, all different.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(8..))]
    pub examples: u32,

    /// Passes over the examples [default: as many as --time allows, 2 to 24].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub passes: Option<u32>,

    /// Approximate time budget; at least two passes are made.
    #[arg(long, default_value = "60s", value_parser = duration)]
    pub time: Duration,

    /// Python to use [default: from $VIRTUAL_ENV, else next to this program, else python3].
    #[arg(long, value_name = "FILE")]
    pub python: Option<PathBuf>,

    /// Save the measurements to this file.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,

    /// Available memory [default: this machine's or its control group's].
    #[arg(long, value_name = "SIZE")]
    pub memory_limit: Option<Bytes>,

    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,

    /// Write the answer to a file instead of standard output.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Remove the record once it has been read.
    #[arg(long, hide = true)]
    pub forget: bool,
}

pub const AUDIT_HELP: &str = "\
The function is a generator: each `yield` ends a step. Its keyword arguments, if any, are its settings.

Workarounds:
  gc.collect, gc.collect/10        collects garbage after every step, or every tenth
  malloc_trim, empty_cache         asks the C library, or torch, to return free memory
  subprocess, subprocess/20        restarts the loop in a fresh process every 10 or 20 steps
  num_workers=0                    a setting of the loop
  MALLOC_ARENA_MAX=2               an environment variable (in capitals)

Exit codes: 0 for an answer, whatever it is; 3 for too little data; 2 for an error.

Examples:
  model-garden audit train:loop --workaround gc.collect \\
      --workaround malloc_trim
  model-garden audit train:loop -w subprocess -w num_workers=0 --steps 100 \\
      --rounds 5 --record tried
  model-garden audit tried --format html -o audit.html";

/// Arguments of `model-garden audit`.
#[derive(Debug, Args)]
pub struct Audit {
    /// module:function, a generator function where each yield ends a step; or the folder of an earlier record.
    #[arg(value_name = "MODULE:FUNCTION")]
    pub target: PathBuf,

    /// Workaround to try; may be repeated.
    #[arg(short, long, value_name = "NAME")]
    pub workaround: Vec<String>,

    /// Setting of the loop for all runs, such as batch_size=2; may be repeated.
    #[arg(long, value_name = "NAME=VALUE")]
    pub setting: Vec<String>,

    /// Measured steps per run.
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(10..))]
    pub steps: u32,

    /// Runs of each kind.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub rounds: u32,

    /// Warm-up steps per run, not measured [default: a fifth of --steps].
    #[arg(long, value_name = "N")]
    pub warm_up: Option<u32>,

    /// Abort a run when a step takes longer than this.
    #[arg(long, default_value = "5m", value_parser = duration)]
    pub patience: Duration,

    /// Python to use [default: from $VIRTUAL_ENV, else next to this program, else python3].
    #[arg(long, value_name = "FILE")]
    pub python: Option<PathBuf>,

    /// Save the traces to this folder.
    #[arg(long, value_name = "FOLDER")]
    pub record: Option<PathBuf>,

    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,

    /// Write to this file instead of standard output.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Remove the record once it has been read.
    #[arg(long, hide = true)]
    pub forget: bool,
}

//! The command line, declared apart from what the commands do.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use garden_memory::{Bytes, RunFacts, Stability};
use garden_trace::Unit;
use garden_train::MOST_THREADS;
use regex_lite::Regex;

mod bench;
mod check;
mod model;
mod plan;
mod serve;
mod train;

use bench::BENCH_HELP;
pub use bench::Bench;
use check::CHECK_HELP;
pub use check::{Check, CheckFormat};
use model::{EXPORT_HELP, GENERATE_HELP, PREVIEW_HELP, QUANTISE_HELP};
pub use model::{Export, ExportType, Generate, Preview, Quantise};
use plan::PLAN_HELP;
pub use plan::{Plan, PlanFormat};
use serve::SERVE_HELP;
pub use serve::{Serve, ServeJob};
use train::{DEMO_HELP, TRAIN_HELP};
pub use train::{Demo, Devices, RecipeFlags, Report, TrainVision, TrainWorker};

/// Fine-tune vision-language models with memory you can trust.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Diagnose a recorded memory trace: leak, warm-up, filling cache, or fine?
    ///
    /// Prints the verdict, a chart, the evidence, a forecast, likely causes and what to do.
    #[command(after_long_help = DIAGNOSE_HELP)]
    Diagnose(Diagnose),

    /// Compare the memory growth of two runs, and the cost of their steps.
    ///
    /// Pass a trace from before a change and one from after it, or several of each: then the intervals include how much runs
    /// of the same kind differ.
    #[command(after_long_help = COMPARE_HELP)]
    Compare(Compare),

    /// Try workarounds on a Python loop: which of them change memory growth, and at what cost?
    ///
    /// Alternates short runs with and without each workaround, each in its own process. Needs Python with the package
    /// `model-garden`.
    #[command(after_long_help = AUDIT_HELP)]
    Audit(Audit),

    /// Watch a running process tree or a new command: record its memory and diagnose it at the end.
    ///
    /// Needs neither root nor changes to the program. Steps are read from its output (tqdm bars, `Step N`, HF logs) or from the
    /// event channel; without steps, growth is measured over time. `diagnose` can judge the trace again.
    #[command(after_long_help = MONITOR_HELP)]
    Monitor(Monitor),

    /// Guard a command: stop it with a checkpoint before memory runs out and, if you like, restart it from there.
    ///
    /// Stops as late as is safe: while one more step and a save still fit. A run that has settled, or whose growth ends below
    /// the limit, is left alone. Detects and reports how to make the program save: over the event channel, or by SIGTERM if
    /// it catches that; otherwise it is ended just after the last periodic checkpoint that fits.
    #[command(after_long_help = RUN_HELP)]
    Run(Run),

    /// Find the piece of a Python pipeline that makes memory grow: runs the same examples several times, piece by piece.
    ///
    /// Runs dataset, processor, collator, model and so on alone and together, in separate processes. Growth in the first pass
    /// only is a cache, growth in every pass a leak. Reports what keeps the memory, what frees it, and how much the whole
    /// dataset will need. Needs Python with the package `model-garden`.
    #[command(after_long_help = BISECT_HELP)]
    Bisect(Bisect),

    /// Answer prompts about images with a model and, optionally, an adapter.
    ///
    /// Plans memory before the first token, and streams the answer to standard output.
    #[command(after_long_help = GENERATE_HELP)]
    Generate(Generate),

    /// Validate every row of a dataset before training: errors, sizes, steps per epoch, memory.
    ///
    /// Prints a summary, then bad rows by file, line and field, charts, the largest row, and the memory the data needs.
    #[command(after_long_help = CHECK_HELP)]
    Check(Check),

    /// Predict how much memory a run will need, by purpose, before loading anything; works from shapes alone, without weights.
    ///
    /// The model's memory is counted buffer by buffer, so it is exact; the rest of the host's is exact or marked as estimated. If the
    /// run does not fit, lists the cheapest changes that would make it fit, and what each saves.
    #[command(after_long_help = PLAN_HELP)]
    Plan(Plan),

    /// Benchmark a training step on this machine: time by stage, tokens per second, share of the peak, memory.
    ///
    /// Uses random weights in the shape of a released model, so nothing has to be downloaded. Times are those of real training.
    #[command(after_long_help = BENCH_HELP)]
    Bench(Bench),

    /// Show a row of a dataset as the model sees it: its text, its images, and which tokens are trained.
    ///
    /// Trained tokens are coloured or, without colour, marked with « and ».
    #[command(after_long_help = PREVIEW_HELP)]
    Preview(Preview),

    /// Quantise a checkpoint to 4 bits (NF4), in the format of transformers and bitsandbytes.
    ///
    /// Works tensor by tensor: at most the largest one is in memory at a time.
    #[command(visible_alias = "quantize", after_long_help = QUANTISE_HELP)]
    Quantise(Quantise),

    /// Merge an adapter into its base model: a checkpoint as on the hub, which any program can load without the adapter.
    ///
    /// Writes config, safetensors, tokenizer, chat template and preprocessor settings, and verifies the result against the base with its adapter.
    #[command(after_long_help = EXPORT_HELP)]
    Export(Export),

    /// Fine-tune a vision-language model: rows with images in, an adapter out.
    ///
    /// Validates every row and plans memory before the first step, trains in a separate process under the guard, evaluates, saves checkpoints that resume
    /// exactly, and ends with a verdict on its memory.
    #[command(after_long_help = TRAIN_HELP)]
    TrainVision(TrainVision),

    /// Start here: draw pictures, teach a tiny model to describe them, and watch its memory.
    #[command(after_long_help = DEMO_HELP)]
    Demo(Demo),
    /// Rebuild the report page of a training run from its output folder.
    ///
    /// `train-vision` writes it when it ends; use this for a run that was killed, or after an update.
    Report(Report),

    /// Show which device training would use, and if not the GPU, why.
    Devices(Devices),

    /// Serve fine-tuning jobs to clients of OpenAI's API: uploads, a queue, live memory verdicts, results.
    ///
    /// The same client code and the same JSONL files work by changing the base URL. Each job is a guarded process of its own, which outlives the server; a
    /// restarted server finds its jobs again.
    #[command(after_long_help = SERVE_HELP)]
    Serve(Serve),

    /// Process of a job, started by `serve`.
    #[command(hide = true)]
    ServeJob(ServeJob),

    /// Training process, started by `train-vision`.
    #[command(hide = true)]
    TrainWorker(TrainWorker),
}

const BISECT_HELP: &str = "\
The function takes no arguments and returns a dict: `dataset`; optionally `processor`, `collator`, `model`, `loss`, `optimizer` and
`callbacks`; and the settings `batch_size`, `workers` and `device`.

Exit codes: 0 no growth, or harmless growth; 1 a leak, or a cache that will not fit; 2 an error.

Examples:
  model-garden bisect train:pieces
  model-garden bisect train:pieces --examples 100 --passes 5 --record pieces.json
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

const RUN_HELP: &str = "\
Exit codes:
  the command's own   it ended by itself, or on request
  75                  stopped at the limit with a complete checkpoint
  76                  more than --max-restarts starts in a row without a newer checkpoint
  77                  ended at the limit, or killed, with its last steps unsaved
  1                   it ended with 0, but --stable-after or --stable-between failed
  2                   it could not be started or watched

Examples:
  model-garden run --memory-limit 28GB -- python train.py --output_dir out
  model-garden run --memory-limit 28GB --on-limit restart --resume-with '--resume_from_checkpoint {checkpoint}' \
      -- accelerate launch train.py --output_dir out
  model-garden run --state-dir job7 --detach -- python train.py
  model-garden run --state-dir job7 --attach
  model-garden run --state-dir job7 --stop";

/// Arguments of `model-garden run`.
#[derive(Debug, Args)]
pub struct Run {
    /// The command to run.
    #[arg(last = true, value_name = "COMMAND", required_unless_present_any = ["attach", "stop"])]
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

    /// Regex for the step in the command's output, for example 'iter (\\d+)'; the first numeric group counts.
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

const MONITOR_HELP: &str = "\
Exit codes:
  as for `diagnose`     0, 1 for bad news or a failed assertion, 3 for too little data
  4                     the command failed or was killed without being asked to end
  2                     it could not be started or watched
  With --passthrough, the command's own code instead.

Examples:
  model-garden monitor -- python train.py
  model-garden monitor --report report.html -- python train.py
  model-garden monitor --stable-after 90 --max-growth 500MB -- python train.py
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

    /// Start this command and watch it.
    #[arg(last = true, group = "target", value_name = "COMMAND")]
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

fn threads(text: &str) -> Result<usize, String> {
    let wanted = text.parse::<usize>().ok().filter(|wanted| *wanted <= MOST_THREADS);
    wanted.ok_or_else(|| format!("`{text}` is not a number of threads: use 1 to {MOST_THREADS}, or 0 for all cores"))
}

fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a duration; use for example 500ms, 1s, 10m or 2h");
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let number: f64 = text[..digits].parse().map_err(|_| wrong())?;
    let seconds = match &text[digits..] {
        "ms" => number / 1000.0,
        "" | "s" => number,
        "m" | "min" => number * 60.0,
        "h" => number * 3600.0,
        "d" => number * 86_400.0,
        _ => return Err(wrong()),
    };
    let duration = Duration::try_from_secs_f64(seconds).map_err(|_| wrong())?;
    if duration < Duration::from_millis(10) { Err("must be at least 10ms".into()) } else { Ok(duration) }
}

const DIAGNOSE_HELP: &str = "\
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
  model-garden diagnose train.log --examples 663 --batch-size 2 --gradient-accumulation 4
  model-garden diagnose memory.csv --steps-per-epoch 83 --memory-limit 32GB --format json
  model-garden diagnose memory.csv --steps-per-epoch 83 --format html -o report.html
  mprof run train.py && model-garden diagnose mprofile_*.dat
  nvidia-smi --query-gpu=timestamp,index,memory.used,memory.total --format=csv -l 1 > gpus.csv
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

const COMPARE_HELP: &str = "\
Answers:
  same          no effect on growth that matters
  ends, less    the growth has ended, or is slower
  more          new growth, or more of it
  unclear       too noisy to tell: the interval includes both no effect and one that matters
  insufficient  too little data, and what is missing

Exit codes: 0 for a comparison, whatever it says; 3 for too little data; 2 for unreadable input or wrong arguments.

Examples:
  model-garden compare before.jsonl after.jsonl
  model-garden compare --before a1.jsonl a2.jsonl a3.jsonl --after b1.jsonl b2.jsonl b3.jsonl
  model-garden compare before.csv after.csv --from 20 --format html -o compare.html";

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
}

const AUDIT_HELP: &str = "\
The function is a generator: each `yield` ends a step. Its keyword arguments, if any, are its settings.

Workarounds:
  gc.collect, gc.collect/10        collects garbage after every step, or every tenth
  malloc_trim, empty_cache         asks the C library, or torch, to return free memory
  subprocess, subprocess/20        restarts the loop in a fresh process every 10 or 20 steps
  num_workers=0                    a setting of the loop
  MALLOC_ARENA_MAX=2               an environment variable (in capitals)

Exit codes: 0 for an answer, whatever it is; 3 for too little data; 2 for an error.

Examples:
  model-garden audit train:loop --workaround gc.collect --workaround malloc_trim
  model-garden audit train:loop -w subprocess -w num_workers=0 --steps 100 --rounds 5 --record tried
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

/// The form of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For the terminal.
    Text,
    /// For scripts: the stable contract described in docs/json.md.
    Json,
    /// For a bug tracker.
    Markdown,
    /// For a browser: one file with charts that works offline.
    Html,
}

impl Format {
    /// What it is called on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_string()).unwrap_or_default()
    }
}

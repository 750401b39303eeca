//! The command line, declared apart from what the commands do. A file for each group of commands; the groups themselves are in `help.rs`.

use std::time::Duration;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use garden_train::MOST_THREADS;

mod bench;
mod check;
mod forms;
mod help;
mod look;
mod machine;
mod model;
mod plan;
mod serve;
mod train;
mod watch;

use bench::BENCH_HELP;
pub use bench::Bench;
use check::CHECK_HELP;
pub use check::Check;
pub use forms::{Format, Printed};
use look::{AUDIT_HELP, BISECT_HELP, COMPARE_HELP, DIAGNOSE_HELP};
pub use look::{Audit, Bisect, Compare, Diagnose, FailOn};
use machine::{COMPLETIONS_HELP, DOCTOR_HELP, MAN_HELP};
pub use machine::{Completions, Devices, Doctor, Man, Purpose};
pub use model::{Answering, Chat, Export, ExportType, Generate, Preview, Quantise};
use model::{CHAT_HELP, EXPORT_HELP, GENERATE_HELP, PREVIEW_HELP, QUANTISE_HELP};
use plan::PLAN_HELP;
pub use plan::{Picture, Plan};
use serve::SERVE_HELP;
pub use serve::{Serve, ServeAction, ServeBackup, ServeJob, ServeTool};
use train::{DEMO_HELP, REPORT_HELP, TRAIN_HELP};
pub use train::{Demo, Flags, RecipeFlags, Report, TrainVision, TrainWorker};
use watch::{MONITOR_HELP, RUN_HELP};
pub use watch::{Monitor, OnLimit, Run, Watching};

/// Fine-tune vision-language models with memory you can trust.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// The whole command line as clap knows it: what is parsed, and what help, completions and man pages are made from.
    pub fn whole() -> clap::Command {
        help::grouped(Cli::command())
    }

    /// Reads the words that this program was started with.
    pub fn read() -> Result<Cli, clap::Error> {
        let mut command = Cli::whole();
        let read = command.try_get_matches_from_mut(std::env::args_os());
        let read = read.and_then(|matches| Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command)));
        read.map_err(|error| help::with_fair_suggestions(error, &command))
    }
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Judge recorded memory: leak, warm-up, filling cache, or fine?
    ///
    /// Reads a trace, a log or a table. Prints the verdict, a chart, the evidence, a forecast, likely causes and what to do.
    #[command(after_long_help = DIAGNOSE_HELP)]
    Diagnose(Diagnose),

    /// Compare the memory growth and step times of two runs.
    ///
    /// Pass a trace from before a change and one from after it, or several of each: then the intervals include how much runs
    /// of the same kind differ.
    #[command(after_long_help = COMPARE_HELP)]
    Compare(Compare),

    /// Try workarounds on a Python loop: which help, and at what cost?
    ///
    /// Alternates short runs with and without each workaround, each in its own process. Needs Python with the package
    /// `model-garden`.
    #[command(after_long_help = AUDIT_HELP)]
    Audit(Audit),

    /// Watch a command or a running process, and judge its memory.
    ///
    /// Records the memory of the whole process tree and diagnoses it at the end. Needs neither root nor changes to the program. Steps are read from its output (tqdm bars, `Step N`, HF logs) or from the
    /// event channel; without steps, growth is measured over time. `diagnose` can judge the trace again.
    #[command(after_long_help = MONITOR_HELP)]
    Monitor(Monitor),

    /// Stop a command with a checkpoint before memory runs out.
    ///
    /// Restarts it from there, if you like. Stops as late as is safe: while one more step and a save still fit. A run that has settled, or whose growth ends below
    /// the limit, is left alone. Detects and reports how to make the program save: over the event channel, or by SIGTERM if
    /// it catches that; otherwise it is ended just after the last periodic checkpoint that fits.
    #[command(after_long_help = RUN_HELP)]
    Run(Run),

    /// Find the piece of a Python pipeline that makes memory grow.
    ///
    /// Takes the same examples several times through dataset, processor, collator, model and so on, alone and together, in separate processes. Growth in the first pass
    /// only is a cache, growth in every pass a leak. Reports what keeps the memory, what frees it, and how much the whole
    /// dataset will need. Needs Python with the package `model-garden`.
    #[command(after_long_help = BISECT_HELP)]
    Bisect(Bisect),

    /// Ask a model about images, with or without an adapter.
    ///
    /// Plans memory before the first token, and streams the answer to standard output.
    #[command(after_long_help = GENERATE_HELP)]
    Generate(Generate),

    /// Talk with a model about images, with or without an adapter.
    ///
    /// Plans memory for the whole conversation before the first token, and streams answers to standard output.
    #[command(after_long_help = CHAT_HELP)]
    Chat(Chat),

    /// Validate every row of a dataset before training.
    ///
    /// Prints a summary, then bad rows by file, line and field, charts, the largest row, steps per epoch, and the memory the data needs.
    #[command(after_long_help = CHECK_HELP)]
    Check(Check),

    /// Predict the memory a run will need; no weights needed.
    ///
    /// By purpose, before loading anything. The model's memory is counted buffer by buffer, so it is exact; the rest of the host's is exact or marked as estimated. If the
    /// run does not fit, lists the cheapest changes that would make it fit, and what each saves.
    #[command(after_long_help = PLAN_HELP)]
    Plan(Plan),

    /// Time a training step on this machine.
    ///
    /// Time by stage, tokens per second, share of the peak, memory. Uses random weights in the shape of a released model, so nothing has to be downloaded. Times are those of real training.
    #[command(after_long_help = BENCH_HELP)]
    Bench(Bench),

    /// Show a dataset row as the model sees it.
    ///
    /// Its text, its images, and which tokens are trained: those are coloured or, without colour, marked with « and ».
    #[command(after_long_help = PREVIEW_HELP)]
    Preview(Preview),

    /// Quantise a checkpoint to 4 bits, as transformers loads it.
    ///
    /// NF4 in the format of bitsandbytes. Works tensor by tensor: at most the largest one is in memory at a time.
    #[command(visible_alias = "quantize", after_long_help = QUANTISE_HELP)]
    Quantise(Quantise),

    /// Merge an adapter into its model, and verify the result.
    ///
    /// The result is a checkpoint as on the hub, which any program can load without the adapter. Writes config, safetensors, tokenizer, chat template and preprocessor settings, and verifies the result against the base with its adapter.
    #[command(after_long_help = EXPORT_HELP)]
    Export(Export),

    /// Fine-tune a model on rows with images; the result is an adapter.
    ///
    /// Validates every row and plans memory before the first step, trains in a separate process under the guard, evaluates, saves checkpoints that resume
    /// exactly, and ends with a verdict on its memory.
    #[command(after_long_help = TRAIN_HELP)]
    TrainVision(TrainVision),

    /// The whole workflow in a minute, on drawn pictures.
    ///
    /// Draws pictures, teaches a tiny model to describe them, and shows its memory.
    #[command(after_long_help = DEMO_HELP)]
    Demo(Demo),

    /// Rebuild the report page of a training run.
    ///
    /// Reads its output folder. `train-vision` writes the page when it ends; use this for a run that was killed, or after an update.
    #[command(after_long_help = REPORT_HELP)]
    Report(Report),

    /// Show which device training would use; if not the GPU, why.
    Devices(Devices),

    /// Serve fine-tuning jobs to clients of OpenAI's API.
    ///
    /// Uploads, a queue, live memory verdicts, results. The same client code and the same JSONL files work by changing the base URL. Each job is a guarded process of its own, which outlives the server; a
    /// restarted server finds its jobs again.
    #[command(after_long_help = SERVE_HELP)]
    Serve(Serve),

    /// Show what this machine has and what would not work, with fixes.
    ///
    /// CPU, memory and its limits, GPU and driver, Python and its packages, disk.
    #[command(after_long_help = DOCTOR_HELP)]
    Doctor(Doctor),

    /// Print the completions for a shell.
    #[command(after_long_help = COMPLETIONS_HELP)]
    Completions(Completions),

    /// Write the man pages of all commands.
    #[command(after_long_help = MAN_HELP)]
    Man(Man),

    /// Process of a job, started by `serve`.
    #[command(hide = true)]
    ServeJob(ServeJob),

    /// Process that reads what a client has sent, started by `serve`.
    #[command(hide = true)]
    ServeTool(ServeTool),

    /// Training process, started by `train-vision`.
    #[command(hide = true)]
    TrainWorker(TrainWorker),
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

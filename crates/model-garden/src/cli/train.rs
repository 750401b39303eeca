//! Arguments of `train-vision`: every setting of a recipe is a flag, by the same name.

use std::marker::PhantomData;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use garden_train::{FIELDS, IGNORED};
use serde_json::Value;

use super::Printed;

pub const TRAIN_HELP: &str = "\
Training runs in a separate process under the guard: Ctrl-C saves a checkpoint and stops, a second Ctrl-C quits immediately; before memory runs out it
saves and restarts. SIGUSR1 and SIGUSR2, by which batch schedulers warn, save and stop as well. Option names of Hugging Face's trainer work too
(--num_train_epochs, --per_device_train_batch_size, ...).

Exit codes: 0 trained; 1 does not fit into memory; 2 a problem with the recipe, the model, the data or the disk; 75 stopped by SIGUSR1 or SIGUSR2,
or at the memory limit, with a checkpoint: start it again with --resume auto; 76, 77 stopped at the memory limit with all restarts used, without a
checkpoint; 130 stopped by Ctrl-C or SIGTERM with a checkpoint.

Examples:
  model-garden train-vision --model Qwen/Qwen2.5-VL-3B-Instruct \\
      --dataset train.jsonl --output-dir out --load-in-4bit
  model-garden train-vision --config run.toml --learning-rate 1e-4 \\
      --output-dir out2
  model-garden train-vision --model DIR --dataset photos.jsonl \\
      --dataset text.jsonl --dataset-weights 0.7,0.3 --output-dir out3
  model-garden train-vision --config run.toml --resume auto
  model-garden train-vision --config run.toml --dry-run   # only looks";

/// Arguments of `model-garden train-vision`.
#[derive(Debug, Args)]
pub struct TrainVision {
    /// Recipe file (TOML) with any of these settings; flags override it.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Validate everything and print the memory plan and what would happen, without training.
    #[arg(long)]
    pub dry_run: bool,

    #[command(flatten)]
    pub printed: Printed,

    #[command(flatten)]
    pub recipe: RecipeFlags,
}

pub const REPORT_HELP: &str = "\
Exit codes: 0 written; 2 no training run in the folder, or the page cannot be written.

Examples:
  model-garden report out
  model-garden report out -o page.html";

/// Arguments of `model-garden report`.
#[derive(Debug, Args)]
pub struct Report {
    /// Output folder of a training run.
    #[arg(value_name = "OUTPUT_DIR")]
    pub folder: PathBuf,

    /// Where to write the page [default: report.html in that folder].
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Settings whose flags may be repeated; of others the last one counts.
const IN_PIECES: [&str; 2] = ["field", "ignore-field"];

/// Which settings of a recipe a command has as flags.
pub trait Chosen {
    /// Whether it has this one.
    fn has(name: &str) -> bool;
}

/// All of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct All;

impl Chosen for All {
    fn has(_name: &str) -> bool {
        true
    }
}

/// Settings that were given as flags, by name.
#[derive(Clone, Debug, Default)]
pub struct Flags<C>(pub Vec<(String, Value)>, PhantomData<C>);

/// The flags of commands that take a whole recipe.
pub type RecipeFlags = Flags<All>;

/// Names that a command has, and those that do nothing here.
fn names<C: Chosen>() -> impl Iterator<Item = &'static str> {
    let ignored = IGNORED.iter().map(|(name, _)| *name).filter(|name| C::has(name));
    FIELDS.iter().map(|field| field.name).filter(|name| C::has(name)).chain(ignored)
}

impl<C: Chosen> Args for Flags<C> {
    fn augment_args(command: Command) -> Command {
        let ignored = IGNORED.iter().filter(|(name, _)| C::has(name));
        let command = ignored.fold(command, |command, (name, _)| {
            let arg = Arg::new(*name).long(*name).alias(name.replace('-', "_")).hide(true);
            command.arg(arg.num_args(0..=1).default_missing_value("true").overrides_with(*name))
        });
        FIELDS.iter().filter(|field| C::has(field.name)).fold(command, |command, field| {
            // Hugging Face's scripts write underscores.
            let others = std::iter::once(&field.name).chain(field.aliases).flat_map(|name| {
                let underscored = name.replace('-', "_");
                [name.to_string(), underscored]
            });
            let arg = Arg::new(field.name)
                .long(field.name)
                .aliases(others.filter(|name| name != field.name))
                .help(field.described())
                .help_heading(field.heading)
                .value_name(if field.value.is_empty() { "true|false" } else { field.value })
                .hide(field.name.starts_with("debug"));
            // Lists grow with each flag. A second evaluation dataset would not be added to the first, and nobody means to throw that away.
            let arg = match field.name {
                name if field.is_list || IN_PIECES.contains(&name) => arg.action(ArgAction::Append),
                "eval-dataset" => arg,
                name => arg.overrides_with(name),
            };
            // What these mean without a value is what Hugging Face's trainer means by it.
            let missing = match field.name {
                "resume" => Some("auto"),
                "recompute" => Some("layer"),
                _ => field.value.is_empty().then_some("true"),
            };
            command.arg(if let Some(missing) = missing {
                arg.num_args(0..=1).default_missing_value(missing)
            } else if field.is_list {
                arg.num_args(1..).allow_negative_numbers(true)
            } else {
                arg.num_args(1).allow_negative_numbers(true)
            })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Flags::<C>::augment_args(command)
    }
}

impl<C: Chosen> FromArgMatches for Flags<C> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Flags<C>, clap::Error> {
        let pair = |name: &'static str| Some((name.to_string(), given(matches, name)?));
        Ok(Flags(names::<C>().filter_map(pair).collect(), PhantomData))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Flags::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The value of a flag; a list of those of a flag that was given several times.
fn given(matches: &ArgMatches, name: &str) -> Option<Value> {
    let values: Vec<String> = matches.try_get_many::<String>(name).ok().flatten()?.cloned().collect();
    if IN_PIECES.contains(&name) {
        return Some(Value::String(values.join(",")));
    }
    Some(match <[String; 1]>::try_from(values) {
        Ok([value]) => Value::String(value),
        Err(values) => Value::from(values),
    })
}

/// Arguments of the process that trains.
#[derive(Debug, Args)]
pub struct TrainWorker {
    /// The job.
    #[arg(value_name = "JOB")]
    pub job: PathBuf,
}

pub const DEMO_HELP: &str = "\
Draws 2880 pictures of shapes and 144 held-out ones, and fine-tunes a tiny Qwen2.5-VL (2.2 MB, part of this program) to describe them in JSON. Takes about
a minute. Guessing would get 31 % of fields right.

Examples:
  model-garden demo
  model-garden demo --seed 7 --output-dir /tmp/demo";

/// Arguments of `model-garden demo`.
#[derive(Debug, Args)]
pub struct Demo {
    /// New folder for pictures, base model and result.
    #[arg(long, value_name = "DIR", default_value = "model-garden-demo")]
    pub output_dir: PathBuf,

    /// Seed of the pictures, the row order and the new adapter.
    #[arg(long, value_name = "N", default_value_t = 42)]
    pub seed: u64,

    /// Where to compute; auto uses the GPU if there is one.
    #[arg(long, value_name = "auto|cpu|cuda", default_value = "auto")]
    pub device: String,

    /// Threads for computing on the CPU [default: all cores].
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, value_parser = super::threads)]
    pub threads: usize,

    /// Stop after N steps instead of two epochs: faster, but learns less.
    #[arg(long, value_name = "N")]
    pub max_steps: Option<usize>,

    #[command(flatten)]
    pub printed: Printed,
}

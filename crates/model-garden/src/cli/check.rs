//! Arguments of `model-garden check`.

use std::path::PathBuf;

use super::Printed;
use super::train::{Chosen, Flags};
use clap::Args;

pub const CHECK_HELP: &str = "\
Only the headers of images are read, so a row takes less than a millisecond. Rows that are too long are bad under `refuse`, and counted under `shrink`
and `drop`. Duplicates and empty answers are warnings. Damage after an image's header is only found with --decode.

Exit codes: 0 every row is usable; 1 some rows are bad; 2 the dataset or the model cannot be used.

Examples:
  model-garden check train.jsonl --model Qwen/Qwen2.5-VL-3B-Instruct
  model-garden check data/ --model DIR --split validation --max-length 4096 \\
      --on-long-row shrink
  model-garden check train.jsonl --model DIR --batch-size 1 \\
      --gradient-accumulation 8 --format json";

/// Arguments of `model-garden check`.
#[derive(Debug, Args)]
pub struct Check {
    /// A file, a folder, or the name of a dataset in the hub's local cache; several are checked as they would be trained together.
    #[arg(value_name = "DATASET", required = true)]
    pub datasets: Vec<PathBuf>,

    /// Model folder, or the name of a model in the local Hugging Face cache.
    #[arg(long, alias = "base-model", value_name = "DIR|HUB_ID")]
    pub model: PathBuf,

    /// Split of the dataset.
    #[arg(long, value_name = "NAME", default_value = "train")]
    pub split: String,

    /// Threads [default: all cores].
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, value_parser = super::threads)]
    pub threads: usize,

    /// Also decode every picture, which finds damage behind its header and takes as long as it does in training.
    #[arg(long)]
    pub decode: bool,

    /// Also measure how long a step takes on this machine, with LoRA as usual; takes some seconds.
    #[arg(long)]
    pub step_time: bool,

    #[command(flatten)]
    pub printed: Printed,

    #[command(flatten)]
    pub settings: Flags<OfRows>,
}

/// The settings that decide which rows come and what they are.
#[derive(Clone, Copy, Debug, Default)]
pub struct OfRows;

impl Chosen for OfRows {
    fn has(name: &str) -> bool {
        let of_batches = ["dataset-weights", "max-samples", "seed", "batch-size", "gradient-accumulation"];
        OF_ONE_ROW.contains(&name) || of_batches.contains(&name)
    }
}

/// The settings that decide what one row is.
pub const OF_ONE_ROW: [&str; 12] = [
    "system-prompt",
    "chat-template",
    "max-pixels",
    "min-pixels",
    "max-length",
    "image-paths",
    "field",
    "ignore-field",
    "box-format",
    "bbox-2d",
    "on-long-row",
    "labels",
];

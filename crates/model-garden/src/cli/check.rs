//! Arguments of `model-garden check`.

use std::path::PathBuf;

use clap::Args;
use garden_data::{BoxFormat, FieldMeanings, IgnoredFields, ImagePaths, Labels, TextBoxes, TooLong};

use super::Printed;

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

    /// Share of each dataset in the rows of an epoch, such as 0.7,0.3 [default: all rows of all datasets].
    #[arg(long, value_name = "W,W,...")]
    pub dataset_weights: Option<String>,

    /// Check only the N rows of each dataset that training with the same --max-samples and --seed draws [default: all rows].
    #[arg(long, value_name = "N[,N...]")]
    pub max_samples: Option<String>,

    /// Seed of the rows that --max-samples draws.
    #[arg(long, value_name = "N", default_value_t = 42)]
    pub seed: u64,

    /// Image files that rows may name: inside (in the dataset's folder) or anywhere [default: anywhere; for a dataset of the hub's cache, inside].
    #[arg(long, value_name = "WHERE")]
    pub image_paths: Option<ImagePaths>,

    /// What a field of the rows means, as in question=query,image=photo; may be repeated.
    #[arg(long, value_name = "MEANING=NAME")]
    pub field: Vec<FieldMeanings>,

    /// Fields that the rows are trained without, as in caption,messages[].label; may be repeated.
    #[arg(long, value_name = "NAME")]
    pub ignore_field: Vec<IgnoredFields>,

    /// How to write the boxes of `objects`: plain ([x1, y1, x2, y2], as models have them) or tokens (between <|box_start|> and <|box_end|>).
    #[arg(long, value_name = "FORMAT", default_value = "plain")]
    pub box_format: BoxFormat,

    /// Units of "bbox_2d" boxes in texts: pixels of the resized image (kept), or of the original image (converted).
    #[arg(long = "bbox-2d", value_name = "resized|original", default_value = "resized")]
    pub bbox_2d: TextBoxes,

    /// Maximum tokens per row [default: no limit].
    #[arg(long, value_name = "N")]
    pub max_length: Option<usize>,

    /// Refuse, shrink or drop rows that are too long.
    #[arg(long, value_name = "POLICY", default_value = "refuse")]
    pub on_long_row: TooLong,

    /// Maximum pixels; larger images are shrunk [default: what the model's preprocessor_config.json says].
    #[arg(long, value_name = "N")]
    pub max_pixels: Option<u64>,

    /// Minimum pixels; smaller images are enlarged.
    #[arg(long, value_name = "N")]
    pub min_pixels: Option<u64>,

    /// System prompt for rows without one [default: what the chat template says].
    #[arg(long, value_name = "TEXT")]
    pub system_prompt: Option<String>,

    /// Chat template (Jinja) to use instead of the model's own.
    #[arg(long, value_name = "FILE")]
    pub chat_template: Option<PathBuf>,

    /// Which tokens to train: assistant, completion or all.
    #[arg(long, value_name = "WHICH", default_value = "assistant")]
    pub labels: Labels,

    /// Rows per micro-batch.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub batch_size: u32,

    /// Micro-batches per optimizer step.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub gradient_accumulation: u32,

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
}

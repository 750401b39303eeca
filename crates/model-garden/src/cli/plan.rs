//! Arguments of `model-garden plan`.

use clap::{Args, ValueEnum};
use garden_memory::Bytes;
use garden_model::{PRESETS, Preset};

use super::train::RecipeFlags;

pub const PLAN_HELP: &str = "\
With --dataset the plan is for the largest micro-batch that its rows can make; else for rows of --text-tokens and --image. It takes the settings of
training; those that do not change memory are ignored. It is for the GPU if there is one, or with --device cuda or --vram; else for the processor.

Exit codes: 0 it fits; 1 it does not fit, with what would help; 2 the model, the dataset or the arguments cannot be used.

Examples:
  model-garden plan --shape qwen2.5-vl-3b --load-in-4bit --image 1024x1024 --text-tokens 256 --batch-size 2
  model-garden plan --shape qwen2.5-vl-7b --image 1280x720 --image 1280x720 --memory-limit 32GB --format json
  model-garden plan --shape qwen2.5-vl-7b --load-in-4bit --image 1024x1024 --vram 24GB          # would it fit onto such a card?
  model-garden plan --base-model DIR --dataset train.jsonl --batch-size 4 --recompute none";

/// Arguments of `model-garden plan`.
#[derive(Debug, Args)]
pub struct Plan {
    /// A released model, planned without its files: qwen2.5-vl-3b, -7b, -32b or -72b.
    #[arg(long, value_name = "NAME", value_parser = preset, conflicts_with_all = ["base-model", "dataset"])]
    pub shape: Option<Preset>,

    /// An image of each row; give it several times for several.
    #[arg(long, value_name = "WIDTHxHEIGHT", value_parser = size, conflicts_with = "dataset")]
    pub image: Vec<(usize, usize)>,

    /// Tokens of each row without those of its images.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub text_tokens: u32,

    /// Those of them that are trained [default: a quarter].
    #[arg(long, value_name = "N", conflicts_with = "dataset")]
    pub answer_tokens: Option<usize>,

    /// Plan for a GPU with so much free memory, such as 24GB, whether there is one here or not.
    #[arg(long, value_name = "SIZE")]
    pub vram: Option<Bytes>,

    /// How to print the plan.
    #[arg(long, value_enum, default_value_t = PlanFormat::Text)]
    pub format: PlanFormat,

    #[command(flatten)]
    pub settings: RecipeFlags,
}

/// How a plan is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PlanFormat {
    /// For the terminal.
    Text,
    /// For scripts: the fields described in docs/plan.md.
    Json,
}

pub(super) fn preset(name: &str) -> Result<Preset, String> {
    let names = || PRESETS.map(|preset| preset.name).join(", ");
    Preset::find(name).ok_or_else(|| format!("there are {}", names()))
}

/// `1024x768`.
fn size(text: &str) -> Result<(usize, usize), String> {
    let wrong = || "write it as WIDTHxHEIGHT, such as 1024x768".to_string();
    let (width, height) = text.split_once(['x', 'X', '×']).ok_or_else(wrong)?;
    let side = |text: &str| text.trim().parse::<usize>().ok().filter(|side| (1..=100_000).contains(side));
    Ok((side(width).ok_or_else(wrong)?, side(height).ok_or_else(wrong)?))
}

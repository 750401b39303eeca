//! Arguments of `model-garden plan`.

use clap::Args;
use garden_memory::Bytes;
use garden_model::Preset;

use super::Printed;
use super::train::RecipeFlags;

pub const PLAN_HELP: &str = "\
With --dataset, plans for the largest micro-batch that its rows can make; otherwise for rows of --text-tokens and --image. Takes all training settings;
those that do not affect memory are ignored. Plans for the GPU if there is one, or with --device cuda or --vram; otherwise for the CPU.

Exit codes: 0 it fits; 1 it does not fit, with suggestions; 2 the model, the dataset or the arguments cannot be used.

Examples:
  model-garden plan --shape qwen2.5-vl-3b --load-in-4bit --image 1024x1024 \\
      --text-tokens 256 --batch-size 2
  model-garden plan --shape qwen2.5-vl-7b --image 1280x720 --image 1280x720 \\
      --memory-limit 32GB --format json
  model-garden plan --shape qwen2.5-vl-7b --load-in-4bit --image 1024x1024 \\
      --vram 24GB
  model-garden plan --model DIR --dataset train.jsonl --batch-size 4 \\
      --recompute none";

/// Arguments of `model-garden plan`.
#[derive(Debug, Args)]
pub struct Plan {
    /// A released model, planned without its files: qwen2.5-vl-3b, -7b, -32b or -72b.
    #[arg(long, value_name = "NAME", value_parser = preset, conflicts_with_all = ["model", "dataset"])]
    pub shape: Option<Preset>,

    /// Size of an image in each row; may be repeated. `none` for rows of text alone.
    #[arg(long, value_name = "WIDTHxHEIGHT", value_parser = picture, conflicts_with = "dataset")]
    pub image: Vec<Picture>,

    /// Tokens per row, without images.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub text_tokens: u32,

    /// Trained tokens per row [default: a quarter of --text-tokens].
    #[arg(long, value_name = "N", conflicts_with = "dataset")]
    pub answer_tokens: Option<usize>,

    /// Plan for a GPU with this much free memory, such as 24GB, even if there is none here.
    #[arg(long, value_name = "SIZE")]
    pub vram: Option<Bytes>,

    /// Also measure how long a step takes on this machine, from a few layers; takes some seconds.
    #[arg(long, conflicts_with = "vram")]
    pub step_time: bool,

    #[command(flatten)]
    pub printed: Printed,

    #[command(flatten)]
    pub settings: RecipeFlags,
}

pub(super) fn preset(name: &str) -> Result<Preset, String> {
    let names = || Preset::all().map(|preset| preset.name).collect::<Vec<&str>>().join(", ");
    Preset::find(name).ok_or_else(|| format!("expected one of {}", names()))
}

/// An image of each row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Picture {
    /// There is none.
    None,
    /// Width and height in pixels.
    Size(usize, usize),
}

/// `1024x768`, or `none`.
fn picture(text: &str) -> Result<Picture, String> {
    if text == "none" {
        return Ok(Picture::None);
    }
    let wrong = || "expected WIDTHxHEIGHT, such as 1024x768, or none".to_string();
    let (width, height) = text.split_once(['x', 'X', '×']).ok_or_else(wrong)?;
    let side = |text: &str| text.trim().parse::<usize>().ok().filter(|side| (1..=100_000).contains(side));
    Ok(Picture::Size(side(width).ok_or_else(wrong)?, side(height).ok_or_else(wrong)?))
}

//! Arguments of `model-garden bench`.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use garden_model::{Config, Preset};
use garden_train::{DeviceChoice, Recompute};

use super::Printed;
use super::plan::preset;

pub const BENCH_HELP: &str = "\
Random weights are made on the spot, so there is nothing to download. Each step is timed as in training: micro-steps one after the other, then an
update, and one wait; on a GPU by its own clock. Two warm-up steps come first. Every row has one image and some text; LoRA of rank 16 on the decoder's
linear layers trains on the second half of the text. See docs/benchmarks.md.

Exit codes: 0 measured; 1 does not fit into memory; 2 no such GPU, or invalid arguments.

Examples:
  model-garden bench --shape qwen2.5-vl-3b
  model-garden bench --shape qwen2.5-vl-7b --load-in-4bit --batch-size 1 \\
      --format json
  model-garden bench --shape qwen2.5-vl-3b --device cpu --layers 2 \\
      --image-tokens 64 --text-tokens 64 --steps 2
  model-garden bench --shape tiny";

/// Arguments of `model-garden bench`.
#[derive(Debug, Args)]
pub struct Bench {
    /// A released model (qwen2.5-vl-3b, -7b, -32b or -72b), or `tiny`, which any machine can train.
    #[arg(long, value_name = "NAME", value_parser = shape)]
    pub shape: Shape,

    /// Pack the decoder's weights into 4 bits.
    #[arg(long)]
    pub load_in_4bit: bool,

    /// Gradient checkpointing: what to recompute in the backward pass.
    #[arg(long, value_name = "WHAT", default_value = "layer", value_parser = recompute())]
    pub recompute: Recompute,

    /// Train adapters in the vision tower, too.
    #[arg(long)]
    pub vision: bool,

    /// Use only the first N layers of decoder and vision tower, for machines with too little memory.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub layers: Option<u32>,

    /// Rows per micro-step.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub batch_size: u32,

    /// Image tokens per row; 0 for no image [default: 1024, for tiny 64].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub image_tokens: Option<u32>,

    /// Text tokens per row [default: 256, for tiny 32].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(4..=1_000_000))]
    pub text_tokens: Option<u32>,

    /// Micro-steps before each update.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub gradient_accumulation: u32,

    /// Measured steps.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub steps: u32,

    /// Where to compute; auto uses the GPU if there is one.
    #[arg(long, value_name = "auto|cpu|cuda", default_value = "auto", value_parser = super::model::device)]
    pub device: DeviceChoice,

    /// Threads for computing on the CPU [default: all cores].
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, value_parser = super::threads)]
    pub threads: usize,

    /// Time every GPU operation of one more step, and list where the time goes.
    #[arg(long)]
    pub kernels: bool,

    #[command(flatten)]
    pub printed: Printed,
}

/// What a model is like.
#[derive(Clone, Debug)]
pub struct Shape {
    pub name: &'static str,
    pub config: Config,
    /// Tokens of an image and of a text, where nobody says.
    pub tokens: (u32, u32),
}

fn shape(name: &str) -> Result<Shape, String> {
    if name.eq_ignore_ascii_case("tiny") {
        return Ok(Shape { name: "tiny", config: Config::tiny(), tokens: (64, 32) });
    }
    let of = |preset: Preset| Shape { name: preset.name, config: preset.config(), tokens: (1024, 256) };
    preset(name).map(of).map_err(|problem| format!("{problem} or tiny"))
}

fn recompute() -> impl TypedValueParser<Value = Recompute> {
    PossibleValuesParser::new(["layer", "none"]).map(|word| match word.as_str() {
        "none" => Recompute::None,
        _ => Recompute::Layer,
    })
}

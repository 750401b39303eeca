//! Arguments of `model-garden bench`.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use garden_model::{Config, Preset};
use garden_train::{DeviceChoice, Recompute};

use super::plan::preset;

pub const BENCH_HELP: &str = "\
Weights are random and made on the spot, so there is nothing to download. It measures what a step of training costs: micro-steps one after the other,
then an update, and one wait; on a GPU by its own clock. Two steps go before those that count. Every row has one image and some text, of which the
second half is trained by LoRA of rank 16 on the linears of the decoder; see docs/benchmarks.md.

Exit codes: 0 measured; 1 it would not fit into memory; 2 there is no such GPU, or the arguments cannot be used.

Examples:
  model-garden bench --shape qwen2.5-vl-3b
  model-garden bench --shape qwen2.5-vl-7b --load-in-4bit --batch-size 1 --json
  model-garden bench --shape qwen2.5-vl-3b --device cpu --layers 2 --image-tokens 64 --text-tokens 64 --steps 2
  model-garden bench --shape tiny";

/// Arguments of `model-garden bench`.
#[derive(Debug, Args)]
pub struct Bench {
    /// A released model (qwen2.5-vl-3b, -7b, -32b or -72b), or `tiny`, which any machine trains.
    #[arg(long, value_name = "NAME", value_parser = shape)]
    pub shape: Shape,

    /// Pack the decoder's weights into 4 bits.
    #[arg(long)]
    pub load_in_4bit: bool,

    /// What is made again in the backward pass instead of being kept.
    #[arg(long, value_name = "WHAT", default_value = "layer", value_parser = recompute())]
    pub recompute: Recompute,

    /// Train adapters of the vision tower, too.
    #[arg(long)]
    pub vision: bool,

    /// Keep only the first layers of decoder and vision tower, for machines that have no room for all.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub layers: Option<u32>,

    /// Rows of a micro-step.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub batch_size: u32,

    /// Tokens of each row's image; 0 for no image [default: 1024, for tiny 64].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub image_tokens: Option<u32>,

    /// Tokens of each row's text [default: 256, for tiny 32].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(4..=1_000_000))]
    pub text_tokens: Option<u32>,

    /// Micro-steps before each update.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub gradient_accumulation: u32,

    /// Steps that count.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub steps: u32,

    /// Where to compute; auto takes a GPU if there is one.
    #[arg(long, value_name = "DEVICE", default_value = "auto", value_parser = device())]
    pub device: DeviceChoice,

    /// Threads of a processor [default: all cores].
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = super::threads)]
    pub threads: usize,

    /// Then make one more step in which every operation of the GPU is timed, and tell where the time went.
    #[arg(long)]
    pub kernels: bool,

    /// Print everything that was measured as JSON.
    #[arg(long)]
    pub json: bool,
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
    preset(name).map(of).map_err(|problem| format!("{problem}, and tiny"))
}

fn recompute() -> impl TypedValueParser<Value = Recompute> {
    PossibleValuesParser::new(["layer", "none"]).map(|word| match word.as_str() {
        "none" => Recompute::None,
        _ => Recompute::Layer,
    })
}

fn device() -> impl TypedValueParser<Value = DeviceChoice> {
    PossibleValuesParser::new(["auto", "cpu", "cuda"]).map(|word| match word.as_str() {
        "cpu" => DeviceChoice::Cpu,
        "cuda" => DeviceChoice::Cuda,
        _ => DeviceChoice::Auto,
    })
}

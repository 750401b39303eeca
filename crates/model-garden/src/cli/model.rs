//! Arguments of the commands that work with models and their data.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use garden_memory::Bytes;
use garden_train::DeviceChoice;

use super::Printed;
use super::check::OF_ONE_ROW;
use super::train::{Chosen, Flags};

pub const GENERATE_HELP: &str = "\
Decoding is greedy unless --temperature, --top-k or --top-p turns on sampling. Answers end at the end tokens of the model's generation_config.json. A line
of --prompts is an object with `prompt` and optionally `image` or `images` and `system`; image paths are relative to the file's folder.

Exit codes: 0 all prompts answered; 2 a problem with the model, an image or the arguments.

Examples:
  model-garden generate --model Qwen/Qwen2.5-VL-3B-Instruct --image sign.jpg \\
      --prompt 'What does it say?'
  model-garden generate --model DIR --adapter out/checkpoint-100 --image a.png \\
      --image b.png --prompt 'Compare them.' --format json
  model-garden generate --model DIR --load-in-4bit --prompts questions.jsonl \\
      --temperature 0.7 --top-p 0.9 --seed 3";

/// A model, an adapter, and how its answers are made: what `generate` and `chat` have in common.
#[derive(Clone, Debug, Args)]
pub struct Answering {
    /// Model folder, or the name of a model in the local Hugging Face cache.
    #[arg(long, alias = "base-model", value_name = "DIR|HUB_ID")]
    pub model: PathBuf,

    /// Adapter folder in PEFT's layout.
    #[arg(long, value_name = "DIR")]
    pub adapter: Option<PathBuf>,

    /// Chat template (Jinja) [default: the one the adapter was trained with, else the model's own].
    #[arg(long, value_name = "FILE")]
    pub chat_template: Option<PathBuf>,

    /// Sampling temperature; above 1 more random, below 1 closer to greedy.
    #[arg(long, value_name = "T")]
    pub temperature: Option<f32>,

    /// Sample only from the N most likely tokens.
    #[arg(long, value_name = "N")]
    pub top_k: Option<usize>,

    /// Sample only from the most likely tokens with this total probability.
    #[arg(long, value_name = "P")]
    pub top_p: Option<f32>,

    /// Above 1, repeated tokens become less likely.
    #[arg(long, value_name = "R", default_value_t = 1.0)]
    pub repetition_penalty: f32,

    /// Sampling seed; the same seed gives the same answer.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,

    /// Pack the decoder's weights into 4 bits while loading.
    #[arg(long)]
    pub load_in_4bit: bool,

    /// Maximum pixels; larger images are shrunk [default: what the model's preprocessor_config.json says].
    #[arg(long, value_name = "N")]
    pub max_pixels: Option<u64>,

    /// Minimum pixels; smaller images are enlarged.
    #[arg(long, value_name = "N")]
    pub min_pixels: Option<u64>,

    /// Where to compute; auto uses the GPU if there is one.
    #[arg(long, value_name = "auto|cpu|cuda", default_value = "auto", value_parser = device)]
    pub device: DeviceChoice,

    /// Threads for computing on the CPU [default: all cores].
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, value_parser = super::threads)]
    pub threads: usize,
}

/// Arguments of `model-garden generate`.
#[derive(Clone, Debug, Args)]
pub struct Generate {
    /// Prompt.
    #[arg(long, value_name = "TEXT", required_unless_present = "prompts")]
    pub prompt: Option<String>,

    /// Image to put before the prompt; may be repeated.
    #[arg(long, value_name = "FILE")]
    pub image: Vec<PathBuf>,

    /// System prompt [default: what the chat template says].
    #[arg(long, alias = "system", value_name = "TEXT")]
    pub system_prompt: Option<String>,

    /// JSON Lines file of prompts, answered together.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt", "image", "system_prompt"])]
    pub prompts: Option<PathBuf>,

    /// Maximum tokens per answer.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_new_tokens: u32,

    #[command(flatten)]
    pub answering: Answering,

    #[command(flatten)]
    pub printed: Printed,
}

pub const CHAT_HELP: &str = "\
A line is a message; a backslash at its end goes on to the next line. /image FILE shows a picture with the next message, /clear begins anew, /help
lists these, /quit or the end of the input ends. Ctrl-C stops an answer, and between answers ends the program. Of earlier turns only what is new is read.

Exit codes: 0 the conversation is over; 2 a problem with the model, an image or the arguments; 130 ended by Ctrl-C.

Examples:
  model-garden chat --model Qwen/Qwen2.5-VL-3B-Instruct
  model-garden chat --model DIR --adapter out/checkpoint-100 --image sign.jpg
  printf 'What is this?\\nIn French?\\n' | model-garden chat --model DIR --json";

/// Arguments of `model-garden chat`.
#[derive(Clone, Debug, Args)]
pub struct Chat {
    /// Image to show with the first message; may be repeated.
    #[arg(long, value_name = "FILE")]
    pub image: Vec<PathBuf>,

    /// System prompt [default: what the chat template says].
    #[arg(long, alias = "system", value_name = "TEXT")]
    pub system_prompt: Option<String>,

    /// Tokens of a conversation, its pictures and answers among them: memory is taken for so many.
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(16..=1_000_000))]
    pub context: u32,

    /// Maximum tokens per answer; fewer where the context ends.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_new_tokens: u32,

    #[command(flatten)]
    pub answering: Answering,

    #[command(flatten)]
    pub printed: Printed,
}

/// Where to compute, by name.
pub fn device(text: &str) -> Result<DeviceChoice, String> {
    match text {
        "auto" => Ok(DeviceChoice::Auto),
        "cpu" => Ok(DeviceChoice::Cpu),
        "cuda" | "gpu" => Ok(DeviceChoice::Cuda),
        // Not in the help: it shows what 16-bit activations do to training where there is no GPU.
        "cpu-bf16" => Ok(DeviceChoice::CpuBf16),
        _ => Err("expected auto, cpu or cuda".into()),
    }
}

pub const PREVIEW_HELP: &str = "\
Exit codes: 0 shown; 2 the dataset, the model or the row cannot be used, with the file, line and field.

Examples:
  model-garden preview train.jsonl --model Qwen/Qwen2.5-VL-3B-Instruct
  model-garden preview train.jsonl --model DIR --row 17 \\
      --selective-loss conservative
  model-garden preview boxes.jsonl --model DIR --rows 5 --pictures seen
  model-garden preview data/ --split validation --model DIR --rows 3 \\
      --max-length 2048 --on-long-row shrink --format json";

/// Arguments of `model-garden preview`.
#[derive(Debug, Args)]
pub struct Preview {
    /// A file, a folder, or the name of a dataset in the hub's local cache; rows of several are counted on from one to the next.
    #[arg(value_name = "DATASET", required = true)]
    pub datasets: Vec<PathBuf>,

    /// Model folder, or the name of a model in the local Hugging Face cache.
    #[arg(long, alias = "base-model", value_name = "DIR|HUB_ID")]
    pub model: PathBuf,

    /// Split of the dataset.
    #[arg(long, value_name = "NAME", default_value = "train")]
    pub split: String,

    /// First row to show, counted from 1.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub row: u64,

    /// Number of rows to show.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub rows: u64,

    /// Write the rows' pictures as the model sees them, with their boxes drawn, to this folder as PNG files.
    #[arg(long, value_name = "DIR")]
    pub pictures: Option<PathBuf>,

    #[command(flatten)]
    pub printed: Printed,

    #[command(flatten)]
    pub settings: Flags<OfPreview>,
}

/// What is shown of a row: what it is, and what is masked in it.
#[derive(Clone, Copy, Debug, Default)]
pub struct OfPreview;

impl Chosen for OfPreview {
    fn has(name: &str) -> bool {
        OF_ONE_ROW.contains(&name) || name == "selective-loss"
    }
}

pub const QUANTISE_HELP: &str = "\
The decoder's linear layers are packed; vision tower, head, embeddings, norms and biases stay as they are. A packed weight takes 4.13 bits:
4 for its code, 0.13 for the scales of its block of 64.

Examples:
  model-garden quantise --model Qwen/Qwen2.5-VL-3B-Instruct \\
      --output-dir Qwen2.5-VL-3B-Instruct-nf4
  model-garden quantise --model DIR --output-dir packed --keep lm_head";

/// Arguments of `model-garden quantise`.
#[derive(Debug, Args)]
pub struct Quantise {
    /// Model with 16- or 32-bit weights: its folder, or its name in the local Hugging Face cache.
    #[arg(long, value_name = "DIR|HUB_ID", required_unless_present = "folders")]
    pub model: Option<PathBuf>,

    /// New folder for the packed checkpoint.
    #[arg(long, value_name = "DIR", required_unless_present = "folders")]
    pub output_dir: Option<PathBuf>,

    /// The older way to name the two folders, without options.
    #[arg(hide = true, num_args = 2, value_names = ["DIR", "OUT"], conflicts_with_all = ["model", "output_dir"])]
    pub folders: Vec<PathBuf>,

    /// Module to leave unpacked, as a part of names between dots; may be repeated [default: model.visual and lm_head].
    #[arg(long, value_name = "MODULE")]
    pub keep: Vec<String>,

    /// Keep block scales in 32 bits: 4.5 bits per weight.
    #[arg(long)]
    pub single: bool,

    #[command(flatten)]
    pub printed: Printed,
}

pub const EXPORT_HELP: &str = "\
Computes W + scale B A in 32 bits, rounded once, tensor by tensor with a few megabytes in memory at a time. Then verifies the result: samples of every
tensor's values, and the logits of the merged model against the base with its adapter (loads both, one after the other; --no-verify skips this).

The result is written to OUT.partial and renamed to OUT on success.

Exit codes: 0 written and verified; 2 a problem with the base, the adapter or the disk (nothing is left), or verification failed (OUT.partial is left);
130 stopped by Ctrl-C (nothing is left).

Examples:
  model-garden export --model Qwen/Qwen2.5-VL-3B-Instruct \\
      --adapter out/checkpoint-100 --output-dir Qwen2.5-VL-3B-mine
  model-garden export --model DIR --adapter out --output-dir merged \\
      --dtype float16 --shard-size 2GB --format json";

/// Arguments of `model-garden export`.
#[derive(Clone, Debug, Args)]
pub struct Export {
    /// The model that the adapter was trained on, with 16- or 32-bit weights: its folder, or its name in the local Hugging Face cache.
    #[arg(long, alias = "base-model", value_name = "DIR|HUB_ID")]
    pub model: PathBuf,

    /// Adapter folder in PEFT's layout.
    #[arg(long, value_name = "DIR")]
    pub adapter: PathBuf,

    /// New folder for the merged model.
    #[arg(long, value_name = "DIR")]
    pub output_dir: PathBuf,

    /// Data type of the result; auto keeps that of each tensor in the base.
    #[arg(long, value_enum, default_value_t = ExportType::Auto)]
    pub dtype: ExportType,

    /// Maximum file size, unless a single tensor is larger.
    #[arg(long, value_name = "SIZE", default_value = "5GB")]
    pub shard_size: Bytes,

    /// Unpack a 4-bit base and merge onto that, although it differs from the weights before packing.
    #[arg(long, visible_alias = "dequantize")]
    pub dequantise: bool,

    /// Skip comparing the result with the base and its adapter.
    #[arg(long)]
    pub no_verify: bool,

    /// Threads [default: all cores].
    #[arg(long, alias = "device-threads", value_name = "N", default_value_t = 0, hide_default_value = true, value_parser = super::threads)]
    pub threads: usize,

    #[command(flatten)]
    pub printed: Printed,
}

/// What the values of a merged checkpoint become.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportType {
    /// As in the base.
    Auto,
    /// bfloat16: 8 bits of precision.
    Bfloat16,
    /// float16: 11 bits of precision.
    Float16,
    /// float32.
    Float32,
}

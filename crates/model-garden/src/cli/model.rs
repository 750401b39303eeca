//! Arguments of the commands that work with models and their data.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use garden_data::{BoxFormat, ImagePaths, Labels, Level, TextBoxes, TooLong};
use garden_memory::Bytes;
use garden_train::DeviceChoice;

pub const GENERATE_HELP: &str = "\
The best token is taken at each place unless --temperature, --top-k or --top-p asks for draws. It ends at the end tokens of the model's
generation_config.json. A line of --prompts is an object with `prompt`, and if wanted `image` or `images` and `system`; image paths begin at the file's folder.

Exit codes: 0 all prompts are answered; 2 something is wrong with the model, an image or the arguments.

Examples:
  model-garden generate --model Qwen2.5-VL-3B-Instruct --image sign.jpg --prompt 'What does it say?'
  model-garden generate --model DIR --adapter out/checkpoint-100 --image a.png --image b.png --prompt 'Compare them.' --json
  model-garden generate --model DIR --load-in-4bit --prompts questions.jsonl --temperature 0.7 --top-p 0.9 --seed 3";

/// Arguments of `model-garden generate`.
#[derive(Debug, Args)]
pub struct Generate {
    /// The folder of a model: config.json, safetensors, tokenizer.json, chat template, preprocessor_config.json.
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,

    /// The folder of an adapter in PEFT's layout.
    #[arg(long, value_name = "DIR")]
    pub adapter: Option<PathBuf>,

    /// The prompt.
    #[arg(long, value_name = "TEXT", required_unless_present = "prompts")]
    pub prompt: Option<String>,

    /// An image that goes before the prompt; give it several times for several.
    #[arg(long, value_name = "FILE")]
    pub image: Vec<PathBuf>,

    /// What the system says first [default: what the model's template says].
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,

    /// A chat template (Jinja) [default: the one that the adapter was trained with, else the model's own].
    #[arg(long, value_name = "FILE")]
    pub chat_template: Option<PathBuf>,

    /// Prompts from a file of JSON lines, answered together.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt", "image", "system"])]
    pub prompts: Option<PathBuf>,

    /// Tokens of an answer at most.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_new_tokens: u32,

    /// Draw tokens; above 1 more evenly, below 1 closer to the best.
    #[arg(long, value_name = "T")]
    pub temperature: Option<f32>,

    /// Draw from the best so many only.
    #[arg(long, value_name = "N")]
    pub top_k: Option<usize>,

    /// Draw from the best that have this probability together.
    #[arg(long, value_name = "P")]
    pub top_p: Option<f32>,

    /// Above 1: tokens that were there already get less likely.
    #[arg(long, value_name = "R", default_value_t = 1.0)]
    pub repetition_penalty: f32,

    /// What draws begin with: the same one gives the same answer.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,

    /// Pack the decoder's weights into 4 bits while loading.
    #[arg(long)]
    pub load_in_4bit: bool,

    /// Images are shrunk to so many pixels [default: what the model's preprocessor_config.json says].
    #[arg(long, value_name = "N")]
    pub max_pixels: Option<u64>,

    /// And enlarged to so many.
    #[arg(long, value_name = "N")]
    pub min_pixels: Option<u64>,

    /// Where to compute: auto takes the GPU if there is one.
    #[arg(long, value_name = "auto|cpu|cuda", default_value = "auto", value_parser = device)]
    pub device: DeviceChoice,

    /// Threads, where the processor computes [default: all cores].
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = super::threads)]
    pub threads: usize,

    /// Print answers, token counts, times and the memory plan as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Where to compute, by name.
pub fn device(text: &str) -> Result<DeviceChoice, String> {
    match text {
        "auto" => Ok(DeviceChoice::Auto),
        "cpu" => Ok(DeviceChoice::Cpu),
        "cuda" | "gpu" => Ok(DeviceChoice::Cuda),
        _ => Err("there are auto, cpu and cuda".into()),
    }
}

pub const PREVIEW_HELP: &str = "\
Exit codes: 0 shown; 2 the dataset, the model or the row cannot be used, with the file, line and field.

Examples:
  model-garden preview train.jsonl --base-model Qwen2.5-VL-3B-Instruct
  model-garden preview train.jsonl --base-model DIR --row 17 --selective-loss conservative
  model-garden preview boxes.jsonl --base-model DIR --rows 5 --pictures seen      # boxes are drawn in seen/row-1-picture-1.png
  model-garden preview data/ --split validation --base-model DIR --rows 3 --max-length 2048 --on-long-row shrink --json";

/// Arguments of `model-garden preview`.
#[derive(Debug, Args)]
pub struct Preview {
    /// A file, a folder, or the name of a dataset in the hub's local cache.
    #[arg(value_name = "DATASET")]
    pub dataset: PathBuf,

    /// The folder of a model: tokenizer.json, chat template, preprocessor_config.json.
    #[arg(long, value_name = "DIR")]
    pub base_model: PathBuf,

    /// Which part of the dataset.
    #[arg(long, value_name = "NAME", default_value = "train")]
    pub split: String,

    /// The row to begin with; the first is 1.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub row: u64,

    /// How many rows.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub rows: u64,

    /// Instructions for rows that have none of their own [default: what the chat template says].
    #[arg(long, value_name = "TEXT")]
    pub system_prompt: Option<String>,

    /// A chat template (Jinja) instead of the model's own.
    #[arg(long, value_name = "FILE")]
    pub chat_template: Option<PathBuf>,

    /// Which tokens are trained: assistant, completion or all.
    #[arg(long, value_name = "WHICH", default_value = "assistant")]
    pub labels: Labels,

    /// What structured answers are not asked for: off, conservative, moderate or aggressive.
    #[arg(long, value_name = "LEVEL", default_value = "off")]
    pub selective_loss: Level,

    /// Files that rows may name as images: inside (those in the dataset's folder) or anywhere [default: anywhere; for a dataset of the hub's cache, inside].
    #[arg(long, value_name = "WHERE")]
    pub image_paths: Option<ImagePaths>,

    /// How boxes of `objects` are written: plain ([x1, y1, x2, y2], as Qwen2.5-VL does) or tokens (between <|box_start|> and <|box_end|>).
    #[arg(long, value_name = "FORMAT", default_value = "plain")]
    pub box_format: BoxFormat,

    /// What boxes are in that texts have as "bbox_2d": pixels of the resized picture, which stay, or of the original one, which are converted.
    #[arg(long = "bbox-2d", value_name = "resized|original", default_value = "resized")]
    pub bbox_2d: TextBoxes,

    /// Tokens of a row at most.
    #[arg(long, value_name = "N")]
    pub max_length: Option<usize>,

    /// What is done with longer rows: refuse, shrink or drop.
    #[arg(long, value_name = "POLICY", default_value = "refuse")]
    pub on_long_row: TooLong,

    /// Images are shrunk to so many pixels [default: what the model's preprocessor_config.json says].
    #[arg(long, value_name = "N")]
    pub max_pixels: Option<u64>,

    /// Write the pictures of these rows as the model sees them, with their boxes drawn, as PNG files into this folder.
    #[arg(long, value_name = "DIR")]
    pub pictures: Option<PathBuf>,

    /// Print the pieces of each row and their token counts as JSON.
    #[arg(long)]
    pub json: bool,
}

pub const QUANTISE_HELP: &str = "\
Linears of the decoder are packed; the vision tower, the head, embeddings, norms and biases stay as they are. 4.13 bits for each packed
weight: 4 for its code, 0.13 for the scales of its block of 64.

Examples:
  model-garden quantise Qwen2.5-VL-3B-Instruct Qwen2.5-VL-3B-Instruct-nf4
  model-garden quantise DIR OUT --keep lm_head        # the vision tower too";

/// Arguments of `model-garden quantise`.
#[derive(Debug, Args)]
pub struct Quantise {
    /// The folder of a checkpoint with 16 or 32 bits.
    #[arg(value_name = "DIR")]
    pub from: PathBuf,

    /// A new folder for the packed one.
    #[arg(value_name = "OUT")]
    pub to: PathBuf,

    /// Modules that are not packed, as parts of names between dots; give it several times [default: model.visual and lm_head].
    #[arg(long, value_name = "MODULE")]
    pub keep: Vec<String>,

    /// Keep the scales of blocks in 32 bits: 4.5 bits for each weight.
    #[arg(long)]
    pub single: bool,

    /// Print what was done as JSON.
    #[arg(long)]
    pub json: bool,
}

pub const EXPORT_HELP: &str = "\
W + scale B A in 32 bits, rounded once. Tensor by tensor: no more than a few megabytes of them are in memory at a time. Then the result is proven: every tensor's
values in samples, and the logits of the merged model against those of the base with its adapter (which loads both, one after the other; --no-verify skips it).

It is written beside OUT under the name OUT.partial, which becomes OUT when all is well.

Exit codes: 0 written and proven; 2 something is wrong with the base, the adapter or the disk (nothing is left), or the proof failed (OUT.partial is left); 130
stopped by Ctrl-C (nothing is left).

Examples:
  model-garden export --base-model Qwen2.5-VL-3B-Instruct --adapter out/checkpoint-100 --output-dir Qwen2.5-VL-3B-mine
  model-garden export --base-model DIR --adapter DIR --output-dir OUT --dtype float16 --shard-size 2GB --json";

/// Arguments of `model-garden export`.
#[derive(Debug, Args)]
pub struct Export {
    /// The folder of the model that the adapter was trained on, with 16 or 32 bits.
    #[arg(long, value_name = "DIR")]
    pub base_model: PathBuf,

    /// The folder of an adapter in PEFT's layout.
    #[arg(long, value_name = "DIR")]
    pub adapter: PathBuf,

    /// A new folder for the merged model.
    #[arg(long, value_name = "OUT")]
    pub output_dir: PathBuf,

    /// What the values become; auto leaves each tensor what it is in the base.
    #[arg(long, value_enum, default_value_t = ExportType::Auto)]
    pub dtype: ExportType,

    /// Bytes of a file at most, unless one tensor has more.
    #[arg(long, value_name = "SIZE", default_value = "5GB")]
    pub shard_size: Bytes,

    /// Unpack a base of 4 bits and merge onto that, knowing that it is not what it was before it was packed.
    #[arg(long, visible_alias = "dequantize")]
    pub dequantise: bool,

    /// Do not load the result to compare it with the base and its adapter.
    #[arg(long)]
    pub no_verify: bool,

    /// Threads [default: all cores].
    #[arg(long, alias = "device-threads", value_name = "N", default_value_t = 0, value_parser = super::threads)]
    pub threads: usize,

    /// Print what was done and how it was proven as JSON.
    #[arg(long)]
    pub json: bool,
}

/// What the values of a merged checkpoint become.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportType {
    /// What they are in the base.
    Auto,
    /// bfloat16: 8 bits of precision.
    Bfloat16,
    /// float16: 11 bits of precision.
    Float16,
    /// float32.
    Float32,
}

//! A recipe: everything that decides a run, from flags, recipe files and defaults.
//!
//! Flags and files give values by name ([`FIELDS`]); later ones win. Names and values are checked here, and nowhere else, before anything is opened.

mod adapters;
mod fields;
mod lists;
mod mixing;

use std::fmt;
use std::path::PathBuf;

use garden_data::{
    BadRow, BoxFormat, FieldMeanings, IgnoredFields, ImagePaths, Labels, Level, Normalisation, TextBoxes, TooLong,
};
use garden_memory::Bytes;
use garden_model::{LoraConfig, Part};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

pub use fields::{FIELDS, Field, IGNORED, OnResume, Owner, find as find_field, ignored, is_near};
pub(crate) use lists::paths;
pub(crate) use size::written;

use crate::metric::Metric;

/// How the learning rate changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduler {
    /// Down to `min-learning-rate` along half a cosine.
    #[serde(alias = "cosine_with_min_lr")]
    Cosine,
    /// Down to 0 along a line.
    Linear,
    /// Always the same; warm-up is ignored, as in transformers.
    Constant,
    /// The same after the warm-up.
    #[serde(alias = "constant_with_warmup")]
    ConstantWithWarmup,
}

/// How the moments of the optimizer are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Optim {
    /// With 32 bits.
    #[serde(
        alias = "adamw_torch",
        alias = "adamw_torch_fused",
        alias = "adamw_hf",
        alias = "adamw_apex_fused",
        alias = "adamw_anyprecision",
        alias = "paged_adamw",
        alias = "paged_adamw_32bit"
    )]
    Adamw,
    /// With 8 bits.
    #[serde(
        rename = "adamw-8bit",
        alias = "adamw_8bit",
        alias = "adamw_bnb_8bit",
        alias = "paged_adamw_8bit",
        alias = "adamw_torch_8bit"
    )]
    Adamw8Bit,
}

/// What is made again in the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Recompute {
    /// The activations of each layer.
    #[serde(alias = "true")]
    Layer,
    /// Nothing.
    #[serde(alias = "false")]
    None,
}

/// Where to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceChoice {
    /// On a GPU if there is one that can be used, else on the processor.
    Auto,
    /// On the processor.
    Cpu,
    /// On an NVIDIA GPU.
    Cuda,
    /// On the processor with a GPU's 16-bit activations: slow, and shows on any machine what rounding does to training.
    CpuBf16,
}

/// Where a run computes, once that is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceKind {
    /// On the processor.
    #[default]
    Cpu,
    /// On an NVIDIA GPU.
    Cuda,
    /// On the processor with a GPU's 16-bit activations.
    CpuBf16,
}

impl DeviceKind {
    /// Whether it computes in the host's memory.
    pub fn is_host(self) -> bool {
        self != DeviceKind::Cuda
    }
}

/// Everything that decides a run. [`FIELDS`] says what each setting means.
#[allow(missing_docs, reason = "FIELDS describes each setting by its name")]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
// What an earlier version did not know is as by default.
#[serde(rename_all = "kebab-case", default)]
pub struct Recipe {
    /// Runs of earlier versions wrote it as `base-model`.
    #[serde(rename = "model", alias = "base-model")]
    pub base_model: String,
    #[serde(rename = "dataset", with = "lists::paths")]
    pub datasets: Vec<PathBuf>,
    #[serde(with = "lists::numbers")]
    pub dataset_weights: Option<Vec<f64>>,
    #[serde(with = "lists::numbers")]
    pub max_samples: Option<Vec<usize>>,
    pub eval_dataset: Option<PathBuf>,
    pub eval_split: Option<f64>,
    pub output_dir: PathBuf,
    pub adapter: Option<PathBuf>,
    pub epochs: f64,
    pub max_steps: Option<usize>,
    pub batch_size: usize,
    pub batch_tokens: Option<usize>,
    pub gradient_accumulation: usize,
    pub learning_rate: f64,
    pub vision_learning_rate: Option<f64>,
    pub merger_learning_rate: Option<f64>,
    pub lr_scheduler: Scheduler,
    #[serde(default)]
    pub min_learning_rate: f64,
    pub warmup_steps: usize,
    pub warmup_ratio: Option<f64>,
    pub optim: Optim,
    pub weight_decay: f32,
    pub adam_beta1: f32,
    pub adam_beta2: f32,
    pub adam_epsilon: f32,
    pub max_grad_norm: f32,
    pub seed: u64,
    pub shuffle: bool,
    pub lora_r: Option<usize>,
    pub lora_alpha: Option<f32>,
    pub lora_dropout: f32,
    pub lora_targets: Option<String>,
    pub modules_to_save: Option<String>,
    pub use_rslora: bool,
    pub finetune_vision: bool,
    pub full: bool,
    #[serde(rename = "load-in-4bit")]
    pub load_in_4bit: bool,
    pub recompute: Recompute,
    pub system_prompt: Option<String>,
    pub chat_template: Option<PathBuf>,
    pub max_pixels: Option<u64>,
    pub min_pixels: Option<u64>,
    pub max_length: Option<usize>,
    pub image_paths: Option<ImagePaths>,
    pub field: Option<FieldMeanings>,
    pub ignore_field: Option<IgnoredFields>,
    #[serde(default)]
    pub box_format: BoxFormat,
    #[serde(default, rename = "bbox-2d")]
    pub bbox_2d: TextBoxes,
    pub on_bad_row: BadRow,
    #[serde(default)]
    pub on_bad_image: Option<BadRow>,
    pub on_long_row: TooLong,
    pub loader_threads: usize,
    #[serde(with = "size")]
    pub prefetch: Bytes,
    pub labels: Labels,
    pub loss_normalisation: Normalisation,
    pub selective_loss: Level,
    pub selective_loss_start_epoch: usize,
    pub logging_steps: usize,
    pub eval_steps: Option<usize>,
    pub eval_batch_size: Option<usize>,
    pub eval_answers: usize,
    pub max_new_tokens: usize,
    pub save_steps: usize,
    pub save_total_limit: usize,
    #[serde(default)]
    pub metric_for_best_model: Metric,
    pub greater_is_better: Option<bool>,
    pub early_stopping: Option<usize>,
    pub resume: Option<String>,
    #[serde(with = "optional_size")]
    pub memory_limit: Option<Bytes>,
    pub memory_steps: usize,
    pub device: DeviceChoice,
    pub threads: usize,
    #[serde(with = "optional_size", skip_serializing_if = "Option::is_none", default)]
    pub debug_leak: Option<Bytes>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub debug_fail: Option<usize>,
    /// The configuration of the adapter that the run begins with: not a setting, but read from its folder when the run is prepared.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub first: Option<LoraConfig>,
}

impl Default for Recipe {
    fn default() -> Recipe {
        Recipe {
            base_model: String::new(),
            datasets: Vec::new(),
            dataset_weights: None,
            max_samples: None,
            eval_dataset: None,
            eval_split: None,
            output_dir: PathBuf::new(),
            adapter: None,
            epochs: 3.0,
            max_steps: None,
            batch_size: 2,
            batch_tokens: None,
            gradient_accumulation: 4,
            learning_rate: 2e-4,
            vision_learning_rate: None,
            merger_learning_rate: None,
            lr_scheduler: Scheduler::Cosine,
            min_learning_rate: 0.0,
            warmup_steps: 10,
            warmup_ratio: None,
            optim: Optim::Adamw,
            weight_decay: 0.0,
            adam_beta1: 0.9,
            adam_beta2: 0.999,
            adam_epsilon: 1e-8,
            max_grad_norm: 1.0,
            seed: 42,
            shuffle: true,
            lora_r: None,
            lora_alpha: None,
            lora_dropout: 0.0,
            lora_targets: None,
            modules_to_save: None,
            use_rslora: false,
            finetune_vision: false,
            full: false,
            load_in_4bit: false,
            recompute: Recompute::Layer,
            system_prompt: None,
            chat_template: None,
            max_pixels: None,
            min_pixels: None,
            max_length: None,
            image_paths: None,
            field: None,
            ignore_field: None,
            box_format: BoxFormat::Plain,
            bbox_2d: TextBoxes::Resized,
            on_bad_row: BadRow::Stop,
            on_bad_image: None,
            on_long_row: TooLong::Refuse,
            loader_threads: 2,
            prefetch: Bytes(256 << 20),
            labels: Labels::Assistant,
            loss_normalisation: Normalisation::MicroBatch,
            selective_loss: Level::Off,
            selective_loss_start_epoch: 0,
            logging_steps: 10,
            eval_steps: None,
            eval_batch_size: None,
            eval_answers: 32,
            max_new_tokens: 256,
            save_steps: 100,
            save_total_limit: 3,
            metric_for_best_model: Metric::Loss,
            greater_is_better: None,
            early_stopping: None,
            resume: None,
            memory_limit: None,
            memory_steps: 10,
            device: DeviceChoice::Auto,
            threads: 0,
            debug_leak: None,
            debug_fail: None,
            first: None,
        }
    }
}

/// What is wrong with a recipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecipeError {
    /// The setting, as it was given; empty where it is the file as a whole.
    pub name: String,
    /// What is wrong with it.
    pub problem: String,
    /// What would help, where that is known.
    pub hint: Option<String>,
}

impl fmt::Display for RecipeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.is_empty() { f.write_str(&self.problem) } else { write!(f, "`{}` {}", self.name, self.problem) }
    }
}

impl std::error::Error for RecipeError {}

fn wrong(name: &str, problem: impl Into<String>) -> RecipeError {
    RecipeError { name: name.to_string(), problem: problem.into(), hint: None }
}

fn wrong_but(name: &str, problem: impl Into<String>, hint: impl Into<String>) -> RecipeError {
    RecipeError { hint: Some(hint.into()), ..wrong(name, problem) }
}

/// Numbers below this are written with an exponent.
const SMALL: f64 = 1e-3;

/// A number as people write it: one of 32 bits shall not show what it is not in 64, and a small one has an exponent.
fn real_words(real: f64) -> String {
    let (is_narrow, is_small) = (f64::from(real as f32) == real, real != 0.0 && real.abs() < SMALL);
    match (is_narrow, is_small) {
        (true, true) => format!("{:e}", real as f32),
        (true, false) => (real as f32).to_string(),
        (false, true) => format!("{real:e}"),
        (false, false) => real.to_string(),
    }
}

/// A value of a setting, as it would be given.
fn value_words(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(real) => real_words(real),
            None => number.to_string(),
        },
        Value::Array(values) => values.iter().map(value_words).collect::<Vec<String>>().join(","),
        value => value.to_string(),
    }
}

/// Threads at most: more than any machine's cores, and few enough that each can be started.
pub const MOST_THREADS: usize = 1024;

impl Recipe {
    /// The values of a recipe file, by name.
    pub fn read_file(text: &str) -> Result<Map<String, Value>, RecipeError> {
        let values: Map<String, Value> =
            toml::from_str(text).map_err(|error| wrong("", error.to_string().trim_end().to_string()))?;
        let mut seen: Vec<(&str, &str)> = Vec::new();
        for given in values.keys() {
            let Some(field) = fields::find(given) else { continue };
            if let Some((first, _)) = seen.iter().find(|(_, name)| *name == field.name) {
                return Err(wrong(given, format!("means the same as `{first}`, which is also set")));
            }
            seen.push((given, field.name));
        }
        Ok(values)
    }

    /// A recipe from values by name, the later ones stronger. Texts that are numbers or truth values are taken for these where that is wanted.
    pub fn from_values(values: impl IntoIterator<Item = (String, Value)>) -> Result<Recipe, RecipeError> {
        let mut recipe = Recipe::default().values();
        let (mut wants_least, mut has_rows) = (false, false);
        let mut of_adapters: Option<RecipeError> = None;
        for (given, value) in values {
            if ignored(&given).is_some() {
                continue;
            }
            let Some(field) = fields::find(&given) else {
                let error = wrong(&given, "is not a setting");
                let hint = fields::closest(&given).map(|name| format!("did you mean `{name}`?"));
                return Err(RecipeError { hint, ..error });
            };
            has_rows |= field.name == "batch-size";
            of_adapters = of_adapters.or_else(|| adapters::without_effect(&given, field.name, &value));
            if field.name == "eval-dataset" && value.is_array() {
                let hint = "join the files; `dataset` takes several";
                return Err(wrong_but(&given, "takes one dataset", hint));
            }
            if field.name == "lr-scheduler" {
                wants_least = value.as_str() == Some("cosine_with_min_lr");
            }
            let found = candidates(value.clone()).into_iter().any(|candidate| {
                recipe.insert(field.name.to_string(), candidate);
                serde_json::from_value::<Recipe>(Value::Object(recipe.clone())).is_ok()
            });
            if !found {
                recipe.insert(field.name.to_string(), value.clone());
                let problem = serde_json::from_value::<Recipe>(Value::Object(recipe)).err();
                let why = problem.map_or_else(String::new, |problem| format!(": {problem}"));
                let values = if field.value.is_empty() { "true|false" } else { field.value };
                return Err(wrong_but(
                    &given,
                    format!("cannot be {value}{why}"),
                    format!("{values}: {}", field.described()),
                ));
            }
        }
        let recipe: Recipe =
            serde_json::from_value(Value::Object(recipe)).map_err(|error| wrong("", error.to_string()))?;
        if wants_least && recipe.min_learning_rate == 0.0 {
            return Err(wrong_but(
                "lr-scheduler",
                "cosine_with_min_lr needs `min-learning-rate`",
                "set it, or use `lr-scheduler cosine`, which ends at 0",
            ));
        }
        if has_rows && recipe.batch_tokens.is_some() {
            let hint = "omit one of them: micro-batches are cut by rows or by tokens";
            return Err(wrong_but("batch-size", "cannot be used with `batch-tokens`", hint));
        }
        recipe.check()?;
        match of_adapters.filter(|_| recipe.full) {
            Some(error) => Err(error),
            None => Ok(recipe),
        }
    }

    /// All settings by name.
    pub(crate) fn values(&self) -> Map<String, Value> {
        match serde_json::to_value(self) {
            Ok(Value::Object(map)) => map,
            _ => Map::new(),
        }
    }

    /// The value of a setting, as it would be given; empty where there is none.
    pub fn setting(&self, name: &str) -> String {
        self.values().get(name).map_or_else(String::new, value_words)
    }

    /// As a recipe file.
    pub fn to_toml(&self) -> String {
        let mut map = self.values();
        map.retain(|name, value| !value.is_null() && name != "first");
        for value in map.values_mut() {
            // As people write it: 0.9 of 32 bits would be 0.8999999761581421.
            if let Some(real) =
                value.as_f64().filter(|_| value.is_f64()).and_then(|real| real_words(real).parse::<f64>().ok())
            {
                *value = real.into();
            }
        }
        if self.batch_tokens.is_some() {
            map.remove("batch-size");
        }
        if self.full {
            map.retain(|name, _| !adapters::OF_ADAPTERS.iter().any(|(setting, _)| setting == name));
        }
        toml::to_string(&map).unwrap_or_default()
    }

    /// Refuses what cannot work together, before anything is opened.
    fn check(&self) -> Result<(), RecipeError> {
        let missing = |name: &str, what: &str| wrong_but(name, "is missing", format!("pass --{name} {what}"));
        if self.base_model.is_empty() {
            return Err(missing(
                "model",
                "with a model folder, or the name of a model in the local Hugging Face cache",
            ));
        }
        if self.datasets.is_empty() || self.datasets.iter().any(|path| path.as_os_str().is_empty()) {
            return Err(missing("dataset", "with a file or folder of rows"));
        }
        if self.output_dir.as_os_str().is_empty() {
            return Err(missing("output-dir", "with a folder for the adapter and all other output"));
        }
        for (name, number) in [
            ("batch-size", self.batch_size),
            ("batch-tokens", self.batch_tokens.unwrap_or(1)),
            ("gradient-accumulation", self.gradient_accumulation),
            ("lora-r", self.lora_r.unwrap_or(1)),
            ("logging-steps", self.logging_steps),
            ("save-steps", self.save_steps),
            ("save-total-limit", self.save_total_limit),
            ("memory-steps", self.memory_steps),
            ("max-new-tokens", self.max_new_tokens),
            ("max-steps", self.max_steps.unwrap_or(1)),
            ("eval-steps", self.eval_steps.unwrap_or(1)),
            ("eval-batch-size", self.eval_batch_size.unwrap_or(1)),
            ("early-stopping", self.early_stopping.unwrap_or(1)),
        ] {
            if number == 0 {
                return Err(wrong(name, "is 0; it must be at least 1"));
            }
        }
        for (name, number) in [("threads", self.threads), ("loader-threads", self.loader_threads)] {
            if number > MOST_THREADS {
                return Err(wrong(name, format!("is {number}; the maximum is {MOST_THREADS}")));
            }
        }
        let shares = [
            ("lora-dropout", f64::from(self.lora_dropout)),
            ("warmup-ratio", self.warmup_ratio.unwrap_or(0.0)),
            ("eval-split", self.eval_split.unwrap_or(0.0)),
            ("adam-beta1", f64::from(self.adam_beta1)),
            ("adam-beta2", f64::from(self.adam_beta2)),
        ];
        for (name, share) in shares {
            if !(0.0..1.0).contains(&share) {
                return Err(wrong(name, format!("is {share}; it must be at least 0 and below 1")));
            }
        }
        let amounts = [
            ("learning-rate", self.learning_rate),
            ("min-learning-rate", self.min_learning_rate),
            ("vision-learning-rate", self.vision_learning_rate.unwrap_or(0.0)),
            ("merger-learning-rate", self.merger_learning_rate.unwrap_or(0.0)),
            ("weight-decay", f64::from(self.weight_decay)),
            ("max-grad-norm", f64::from(self.max_grad_norm)),
            ("lora-alpha", f64::from(self.lora_alpha.unwrap_or(0.0))),
            ("adam-epsilon", f64::from(self.adam_epsilon)),
        ];
        for (name, amount) in amounts {
            if !amount.is_finite() || amount < 0.0 {
                return Err(wrong(name, format!("is {amount}; it must be a number of at least 0")));
            }
        }
        if !self.epochs.is_finite() || self.epochs <= 0.0 {
            return Err(wrong("epochs", format!("is {}; it must be above 0", self.epochs)));
        }
        self.check_mixing()?;
        self.check_pairs()
    }

    fn check_pairs(&self) -> Result<(), RecipeError> {
        if self.full && self.load_in_4bit {
            let hint = "train an adapter (without `full`), or all 16-bit weights (without `load-in-4bit`)";
            return Err(wrong_but("full", "cannot be used with `load-in-4bit`: 4-bit weights cannot be trained", hint));
        }
        if self.min_learning_rate > 0.0 && self.lr_scheduler != Scheduler::Cosine {
            return Err(wrong_but(
                "min-learning-rate",
                "is only for the schedule `cosine`",
                "omit it, or use `lr-scheduler cosine`",
            ));
        }
        if self.min_learning_rate > self.learning_rate {
            let (least, most) = (self.min_learning_rate, self.learning_rate);
            return Err(wrong("min-learning-rate", format!("is {least}, more than `learning-rate` ({most})")));
        }
        if self.full && self.modules_to_save.is_some() {
            return Err(wrong("modules-to-save", "cannot be used with `full`, which trains all modules"));
        }
        if self.batch_tokens.is_some() && self.eval_batch_size.is_some() {
            let hint = "omit `eval-batch-size`: evaluations use the same number of tokens";
            return Err(wrong_but("eval-batch-size", "cannot be used with `batch-tokens`", hint));
        }
        if self.full && self.adapter.is_some() {
            return Err(wrong("adapter", "cannot be used with `full`, which trains all weights and no adapter"));
        }
        if self.eval_dataset.is_some() && self.eval_split.is_some() {
            return Err(wrong("eval-split", "cannot be used with `eval-dataset`: omit one of the two"));
        }
        let metric = self.metric_for_best_model;
        if (metric != Metric::Loss || self.greater_is_better.is_some()) && !self.evaluates() {
            let hint = "add `eval-dataset` or `eval-split`";
            return Err(wrong_but("metric-for-best-model", "needs rows to evaluate on", hint));
        }
        if metric != Metric::Loss && self.eval_answers == 0 {
            return Err(wrong_but(
                "metric-for-best-model",
                "needs generated answers",
                "set `eval-answers` to more than 0",
            ));
        }
        // Targets by names, and an adapter, say what they reach when the model is known.
        let is_open = self.adapter.is_some() || self.lora_targets.is_some() || self.modules_to_save.is_some();
        let reaches_images = self.full || self.finetune_vision || is_open;
        self.check_rates::<RecipeError>(&mut |_| Ok(reaches_images))?;
        if self.early_stopping.is_some() && !self.evaluates() {
            let hint = "add `eval-dataset` or `eval-split`";
            return Err(wrong_but("early-stopping", "needs rows to evaluate on", hint));
        }
        if self.lora_targets.is_some() && self.finetune_vision {
            let hint = "add the vision tower's linear layers to `lora-targets`, or omit that";
            return Err(wrong_but("finetune-vision", "and `lora-targets` both choose the target modules", hint));
        }
        if let (Some(least), Some(most)) = (self.min_pixels, self.max_pixels)
            && least > most
        {
            return Err(wrong("min-pixels", format!("is {least}, more than `max-pixels` ({most})")));
        }
        if self.on_long_row != TooLong::Refuse && self.max_length.is_none() {
            return Err(wrong_but(
                "on-long-row",
                "needs `max-length`: without it, no row is too long",
                "add `max-length`",
            ));
        }
        Ok(())
    }

    /// Rates of their own are for what is trained: `reaches` says which parts are.
    pub(crate) fn check_rates<E: From<RecipeError>>(
        &self,
        reaches: &mut dyn FnMut(Part) -> Result<bool, E>,
    ) -> Result<(), E> {
        let groups = [
            ("vision-learning-rate", self.vision_learning_rate, Part::Tower, "the vision tower"),
            ("merger-learning-rate", self.merger_learning_rate, Part::Merger, "the merger"),
        ];
        for (name, rate, part, what) in groups {
            if rate.is_some() && !reaches(part)? {
                let hint = "use `finetune-vision` or `full`, or add its linear layers to `lora-targets`";
                return Err(wrong_but(name, format!("is for {what}, which is not trained"), hint).into());
            }
            if rate.is_some_and(|rate| rate > 0.0) && self.learning_rate == 0.0 {
                return Err(wrong("learning-rate", format!("is 0, but `{name}` follows its schedule")).into());
            }
        }
        Ok(())
    }

    /// Whether there are rows to evaluate on.
    pub fn evaluates(&self) -> bool {
        self.eval_dataset.is_some() || self.eval_split.is_some_and(|share| share > 0.0)
    }
}

/// What a value may mean: itself, or what a text of the command line says.
fn candidates(value: Value) -> Vec<Value> {
    let Value::String(text) = &value else {
        // `gradient_checkpointing = true` in a file is a name here, and so is a list of `lora_targets`.
        let as_text = match &value {
            Value::Bool(truth) => Some(Value::String(truth.to_string())),
            Value::Array(names) => {
                let names: Option<Vec<&str>> = names.iter().map(Value::as_str).collect();
                names.map(|names| Value::String(names.join(",")))
            }
            _ => None,
        };
        return std::iter::once(value.clone()).chain(as_text).collect();
    };
    // Python's `True` and TOML's `1_000` are understood too.
    let read =
        |text: &str| serde_json::from_str::<Value>(text).ok().filter(|read| !read.is_object() && !read.is_array());
    let plain = text.to_ascii_lowercase().replace('_', "");
    let number = plain.parse::<f64>().ok().filter(|number| number.is_finite()).and_then(|number| {
        // `1e3` is as good as 1000.
        if number.fract() == 0.0 && number.abs() < 9e15 { Some(Value::from(number as i64)) } else { None }
    });
    let real = plain.parse::<f64>().ok().and_then(|number| serde_json::Number::from_f64(number).map(Value::Number));
    [read(&plain), number, real, Some(value.clone()), Some(Value::String(plain))].into_iter().flatten().collect()
}

/// Sizes as people write them, such as `256MB`.
mod size {
    use super::*;

    pub fn serialize<S: Serializer>(bytes: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
        written(*bytes).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(text) => text.parse().map_err(serde::de::Error::custom),
            Value::Number(number) => number.as_u64().map(Bytes).ok_or_else(|| serde::de::Error::custom("not a size")),
            _ => Err(serde::de::Error::custom("expected a size such as 256MB")),
        }
    }

    /// Exactly, in the largest unit that allows it.
    pub fn written(bytes: Bytes) -> String {
        let units = [(1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB")];
        let unit = units.into_iter().find(|(unit, _)| bytes.0 > 0 && bytes.0.is_multiple_of(*unit));
        unit.map_or_else(|| format!("{}B", bytes.0), |(unit, name)| format!("{}{name}", bytes.0 / unit))
    }
}

mod optional_size {
    use super::*;

    pub fn serialize<S: Serializer>(bytes: &Option<Bytes>, serializer: S) -> Result<S::Ok, S::Error> {
        bytes.map(written).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Bytes>, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Null => Ok(None),
            value => size::deserialize(value).map(Some).map_err(serde::de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests;

//! A job: a recipe, and what was found out about its model and its rows before the first step. Every start of the run goes by the same one.

use std::path::PathBuf;
use std::sync::Arc;

use garden_data::{
    Ahead, BatchSize, Batches, BoxSettings, Dataset, ExampleSettings, ImagePaths, LengthLimit, LoaderSettings,
    Processor, SelectiveLoss, SystemPrompt, TemplateFile,
};
use garden_model::{
    FourBit, GeneratorLimits, GradientCheckpointing, Limits, LoraConfig, Optimizer, Storage, Targets, Training,
};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::recipe::{self, DeviceKind, Optim, Recipe};

/// Rows of a dataset that are used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rows {
    /// The file or folder.
    pub path: PathBuf,
    /// The split of it.
    pub split: String,
    /// Files that the rows may name.
    #[serde(default)]
    pub image_paths: Option<ImagePaths>,
    /// Rows that it has.
    pub rows: usize,
    /// Those of them that are not used, ascending.
    pub left_out: Vec<u32>,
    /// What all rows say and show, in one number.
    pub fingerprint: u64,
    /// Tokens of each row, where micro-batches are cut by tokens.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lengths: Vec<u32>,
}

impl Rows {
    /// Rows that are used.
    pub fn used(&self) -> usize {
        self.rows - self.left_out.len()
    }

    /// Opens the dataset.
    pub fn dataset(&self) -> Result<Dataset, garden_data::Error> {
        Dataset::open_with(&self.path, &self.split, self.image_paths)
    }

    pub(crate) fn open(&self) -> Result<Arc<Dataset>, Error> {
        let dataset = self.dataset()?;
        if dataset.len() != self.rows {
            let problem = format!("`{}` had {} rows and now has {}", self.path.display(), self.rows, dataset.len());
            return Err(Error::Empty(problem));
        }
        Ok(Arc::new(dataset))
    }

    pub(crate) fn batches(&self, size: BatchSize, seed: Option<u64>) -> Batches {
        let left_out = self.left_out.as_slice().into();
        match size {
            BatchSize::Rows(rows) => Batches::new(self.rows, left_out, rows, seed),
            BatchSize::Tokens(tokens) => Batches::of_tokens(left_out, tokens, &self.lengths, seed),
        }
    }
}

/// Everything that a run needs to know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// The settings.
    pub recipe: Recipe,
    /// Where it computes, which the recipe may leave open.
    #[serde(default)]
    pub device: DeviceKind,
    /// The folder of the base model.
    pub base: PathBuf,
    /// The chat template that takes the place of the model's own, as it was when the run began.
    #[serde(default)]
    pub chat_template: Option<TemplateFile>,
    /// Rows to learn from.
    pub train: Rows,
    /// Rows to evaluate on.
    pub eval: Option<Rows>,
    /// The largest micro-batch of training and evaluation.
    pub limits: Limits,
    /// What answers of an evaluation need; without, none are generated.
    pub answers: Option<GeneratorLimits>,
    /// Keys that answers have in common, for the strictest selective loss.
    pub common_keys: Vec<String>,
    /// Micro-batches of an epoch, where they are cut by tokens.
    #[serde(default)]
    pub token_batches: Option<usize>,
}

impl Job {
    /// Micro-batches of an epoch.
    pub fn batches_per_epoch(&self) -> usize {
        self.token_batches.unwrap_or_else(|| self.train.used().div_ceil(self.recipe.batch_size))
    }

    /// The micro-batches of training.
    pub(crate) fn batches(&self) -> Batches {
        self.train.batches(self.recipe.batch(), self.recipe.shuffle.then_some(self.recipe.seed))
    }

    /// Steps of an epoch; the last one may have fewer micro-batches.
    pub fn steps_per_epoch(&self) -> usize {
        self.batches_per_epoch().div_ceil(self.recipe.gradient_accumulation)
    }

    /// Steps of the run.
    pub fn steps(&self) -> usize {
        self.recipe.max_steps.unwrap_or_else(|| (self.recipe.epochs * self.steps_per_epoch() as f64).ceil() as usize)
    }

    /// The number of the first micro-batch of a step, both counted from 0.
    pub(crate) fn first_batch(&self, step: usize) -> usize {
        let (epoch, in_epoch) = (step / self.steps_per_epoch(), step % self.steps_per_epoch());
        epoch * self.batches_per_epoch() + in_epoch * self.recipe.gradient_accumulation
    }

    /// Steps between evaluations.
    pub(crate) fn eval_steps(&self) -> usize {
        self.recipe.eval_steps.unwrap_or_else(|| self.steps_per_epoch())
    }

    /// The processor of the base model with the recipe's chat template and bounds on pixels.
    pub fn processor(&self) -> Result<Processor, Error> {
        let mut processor = Processor::open_with(&self.base, self.chat_template.as_ref())?;
        self.recipe.bound_pixels(&mut processor);
        Ok(processor)
    }

    pub(crate) fn loader(&self, ahead: Ahead) -> LoaderSettings {
        LoaderSettings {
            example: self.recipe.example(&self.common_keys),
            bad_row: self.recipe.on_bad_row,
            patches: self.limits.patches,
            ahead,
        }
    }
}

impl Recipe {
    /// How large a micro-batch is.
    pub fn batch(&self) -> BatchSize {
        self.batch_tokens.map_or(BatchSize::Rows(self.batch_size), BatchSize::Tokens)
    }

    /// How large a micro-batch of an evaluation is: no larger than one of training.
    pub(crate) fn eval_batch(&self) -> BatchSize {
        match self.batch() {
            BatchSize::Rows(rows) => BatchSize::Rows(self.eval_batch_size.unwrap_or(rows).min(rows)),
            tokens => tokens,
        }
    }

    /// What is trained.
    pub fn training(&self) -> Training {
        if self.full {
            return Training::Full;
        }
        let targets = match &self.lora_targets {
            None if self.finetune_vision => Targets::all(),
            None => Targets::decoder(),
            // As PEFT has it: all but the head.
            Some(text) if text == "all-linear" => Targets::all(),
            // Names have no characters that mean something in patterns but the dot.
            Some(text) if text.contains(|sign: char| "*+?()[]|^$\\".contains(sign)) => Targets::Pattern(text.clone()),
            Some(text) => Targets::Names(text.split(',').map(|name| name.trim().to_string()).collect()),
        };
        Training::Lora(LoraConfig {
            rank: self.lora_r,
            alpha: self.lora_alpha,
            is_rank_stabilised: self.use_rslora,
            dropout: self.lora_dropout,
            targets,
            modules_to_save: self.modules_to_save(),
        })
    }

    /// Modules that are trained as a whole beside the adapter.
    fn modules_to_save(&self) -> Vec<String> {
        let names = self.modules_to_save.iter().flat_map(|names| names.split(','));
        names.map(|name| name.trim().to_string()).filter(|name| !name.is_empty()).collect()
    }

    /// How weights and moments are stored.
    pub fn storage(&self) -> Storage {
        Storage { four_bit: self.load_in_4bit.then(FourBit::default), has_8bit_moments: self.optim == Optim::Adamw8Bit }
    }

    /// What is kept from the forward to the backward pass.
    pub fn recomputed(&self) -> GradientCheckpointing {
        match self.recompute {
            recipe::Recompute::Layer => GradientCheckpointing::PerLayer,
            recipe::Recompute::None => GradientCheckpointing::Off,
        }
    }

    /// Settings of AdamW.
    pub fn optimizer(&self) -> Optimizer {
        Optimizer {
            beta1: self.adam_beta1,
            beta2: self.adam_beta2,
            epsilon: self.adam_epsilon,
            decay: self.weight_decay,
            // All rates follow one schedule, as in transformers, where it multiplies those of all groups.
            vision_factor: self.vision_learning_rate.map_or(1.0, |rate| (rate / self.learning_rate) as f32),
            merger_factor: self.merger_learning_rate.map_or(1.0, |rate| (rate / self.learning_rate) as f32),
            clip: (self.max_grad_norm > 0.0).then_some(self.max_grad_norm),
        }
    }

    /// How rows become examples.
    pub fn example(&self, common_keys: &[String]) -> ExampleSettings {
        ExampleSettings {
            labels: self.labels,
            system: self.system_prompt.clone().map_or(SystemPrompt::Own, SystemPrompt::Default),
            length: self.max_length.map(|tokens| LengthLimit { tokens, too_long: self.on_long_row }),
            selective: SelectiveLoss {
                level: self.selective_loss,
                keys: Arc::new(common_keys.iter().cloned().collect()),
                start_epoch: self.selective_loss_start_epoch,
            },
            boxes: BoxSettings { format: self.box_format, in_texts: self.bbox_2d },
        }
    }

    /// Puts the bounds on pixels in place of those of the model.
    pub fn bound_pixels(&self, processor: &mut Processor) {
        let images = &mut processor.images;
        images.max_pixels = self.max_pixels.unwrap_or(images.max_pixels);
        // A model's own lower bound gives way to an upper bound that somebody asked for.
        images.min_pixels = self.min_pixels.unwrap_or(images.min_pixels.min(images.max_pixels));
    }

    /// How far rows are read ahead.
    pub fn ahead(&self) -> Ahead {
        Ahead { threads: self.loader_threads, bytes: self.prefetch.0 as usize }
    }
}

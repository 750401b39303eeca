//! A job: a recipe, and what was found out about its model and its rows before the first step. Every start of the run goes by the same one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use garden_data::{
    Ahead, BadRow, BatchSize, Batches, BoxSettings, Dataset, ExampleSettings, FieldNames, ImagePaths, ImageSettings,
    LengthLimit, LoaderSettings, Processor, SelectiveLoss, Source, Survey, SystemPrompt, TemplateFile,
};
use garden_input::Family;
use garden_model::{
    Config, EngineLimits, FourBit, GradientCheckpointing, Limits, LoraConfig, Names, Optimizer, Storage, Targets,
    Training,
};
use serde::{Deserialize, Serialize};

use crate::datasets::RowsOf;
use crate::error::Error;
use crate::recipe::{self, DeviceKind, Optim, Recipe, RecipeError};

/// Rank and alpha of a new adapter, unless the recipe says otherwise.
pub(crate) const RANK: usize = 16;
pub(crate) const ALPHA: f32 = 16.0;
/// The setting of the layers that an adapter has.
pub(crate) const TARGETS: &str = "lora-targets";

/// Rows of a dataset that are used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rows {
    /// The datasets: a file or folder each.
    #[serde(rename = "path", with = "crate::recipe::paths")]
    pub paths: Vec<PathBuf>,
    /// The split of them.
    pub split: String,
    /// Files that the rows may name.
    #[serde(default)]
    pub image_paths: Option<ImagePaths>,
    /// Rows to draw of each of them at most; empty for all rows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub most: Vec<usize>,
    /// What decides which rows are drawn.
    #[serde(default)]
    pub seed: u64,
    /// What the recipe says about fields.
    #[serde(default)]
    pub names: FieldNames,
    /// Rows that they have, or that were drawn.
    pub rows: usize,
    /// Rows of each dataset.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub portions: Vec<RowsOf>,
    /// Those of them that are not used, ascending.
    pub left_out: Vec<u32>,
    /// What all rows say and show, in one number.
    pub fingerprint: u64,
    /// Tokens of each row, where micro-batches are cut by tokens.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lengths: Vec<u32>,
}

impl Rows {
    /// Rows of a split of datasets, before anybody looked at them.
    pub(crate) fn of_split(paths: &[PathBuf], split: &str, recipe: &Recipe) -> Rows {
        let (paths, split) = (paths.to_vec(), split.to_string());
        Rows { paths, split, image_paths: recipe.image_paths, names: recipe.names(), ..Rows::default() }
    }

    /// The same with what a look at them has found.
    pub(crate) fn surveyed(self, dataset: &Dataset, survey: &Survey) -> Rows {
        Rows {
            rows: survey.rows,
            portions: dataset.portions().iter().zip(&survey.portions).map(|(of, seen)| RowsOf::of(of, seen)).collect(),
            left_out: survey.left_out.clone(),
            fingerprint: survey.fingerprint,
            ..self
        }
    }

    /// Rows that are used.
    pub fn used(&self) -> usize {
        self.rows - self.left_out.len()
    }

    /// Opens the dataset.
    pub fn dataset(&self) -> Result<Dataset, garden_data::Error> {
        let most = |place: usize| self.most.get(place).or(self.most.last()).copied();
        let source = |(place, path): (usize, &PathBuf)| {
            let (path, split) = (path.clone(), self.split.clone());
            Source { path, split, most: most(place) }
        };
        let sources: Vec<Source> = self.paths.iter().enumerate().map(source).collect();
        Dataset::open_all(&sources, self.image_paths, &self.names, self.seed)
    }

    pub(crate) fn open(&self) -> Result<Arc<Dataset>, Error> {
        let dataset = self.dataset()?;
        if dataset.len() != self.rows {
            let paths: Vec<String> = self.paths.iter().map(|path| format!("`{}`", path.display())).collect();
            let problem = format!("{} had {} rows and now has {}", paths.join(" and "), self.rows, dataset.len());
            return Err(Error::Changed(problem));
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
    /// Its family.
    #[serde(default)]
    pub family: &'static Family,
    /// What the base model is, in one number. Jobs of earlier versions have none.
    #[serde(default)]
    pub base_fingerprint: Option<u64>,
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
    pub answers: Option<EngineLimits>,
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
        match self.mixture() {
            Some(mixture) => Batches::mixed(mixture, self.train.left_out.as_slice().into(), self.recipe.batch_size),
            None => self.train.batches(self.recipe.batch(), self.recipe.shuffle.then_some(self.recipe.seed)),
        }
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

    /// Checkpoints that are written, at most: an evaluation may find a better one.
    pub(crate) fn saves(&self) -> usize {
        let evaluations = if self.eval.is_some() { self.steps().div_ceil(self.eval_steps()) } else { 0 };
        self.steps().div_ceil(self.recipe.save_steps) + evaluations
    }

    /// Steps between evaluations.
    pub(crate) fn eval_steps(&self) -> usize {
        self.recipe.eval_steps.unwrap_or_else(|| self.steps_per_epoch())
    }

    /// The processor of the base model with the recipe's chat template and bounds on pixels.
    pub fn processor(&self) -> Result<Processor, Error> {
        let mut processor = Processor::open_with(&self.base, self.chat_template.as_ref())?;
        self.recipe.bound_pixels(&mut processor.images);
        Ok(processor)
    }

    pub(crate) fn loader(&self, ahead: Ahead) -> LoaderSettings {
        LoaderSettings {
            example: self.recipe.example(&self.common_keys),
            bad_row: self.recipe.bad_image(),
            patches: self.limits.patches,
            tokens: self.limits.tokens,
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

    /// What is trained of a model of this family.
    pub fn training(&self, family: &Family) -> Training {
        if self.full {
            return Training::Full;
        }
        Training::Lora(match &self.first {
            // An adapter goes on as what it is.
            Some(first) => LoraConfig {
                targets: self.targets(family).unwrap_or_else(|| first.targets.clone()),
                dropout: self.lora_dropout,
                ..first.clone()
            },
            None => LoraConfig {
                rank: self.lora_r.unwrap_or(RANK),
                alpha: self.lora_alpha.unwrap_or(ALPHA),
                is_rank_stabilised: self.use_rslora,
                dropout: self.lora_dropout,
                targets: self.targets(family).unwrap_or_else(|| Targets::decoder(family)),
                modules_to_save: self.modules_to_save(),
                ..LoraConfig::default()
            },
        })
    }

    /// The rank of the adapter, or from which to which the ranks of its linears are.
    pub fn rank_words(&self) -> String {
        if self.full {
            return "0".to_string();
        }
        let others = self.first.iter().flat_map(|first| &first.ranks).map(|(_, rank)| *rank);
        let rank = self.first.as_ref().map_or(self.lora_r.unwrap_or(RANK), |first| first.rank);
        let ranks = || others.clone().chain([rank]);
        match (ranks().min().unwrap_or(0), ranks().max().unwrap_or(0)) {
            (least, most) if least == most => most.to_string(),
            (least, most) => format!("{least} to {most}"),
        }
    }

    /// The linears that shall have adapters, if the recipe says so.
    fn targets(&self, family: &Family) -> Option<Targets> {
        let all = || Targets::all(family);
        let Some(text) = &self.lora_targets else { return self.finetune_vision.then(all) };
        Some(match text.as_str() {
            // As PEFT has it: all but the head.
            "all-linear" => all(),
            // Names have no characters that mean something in patterns but the dot.
            text if text.contains(|sign: char| "*+?()[]|^$\\".contains(sign)) => Targets::pattern(text),
            text => Targets::listed(text.split(',').map(str::trim)),
        })
    }

    /// Refuses what does not fit the model: rates of parts that are not trained, and targets that it does not have.
    pub(crate) fn check_model(&self, config: &Config) -> Result<(), Error> {
        let training = self.training(config.family);
        self.check_rates::<Error>(&mut |part| Ok(training.reaches(part, config)?))?;
        self.check_targets(config)?;
        self.check_own_targets(config)
    }

    /// Refuses other targets than those of the adapter that the run begins with: it has no values for them, or would lose some.
    fn check_own_targets(&self, config: &Config) -> Result<(), Error> {
        let (Some(first), Some(targets)) = (&self.first, self.targets(config.family)) else { return Ok(()) };
        if targets.linears(config)? == first.targets.linears(config)? {
            return Ok(());
        }
        let found = match &first.targets.names {
            Names::Pattern(pattern) => pattern.clone(),
            Names::Listed(names) => names.join(","),
        };
        let given = self.lora_targets.clone().unwrap_or_else(|| "`finetune-vision`".to_string());
        let path = self.adapter.clone().unwrap_or_default();
        Err(Error::Adapter { path, field: TARGETS, given, found })
    }

    /// Refuses names in `lora-targets` that no linear layer of the model has: what somebody wants trained would be left out in silence.
    fn check_targets(&self, config: &Config) -> Result<(), Error> {
        let Some(targets) = self.targets(config.family).filter(|_| self.lora_targets.is_some()) else { return Ok(()) };
        let name = TARGETS.to_string();
        let problem = match targets.first_unknown(config) {
            Ok(None) => return Ok(()),
            Ok(Some(unknown)) => format!("has `{unknown}`, which matches no linear layer of the model"),
            Err(garden_model::Error::Adapter(problem)) => format!("cannot be used: {problem}"),
            Err(error) => return Err(error.into()),
        };
        Err(Error::Recipe(RecipeError {
            name,
            problem,
            hint: Some(format!("linear layers: {}", config.family.targets.linears)),
        }))
    }

    /// Settles what the recipe leaves open: an adapter that the run begins with says it, or the defaults. An error where the two disagree: with another
    /// scale, for example, the adapter's values would mean something else.
    pub(crate) fn settle(&mut self, first: Option<(&Path, LoraConfig)>, family: &Family) -> Result<(), Error> {
        let Training::Lora(wanted) = self.training(family) else { return Ok(()) };
        if let Some((path, first)) = first {
            let open = LoraConfig {
                rank: self.lora_r.unwrap_or(first.rank),
                alpha: self.lora_alpha.unwrap_or(first.alpha),
                is_rank_stabilised: self.use_rslora || first.is_rank_stabilised,
                modules_to_save: self
                    .modules_to_save
                    .as_ref()
                    .map_or(first.modules_to_save.clone(), |_| wanted.modules_to_save),
                ..first.clone()
            };
            check_adapter(path, &first, &open)?;
            (self.use_rslora, self.first) = (first.is_rank_stabilised, Some(first));
        }
        if let Training::Lora(settled) = self.training(family) {
            (self.lora_r, self.lora_alpha) = (Some(settled.rank), Some(settled.alpha));
            if self.modules_to_save.is_none() && !settled.modules_to_save.is_empty() {
                self.modules_to_save = Some(settled.modules_to_save.join(","));
            }
        }
        Ok(())
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

    /// What becomes of a row that turns out broken after all rows were looked at.
    pub fn bad_image(&self) -> BadRow {
        self.on_bad_image.unwrap_or(self.on_bad_row)
    }

    /// Puts the bounds on pixels in place of those of the model.
    pub fn bound_pixels(&self, images: &mut ImageSettings) {
        images.max_pixels = self.max_pixels.unwrap_or(images.max_pixels);
        // A model's own lower bound gives way to an upper bound that somebody asked for.
        images.min_pixels = self.min_pixels.unwrap_or(images.min_pixels.min(images.max_pixels));
    }

    /// What is said about fields of rows.
    pub fn names(&self) -> FieldNames {
        FieldNames {
            meanings: self.field.clone().unwrap_or_default(),
            ignored: self.ignore_field.clone().unwrap_or_default(),
        }
    }

    /// How far rows are read ahead.
    pub fn ahead(&self) -> Ahead {
        Ahead { threads: self.loader_threads, bytes: self.prefetch.0 as usize }
    }
}
/// Whether an adapter means under a recipe what it means by its own file: with another scale its values would be another adapter.
fn check_adapter(path: &Path, found: &LoraConfig, wanted: &LoraConfig) -> Result<(), Error> {
    // In any order they are the same modules.
    let sorted = |modules: &[String]| {
        let mut modules = modules.to_vec();
        modules.sort_unstable();
        modules.join(",")
    };
    let fields = [
        ("lora-r", wanted.rank.to_string(), found.rank.to_string()),
        ("lora-alpha", wanted.alpha.to_string(), found.alpha.to_string()),
        ("modules-to-save", sorted(&wanted.modules_to_save), sorted(&found.modules_to_save)),
        ("use-rslora", wanted.is_rank_stabilised.to_string(), found.is_rank_stabilised.to_string()),
    ];
    match fields.into_iter().find(|(_, given, found)| given != found) {
        Some((field, given, found)) => Err(Error::Adapter { path: path.to_path_buf(), field, given, found }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use garden_input::FAMILIES;

    fn settled(recipe: Recipe, first: &LoraConfig) -> Result<Recipe, (String, String)> {
        let mut recipe = recipe;
        match recipe.settle(Some((Path::new("a"), first.clone())), FAMILIES[0]) {
            Ok(()) => Ok(recipe),
            Err(error) => Err((error.to_string(), error.hint().unwrap_or_default())),
        }
    }

    #[test]
    fn an_adapter_says_what_the_recipe_leaves_open() {
        let first = LoraConfig {
            rank: 8,
            alpha: 64.0,
            is_rank_stabilised: true,
            targets: Targets::listed(["q_proj"]),
            ranks: vec![("down_proj".to_string(), 32)],
            modules_to_save: vec!["lm_head".to_string()],
            ..LoraConfig::default()
        };
        let recipe = settled(Recipe { lora_dropout: 0.5, ..Recipe::default() }, &first).unwrap();
        assert_eq!(recipe.training(FAMILIES[0]), Training::Lora(LoraConfig { dropout: 0.5, ..first.clone() }));
        let said = (recipe.lora_r, recipe.lora_alpha, recipe.use_rslora, recipe.modules_to_save.as_deref());
        assert_eq!(said, (Some(8), Some(64.0), true, Some("lm_head")));
        assert_eq!(recipe.rank_words(), "8 to 32");
        // A checkpoint's recipe is the same again.
        let again: Recipe = serde_json::from_value(serde_json::to_value(&recipe).unwrap()).unwrap();
        assert_eq!(again, recipe);
        // What is given has to be the same.
        let told = |change: fn(&mut Recipe)| {
            let mut recipe = Recipe::default();
            change(&mut recipe);
            settled(recipe, &first).err()
        };
        let expected = (
            "the adapter `a` was made with `lora-alpha` 64, but the recipe says 16".to_string(),
            "use the adapter's own setting: `--lora-alpha 64`".to_string(),
        );
        assert_eq!(told(|recipe| recipe.lora_alpha = Some(16.0)), Some(expected));
        assert_eq!(told(|recipe| recipe.lora_alpha = Some(64.0)), None);
        assert!(told(|recipe| recipe.lora_r = Some(16)).is_some_and(|(error, _)| error.contains("`lora-r` 8")));
        assert!(told(|recipe| recipe.modules_to_save = Some("visual.merger".into())).is_some());
        let plain = LoraConfig { is_rank_stabilised: false, ..first.clone() };
        assert!(settled(Recipe { use_rslora: true, ..Recipe::default() }, &plain).is_err());
        // Targets are compared as soon as the model is known, by the layers that they choose.
        let checked = |lora_targets: Option<&str>, finetune_vision: bool| {
            let lora_targets = lora_targets.map(String::from);
            let recipe = Recipe { adapter: Some("a".into()), lora_targets, finetune_vision, ..Recipe::default() };
            let error = settled(recipe, &first).unwrap().check_model(&Config::tiny()).err();
            error.map(|error| (error.to_string(), error.hint().unwrap_or_default()))
        };
        assert_eq!(checked(None, false), None);
        assert_eq!(checked(Some(r".*\.q_proj"), false), None, "the same layers in other words");
        let (error, hint) = checked(Some("q_proj,v_proj"), false).unwrap();
        assert_eq!(error, "the adapter `a` was made with `lora-targets` q_proj, but the recipe says q_proj,v_proj");
        assert!(hint.contains("omit"), "{hint}");
        assert!(checked(None, true).is_some_and(|(error, _)| error.ends_with("`finetune-vision`")));
    }

    #[test]
    fn rates_are_for_parts_that_targets_reach() {
        let told = |targets: &str| {
            let recipe =
                Recipe { merger_learning_rate: Some(1e-5), lora_targets: Some(targets.into()), ..Recipe::default() };
            recipe.check_model(&Config::tiny()).err().map(|error| error.to_string())
        };
        assert!(told("q_proj,qkv").is_some_and(|error| error.contains("the merger, which is not trained")));
        assert_eq!(told("q_proj,merger.mlp.0"), None);
        assert!(told("q_proj,merger.mlp.0,qvk").is_some_and(|error| error.contains("`qvk`, which matches no linear")));
        assert!(
            told("q_proj(").is_some_and(|error| error.contains("is not a regular expression")),
            "{:?}",
            told("q_proj(")
        );
    }

    #[test]
    fn without_an_adapter_there_are_defaults() {
        let mut recipe = Recipe::default();
        recipe.settle(None, FAMILIES[0]).unwrap();
        assert_eq!((recipe.lora_r, recipe.lora_alpha), (Some(16), Some(16.0)));
        assert_eq!(recipe.rank_words(), "16");
    }
}

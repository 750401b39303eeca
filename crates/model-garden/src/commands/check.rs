//! `model-garden check`: is a dataset fit for training?

mod json;
mod text;

use std::time::{Duration, Instant};

use garden_data::{Dataset, Mixture, Processor, Survey, SurveySettings};
use garden_memory::grouped;
use garden_model::Config;
use garden_train::{DatasetRows, DeviceChoice, Recipe, RecipeError, RowsOf};

use super::step_time::{StepTime, Usual};
use super::{Outcome, devices};
use crate::cli;
use crate::failure::{Advised, Failure};
use crate::printer::Printer;

/// How often somebody who waits is told how far it is.
const WORD: Duration = Duration::from_secs(5);
/// What Pillow holds for a pixel of an RGB image.
const PILLOW_PIXEL: u64 = 4;
/// What a decoded pixel is here.
const PIXEL: u64 = 3;

/// A survey and what it was made for.
struct Checked<'a> {
    arguments: &'a cli::Check,
    recipe: &'a Recipe,
    dataset: &'a Dataset,
    datasets: Vec<DatasetRows>,
    survey: Survey,
    memory: Memory,
    steps: usize,
    step_time: Option<StepTime>,
}

/// Bytes of host memory that the data of a run takes.
struct Memory {
    /// All images decoded and kept in a list.
    decoded_list: u64,
    index: u64,
    /// Patches of the largest micro-batch.
    patches: u64,
    /// The largest picture, decoded, for each thread.
    pictures: u64,
    /// The largest row, compressed, for each thread.
    rows: u64,
    threads: usize,
}

impl Memory {
    fn total(&self) -> u64 {
        self.index + self.patches + self.pictures + self.rows
    }
}

/// Runs the command.
pub fn run(arguments: &cli::Check, printer: &Printer) -> Result<Outcome, Failure> {
    let recipe = recipe(arguments).map_err(super::wrong_setting)?;
    let opened = open_model(arguments, &recipe)?;
    let (text, outcome) = look(arguments, &recipe, opened, printer)?;
    printer.out(&text)?;
    Ok(outcome)
}

/// Looks at the rows for an opened model; what there is to say of them.
pub fn look(
    arguments: &cli::Check,
    recipe: &Recipe,
    (config, processor): (Config, Processor),
    printer: &Printer,
) -> Result<(String, Outcome), Failure> {
    let dataset = recipe.rows(&arguments.split).dataset().map_err(|error| Failure {
        what: format!("cannot use {}", super::datasets_named(&arguments.datasets)),
        causes: vec![error.to_string()],
        hint: error.hint().map(str::to_string),
    })?;
    let example = recipe.example(&[]);
    let cores = || std::thread::available_parallelism().map_or(1, |count| count.get());
    let threads = if arguments.threads == 0 { cores() } else { arguments.threads };
    let batch_size = recipe.batch_size;
    let settings =
        SurveySettings { example: &example, batch_size, keeps_sizes: false, decodes: arguments.decode, threads };
    let mut survey = Survey::of(&dataset, &processor, settings, tell(printer, dataset.len()));
    let datasets = mix(recipe, &dataset, &mut survey)?;
    let memory = Memory {
        decoded_list: survey.pictures.pixels * PILLOW_PIXEL,
        index: dataset.index_bytes() as u64,
        patches: (survey.limits.patches * processor.images.patch_values() * size_of::<f32>()) as u64,
        pictures: survey.pictures.largest_whole_pixels * PIXEL * threads as u64,
        rows: survey.row_bytes * threads as u64,
        threads,
    };
    let steps = survey.tally.kept.div_ceil(batch_size * recipe.gradient_accumulation);
    let step_time = match arguments.step_time && survey.tally.kept > 0 {
        true => step_time(recipe, &config, &survey, steps, printer)?,
        false => None,
    };
    let checked = Checked { arguments, recipe, dataset: &dataset, datasets, survey, memory, steps, step_time };
    let text = match arguments.printed.is_json() {
        true => format!("{:#}\n", json::value(&checked)),
        false => text::write(&checked),
    };
    Ok((text, if checked.survey.problem_count > 0 { Outcome::BadNews } else { Outcome::Fine }))
}

/// What each dataset contributes. With weights, the largest micro-batch is that of the mixture.
fn mix(recipe: &Recipe, dataset: &Dataset, survey: &mut Survey) -> Result<Vec<DatasetRows>, Failure> {
    let kept: Vec<usize> = survey.portions.iter().map(|portion| portion.kept).collect();
    let mixture = recipe.dataset_weights.as_ref().map(|weights| Mixture::new(&kept, weights, None));
    if let Some(mixture) = &mixture {
        survey.limits = survey.limits_of_mixture(mixture, recipe.batch_size);
    }
    let portions = dataset.portions().iter().zip(&survey.portions);
    let rows: Vec<RowsOf> = portions.map(|(of, seen)| RowsOf::of(of, seen)).collect();
    let datasets = DatasetRows::of(&recipe.datasets, &rows, &kept, mixture.as_ref());
    // Bad rows are listed first: they may be all of a dataset.
    if mixture.is_some() && survey.problem_count == 0 {
        DatasetRows::refuse_never(&datasets).map_err(super::wrong_setting)?;
    }
    Ok(datasets)
}

/// The settings of the flags, as training would have them; all else is as usual: LoRA on 16-bit weights.
pub fn recipe(arguments: &cli::Check) -> Result<Recipe, RecipeError> {
    super::recipe_of_rows(&arguments.model, &arguments.datasets, &arguments.settings)
}

/// How long a step takes.
fn step_time(
    recipe: &Recipe,
    config: &Config,
    survey: &Survey,
    steps: usize,
    printer: &Printer,
) -> Result<Option<StepTime>, Failure> {
    let device = match devices::choose(DeviceChoice::Auto, printer) {
        Ok(chosen) => chosen.kind(),
        Err(failure) => {
            printer.say(&format!("note: no time of a step: {}", failure.what));
            return Ok(None);
        }
    };
    let usual = Usual::of_survey(survey, recipe.batch());
    Ok(StepTime::try_measure(config, recipe, device, usual, Some(steps), printer))
}

/// Opens what the rows are looked at for.
pub fn open_model(arguments: &cli::Check, recipe: &Recipe) -> Result<(Config, Processor), Failure> {
    let folder = &super::folder_of(&arguments.model)?;
    let failed = |error: &dyn Advised| {
        let failure = Failure::of(format!("cannot use `{}`", folder.display()), error);
        let usual = || Some("pass a model folder with config.json and tokenizer.json as --model".to_string());
        Failure { hint: failure.hint.or_else(usual), ..failure }
    };
    let config = Config::read(&folder.join("config.json")).map_err(|error| failed(&error))?;
    let template = super::chat_template(recipe.chat_template.as_deref(), None)?;
    let mut processor = Processor::open_with(folder, template.as_ref()).map_err(|error| failed(&error))?;
    processor.check(&config).map_err(|error| failed(&error))?;
    recipe.bound_pixels(&mut processor.images);
    let images = &processor.images;
    if images.min_pixels > images.max_pixels {
        let why = format!(
            "images would have at least {} pixels and at most {}",
            grouped(images.min_pixels as usize),
            grouped(images.max_pixels as usize)
        );
        let what = "--min-pixels is above --max-pixels".to_string();
        return Err(Failure { what, causes: vec![why], hint: None });
    }
    Ok((config, processor))
}

/// Says how far it is when it takes long.
fn tell(printer: &Printer, rows: usize) -> impl FnMut(usize) {
    let mut last = Instant::now();
    move |done| {
        if last.elapsed() >= WORD && done < rows {
            last = Instant::now();
            printer.say(&format!("model-garden: {} of {} rows", grouped(done), grouped(rows)));
        }
    }
}

//! `model-garden check`: is a dataset fit for training?

mod json;
mod text;

use std::time::{Duration, Instant};

use garden_data::{
    BoxSettings, Dataset, ExampleSettings, FieldNames, LengthLimit, Processor, Survey, SurveySettings, SystemPrompt,
};
use garden_memory::grouped;
use garden_model::Config;
use garden_train::{DeviceChoice, Recipe};

use super::step_time::{StepTime, Usual};
use super::{Outcome, devices};
use crate::cli;
use crate::failure::Failure;
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
    dataset: &'a Dataset,
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
    let (config, processor) = open_model(arguments)?;
    let names = FieldNames::of(&arguments.field, &arguments.ignore_field);
    let dataset =
        Dataset::open_named(&arguments.dataset, &arguments.split, arguments.image_paths, &names).map_err(|error| {
            Failure {
                what: format!("cannot use `{}`", arguments.dataset.display()),
                causes: vec![error.to_string()],
                hint: error.hint().map(str::to_string),
            }
        })?;
    let example = ExampleSettings {
        labels: arguments.labels,
        system: arguments.system_prompt.clone().map_or(SystemPrompt::Own, SystemPrompt::Default),
        length: arguments.max_length.map(|tokens| LengthLimit { tokens, too_long: arguments.on_long_row }),
        boxes: BoxSettings { format: arguments.box_format, in_texts: arguments.bbox_2d },
        ..ExampleSettings::default()
    };
    let cores = || std::thread::available_parallelism().map_or(1, |count| count.get());
    let threads = if arguments.threads == 0 { cores() } else { arguments.threads };
    let batch_size = arguments.batch_size as usize;
    let settings =
        SurveySettings { example: &example, batch_size, keeps_sizes: false, decodes: arguments.decode, threads };
    let survey = Survey::of(&dataset, &processor, &config, settings, tell(printer, dataset.len()));
    let memory = Memory {
        decoded_list: survey.pictures.pixels * PILLOW_PIXEL,
        index: dataset.index_bytes() as u64,
        patches: (survey.limits.patches * processor.images.patch_values() * size_of::<f32>()) as u64,
        pictures: survey.pictures.largest_whole_pixels * PIXEL * threads as u64,
        rows: survey.row_bytes * threads as u64,
        threads,
    };
    let steps = survey.tally.kept.div_ceil(batch_size * arguments.gradient_accumulation as usize);
    let step_time = match arguments.step_time && survey.tally.kept > 0 {
        true => step_time(arguments, &config, &survey, steps, printer)?,
        false => None,
    };
    let checked = Checked { arguments, dataset: &dataset, survey, memory, steps, step_time };
    printer.out(&match arguments.printed.is_json() {
        true => format!("{:#}\n", json::value(&checked)),
        false => text::write(&checked),
    })?;
    Ok(if checked.survey.problem_count > 0 { Outcome::BadNews } else { Outcome::Fine })
}

/// How long a step takes with the usual settings: LoRA on 16-bit weights.
fn step_time(
    arguments: &cli::Check,
    config: &Config,
    survey: &Survey,
    steps: usize,
    printer: &Printer,
) -> Result<Option<StepTime>, Failure> {
    let settings = [
        ("model", arguments.model.display().to_string()),
        ("dataset", "none".to_string()),
        ("output-dir", "none".to_string()),
        ("batch-size", arguments.batch_size.to_string()),
        ("gradient-accumulation", arguments.gradient_accumulation.to_string()),
    ];
    let settings = settings.map(|(name, value)| (name.to_string(), serde_json::Value::String(value)));
    let recipe = Recipe::from_values(settings).map_err(|error| Failure {
        what: "cannot measure the time of a step".into(),
        causes: vec![error.to_string()],
        hint: error.hint,
    })?;
    let device = match devices::choose(DeviceChoice::Auto, printer) {
        Ok(chosen) => chosen.kind(),
        Err(failure) => {
            printer.say(&format!("note: no time of a step: {}", failure.what));
            return Ok(None);
        }
    };
    let usual = Usual::of_survey(survey, recipe.batch());
    Ok(StepTime::try_measure(config, &recipe, device, usual, Some(steps), printer))
}

fn open_model(arguments: &cli::Check) -> Result<(Config, Processor), Failure> {
    let folder = &super::folder_of(&arguments.model)?;
    let failed = |why: String| Failure {
        what: format!("cannot use `{}`", folder.display()),
        causes: vec![why],
        hint: Some("pass a model folder with config.json and tokenizer.json as --model".to_string()),
    };
    let config = Config::read(&folder.join("config.json")).map_err(|error| failed(error.to_string()))?;
    let template = super::chat_template(arguments.chat_template.as_deref(), None)?;
    let mut processor = Processor::open_with(folder, template.as_ref()).map_err(|error| failed(error.to_string()))?;
    processor.check(&config).map_err(|error| failed(error.to_string()))?;
    let images = &mut processor.images;
    images.max_pixels = arguments.max_pixels.unwrap_or(images.max_pixels);
    images.min_pixels = arguments.min_pixels.unwrap_or(images.min_pixels);
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

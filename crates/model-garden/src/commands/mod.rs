//! What the commands do, one file per command.

mod answering;
pub mod audit;
pub mod bench;
pub mod bisect;
pub mod chat;
pub mod check;
pub mod compare;
pub mod definition;
pub mod demo;
pub mod devices;
pub mod diagnose;
pub mod doctor;
pub mod export;
pub mod generate;
pub mod monitor;
pub mod plan;
pub mod preview;
mod python;
pub mod quantise;
pub mod report;
pub mod run;
pub mod serve;
mod step_time;
pub mod train;

use std::path::{Path, PathBuf};

use garden_data::{ImageSettings, TemplateFile};
use garden_files::{is_same, lies_in, real};
use garden_train::{DatasetRows, Recipe, RecipeError};
use serde_json::Value;

use crate::cli;
use crate::failure::Failure;

/// How a command ended, as an exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Fine.
    Fine,
    /// The answer is bad news.
    BadNews,
    /// There is not enough data for an answer.
    NotEnoughData,
    /// The program under watch failed.
    CommandFailed,
    /// What the program under watch said.
    Program(i32),
}

impl Outcome {
    /// The exit code.
    pub fn code(self) -> u8 {
        match self {
            Outcome::Fine => 0,
            Outcome::BadNews => 1,
            Outcome::NotEnoughData => 3,
            Outcome::CommandFailed => 4,
            // A program ended by signal n is reported as 128 + n, which fits; anything else was a byte before.
            Outcome::Program(code) => u8::try_from(code).unwrap_or(u8::MAX),
        }
    }
}

/// The folder of a model that is given as a folder, or by its name in the local Hugging Face cache.
fn folder_of(model: &Path) -> Result<PathBuf, Failure> {
    garden_data::model_folder(&model.to_string_lossy())
        .map_err(|error| Failure::of(format!("cannot use `{}`", model.display()), &error))
}

/// Datasets by their paths.
fn datasets_named(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| format!("`{}`", path.display())).collect::<Vec<String>>().join(" and ")
}

/// What each dataset contributes, in a line each; nothing where that is all rows of one.
fn datasets_words(datasets: &[DatasetRows]) -> String {
    match DatasetRows::are_mixed(datasets) {
        true => datasets.iter().map(|rows| format!("dataset {}: {}\n", rows.dataset, rows.words())).collect(),
        false => String::new(),
    }
}

/// The memory that is free for this program, if that can be told.
fn headroom() -> Option<u64> {
    garden_probe::MachineProbe::of(std::process::id()).look().headroom
}

/// The recipe of a command that looks at rows: its flags, and stand-ins for what only training needs.
fn recipe_of_rows<C>(model: &Path, datasets: &[PathBuf], flags: &cli::Flags<C>) -> Result<Recipe, RecipeError> {
    let datasets: Vec<String> = datasets.iter().map(|path| path.display().to_string()).collect();
    let own = [
        ("model", Value::from(model.display().to_string())),
        ("dataset", Value::from(datasets)),
        ("output-dir", Value::from("none")),
    ];
    let own = own.into_iter().map(|(name, value)| (name.to_string(), value));
    Recipe::from_values(own.chain(flags.0.iter().cloned()))
}

fn wrong_setting(error: RecipeError) -> Failure {
    Failure { what: "invalid settings".into(), causes: vec![error.to_string()], hint: error.hint }
}

/// How large an adapter's result says that pictures are, where it says so.
fn trained_pictures(adapter: Option<&Path>, family: &garden_input::Family) -> Result<Option<ImageSettings>, Failure> {
    let found = first_found(adapter, |folder| ImageSettings::find(folder, &family.images));
    let found = found.map_err(|error| Failure::of("cannot use the adapter's image settings", &error))?;
    Ok(found.map(|(settings, _)| settings))
}

/// The chat template that takes the place of a model's own: the one that is given, else the one that an adapter was trained with. A checkpoint of a run
/// goes by the one in the folder of the run.
fn chat_template(given: Option<&Path>, adapter: Option<&Path>) -> Result<Option<TemplateFile>, Failure> {
    let found = match given {
        Some(path) => TemplateFile::read(path).map(Some),
        None => first_found(adapter, TemplateFile::find),
    };
    found.map_err(|error| Failure::of("cannot use the chat template", &error))
}

/// What is found in an adapter's folder, or for a checkpoint of a run in that of the run.
fn first_found<T>(
    adapter: Option<&Path>,
    find: impl Fn(&Path) -> Result<Option<T>, garden_data::Error>,
) -> Result<Option<T>, garden_data::Error> {
    let Some(adapter) = adapter else { return Ok(None) };
    let is_checkpoint = adapter.file_name().is_some_and(|name| name.to_string_lossy().starts_with("checkpoint-"));
    let around = adapter.parent().filter(|_| is_checkpoint);
    for folder in std::iter::once(adapter).chain(around) {
        if let Some(found) = find(folder)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Refuses to write a result into the folder of its model or its adapter, by whatever name: it would overwrite what it was made from.
fn check_apart(output: &Path, model: &Path, adapter: Option<&Path>) -> Result<(), Failure> {
    let refused = |why: String| Failure {
        what: format!("cannot write to `{}`", output.display()),
        causes: vec![why],
        hint: Some("choose another folder with --output-dir".into()),
    };
    if lies_in(output, model) {
        return Err(refused(format!("it is in the folder of the model, `{}`", model.display())));
    }
    if let Some(adapter) = adapter.filter(|adapter| is_same(output, adapter)) {
        return Err(refused(format!("it is the folder of the adapter, `{}`", adapter.display())));
    }
    // A model's folder may have links to its files.
    let output = real(output);
    let files = std::fs::read_dir(model).into_iter().flatten().flatten().map(|entry| entry.path());
    match files.map(|path| real(&path)).find(|path| path.parent() == Some(&output)) {
        Some(path) => Err(refused(format!("`{}` in it is a file of the model, `{}`", path.display(), model.display()))),
        None => Ok(()),
    }
}

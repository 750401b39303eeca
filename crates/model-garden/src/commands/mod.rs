//! What the commands do, one file per command.

pub mod audit;
pub mod bench;
pub mod bisect;
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
use garden_train::DatasetRows;

use crate::failure::Failure;

/// Where a result keeps the chat template that it was trained with, and transformers looks first.
const CHAT_TEMPLATE: &str = "chat_template.jinja";

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
    garden_data::model_folder(&model.to_string_lossy()).map_err(|error| Failure {
        what: format!("cannot use `{}`", model.display()),
        causes: vec![error.to_string()],
        hint: error.hint().map(str::to_string),
    })
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

/// How large an adapter's result says that pictures are, where it says so.
fn trained_pictures(adapter: Option<&Path>) -> Result<Option<ImageSettings>, Failure> {
    // Newer folders have the settings of all processors in one file.
    let names = ["preprocessor_config.json", "processor_config.json"];
    let path = names.iter().find_map(|name| beside(adapter?, name));
    path.map(|path| ImageSettings::read(&path))
        .transpose()
        .map_err(|error| Failure::new("cannot use the adapter's image settings", &error, None))
}

/// A file of an adapter's folder, or for a checkpoint of a run that of the run's folder.
fn beside(adapter: &Path, name: &str) -> Option<PathBuf> {
    let is_checkpoint =
        |folder: &&Path| folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with("checkpoint-"));
    let around = Some(adapter).filter(is_checkpoint).and_then(Path::parent);
    std::iter::once(adapter).chain(around).map(|folder| folder.join(name)).find(|path| path.exists())
}

/// The chat template that takes the place of a model's own: the one that is given, else the one that an adapter was trained with. A checkpoint of a run
/// goes by the one in the folder of the run.
fn chat_template(given: Option<&Path>, adapter: Option<&Path>) -> Result<Option<TemplateFile>, Failure> {
    let beside = adapter.and_then(|folder| beside(folder, CHAT_TEMPLATE));
    let path = given.map(Path::to_path_buf).or(beside);
    path.map(|path| TemplateFile::read(&path))
        .transpose()
        .map_err(|error| Failure::new("cannot use the chat template", &error, None))
}

//! The files of a run, and those by which the process that guards and the process that trains know of each other.

use std::fmt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use garden_train::{Job, RUN_END, RunEnd};
use serde::{Deserialize, Serialize};

/// The job, in the output folder.
pub const JOB: &str = ".job.json";
/// The trace of the run's memory.
pub const TRACE: &str = "trace.jsonl";
/// The recipe with all its settings.
pub const RECIPE: &str = "recipe.toml";
/// The model card.
pub const CARD: &str = "README.md";
/// The page with everything.
pub const REPORT: &str = "report.html";
/// Where the guard's state is.
pub const GUARD: &str = ".guard";
/// What was planned, kept for a page that is made again.
pub(crate) const PLANNED: &str = ".planned.json";
/// How the guard says how it ended, in its folder.
pub(crate) const EXIT: &str = "exit.json";

/// A file of a run that cannot be read or written.
#[derive(Debug)]
pub struct FileError {
    /// `read` or `write`.
    verb: &'static str,
    path: PathBuf,
    error: io::Error,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} `{}`", self.verb, self.path.display())
    }
}

impl std::error::Error for FileError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// A job, and the checkpoint that the first start goes on from.
#[derive(Debug, Serialize, Deserialize)]
pub struct JobFile {
    /// What is to be done.
    pub job: Job,
    /// The checkpoint.
    pub resume: Option<PathBuf>,
}

impl JobFile {
    /// Reads one.
    pub fn read(path: &Path) -> Result<JobFile, FileError> {
        let failed = |error| FileError { verb: "read", path: path.to_path_buf(), error };
        let text = fs::read(path).map_err(failed)?;
        serde_json::from_slice(&text).map_err(|error| failed(error.into()))
    }

    /// Writes it.
    pub fn write(&self, path: &Path) -> Result<(), FileError> {
        write_json(path, self)
    }
}

/// Writes how a run ended, which is what makes it one that did.
pub fn write_end(folder: &Path, end: &RunEnd) -> Result<(), FileError> {
    write_json(&folder.join(RUN_END), end)
}

/// A file that may be missing, or of another version.
pub(crate) fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// Writes a file as a whole or not at all.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), FileError> {
    // By way of a value, which has its fields in the order of their names.
    let value = serde_json::to_value(value).unwrap_or_default();
    write_text(path, &format!("{value:#}\n"))
}

/// The same for any text.
pub fn write_text(path: &Path, text: &str) -> Result<(), FileError> {
    garden_files::replace(path, text).map_err(|error| FileError { verb: "write", path: path.to_path_buf(), error })
}

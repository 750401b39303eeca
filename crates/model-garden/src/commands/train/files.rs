//! The files by which the process that guards and the process that trains know of each other.

use std::fs;
use std::path::{Path, PathBuf};

use garden_train::Job;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::failure::Failure;

/// The job, in the output folder.
pub const JOB: &str = ".job.json";
/// How training ended, in the output folder.
pub const FINISH: &str = "result.json";
/// The trace of the run's memory.
pub const TRACE: &str = "trace.jsonl";
/// The recipe with all its settings.
pub const RECIPE: &str = "recipe.toml";
/// The model card.
pub const CARD: &str = "README.md";
/// The page with everything.
pub const REPORT: &str = "report.html";

/// A job, and the checkpoint that the first start goes on from.
#[derive(Debug, Serialize, Deserialize)]
pub struct JobFile {
    pub job: Job,
    pub resume: Option<PathBuf>,
}

impl JobFile {
    pub fn read(path: &Path) -> Result<JobFile, Failure> {
        let failed = |error: &dyn std::error::Error| {
            Failure::new(format!("cannot read the job `{}`", path.display()), error, None)
        };
        let text = fs::read(path).map_err(|error| failed(&error))?;
        serde_json::from_slice(&text).map_err(|error| failed(&error))
    }

    pub fn write(&self, path: &Path) -> Result<(), Failure> {
        write_json(path, &serde_json::to_value(self).unwrap_or_default())
    }
}

/// Writes a file as a whole or not at all.
pub fn write_json(path: &Path, value: &Value) -> Result<(), Failure> {
    write_text(path, &format!("{value:#}\n"))
}

/// The same for any text.
pub fn write_text(path: &Path, text: &str) -> Result<(), Failure> {
    let mut draft = path.as_os_str().to_owned();
    draft.push(".partial");
    let written = fs::write(&draft, text).and_then(|()| fs::rename(&draft, path));
    written.map_err(|error| {
        drop(fs::remove_file(&draft));
        Failure::new(format!("cannot write `{}`", path.display()), &error, None)
    })
}

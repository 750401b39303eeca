//! `model-garden report`: the page of a training run again, from what the run has left.

use std::error::Error as _;

use garden_run::{REPORT, RunRecord, page};

use super::Outcome;
use crate::cli;
use crate::failure::Failure;
use crate::judging::command_line;
use crate::printer::Printer;

/// Runs the command.
pub fn run(arguments: &cli::Report, printer: &Printer) -> Result<Outcome, Failure> {
    let folder = &arguments.folder;
    let record = RunRecord::read(folder).map_err(|error| Failure {
        what: format!("`{}` is not the output folder of a training run", folder.display()),
        causes: error.source().map(ToString::to_string).into_iter().collect(),
        hint: Some(
            "pass the --output-dir of `model-garden train-vision`; for a trace alone, use `diagnose --format html`"
                .into(),
        ),
    })?;
    let path = arguments.output.clone().unwrap_or_else(|| folder.join(REPORT));
    printer.write_file(&path, &page(&record, Some(command_line())).html())?;
    printer.say(&format!("report: {}", path.display()));
    Ok(Outcome::Fine)
}

//! `model-garden report`: the page of a training run again, from what the run has left.

use super::Outcome;
use super::train::files::REPORT;
use super::train::page;
use super::train::story::Remains;
use crate::cli;
use crate::failure::Failure;
use crate::printer::Printer;

/// Runs the command.
pub fn run(arguments: &cli::Report, printer: &Printer) -> Result<Outcome, Failure> {
    let folder = &arguments.folder;
    let remains = Remains::read(folder).map_err(|failure| Failure {
        what: format!("`{}` is not the output folder of a training run", folder.display()),
        causes: failure.causes,
        hint: Some(
            "name the --output-dir of `model-garden train-vision`; a trace alone is for `diagnose --format html`"
                .into(),
        ),
    })?;
    let path = arguments.output.clone().unwrap_or_else(|| folder.join(REPORT));
    printer.write_file(&path, &page::page(&remains.story()).html())?;
    printer.say(&format!("report: {}", path.display()));
    Ok(Outcome::Fine)
}

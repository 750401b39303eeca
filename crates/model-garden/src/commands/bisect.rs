//! `model-garden bisect`: have Python run the pieces of a pipeline, and judge what was measured.
//!
//! Without a record this program becomes Python, which runs the experiment and then becomes this program again, with the record.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use garden_bisect::{Experiment, Finding, Kind, judge, page};
use garden_report::{Page, Style, json_text};

use super::Outcome;
use super::python::{become_python, ourselves};
use crate::cli::{self, Format};
use crate::failure::Failure;
use crate::printer::{MOST_COLUMNS, Printer};

/// Runs the command.
pub fn run(arguments: &cli::Bisect, printer: &Printer) -> Result<Outcome, Failure> {
    let path = Path::new(&arguments.target);
    if !path.is_file() {
        return Err(run_experiment(arguments));
    }
    let experiment = read(path)?;
    if arguments.forget {
        // It was made for us alone; a temporary folder that refuses is emptied by others.
        drop(fs::remove_file(path));
    }
    let limit = arguments.memory_limit.or_else(garden_probe::memory_limit);
    let finding = judge(&experiment, limit.map(|limit| limit.0));
    let page = page(&experiment, &finding, experiment.command(), env!("CARGO_PKG_VERSION"));
    let text = written(&page, &finding, arguments, printer);
    match &arguments.output {
        Some(path) => printer.write_file(path, &text)?,
        None => printer.out(&text)?,
    }
    Ok(outcome(&finding))
}

fn written(page: &Page, finding: &Finding, arguments: &cli::Bisect, printer: &Printer) -> String {
    let is_printed = arguments.output.is_none();
    let style = if is_printed && printer.has_colour() { Style::Colour } else { Style::Plain };
    let columns = if is_printed { printer.columns() } else { MOST_COLUMNS };
    match arguments.format {
        Format::Text => page.text(style, columns),
        Format::Json => json_text(finding),
        Format::Markdown => page.markdown(),
        Format::Html => page.html(),
    }
}

fn outcome(finding: &Finding) -> Outcome {
    match finding.verdict {
        Kind::Leak => Outcome::BadNews,
        Kind::Cache if !finding.fits() => Outcome::BadNews,
        // What was found may be fine; what was not measured nobody knows.
        _ if finding.has_failed() => Outcome::Program(2),
        Kind::Undecided => Outcome::NotEnoughData,
        _ => Outcome::Fine,
    }
}

fn read(path: &Path) -> Result<Experiment, Failure> {
    let what = || format!("cannot judge `{}`", path.display());
    let text = fs::read_to_string(path).map_err(|error| Failure::new(what(), &error, None))?;
    Experiment::read(&text).map_err(|error| {
        let hint = "make a record with `model-garden bisect module:function --record FILE`";
        Failure::new(what(), &error, Some(hint.into()))
    })
}

/// Becomes Python; returns why that failed.
fn run_experiment(arguments: &cli::Bisect) -> Failure {
    if !arguments.target.contains(':') {
        return Failure {
            what: format!("`{}` is neither module:function nor a file", arguments.target),
            causes: Vec::new(),
            hint: Some("`model-garden bisect train:pieces` calls pieces() of train.py".into()),
        };
    }
    match ourselves() {
        Ok(ourselves) => {
            become_python(arguments.python.as_deref(), "model_garden.experiment", words(arguments, ourselves))
        }
        Err(failure) => failure,
    }
}

/// Python's command line: the experiment, then this program again.
fn words(arguments: &cli::Bisect, ourselves: PathBuf) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec![arguments.target.clone().into()];
    words.extend(["--examples".into(), arguments.examples.to_string().into()]);
    if let Some(passes) = arguments.passes {
        words.extend(["--passes".into(), passes.to_string().into()]);
    }
    words.extend(["--seconds".into(), arguments.time.as_secs_f64().to_string().into()]);
    if let Some(record) = &arguments.record {
        words.extend(["--record".into(), record.into()]);
    }
    words.extend([
        "--then".into(),
        ourselves.into(),
        "bisect".into(),
        "--format".into(),
        arguments.format.name().into(),
    ]);
    if let Some(output) = &arguments.output {
        words.extend(["--output".into(), output.into()]);
    }
    if let Some(limit) = arguments.memory_limit {
        words.extend(["--memory-limit".into(), limit.0.to_string().into()]);
    }
    words
}

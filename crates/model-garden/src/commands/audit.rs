//! `model-garden audit`: have Python run a loop with and without workarounds, and judge the traces.
//!
//! Without a record this program becomes Python, which makes the runs and then becomes this program again, with the record.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use garden_memory::{CompareQuestion, Effect, Run, compare};
use garden_report::{Style, Tried};
use garden_trace::{NamedTrace, read_audit};

use super::Outcome;
use super::compare::written;
use super::python::{become_python, ourselves};
use crate::cli;
use crate::failure::Failure;
use crate::printer::{MOST_COLUMNS, Printer};

/// Runs the command.
pub fn run(arguments: &cli::Audit, printer: &Printer) -> Result<Outcome, Failure> {
    let folder = &arguments.target;
    if !folder.is_dir() {
        return Err(make_runs(arguments));
    }
    let record = read_audit(folder).map_err(|error| {
        let hint = "make a record with `model-garden audit module:function --workaround NAME --record FOLDER`";
        Failure::new(format!("cannot judge `{}`", folder.display()), &error, Some(hint.into()))
    })?;
    if arguments.forget {
        // It was made for us alone; a temporary folder that refuses is emptied by others.
        drop(fs::remove_dir_all(folder));
    }
    let question = CompareQuestion { from: Some(record.warm_up as f64), ..CompareQuestion::default() };
    let tried: Vec<Tried> = record
        .workarounds
        .iter()
        .map(|(name, traces)| {
            let comparison = compare(&runs(&record.baseline), &runs(traces), &question);
            Tried { name: name.clone(), comparison }
        })
        .collect();
    let page = garden_report::audit(&record.title, &tried, &record.origin, record.command, env!("CARGO_PKG_VERSION"));
    let style = if arguments.output.is_none() && printer.has_colour() { Style::Colour } else { Style::Plain };
    let columns = if arguments.output.is_none() { printer.columns() } else { MOST_COLUMNS };
    let text = written(&page, arguments.format, style, columns);
    match &arguments.output {
        Some(path) => printer.write_file(path, &text)?,
        None => printer.out(&text)?,
    }
    let is_short = tried.iter().any(|one| one.comparison.effect == Effect::Insufficient);
    Ok(if is_short { Outcome::NotEnoughData } else { Outcome::Fine })
}

/// Becomes Python; returns why that failed.
fn make_runs(arguments: &cli::Audit) -> Failure {
    if !arguments.target.to_string_lossy().contains(':') {
        return Failure {
            what: format!("`{}` is neither module:function nor a folder", arguments.target.display()),
            causes: Vec::new(),
            hint: Some("`model-garden audit train:loop --workaround gc.collect` runs loop() of train.py".into()),
        };
    }
    match ourselves() {
        Ok(ourselves) => become_python(arguments.python.as_deref(), "model_garden.trial", words(arguments, ourselves)),
        Err(failure) => failure,
    }
}

/// Python's command line: the runs, then this program again.
fn words(arguments: &cli::Audit, ourselves: PathBuf) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec![arguments.target.clone().into()];
    words.extend(arguments.workaround.iter().map(|name| format!("--workaround={name}").into()));
    words.extend(arguments.setting.iter().map(|setting| format!("--setting={setting}").into()));
    words.extend([format!("--steps={}", arguments.steps).into(), format!("--rounds={}", arguments.rounds).into()]);
    words.push(format!("--patience={}", arguments.patience.as_secs_f64()).into());
    words.extend(arguments.warm_up.map(|steps| format!("--warm-up={steps}").into()));
    if let Some(record) = &arguments.record {
        words.extend(["--record".into(), record.into()]);
    }
    let format = arguments.format.name();
    words.extend(["--then".into(), ourselves.into(), "audit".into(), "--format".into(), format.into()]);
    if let Some(output) = &arguments.output {
        words.extend(["--output".into(), output.into()]);
    }
    words
}

fn runs(traces: &[NamedTrace]) -> Vec<Run<'_>> {
    traces.iter().map(|(name, read)| Run { name, trace: &read.trace }).collect()
}

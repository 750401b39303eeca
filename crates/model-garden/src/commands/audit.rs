//! `model-garden audit`: judge the record of an audit, which Python has made.

use garden_memory::{CompareQuestion, Effect, Run, compare};
use garden_report::{Style, Tried};
use garden_trace::{NamedTrace, read_audit};

use super::Outcome;
use super::compare::written;
use super::diagnose::command_line;
use crate::cli;
use crate::failure::Failure;
use crate::printer::{MOST_COLUMNS, Printer};

/// Runs the command.
pub fn run(arguments: &cli::Audit, printer: &Printer) -> Result<Outcome, Failure> {
    let record = read_audit(&arguments.record).map_err(|error| {
        Failure::new(format!("cannot judge `{}`", arguments.record.display()), &error, error.hint())
    })?;
    let question = CompareQuestion { from: Some(record.warm_up as f64), ..CompareQuestion::default() };
    let tried: Vec<Tried> = record
        .workarounds
        .iter()
        .map(|(name, traces)| {
            let comparison = compare(&runs(&record.baseline), &runs(traces), &question);
            Tried { name: name.clone(), comparison }
        })
        .collect();
    let command = Some(command_line());
    let page = garden_report::audit(&record.title, &tried, &record.origin, command, env!("CARGO_PKG_VERSION"));
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

fn runs(traces: &[NamedTrace]) -> Vec<Run<'_>> {
    traces.iter().map(|(name, read)| Run { name, trace: &read.trace }).collect()
}

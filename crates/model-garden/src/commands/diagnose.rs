//! `model-garden diagnose`: read a trace, judge it, report.

use garden_memory::{Quantity, Question, RunFacts};
use garden_report::Style;
use garden_trace::ReadOptions;

use super::Outcome;
use crate::cli;
use crate::failure::Failure;
use crate::judging::{judge_series, outcome, read_series, render, title};
use crate::printer::{MOST_COLUMNS, Printer};

/// Runs the command.
pub fn run(arguments: &cli::Diagnose, printer: &Printer) -> Result<Outcome, Failure> {
    let read = read_series(&arguments.trace, &options(arguments), "diagnose")?;
    let Some(judged) = judge_series(read, &question(arguments)) else { return Ok(Outcome::NotEnoughData) };
    let style = if arguments.output.is_none() && printer.has_colour() { Style::Colour } else { Style::Plain };
    let columns = if arguments.output.is_none() { printer.columns() } else { MOST_COLUMNS };
    let text = render(&judged, &title(&arguments.trace), arguments.format, style, columns, Vec::new());
    match &arguments.output {
        Some(path) => printer.write_file(path, &text)?,
        None => printer.out(&text)?,
    }
    Ok(outcome(&judged))
}

/// How the trace is to be read.
pub fn options(arguments: &cli::Diagnose) -> ReadOptions {
    ReadOptions {
        column: arguments.column.clone(),
        unit: arguments.unit,
        select: arguments.select.clone(),
        machine: arguments.facts.memory_limit.or(garden_probe::memory_limit()),
    }
}

/// What is to be found out.
pub fn question(arguments: &cli::Diagnose) -> Question {
    Question {
        facts: RunFacts::from(&arguments.facts),
        only: arguments.column.is_some().then_some(Quantity::Rss),
        stability: arguments.gate.stability(),
        no_epochs: arguments.no_epochs,
        leak_after: arguments.leak_after,
        limit_is_assumed: false,
    }
}

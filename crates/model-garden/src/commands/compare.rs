//! `model-garden compare`: read traces of two kinds of runs, compare them, report.

use std::path::PathBuf;

use garden_memory::{CompareQuestion, Comparison, Effect, Quantity, Run, RunFacts, TimeEffect, compare};
use garden_report::{Page, Style};
use garden_trace::{ReadOptions, ReadTrace};

use super::Outcome;
use crate::cli::{self, FailOn, Format};
use crate::failure::Failure;
use crate::judging::{command_line, read, title};
use crate::printer::{MOST_COLUMNS, Printer};

/// Runs the command.
pub fn run(arguments: &cli::Compare, printer: &Printer) -> Result<Outcome, Failure> {
    let (before, after) = match arguments.traces.split_first() {
        Some((before, after)) => (std::slice::from_ref(before), after),
        None => (arguments.before.as_slice(), arguments.after.as_slice()),
    };
    let names: Vec<String> = names(&[before, after].concat());
    let options = ReadOptions {
        column: arguments.column.clone(),
        unit: arguments.unit,
        select: arguments.select.clone(),
        machine: garden_probe::memory_limit(),
    };
    let read =
        |paths: &[PathBuf]| paths.iter().map(|path| read(path, &options, "compare")).collect::<Result<Vec<_>, _>>();
    let (old, new) = (read(before)?, read(after)?);
    let (old_names, new_names) = names.split_at(before.len());
    let question = CompareQuestion {
        facts: RunFacts::from(&arguments.facts),
        only: arguments.column.is_some().then_some(Quantity::Rss),
        from: arguments.from,
    };
    let mut found = compare(&runs(old_names, &old), &runs(new_names, &new), &question);
    for (name, read) in names.iter().zip(old.iter().chain(&new)) {
        found.notes.extend(read.input.notes.iter().map(|note| format!("`{name}`: {note}")));
    }
    let title = format!("{} and {}", old_names.join(", "), new_names.join(", "));
    let page = garden_report::comparison(&found, &title, Some(command_line()), env!("CARGO_PKG_VERSION"));
    let style = if arguments.output.is_none() && printer.has_colour() { Style::Colour } else { Style::Plain };
    let columns = if arguments.output.is_none() { printer.columns() } else { MOST_COLUMNS };
    let text = written(&page, arguments.format, style, columns);
    match &arguments.output {
        Some(path) => printer.write_file(path, &text)?,
        None => printer.out(&text)?,
    }
    Ok(match found.effect {
        Effect::Insufficient => Outcome::NotEnoughData,
        _ if arguments.fail_on.iter().any(|answer| is_answer(*answer, &found)) => Outcome::BadNews,
        _ => Outcome::Fine,
    })
}

/// Whether a comparison gives an answer that a pipeline does not accept.
fn is_answer(answer: FailOn, found: &Comparison) -> bool {
    match answer {
        FailOn::More => found.needs_more,
        FailOn::Slower => found.step_time.as_ref().is_some_and(|time| time.effect == TimeEffect::Costs),
        FailOn::Unclear => found.effect == Effect::Unclear,
    }
}

/// A page in one of its forms.
pub fn written(page: &Page, format: Format, style: Style, columns: usize) -> String {
    match format {
        Format::Text => page.text(style, columns),
        Format::Json => page.json.clone(),
        Format::Markdown => page.markdown(),
        Format::Html => page.html(),
    }
}

fn runs<'a>(names: &'a [String], read: &'a [ReadTrace]) -> Vec<Run<'a>> {
    names.iter().zip(read).map(|(name, read)| Run { name, trace: &read.trace }).collect()
}

/// What the traces are called: by their file names where those differ, else by their paths.
fn names(paths: &[PathBuf]) -> Vec<String> {
    let short: Vec<String> = paths.iter().map(|path| title(path)).collect();
    let is_plain = (1..short.len()).all(|at| !short[..at].contains(&short[at]));
    if is_plain { short } else { paths.iter().map(|path| path.display().to_string()).collect() }
}

//! `model-garden diagnose`: read a trace, judge it, report.

use std::io;
use std::path::Path;

use garden_memory::{Quantity, Question, RunFacts, Verdict};
use garden_report::{JudgedTrace, Section, Style};
use garden_trace::{ReadOptions, ReadTrace};

use super::Outcome;
use crate::cli::{self, Format};
use crate::failure::Failure;
use crate::printer::{MOST_COLUMNS, Printer};

/// Runs the command.
pub fn run(arguments: &cli::Diagnose, printer: &Printer) -> Result<Outcome, Failure> {
    let options = ReadOptions { column: arguments.column.clone(), unit: arguments.unit };
    let read = read(&arguments.trace, &options, "diagnose")?;
    let question = Question {
        facts: RunFacts::from(&arguments.facts),
        only: arguments.column.is_some().then_some(Quantity::Rss),
        stability: arguments.gate.stability(),
    };
    let judged = judge(read, question);
    let style = if arguments.output.is_none() && printer.has_colour() { Style::Colour } else { Style::Plain };
    let columns = if arguments.output.is_none() { printer.columns() } else { MOST_COLUMNS };
    let text = render(&judged, &title(&arguments.trace), arguments.format, style, columns, Vec::new());
    match &arguments.output {
        Some(path) => printer.write_file(path, &text)?,
        None => printer.out(&text)?,
    }
    Ok(outcome(&judged))
}

/// Judges what was read, with this machine's limit where no other is known.
pub fn judge(read: ReadTrace, question: Question) -> JudgedTrace {
    JudgedTrace::of(read.trace, read.input, question, garden_probe::memory_limit())
}

/// The report in one of its forms, with what the caller has to add.
pub fn render(
    judged: &JudgedTrace,
    title: &str,
    format: Format,
    style: Style,
    columns: usize,
    sections: Vec<Section>,
) -> String {
    let command = Some(command_line());
    match format {
        Format::Text => garden_report::text(&judged.report(title, sections, command), style, columns),
        Format::Json => garden_report::json(&judged.report(title, sections, command)),
        Format::Markdown => garden_report::markdown(&judged.report(title, sections, command)),
        Format::Html => garden_report::html(&judged.illustrated(title, sections, command)),
    }
}

/// How a command ends that has judged a trace.
pub fn outcome(judged: &JudgedTrace) -> Outcome {
    if judged.diagnosis.is_bad_news() {
        Outcome::BadNews
    } else if judged.diagnosis.verdict == Verdict::Insufficient {
        Outcome::NotEnoughData
    } else {
        Outcome::Fine
    }
}

/// Reads a trace for a command that `verb` names.
pub fn read(path: &Path, options: &ReadOptions, verb: &str) -> Result<ReadTrace, Failure> {
    let is_standard_input = path == Path::new("-");
    let read = if is_standard_input {
        garden_trace::read(io::stdin().lock(), options)
    } else {
        garden_trace::read_path(path, options)
    };
    read.map_err(|error| {
        let name = if is_standard_input { "standard input".into() } else { format!("`{}`", path.display()) };
        Failure::new(format!("cannot {verb} {name}"), &error, error.hint())
    })
}

/// How a report calls a trace.
pub fn title(path: &Path) -> String {
    match path.file_name() {
        Some(name) if path != Path::new("-") => name.to_string_lossy().into_owned(),
        _ => "standard input".into(),
    }
}

/// The command as it was given, for the report; the binary's folder is nobody's business.
pub fn command_line() -> String {
    let words = std::env::args_os().skip(1).map(|word| quoted(&word.to_string_lossy()));
    std::iter::once("model-garden".to_string()).chain(words).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.into()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

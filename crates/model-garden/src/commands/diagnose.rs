//! `model-garden diagnose`: read a trace, judge it, report.

use std::io;
use std::path::Path;

use garden_memory::{
    Diagnosis, Quantity, Question, RunFacts, Trace, Verdict, diagnose, judged_series, quantity_series,
};
use garden_report::{Page, Report, Section, Series, Style, illustrate};
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
    let judged = Judged::of(read, question);
    let style = if arguments.output.is_none() && printer.has_colour() { Style::Colour } else { Style::Plain };
    let columns = if arguments.output.is_none() { printer.columns() } else { MOST_COLUMNS };
    let text = judged.report(&title(&arguments.trace), arguments.format, style, columns, Vec::new());
    match &arguments.output {
        Some(path) => printer.write_file(path, &text)?,
        None => printer.out(&text)?,
    }
    Ok(judged.outcome())
}

/// A trace with its diagnosis.
pub struct Judged {
    trace: Trace,
    facts: RunFacts,
    pub diagnosis: Diagnosis,
}

impl Judged {
    /// The most that was held at one sample, and the highest resident memory that the kernel told, in bytes.
    pub fn most(&self) -> (u64, u64) {
        let samples = (0..self.trace.len()).map(|index| self.trace.sample(index));
        samples.fold((0, 0), |(held, peak), sample| {
            (held.max(sample.held()), peak.max(sample.get(Quantity::Peak).unwrap_or(0)))
        })
    }

    /// The last moment of the trace, in seconds from its beginning.
    pub fn seconds(&self) -> f64 {
        (0..self.trace.len()).rev().find_map(|index| self.trace.time_s(index)).unwrap_or(0.0)
    }

    /// Judges a trace; the limit is the one asked about, else the trace's own, else this machine's.
    pub fn of(read: ReadTrace, question: Question) -> Judged {
        let ReadTrace { trace, input } = read;
        let facts = question.facts.or(trace.facts.clone());
        let limit_is_given = facts.memory_limit.is_some();
        let facts = RunFacts { memory_limit: facts.memory_limit.or_else(garden_probe::memory_limit), ..facts };
        let mut diagnosis = diagnose(&trace, &Question { facts: facts.clone(), ..question });
        diagnosis.input.format = input.format;
        diagnosis.input.unit = input.unit;
        diagnosis.input.skipped += input.skipped;
        diagnosis.input.notes.splice(0..0, input.notes);
        if !limit_is_given && diagnosis.forecast.limit_bytes.is_some() {
            diagnosis.input.notes.push("the memory limit is this machine's; --memory-limit sets another".into());
        }
        Judged { trace, facts, diagnosis }
    }

    /// What every form of the report is made from.
    fn draft(&self, title: &str, sections: Vec<Section>) -> Report<'_> {
        Report {
            title: title.to_string(),
            memory: Series { name: memory_name(&self.trace), points: judged_series(&self.trace) },
            counts: counts(&self.trace),
            charts: Vec::new(),
            samples: None,
            sections,
            origin: &self.trace.origin,
            facts: &self.facts,
            command: Some(command_line()),
            version: env!("CARGO_PKG_VERSION"),
            diagnosis: &self.diagnosis,
        }
    }

    /// The parts of the page, charts included, for a page about more than memory.
    pub fn page(&self, title: &str) -> Page {
        let mut report = self.draft(title, Vec::new());
        illustrate(&mut report, &self.trace);
        let mut page = report.page();
        page.charts = report.charts;
        page
    }

    /// The report in one of its forms, with what the caller has to add.
    pub fn report(&self, title: &str, format: Format, style: Style, columns: usize, sections: Vec<Section>) -> String {
        let mut report = self.draft(title, sections);
        match format {
            Format::Text => garden_report::text(&report, style, columns),
            Format::Json => garden_report::json(&report),
            Format::Markdown => garden_report::markdown(&report),
            Format::Html => {
                illustrate(&mut report, &self.trace);
                garden_report::html(&report)
            }
        }
    }

    /// How the command ends.
    pub fn outcome(&self) -> Outcome {
        if self.diagnosis.is_bad_news() {
            Outcome::BadNews
        } else if self.diagnosis.verdict == Verdict::Insufficient {
            Outcome::NotEnoughData
        } else {
            Outcome::Fine
        }
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

fn memory_name(trace: &Trace) -> String {
    trace.name_of(if trace.has(Quantity::Rss) { Quantity::Rss } else { Quantity::Pss }).to_string()
}

fn counts(trace: &Trace) -> Vec<Series> {
    Quantity::ALL
        .into_iter()
        .filter(|&quantity| quantity.is_count() && trace.has(quantity))
        .map(|quantity| Series { name: trace.name_of(quantity).to_string(), points: quantity_series(trace, quantity) })
        .collect()
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

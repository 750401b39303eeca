//! A trace read, judged and reported, for every command that ends with a verdict.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use garden_memory::{Question, Stability, Verdict};
use garden_report::{JudgedTrace, Section, Style};
use garden_trace::{ReadOptions, ReadTrace, read_all, read_all_path, read_path};

use crate::cli::Format;
use crate::commands::Outcome;
use crate::failure::Failure;
use crate::printer::{MOST_COLUMNS, Printer};

/// Reads the only series of a trace for a command that `verb` names.
pub fn read(path: &Path, options: &ReadOptions, verb: &str) -> Result<ReadTrace, Failure> {
    let is_standard_input = path == Path::new("-");
    let read =
        if is_standard_input { garden_trace::read(io::stdin().lock(), options) } else { read_path(path, options) };
    read.map_err(|error| cannot(verb, path, &error))
}

/// Reads all series of a trace.
pub fn read_series(path: &Path, options: &ReadOptions, verb: &str) -> Result<Vec<ReadTrace>, Failure> {
    let is_standard_input = path == Path::new("-");
    let read = if is_standard_input { read_all(io::stdin().lock(), options) } else { read_all_path(path, options) };
    read.map_err(|error| cannot(verb, path, &error))
}

fn cannot(verb: &str, path: &Path, error: &garden_trace::Error) -> Failure {
    let name = if path == Path::new("-") { "standard input".into() } else { format!("`{}`", path.display()) };
    Failure::new(format!("cannot {verb} {name}"), error, error.hint())
}

/// Judges what was read, with this machine's limit where no other is known.
pub fn judge(read: ReadTrace, question: Question) -> JudgedTrace {
    JudgedTrace::of(read.trace, read.input, question, garden_probe::memory_limit())
}

/// Judges each of several series; the one that decides, with the verdicts on all.
pub fn judge_series(read: Vec<ReadTrace>, question: &Question) -> Option<JudgedTrace> {
    let is_alone = read.len() == 1;
    let judged = read.into_iter().map(|read| (read.name.clone().unwrap_or_default(), judge(read, question.clone())));
    let mut judged: Vec<(String, JudgedTrace)> = judged.collect();
    if is_alone { judged.pop().map(|(_, only)| only) } else { JudgedTrace::that_decides(judged) }
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

/// A word as a shell reads it.
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.into()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Judges a trace as `diagnose` does, and prints its report.
pub fn judge_and_print(
    trace: &HeldTrace,
    stability: Option<Stability>,
    printer: &Printer,
) -> Result<JudgedTrace, Failure> {
    let path = trace.path.as_path();
    let read = trace
        .read(printer)
        .map_err(|error| Failure::new(format!("cannot judge the trace `{}`", path.display()), &error, error.hint()))?;
    let judged = judge(read, Question { stability, ..Question::default() });
    let style = if printer.has_colour() { Style::Colour } else { Style::Plain };
    printer.out(&render(&judged, &title(path), Format::Text, style, printer.columns(), Vec::new()))?;
    Ok(judged)
}

/// A trace that is held open while it is written, so that it can be judged even if somebody deletes it in the meantime.
pub struct HeldTrace {
    path: PathBuf,
    file: Option<File>,
}

impl HeldTrace {
    /// Holds the file at a path, which is made if it is not there yet. What cannot be held is read by its path in the end.
    pub fn at(path: &Path) -> HeldTrace {
        let is_other = path.metadata().is_ok_and(|found| !found.is_file());
        let open = || File::options().read(true).write(true).create(true).truncate(false).open(path).ok();
        let file = if is_other { None } else { open() };
        // So that nobody tidies it up while it is written.
        file.as_ref().map(File::try_lock_shared);
        HeldTrace { path: path.to_path_buf(), file }
    }

    /// Removes what was made, if nothing was written to it.
    pub fn drop_empty(self) {
        if self.file.is_some_and(|file| file.metadata().is_ok_and(|found| found.len() == 0)) {
            drop(std::fs::remove_file(self.path));
        }
    }

    fn read(&self, printer: &Printer) -> Result<ReadTrace, garden_trace::Error> {
        let is_there = File::open(&self.path).is_ok();
        match self.file.as_ref().and_then(|file| file.try_clone().ok()).filter(|_| !is_there) {
            Some(file) => {
                printer.say(&format!("the trace {} was deleted meanwhile; judging it anyway", self.path.display()));
                garden_trace::read(file, &ReadOptions::default())
            }
            None => read_path(&self.path, &ReadOptions::default()),
        }
    }
}

/// Refuses a report that has no folder to be written to, before hours of watching.
pub fn check_page(page: Option<&Path>) -> Result<(), Failure> {
    let folder = page.and_then(Path::parent).filter(|folder| !folder.as_os_str().is_empty());
    match (page, folder) {
        (Some(page), Some(folder)) if !folder.is_dir() => Err(Failure {
            what: format!("cannot write the report `{}`", page.display()),
            causes: vec![format!("there is no folder `{}`", folder.display())],
            hint: Some("create the folder first, or choose another file with --report".into()),
        }),
        _ => Ok(()),
    }
}

/// The form of a report by the name of its file: a page, unless it says otherwise.
fn format_of(path: &Path) -> Format {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("json") => Format::Json,
        Some("md") => Format::Markdown,
        Some("txt") => Format::Text,
        _ => Format::Html,
    }
}

/// Writes the report to a file. The watching was not in vain if that fails, so it is only said.
pub fn write_page(judged: &JudgedTrace, trace: &Path, page: &Path, sections: Vec<Section>, printer: &Printer) {
    let text = render(judged, &title(trace), format_of(page), Style::Plain, MOST_COLUMNS, sections);
    match printer.write_file(page, &text) {
        Ok(()) => printer.say(&format!("report: {}", page.display())),
        Err(failure) => printer.failure(&failure),
    }
}

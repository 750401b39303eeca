//! A trace being read: the samples so far, and a count of everything unusable.

use garden_memory::{Input, Quantity, Trace};

use crate::ReadTrace;
use crate::error::shorten;
use crate::unit::factor_name;

/// A skipped part of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// A whole line, and with it a sample.
    Line,
    /// One value of a line whose sample was kept.
    Value,
}

struct Skip {
    part: Part,
    reason: &'static str,
    count: usize,
    first: String,
}

/// The state filled in by every reader.
pub(crate) struct Reading {
    pub(crate) trace: Trace,
    format: &'static str,
    notes: Vec<String>,
    skips: Vec<Skip>,
    // One bit per power of 1024 used as the unit of a main value.
    factors: u64,
}

impl Reading {
    pub(crate) fn new(format: &'static str) -> Self {
        Reading { trace: Trace::default(), format, notes: Vec::new(), skips: Vec::new(), factors: 0 }
    }

    /// Adds a note, once.
    pub(crate) fn note(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }

    /// Counts an unusable line; `detail` shows the first one of its kind.
    pub(crate) fn skip_line(&mut self, reason: &'static str, line: u64, detail: impl FnOnce() -> String) {
        self.skip(Part::Line, reason, line, detail);
    }

    /// Counts an unusable value in a usable line.
    pub(crate) fn skip_value(&mut self, reason: &'static str, line: u64, detail: impl FnOnce() -> String) {
        self.skip(Part::Value, reason, line, detail);
    }

    fn skip(&mut self, part: Part, reason: &'static str, line: u64, detail: impl FnOnce() -> String) {
        match self.skips.iter_mut().find(|skip| skip.part == part && skip.reason == reason) {
            Some(skip) => skip.count += 1,
            None => {
                let detail = detail();
                let first = if detail.is_empty() { format!("line {line}") } else { format!("line {line}, {detail}") };
                self.skips.push(Skip { part, reason, count: 1, first });
            }
        }
    }

    /// Records the unit of a value of the main column.
    pub(crate) fn saw_factor(&mut self, factor: u64) {
        self.factors |= 1 << (factor.trailing_zeros() / 10).min(63);
    }

    /// Sets the file's name for the main column.
    pub(crate) fn name_main(&mut self, name: &str) {
        self.trace.names.insert(Quantity::Rss, name.to_string());
    }

    /// Ends the reading: the trace, with notes on what was skipped.
    pub(crate) fn finish(mut self) -> ReadTrace {
        self.notes.extend(self.skips.iter().map(describe));
        let input = Input {
            format: self.format.to_string(),
            samples: self.trace.len(),
            column: self.trace.names.get(&Quantity::Rss).cloned(),
            judged: None,
            unit: unit_text(self.factors),
            skipped: self.skips.iter().map(|skip| skip.count).sum(),
            notes: self.notes,
        };
        ReadTrace { trace: self.trace, input }
    }
}

fn describe(skip: &Skip) -> String {
    let noun = match (skip.part, skip.count) {
        (Part::Line, 1) => "line",
        (Part::Line, _) => "lines",
        (Part::Value, 1) => "value",
        (Part::Value, _) => "values",
    };
    let first = if skip.count == 1 { "" } else { "first: " };
    format!("{} {noun} skipped: {} ({first}{})", skip.count, skip.reason, skip.first)
}

fn unit_text(factors: u64) -> Option<String> {
    let named: Vec<&str> =
        (0..5).filter(|bit| factors >> bit & 1 == 1).map(|bit| factor_name(1u64 << (10 * bit))).collect();
    match named.as_slice() {
        [] => None,
        [one] => Some((*one).to_string()),
        several => Some(format!("mixed: {}", several.join(", "))),
    }
}

/// Shows a value with its name, as in `rss_mb` = `n/a`.
pub(crate) fn show_value(name: &str, value: &[u8]) -> String {
    format!("`{name}` = `{}`", shorten(&String::from_utf8_lossy(value)))
}

/// Shows the beginning of a line.
pub(crate) fn show_line(line: &[u8]) -> String {
    format!("`{}`", shorten(&String::from_utf8_lossy(&line[..line.len().min(300)])))
}

/// The reason given for lines beyond the limit of `lines.rs`.
pub(crate) const TOO_LONG: &str = "longer than 1 MiB";

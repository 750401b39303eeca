//! A trace while it is being read: the samples so far, and a count of everything that could not be used.

use garden_memory::{Input, Quantity, Trace};

use crate::ReadTrace;
use crate::error::shorten;
use crate::unit::factor_name;

/// Something that was left out.
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

/// The state that every reader fills in.
pub(crate) struct Reading {
    pub(crate) trace: Trace,
    format: &'static str,
    notes: Vec<String>,
    skips: Vec<Skip>,
    // One bit per power of 1024 that a main value was read in.
    factors: u64,
}

impl Reading {
    pub(crate) fn new(format: &'static str) -> Self {
        Reading { trace: Trace::default(), format, notes: Vec::new(), skips: Vec::new(), factors: 0 }
    }

    /// Says something about the reading, once.
    pub(crate) fn note(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }

    /// Counts a line that cannot be used; `detail` shows the first one of its kind.
    pub(crate) fn skip_line(&mut self, reason: &'static str, line: u64, detail: impl FnOnce() -> String) {
        self.skip(Part::Line, reason, line, detail);
    }

    /// Counts a value that cannot be used in a line that can.
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

    /// Remembers the unit in which a value of the main column was read.
    pub(crate) fn saw_factor(&mut self, factor: u64) {
        self.factors |= 1 << (factor.trailing_zeros() / 10).min(63);
    }

    /// Names the main column as the file calls it.
    pub(crate) fn name_main(&mut self, name: &str) {
        self.trace.names.insert(Quantity::Rss, name.to_string());
    }

    /// Closes the books.
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

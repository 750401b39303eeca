//! What could not be used, counted by reason, with the first example of each.

use crate::error::shorten;

/// A skipped part of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// A whole line, and with it a sample.
    Line,
    /// One value of a line whose sample was kept.
    Value,
}

#[derive(Clone, Debug)]
struct Skip {
    part: Part,
    reason: &'static str,
    count: usize,
    first: String,
}

/// The skipped parts, by reason.
#[derive(Clone, Debug, Default)]
pub(crate) struct Skips(Vec<Skip>);

impl Skips {
    /// Counts a part; `detail` shows the first one of its kind.
    pub(crate) fn add(&mut self, part: Part, reason: &'static str, line: u64, detail: impl FnOnce() -> String) {
        match self.0.iter_mut().find(|skip| skip.part == part && skip.reason == reason) {
            Some(skip) => skip.count += 1,
            None => {
                let detail = detail();
                let first = if detail.is_empty() { format!("line {line}") } else { format!("line {line}, {detail}") };
                self.0.push(Skip { part, reason, count: 1, first });
            }
        }
    }

    /// Adds the parts that another series skipped.
    pub(crate) fn extend(&mut self, other: Skips) {
        for skip in other.0 {
            match self.0.iter_mut().find(|known| known.part == skip.part && known.reason == skip.reason) {
                Some(known) => known.count += skip.count,
                None => self.0.push(skip),
            }
        }
    }

    /// Counts several lines at once.
    pub(crate) fn add_lines(&mut self, reason: &'static str, count: usize, first: String) {
        if count > 0 {
            self.0.push(Skip { part: Part::Line, reason, count, first });
        }
    }

    /// The number of skipped parts.
    pub(crate) fn count(&self) -> usize {
        self.0.iter().map(|skip| skip.count).sum()
    }

    /// A sentence for each reason.
    pub(crate) fn notes(&self) -> impl Iterator<Item = String> + '_ {
        self.0.iter().map(describe)
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

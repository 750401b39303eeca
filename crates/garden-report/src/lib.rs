//! A diagnosis, or any other [`Page`], as text for the terminal, as Markdown for an issue tracker, as a page with charts,
//! and as JSON for scripts.
//!
//! The words are written once, as sections of paragraphs, lists and tables, and each format only renders them. Nothing
//! here reads files, decides anything or knows the terminal: a report goes in, a string comes out. Text from files is
//! never trusted: control characters and escape sequences do not reach any output.

mod audit;
mod braille;
mod chart;
mod clean;
mod comparison;
mod events;
mod format;
mod html;
mod illustrate;
mod judged;
mod markdown;
mod outlook;
mod page;
mod plot;
mod samples;
mod scale;
mod sections;
pub mod terminal;
mod text;
mod thin;
mod wrap;

use garden_memory::{Bytes, Diagnosis, RunFacts};
use serde::Serialize;

pub use audit::{Tried, audit};
pub use chart::{
    Axis, AxisKind, Band, Base, Chart, ChartKind, Curve, Level, LevelKind, Mark, Mood, Outlook, Role, Scale, Shape,
    Size, Table, Tone, Unit,
};
pub use comparison::comparison;
pub use html::html;
pub use illustrate::illustrate;
pub use judged::JudgedTrace;
pub use markdown::markdown;
pub use page::{News, Page};
pub use sections::{Block, Entry, Exhibit, Field, Image, Likeness, Pair, Section};
pub use text::{COLOURS, text};

/// A series for a chart of characters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// Its name, for example the file's own name of the column.
    pub name: String,
    /// Places on the diagnosis's clock and the values there (bytes or counts), in the order of the samples.
    pub points: Vec<(f64, f64)>,
}

/// The input of a report.
#[derive(Clone, Debug)]
pub struct Report<'a> {
    /// The diagnosis.
    pub diagnosis: &'a Diagnosis,
    /// What was diagnosed, for example the name of the file.
    pub title: String,
    /// The judged memory, in bytes.
    pub memory: Series,
    /// Numbers of live tensors and objects, as far as recorded.
    pub counts: Vec<Series>,
    /// The charts of the page, in order; [`illustrate`] makes the charts of a trace, others may follow.
    pub charts: Vec<Chart>,
    /// The raw numbers, for the page.
    pub samples: Option<Table>,
    /// Sections in addition to the diagnosis, for every format.
    pub sections: Vec<Section>,
    /// Where the trace comes from (command, host, versions), as name and value.
    pub origin: &'a [(String, String)],
    /// Facts about the run.
    pub facts: &'a RunFacts,
    /// The command line that made this report.
    pub command: Option<String>,
    /// The version of the program that made this report.
    pub version: &'a str,
}

/// Whether a text may use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// No escape sequences at all.
    Plain,
    /// ANSI colours that emphasise; no meaning is carried by colour alone.
    Colour,
}

impl Report<'_> {
    /// The page that every format begins with, cleaned, without its charts; the rest is drawn from the report itself.
    /// Callers may use parts of it for their own page.
    pub fn page(&self) -> Page {
        self.page_of(sections::findings(self))
    }

    fn page_of(&self, sections: Vec<Section>) -> Page {
        let page = Page {
            subject: "Memory".into(),
            title: self.title.clone(),
            word: self.diagnosis.verdict.name().to_string(),
            news: News::of(self.diagnosis.verdict),
            summary: self.diagnosis.summary.clone(),
            numbers: sections::numbers(self),
            sections,
            charts: Vec::new(),
            environment: sections::environment(self),
            notes: self.diagnosis.input.notes.clone(),
            json: json(self),
            command: self.command.clone(),
            version: self.version.to_string(),
        };
        page.cleaned()
    }
}

/// The diagnosis as JSON, with a newline at the end: the contract that scripts read.
pub fn json(report: &Report) -> String {
    #[derive(Serialize)]
    struct Answer<'a> {
        #[serde(flatten)]
        diagnosis: &'a Diagnosis,
        memory: Option<StartAndEnd>,
    }
    json_text(&Answer { diagnosis: report.diagnosis, memory: StartAndEnd::of(report) })
}

/// Memory at the start and at the end, which every reader looks for first.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct StartAndEnd {
    /// The first place on the clock.
    pub from: f64,
    /// The last place on the clock.
    pub to: f64,
    /// Memory at the first place.
    pub first_bytes: u64,
    /// Memory at the last place.
    pub last_bytes: u64,
}

impl StartAndEnd {
    pub(crate) fn of(report: &Report) -> Option<StartAndEnd> {
        let is_known = |point: &&(f64, f64)| point.0.is_finite() && point.1.is_finite();
        let (from, first) = *report.memory.points.iter().find(is_known)?;
        let (to, last) = *report.memory.points.iter().rev().find(is_known)?;
        let [first_bytes, last_bytes] = [first, last].map(|bytes| Bytes::from_f64(bytes).0);
        (from < to).then_some(StartAndEnd { from, to, first_bytes, last_bytes })
    }
}

/// An answer for scripts as JSON that is safe to show in a terminal, with a newline at the end.
pub fn json_text(answer: &impl Serialize) -> String {
    let mut text = serde_json::to_string_pretty(answer).unwrap_or_default();
    // JSON may carry DEL and the C1 controls as they are, but a terminal would obey them. They can only occur inside
    // strings, so writing them as escapes changes nothing for a parser.
    if text.contains(is_late_control) {
        text =
            text.chars().map(|c| if is_late_control(c) { format!("\\u{:04x}", c as u32) } else { c.into() }).collect();
    }
    text.push('\n');
    text
}

fn is_late_control(c: char) -> bool {
    ('\u{7f}'..='\u{9f}').contains(&c)
}

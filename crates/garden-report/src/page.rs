//! A report as data: the answer, its sections, charts, and how it was made.
//!
//! The diagnosis of a trace becomes a page with a few extras (`lib.rs`); every other report is a plain [`Page`]. Each
//! format renders pages in one place, so all of them look alike, and all texts are cleaned here.

use std::borrow::Cow;

use garden_memory::Verdict;

use crate::clean::clean;
use crate::sections::{Block, Field, Section, cleaned_fields, cleaned_section, section};
use crate::wrap::shorten;
use crate::{Chart, Style, html, markdown, text};

/// The title of the section with the main numbers.
const NUMBERS: &str = "In numbers";
/// Most columns of the answer's word: more would leave no room for the sentence beside it.
const WORD_COLUMNS: usize = 24;

/// A report that is not the diagnosis of one trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// The kind of report, such as `Comparison`: its heading is `Comparison of <title>`.
    pub subject: Cow<'static, str>,
    /// What was examined.
    pub title: String,
    /// The answer in one word.
    pub word: String,
    /// The colour of the answer.
    pub news: News,
    /// The answer in a sentence or two, beside the word.
    pub summary: String,
    /// The numbers beneath the answer.
    pub numbers: Vec<Field>,
    /// The sections, in order.
    pub sections: Vec<Section>,
    /// Charts; text and Markdown leave them out.
    pub charts: Vec<Chart>,
    /// Where the data come from, as name and value.
    pub environment: Vec<(String, String)>,
    /// Notes for the reader on how it was made, such as what was left out.
    pub notes: Vec<String>,
    /// The answer for scripts, written by [`json_text`](crate::json_text) and embedded in the page; empty if there is none.
    pub json: String,
    /// The command line that made this report.
    pub command: Option<String>,
    /// The version of the program that made this report.
    pub version: String,
}

/// The kind of news; no meaning is carried by its colour alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum News {
    /// All is well.
    Good,
    /// Undecided, or it depends.
    Open,
    /// Something has to be done.
    Bad,
    /// There is no answer.
    #[default]
    Unknown,
}

impl News {
    /// The news of a verdict.
    pub fn of(verdict: Verdict) -> News {
        match verdict {
            Verdict::Flat | Verdict::Sawtooth | Verdict::Settled => News::Good,
            Verdict::Growing => News::Open,
            Verdict::Leak => News::Bad,
            Verdict::Insufficient => News::Unknown,
        }
    }

    /// The CSS class of its colour.
    pub(crate) fn class(self) -> &'static str {
        match self {
            News::Good => "good",
            News::Open => "open",
            News::Bad => "bad",
            News::Unknown => "unknown",
        }
    }
}

impl Page {
    /// The page as text of at most `columns` columns, within a readable range of 60 to 100.
    pub fn text(&self, style: Style, columns: usize) -> String {
        text::render(&self.cleaned(), None, style, columns)
    }

    /// The page as Markdown for an issue tracker.
    pub fn markdown(&self) -> String {
        markdown::render(&self.cleaned(), None)
    }

    /// The page as HTML that needs no network, no other file and no server.
    pub fn html(&self) -> String {
        html::render(&self.cleaned(), None)
    }

    /// The page with cleaned texts and without empty sections. Charts are cleaned where they are drawn.
    pub(crate) fn cleaned(&self) -> Page {
        let pairs = self.environment.iter().map(|(name, value)| (clean(name), clean(value)));
        let notes = self.notes.iter().map(|note| clean(note));
        Page {
            subject: clean(&self.subject).into(),
            title: clean(&self.title),
            word: shorten(&clean(&self.word), WORD_COLUMNS),
            summary: clean(&self.summary),
            numbers: cleaned_fields(&self.numbers),
            sections: self.sections.iter().filter_map(cleaned_section).collect(),
            environment: pairs.filter(|(_, value)| !value.is_empty()).collect(),
            notes: notes.filter(|note| !note.is_empty()).collect(),
            command: self.command.as_deref().map(clean).filter(|command| !command.is_empty()),
            version: clean(&self.version),
            json: self.json.clone(),
            charts: self.charts.clone(),
            news: self.news,
        }
    }

    /// All sections, the numbers first.
    pub(crate) fn findings(&self) -> impl Iterator<Item = Cow<'_, Section>> {
        let numbers = section(NUMBERS, vec![Block::Fields(self.numbers.clone())]);
        numbers.map(Cow::Owned).into_iter().chain(self.sections.iter().map(Cow::Borrowed))
    }
}

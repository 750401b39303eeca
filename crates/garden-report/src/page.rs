//! A report as data: the answer, what stands beneath it, charts, and how it was made.
//!
//! The diagnosis of a trace becomes a page with a few extras of its own (`lib.rs`); whatever else has something to report
//! makes a [`Page`]. Each format renders pages in one place, so all of them look alike, and all texts are cleaned here.

use std::borrow::Cow;

use garden_memory::Verdict;

use crate::clean::clean;
use crate::sections::{Block, Field, Section, cleaned_fields, cleaned_section, section};
use crate::wrap::shorten;
use crate::{Chart, Style, html, markdown, text};

/// The section of the numbers that answer first.
const NUMBERS: &str = "In numbers";
/// Columns that the answer's word may take: more would leave no room for the sentence beside it.
const WORD_COLUMNS: usize = 24;

/// A report that is not the diagnosis of one trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// What kind of report it is, such as `Comparison`: its heading is `Comparison of <title>`.
    pub subject: Cow<'static, str>,
    /// What was examined.
    pub title: String,
    /// The answer in one word.
    pub word: String,
    /// How the answer is coloured.
    pub news: News,
    /// The answer in a sentence or two, which stands beside the word.
    pub summary: String,
    /// The numbers that stand beneath the answer.
    pub numbers: Vec<Field>,
    /// What there is to say, in its order.
    pub sections: Vec<Section>,
    /// Charts; text and Markdown leave them out.
    pub charts: Vec<Chart>,
    /// Where it comes from, as name and value.
    pub environment: Vec<(String, String)>,
    /// What a reader should know about how it was made, such as what was left out.
    pub notes: Vec<String>,
    /// The answer for scripts as [`json_text`](crate::json_text) writes it, which the page carries; empty if there is none.
    pub json: String,
    /// The command line that made this report.
    pub command: Option<String>,
    /// The version of the program that made this report.
    pub version: String,
}

/// What kind of news an answer is; no meaning is carried by its colour alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum News {
    /// All is well.
    Good,
    /// It is not decided, or it depends.
    Open,
    /// Something has to be done.
    Bad,
    /// There is no answer.
    #[default]
    Unknown,
}

impl News {
    /// What a verdict means.
    pub fn of(verdict: Verdict) -> News {
        match verdict {
            Verdict::Flat | Verdict::Sawtooth | Verdict::Settled => News::Good,
            Verdict::Growing => News::Open,
            Verdict::Leak => News::Bad,
            Verdict::Insufficient => News::Unknown,
        }
    }

    /// The class that colours it on a page.
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
    /// The page as text of at most so many columns, within what can be read: 60 to 100.
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

    /// The page with texts that can do no harm, and without sections that are empty. Charts are cleaned where they are drawn.
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

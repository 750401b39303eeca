//! A report for the terminal: the verdict first, then the charts, then the sections, within a number of columns.
//!
//! Colour only emphasises; the caller knows whether a terminal wants it.

use std::borrow::Cow;

use crate::page::{News, Page};
use crate::plot::{Picture, count_sentences, pictures};
use crate::sections::{Block, Entry, Exhibit, Field, Section, image_words, read, section};
use crate::wrap::{WIDTH, pad, shorten, width, wrap};
use crate::{Report, Style};

const INDENT: &str = "  ";
const PLAIN: &str = "\u{1b}[0m";
const BOLD: &str = "\u{1b}[1m";
const GOOD: &str = "\u{1b}[1;32m";
const OPEN: &str = "\u{1b}[1;33m";
const BAD: &str = "\u{1b}[1;31m";
const UNKNOWN: &str = "\u{1b}[1;90m";
/// Every sequence that a text in [`Style::Colour`] has: whoever prints it lets these through to the terminal, and no others.
pub const COLOURS: [&str; 6] = [PLAIN, BOLD, GOOD, OPEN, BAD, UNKNOWN];
/// A narrower terminal wraps the lines itself.
const FEWEST_COLUMNS: usize = 60;

/// The report as text of at most `columns` columns, within a readable range of 60 to 100.
pub fn text(report: &Report, style: Style, columns: usize) -> String {
    render(&report.page(), Some(report), style, columns)
}

/// A cleaned page as text, with the additions of a trace's diagnosis.
pub(crate) fn render(page: &Page, report: Option<&Report>, style: Style, columns: usize) -> String {
    let most = columns.clamp(FEWEST_COLUMNS, WIDTH);
    let mut sheet = Sheet { style, most, lines: Vec::new() };
    sheet.verdict(page);
    if let Some(report) = report {
        for picture in pictures(report, most) {
            sheet.picture(&picture);
        }
        sheet.sentences(&count_sentences(report));
    }
    let last = match report {
        Some(report) => read(report),
        None => section("", vec![Block::Bullets(page.notes.clone())]),
    };
    for section in page.findings().chain(last.map(Cow::Owned)) {
        sheet.section(&section);
    }
    sheet.lines.push(String::new());
    sheet.lines.join("\n")
}

struct Sheet {
    style: Style,
    /// Most columns of a line.
    most: usize,
    lines: Vec<String>,
}

impl Sheet {
    fn paint(&self, text: &str, code: &str) -> String {
        match self.style {
            Style::Plain => text.to_string(),
            Style::Colour => format!("{code}{text}{PLAIN}"),
        }
    }

    fn verdict(&mut self, page: &Page) {
        let word = page.word.to_uppercase();
        let columns = width(&word);
        let hanging = " ".repeat(columns + 2);
        let mut lines = wrap(&page.summary, &hanging, &hanging, self.most);
        let painted = self.paint(&word, colour(page.news));
        if let Some(first) = lines.first_mut() {
            *first = format!("{painted}{}", first.get(columns..).unwrap_or_default());
        }
        self.lines.extend(lines);
    }

    fn heading(&mut self, title: &str) {
        self.lines.push(String::new());
        for line in wrap(title, "", INDENT, self.most).iter().filter(|line| !line.is_empty()) {
            let painted = self.paint(line, BOLD);
            self.lines.push(painted);
        }
    }

    fn picture(&mut self, picture: &Picture) {
        self.heading(&picture.heading);
        self.lines.extend(picture.lines.iter().cloned());
        self.sentences(&picture.notes);
    }

    fn sentences(&mut self, sentences: &[String]) {
        let most = self.most;
        self.lines.extend(sentences.iter().flat_map(|sentence| wrap(sentence, INDENT, INDENT, most)));
    }

    fn section(&mut self, section: &Section) {
        self.heading(&section.title);
        let indent = if section.title.is_empty() { "" } else { INDENT };
        for block in &section.body {
            self.lines.extend(block_lines(block, indent, self.most));
        }
    }
}

fn colour(news: News) -> &'static str {
    match news {
        News::Good => GOOD,
        News::Open => OPEN,
        News::Bad => BAD,
        News::Unknown => UNKNOWN,
    }
}

fn block_lines(block: &Block, indent: &str, most: usize) -> Vec<String> {
    match block {
        Block::Paragraph(text) => wrap(text, indent, &format!("{indent}{INDENT}"), most),
        Block::Bullets(items) => items.iter().flat_map(|item| item_lines(item, &format!("{INDENT}- "), most)).collect(),
        Block::Numbered(items) => {
            let numbered = items.iter().enumerate();
            numbered.flat_map(|(index, item)| item_lines(item, &format!("{INDENT}{}. ", index + 1), most)).collect()
        }
        Block::Fields(fields) => field_lines(fields, INDENT, name_columns(fields.iter(), most), most),
        Block::Table(header, rows) => table_lines(header, rows, most),
        Block::Entries(entries) => {
            let columns = name_columns(entries.iter().flat_map(|entry| &entry.remarks), most);
            entries.iter().enumerate().flat_map(|(index, entry)| entry_lines(index, entry, columns, most)).collect()
        }
        // A terminal shows the picture's texts.
        Block::Image(image) => item_lines(&image_words(image), &format!("{INDENT}- "), most),
        Block::Exhibits(exhibits) => {
            block_lines(&Block::Entries(exhibits.iter().map(Exhibit::entry).collect()), indent, most)
        }
        Block::Folded(title, body) => {
            let title = wrap(title, indent, &format!("{indent}{INDENT}"), most);
            title.into_iter().chain(body.iter().flat_map(|block| block_lines(block, indent, most))).collect()
        }
    }
}

fn item_lines(item: &str, mark: &str, most: usize) -> Vec<String> {
    wrap(item, mark, &" ".repeat(mark.len()), most)
}

fn entry_lines(index: usize, entry: &Entry, columns: usize, most: usize) -> Vec<String> {
    let mark = format!("{INDENT}{}. ", index + 1);
    let mut lines = item_lines(&entry.title, &mark, most);
    lines.extend(field_lines(&entry.remarks, &" ".repeat(mark.len()), columns, most));
    lines
}

/// Columns of the names: as many as the longest needs, but at most half, the rest being for the texts.
fn name_columns<'a>(fields: impl Iterator<Item = &'a Field>, most: usize) -> usize {
    fields.map(|(name, _)| width(name)).max().unwrap_or(0).min(most / 2)
}

/// Names in a column, with their texts beside them. A repeated name is written once.
fn field_lines(fields: &[Field], indent: &str, columns: usize, most: usize) -> Vec<String> {
    let hanging = " ".repeat(indent.len() + columns + 2);
    let mut before = "";
    let mut lines = Vec::new();
    for (name, text) in fields {
        let shown = if name == before { "" } else { name };
        lines.extend(wrap(text, &format!("{indent}{}  ", pad(&shorten(shown, columns), columns)), &hanging, most));
        before = name;
    }
    lines
}

fn table_lines(header: &[Cow<'static, str>], rows: &[Vec<String>], most: usize) -> Vec<String> {
    let header: Vec<String> = header.iter().map(|cell| cell.to_string()).collect();
    let mut columns = vec![0; header.len()];
    for row in std::iter::once(&header).chain(rows) {
        columns.iter_mut().zip(row).for_each(|(column, cell)| *column = width(cell).max(*column));
    }
    let room = most.saturating_sub(INDENT.len() + 2 * columns.len());
    while columns.iter().sum::<usize>() > room {
        columns.iter_mut().max().into_iter().for_each(|widest| *widest -= 1);
    }
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&columns).map(|(cell, &column)| pad(&shorten(cell, column), column));
        format!("{INDENT}{}", cells.collect::<Vec<_>>().join("  ")).trim_end().to_string()
    };
    std::iter::once(&header).chain(rows).map(line).collect()
}

//! CSV, TSV, semicolon and Markdown tables with a header line.
//!
//! Lines are split here rather than by a CSV library because a trace is read line by line: an unclosed quote then costs
//! one line instead of the rest of the file, and memory stays bounded whatever a line's length. A quoted field that
//! spans lines is not joined; its pieces are skipped and counted.

mod unit_row;

use std::io::Read;
use std::ops::Range;

use garden_memory::EventKind;

use super::{Contents, Head, Reader, Recognised, claim, nvidia_smi};
use crate::ReadOptions;
use crate::amount::{Comma, Problem, has_decimal_comma, parse_amount};
use crate::columns::choice::{Choice, Variant};
use crate::columns::names::{Meaning, understand};
use crate::columns::{Row, skip_cell};
use crate::error::Error;
use crate::lines::{HeadLine, Line, LineEnd, Lines};
use crate::reading::{KEY_END, Reading, TOO_LONG, TOO_MANY_SERIES, show_line, show_value};
use crate::series::identity::{Identity, Who};

/// Lines within which the header must stand, below a title or the output of a start-up script.
const HEADER_WITHIN: usize = 40;

/// The header: its place and its columns.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    delimiter: u8,
    header_line: u64,
    header: String,
    choice: Choice,
    comma: Comma,
    /// Whether the header comes again within the head.
    pub(super) is_header_repeated: bool,
    /// What only the order of rows tells apart: the header comes again above those of each moment.
    by_order: Option<Who>,
}

impl Layout {
    pub(super) fn names(&self) -> &[String] {
        &self.choice.columns().names
    }

    pub(super) fn choice(&self) -> &Choice {
        &self.choice
    }

    /// Tells rows apart by their order below each header.
    pub(super) fn tell_apart_by_order(&mut self, who: Who) {
        self.by_order = Some(who);
    }

    pub(super) fn is_told_by_order(&self) -> bool {
        self.by_order.is_some()
    }

    /// The layout of rows without a header, under the names that it would have.
    pub(crate) fn headless(names: Result<Vec<String>, Error>, options: &ReadOptions) -> Result<Layout, Error> {
        let mut choice = Choice::of(names?, options)?;
        choice.settle_headless();
        Ok(Layout {
            delimiter: b',',
            header_line: 0,
            header: String::new(),
            choice,
            comma: Comma::Thousands,
            is_header_repeated: false,
            by_order: None,
        })
    }
}

/// What commas within cells mean: the decimal point in files with semicolons, and wherever one of them cannot be anything else.
fn comma_within(rows: &[HeadLine], delimiter: u8) -> Comma {
    let mut fields = Vec::new();
    let mut is_decimal = |row: &HeadLine| {
        split(row.text.as_bytes(), delimiter, &mut fields);
        fields.iter().any(|field| has_decimal_comma(&row.text.as_bytes()[field.clone()]))
    };
    let is_decimal = delimiter == b';' || rows.iter().any(|row| row.text.contains(',') && is_decimal(row));
    if is_decimal { Comma::Decimal } else { Comma::Thousands }
}

/// Recognises a table with a memory column.
pub(super) fn recognise(head: &Head<'_>) -> Recognised {
    let layout = layout_of(head.lines, head.options).filter(|layout| !nvidia_smi::is_query(layout.names()));
    layout.map(|layout| claim(Table(layout)))?
}

struct Table(Layout);

impl Reader for Table {
    fn name(&self) -> &'static str {
        match self.0.delimiter {
            b'\t' => "tsv",
            b';' => "csv (semicolons)",
            b'|' => "table",
            _ => "csv",
        }
    }

    fn read(&self, file: &mut Contents<'_>, reading: &mut Reading) -> Result<(), Error> {
        let repeats = read(&mut file.lines, &self.0, reading)?;
        if let Some(first) = repeats.first() {
            reading.note(format!("the header is repeated {} times (first: line {first})", repeats.len()));
        }
        Ok(())
    }
}

/// Finds a header with a memory column, followed by a row that fits it (or by nothing).
pub(super) fn layout_of(head: &[HeadLine], options: &ReadOptions) -> Option<Layout> {
    let candidates = head.iter().enumerate().take(HEADER_WITHIN).filter(|(_, line)| !line.text.starts_with('#'));
    for (at, line) in candidates {
        let lone = || lone_column(&line.text, options).filter(|_| at == 0);
        let Some((delimiter, mut names)) = header_names(&line.text).or_else(lone) else { continue };
        let mut rows = &head[at + 1..];
        if !rows.first().is_none_or(|row| fits(&row.text, delimiter, &names)) || is_log_line(head, at) {
            continue;
        }
        // A title above the names, as dstat writes it: `"memory usage",,,` above `used,buff,cach,free`.
        if let [below, first, ..] = rows
            && is_title_above(&below.text, &first.text, delimiter)
            && !unit_row::state(&below.text, delimiter, &mut names.clone())
        {
            continue;
        }
        let mut header_line = line.number;
        if let Some(units) = rows.first().filter(|row| unit_row::state(&row.text, delimiter, &mut names)) {
            (header_line, rows) = (units.number, &rows[1..]);
        }
        unit_row::state_by_comments(&head[..at], &mut names);
        let Ok(choice) = Choice::of(names, options) else { continue };
        let header = line.text.clone();
        let comma = comma_within(rows, delimiter);
        let mut layout =
            Layout { delimiter, header_line, header, choice, comma, is_header_repeated: false, by_order: None };
        observe(&mut layout, rows, options);
        return Some(layout);
    }
    None
}

/// Whether a line next to this one differs in its numbers only, as lines of logs do: `step 0 | loss 2.1` above `step 1 | loss 2.0`.
fn is_log_line(head: &[HeadLine], at: usize) -> bool {
    let without_numbers = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "");
    let line = &head[at].text;
    let is_alike = |other: &HeadLine| other.text != *line && without_numbers(&other.text) == without_numbers(line);
    let beside = [at.checked_sub(1), Some(at + 1)].into_iter().flatten().filter_map(|at| head.get(at));
    line.contains(|c: char| c.is_ascii_digit()) && beside.into_iter().any(is_alike)
}

/// Whether a row has as many names as the row below it has cells, of which some are numbers.
fn is_title_above(names: &str, row: &str, delimiter: u8) -> bool {
    let mut fields = Vec::new();
    let mut cells = |text: &str| {
        split(text.as_bytes(), delimiter, &mut fields);
        fields.iter().map(|field| text[field.clone()].trim().to_string()).collect::<Vec<_>>()
    };
    let is_number = |cell: &String| parse_amount(cell.as_bytes(), Comma::Thousands).is_ok();
    let (names, row) = (cells(names), cells(row));
    let are_names = names.iter().all(|name| name.contains(char::is_alphabetic) && !is_number(name));
    are_names && names.len() == row.len() && row.iter().any(is_number)
}

/// The names in a line that looks like a header, even one without a memory column.
pub(crate) fn header_names(line: &str) -> Option<(u8, Vec<String>)> {
    let delimiter =
        *b"|\t;,".iter().max_by_key(|&&delimiter| line.bytes().filter(|&byte| byte == delimiter).count())?;
    let mut fields = Vec::new();
    split(line.as_bytes(), delimiter, &mut fields);
    let names: Vec<String> = fields.into_iter().map(|field| line[field].trim().to_string()).collect();
    // Names are short, have no colon as log lines do, and are not numbers.
    let is_name = |name: &String| {
        name.len() <= 80
            && !name.contains([':', '=', '{', '}'])
            && parse_amount(name.as_bytes(), Comma::Thousands).is_err()
    };
    let is_lone_memory = |names: &[String]| {
        let meaning = understand(&names[0]).meaning;
        let has_number = names[0].split(' ').any(|word| word.parse::<f64>().is_ok());
        !has_number && names[0].split(' ').count() <= 3 && matches!(meaning, Meaning::Memory | Meaning::Quantity(_))
    };
    let plausible = names.iter().all(is_name) && (names.len() > 1 || is_lone_memory(&names));
    plausible.then_some((delimiter, names))
}

/// The only column of a table, if the caller asks for it by name; memory is recognised without that.
fn lone_column(line: &str, options: &ReadOptions) -> Option<(u8, Vec<String>)> {
    let is_asked = options.column.as_ref().is_some_and(|asked| asked.trim() == line.trim());
    is_asked.then(|| (b',', vec![line.trim().to_string()]))
}

/// Whether a line can be a row below this header: nearly as many fields, and a number among them.
pub(crate) fn fits(line: &str, delimiter: u8, names: &[String]) -> bool {
    let mut fields = Vec::new();
    split(line.as_bytes(), delimiter, &mut fields);
    let has_number = fields.iter().any(|field| parse_amount(&line.as_bytes()[field.clone()], Comma::Thousands).is_ok());
    let is_header_again =
        fields.len() == names.len() && names.iter().zip(&fields).all(|(n, f)| n == line[f.clone()].trim());
    let near = fields.len() + 1 >= names.len() && fields.len() <= names.len() + 1;
    is_header_again || (near && (has_number || fields.len() == names.len() && names.len() > 1))
}

/// Takes in the head of the file, for provisional units and identities.
fn observe(layout: &mut Layout, rows: &[HeadLine], options: &ReadOptions) {
    let comma = layout.comma;
    let mut fields = Vec::new();
    for row in rows.iter().filter(|row| row.text != layout.header) {
        split(row.text.as_bytes(), layout.delimiter, &mut fields);
        for (index, field) in fields.iter().enumerate() {
            if let Ok(amount) = parse_amount(&row.text.as_bytes()[field.clone()], comma) {
                layout.choice.observe(index, amount);
            }
            if layout.choice.wants_text(index) {
                layout.choice.observe_text(index, &row.text[field.clone()]);
            }
        }
    }
    layout.choice.settle(options);
    layout.is_header_repeated = rows.iter().any(|row| row.text == layout.header);
}

/// Reads the rows below the header; returns the lines in which the header comes again.
pub(super) fn read<R: Read>(lines: &mut Lines<R>, layout: &Layout, reading: &mut Reading) -> Result<Vec<u64>, Error> {
    layout.choice.introduce(reading);
    let mut rows = Rows {
        layout,
        row: Row::new(),
        fields: Vec::new(),
        key: Vec::new(),
        header_repeated: false,
        repeats: Vec::new(),
        rows: 0,
        is_other: false,
    };
    while let Some(line) = lines.next()? {
        if line.number > layout.header_line && line.text[0] != b'#' && !is_ruler(line.text) {
            rows.take(&line, reading);
        }
    }
    rows.row.finish(reading);
    Ok(rows.repeats)
}

/// The line below the header of a Markdown table.
fn is_ruler(line: &[u8]) -> bool {
    line.starts_with(b"|") && line.iter().all(|byte| matches!(byte, b'|' | b'-' | b':' | b' '))
}

struct Rows<'a> {
    layout: &'a Layout,
    row: Row,
    fields: Vec<Range<usize>>,
    key: Vec<u8>,
    // Whether the previous line repeated the header, and the numbers of all lines that did.
    header_repeated: bool,
    repeats: Vec<u64>,
    /// The number of rows since the last header.
    rows: u64,
    /// Whether rows are those of another table, below a header of its own.
    is_other: bool,
}

impl Rows<'_> {
    fn take(&mut self, line: &Line<'_>, reading: &mut Reading) {
        reading.leave();
        if line.end == LineEnd::TooLong {
            return reading.skip_line(TOO_LONG, line.number, || show_line(line.text));
        }
        if line.text == self.layout.header.as_bytes() {
            (self.header_repeated, self.is_other) = (true, false);
            self.rows = 0;
            return self.repeats.push(line.number);
        }
        split(line.text, self.layout.delimiter, &mut self.fields);
        self.is_other |= self.is_other_header(line.text);
        if self.is_other {
            return reading.skip_line("below another header", line.number, || show_line(line.text));
        }
        for variant in &self.layout.choice.variants {
            if let Err(reason) = self.check_length(line.text, variant) {
                return reading.skip_line(reason, line.number, || show_line(line.text));
            }
            if !self.enter(line.text, variant, reading) {
                return reading.skip_line(TOO_MANY_SERIES, line.number, || show_line(line.text));
            }
            self.take_variant(line, variant, reading);
        }
        self.header_repeated = false;
    }

    /// Whether a row is the header of another table, such as that of a later run with more columns.
    fn is_other_header(&self, line: &[u8]) -> bool {
        // Nearly all rows begin with a number.
        if !line.first().is_some_and(|byte| byte.is_ascii_alphabetic() || *byte == b'"') || self.fields.len() < 2 {
            return false;
        }
        let cells = || self.fields.iter().map(|field| String::from_utf8_lossy(&line[field.clone()]));
        let is_name = |cell: &str| {
            cell.contains(char::is_alphabetic)
                && parse_amount(cell.as_bytes(), Comma::Thousands) == Err(Problem::NotANumber)
        };
        let is_axis =
            |cell: &str| matches!(understand(cell).meaning, Meaning::Step | Meaning::Time(_) | Meaning::Epoch);
        cells().all(|cell| is_name(cell.trim())) && cells().any(|cell| is_axis(cell.trim()))
    }

    /// Turns to the series of a row; false if there are too many.
    fn enter(&mut self, line: &[u8], variant: &Variant, reading: &mut Reading) -> bool {
        let choice = &self.layout.choice;
        if let Some(identity) = &variant.series {
            return reading.enter(identity.name(|_| true).as_bytes(), || identity.clone());
        }
        if let Some(who) = self.layout.by_order {
            self.rows += 1;
            let place = (self.rows - 1).to_string();
            return reading.enter(place.as_bytes(), || Identity::of(who, place.clone()));
        }
        if choice.identity.is_empty() {
            return true;
        }
        self.key.clear();
        for &(index, _) in &choice.identity {
            let cell = self.fields.get(index).map_or(&[][..], |field| line[field.clone()].trim_ascii());
            self.key.extend_from_slice(cell);
            self.key.push(KEY_END);
        }
        let cell = |index: usize| std::str::from_utf8(line.get(self.fields.get(index)?.clone())?).ok();
        reading.enter(&self.key, || choice.identity_of(cell))
    }

    fn take_variant(&mut self, line: &Line<'_>, variant: &Variant, reading: &mut Reading) {
        let columns = &variant.columns;
        self.row.clear();
        for &(index, what) in &columns.used {
            let Some(cell) = self.fields.get(index).map(|field| &line.text[field.clone()]) else { continue };
            let amount = || parse_amount(cell, self.layout.comma);
            let text = || String::from_utf8_lossy(cell);
            let Err(problem) = self.row.set(what, amount, text) else { continue };
            if index != columns.main() {
                skip_cell(reading, problem, line.number, &columns.names[index], cell);
            } else {
                let name = &columns.names[index];
                return reading.skip_line(problem.reason(), line.number, || show_value(name, cell));
            }
        }
        self.mark_restart(reading);
        self.row.push(columns.subject, reading);
        if variant.series.is_some() {
            reading.name_main(&columns.names[columns.main()]);
        }
    }

    /// Checks the number of fields: extra ones mean commas in numbers, and a row that ends with the memory value may be torn there.
    fn check_length(&self, line: &[u8], variant: &Variant) -> Result<(), &'static str> {
        let columns = &variant.columns;
        let extra = self.fields.get(columns.names.len()..).unwrap_or(&[]);
        if extra.iter().any(|field| !line[field.clone()].trim_ascii().is_empty()) {
            return Err("more fields than the header has");
        }
        let is_short = self.fields.len() < columns.names.len();
        if is_short && self.fields.len() <= columns.main() + 1 {
            return Err("fewer fields than the header has");
        }
        Ok(())
    }

    /// Marks a restart: a header in the middle followed by a smaller step means another run wrote to the same file.
    fn mark_restart(&self, reading: &mut Reading) {
        let trace = reading.trace();
        if !self.header_repeated || trace.is_empty() {
            return;
        }
        let (last, now) = (trace.len() - 1, &self.row.sample);
        let goes_back = match (now.step, trace.step(last), now.time_s, trace.time_s(last)) {
            (Some(step), Some(before), _, _) => step <= before,
            (_, _, Some(time), Some(before)) => time <= before,
            _ => false,
        };
        if goes_back {
            trace.push_event(EventKind::Restart, None, None);
        }
    }
}

/// Splits a row into the ranges of its fields, without their quotes.
pub(crate) fn split(line: &[u8], delimiter: u8, fields: &mut Vec<Range<usize>>) {
    fields.clear();
    let mut from = 0;
    while from <= line.len() {
        let quoted = line.get(from) == Some(&b'"');
        let (field, next) =
            if quoted { quoted_field(line, from, delimiter) } else { plain_field(line, from, delimiter) };
        fields.push(field);
        from = next;
    }
}

fn plain_field(line: &[u8], from: usize, delimiter: u8) -> (Range<usize>, usize) {
    let end = line[from..].iter().position(|&byte| byte == delimiter).map_or(line.len(), |at| from + at);
    (from..end, end + 1)
}

fn quoted_field(line: &[u8], from: usize, delimiter: u8) -> (Range<usize>, usize) {
    let mut at = from + 1;
    while let Some(quote) = line[at..].iter().position(|&byte| byte == b'"').map(|found| at + found) {
        if line.get(quote + 1) != Some(&b'"') {
            let (_, next) = plain_field(line, quote + 1, delimiter);
            return (from + 1..quote, next);
        }
        at = quote + 2;
    }
    // Never closed: a stray quote, or the first line of a field that spans several.
    plain_field(line, from, delimiter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_with_and_without_quotes() {
        let fields = |line: &str| {
            let mut places = Vec::new();
            split(line.as_bytes(), b',', &mut places);
            places.into_iter().map(|place| line[place].to_string()).collect::<Vec<_>>().join("|")
        };
        assert_eq!(fields("a,b,,c"), "a|b||c");
        assert_eq!(fields("\"7,159 MB\",2"), "7,159 MB|2");
        assert_eq!(fields("\"a \"\"b\"\" c\",2,"), "a \"\"b\"\" c|2|");
        assert_eq!(fields("\"never closed,2"), "\"never closed|2");
        assert_eq!(fields(""), "");
    }
}

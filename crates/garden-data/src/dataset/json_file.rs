//! JSON Lines and JSON arrays: finds each row in one pass that holds a piece of the file at a time.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;

use memchr::{memchr, memchr2};

use super::calls::Nulls;
use super::conversation::{LoneText, Row};
use super::convert;
use super::picture::Beside;
use super::reach::Reach;
use super::stored::{Span, Stored, fits, span};
use super::value::{Value, parse_json};
use crate::error::Error;

/// Bytes of the file held at a time.
const PIECE: usize = 256 << 10;
/// UTF-8 files from Windows may begin with it.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A first line shorter than this may be the beginning of an object that spans many.
const SHORT_LINE: usize = 256;

/// How rows are separated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    Lines,
    Array,
}

/// A JSON file of rows.
#[derive(Debug)]
pub(crate) struct JsonFile {
    stored: Stored,
    layout: Layout,
    rows: Vec<Span>,
    lone_text: LoneText,
    reach: Arc<Reach>,
}

impl JsonFile {
    /// Finds the rows of a file.
    pub(crate) fn open(path: &Path, lone_text: LoneText, reach: &Arc<Reach>) -> Result<JsonFile, Error> {
        let stored = Stored::new(path)?;
        let file = stored.open()?;
        let mut scan =
            Scan { path, reader: BufReader::with_capacity(PIECE, file), offset: 0, line: 1, rows: Vec::new() };
        let layout = scan.layout()?;
        match layout {
            Layout::Lines => scan.lines()?,
            Layout::Array => scan.array()?,
        }
        let mut rows = scan.rows;
        rows.shrink_to_fit();
        if layout == Layout::Lines {
            refuse_whole(&stored, &rows)?;
        }
        Ok(JsonFile { stored, layout, rows, lone_text, reach: reach.clone() })
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn place(&self, index: usize) -> String {
        let place = format!("{}:{}", self.stored.path.display(), self.rows[index].line);
        // Several rows of an array may be on one line.
        if self.layout == Layout::Array { format!("{place} (row {})", index + 1) } else { place }
    }

    /// Reads a row and converts it with `make`.
    pub(crate) fn read<T>(&self, index: usize, make: impl FnOnce(Row<'_>) -> Result<T, Error>) -> Result<T, Error> {
        let row = self.rows[index];
        let place = self.place(index);
        fits(&place, u64::from(row.length))?;
        let bytes = self.stored.read(&self.stored.open()?, row.offset, row.length as usize)?;
        let value = parse(&place, &bytes, self.layout)?;
        let folder = self.stored.path.parent().unwrap_or(Path::new(""));
        let (beside, lone_text, bytes) =
            (Beside::Folder { folder, reach: &self.reach }, self.lone_text, u64::from(row.length));
        make(Row { place: &place, value, beside, lone_text, nulls: Nulls::Written, bytes, unread: &[] })
    }
}

/// Refuses a file that is one object of another tool, on one line or on many.
fn refuse_whole(stored: &Stored, rows: &[Span]) -> Result<(), Error> {
    let Some(first) = rows.first() else { return Ok(()) };
    let file = stored.open()?;
    let last = stored.read(&file, first.offset, (first.length as usize).min(SHORT_LINE))?;
    let is_open = (first.length as usize) < SHORT_LINE && !last.trim_ascii_end().ends_with(b"}");
    if rows.len() > 1 && !is_open {
        return Ok(());
    }
    let length = (stored.length - first.offset).min(PIECE as u64);
    let beginning = stored.read(&file, first.offset, length as usize)?;
    let end = stored.read(&file, stored.length - length, length as usize)?;
    match convert::of_object(&stored.path, &beginning, &end) {
        Some((problem, hint)) => Err(Error::dataset(&stored.path, problem).with_hint(hint)),
        None => Ok(()),
    }
}

/// Parses a row's JSON.
fn parse<'a>(place: &str, bytes: &'a [u8], layout: Layout) -> Result<Value<'a>, Error> {
    parse_json(place, bytes)?.map_err(|error| {
        let text = error.to_string();
        let reason = text.rsplit_once(" at line").map_or(text.as_str(), |(reason, _)| reason);
        let broken =
            Error::row_field(place, "", format!("broken JSON at character {} of the row: {reason}", error.column()));
        if let Some(word) = no_number(bytes, error.column()) {
            return broken
                .with_hint(format!("`{word}`, as Python's `json` writes it, is not JSON: write null or a string"));
        }
        if layout == Layout::Lines && error.is_eof() {
            return broken.with_hint(
                "each line must be a whole row; rows that span several lines need a JSON array around them",
            );
        }
        broken
    })
}

/// What Python writes for a number that JSON does not have, if that is what stands near a column.
fn no_number(bytes: &[u8], column: usize) -> Option<&'static str> {
    let near = &bytes[column.saturating_sub(3).min(bytes.len())..(column + 8).min(bytes.len())];
    ["NaN", "Infinity"].into_iter().find(|word| memchr::memmem::find(near, word.as_bytes()).is_some())
}

/// A pass over a file.
struct Scan<'a> {
    path: &'a Path,
    reader: BufReader<File>,
    /// Offset of the next byte.
    offset: u64,
    line: u64,
    rows: Vec<Span>,
}

impl Scan<'_> {
    fn piece(&mut self) -> Result<&[u8], Error> {
        self.reader.fill_buf().map_err(|error| Error::file(self.path, error))
    }

    fn skip(&mut self, count: usize) {
        self.reader.consume(count);
        self.offset += count as u64;
    }

    fn keep(&mut self, start: u64, end: u64, line: u64) -> Result<(), Error> {
        self.rows.push(span(self.path, start, end - start, line)?);
        Ok(())
    }

    /// The layout, from the first character. Lines are checked when they are read.
    fn layout(&mut self) -> Result<Layout, Error> {
        if self.piece()?.starts_with(BYTE_ORDER_MARK) {
            self.skip(BYTE_ORDER_MARK.len());
        }
        let piece = self.piece()?;
        let first = piece.iter().find(|byte| !byte.is_ascii_whitespace());
        Ok(if first == Some(&b'[') { Layout::Array } else { Layout::Lines })
    }

    /// Indexes each non-blank line as a row.
    fn lines(&mut self) -> Result<(), Error> {
        let (mut start, mut blank) = (self.offset, true);
        loop {
            let piece = self.piece()?;
            if piece.is_empty() {
                break;
            }
            let end = memchr(b'\n', piece);
            let text = &piece[..end.unwrap_or(piece.len())];
            blank = blank && text.iter().all(u8::is_ascii_whitespace);
            let length = text.len();
            self.skip(length);
            if end.is_some() {
                if !blank {
                    self.keep(start, self.offset, self.line)?;
                }
                self.skip(1);
                self.line += 1;
                (start, blank) = (self.offset, true);
            }
        }
        if !blank {
            self.keep(start, self.offset, self.line)?;
        }
        Ok(())
    }

    /// Indexes each array element as a row, counting brackets outside of strings.
    fn array(&mut self) -> Result<(), Error> {
        let mut elements = Elements::default();
        loop {
            let piece = self.reader.fill_buf().map_err(|error| Error::file(self.path, error))?;
            if piece.is_empty() {
                break;
            }
            let length = piece.len();
            let found = elements.read(piece, self.offset, &mut self.line);
            let at_line = |problem| Error::dataset(self.path, format!("line {}: {problem}", self.line));
            for (start, end, line) in found.map_err(at_line)? {
                self.keep(start, end, line)?;
            }
            self.skip(length);
        }
        if elements.depth > 0 {
            let problem = format!(
                "the JSON array ends too early, in row {} that begins on line {}",
                self.rows.len() + 1,
                elements.start.1
            );
            return Err(Error::dataset(self.path, problem).with_hint("was the file written or copied completely?"));
        }
        Ok(())
    }
}

/// Finds the elements of an array, piece by piece.
#[derive(Default)]
struct Elements {
    depth: usize,
    in_text: bool,
    escaped: bool,
    closed: bool,
    /// Offset and line of the current element's start.
    start: (u64, u64),
    state: Between,
}

/// The state between elements of the outer array.
#[derive(Clone, Copy, Default, PartialEq)]
enum Between {
    #[default]
    NeedsElement,
    InElement,
    NeedsComma,
}

impl Elements {
    /// The elements that end in this piece: start, end and line of each.
    fn read(&mut self, piece: &[u8], offset: u64, line: &mut u64) -> Result<Vec<(u64, u64, u64)>, String> {
        let mut found = Vec::new();
        let mut place = 0;
        while let Some(byte) = piece.get(place) {
            let at = offset + place as u64;
            if self.in_text {
                place += self.skip_text(&piece[place..]);
                continue;
            }
            place += 1;
            match byte {
                b'\n' => *line += 1,
                byte if byte.is_ascii_whitespace() => {}
                _ if self.closed => return Err("unexpected text after the end of the JSON array".to_string()),
                b'[' if self.depth == 0 => self.depth = 1,
                b']' | b',' if self.depth == 1 => {
                    if self.state == Between::InElement {
                        found.push((self.start.0, at, self.start.1));
                    } else if *byte == b',' && self.state == Between::NeedsElement {
                        return Err("a row is missing before `,` in the JSON array".to_string());
                    }
                    self.state = Between::NeedsElement;
                    if *byte == b']' {
                        (self.depth, self.closed) = (0, true);
                    }
                }
                byte => {
                    if self.depth == 1 {
                        self.begin(at, *line)?;
                    }
                    match byte {
                        b'"' => self.in_text = true,
                        b'{' | b'[' => self.depth += 1,
                        b'}' | b']' if self.depth < 2 => {
                            return Err(format!("`{}` closes nothing in the JSON array", char::from(*byte)));
                        }
                        b'}' | b']' => {
                            self.depth -= 1;
                            if self.depth == 1 {
                                found.push((self.start.0, at + 1, self.start.1));
                                self.state = Between::NeedsComma;
                            }
                        }
                        _ => {}
                    }
                }
            }
        }
        Ok(found)
    }

    fn begin(&mut self, at: u64, line: u64) -> Result<(), String> {
        match self.state {
            Between::NeedsElement => (self.start, self.state) = ((at, line), Between::InElement),
            Between::InElement => {}
            Between::NeedsComma => return Err("`,` is missing between two rows of the JSON array".to_string()),
        }
        Ok(())
    }

    /// Number of bytes in the string, up to and including the closing quote.
    fn skip_text(&mut self, piece: &[u8]) -> usize {
        if self.escaped {
            self.escaped = false;
            return 1;
        }
        let Some(end) = memchr2(b'"', b'\\', piece) else { return piece.len() };
        if piece[end] == b'"' {
            self.in_text = false;
        } else {
            self.escaped = true;
        }
        end + 1
    }
}

//! Lines of any file in bounded memory: the first 64 KiB for recognition, then one line after the other.
//!
//! A line ends at a line feed or a carriage return, so each redrawn state of a progress bar is a line; line numbers count
//! line feeds only, as editors do. Lines longer than 1 MiB are skipped while streaming and reported once. Blank lines
//! are never returned.

use std::io::{self, Chain, Cursor, Read};

use crate::error::Error;

/// How much of a file is read to recognise it.
pub(crate) const HEAD_BYTES: usize = 64 << 10;
/// The longest line kept; no trace or log has longer ones.
pub(crate) const LONGEST_LINE: usize = 1 << 20;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A file whose head has been read.
pub(crate) struct Source<R> {
    /// The first bytes, without a byte order mark.
    pub(crate) head: Vec<u8>,
    /// Whether the head is the whole file.
    whole: bool,
    rest: R,
}

/// A line of the head, as text.
pub(crate) struct HeadLine {
    pub(crate) number: u64,
    pub(crate) text: String,
}

impl<R: Read> Source<R> {
    /// Reads the head.
    pub(crate) fn open(mut reader: R) -> Result<Self, Error> {
        let mut head = Vec::new();
        let mut limited = reader.by_ref().take(HEAD_BYTES as u64);
        limited.read_to_end(&mut head).map_err(|source| Error::Read { line: 1, source })?;
        let whole = head.len() < HEAD_BYTES;
        if head.starts_with(BYTE_ORDER_MARK) {
            head.drain(..BYTE_ORDER_MARK.len());
        }
        Ok(Source { head, whole, rest: reader })
    }

    /// The complete lines of the head.
    pub(crate) fn head_lines(&self) -> Vec<HeadLine> {
        let mut found = Vec::new();
        let mut lines = Lines::new(self.head.as_slice());
        while let Ok(Some(line)) = lines.next() {
            if line.end == LineEnd::Break || self.whole || found.is_empty() {
                found.push(HeadLine { number: line.number, text: String::from_utf8_lossy(line.text).into_owned() });
            }
        }
        found
    }

    /// All lines, from the first on.
    pub(crate) fn into_lines(self) -> Lines<Chain<Cursor<Vec<u8>>, R>> {
        Lines::new(Cursor::new(self.head).chain(self.rest))
    }
}

/// How a line ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineEnd {
    /// With a line break.
    Break,
    /// With the end of the file.
    File,
    /// Not within the limit; the text is only the line's beginning.
    TooLong,
}

/// One line that is not blank.
pub(crate) struct Line<'a> {
    pub(crate) number: u64,
    /// Without the break and without surrounding white space or NUL bytes.
    pub(crate) text: &'a [u8],
    pub(crate) end: LineEnd,
}

/// Returns the lines of a reader one by one.
pub(crate) struct Lines<R> {
    reader: R,
    buffer: Vec<u8>,
    // The bytes not returned yet are buffer[start..end]; the first `searched` of them hold no break.
    start: usize,
    end: usize,
    searched: usize,
    number: u64,
    at_end: bool,
    passing_over: bool,
}

impl<R: Read> Lines<R> {
    pub(crate) fn new(reader: R) -> Self {
        let buffer = vec![0; HEAD_BYTES];
        Lines { reader, buffer, start: 0, end: 0, searched: 0, number: 1, at_end: false, passing_over: false }
    }

    /// The underlying reader; use it only before the first line is read.
    pub(crate) fn reader(&mut self) -> &mut R {
        &mut self.reader
    }

    /// The next line that is not blank.
    pub(crate) fn next(&mut self) -> Result<Option<Line<'_>>, Error> {
        loop {
            let Some((from, to, number, end)) = self.advance()? else { return Ok(None) };
            let line = trimmed(&self.buffer, from, to);
            if !line.is_empty() {
                return Ok(Some(Line { number, text: &self.buffer[line], end }));
            }
        }
    }

    /// Finds the next line's place in the buffer, its number and its end.
    fn advance(&mut self) -> Result<Option<(usize, usize, u64, LineEnd)>, Error> {
        loop {
            let pending = &self.buffer[self.start..self.end];
            let is_break = |byte| byte == b'\n' || byte == b'\r';
            if let Some(at) = find_byte(&pending[self.searched..], is_break).map(|at| at + self.searched) {
                let (from, number) = (self.start, self.number);
                self.number += u64::from(pending[at] == b'\n');
                self.start += at + 1;
                self.searched = 0;
                if std::mem::take(&mut self.passing_over) {
                    continue;
                }
                return Ok(Some((from, from + at, number, LineEnd::Break)));
            }
            self.searched = pending.len();
            if self.at_end {
                return Ok(self.take_rest(LineEnd::File));
            }
            if self.searched >= LONGEST_LINE || self.passing_over {
                let first_time = !std::mem::replace(&mut self.passing_over, true);
                let found = self.take_rest(LineEnd::TooLong);
                if first_time {
                    return Ok(found);
                }
            }
            self.fill()?;
        }
    }

    fn take_rest(&mut self, end: LineEnd) -> Option<(usize, usize, u64, LineEnd)> {
        let found = (self.start, self.end, self.number, end);
        let wanted = found.0 < found.1 && !(self.passing_over && end == LineEnd::File);
        self.start = self.end;
        self.searched = 0;
        wanted.then_some(found)
    }

    fn fill(&mut self) -> Result<(), Error> {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.end == self.buffer.len() {
            self.buffer.resize((2 * self.end).min(LONGEST_LINE + HEAD_BYTES), 0);
        }
        loop {
            match self.reader.read(&mut self.buffer[self.end..]) {
                Ok(count) => {
                    self.at_end = count == 0;
                    // A reader that claims more bytes than the buffer takes must not break the bounds.
                    self.end = (self.end + count).min(self.buffer.len());
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(Error::Read { line: self.number, source }),
            }
        }
    }
}

/// The first byte of a kind; whole chunks are compared at once, which the compiler turns into SIMD.
pub(crate) fn find_byte(text: &[u8], is_wanted: impl Fn(u8) -> bool) -> Option<usize> {
    let mut clear = 0;
    for chunk in text.chunks_exact(16) {
        if chunk.iter().fold(false, |found, &byte| found | is_wanted(byte)) {
            break;
        }
        clear += 16;
    }
    text[clear..].iter().position(|&byte| is_wanted(byte)).map(|at| at + clear)
}

fn trimmed(buffer: &[u8], mut from: usize, mut to: usize) -> std::ops::Range<usize> {
    // Tabs stay: in a TSV they separate empty fields.
    let is_padding = |byte: u8| byte == b' ' || byte == 0;
    while from < to && is_padding(buffer[from]) {
        from += 1;
    }
    while from < to && is_padding(buffer[to - 1]) {
        to -= 1;
    }
    from..to
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &[u8]) -> Vec<(u64, String, LineEnd)> {
        let mut lines = Lines::new(text);
        let mut found = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            let shown: String = String::from_utf8_lossy(line.text).chars().take(8).collect();
            found.push((line.number, shown, line.end));
        }
        found
    }

    #[test]
    fn breaks_of_all_systems_and_progress_bars() {
        let found = all(b"a\r\nb\n\n  \nc\rd\re\nf");
        let numbered: Vec<(u64, &str)> = found.iter().map(|(n, text, _)| (*n, text.as_str())).collect();
        assert_eq!(numbered, [(1, "a"), (2, "b"), (5, "c"), (5, "d"), (5, "e"), (6, "f")]);
        assert_eq!(found[5].2, LineEnd::File);
    }

    #[test]
    fn a_line_at_the_limit_is_kept_and_a_longer_one_is_passed_over() {
        let line = |length: usize| [vec![b'x'; length], b"\nnext\n".to_vec()].concat();
        assert_eq!(all(&line(LONGEST_LINE - 1))[0].2, LineEnd::Break);
        let found = all(&line(5 * LONGEST_LINE));
        assert_eq!(found[0], (1, "xxxxxxxx".to_string(), LineEnd::TooLong));
        assert_eq!(found[1], (2, "next".to_string(), LineEnd::Break));
        assert_eq!(found.len(), 2);
    }
}

//! WebDataset shards: tar archives in which the files of a row are adjacent and share their name up to the first dot.
//!
//! `0001.jpg` with `0001.json` is a row with the JSON's fields; with `0001.txt`, a row with the text as its answer.
//! Only headers are read to find the rows.

use std::borrow::Cow;
use std::fs::File;
use std::path::Path;

use super::calls::Nulls;
use super::conversation::{LoneText, PROMPTS, Row};
use super::picture::{Beside, Member};
use super::stored::{Span, Stored, fits, span};
use super::suspect::{Looks, name_looks_like};
use super::value::{Object, Value, parse_json, shortened};
use crate::error::Error;

const BLOCK: u64 = 512;
/// Names longer than this are a broken archive.
const LONGEST_NAME: u64 = 1 << 16;
/// Member types.
const HARD_LINK: u8 = b'1';
const SYMBOLIC_LINK: u8 = b'2';
const FOLDER: u8 = b'5';
const VOLUME: u8 = b'V';
const PICTURES: [&str; 8] = ["jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff"];

/// Whether a file starts like a tar archive.
pub(crate) fn is_tar(beginning: &[u8]) -> bool {
    beginning.len() >= BLOCK as usize && checksum_fits(&beginning[..BLOCK as usize])
}

/// An archive of rows.
#[derive(Debug)]
pub(crate) struct Tar {
    stored: Stored,
    rows: Vec<Span>,
}

impl Tar {
    /// Finds the rows of an archive.
    pub(crate) fn open(path: &Path) -> Result<Tar, Error> {
        let stored = Stored::new(path)?;
        let file = stored.open()?;
        let mut rows: Vec<Span> = Vec::new();
        let mut walk = Walk { stored: &stored, file: &file, offset: 0, end: stored.length };
        let mut last: Option<(String, u64, u64)> = None;
        while let Some(entry) = walk.next()? {
            let Some((key, _)) = key_and_ending(&entry.name) else { continue };
            match &mut last {
                Some((same, _, end)) if same == key => *end = walk.offset,
                _ => {
                    let ended = last.replace((key.to_string(), entry.start, walk.offset));
                    push(path, &mut rows, ended)?;
                }
            }
        }
        push(path, &mut rows, last)?;
        rows.shrink_to_fit();
        Ok(Tar { stored, rows })
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn place(&self, index: usize) -> String {
        format!("{}:{}", self.stored.path.display(), self.rows[index].line)
    }

    /// Reads a row and converts it with `make`.
    pub(crate) fn read<T>(&self, index: usize, make: impl FnOnce(Row<'_>) -> Result<T, Error>) -> Result<T, Error> {
        let row = self.rows[index];
        let file = self.stored.open()?;
        let end = row.offset + u64::from(row.length);
        let mut walk = Walk { stored: &self.stored, file: &file, offset: row.offset, end };
        let (mut place, mut json, mut text, mut pictures) = (self.place(index), None, None, Vec::new());
        let mut unread = Vec::new();
        while let Some(entry) = walk.next()? {
            let Some((key, ending)) = key_and_ending(&entry.name) else { continue };
            place = format!("{}:{key}", self.stored.path.display());
            if let Some(target) = &entry.link {
                let problem = format!("is a link to `{}`: links in archives are not followed", shortened(target));
                return Err(Error::row_field(&place, &format!(".{ending}"), problem)
                    .with_hint("pack it with `tar --dereference --hard-dereference`"));
            }
            let data = || {
                fits(&place, entry.size)?;
                self.stored.read(&file, entry.data, entry.size as usize)
            };
            match ending.rsplit('.').next().unwrap_or_default().to_ascii_lowercase().as_str() {
                _ if part_of(ending)
                    .is_some_and(|part| name_looks_like(part).is_some_and(|looks| looks != Looks::Picture)) =>
                {
                    unread.push(format!(".{ending}"));
                }
                "json" => put(&place, ending, &mut json, data()?)?,
                "txt" => put(&place, ending, &mut text, data()?)?,
                kind if PICTURES.contains(&kind) => {
                    pictures.push(Member { name: entry.name.clone(), offset: entry.data, size: entry.size });
                }
                _ => unread.push(format!(".{ending}")),
            }
        }
        let value = row_value(&place, json.as_deref(), text)?;
        let beside = Beside::Archive { file: &file, members: &pictures };
        let bytes = json.as_ref().map_or(0, Vec::len) as u64;
        let (lone_text, nulls) = (LoneText::Caption, Nulls::Written);
        make(Row { place: &place, value, beside, lone_text, nulls, bytes, unread: &unread })
    }
}

fn push(path: &Path, rows: &mut Vec<Span>, group: Option<(String, u64, u64)>) -> Result<(), Error> {
    if let Some((_, start, end)) = group {
        rows.push(span(path, start, end - start, rows.len() as u64 + 1)?);
    }
    Ok(())
}

/// What a member is of its row, by an ending of several parts: `mask.png`, `question.txt`.
fn part_of(ending: &str) -> Option<&str> {
    ending.rsplit_once('.').map(|(part, _)| part)
}

/// Keeps the contents of a member of which a row may have one.
fn put(place: &str, ending: &str, kept: &mut Option<Vec<u8>>, data: Vec<u8>) -> Result<(), Error> {
    match kept.replace(data) {
        None => Ok(()),
        Some(_) => Err(Error::row_field(place, &format!(".{ending}"), "is the second file of its kind in this row")
            .with_hint("a row has one `.json` and one `.txt`")),
    }
}

/// The fields of a row, from its JSON and its text.
fn row_value<'a>(place: &str, json: Option<&'a [u8]>, text: Option<Vec<u8>>) -> Result<Value<'a>, Error> {
    let mut value = match json {
        Some(json) => parse_json(place, json)?.map_err(|error| {
            Error::row_field(place, "json", format!("is broken JSON at column {}: {error}", error.column()))
        })?,
        None => Value::Object(Object::default()),
    };
    if let (Value::Object(object), Some(text)) = (&mut value, text) {
        let text = String::from_utf8(text).map_err(|_| Error::row_field(place, "txt", "is not UTF-8 text"))?;
        let text = Value::Text(Cow::Owned(text.trim_end_matches('\n').to_string()));
        // With a question in the JSON, the text is its answer.
        let asked = object.0.iter().any(|(name, _)| PROMPTS.contains(&name.as_ref()));
        object.0.push((Cow::Borrowed(if asked { "response" } else { "txt" }), text));
    }
    Ok(value)
}

/// A member's row name and extension: `shots/0001` and `left.jpg`. Hidden files (macOS adds some) belong to no row.
fn key_and_ending(name: &str) -> Option<(&str, &str)> {
    let file = name.rfind('/').map_or(0, |slash| slash + 1);
    let dot = file + name[file..].find('.')?;
    (dot > file).then(|| (&name[..dot], &name[dot + 1..]))
}

/// A member of an archive.
struct Entry {
    name: String,
    /// Offset of the first header for this member: long names and folders before it are skipped again when the row is read.
    start: u64,
    data: u64,
    size: u64,
    /// The target, if it is a link.
    link: Option<String>,
}

/// Walks from header to header.
struct Walk<'a> {
    stored: &'a Stored,
    file: &'a File,
    offset: u64,
    end: u64,
}

impl Walk<'_> {
    /// The next regular file or link.
    fn next(&mut self) -> Result<Option<Entry>, Error> {
        let start = self.offset;
        let (mut long_name, mut long_link) = (None, None);
        while self.offset < self.end {
            let header_at = self.offset;
            if self.end - header_at < BLOCK {
                return Err(self.cut_off(header_at));
            }
            let header = self.stored.read(self.file, header_at, BLOCK as usize)?;
            if header.iter().all(|byte| *byte == 0) {
                // The end marker, though some archives are several concatenated.
                self.offset += BLOCK;
                continue;
            }
            let size = number(&header[124..136]).filter(|_| checksum_fits(&header));
            let Some(size) = size else {
                return Err(Error::dataset(
                    &self.stored.path,
                    format!("is broken at byte {header_at}: no archive header there"),
                ));
            };
            let data = header_at + BLOCK;
            // Files are padded to whole blocks.
            if size.checked_next_multiple_of(BLOCK).is_none_or(|padded| padded > self.end - data) {
                return Err(self.cut_off(header_at));
            }
            self.offset = data + size.next_multiple_of(BLOCK);
            match header[156] {
                // 7 is a contiguous file, today the same as a regular one.
                kind @ (b'0' | 0 | b'7' | HARD_LINK | SYMBOLIC_LINK) => {
                    let name = long_name.unwrap_or_else(|| short_name(&header));
                    let is_link = matches!(kind, HARD_LINK | SYMBOLIC_LINK);
                    let link = is_link.then(|| long_link.unwrap_or_else(|| text(&header[157..257])));
                    return Ok(Some(Entry { name, start, data, size, link }));
                }
                b'K' => long_link = Some(text(&self.small(data, size)?)),
                b'L' => long_name = Some(text(&self.small(data, size)?)),
                b'x' => long_name = path_record(&self.small(data, size)?).or(long_name),
                FOLDER | VOLUME | b'g' => (long_name, long_link) = (None, None),
                kind => {
                    let name = long_name.unwrap_or_else(|| short_name(&header));
                    let what = match kind {
                        b'3' | b'4' => "a device".to_string(),
                        b'6' => "a FIFO".to_string(),
                        b'S' => "a sparse file".to_string(),
                        other => format!("of kind `{}`", char::from(other).escape_default()),
                    };
                    let problem = format!("has a member `{}` that is {what}, at byte {header_at}", name.escape_debug());
                    return Err(Error::dataset(&self.stored.path, problem)
                        .with_hint("only files, folders and links are read: pack the archive without it"));
                }
            }
        }
        Ok(None)
    }

    fn small(&self, data: u64, size: u64) -> Result<Vec<u8>, Error> {
        if size > LONGEST_NAME {
            return Err(Error::dataset(&self.stored.path, format!("is broken at byte {data}: a name of {size} bytes")));
        }
        self.stored.read(self.file, data, size as usize)
    }

    fn cut_off(&self, at: u64) -> Error {
        let problem = format!("is truncated: the file at byte {at} of the archive is incomplete");
        Error::dataset(&self.stored.path, problem).with_hint("was it downloaded or copied completely?")
    }
}

/// A number in octal, or in binary if it is too large for that.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        let bytes = field[field.len() - 8..].try_into().ok()?;
        return Some(u64::from_be_bytes(bytes));
    }
    let digits = text(field);
    let digits = digits.trim_matches([' ', '\0']);
    if digits.is_empty() { Some(0) } else { u64::from_str_radix(digits, 8).ok() }
}

/// Whether the header's checksum is right: the sum of its bytes, with blanks in place of the checksum.
fn checksum_fits(header: &[u8]) -> bool {
    let sum = |range: std::ops::Range<usize>| header[range].iter().map(|byte| u64::from(*byte)).sum::<u64>();
    header[0] != 0 && number(&header[148..156]) == Some(sum(0..148) + 8 * u64::from(b' ') + sum(156..512))
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn short_name(header: &[u8]) -> String {
    let name = text(&header[..100]);
    let prefix = if header[257..].starts_with(b"ustar\0") { text(&header[345..500]) } else { String::new() };
    if prefix.is_empty() { name } else { format!("{prefix}/{name}") }
}

/// The path of a pax header, whose records are `LENGTH KEY=VALUE\n`.
fn path_record(records: &[u8]) -> Option<String> {
    let records = String::from_utf8_lossy(records);
    let path = records.split('\n').find_map(|record| record.split_once(' ')?.1.strip_prefix("path="));
    path.map(str::to_string)
}

#[cfg(test)]
mod tests {
    use super::key_and_ending;

    #[test]
    fn names_of_rows() {
        assert_eq!(key_and_ending("shots.1/0001.left.jpg"), Some(("shots.1/0001", "left.jpg")));
        assert_eq!(key_and_ending("shots/._0001.jpg"), None);
        assert_eq!(key_and_ending("README"), None);
    }
}

//! Source of a picture's bytes: memory, a file, or base64 in a row.
//!
//! The beginning is read at once; it has the header of nearly every picture. The rest is read only on demand: the size of
//! a picture of several megabytes costs 64 KiB.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;

use crate::dataset::base64::{self, Digits};
use crate::fingerprint::Fingerprint;

/// Bytes read at once: usually enough for Exif data with a thumbnail, which is at most one JPEG segment.
pub(crate) const BEGINNING: usize = 64 << 10;
/// Growth factor of a read that did not contain the whole header.
const GROWTH: usize = 8;
/// Bytes at the end that distinguish pictures with equal beginnings.
const END: usize = 4 << 10;
/// Bytes read at a time by streaming decoders.
const PIECE: usize = 4 << 10;

/// The bytes of a picture.
#[derive(Debug)]
pub(crate) struct Source<'a> {
    place: Place<'a>,
    length: u64,
    beginning: Cow<'a, [u8]>,
}

/// The source of bytes after the beginning.
#[derive(Debug)]
enum Place<'a> {
    /// All bytes are in the beginning.
    Here,
    File {
        file: &'a File,
        offset: u64,
    },
    Base64(Digits<'a>),
}

impl<'a> Source<'a> {
    /// A whole file in memory.
    pub fn of_bytes(data: &'a [u8]) -> Source<'a> {
        Source { place: Place::Here, length: data.len() as u64, beginning: Cow::Borrowed(data) }
    }

    /// A range of a file.
    pub fn of_file(file: &'a File, offset: u64, length: u64) -> io::Result<Source<'a>> {
        let mut source = Source { place: Place::File { file, offset }, length, beginning: Cow::default() };
        source.beginning = source.first(BEGINNING)?;
        Ok(source)
    }

    /// Base64, or the error at its beginning.
    pub fn of_base64(text: &'a str) -> Result<Source<'a>, String> {
        let Some(digits) = Digits::of(text)? else {
            // Line breaks make random access impossible.
            let data = base64::decode(text)?;
            return Ok(Source { place: Place::Here, length: data.len() as u64, beginning: Cow::Owned(data) });
        };
        let length = digits.bytes();
        let mut source = Source { place: Place::Base64(digits), length, beginning: Cow::default() };
        source.beginning = source.first(BEGINNING).map_err(|error| error.to_string())?;
        Ok(source)
    }

    /// Total length in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The first bytes: all of them if they are in memory.
    pub fn beginning(&self) -> &[u8] {
        &self.beginning
    }

    /// Parses a header from as much of the beginning as necessary. Failing on all bytes is an error.
    pub fn parse<T>(&self, read: impl Fn(&[u8]) -> Result<T, String>) -> Result<T, String> {
        let mut found = read(&self.beginning);
        let mut size = self.beginning.len();
        while found.is_err() && (size as u64) < self.length {
            size = size.saturating_mul(GROWTH);
            let data = self.first(size).map_err(|error| error.to_string())?;
            found = read(&data);
        }
        found
    }

    /// A reader for decoders that seek.
    pub fn reader(&self) -> BufReader<Reader<'_>> {
        BufReader::with_capacity(PIECE, Reader { source: self, next: 0 })
    }

    /// Reads the bytes at an offset, or as many as there are.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let count = buffer.len().min(self.length.saturating_sub(offset) as usize);
        let buffer = &mut buffer[..count];
        let held = usize::try_from(offset).ok().and_then(|start| self.beginning.get(start..start.checked_add(count)?));
        match (held, &self.place) {
            (Some(held), _) => buffer.copy_from_slice(held),
            (None, Place::Here) => return Err(ErrorKind::UnexpectedEof.into()),
            (None, Place::File { file, offset: start }) => file.read_exact_at(buffer, start + offset)?,
            (None, Place::Base64(digits)) => {
                let failed = |problem| io::Error::new(ErrorKind::InvalidData, problem);
                buffer.copy_from_slice(&digits.decode(offset, count).map_err(failed)?);
            }
        }
        Ok(count)
    }

    fn first(&self, size: usize) -> io::Result<Cow<'a, [u8]>> {
        let mut bytes = vec![0; size.min(usize::try_from(self.length).unwrap_or(usize::MAX))];
        self.read_at(0, &mut bytes)?;
        Ok(Cow::Owned(bytes))
    }

    /// Identifies a picture by length, beginning and end.
    pub fn fingerprint(&self) -> io::Result<u64> {
        let mut made = Fingerprint::default();
        made.number(self.length);
        made.bytes(&self.beginning[..self.beginning.len().min(BEGINNING)]);
        if self.length > BEGINNING as u64 {
            let mut end = [0; END];
            self.read_at(self.length - END as u64, &mut end)?;
            made.bytes(&end);
        }
        Ok(made.value())
    }
}

/// A seekable position in a picture's bytes.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    source: &'a Source<'a>,
    next: u64,
}

impl Read for Reader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read_at(self.next, buffer)?;
        self.next += count as u64;
        Ok(count)
    }
}

impl Seek for Reader<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let next = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(offset) => self.next.checked_add_signed(offset),
            SeekFrom::End(offset) => self.source.length.checked_add_signed(offset),
        };
        self.next = next.ok_or(ErrorKind::InvalidInput)?;
        Ok(self.next)
    }
}

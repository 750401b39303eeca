//! Where the bytes of a picture are: in memory, in a file, or as base64 in a row.
//!
//! The beginning is read at once; it has the header of nearly every picture. What lies behind it is read only where somebody looks: the size of
//! a picture of several megabytes costs 64 KiB.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;

use crate::dataset::base64::{self, Digits};
use crate::fingerprint::Fingerprint;

/// Bytes that are read at once: Exif data with a preview picture, at most one segment of JPEG, fit as a rule.
pub(crate) const BEGINNING: usize = 64 << 10;
/// By how much more is read where a header is not in the beginning.
const GROWTH: usize = 8;
/// Bytes at the end that tell pictures apart which begin alike.
const END: usize = 4 << 10;
/// Bytes that are read at a time by decoders that go through a file.
const PIECE: usize = 4 << 10;

/// The bytes of a picture.
#[derive(Debug)]
pub(crate) struct Source<'a> {
    place: Place<'a>,
    length: u64,
    beginning: Cow<'a, [u8]>,
}

/// Where what is not in the beginning is.
#[derive(Debug)]
enum Place<'a> {
    /// All is in the beginning.
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

    /// A stretch of a file.
    pub fn of_file(file: &'a File, offset: u64, length: u64) -> io::Result<Source<'a>> {
        let mut source = Source { place: Place::File { file, offset }, length, beginning: Cow::default() };
        source.beginning = source.first(BEGINNING)?;
        Ok(source)
    }

    /// Base64, or what is wrong with its beginning.
    pub fn of_base64(text: &'a str) -> Result<Source<'a>, String> {
        let Some(digits) = Digits::of(text)? else {
            // With line breaks no place can be computed.
            let data = base64::decode(text)?;
            return Ok(Source { place: Place::Here, length: data.len() as u64, beginning: Cow::Owned(data) });
        };
        let length = digits.bytes();
        let mut source = Source { place: Place::Base64(digits), length, beginning: Cow::default() };
        source.beginning = source.first(BEGINNING).map_err(|error| error.to_string())?;
        Ok(source)
    }

    /// Bytes altogether.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The first bytes: all of them where they are in memory.
    pub fn beginning(&self) -> &[u8] {
        &self.beginning
    }

    /// Reads something from as much of the beginning as it takes. What fails with all bytes is an error.
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

    /// For decoders that go to and fro.
    pub fn reader(&self) -> BufReader<Reader<'_>> {
        BufReader::with_capacity(PIECE, Reader { source: self, next: 0 })
    }

    /// The bytes of a place, or as many as there are.
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

    /// What tells pictures apart: length, beginning and end.
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

/// A place in a picture's bytes that moves on as they are read.
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

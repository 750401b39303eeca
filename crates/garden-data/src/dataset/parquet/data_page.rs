//! Pages of a column: definition and repetition levels, and the values themselves, read as a stream.
//!
//! A page of pictures may be as large as its row group, so only small pages are held whole: values before the wanted one are
//! skipped in the stream. Reading forward is cheap; going back starts again.

use std::fs::File;
use std::io::{self, BufReader, Cursor, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::footer::{Chunk, Leaf, Number};
use super::snappy::Snappy;
use super::thrift::{self, Failure, Item};

/// Pages up to this size are held whole. Unit tests hold hardly any, so that small files take the path of large ones.
const SMALL: u64 = if cfg!(test) { 16 } else { 256 << 10 };
/// Bytes of the file held by a stream.
const PIECE: usize = 32 << 10;
/// A page header may contain its smallest and largest value, but never whole pictures.
const LARGEST_HEADER: usize = 16 << 20;
/// More values than this in one page are a broken file.
const MOST_VALUES: u64 = 1 << 26;

/// The type of a page.
#[derive(Clone, Copy, Debug, PartialEq)]
enum PageKind {
    Dictionary,
    Data,
    /// Version 2: levels stand before the compressed part.
    DataV2 {
        levels: u64,
        repetition_bytes: u64,
        compressed: bool,
    },
    Other,
}

/// A page's header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageHeader {
    kind: PageKind,
    values: u64,
    encoding: i64,
    /// Offset of the page's bytes in the file.
    start: u64,
    pub end: u64,
    uncompressed: u64,
}

impl PageHeader {
    /// Reads the header at an offset; the page follows it.
    pub(crate) fn read(file: &File, offset: u64, end: u64) -> io::Result<PageHeader> {
        let mut size = 512;
        loop {
            let available = ((end - offset) as usize).min(size);
            let mut bytes = vec![0; available];
            file.read_exact_at(&mut bytes, offset)?;
            match thrift::read(&bytes) {
                Ok((item, length)) => {
                    let header =
                        PageHeader::of(&item, offset + length as u64).ok_or_else(|| broken("a page's header"))?;
                    return if header.end <= end { Ok(header) } else { Err(broken("a page longer than its column")) };
                }
                Err(Failure::TooShort) if available == size && size < LARGEST_HEADER => size *= 8,
                Err(_) => return Err(broken("a page's header")),
            }
        }
    }

    fn of(item: &Item, start: u64) -> Option<PageHeader> {
        let size = |id| u64::try_from(item.int(id)?).ok();
        let of = |id: i16| item.field(id);
        let (kind, about, encoding) = match item.int(1)? {
            0 => (PageKind::Data, of(5)?, of(5)?.int(2)?),
            2 => (PageKind::Dictionary, of(7)?, of(7)?.int(2)?),
            3 => {
                let about = of(8)?;
                let bytes = |id| u64::try_from(about.int(id)?).ok();
                let repetition_bytes = bytes(6)?;
                let levels = bytes(5)?.checked_add(repetition_bytes)?;
                let compressed = about.bool(7).unwrap_or(true);
                (PageKind::DataV2 { levels, repetition_bytes, compressed }, about, about.int(4)?)
            }
            _ => (PageKind::Other, item, 0),
        };
        let values = if kind == PageKind::Other { 0 } else { u64::try_from(about.int(1)?).ok()? };
        let end = start.checked_add(size(3)?)?;
        (values <= MOST_VALUES).then_some(PageHeader { kind, values, encoding, start, end, uncompressed: size(2)? })
    }

    pub(crate) fn is_dictionary(&self) -> bool {
        self.kind == PageKind::Dictionary
    }

    pub(crate) fn is_data(&self) -> bool {
        matches!(self.kind, PageKind::Data | PageKind::DataV2 { .. })
    }

    /// Number of values, including nulls and missing ones.
    pub(crate) fn values(&self) -> u64 {
        self.values
    }
}

/// Plain encoding: strings or bytes with a length prefix, numbers at their width.
pub(crate) struct Plain {
    /// Bytes per number.
    width: Option<usize>,
    source: Source,
    /// Offset of the first value in the uncompressed bytes.
    skip: u64,
    stream: Option<Stream>,
    next: usize,
}

impl Plain {
    /// The values of a dictionary.
    pub(crate) fn dictionary(file: &Arc<File>, chunk: &Chunk, leaf: &Leaf, header: &PageHeader) -> io::Result<Plain> {
        let source = Source::new(file, header.start, header.end, chunk.codec, header.uncompressed)?;
        Ok(Plain { width: leaf.number.and_then(Number::width), source, skip: 0, stream: None, next: 0 })
    }

    /// The value at an index.
    pub(crate) fn get(&mut self, index: usize) -> io::Result<Vec<u8>> {
        if self.stream.is_none() || index < self.next {
            let mut stream = self.source.open()?;
            stream.skip(self.skip)?;
            (self.stream, self.next) = (Some(stream), 0);
        }
        let value = self.advance(index);
        if value.is_err() {
            self.stream = None;
        }
        value
    }

    /// All bytes of the page.
    fn all(&self) -> io::Result<Vec<u8>> {
        let mut stream = self.source.open()?;
        stream.skip(self.skip)?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn advance(&mut self, index: usize) -> io::Result<Vec<u8>> {
        let Some(stream) = &mut self.stream else { return Err(broken("a page")) };
        loop {
            let length = match self.width {
                Some(width) => width as u64,
                None => {
                    let mut length = [0; 4];
                    stream.read_exact(&mut length)?;
                    u64::from(u32::from_le_bytes(length))
                }
            };
            if length > self.source.uncompressed {
                return Err(broken("a value longer than its page"));
            }
            self.next += 1;
            if self.next > index {
                let mut value = vec![0; length as usize];
                stream.read_exact(&mut value)?;
                return Ok(value);
            }
            stream.skip(length)?;
        }
    }
}

/// Values of a page.
enum Values {
    Plain(Plain),
    /// Indices into the dictionary.
    Indices(Vec<u32>),
    /// Booleans.
    Bits(Vec<u32>),
}

/// A data page with its levels decoded.
pub(crate) struct Page {
    pub repetition: Vec<u8>,
    pub definition: Vec<u8>,
    values: Values,
}

impl Page {
    pub(crate) fn open(file: &Arc<File>, chunk: &Chunk, leaf: &Leaf, header: &PageHeader) -> io::Result<Page> {
        let count = header.values as usize;
        let (repetition, definition, source, skip) = match header.kind {
            PageKind::DataV2 { levels, repetition_bytes, compressed } => {
                if levels > header.end - header.start || levels > header.uncompressed {
                    return Err(broken("levels longer than their page"));
                }
                let mut bytes = vec![0; levels as usize];
                file.read_exact_at(&mut bytes, header.start)?;
                let (repetition, definition) = bytes.split_at((repetition_bytes as usize).min(bytes.len()));
                let repetition = read_levels(repetition, leaf.repetition, count)?;
                let definition = read_levels(definition, leaf.definition, count)?;
                let codec = if compressed { chunk.codec } else { 0 };
                let rest = header.uncompressed - levels;
                (repetition, definition, Source::new(file, header.start + levels, header.end, codec, rest)?, 0)
            }
            _ => {
                let source = Source::new(file, header.start, header.end, chunk.codec, header.uncompressed)?;
                let mut stream = source.open()?;
                let mut skip = 0;
                let mut levels = |highest: u8| -> io::Result<Vec<u8>> {
                    if highest == 0 {
                        return Ok(vec![0; count]);
                    }
                    let bytes = read_block(&mut stream, header.uncompressed)?;
                    skip += 4 + bytes.len() as u64;
                    read_levels(&bytes, highest, count)
                };
                (levels(leaf.repetition)?, levels(leaf.definition)?, source, skip)
            }
        };
        let present = definition.iter().filter(|level| **level == leaf.definition).count();
        let plain = Plain { width: leaf.number.and_then(Number::width), source, skip, stream: None, next: 0 };
        let is_bool = leaf.number == Some(Number::Bool);
        let values = match header.encoding {
            0 if is_bool => Values::Bits(read_bits(&plain, present)?),
            3 if is_bool => Values::Bits(read_runs(&plain, present)?),
            0 => Values::Plain(plain),
            2 | 8 => Values::Indices(read_indices(&plain, present)?),
            other => return Err(unsupported(format!("encoding {other}; only `PLAIN` and dictionaries are supported"))),
        };
        Ok(Page { repetition, definition, values })
    }

    /// The value at an index among the values present.
    pub(crate) fn value(&mut self, index: usize, dictionary: &mut Option<Plain>) -> io::Result<Vec<u8>> {
        match &mut self.values {
            Values::Plain(plain) => plain.get(index),
            Values::Bits(bits) => {
                bits.get(index).map(|bit| vec![*bit as u8]).ok_or_else(|| broken("too few values in a page"))
            }
            Values::Indices(indices) => {
                let entry = *indices.get(index).ok_or_else(|| broken("too few values in a page"))?;
                dictionary.as_mut().ok_or_else(|| broken("a dictionary is missing"))?.get(entry as usize)
            }
        }
    }
}

/// A length-prefixed block.
fn read_block(stream: &mut Stream, most: u64) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u64::from(u32::from_le_bytes(length));
    if length > most {
        return Err(broken("levels longer than their page"));
    }
    let mut bytes = vec![0; length as usize];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn read_levels(bytes: &[u8], highest: u8, count: usize) -> io::Result<Vec<u8>> {
    let width = u8::BITS - highest.leading_zeros();
    Ok(read_hybrid(bytes, width, count)?.into_iter().map(|level| level as u8).collect())
}

/// Booleans, one bit each.
fn read_bits(plain: &Plain, count: usize) -> io::Result<Vec<u32>> {
    let mut numbers = Vec::new();
    unpack(&plain.all()?, 1, count, &mut numbers);
    if numbers.len() < count { Err(broken("a page of booleans")) } else { Ok(numbers) }
}

/// Booleans in run-length encoding, with a length prefix.
fn read_runs(plain: &Plain, count: usize) -> io::Result<Vec<u32>> {
    let bytes = plain.all()?;
    if count == 0 {
        return Ok(Vec::new());
    }
    read_hybrid(bytes.get(4..).unwrap_or_default(), 1, count)
}

fn read_indices(plain: &Plain, count: usize) -> io::Result<Vec<u32>> {
    let bytes = plain.all()?;
    match bytes.split_first() {
        None if count == 0 => Ok(Vec::new()),
        Some((width, bytes)) if *width <= 32 => read_hybrid(bytes, u32::from(*width), count),
        _ => Err(broken("a page of indices")),
    }
}

/// Parquet's hybrid of run-length encoding and bit packing.
fn read_hybrid(bytes: &[u8], width: u32, count: usize) -> io::Result<Vec<u32>> {
    let mut numbers = Vec::new();
    let mut rest = bytes;
    let too_short = || broken("levels or indices that end too early");
    let mask = if width == 32 { u32::MAX } else { (1 << width) - 1 };
    while numbers.len() < count {
        if width == 0 && rest.is_empty() {
            numbers.resize(count, 0);
            break;
        }
        let head = read_varint(&mut rest).ok_or_else(too_short)?;
        if head & 1 == 0 {
            let wide = width.div_ceil(8) as usize;
            let mut value = [0; 4];
            value[..wide].copy_from_slice(rest.get(..wide).ok_or_else(too_short)?);
            rest = &rest[wide..];
            let run = ((head >> 1) as usize).min(count - numbers.len());
            if run == 0 {
                return Err(too_short());
            }
            numbers.resize(numbers.len() + run, u32::from_le_bytes(value) & mask);
        } else {
            let groups = (head >> 1) as usize;
            // Some writers cut the last group short; what lies beyond the count is not needed.
            let packed = &rest[..groups.saturating_mul(width as usize).min(rest.len())];
            rest = &rest[packed.len()..];
            let before = numbers.len();
            let wanted = groups.saturating_mul(8).min(count - before);
            unpack(packed, width, wanted, &mut numbers);
            if numbers.len() - before < wanted || wanted == 0 {
                return Err(too_short());
            }
        }
    }
    Ok(numbers)
}

fn unpack(packed: &[u8], width: u32, wanted: usize, numbers: &mut Vec<u32>) {
    let (mut bits, mut held, mut bytes) = (0u64, 0, packed.iter());
    for _ in 0..wanted {
        while held < width {
            let Some(byte) = bytes.next() else { return };
            bits |= u64::from(*byte) << held;
            held += 8;
        }
        numbers.push((bits & ((1 << width) - 1)) as u32);
        bits >>= width;
        held -= width;
    }
}

fn read_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..42).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// The source of a page's bytes, which can be read repeatedly.
struct Source {
    place: Place,
    codec: i64,
    uncompressed: u64,
    /// A small page, uncompressed.
    held: Option<Arc<[u8]>>,
}

impl Source {
    fn new(file: &Arc<File>, start: u64, end: u64, codec: i64, uncompressed: u64) -> io::Result<Source> {
        let place = Place { file: file.clone(), start, next: start, end };
        let mut source = Source { place, codec, uncompressed, held: None };
        if uncompressed <= SMALL {
            let mut bytes = Vec::with_capacity(uncompressed as usize);
            source.open()?.take(uncompressed).read_to_end(&mut bytes)?;
            source.held = Some(bytes.into());
        }
        Ok(source)
    }

    fn open(&self) -> io::Result<Stream> {
        if let Some(bytes) = &self.held {
            return Ok(Stream::Held(Cursor::new(bytes.clone())));
        }
        let input = BufReader::with_capacity(PIECE, self.place.clone());
        Ok(match self.codec {
            0 => Stream::Stored(input),
            1 => Stream::Packed(Box::new(Snappy::new(input))),
            2 => Stream::Packed(Box::new(flate2::bufread::MultiGzDecoder::new(input))),
            6 => {
                let failed = |error| io::Error::new(io::ErrorKind::InvalidData, format!("broken zstd: {error}"));
                Stream::Packed(Box::new(ruzstd::decoding::StreamingDecoder::new(input).map_err(failed)?))
            }
            other => {
                let name =
                    ["", "", "", "LZO", "Brotli", "LZ4", "", "LZ4"].get(other as usize).unwrap_or(&"an unknown codec");
                return Err(unsupported(format!(
                    "compression with {name}; only Snappy, Zstandard, gzip and none are supported"
                )));
            }
        })
    }
}

/// The uncompressed bytes of a page.
enum Stream {
    Held(Cursor<Arc<[u8]>>),
    Stored(BufReader<Place>),
    Packed(Box<dyn Read + Send>),
}

impl Stream {
    fn skip(&mut self, count: u64) -> io::Result<()> {
        match self {
            Stream::Held(bytes) => bytes.seek_relative(count as i64),
            Stream::Stored(bytes) => bytes.seek_relative(count as i64),
            Stream::Packed(bytes) => match io::copy(&mut bytes.take(count), &mut io::sink())? {
                skipped if skipped == count => Ok(()),
                _ => Err(broken("a page that ends too early")),
            },
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Held(bytes) => bytes.read(buffer),
            Stream::Stored(bytes) => bytes.read(buffer),
            Stream::Packed(bytes) => bytes.read(buffer),
        }
    }
}

/// A range of a file.
#[derive(Clone)]
struct Place {
    file: Arc<File>,
    start: u64,
    next: u64,
    end: u64,
}

impl Read for Place {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = buffer.len().min(self.end.saturating_sub(self.next) as usize);
        let count = self.file.read_at(&mut buffer[..count], self.next)?;
        self.next += count as u64;
        Ok(count)
    }
}

impl Seek for Place {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let next = match to {
            SeekFrom::Start(offset) => self.start.checked_add(offset),
            SeekFrom::Current(offset) => self.next.checked_add_signed(offset),
            SeekFrom::End(offset) => self.end.checked_add_signed(offset),
        };
        self.next = next.filter(|next| *next >= self.start).ok_or_else(|| broken("a position outside its page"))?;
        Ok(self.next - self.start)
    }
}

pub(crate) fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("broken parquet: {what}"))
}

fn unsupported(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, what)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::read_hybrid;

    #[test]
    fn runs_and_packed_bits() {
        // The example in the format's specification: 0 to 7 in three bits each.
        assert_eq!(read_hybrid(&[3, 0x88, 0xc6, 0xfa], 3, 8).unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(read_hybrid(&[10, 1, 3, 0b10], 1, 8).unwrap(), [1, 1, 1, 1, 1, 0, 1, 0]);
        assert_eq!(read_hybrid(&[], 0, 3).unwrap(), [0, 0, 0]);
        assert!(read_hybrid(&[3, 0x88], 3, 8).is_err() && read_hybrid(&[0, 0], 1, 1).is_err());
    }
}

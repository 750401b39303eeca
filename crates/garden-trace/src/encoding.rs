//! Bytes of a file as text: gzip is unpacked and UTF-16 with a byte order mark turned into UTF-8, both while reading.

use std::io::{self, Cursor, Read};

use flate2::read::MultiGzDecoder;

const GZIP: &[u8] = b"\x1f\x8b";
const LITTLE: &[u8] = b"\xff\xfe";
const BIG: &[u8] = b"\xfe\xff";

/// A reader of the text behind a file's first bytes.
pub(crate) fn text_of<'r>(mut reader: impl Read + 'r) -> io::Result<Box<dyn Read + 'r>> {
    let first = first_two(&mut reader)?;
    let whole = Cursor::new(first.clone()).chain(reader);
    Ok(match first.as_slice() {
        GZIP => text_of_unpacked(MultiGzDecoder::new(whole))?,
        LITTLE | BIG => Box::new(Utf16::new(whole, first == BIG)),
        _ => Box::new(whole),
    })
}

/// What gzip holds may be UTF-16, but not gzip again.
fn text_of_unpacked<'r>(mut reader: impl Read + 'r) -> io::Result<Box<dyn Read + 'r>> {
    let first = first_two(&mut reader)?;
    let whole = Cursor::new(first.clone()).chain(reader);
    Ok(match first.as_slice() {
        LITTLE | BIG => Box::new(Utf16::new(whole, first == BIG)),
        _ => Box::new(whole),
    })
}

fn first_two(reader: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut first = Vec::new();
    reader.by_ref().take(2).read_to_end(&mut first)?;
    Ok(first)
}

/// UTF-16 read as UTF-8; what is not valid becomes the replacement character.
struct Utf16<R> {
    reader: R,
    is_big: bool,
    /// Bytes of a character that is not complete yet.
    rest: Vec<u8>,
    text: Cursor<Vec<u8>>,
}

/// Bytes turned at once.
const CHUNK: u64 = 32 << 10;

impl<R: Read> Utf16<R> {
    fn new(reader: R, is_big: bool) -> Utf16<R> {
        Utf16 { reader, is_big, rest: Vec::new(), text: Cursor::new(Vec::new()) }
    }

    fn refill(&mut self) -> io::Result<()> {
        let mut bytes = std::mem::take(&mut self.rest);
        let read = self.reader.by_ref().take(CHUNK).read_to_end(&mut bytes)?;
        let unit = |pair: &[u8]| match self.is_big {
            true => u16::from_be_bytes([pair[0], pair[1]]),
            false => u16::from_le_bytes([pair[0], pair[1]]),
        };
        let mut units: Vec<u16> = bytes.chunks_exact(2).map(unit).collect();
        // Half a unit, or the first half of a pair, waits for the next chunk.
        let is_half = units.last().is_some_and(|last| (0xD800..0xDC00).contains(last)) && read > 0;
        let whole = 2 * (units.len() - usize::from(is_half));
        units.truncate(whole / 2);
        self.rest = if read > 0 { bytes.split_off(whole) } else { Vec::new() };
        let marks = |c: &char| *c != '\u{feff}';
        let text: String = char::decode_utf16(units).map(|c| c.unwrap_or('\u{fffd}')).filter(marks).collect();
        self.text = Cursor::new(text.into_bytes());
        Ok(())
    }
}

impl<R: Read> Read for Utf16<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let count = self.text.read(buffer)?;
            if count > 0 || buffer.is_empty() {
                return Ok(count);
            }
            self.refill()?;
            if self.text.get_ref().is_empty() && self.rest.is_empty() {
                return Ok(0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utf_16_of_both_kinds_and_plain_text() {
        let written = "step,rss_mb\n1,100 🌱\n";
        let units: Vec<u16> = std::iter::once(0xfeff).chain(written.encode_utf16()).collect();
        let little: Vec<u8> = units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
        let big: Vec<u8> = units.iter().flat_map(|unit| unit.to_be_bytes()).collect();
        for bytes in [little, big, written.as_bytes().to_vec()] {
            let mut read = String::new();
            text_of(bytes.as_slice()).unwrap().read_to_string(&mut read).unwrap();
            assert_eq!(read, written);
        }
        let mut read = String::new();
        text_of(&b"x"[..]).unwrap().read_to_string(&mut read).unwrap();
        assert_eq!(read, "x");
    }
}

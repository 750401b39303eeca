//! Snappy's raw format, decoded as a stream.
//!
//! A page may hold a hundred photographs in one block of 50 MB; a decoder of whole blocks would need twice that. Compressors work on
//! fragments of 64 KiB, so no copy refers further back, and only that much is kept.

use std::io::{self, BufRead, Read};

/// How far back a copy may reach.
const WINDOW: usize = 1 << 16;
/// Bytes decoded ahead of the reader.
const AHEAD: usize = 1 << 15;

/// A decoder over compressed bytes.
pub(crate) struct Snappy<R> {
    input: R,
    /// The window, followed by output not yet taken.
    output: Vec<u8>,
    taken: usize,
    /// Bytes still to come, once the length prefix is read.
    remaining: Option<u64>,
    literal: u64,
}

impl<R: BufRead> Snappy<R> {
    pub(crate) fn new(input: R) -> Snappy<R> {
        Snappy { input, output: Vec::new(), taken: 0, remaining: None, literal: 0 }
    }

    fn fill(&mut self) -> io::Result<()> {
        let mut remaining = match self.remaining {
            Some(remaining) => remaining,
            None => self.length()?,
        };
        if self.taken > 2 * WINDOW {
            self.output.drain(..self.taken - WINDOW);
            self.taken = WINDOW;
        }
        while remaining > 0 && self.output.len() - self.taken < AHEAD {
            let before = self.output.len();
            if self.literal == 0 {
                self.element()?;
            }
            self.copy_literal()?;
            let made = (self.output.len() - before) as u64;
            remaining = remaining.checked_sub(made).ok_or_else(|| broken("more bytes than it says"))?;
        }
        self.remaining = Some(remaining);
        Ok(())
    }

    fn byte(&mut self) -> io::Result<u8> {
        let mut byte = [0];
        self.input.read_exact(&mut byte)?;
        Ok(byte[0])
    }

    fn number(&mut self, bytes: usize) -> io::Result<u64> {
        let mut number = [0; 8];
        self.input.read_exact(&mut number[..bytes])?;
        Ok(u64::from_le_bytes(number))
    }

    fn length(&mut self) -> io::Result<u64> {
        let mut length = 0;
        for shift in (0..35).step_by(7) {
            let byte = self.byte()?;
            length |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(length);
            }
        }
        Err(broken("no length"))
    }

    /// Decodes the next element: a literal or a copy.
    fn element(&mut self) -> io::Result<()> {
        let tag = self.byte()?;
        let upper = u64::from(tag >> 2);
        let (length, offset) = match tag & 3 {
            0 => {
                self.literal = 1 + if upper < 60 { upper } else { self.number(upper as usize - 59)? };
                return Ok(());
            }
            1 => (4 + (upper & 7), (upper >> 3) << 8 | self.number(1)?),
            2 => (1 + upper, self.number(2)?),
            _ => (1 + upper, self.number(4)?),
        };
        let (length, offset) = (length as usize, offset as usize);
        if offset == 0 || offset > self.output.len() {
            return Err(broken("a copy from too far back"));
        }
        // Byte by byte, since source and destination may overlap.
        for _ in 0..length {
            self.output.push(self.output[self.output.len() - offset]);
        }
        Ok(())
    }

    fn copy_literal(&mut self) -> io::Result<()> {
        let count = self.literal.min(AHEAD as u64) as usize;
        let start = self.output.len();
        self.output.resize(start + count, 0);
        self.input.read_exact(&mut self.output[start..])?;
        self.literal -= count as u64;
        Ok(())
    }
}

impl<R: BufRead> Read for Snappy<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.output.len() {
            self.fill()?;
        }
        let count = buffer.len().min(self.output.len() - self.taken);
        buffer[..count].copy_from_slice(&self.output[self.taken..self.taken + count]);
        self.taken += count;
        Ok(count)
    }
}

fn broken(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("broken snappy: {problem}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::io::Read;

    use super::Snappy;

    fn decoded(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
        let mut text = Vec::new();
        Snappy::new(bytes).read_to_end(&mut text).map(|_| text)
    }

    #[test]
    fn literals_and_copies() {
        // "ab", then eight bytes from two back: they overlap.
        assert_eq!(decoded(&[10, 1 << 2, b'a', b'b', (8 - 4) << 2 | 1, 2]).unwrap(), b"ababababab");
        assert_eq!(decoded(&[0]).unwrap(), b"");
        // A literal of 100,000 bytes, longer than the window, and a copy from 65,535 back.
        let mut bytes = vec![0xa2, 0x8d, 6, 62 << 2, 0x9f, 0x86, 1];
        bytes.extend((0..100_000u32).map(|index| (index % 251) as u8));
        bytes.extend([1 << 2 | 2, 0xff, 0xff]);
        let text = decoded(&bytes).unwrap();
        assert_eq!((text.len(), text[100_000]), (100_002, text[100_000 - 65_535]));
    }

    #[test]
    fn broken_input_is_an_error() {
        for bytes in
            [&[][..], &[5, 1 << 2, b'a'], &[5, 1, 9], &[1, 1 << 2, b'a', b'b'], &[255, 255, 255, 255, 255, 255]]
        {
            assert!(decoded(bytes).is_err(), "{bytes:?}");
        }
    }
}

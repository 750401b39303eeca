//! Whether a JSON file is whole, and single values from it.
//!
//! Files are streamed: a trainer's log of a long run has megabytes. Python writes numbers that JSON does not have, and a log
//! with a `NaN` loss is no torn file, so these are read as numbers here.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use serde::de::{DeserializeOwned, IgnoredAny};

/// Reads the file to its end; an error says what is wrong with it.
pub fn check(path: &Path) -> Result<(), serde_json::Error> {
    let file = File::open(path).map_err(serde_json::Error::io)?;
    serde_json::from_reader::<_, IgnoredAny>(BufReader::new(PlainNumbers::new(file))).map(drop)
}

/// Reads a value, or nothing if the file does not hold one of this shape.
pub fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_reader(BufReader::new(PlainNumbers::new(File::open(path).ok()?))).ok()
}

/// Passes JSON on with Python's `NaN`, `Infinity` and `-Infinity` replaced by numbers of the same length.
struct PlainNumbers<R> {
    source: R,
    place: Place,
}

/// Where in the text the last byte was.
#[derive(Clone, Copy)]
enum Place {
    Outside,
    InString,
    AfterBackslash,
    /// Inside one of Python's words: what must still come.
    InWord(&'static [u8]),
}

impl<R: Read> PlainNumbers<R> {
    fn new(source: R) -> PlainNumbers<R> {
        PlainNumbers { source, place: Place::Outside }
    }

    fn pass(&mut self, byte: u8) -> u8 {
        let (place, passed) = match (self.place, byte) {
            (Place::InString, b'\\') => (Place::AfterBackslash, byte),
            (Place::InString, b'"') => (Place::Outside, byte),
            (Place::InString | Place::AfterBackslash, _) => (Place::InString, byte),
            (Place::InWord([expected, rest @ ..]), _) if *expected == byte => (Place::InWord(rest), b'0'),
            // A word that goes on differently is none of Python's: a byte that no parser accepts.
            (Place::InWord([_, ..]), _) => (Place::Outside, 0),
            (_, b'"') => (Place::InString, byte),
            (_, b'N') => (Place::InWord(b"aN"), b'1'),
            (_, b'I') => (Place::InWord(b"nfinity"), b'1'),
            _ => (Place::Outside, byte),
        };
        self.place = place;
        passed
    }
}

impl<R: Read> Read for PlainNumbers<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(buffer)?;
        for byte in &mut buffer[..count] {
            *byte = self.pass(*byte);
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn parse(text: &str) -> Result<Value, serde_json::Error> {
        serde_json::from_reader(PlainNumbers::new(text.as_bytes()))
    }

    #[test]
    fn what_python_writes_is_json() {
        let value = parse(r#"{"loss": NaN, "norm": [Infinity, -Infinity], "say \"NaN\"": "Infinity\\", "x": null}"#);
        let expected = json!({"loss": 100, "norm": [10000000, -10000000], "say \"NaN\"": "Infinity\\", "x": null});
        assert_eq!(value.unwrap(), expected);
    }

    #[test]
    fn other_words_are_not() {
        for text in ["{\"a\": Nan}", "[Inf]", "[NaN", "[Infinit", "[N]", "{\"a\": undefined}"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}

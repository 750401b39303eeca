//! Classifies each byte of a JSON text: structure, key, keyword or content.
//!
//! serde_json decides whether a text is JSON. The scanner can rely on that, so it only has to find where strings and keywords
//! end. It stores no values and does not recurse.

use std::ops::Range;

use serde::de::IgnoredAny;

/// Class of a span of a JSON text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Braces, brackets, colons, commas, quotes and whitespace.
    Structure,
    /// A key without its quotes.
    Key,
    /// `null`.
    Null,
    /// A string without its quotes that is the value of the key `type`.
    TypeName,
    /// Anything else: strings, numbers, `true` and `false`.
    Content,
}

/// A classified span of a JSON text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub bytes: Range<usize>,
    pub kind: Kind,
}

/// The spans of a text that is one JSON object or array, with or without whitespace around it; they cover it without gaps.
///
/// A single number or string is JSON, too, but in such an answer structure cannot be told from content.
pub(crate) fn stretches(text: &str) -> Option<Vec<Stretch>> {
    if !text.trim_start().starts_with(['{', '[']) || serde_json::from_str::<IgnoredAny>(text).is_err() {
        return None;
    }
    let mut scanner =
        Scanner { text: text.as_bytes(), place: 0, stretches: Vec::new(), open: Vec::new(), is_type: false };
    while scanner.place < scanner.text.len() {
        scanner.next();
    }
    Some(scanner.stretches)
}

/// Unescapes the inside of a string; invalid Unicode (half a surrogate pair) is returned as written.
pub(crate) fn unescaped(inside: &str) -> String {
    if !inside.contains('\\') {
        return inside.to_string();
    }
    serde_json::from_str(&format!("\"{inside}\"")).unwrap_or_else(|_| inside.to_string())
}

/// An open array or object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    Array,
    /// An object before its next key.
    BeforeKey,
    /// An object before its next value.
    BeforeValue,
}

struct Scanner<'a> {
    text: &'a [u8],
    place: usize,
    stretches: Vec<Stretch>,
    open: Vec<Open>,
    /// Whether the last key was `type`.
    is_type: bool,
}

impl Scanner<'_> {
    fn next(&mut self) {
        match self.text[self.place] {
            b'{' => self.open.push(Open::BeforeKey),
            b'[' => self.open.push(Open::Array),
            b'}' | b']' => drop(self.open.pop()),
            b':' => self.turn(Open::BeforeKey, Open::BeforeValue),
            b',' => self.turn(Open::BeforeValue, Open::BeforeKey),
            b' ' | b'\n' | b'\r' | b'\t' => {}
            b'"' => return self.string(),
            _ => return self.word(),
        }
        self.push(1, Kind::Structure);
    }

    fn turn(&mut self, from: Open, to: Open) {
        if let Some(last) = self.open.last_mut().filter(|last| **last == from) {
            *last = to;
        }
    }

    fn string(&mut self) {
        self.push(1, Kind::Structure);
        let mut length = 0;
        while self.text.get(self.place + length).is_some_and(|byte| *byte != b'"') {
            length += if self.text[self.place + length] == b'\\' { 2 } else { 1 };
        }
        let inside = &self.text[self.place..self.place + length];
        let kind = match self.open.last() {
            Some(Open::BeforeKey) => {
                self.is_type = inside == b"type";
                Kind::Key
            }
            Some(Open::BeforeValue) if self.is_type => Kind::TypeName,
            _ => Kind::Content,
        };
        self.push(length, kind);
        self.push(1, Kind::Structure);
    }

    fn word(&mut self) {
        let rest = &self.text[self.place..];
        let is_end = |byte: &u8| matches!(byte, b',' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t');
        let length = rest.iter().position(is_end).unwrap_or(rest.len());
        self.push(length, if &rest[..length] == b"null" { Kind::Null } else { Kind::Content });
    }

    fn push(&mut self, length: usize, kind: Kind) {
        let bytes = self.place..self.place + length;
        self.place = bytes.end;
        match self.stretches.last_mut().filter(|last| last.kind == kind) {
            // Keys and strings are never adjacent, so only structure is merged.
            Some(last) => last.bytes.end = bytes.end,
            None if length > 0 => self.stretches.push(Stretch { bytes, kind }),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text with a letter for each byte's class.
    fn kinds(text: &str) -> String {
        let letter = |kind| match kind {
            Kind::Structure => ".",
            Kind::Key => "k",
            Kind::Null => "n",
            Kind::TypeName => "t",
            Kind::Content => "c",
        };
        let Some(stretches) = stretches(text) else { return "no JSON".to_string() };
        stretches.iter().map(|one| letter(one.kind).repeat(one.bytes.len())).collect()
    }

    #[test]
    fn every_byte_has_its_kind() {
        let check = |text: &str, expected: &str| assert_eq!(kinds(text), expected, "{text}");
        check(r#"{"a": 1}"#, "..k...c.");
        check(r#" {"ab":"c\"d\\","e" : [null,true, -1.5e3 ]} "#, "...kk...cccccc...k.....nnnn.cccc..cccccc....");
        check(r#"{"type":"object","x":{"y":"\u00e9"}}"#, "..kkkk...tttttt...k....k...cccccc...");
        check("[\n]", "...");
        check(r#"{"":""}"#, ".......");
        check(r#"{"a":{"b":[{"c":"d"},"e"]},"f":"g"}"#, "..k....k.....k...c....c.....k...c..");
        for text in ["", "yes", "null", "12", r#""a""#, "{", r#"{"a":}"#, "{} {}", "```json\n{}\n```", "[NaN]"] {
            check(text, "no JSON");
        }
    }

    #[test]
    fn stretches_cover_the_text() {
        let text = r#"{"kéy": ["ß\n", {"x": null}], "type": "a", "n": [1,2,[]] }"#;
        let stretches = stretches(text).unwrap();
        assert_eq!(stretches.first().unwrap().bytes.start, 0);
        assert_eq!(stretches.last().unwrap().bytes.end, text.len());
        assert!(stretches.windows(2).all(|pair| pair[0].bytes.end == pair[1].bytes.start));
    }

    #[test]
    fn keys_are_read_as_they_are_meant() {
        assert_eq!(unescaped(r"a\u0062\n"), "ab\n");
        assert_eq!(unescaped(r"\ud800"), r"\ud800");
    }
}

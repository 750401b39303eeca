//! A text in NFC with offsets into the original text.

use std::ops::Range;

use unicode_normalization_alignments::UnicodeNormalization;

/// A text in NFC, aligned with its original.
#[derive(Debug)]
pub(super) struct Aligned {
    pub text: String,
    /// The original byte range of each byte of the NFC text.
    written: Vec<Range<usize>>,
}

impl Aligned {
    /// The text in NFC, or `None` if it already is.
    pub fn of(given: &str) -> Option<Aligned> {
        if super::is_normal(given) {
            return None;
        }
        let mut aligned = Aligned { text: String::new(), written: Vec::new() };
        let mut rest = given.chars();
        let mut last = 0..0;
        for (character, change) in given.nfc() {
            // 0 is one original character, -1 two that became one, 1 an additional one from the last.
            let consumed: usize =
                rest.by_ref().take(usize::try_from(1 - change).unwrap_or(0)).map(char::len_utf8).sum();
            if consumed > 0 {
                last = last.end..last.end + consumed;
            }
            aligned.text.push(character);
            aligned.written.resize(aligned.text.len(), last.clone());
        }
        Some(aligned)
    }

    /// The original byte range of an NFC byte range.
    pub fn written(&self, place: Range<usize>) -> Range<usize> {
        match self.written.get(place) {
            Some([first, .., last]) => first.start..last.end,
            Some([only]) => only.clone(),
            _ => 0..0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_found_again() {
        assert!(Aligned::of("été").is_none());
        let aligned = Aligned::of("a e\u{301}b").unwrap();
        assert_eq!(aligned.text, "a éb");
        assert_eq!(aligned.written(2..3), 2..5);
        assert_eq!(aligned.written(4..5), 5..6);
        // One character that becomes two.
        let aligned = Aligned::of("x\u{958}y").unwrap();
        assert_eq!(aligned.text, "x\u{915}\u{93c}y");
        assert_eq!([aligned.written(1..4), aligned.written(4..7), aligned.written(7..8)], [1..4, 1..4, 4..5]);
    }
}

//! Base64 as in data URIs (RFC 4648): both alphabets, with or without padding, line breaks allowed.

use std::borrow::Cow;

use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::{DecodeError, Engine as _};

const CUT_OFF: &str = "base64 ends in the middle of a byte";

/// Padding is stripped beforehand, and unused trailing bits are ignored, as in Python.
const ENGINE: GeneralPurpose = {
    let config = GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::RequireNone);
    GeneralPurpose::new(&STANDARD, config)
};

/// Contiguous base64 digits, which allow random access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Digits<'a>(&'a [u8]);

impl<'a> Digits<'a> {
    /// The digits of a text; `None` if line breaks or blanks separate them. Invalid digits are reported on decoding.
    pub fn of(text: &'a str) -> Result<Option<Digits<'a>>, String> {
        let text = text.trim_ascii();
        let digits = text.trim_end_matches('=').as_bytes();
        // Without an early exit the loop is vectorised.
        let is_blank = |piece: &[u8]| piece.iter().fold(false, |found, byte| found | (*byte <= b' '));
        if digits.chunks(4096).any(is_blank) {
            return Ok(None);
        }
        if digits.len() % 4 == 1 {
            return Err(CUT_OFF.to_string());
        }
        Ok(Some(Digits(digits)))
    }

    /// Number of decoded bytes.
    pub fn bytes(self) -> u64 {
        self.0.len() as u64 * 3 / 4
    }

    /// Decodes a range of bytes, which must exist.
    pub fn decode(self, offset: u64, count: usize) -> Result<Vec<u8>, String> {
        let (first, skip) = (offset as usize / 3 * 4, offset as usize % 3);
        let end = (first + (skip + count).div_ceil(3) * 4).min(self.0.len());
        let mut bytes = decode_bytes(&self.0[first.min(end)..end])?;
        bytes.truncate(skip + count);
        bytes.drain(..skip);
        Ok(bytes)
    }
}

/// The decoded bytes, or the reason they cannot be decoded.
pub(crate) fn decode(text: &str) -> Result<Vec<u8>, String> {
    decode_bytes(text.trim_ascii().as_bytes())
}

fn decode_bytes(text: &[u8]) -> Result<Vec<u8>, String> {
    let end = text.iter().rposition(|byte| *byte != b'=' && !byte.is_ascii_whitespace()).map_or(0, |last| last + 1);
    let digits = plain(&text[..end]);
    ENGINE.decode(&digits).map_err(|error| match error {
        // Positions do not count line breaks.
        DecodeError::InvalidByte(place, b'=') => format!("padding in the middle, at character {}", place + 1),
        DecodeError::InvalidByte(place, byte) => {
            format!("byte 0x{byte:02x} at character {} is not a base64 digit", place + 1)
        }
        _ => CUT_OFF.to_string(),
    })
}

/// Digits of the standard alphabet: drops line breaks and translates the URL-safe alphabet.
fn plain(text: &[u8]) -> Cow<'_, [u8]> {
    // Without an early exit the loop is vectorised.
    let is_odd = |byte: u8| byte <= b' ' || byte == b'-' || byte == b'_';
    if !text.chunks(4096).any(|piece| piece.iter().fold(false, |found, byte| found | is_odd(*byte))) {
        return Cow::Borrowed(text);
    }
    let usual = text.iter().filter(|byte| !byte.is_ascii_whitespace()).map(|byte| match byte {
        b'-' => b'+',
        b'_' => b'/',
        other => *other,
    });
    Cow::Owned(usual.collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::{Digits, decode};

    #[test]
    fn texts_of_the_standard() {
        for (text, bytes) in
            [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9vYg", "foob"), ("Zm9v\nYmE=", "fooba")]
        {
            assert_eq!(decode(text), Ok(bytes.as_bytes().to_vec()), "{text}");
        }
        assert_eq!(decode("-_-_"), decode("+/+/"));
    }

    #[test]
    fn any_place_without_the_rest() {
        for length in 1..40_u8 {
            let digits = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAhIiMkJSYnKA";
            let bytes: Vec<u8> = (1..=length).collect();
            let text = &digits[..(usize::from(length) * 4).div_ceil(3)];
            let found = Digits::of(text).unwrap().unwrap();
            assert_eq!(found.bytes(), u64::from(length));
            for start in 0..bytes.len() {
                for end in start..=bytes.len() {
                    assert_eq!(found.decode(start as u64, end - start), Ok(bytes[start..end].to_vec()));
                }
            }
        }
        assert!(Digits::of("AQID\nBAUG").unwrap().is_none() && Digits::of("AQIDB").is_err());
    }

    #[test]
    fn mistakes_are_named() {
        assert_eq!(decode("Zm9v*mE=").unwrap_err(), "byte 0x2a at character 5 is not a base64 digit");
        assert_eq!(decode("Zg==Zg==").unwrap_err(), "padding in the middle, at character 3");
        assert_eq!(decode("Zm9vY").unwrap_err(), "base64 ends in the middle of a byte");
    }
}

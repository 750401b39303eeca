//! Base64 as data URIs have it (RFC 4648): both alphabets, with or without padding, line breaks allowed.

/// Characters that are no digits.
const NO_DIGIT: u8 = 255;

const CUT_OFF: &str = "base64 ends in the middle of a byte";

/// The value of each character.
const DIGITS: [u8; 256] = {
    let mut table = [NO_DIGIT; 256];
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut index = 0;
    while index < 64 {
        table[alphabet[index] as usize] = index as u8;
        index += 1;
    }
    table[b'-' as usize] = 62;
    table[b'_' as usize] = 63;
    table
};

/// Digits one behind the other, in which any place can be found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Digits<'a>(&'a [u8]);

impl<'a> Digits<'a> {
    /// The digits of a text; none where line breaks or blanks stand between them. Whether all of them are digits is seen when they are decoded.
    pub fn of(text: &'a str) -> Result<Option<Digits<'a>>, String> {
        let text = text.trim_ascii();
        let digits = text.trim_end_matches('=').as_bytes();
        // Without a way out in the middle this is done for many bytes at a time.
        let is_blank = |piece: &[u8]| piece.iter().fold(false, |found, byte| found | (*byte <= b' '));
        if digits.chunks(4096).any(is_blank) {
            return Ok(None);
        }
        if digits.len() % 4 == 1 {
            return Err(CUT_OFF.to_string());
        }
        Ok(Some(Digits(digits)))
    }

    /// How many bytes they stand for.
    pub fn bytes(self) -> u64 {
        self.0.len() as u64 * 3 / 4
    }

    /// Some of the bytes, which must be there.
    pub fn decode(self, offset: u64, count: usize) -> Result<Vec<u8>, String> {
        let (first, skip) = (offset as usize / 3 * 4, offset as usize % 3);
        let end = (first + (skip + count).div_ceil(3) * 4).min(self.0.len());
        let mut bytes = decode_bytes(&self.0[first.min(end)..end])?;
        bytes.truncate(skip + count);
        bytes.drain(..skip);
        Ok(bytes)
    }
}

/// The bytes that a text stands for, or what is wrong with it.
pub(crate) fn decode(text: &str) -> Result<Vec<u8>, String> {
    decode_bytes(text.trim_ascii().as_bytes())
}

fn decode_bytes(text: &[u8]) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 3);
    let mut place = 0;
    // Whole groups of four digits; what follows (line breaks, padding, mistakes) is looked at one by one.
    while let Some(group) = text.get(place..place + 4) {
        let [a, b, c, d] = [0, 1, 2, 3].map(|index| DIGITS[group[index] as usize]);
        if (a | b | c | d) > 63 {
            break;
        }
        bytes.extend_from_slice(&[a << 2 | b >> 4, b << 4 | c >> 2, c << 6 | d]);
        place += 4;
    }
    decode_slowly(text, place, &mut bytes)?;
    Ok(bytes)
}

fn decode_slowly(text: &[u8], start: usize, bytes: &mut Vec<u8>) -> Result<(), String> {
    let (mut bits, mut count, mut padded) = (0u32, 0, false);
    for (place, character) in text.iter().enumerate().skip(start) {
        match DIGITS[*character as usize] {
            NO_DIGIT if character.is_ascii_whitespace() => {}
            NO_DIGIT if *character == b'=' => padded = true,
            NO_DIGIT => {
                return Err(format!("byte 0x{character:02x} at character {} is no digit of base64", place + 1));
            }
            _ if padded => return Err(format!("something follows the padding at character {}", place + 1)),
            digit => {
                bits = bits << 6 | u32::from(digit);
                count += 1;
                if count == 4 {
                    bytes.extend_from_slice(&bits.to_be_bytes()[1..]);
                    (bits, count) = (0, 0);
                }
            }
        }
    }
    match count {
        0 => {}
        1 => return Err(CUT_OFF.to_string()),
        2 => bytes.push((bits >> 4) as u8),
        _ => bytes.extend_from_slice(&[(bits >> 10) as u8, (bits >> 2) as u8]),
    }
    Ok(())
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
        assert_eq!(decode("Zm9v*mE=").unwrap_err(), "byte 0x2a at character 5 is no digit of base64");
        assert_eq!(decode("Zg==Zg==").unwrap_err(), "something follows the padding at character 5");
        assert_eq!(decode("Zm9vY").unwrap_err(), "base64 ends in the middle of a byte");
    }
}

//! Base64 as data URIs have it (RFC 4648): both alphabets, with or without padding, line breaks allowed.

/// Characters that are no digits.
const NO_DIGIT: u8 = 255;

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

/// The bytes that a text stands for, or what is wrong with it.
pub(crate) fn decode(text: &str) -> Result<Vec<u8>, String> {
    let text = text.trim_ascii().as_bytes();
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
        1 => return Err("base64 ends in the middle of a byte".to_string()),
        2 => bytes.push((bits >> 4) as u8),
        _ => bytes.extend_from_slice(&[(bits >> 10) as u8, (bits >> 2) as u8]),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::decode;

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
    fn mistakes_are_named() {
        assert_eq!(decode("Zm9v*mE=").unwrap_err(), "byte 0x2a at character 5 is no digit of base64");
        assert_eq!(decode("Zg==Zg==").unwrap_err(), "something follows the padding at character 5");
        assert_eq!(decode("Zm9vY").unwrap_err(), "base64 ends in the middle of a byte");
    }
}

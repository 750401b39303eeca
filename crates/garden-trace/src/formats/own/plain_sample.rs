//! The line of a sample as our writer writes it: known keys in their order, plain numbers, no blanks.
//!
//! Nearly every line of a trace is one, and reading it here takes a fraction of the time that a general JSON parser takes.
//! Whatever looks different (events, texts, exponents, keys of a later version) is left to that parser.

use garden_memory::{Quantity, Sample};

use crate::amount::plain_decimal;

/// Reads a sample; none if the line is anything but known keys in their order with plain numbers.
pub(super) fn read(line: &[u8]) -> Option<Sample> {
    let mut sample = Sample::default();
    let mut quantities = Quantity::ALL.into_iter();
    let mut rest = line.strip_prefix(b"{\"")?;
    loop {
        let key_length = rest.iter().position(|&byte| byte == b'"')?;
        let (key, behind) = (&rest[..key_length], rest[key_length + 1..].strip_prefix(b":")?);
        let length = behind.iter().position(|byte| !(byte.is_ascii_digit() || *byte == b'.'))?;
        let (number, behind) = behind.split_at(length);
        match key {
            b"step" if sample.step.is_none() => sample.step = Some(decimal(number)?),
            b"time_s" if sample.time_s.is_none() => sample.time_s = Some(decimal(number)?),
            _ => sample.set(quantities.find(|quantity| quantity.name().as_bytes() == key)?, whole(number)?),
        }
        rest = match behind {
            b"}" => return Some(sample),
            more => more.strip_prefix(b",\"")?,
        };
    }
}

/// A number with or without a point, as JSON allows it.
fn decimal(number: &[u8]) -> Option<f64> {
    let is_json = !matches!(number, [b'0', b'0'..=b'9', ..] | [b'.', ..] | [.., b'.']);
    plain_decimal(number).filter(|_| is_json)
}

/// A whole number of up to 19 digits, which 64 bits hold.
fn whole(number: &[u8]) -> Option<u64> {
    if number.len() > 19 || matches!(number, [] | [b'0', _, ..]) {
        return None;
    }
    let digit = |sum: u64, byte: &u8| byte.is_ascii_digit().then(|| sum * 10 + u64::from(byte - b'0'));
    number.iter().try_fold(0, digit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::own::Record;

    #[test]
    fn the_fast_way_gives_the_same_samples() {
        let numbers = [
            "0",
            "7",
            "1.5",
            "0.125",
            "123456789012",
            "9999999999999999999",
            "99999999999999999999999",
            "05",
            "1.",
            ".5",
            "1e3",
            "-1",
            "",
        ];
        let keys = ["step", "time_s", "rss", "anon", "tensors", "arena", "later", "rss\\u0020"];
        let mut plain = 0;
        for (first, second) in keys.iter().flat_map(|first| keys.map(|second| (first, second))) {
            for (a, b) in numbers.iter().flat_map(|a| numbers.map(|b| (a, b))) {
                for line in [
                    format!("{{\"{first}\":{a},\"{second}\":{b}}}"),
                    format!("{{\"{first}\":{a}}}"),
                    format!("{{\"{first}\": {a},\"{second}\":{b}}}"),
                    format!("{{\"{first}\":{a},\"{second}\":{b}"),
                    format!("{{\"{first}\":{a},}}"),
                ] {
                    let Some(sample) = read(line.as_bytes()) else { continue };
                    let general = serde_json::from_slice::<Record<'_>>(line.as_bytes());
                    assert_eq!(Some(sample), general.ok().map(|record| record.sample()), "{line}");
                    plain += 1;
                }
            }
        }
        assert!(plain > 500, "{plain}");
    }
}

//! Numbers in table cells: plain, with thousands separators, with a unit.

use garden_memory::unit_factor;

/// A number and the unit written after it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Amount {
    pub(crate) value: f64,
    /// Bytes per unit, where the text states a unit.
    pub(crate) factor: Option<u64>,
}

/// What a lone comma between digits means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comma {
    /// A thousands separator wherever it can be one: `7,159`.
    Thousands,
    /// The decimal point, as in files with semicolons between columns.
    Decimal,
}

/// Why a text is not an amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    /// Blank, or a word for it (`nan`, `null`, `none`, `-`).
    Missing,
    /// Not a number.
    NotANumber,
    /// Infinite, or larger than any machine's memory.
    TooLarge,
    /// Below zero.
    Negative,
}

impl Problem {
    /// The reason, worded for a note.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Problem::Missing => "no memory value",
            Problem::NotANumber => "value is not a number",
            Problem::TooLarge => "value is infinite or larger than any machine's memory",
            Problem::Negative => "value is negative",
        }
    }
}

/// 2^63: anything larger is a typo, not an amount of memory.
const LARGEST: f64 = 9.2e18;

impl Amount {
    /// The amount as a whole number for a sample; `factor` applies where the text states no unit.
    pub(crate) fn scaled(self, factor: u64) -> Result<u64, Problem> {
        let scaled = self.value * self.factor.unwrap_or(factor) as f64;
        match scaled {
            number if number.is_nan() => Err(Problem::Missing),
            number if number.abs() >= LARGEST => Err(Problem::TooLarge),
            number if number < 0.0 => Err(Problem::Negative),
            number => Ok(rounded(number)),
        }
    }
}

/// The nearest whole number; `f64::round` is a call where the processor's instruction for it is not assumed.
fn rounded(number: f64) -> u64 {
    let whole = number as u64;
    whole + u64::from(number - whole as f64 >= 0.5)
}

/// Reads a cell.
pub(crate) fn parse_amount(cell: &[u8], comma: Comma) -> Result<Amount, Problem> {
    if let Some(value) = plain_decimal(cell) {
        return Ok(Amount { value, factor: None });
    }
    let cell = trim(cell);
    let text = std::str::from_utf8(cell).map_err(|_| Problem::NotANumber)?;
    if let Ok(value) = text.parse::<f64>() {
        return if value.is_nan() { Err(Problem::Missing) } else { Ok(Amount { value, factor: None }) };
    }
    if text.is_empty() || matches!(text.to_ascii_lowercase().as_str(), "null" | "none" | "-") {
        return Err(Problem::Missing);
    }
    parse_dressed(text, comma)
}

/// Reads digits with at most one point, the form of nearly every cell, three times faster than the general path.
///
/// Up to 15 digits are an exact integer and up to 10^15 an exact power of ten, so their quotient is the correctly
/// rounded number (Clinger, "How to read floating point numbers accurately", 1990).
pub(crate) fn plain_decimal(cell: &[u8]) -> Option<f64> {
    if cell.is_empty() || cell.len() > 16 {
        return None;
    }
    let (mut digits, mut count, mut decimals, mut seen_point) = (0u64, 0, 0, false);
    for &byte in cell {
        match byte {
            b'0'..=b'9' => {
                digits = digits * 10 + u64::from(byte - b'0');
                count += 1;
                decimals += usize::from(seen_point);
            }
            b'.' if !seen_point => seen_point = true,
            _ => return None,
        }
    }
    (1..=15).contains(&count).then(|| digits as f64 / POWERS_OF_TEN[decimals])
}

const POWERS_OF_TEN: [f64; 16] = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15];

fn trim(mut cell: &[u8]) -> &[u8] {
    while let [b' ' | b'\t' | b'"' | 0, rest @ ..] | [rest @ .., b' ' | b'\t' | b'"' | 0] = cell {
        cell = rest;
    }
    cell
}

/// Reads `7,159 MB`, `1.2GB`, `5434,5` and the like.
fn parse_dressed(text: &str, comma: Comma) -> Result<Amount, Problem> {
    let is_number = |c: char| c.is_ascii_digit() || matches!(c, '.' | ',' | '_' | '\'' | '+' | '-');
    let end = text.find(|c: char| !is_number(c)).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.trim();
    let factor = match unit {
        "" => None,
        // As Kubernetes writes them.
        "Ki" | "Mi" | "Gi" | "Ti" => unit_factor(&unit[..1]),
        _ => Some(unit_factor(unit).ok_or(Problem::NotANumber)?),
    };
    let value = plain(number, comma).parse::<f64>().map_err(|_| Problem::NotANumber)?;
    Ok(Amount { value, factor })
}

/// Removes thousands separators and makes the decimal separator a point.
fn plain(number: &str, comma: Comma) -> String {
    let mut plain: String = number.chars().filter(|c| !matches!(c, '_' | '\'')).collect();
    let decimal_comma = match (plain.rfind(','), plain.rfind('.')) {
        (None, _) => false,
        // With both, the last one is the decimal separator.
        (Some(comma_at), Some(point_at)) => comma_at > point_at,
        (Some(comma_at), None) => {
            let lone = plain.find(',') == Some(comma_at);
            lone && (comma == Comma::Decimal || !parts_thousands(&plain, comma_at))
        }
    };
    if decimal_comma {
        plain.retain(|c| c != '.');
        plain.replace(',', ".")
    } else {
        plain.retain(|c| c != ',');
        plain
    }
}

fn parts_thousands(number: &str, comma_at: usize) -> bool {
    let before = number[..comma_at].trim_start_matches(['+', '-']);
    (1..=3).contains(&before.len()) && !before.starts_with('0') && number.len() - comma_at - 1 == 3
}

/// Whether a cell has a comma that can only be the decimal point: `1,5`, `0,512`.
pub(crate) fn has_decimal_comma(cell: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(trim(cell)) else { return false };
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == ',')).unwrap_or(text.len());
    match text[..end].split_once(',') {
        Some((before, after)) => {
            let is_lone = !before.is_empty() && !after.is_empty() && !after.contains(',') && !text.contains('.');
            is_lone && !parts_thousands(&text[..end], before.len())
        }
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use garden_memory::{GIB, KIB, MIB};

    fn bytes(text: &str, comma: Comma) -> Result<u64, Problem> {
        parse_amount(text.as_bytes(), comma)?.scaled(MIB)
    }

    #[test]
    fn numbers_with_units_and_separators() {
        for (text, expected) in [
            ("5434", 5434 * MIB),
            (" 7,159 MB ", 7159 * MIB),
            ("900 KiB", 900 * KIB),
            ("1.5GB", 3 * GIB / 2),
            ("1,234,567", 1_234_567 * MIB),
            ("1,234.5", 1_234 * MIB + MIB / 2),
            ("1.234,5 MB", 1_234 * MIB + MIB / 2),
            ("5434,5", 5_434 * MIB + MIB / 2),
            ("7'159", 7159 * MIB),
            ("1e3", 1000 * MIB),
            ("\"12\"", 12 * MIB),
            ("4096 bytes", 4096),
        ] {
            assert_eq!(bytes(text, Comma::Thousands), Ok(expected), "{text}");
        }
        assert_eq!(bytes("0,512", Comma::Thousands), Ok((0.512 * MIB as f64).round() as u64));
        let decimal: Vec<&str> = ["1,5", "10,125", "0,512", "1,234,5", "1.234,5", "x,1", "7", ",5"]
            .into_iter()
            .filter(|cell| has_decimal_comma(cell.as_bytes()))
            .collect();
        assert_eq!(decimal, ["1,5", "0,512"]);
        assert_eq!(bytes("543,512", Comma::Decimal), Ok((543.512 * MIB as f64).round() as u64));
    }

    #[test]
    fn the_fast_way_gives_the_same_numbers() {
        for text in ["0", "7.", ".5", "34.094", "123456789012345", "0.00000000000001", "1700000000.1234", "00012.50"] {
            assert_eq!(plain_decimal(text.as_bytes()), text.parse().ok(), "{text}");
        }
        for text in ["", ".", "1.2.3", "-1", "1e5", "1234567890123456", " 1", "12345678901234.56"] {
            assert_eq!(plain_decimal(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn rounding_as_the_library_does() {
        for number in [0.0, 0.49999999999999994, 0.5, 1.5, 2.4999, 2.5, 4503599627370497.5, 9.1e18] {
            assert_eq!(rounded(number), number.round() as u64, "{number}");
        }
    }

    #[test]
    fn what_is_not_an_amount_says_why() {
        for (text, problem) in [
            ("", Problem::Missing),
            ("NaN", Problem::Missing),
            ("None", Problem::Missing),
            ("n/a", Problem::NotANumber),
            ("12 apples", Problem::NotANumber),
            ("inf", Problem::TooLarge),
            ("1e300", Problem::TooLarge),
            ("-5", Problem::Negative),
            ("--", Problem::NotANumber),
            ("1.2.3", Problem::NotANumber),
        ] {
            assert_eq!(bytes(text, Comma::Thousands), Err(problem), "{text}");
        }
    }
}

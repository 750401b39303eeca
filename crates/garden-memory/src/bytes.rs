//! Amounts of memory: a number of bytes that knows how people write it.
//!
//! Everywhere in this project K, M, G and T, with or without `B` or `iB`, are powers of 1024, as psutil scripts, mprof
//! and systemd use them. Reports print KiB, MiB and GiB so that nobody has to wonder.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// One kibibyte, in bytes.
pub const KIB: u64 = 1 << 10;
/// One mebibyte, in bytes.
pub const MIB: u64 = 1 << 20;
/// One gibibyte, in bytes.
pub const GIB: u64 = 1 << 30;
/// One tebibyte, in bytes.
pub const TIB: u64 = 1 << 40;

/// An amount of memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// Rounds a computed amount to whole bytes; negative and undefined amounts become 0.
    pub fn from_f64(bytes: f64) -> Self {
        // `as` saturates and maps NaN to 0, which is what an amount of memory needs.
        Bytes(bytes.round() as u64)
    }

    /// The amount as a floating point number, for arithmetic.
    pub fn as_f64(self) -> f64 {
        self.0 as f64
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format_signed(self.as_f64(), false))
    }
}

/// Writes an amount with its sign, such as `+1.57 GiB`, for changes and rates.
pub fn format_change(bytes: f64) -> String {
    format_signed(bytes, true)
}

/// Writes both ends of an interval in one unit, with their signs: `-0.30 to +0.41 MiB`.
pub fn format_between(low: f64, high: f64) -> String {
    let (unit, name) = unit_of(low.abs().max(high.abs()));
    let digits = digits_of(low.abs().max(high.abs()) / unit as f64, unit);
    let end = |bytes: f64| {
        let text = format!("{:+.digits$}", bytes / unit as f64);
        // An end that rounds to zero has no sign.
        if text.contains(|c: char| ('1'..='9').contains(&c)) { text } else { text[1..].to_string() }
    };
    format!("{} to {} {name}", end(low), end(high))
}

/// The unit in which an amount is written, and its name.
fn unit_of(size: f64) -> (u64, &'static str) {
    match size {
        // The borders sit just below the unit so that 1023.9 MiB is printed as 1.00 GiB, never as 1024 MiB.
        s if s >= 0.9995 * TIB as f64 => (TIB, "TiB"),
        s if s >= 0.9995 * GIB as f64 => (GIB, "GiB"),
        s if s >= 0.9995 * MIB as f64 => (MIB, "MiB"),
        s if s >= 0.9995 * KIB as f64 => (KIB, "KiB"),
        _ => (1, "B"),
    }
}

/// Decimals for three significant digits, and no fractions of a byte.
fn digits_of(value: f64, unit: u64) -> usize {
    match value {
        _ if unit == 1 => 0,
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    }
}

fn format_signed(bytes: f64, plus: bool) -> String {
    let (unit, name) = unit_of(bytes.abs());
    let value = bytes.abs() / unit as f64;
    let digits = digits_of(value, unit);
    let sign = if bytes < 0.0 && value > 0.0 {
        "-"
    } else if plus {
        "+"
    } else {
        ""
    };
    format!("{sign}{value:.digits$} {name}")
}

/// Why a text is not an amount of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseBytesError(String);

impl fmt::Display for ParseBytesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not a size; write for example 500MB, 28GB or 1.5GiB (powers of 1024)", self.0)
    }
}

impl std::error::Error for ParseBytesError {}

/// The factor that a unit such as `MB`, `gib` or `k` stands for; an empty unit is bytes.
pub fn unit_factor(unit: &str) -> Option<u64> {
    let unit = unit.trim().to_ascii_lowercase();
    Some(match unit.as_str() {
        "" | "b" | "byte" | "bytes" => 1,
        "k" | "kb" | "kib" => KIB,
        "m" | "mb" | "mib" => MIB,
        "g" | "gb" | "gib" => GIB,
        "t" | "tb" | "tib" => TIB,
        _ => return None,
    })
}

impl FromStr for Bytes {
    type Err = ParseBytesError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseBytesError(text.to_string());
        let text = text.trim();
        let digits_end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits_end);
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let factor = unit_factor(unit).ok_or_else(wrong)?;
        let bytes = number * factor as f64;
        // 2^63 bytes is beyond any machine: a larger number is a typo.
        if !bytes.is_finite() || bytes >= 9.2e18 {
            return Err(wrong());
        }
        Ok(Bytes::from_f64(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_1024_with_or_without_b() {
        for text in ["32GB", "32G", "32GiB", "32 gb", "32768MB", "33554432K"] {
            assert_eq!(text.parse::<Bytes>(), Ok(Bytes(32 * GIB)), "{text}");
        }
        assert_eq!("1.5GiB".parse::<Bytes>(), Ok(Bytes(3 * GIB / 2)));
        assert_eq!("4096".parse::<Bytes>(), Ok(Bytes(4096)));
    }

    #[test]
    fn what_is_not_a_size_is_refused() {
        for text in ["", "GB", "12XB", "-5MB", "1e9", "nan", "99999999999999TB", "1.2.3MB"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }

    #[test]
    fn printed_with_three_digits_and_a_binary_unit() {
        let printed = [0, 512, 1023 * KIB + 1023, 5434 * MIB, 17 * GIB, 1023 * MIB].map(|b| Bytes(b).to_string());
        assert_eq!(printed, ["0 B", "512 B", "1.00 MiB", "5.31 GiB", "17.0 GiB", "1023 MiB"]);
        assert_eq!(format_change(-1607.0 * MIB as f64), "-1.57 GiB");
        assert_eq!(format_change(171.1 * MIB as f64), "+171 MiB");
        assert_eq!(format_between(-0.3 * MIB as f64, 41.0 * KIB as f64), "-307 to +41 KiB");
        assert_eq!(format_between(-4.0, 12.34 * MIB as f64), "0.0 to +12.3 MiB");
    }
}

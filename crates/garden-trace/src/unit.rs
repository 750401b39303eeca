//! The units that a file's numbers can have; `unit/rule.rs` decides which one a bare number has.

pub(crate) mod rule;

use std::fmt;
use std::str::FromStr;

use garden_memory::{GIB, KIB, MIB, TIB};

/// A unit of memory for a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// 1,048,576 bytes, whether the file calls it MB or MiB.
    Mib,
    /// 1,024 bytes, whether the file calls it kB or KiB.
    Kib,
    /// 1,073,741,824 bytes, whether the file calls it GB or GiB.
    Gib,
    /// Single bytes.
    Bytes,
}

impl Unit {
    /// Bytes per unit.
    pub fn factor(self) -> u64 {
        match self {
            Unit::Mib => MIB,
            Unit::Kib => KIB,
            Unit::Gib => GIB,
            Unit::Bytes => 1,
        }
    }

    /// The value of `--unit` for it.
    pub(crate) fn flag(self) -> &'static str {
        match self {
            Unit::Mib => "mib",
            Unit::Kib => "kib",
            Unit::Gib => "gib",
            Unit::Bytes => "bytes",
        }
    }

    /// Its name for people.
    pub(crate) fn name(self) -> &'static str {
        factor_name(self.factor())
    }
}

/// Why a text is not a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseUnitError(String);

impl fmt::Display for ParseUnitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not a unit; write mib, kib, gib or bytes", self.0)
    }
}

impl std::error::Error for ParseUnitError {}

impl FromStr for Unit {
    type Err = ParseUnitError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.trim().to_ascii_lowercase().as_str() {
            "mib" | "mb" | "m" => Ok(Unit::Mib),
            "kib" | "kb" | "k" => Ok(Unit::Kib),
            "gib" | "gb" | "g" => Ok(Unit::Gib),
            "bytes" | "byte" | "b" => Ok(Unit::Bytes),
            _ => Err(ParseUnitError(text.to_string())),
        }
    }
}

/// A page of memory on nearly every machine; kernels with larger ones exist on ARM and POWER.
pub(crate) const PAGE: u64 = 4 * KIB;

/// A factor's name for people.
pub(crate) fn factor_name(factor: u64) -> &'static str {
    match factor {
        PAGE => "pages of 4 KiB",
        KIB => "KiB",
        MIB => "MiB",
        GIB => "GiB",
        TIB => "TiB",
        _ => "bytes",
    }
}

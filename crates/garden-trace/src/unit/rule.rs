//! The unit of numbers that state none: the one place that decides it, for tables, JSON, logs and bare numbers alike.
//!
//! A unit is possible if the highest value would be a process's memory: not below 32 MiB, and within the machine. Where
//! one unit is possible it is used; where several are, the convention of the tool or name decides; otherwise the file is
//! refused, since a guess could be wrong by a factor of 1,024.

use garden_memory::{Bytes, GIB, KIB, MIB, TIB};

use crate::error::{Error, UnitReading};
use crate::unit::Unit;

/// The least peak of a process worth watching; a Python interpreter alone takes a third of it.
const LEAST: f64 = 32.0 * MIB as f64;
/// The memory of the largest common machines, where nothing is known about the machine.
const COMMON: u64 = 4 * TIB;
/// The memory of the largest machines of all.
const LARGEST: u64 = 16 * TIB;
/// The highest number of GiB that anyone prints as such.
const MOST_GIB: f64 = 2048.0;
/// Resident memory in bytes is a whole number of pages.
const PAGE: f64 = 4096.0;
/// How far a value without a unit may lie from the values with one, as a factor.
const NEAR: f64 = 4.0;

/// The least peak of a process whose unit is known by convention: a Python interpreter that has loaded nothing.
const LEAST_KNOWN: f64 = 8.0 * MIB as f64;

/// What is known about the numbers of a column.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evidence {
    lowest: f64,
    highest: f64,
    whole: bool,
    pages: bool,
    /// The highest value that did state a unit, in bytes.
    stated: Option<f64>,
}

impl Default for Evidence {
    fn default() -> Self {
        Evidence { lowest: f64::INFINITY, highest: 0.0, whole: true, pages: true, stated: None }
    }
}

impl Evidence {
    /// Takes in a number without a unit.
    pub(crate) fn observe(&mut self, value: f64) {
        if value.is_finite() && value > 0.0 {
            self.lowest = self.lowest.min(value);
            self.highest = self.highest.max(value);
            self.whole &= value.fract() == 0.0;
            self.pages &= value % PAGE == 0.0;
        }
    }

    /// Takes in a value that states its unit, in bytes.
    pub(crate) fn observe_stated(&mut self, bytes: f64) {
        self.stated = Some(self.stated.map_or(bytes, |highest| highest.max(bytes)));
    }

    fn most(&self, unit: Unit) -> f64 {
        self.highest * unit.factor() as f64
    }

    fn least(&self, unit: Unit) -> f64 {
        self.lowest * unit.factor() as f64
    }

    /// Whether numbers are written like this in the unit at all.
    fn is_form_of(&self, unit: Unit) -> bool {
        match unit {
            Unit::Bytes | Unit::Kib => self.whole,
            Unit::Mib => true,
            // Numbers up to one may be shares of all memory.
            Unit::Gib => !self.whole && self.highest > 1.0 && self.highest <= MOST_GIB,
        }
    }

    fn is_possible(&self, unit: Unit, limit: u64) -> bool {
        // Whole pages of bytes, as psutil gives them, may be those of a small process.
        let least = if unit == Unit::Bytes && self.pages { LEAST_KNOWN } else { LEAST };
        self.is_form_of(unit) && (least..=limit as f64).contains(&self.most(unit))
    }

    /// Whether every value is a whole number of pages in bytes, which values in KiB hardly ever are.
    fn looks_like_pages(&self) -> bool {
        self.pages && self.lowest < self.highest
    }
}

/// Who wrote the numbers, and in which unit they write them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Convention {
    /// Nobody known.
    None,
    /// Always this unit; the text says who.
    Always(Unit, &'static str),
    /// The first of these that is possible; the text says who.
    Usually(&'static [Unit], &'static str),
}

/// What logs print: MB first of all, then what psutil and the kernel give.
pub(crate) const LOGS: Convention =
    Convention::Usually(&[Unit::Mib, Unit::Bytes, Unit::Kib, Unit::Gib], "logs usually print MiB");
/// What the kernel prints.
pub(crate) const KERNEL: Convention = Convention::Always(Unit::Kib, "the kernel's unit");
/// What `ps` prints.
pub(crate) const PS: Convention = Convention::Always(Unit::Kib, "the unit of `ps`");
/// What columns beside process ids usually hold.
pub(crate) const BESIDE_PIDS: Convention = Convention::Usually(&[Unit::Kib], "the unit of `ps`");
/// What psutil gives.
pub(crate) const PSUTIL: Convention = Convention::Usually(&[Unit::Bytes], "the unit of psutil");
/// What Prometheus stores.
pub(crate) const PROMETHEUS: Convention = Convention::Usually(&[Unit::Bytes], "the unit of Prometheus");

/// The unit of a column, and why.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Decision {
    pub(crate) unit: Unit,
    /// `, since as bytes it would be at most 7.25 MiB`, or nothing.
    pub(crate) why: String,
}

const ALL: [Unit; 4] = [Unit::Bytes, Unit::Kib, Unit::Mib, Unit::Gib];

/// Decides the unit of a column's numbers; `machine` is the memory of the machine that wrote or reads them.
pub(crate) fn decide(
    column: &str,
    evidence: &Evidence,
    convention: Convention,
    machine: Option<Bytes>,
) -> Result<Decision, Error> {
    if evidence.highest == 0.0 {
        return Ok(Decision { unit: Unit::Mib, why: String::new() });
    }
    let limit = machine.map_or(COMMON, |machine| machine.0);
    let larger = |most: f64| match machine {
        Some(machine) if most > machine.as_f64() => format!("; that is more than the {machine} of this machine"),
        _ => String::new(),
    };
    if let Some((unit, who)) = by_convention(evidence, convention, limit) {
        return Ok(Decision { unit, why: format!(", {who}{}", larger(evidence.most(unit))) });
    }
    let within = |limit: u64| ALL.into_iter().filter(|&unit| evidence.is_possible(unit, limit)).collect::<Vec<_>>();
    // A trace may come from a larger machine than this one.
    let tiers = [limit, COMMON, LARGEST].map(within);
    let possible = tiers.into_iter().find(|possible| !possible.is_empty()).unwrap_or_default();
    // A unit must not win only because this machine is somewhat smaller than the one that was recorded.
    let on_larger = within(limit.saturating_mul(2).min(limit.max(COMMON)));
    let possible = if possible.len() == 1 && on_larger.len() > 1 { on_larger } else { possible };
    let chosen = choose(&possible, evidence, convention);
    let (unit, why) = chosen.ok_or_else(|| refusal(column, evidence, &possible))?;
    let why = why.map_or_else(|| why_not_others(unit, evidence), |who| format!(", {who}"));
    Ok(Decision { unit, why: why + &larger(evidence.most(unit)) })
}

/// The unit of memory in use that is told by the machine's total beside it.
pub(crate) fn decide_by_total(evidence: &Evidence, total: f64, machine: Option<Bytes>) -> Option<Decision> {
    /// The least memory of a machine that trains anything.
    const LEAST_TOTAL: u64 = GIB;
    let factor = total_unit(total, Pages::Not, machine)?;
    let unit = ALL.into_iter().find(|unit| unit.factor() == factor)?;
    let bytes = Bytes::from_f64(total * factor as f64);
    let is_plausible = evidence.highest <= total && (LEAST_TOTAL..=LARGEST).contains(&bytes.0);
    is_plausible.then(|| Decision { unit, why: format!(", since the total beside it is then {bytes}") })
}

/// The unit by convention alone, before the size of this machine counts: the trace may come from a larger one.
fn by_convention(evidence: &Evidence, convention: Convention, limit: u64) -> Option<(Unit, &'static str)> {
    let (unit, who, least) = match convention {
        Convention::Always(unit, who) => (unit, who, 0.0),
        Convention::Usually(&[unit], who) => (unit, who, LEAST_KNOWN),
        _ => return None,
    };
    let most = evidence.most(unit);
    // What is resident is whole pages in bytes; whole pages of another unit are hardly ever seen.
    let is_bytes = most > limit as f64 && evidence.looks_like_pages() && evidence.is_possible(Unit::Bytes, limit);
    let contradicts = match unit {
        Unit::Bytes => !evidence.looks_like_pages(),
        _ => is_bytes,
    };
    let fits = evidence.is_form_of(unit) && (least..=COMMON as f64).contains(&most);
    (fits && !contradicts && evidence.stated.is_none()).then_some((unit, who))
}

/// The unit to use of the possible ones, and the convention that decided, if one did.
fn choose(possible: &[Unit], evidence: &Evidence, convention: Convention) -> Option<(Unit, Option<&'static str>)> {
    if let Some(stated) = evidence.stated {
        let near = |&&unit: &&Unit| (stated / NEAR..=stated * NEAR).contains(&evidence.most(unit));
        if let [one] = ALL.iter().filter(near).copied().collect::<Vec<_>>()[..] {
            return Some((one, Some("as the values with a unit suggest")));
        }
    }
    if let [one] = *possible {
        return Some((one, None));
    }
    if possible.contains(&Unit::Bytes) && evidence.looks_like_pages() && !prefers_mib(possible, convention) {
        return Some((Unit::Bytes, Some("since all values are whole pages of 4,096 bytes")));
    }
    match convention {
        Convention::Always(unit, who) => possible.contains(&unit).then_some((unit, Some(who))),
        Convention::Usually(units, who) => {
            units.iter().find(|unit| possible.contains(unit)).map(|&unit| (unit, Some(who)))
        }
        Convention::None => None,
    }
}

fn prefers_mib(possible: &[Unit], convention: Convention) -> bool {
    possible.contains(&Unit::Mib) && matches!(convention, Convention::Usually([Unit::Mib, ..], _))
}

/// Why the neighbouring units are not meant.
fn why_not_others(unit: Unit, evidence: &Evidence) -> String {
    let mut reasons = Vec::new();
    for other in ALL.into_iter().filter(|&other| other != unit && evidence.is_form_of(other)) {
        let (least, most) = (Bytes::from_f64(evidence.least(other)), Bytes::from_f64(evidence.most(other)));
        let is_smaller = other.factor() < unit.factor();
        let amount = match is_smaller {
            true => format!("at most {most}"),
            false if least.0 > GIB => format!("at least {least}"),
            false => format!("up to {most}"),
        };
        reasons.push((is_smaller, other.name(), amount));
    }
    // The units next to the chosen one are the ones that somebody may have meant.
    let below = reasons.iter().rfind(|(is_smaller, ..)| *is_smaller);
    let above = reasons.iter().find(|(is_smaller, ..)| !*is_smaller);
    match (below, above) {
        (Some((_, name, amount)), None) | (None, Some((_, name, amount))) => {
            format!(", since as {name} it would be {amount}")
        }
        (Some((_, name, amount)), Some((_, other, much))) => {
            format!(", since as {name} it would be {amount} and as {other} {much}")
        }
        (None, None) => String::new(),
    }
}

fn refusal(column: &str, evidence: &Evidence, possible: &[Unit]) -> Error {
    let candidates = if possible.is_empty() { ALL.to_vec() } else { possible.to_vec() };
    let readings = candidates.into_iter().map(|unit| UnitReading { unit, most: Bytes::from_f64(evidence.most(unit)) });
    Error::AmbiguousUnit {
        column: column.to_string(),
        example: evidence.highest,
        readings: readings.collect(),
        is_possible: !possible.is_empty(),
    }
}

/// The unit of a number beside the judged memory, whose own column is not worth a refusal.
pub(crate) fn bare_factor(value: f64) -> u64 {
    // Above this a number of MiB would be ten terabytes.
    const BYTES_ABOVE: f64 = 1e7;
    if value > BYTES_ABOVE && value.fract() == 0.0 { 1 } else { MIB }
}

/// What all figures of a machine's memory are multiples of; the kernel counts it in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pages {
    /// 4,096: bytes.
    OfBytes,
    /// 4: KiB.
    OfKib,
    Not,
}

impl Pages {
    /// Judges figures; none of them, or zeros alone, show nothing.
    pub(crate) fn of(figures: impl Iterator<Item = f64>) -> Pages {
        let (mut seen, mut bytes, mut kib) = (false, true, true);
        for figure in figures.filter(|figure| *figure != 0.0) {
            seen = true;
            bytes &= figure % PAGE == 0.0;
            kib &= figure % (PAGE / KIB as f64) == 0.0;
        }
        match () {
            _ if seen && bytes => Pages::OfBytes,
            _ if seen && kib => Pages::OfKib,
            _ => Pages::Not,
        }
    }
}

/// The factor in which a machine's total memory is written, or none if two of them fit.
///
/// Machines have 2 GiB to 2 TiB, so one factor fits; a smaller machine's total fits the factor below as well. Of bytes
/// and KiB the figures tell, but MiB of a small machine and GiB of a large one look alike.
pub(crate) fn total_unit(total: f64, pages: Pages, machine: Option<Bytes>) -> Option<u64> {
    /// The least memory of a machine that runs anything.
    const LEAST_MACHINE: f64 = 128.0 * MIB as f64;
    let known =
        |&factor: &u64| machine.is_some_and(|machine| (total * factor as f64 / machine.as_f64() - 1.0).abs() < 0.1);
    let fits = |&factor: &u64| (2.0 * GIB as f64..2.0 * TIB as f64).contains(&(total * factor as f64));
    let factors = [1, KIB, MIB, GIB];
    if let Some(factor) = factors.iter().copied().find(known) {
        return Some(factor);
    }
    let factor = factors.into_iter().find(fits).unwrap_or(KIB);
    let may_be_small = total * (factor / KIB) as f64 >= LEAST_MACHINE;
    match (factor, pages) {
        _ if !may_be_small => Some(factor),
        (KIB, Pages::OfBytes) => Some(1),
        (MIB, Pages::OfBytes | Pages::OfKib) => Some(KIB),
        (GIB, _) => None,
        _ => Some(factor),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decided(values: &[f64], convention: Convention, machine: Option<u64>) -> String {
        let mut evidence = Evidence::default();
        values.iter().for_each(|&value| evidence.observe(value));
        match decide("rss", &evidence, convention, machine.map(|gib| Bytes(gib * GIB))) {
            Ok(decision) => format!("{}{}", decision.unit.name(), decision.why),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn the_only_possible_unit_is_used() {
        let none = Convention::None;
        for (values, machine, expected) in [
            (
                &[4_000_000.0, 7_600_000.0][..],
                None,
                "KiB, since as bytes it would be at most 7.25 MiB and as MiB at least 3.81 TiB",
            ),
            (&[769_001.0], Some(64), "KiB, since as bytes it would be at most 751 KiB and as MiB at least 751 GiB"),
            (&[4000.0, 7600.0], None, "MiB, since as KiB it would be at most 7.42 MiB"),
            (&[5_697_961_984.0], None, "bytes, since as KiB it would be at least 5.31 TiB"),
            (&[5.5, 12.25], None, "GiB, since as MiB it would be at most 12.2 MiB"),
            (
                &[1e6, 6.1e6],
                Some(4),
                "KiB, since as bytes it would be at most 5.82 MiB and as MiB at least 977 GiB; that is more than the 4.00 GiB of this machine",
            ),
        ] {
            assert_eq!(decided(values, none, machine), expected, "{values:?}");
        }
    }

    #[test]
    fn several_possible_units_are_refused_unless_a_convention_decides() {
        let values = [769_001.0, 769_003.0];
        let refused = "column `rss` has no unit: 769003 may be KiB (751 MiB) or MiB (751 GiB)";
        assert_eq!(decided(&values, Convention::None, None), refused);
        assert_eq!(decided(&values, PS, None), "KiB, the unit of `ps`");
        assert_eq!(decided(&values, LOGS, None), "MiB, logs usually print MiB");
        assert_eq!(decided(&[20_001.0], KERNEL, Some(64)), "KiB, the kernel's unit");
        let larger = "KiB, the kernel's unit; that is more than the 31.0 GiB of this machine";
        assert_eq!(decided(&[47_185_920.0, 47_229_610.0], KERNEL, Some(31)), larger);
        assert_eq!(decided(&[18_432.0, 18_448.0], BESIDE_PIDS, Some(31)), "KiB, the unit of `ps`");
        assert_eq!(decided(&[18_874_368.0, 18_890_752.0], PSUTIL, Some(31)), "bytes, the unit of psutil");
        let pages = [524_288_000.0, 524_292_096.0];
        assert!(decided(&pages, BESIDE_PIDS, Some(31)).starts_with("bytes, since"));
        let refused = "column `rss` has no unit: 47229976 may be bytes (45.0 MiB) or KiB (45.0 GiB)";
        assert_eq!(decided(&[47_185_920.0, 47_229_976.0], Convention::None, Some(31)), refused);
        let pages = [2_147_483_648.0, 2_147_487_744.0];
        assert_eq!(decided(&pages, Convention::None, None), "bytes, since all values are whole pages of 4,096 bytes");
        let nothing = "column `rss` has no unit, and 12 fits none: 12 B, 12.0 KiB, 12.0 MiB or 12.0 GiB";
        assert_eq!(decided(&[11.0, 12.0], Convention::None, None), nothing);
    }

    #[test]
    fn a_total_tells_its_unit() {
        for (total, factor) in [(64_000.0, MIB), (65_536_000.0, KIB), (6.7e10, 1), (62.0, GIB), (24_105.0, MIB)] {
            assert_eq!(total_unit(total, Pages::Not, None), Some(factor), "{total}");
        }
        assert_eq!(total_unit(3_145_728.0, Pages::Not, Some(Bytes(3 * TIB))), Some(MIB));
        // A machine of 960 MiB, or one of 960 GiB.
        assert_eq!(total_unit(983_040.0, Pages::OfKib, None), Some(KIB));
        assert_eq!(total_unit(983_041.0, Pages::Not, None), Some(MIB));
        assert_eq!(total_unit(1_006_632_960.0, Pages::OfBytes, None), Some(1));
        assert_eq!(total_unit(1_006_632_960.0, Pages::OfKib, None), Some(KIB));
        assert_eq!(total_unit(961.0, Pages::Not, None), None);
        assert_eq!(total_unit(961.0, Pages::Not, Some(Bytes(GIB))), Some(MIB));
    }
}

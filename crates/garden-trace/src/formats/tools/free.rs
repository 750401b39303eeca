//! `free`, once or in a loop, with any of its units: `used` is judged, the second number after `Mem:`.
//!
//! The header names no unit, but the total tells it: machines have 2 GiB to 2 TiB, and smaller ones show by their figures
//! being whole pages. `used` leaves out caches since procps 3.3.10 (2014); the columns before that, `buffers` and `cached`,
//! are taken off it. A loop over machines or steps may write one of them in front of each row.

use garden_memory::{Bytes, GIB, Subject};

use super::{Claim, Family, Figure, Listen, Told, Tool};
use crate::ReadOptions;
use crate::error::{Error, UnitReading};
use crate::lines::HeadLine;
use crate::series::identity::{Identity, Who};
use crate::time::Stamp;
use crate::unit::rule::{Pages, total_unit};
use crate::unit::{Unit, factor_name};

pub(super) const FREE: Tool = Tool { name: "free", documented_as: "free", example: "free.txt" };

/// The tools of this file.
pub(in crate::formats) const FAMILY: Family =
    Family { tools: &[FREE], listen: |head| Box::new(Free::new(head.options, head.lines)) };

/// Reads the lines of `free`.
pub(super) struct Free {
    unit: Option<Unit>,
    machine: Option<Bytes>,
    /// What the figures of the head are multiples of.
    pages: Pages,
    caches: Caches,
    /// A total that two units fit.
    unclear: Option<f64>,
}

/// Whether `used` has the caches in it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Caches {
    LeftOut,
    Included,
    /// No header says it.
    Untold,
}

impl Listen for Free {
    fn refusal(&self) -> Option<Error> {
        let total = self.unclear?;
        let reading = |unit: Unit| UnitReading { unit, most: Bytes::from_f64(total * unit.factor() as f64) };
        let readings = vec![reading(Unit::Mib), reading(Unit::Gib)];
        Some(Error::AmbiguousUnit { column: "total".to_string(), example: total, readings, is_possible: true })
    }

    fn take(&mut self, line: &str, _: Option<Stamp>, told: &mut Vec<Told>) -> Claim {
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some(at) = words.iter().take(MOST_IN_FRONT + 1).position(|word| is_row_name(word)) else {
            return Claim::No;
        };
        let (front, figures) = (&words[..at], &words[at + 1..]);
        match words[at] {
            "total" if figures.starts_with(&["used", "free"]) => {
                self.caches = if figures.contains(&"cached") { Caches::Included } else { Caches::LeftOut };
                return Claim::Yes;
            }
            "Mem:" => {}
            "total" => return Claim::No,
            _ => {
                let is_figure = |word: &&str| Figure::parse(word).is_some() || word.starts_with("buffers");
                return if figures.iter().all(is_figure) { Claim::Yes } else { Claim::No };
            }
        }
        let figures: Option<Vec<Figure>> = figures.iter().map(|word| Figure::parse(word)).collect();
        let Some(figures @ [total, used, _, ..]) = figures.as_deref() else { return Claim::No };
        let bare = match self.unit {
            Some(unit) => unit.factor(),
            None => total_unit(total.value, self.pages, self.machine).unwrap_or_else(|| {
                self.unclear = self.unclear.or(Some(total.value).filter(|_| total.factor.is_none()));
                GIB
            }),
        };
        let bytes: Option<Vec<u64>> = figures.iter().map(|figure| figure.bytes(bare)).collect();
        let Some(bytes) = bytes else { return Claim::No };
        let caches = cached(&bytes, self.caches);
        let factor = used.factor.unwrap_or(bare);
        let column = if caches > 0 { "used - buffers - cached" } else { "used" };
        let level = bytes[1].saturating_sub(caches);
        let mut sample = Told::new(FREE, Subject::Machine, column, level, factor).of(machine_of(front));
        sample.limit = Some(bytes[0]);
        sample.note = rounding(*used, factor);
        sample.sample.step = step_of(front);
        told.push(sample);
        Claim::Yes
    }
}

impl Free {
    fn new(options: &ReadOptions, head: &[HeadLine]) -> Free {
        let words =
            head.iter().filter_map(|line| line.text.split_once("Mem:")).flat_map(|(_, row)| row.split_whitespace());
        let pages = Pages::of(words.filter_map(|word| word.parse::<f64>().ok()));
        Free { unit: options.unit, machine: options.machine, pages, caches: Caches::Untold, unclear: None }
    }
}

/// The caches that `used` has in it; without a header, it has where it and `free` together are all memory.
fn cached(bytes: &[u64], told: Caches) -> u64 {
    let [total, used, free, _, buffers, cached] = *bytes else { return 0 };
    let caches = buffers.saturating_add(cached);
    // Each figure is rounded by itself.
    let is_all = used.saturating_add(free).abs_diff(total) <= total / 1000;
    let is_included = match told {
        Caches::Included => true,
        Caches::LeftOut => false,
        Caches::Untold => is_all && buffers > 0 && caches < used,
    };
    if is_included { caches } else { 0 }
}

/// Words in front of a row: a host, or a step with its number and some name.
const MOST_IN_FRONT: usize = 4;

fn is_row_name(word: &str) -> bool {
    matches!(word, "Mem:" | "Swap:" | "Low:" | "High:" | "Total:" | "-/+" | "total")
}

/// The machine that a row is of: `pdsh` and loops over `ssh` write its name in front.
fn machine_of(front: &[&str]) -> Identity {
    match front {
        [host] if host.contains(char::is_alphabetic) && !is_axis(host) => {
            Identity::of(Who::Host, host.trim_matches([':', '[', ']', '|']))
        }
        _ => Identity::machine(),
    }
}

/// The step that a loop printed in front of a row.
fn step_of(front: &[&str]) -> Option<f64> {
    let at = front.iter().position(|word| is_axis(word))?;
    front.get(at + 1)?.trim_matches([':', ',', ']']).parse::<u32>().ok().map(f64::from)
}

/// Whether a word counts moments, as `step` or `iter12` do, so that it is no machine's name.
fn is_axis(word: &str) -> bool {
    let stem = word.trim_matches(|c: char| !c.is_alphabetic()).to_ascii_lowercase();
    matches!(stem.as_str(), "step" | "iter" | "iteration" | "epoch" | "run" | "t" | "i" | "sample")
}

/// What is lost where `free` prints few digits.
fn rounding(used: Figure, factor: u64) -> Option<String> {
    let flag = if used.factor.is_some() { "free -h" } else { "free -g" };
    (factor >= GIB).then(|| match used.decimals {
        0 => format!("`{flag}` rounds to 1 {}: small changes do not show", factor_name(factor)),
        _ => format!("`{flag}` rounds to 0.1 {}: small changes do not show", factor_name(factor)),
    })
}

//! `free`, once or in a loop, with any of its units: `used` is judged, the second number after `Mem:`.
//!
//! The header names no unit, but the total tells it: machines have 2 GiB to 2 TiB. `used` leaves out caches since procps
//! 3.3.10 (2014). A loop over machines or steps may write one of them in front of each row.

use garden_memory::{Bytes, GIB, Subject};

use super::{Claim, Figure, Told, Tool};
use crate::ReadOptions;
use crate::identity::{Identity, Who};
use crate::unit::{Unit, factor_name};
use crate::unit_rule::total_factor;

/// Reads the lines of `free`.
pub(super) struct Free {
    unit: Option<Unit>,
    machine: Option<Bytes>,
}

impl Free {
    pub(super) fn new(options: &ReadOptions) -> Free {
        Free { unit: options.unit, machine: options.machine }
    }

    pub(super) fn take(&self, line: &str, told: &mut Vec<Told>) -> Claim {
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some(at) = words.iter().take(MOST_IN_FRONT + 1).position(|word| is_row_name(word)) else {
            return Claim::No;
        };
        let (front, figures) = (&words[..at], &words[at + 1..]);
        match words[at] {
            "total" if figures.starts_with(&["used", "free"]) => return Claim::Yes,
            "Mem:" => {}
            "total" => return Claim::No,
            _ => {
                let is_figure = |word: &&str| Figure::parse(word).is_some() || word.starts_with("buffers");
                return if figures.iter().all(is_figure) { Claim::Yes } else { Claim::No };
            }
        }
        let figures: Option<Vec<Figure>> = figures.iter().map(|word| Figure::parse(word)).collect();
        let Some([total, used, _, ..]) = figures.as_deref() else { return Claim::No };
        let bare = self.unit.map_or_else(|| total_factor(total.value, self.machine), |unit| unit.factor());
        let (Some(limit), Some(bytes)) = (total.bytes(bare), used.bytes(bare)) else { return Claim::No };
        let factor = used.factor.unwrap_or(bare);
        let mut sample = Told::new(Tool::Free, Subject::Machine, "used", bytes, factor).of(machine_of(front));
        sample.limit = Some(limit);
        sample.note = rounding(*used, factor);
        sample.sample.step = step_of(front);
        told.push(sample);
        Claim::Yes
    }
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

//! `sar -r`: the machine's memory.
//!
//! Older versions count caches as used: there used and free memory add up to all of it, which the printed percentage tells, and the
//! caches are taken off again.

use garden_memory::{KIB, Subject};

use super::{Claim, Family, Listen, Told, Tool};
use crate::series::identity::Identity;
use crate::time::{Stamp, parse_moment};

pub(super) const SAR: Tool = Tool { name: "sar", documented_as: "sar", example: "sar.txt" };

/// The tools of this file.
pub(in crate::formats) const FAMILY: Family = Family { tools: &[SAR], listen: |_| Box::new(Sar::default()) };

/// How far the sum of used and free memory may be from the total that the percentage tells.
const SAME_TOTAL: f64 = 0.01;

/// Reads the rows below the header.
#[derive(Default)]
pub(super) struct Sar {
    names: Vec<String>,
    stamps: u64,
}

impl Listen for Sar {
    fn take(&mut self, line: &str, _: Option<Stamp>, told: &mut Vec<Told>) -> Claim {
        // `sadf -d` writes the same columns between semicolons, with the time in one of them.
        let is_database = line.contains(';');
        let words: Vec<&str> = match is_database {
            true => line.trim_start_matches(['#', ' ']).split(';').map(str::trim).collect(),
            false => line.split_whitespace().collect(),
        };
        if words.contains(&"kbmemused") && words.contains(&"kbmemfree") {
            self.names = words.iter().map(|word| word.to_string()).collect();
            return Claim::Yes;
        }
        if self.names.is_empty() || words.len() != self.names.len() {
            return Claim::No;
        }
        let get = |name: &str| {
            let at = self.names.iter().position(|known| known == name)?;
            words[at].replace(',', ".").parse::<f64>().ok()
        };
        let (Some(used), Some(free)) = (get("kbmemused"), get("kbmemfree")) else { return Claim::No };
        let total = get("%memused").filter(|&share| share > 0.0).map(|share| 100.0 * used / share);
        let counts_caches = total.is_some_and(|total| (used + free - total).abs() <= SAME_TOTAL * total);
        let caches = get("kbbuffers").unwrap_or(0.0) + get("kbcached").unwrap_or(0.0);
        let (used, column) = match counts_caches {
            true => (used - caches, "kbmemused - kbbuffers - kbcached"),
            false => (used, "kbmemused"),
        };
        let bytes = (used.max(0.0) * KIB as f64) as u64;
        let mut one = Told::new(SAR, Subject::Machine, column, bytes, KIB).of(Identity::machine());
        one.stamp = self.names.iter().position(|name| name == "timestamp").and_then(|at| self.stamp(words[at]));
        told.push(one);
        Claim::Yes
    }
}

impl Sar {
    fn stamp(&mut self, text: &str) -> Option<Stamp> {
        let moment = parse_moment(text)?;
        self.stamps += 1;
        Some(Stamp { time_s: moment.seconds, form: moment.form, number: self.stamps })
    }
}

//! Reading everybody's shares, a few processes at a time.
//!
//! Walking through all pages of a large tree at once would hold up the sampling and, one after the other, everybody in it. So a
//! round takes several samples. It counts only if the same processes were there, as the same programs, from its beginning to its
//! end: a fork that is not known yet has the pages too and makes everybody's share smaller than it is.

use std::collections::BTreeMap;

use crate::families::Earlier;
use crate::sharing::{Present, Reading};

/// Samples that a round takes at most. Up to so many processes, that is one process a sample.
const MOST_SAMPLES: usize = 8;

/// A round of reading shares.
#[derive(Debug)]
pub struct Round {
    set: Set,
    readings: BTreeMap<u32, Reading>,
    /// The counters when it began.
    pub earlier: Earlier,
}

/// Who was there: process id, start time and how many times it became another program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set(Vec<(u32, u64, u32)>);

impl Set {
    pub fn of(present: &[Present]) -> Set {
        Set(present.iter().map(|process| (process.pid, process.started, process.execs)).collect())
    }
}

impl Round {
    /// Begins a round among those who are there.
    pub fn new(present: &[Present], earlier: Earlier) -> Round {
        Round { set: Set::of(present), readings: BTreeMap::new(), earlier }
    }

    /// Whether the same are still there.
    pub fn is_of(&self, present: &[Present]) -> bool {
        self.set == Set::of(present)
    }

    /// Samples that a round among so many takes.
    pub fn samples(processes: usize) -> usize {
        processes.min(MOST_SAMPLES)
    }

    /// Who is to be read at this sample, of those who may be.
    pub fn next(&self, open: impl Iterator<Item = u32>) -> Vec<u32> {
        let count = self.set.0.len().div_ceil(MOST_SAMPLES);
        open.filter(|pid| !self.readings.contains_key(pid)).take(count).collect()
    }

    /// Takes in what was read at this sample.
    pub fn add(&mut self, readings: Vec<Reading>) {
        self.readings.extend(readings.into_iter().map(|reading| (reading.pid, reading)));
    }

    /// Everything that was read, once all those who may be read have been.
    pub fn finished(&self, present: &[Present], mut open: impl Iterator<Item = u32>) -> Option<Vec<Reading>> {
        if !open.all(|pid| self.readings.contains_key(&pid)) {
            return None;
        }
        let origin_of = |pid: u32| present.iter().find(|process| process.pid == pid)?.origin;
        let borrows = |reading: &Reading| {
            let origin = origin_of(reading.pid).and_then(|origin| self.readings.get(&origin));
            origin.is_some_and(|origin| reading.is_same_memory(origin))
        };
        Some(self.readings.values().map(|reading| Reading { is_borrowed: borrows(reading), ..*reading }).collect())
    }
}

/// Whether a child of one of them came and went between two looks: it had the same pages for a while.
pub fn had_visitors(before: &[Present], after: &[Present]) -> bool {
    let faults = |present: &[Present]| present.iter().map(|process| process.faults_of_children).collect::<Vec<_>>();
    faults(before) != faults(after)
}

//! Reads the shares of all processes, a few at a time.
//!
//! Walking all pages of a large tree at once would delay the sampling and, one after the other, the processes. So a round
//! takes several samples. It counts only if the same processes ran the same programs from its beginning to its end: an
//! unknown fork has the pages too and makes all shares too small.

use std::collections::BTreeMap;

use crate::families::Earlier;
use crate::sharing::{Present, Reading};

/// Most samples of a round. Up to this many processes, each sample reads one.
const MOST_SAMPLES: usize = 8;

/// A round of reading shares.
#[derive(Debug)]
pub struct Round {
    set: Set,
    readings: BTreeMap<u32, Reading>,
    /// The counters at its beginning.
    pub earlier: Earlier,
}

/// The processes present: process id, start time and number of `exec` calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set(Vec<(u32, u64, u32)>);

impl Set {
    pub fn of(present: &[Present]) -> Set {
        Set(present.iter().map(|process| (process.pid, process.started, process.execs)).collect())
    }
}

impl Round {
    /// Begins a round over the present processes.
    pub fn new(present: &[Present], earlier: Earlier) -> Round {
        Round { set: Set::of(present), readings: BTreeMap::new(), earlier }
    }

    /// Whether the same processes are still present.
    pub fn is_of(&self, present: &[Present]) -> bool {
        self.set == Set::of(present)
    }

    /// The number of samples in a round over `processes` processes.
    pub fn samples(processes: usize) -> usize {
        processes.min(MOST_SAMPLES)
    }

    /// The processes to read at this sample, of the readable ones.
    pub fn next(&self, open: impl Iterator<Item = u32>) -> Vec<u32> {
        let count = self.set.0.len().div_ceil(MOST_SAMPLES);
        open.filter(|pid| !self.readings.contains_key(pid)).take(count).collect()
    }

    /// Takes in the readings of this sample.
    pub fn add(&mut self, readings: Vec<Reading>) {
        self.readings.extend(readings.into_iter().map(|reading| (reading.pid, reading)));
    }

    /// All readings, once all readable processes have been read.
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

/// Whether a child of a process came and went between two looks: it had the same pages for a while.
pub fn had_visitors(before: &[Present], after: &[Present]) -> bool {
    let faults = |present: &[Present]| present.iter().map(|process| process.faults_of_children).collect::<Vec<_>>();
    faults(before) != faults(after)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Shares;
    use crate::sharing::Kinds;

    fn present(count: u32) -> Vec<Present> {
        let process = |pid: u32| Present {
            pid,
            started: 1,
            parent: 1,
            origin: (pid > 10).then_some(10),
            image: 7,
            execs: 0,
            held: Kinds::default(),
            faulted: 0,
            faults_of_children: 0,
        };
        (10..10 + count).map(process).collect()
    }

    fn read(pids: Vec<u32>) -> Vec<Reading> {
        let shares = |pid: u32| Shares { pss: u64::from(pid), ..Shares::default() };
        let reading = |pid| Reading { pid, held: Kinds::default(), shares: shares(pid), is_borrowed: false };
        pids.into_iter().map(reading).collect()
    }

    /// The number of samples in a round, and the most processes read at one of them.
    fn course(count: u32) -> (usize, usize) {
        let present = present(count);
        let pids = || present.iter().map(|process| process.pid);
        let mut round = Round::new(&present, Earlier::default());
        let (mut samples, mut most) = (0, 0);
        while round.finished(&present, pids()).is_none() {
            let next = round.next(pids());
            most = most.max(next.len());
            samples += 1;
            round.add(read(next));
        }
        (samples, most)
    }

    #[test]
    fn one_process_a_sample_and_at_most_eight_samples() {
        assert_eq!((course(2), course(8), course(16), course(17)), ((2, 1), (8, 1), (8, 2), (6, 3)));
    }

    #[test]
    fn a_round_is_of_the_same_processes_as_the_same_programs() {
        let before = present(3);
        let round = Round::new(&before, Earlier::default());
        assert!(round.is_of(&before) && !round.is_of(&before[..2]) && !round.is_of(&present(4)));
        let mut after = before.clone();
        after[1].execs = 1;
        assert!(!round.is_of(&after));
        after = before.clone();
        after[2].started = 2;
        assert!(!round.is_of(&after));
    }

    #[test]
    fn a_child_that_came_and_went_is_noticed() {
        let before = present(3);
        let mut after = before.clone();
        assert!(!had_visitors(&before, &after));
        after[0].faults_of_children = 5;
        assert!(had_visitors(&before, &after));
    }
}

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
#[derive(Clone, Debug)]
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
        let mut next = self.rest(open);
        next.truncate(self.set.0.len().div_ceil(MOST_SAMPLES));
        next
    }

    /// The processes that are still to be read.
    pub fn rest(&self, open: impl Iterator<Item = u32>) -> Vec<u32> {
        open.filter(|pid| !self.readings.contains_key(pid)).collect()
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

/// Whether a process ended or called `exec` between two looks, or a child came and went: it had the same pages for a while.
pub fn has_lost_one(before: &[Present], after: &[Present]) -> bool {
    let known = |process: &Present| (process.started, process.execs, process.faults_of_children);
    let now = |pid: u32| after.binary_search_by_key(&pid, |process| process.pid).ok().map(|at| known(&after[at]));
    before.iter().any(|process| now(process.pid) != Some(known(process)))
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
    fn an_end_is_noticed_even_of_a_child_that_came_and_went() {
        let before = present(3);
        assert!(!has_lost_one(&before, &before) && !has_lost_one(&before, &present(4)));
        assert!(has_lost_one(&before, &before[1..]));
        let mut after = before.clone();
        after[0].faults_of_children = 5;
        assert!(has_lost_one(&before, &after));
        after = before.clone();
        after[0].execs = 1;
        assert!(has_lost_one(&before, &after));
    }
}

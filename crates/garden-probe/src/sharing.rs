//! Page sharing: the part of a process's memory that is its own, and the excess in the sum of the counters.
//!
//! Processes share pages, and each one's counters count them. The excess is the part of the sum that is counted more than
//! once. It is known exactly only when the PSS is read, which walks every page. In between it is carried on by what is
//! known about forks: a new fork shares all its pages with the process it came from, a process that exits or calls `exec`
//! takes its shared pages out, and no process shares more than it holds. For S bytes shared by n processes the excess is
//! (n - 1) S, so each process that leaves takes S off, whichever it is. The excess covers file pages and shared memory
//! only: a tree's anonymous memory, which the kernel cannot reclaim, is bounded instead (see `families`).

use std::collections::BTreeMap;

use crate::process::{Memory, Shares};

/// Resident bytes by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds {
    pub anon: u64,
    pub file: u64,
    pub shmem: u64,
}

impl From<&Memory> for Kinds {
    fn from(memory: &Memory) -> Kinds {
        Kinds { anon: memory.anon, file: memory.file, shmem: memory.shmem }
    }
}

impl Kinds {
    pub fn total(self) -> u64 {
        self.anon + self.file + self.shmem
    }

    /// Without anonymous memory.
    pub fn mapped(self) -> Kinds {
        Kinds { anon: 0, ..self }
    }

    /// The difference, nowhere below zero.
    pub fn less(self, other: Kinds) -> Kinds {
        self.zip(other, u64::saturating_sub)
    }

    pub fn plus(self, other: Kinds) -> Kinds {
        self.zip(other, u64::saturating_add)
    }

    fn min(self, other: Kinds) -> Kinds {
        self.zip(other, u64::min)
    }

    fn max(self, other: Kinds) -> Kinds {
        self.zip(other, u64::max)
    }

    fn zip(self, other: Kinds, of: impl Fn(u64, u64) -> u64) -> Kinds {
        Kinds { anon: of(self.anon, other.anon), file: of(self.file, other.file), shmem: of(self.shmem, other.shmem) }
    }

    /// Bytes spread over the kinds in proportion to `weights`, but nowhere more than `self`.
    fn spread(self, bytes: u64, weights: Kinds) -> Kinds {
        let all = u128::from(weights.total().max(1));
        let part = |weight: u64| (u128::from(bytes) * u128::from(weight) / all) as u64;
        let mut spread =
            Kinds { anon: part(weights.anon), file: part(weights.file), shmem: part(weights.shmem) }.min(self);
        // The rest goes where it fits, files last: they weigh too much, since unrelated programs map the same libraries.
        let mut rest = bytes - spread.total().min(bytes);
        let places = [(&mut spread.anon, self.anon), (&mut spread.shmem, self.shmem), (&mut spread.file, self.file)];
        for (place, room) in places {
            let more = rest.min(room - *place);
            *place += more;
            rest -= more;
        }
        spread
    }
}

/// A process at one sample.
#[derive(Clone, Copy, Debug)]
pub struct Present {
    pub pid: u32,
    /// Its start time, which tells it from a later process with the same id.
    pub started: u64,
    /// Its parent's id when it was found.
    pub parent: u32,
    /// The process of the tree that it was forked from, unless it has called `exec` since.
    pub origin: Option<u32>,
    /// An identifier that it shares with its forks only; zero if unknown.
    pub image: u64,
    /// The number of `exec` calls seen.
    pub execs: u32,
    /// Its memory by the counters.
    pub held: Kinds,
    /// The most that its page faults so far can have brought, apart from huge pages.
    pub faulted: u64,
    /// Page faults of its ended children.
    pub faults_of_children: u64,
}

/// A process's shares and its counters at about the same moment.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    pub pid: u32,
    pub held: Kinds,
    pub shares: Shares,
    /// Whether it runs in its origin's address space, as between `vfork` and `exec`, which page walks do not see as sharing.
    pub is_borrowed: bool,
}

impl Reading {
    /// PSS by kind; kernels before 5.9 give the sum only, which is then split like the counters.
    pub fn pss(&self) -> Kinds {
        let shares = &self.shares;
        let kinds = Kinds { anon: shares.pss_anon, file: shares.pss_file, shmem: shares.pss_shmem };
        if kinds.total() == 0 { self.held.spread(shares.pss, self.held) } else { kinds }
    }

    /// Whether two processes run in the same address space.
    pub fn is_same_memory(&self, other: &Reading) -> bool {
        self.shares == other.shares && self.shares.private > self.shares.shared
    }
}

/// The page sharing in a tree.
#[derive(Clone, Debug, Default)]
pub struct Sharing {
    excess: Kinds,
    parts: BTreeMap<u32, Part>,
}

/// The sharing of one process.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    shared: Kinds,
    origin: Option<u32>,
    execs: u32,
    /// Whether its shares have been read since it was forked; until then they are assumed.
    is_read: bool,
}

impl Sharing {
    /// File pages and shared memory that the sum of the counters counts more than once.
    pub fn excess(&self) -> Kinds {
        self.excess
    }

    /// Bytes that a process adds to the tree: all it holds or, for a fork whose origin is present, the part it does not share.
    pub fn own(&self, pid: u32, held: u64) -> u64 {
        let fork = self.parts.get(&pid).filter(|part| part.origin.is_some());
        fork.map_or(held, |part| held.saturating_sub(part.shared.total()))
    }

    /// File pages and shared memory that unrelated programs may have in common, while some of them are unread.
    ///
    /// Forks are assumed to share such pages with their origins, so only processes that are not forks count, except the one
    /// with most of them.
    pub fn unread_strangers(&self, present: &[Present]) -> u64 {
        let is_unread = |process: &&Present| self.parts.get(&process.pid).is_none_or(|part| !part.is_read);
        let strangers = || present.iter().filter(|process| process.origin.is_none());
        if strangers().all(|process| !is_unread(&process)) {
            return 0;
        }
        let (sum, most) = strangers().fold((0, 0), |(sum, most), process| {
            let mapped = process.held.mapped().total();
            (sum + mapped, mapped.max(most))
        });
        sum - most
    }

    /// Takes in the present processes, in the order of their ids.
    pub fn follow(&mut self, present: &[Present]) {
        let find = |pid: u32| present.binary_search_by_key(&pid, |process| process.pid).ok().map(|at| present[at]);
        let gone: Vec<u32> = self.parts.keys().copied().filter(|&pid| find(pid).is_none()).collect();
        gone.into_iter().for_each(|pid| self.leave(pid));
        let mut new = Vec::new();
        for process in present {
            match self.parts.get(&process.pid) {
                Some(part) if part.execs == process.execs => {}
                Some(_) => {
                    self.leave(process.pid);
                    self.parts.insert(process.pid, Part { execs: process.execs, ..Part::default() });
                }
                None => {
                    let origin = process.origin.filter(|&pid| pid != process.pid && find(pid).is_some());
                    new.push(process.pid);
                    self.parts.insert(process.pid, Part { origin, execs: process.execs, ..Part::default() });
                }
            }
            self.limit(process.pid, process.held);
        }
        for process in present {
            let origin = self.parts.get(&process.pid).and_then(|part| part.origin).and_then(find);
            if let Some(origin) = origin {
                self.assume(process, &origin, new.contains(&process.pid));
            }
        }
        if present.len() == 1 {
            self.excess = Kinds::default();
            self.parts.values_mut().for_each(|part| part.shared = Kinds::default());
        }
    }

    /// Takes in readings. Processes that could not be read keep their assumed shares.
    pub fn learn(&mut self, readings: &[Reading]) {
        let mut unread = self.parts.clone();
        let (mut held, mut proportional) = (Kinds::default(), Kinds::default());
        for reading in readings {
            let Some(part) = self.parts.get_mut(&reading.pid) else { continue };
            if reading.is_borrowed {
                continue;
            }
            let pss = reading.pss();
            held = held.plus(reading.held.mapped());
            proportional = proportional.plus(pss.mapped());
            part.shared = reading.held.spread(reading.shares.shared, reading.held.less(pss));
            part.is_read = true;
            unread.remove(&reading.pid);
        }
        let assumed = unread.values().filter(|part| part.origin.is_some()).map(|part| part.shared.mapped());
        self.excess = assumed.fold(held.less(proportional), Kinds::plus);
    }

    /// Limits the sharing of a process to what it holds: memory given back is no longer shared.
    fn limit(&mut self, pid: u32, held: Kinds) {
        if let Some(part) = self.parts.get_mut(&pid) {
            self.excess = self.excess.less(part.shared.less(held).mapped());
            part.shared = part.shared.min(held);
        }
    }

    /// Assumes that a new fork shares all its pages with its origin.
    ///
    /// A fork does not inherit the page tables of files and shared memory and fills them in later, so until shares are read,
    /// such pages too count as shared with the origin, up to as many as the origin has.
    fn assume(&mut self, process: &Present, origin: &Present, is_new: bool) {
        let Some(part) = self.parts.get_mut(&process.pid).filter(|part| !part.is_read) else { return };
        let common = process.held.min(origin.held);
        let assumed = Kinds { anon: if is_new { common.anon } else { 0 }, ..common };
        let shared = part.shared.max(assumed);
        self.excess = self.excess.plus(shared.less(part.shared).mapped());
        part.shared = shared;
        // No more than the origin holds: memory it has given back since was taken off the excess already.
        if let Some(part) = self.parts.get_mut(&origin.pid) {
            part.shared = part.shared.max(assumed);
        }
    }

    /// Removes a process that has exited or called `exec`.
    fn leave(&mut self, pid: u32) {
        let Some(part) = self.parts.remove(&pid) else { return };
        self.excess = self.excess.less(part.shared.mapped());
        // Its forks still share with each other: they now count as forks of its own origin, or of the first of them.
        let mut forks: Vec<u32> =
            self.parts.iter().filter(|(_, other)| other.origin == Some(pid)).map(|(&pid, _)| pid).collect();
        let heir = part.origin.or_else(|| (!forks.is_empty()).then(|| forks.remove(0)));
        let Some(heir) = heir else { return };
        for (&other, part) in &mut self.parts {
            if part.origin == Some(pid) {
                part.origin = Some(heir).filter(|&heir| heir != other);
            }
        }
    }
}

#[cfg(test)]
#[path = "sharing_tests.rs"]
mod tests;

//! Samples a process tree: counters each time, shares when they are due.
//!
//! Forked processes share pages, and their counters count a shared page once for each of them. Proportional shares count it
//! once in all, but reading them walks through every page. So shares are read as often as a budget allows, and in between
//! the difference that sharing made at the last reading is taken off the sum of the counters.

use std::io;
use std::time::{Duration, Instant};

use garden_memory::{Quantity, Sample};

use crate::process::{Identity, Memory, Shares};
use crate::role::Role;
use crate::tree::Tree;

/// Share of the time that may be spent on reading shares: one in two thousand.
const SHARES_BUDGET: f64 = 0.0005;
/// Shares are not read more often than this, however cheap.
const SHARES_PAUSE: Duration = Duration::from_secs(5);

/// Samples a process tree.
#[derive(Debug)]
pub struct Sampler {
    tree: Tree,
    shares_due: Instant,
    /// What sharing took off the sums when shares were last read.
    correction: Correction,
    /// Processes whose memory could not be read, in all samples so far.
    failed: u64,
}

/// Bytes that the sums of the counters count more than once.
#[derive(Clone, Copy, Debug, Default)]
struct Correction {
    anon: i64,
    file: i64,
    shmem: i64,
    private: u64,
    shared: u64,
    is_known: bool,
}

/// One process's part of a sample.
#[derive(Clone, Debug)]
pub struct ProcessSample {
    /// Who it is.
    pub identity: Identity,
    /// What it is for.
    pub role: Role,
    /// What it holds.
    pub memory: Memory,
}

/// One reading of a whole tree.
#[derive(Clone, Debug, Default)]
pub struct TreeSample {
    /// Every process that was there.
    pub processes: Vec<ProcessSample>,
    /// The tree's totals, each page counted once as far as shares are known.
    pub total: Sample,
}

impl Sampler {
    /// Begins to sample a process and its descendants.
    pub fn of(pid: u32) -> io::Result<Sampler> {
        let tree = Tree::of(pid)?;
        Ok(Sampler { tree, shares_due: Instant::now(), correction: Correction::default(), failed: 0 })
    }

    /// The process that the tree began with.
    pub fn root(&self) -> &Identity {
        self.tree.root()
    }

    /// Readings that failed so far.
    pub fn failed(&self) -> u64 {
        self.failed
    }

    /// Reads the tree; `None` once no process is left.
    pub fn sample(&mut self) -> Option<TreeSample> {
        self.tree.look();
        let mut processes = Vec::new();
        let mut gone = Vec::new();
        for member in self.tree.members() {
            match member.process.memory() {
                Ok(Some(memory)) => {
                    let identity = member.process.identity.clone();
                    processes.push(ProcessSample { identity, role: member.role(), memory });
                }
                // A zombie holds nothing but its entry.
                Ok(None) => {}
                Err(_) => gone.push(member.process.identity.pid),
            }
        }
        for pid in gone {
            self.tree.remove(pid);
        }
        if processes.is_empty() {
            return None;
        }
        if processes.len() > 1 && Instant::now() >= self.shares_due {
            self.read_shares(&processes);
        }
        let total = self.total(&processes);
        Some(TreeSample { processes, total })
    }

    /// Reads how pages are shared, and when that may be done again.
    fn read_shares(&mut self, processes: &[ProcessSample]) {
        let begin = Instant::now();
        let mut sum = Shares::default();
        let mut counted = Memory::default();
        for member in self.tree.members() {
            let pid = member.process.identity.pid;
            let Some(sample) = processes.iter().find(|sample| sample.identity.pid == pid) else { continue };
            match member.process.shares() {
                Ok(shares) => {
                    sum.pss_anon += shares.pss_anon;
                    sum.pss_file += shares.pss_file;
                    sum.pss_shmem += shares.pss_shmem;
                    sum.private += shares.private;
                    sum.shared += shares.shared;
                    counted.anon += sample.memory.anon;
                    counted.file += sample.memory.file;
                    counted.shmem += sample.memory.shmem;
                }
                // Gone meanwhile, or not ours to look at.
                Err(_) => self.failed += 1,
            }
        }
        let excess = |counted: u64, shared_out: u64| counted as i64 - shared_out as i64;
        self.correction = Correction {
            anon: excess(counted.anon, sum.pss_anon),
            file: excess(counted.file, sum.pss_file),
            shmem: excess(counted.shmem, sum.pss_shmem),
            private: sum.private,
            shared: sum.shared,
            is_known: true,
        };
        let spent = begin.elapsed();
        self.shares_due = begin + SHARES_PAUSE.max(spent.div_f64(SHARES_BUDGET));
    }

    fn total(&self, processes: &[ProcessSample]) -> Sample {
        let sum = |of: fn(&Memory) -> u64| processes.iter().map(|p| of(&p.memory)).sum::<u64>();
        let once = |bytes: u64, excess: i64| bytes.saturating_add_signed(-excess);
        // A single process shares with nobody that is watched here.
        let correction = if processes.len() > 1 { self.correction } else { Correction::default() };
        let anon = once(sum(|m| m.anon), correction.anon);
        let file = once(sum(|m| m.file), correction.file);
        let shmem = once(sum(|m| m.shmem), correction.shmem);
        let mut total = Sample::default();
        total.set(Quantity::Rss, anon + file + shmem);
        total.set(Quantity::Anon, anon);
        total.set(Quantity::File, file);
        total.set(Quantity::Shmem, shmem);
        total.set(Quantity::Swap, sum(|m| m.swap));
        if correction.is_known {
            total.set(Quantity::Private, correction.private);
            total.set(Quantity::Shared, correction.shared);
        }
        total
    }
}

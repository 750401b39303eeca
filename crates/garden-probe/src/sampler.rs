//! Samples a process tree: counters each time, shares and GPUs when due, and the tree's surroundings.
//!
//! Forked processes share pages, and their counters count a shared page once for each of them. PSS counts it once in all,
//! but reading it walks every page. So the counters give bounds (see `families`), and shares are read, a few processes a
//! sample (see `round`) and within a budget, only where the bounds are too far apart to be a measurement.
//!
//! Shares count only if nobody unseen had the pages: neither a fork under way (see `forks`), nor a process that has just
//! ended. So readings are pending until all forks that may have been under way are over and their children would be seen.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use garden_memory::{Libraries, MIB, Quantity, Sample};

use crate::families::{Bounds, Families};
use crate::forks::Forks;
use crate::gpu::{GpuSample, Gpus};
use crate::huge::Faults;
use crate::libraries::{Coded, Loaded};
use crate::machine::{MachineMemory, MachineProbe};
use crate::process::{Identity, Memory, Process, Shares, has_bit};
use crate::role::Role;
use crate::round::{Round, Set, has_lost_one};
use crate::sharing::{Kinds, Present, Reading, Sharing};
use crate::time_budget::{Stopwatch, TimeBudget};
use crate::tree::Tree;

/// Share of the time that may be spent on reading shares: one in five thousand.
const SHARES_BUDGET: f64 = 0.0002;
/// Time that may be spent on shares beyond that, and is saved up again: two rounds of sixteen processes of 2 GiB each, at
/// 10 ms per GiB.
const SHARES_SAVINGS: Duration = Duration::from_millis(640);
/// Share of the time that may be spent on shares while there are savings: one in ten.
const SHARES_BURST: f64 = 0.1;
/// Share of the time that may be spent on shares when a decision depends on them: one in twenty.
const DECISION_BUDGET: f64 = 0.05;
/// Share of the time that may be spent on reading GPUs: one in a thousand.
const GPU_BUDGET: f64 = 0.001;
/// A process whose counter moves by more than this during a page walk says nothing about the counter's error.
const STANDS_STILL: u64 = MIB;

/// For this long after its end, a process's pages may still be there: whoever reads its memory keeps them, as `ps` and other
/// watchers do, and on a busy machine that takes as long as the reader waits for a processor.
const LINGERS: Duration = Duration::from_millis(500);

/// Readings that count once no fork can have been under way while they were made.
#[derive(Debug)]
struct Pending {
    readings: Vec<Reading>,
    forks: Forks,
    /// The families as they are if the readings count.
    families: Families,
    /// The readings of the whole round if these are the last ones.
    finished: Option<Vec<Reading>>,
}

/// The processes whose shares to read at once.
#[derive(Clone, Copy)]
enum Portion {
    Next,
    Rest,
}

/// Samples a process tree.
#[derive(Debug)]
pub struct Sampler {
    tree: Tree,
    present: Vec<Present>,
    sharing: Sharing,
    families: Families,
    faults: Faults,
    round: Option<Round>,
    pending: Option<Pending>,
    /// When a process of the tree was last found to have ended or called `exec`.
    ended: Option<Instant>,
    shares_pace: TimeBudget,
    decision_pace: TimeBudget,
    /// Private and shared pages, summed, if all shares were read for the present sample.
    private_and_shared: Option<(u64, u64)>,
    /// Processes whose shares we may not read, with their start times.
    closed: HashSet<(u32, u64)>,
    zombies: Vec<u32>,
    loaded: Loaded,
    surroundings: MachineProbe,
    gpus: Option<Gpus>,
    gpu_pace: TimeBudget,
    gpu: GpuSample,
    /// Readings that failed so far.
    failed: u64,
    counter_error: u64,
}

/// One process's part of a sample.
#[derive(Clone, Debug)]
pub struct ProcessSample {
    /// Its identity.
    pub identity: Identity,
    /// Its role.
    pub role: Role,
    /// Its memory.
    pub memory: Memory,
    /// Bytes it adds to the tree: its whole resident set or, for a fork, the part not shared with the tree.
    pub own: u64,
    /// Its GPU memory in bytes; `None` if it uses none or that is unknown.
    pub gpu: Option<u64>,
    caught: u64,
}

impl ProcessSample {
    /// Whether it caught a signal, at this reading or a few seconds before.
    pub fn caught(&self, signal: i32) -> bool {
        has_bit(self.caught, signal)
    }
}

/// One reading of a whole tree.
#[derive(Clone, Debug, Default)]
pub struct TreeSample {
    /// The processes present, by process id.
    pub processes: Vec<ProcessSample>,
    /// The tree's totals, each page counted once as far as shares are known.
    pub total: Sample,
    /// The tree's surroundings.
    pub around: MachineMemory,
    /// The libraries that its processes have loaded.
    pub libraries: Arc<Libraries>,
}

impl Sampler {
    /// Begins to sample a process and its descendants.
    pub fn of(pid: u32) -> io::Result<Sampler> {
        Ok(Sampler {
            tree: Tree::of(pid)?,
            present: Vec::new(),
            sharing: Sharing::default(),
            families: Families::default(),
            faults: Faults::new(),
            round: None,
            pending: None,
            ended: None,
            shares_pace: TimeBudget::new(SHARES_BUDGET).with_savings(SHARES_SAVINGS, SHARES_BURST),
            decision_pace: TimeBudget::new(DECISION_BUDGET),
            private_and_shared: None,
            closed: HashSet::new(),
            zombies: Vec::new(),
            loaded: Loaded::new(),
            surroundings: MachineProbe::of(pid),
            gpus: Gpus::open(),
            gpu_pace: TimeBudget::new(GPU_BUDGET),
            gpu: GpuSample::default(),
            failed: 0,
            counter_error: 0,
        })
    }

    /// The root process of the tree.
    pub fn root(&self) -> &Identity {
        self.tree.root()
    }

    /// Makes the children of this process part of the tree: it adopts orphans, even those that left the session.
    pub fn set_guardian(&mut self, pid: u32) {
        self.tree.set_guardian(pid);
    }

    /// Ended processes of the tree that their present parent has not waited for yet.
    pub fn zombies(&self) -> &[u32] {
        &self.zombies
    }

    /// Readings that failed so far: processes whose shares we may not read, each counted once.
    pub fn failed(&self) -> u64 {
        self.failed
    }

    /// The largest error of a process's counter seen so far, in bytes: its distance from the result of a page walk. Zero until
    /// shares have been read.
    pub fn counter_error(&self) -> u64 {
        self.counter_error
    }

    /// Reads the tree; `None` once no process is left.
    pub fn sample(&mut self) -> Option<TreeSample> {
        let before = Set::of(&self.present);
        let mut processes = self.look();
        // While processes come and go, no round would end.
        if before == Set::of(&self.present) && self.wants_shares() && self.may_read_shares() && self.can_read_shares() {
            let begin = Stopwatch::start();
            processes = self.read_shares(Portion::Next);
            self.shares_pace.computed(&begin);
        }
        self.put_together(processes)
    }

    /// Reads the tree and, if only bounds of its memory are known, all shares at once, because a decision depends on them.
    ///
    /// `None` once no process is left, if the bounds are close anyway, or if shares may not be read now or were read too much.
    pub fn measure(&mut self) -> Option<TreeSample> {
        if self.bounds().are_close() || !self.decision_pace.is_due() || !self.may_read_shares() {
            return None;
        }
        let begin = Stopwatch::start();
        let mut processes = self.look();
        if self.may_read_shares() {
            self.round = None;
            processes = self.read_shares(Portion::Rest);
        }
        self.decision_pace.computed(&begin);
        self.put_together(processes)
    }

    fn put_together(&mut self, mut processes: Vec<ProcessSample>) -> Option<TreeSample> {
        if processes.is_empty() {
            return None;
        }
        self.ask_gpus();
        for process in &mut processes {
            let pid = process.identity.pid;
            let gpu = self.gpu.by_process.binary_search_by_key(&pid, |&(pid, _)| pid);
            process.gpu = gpu.ok().map(|at| self.gpu.by_process[at].1);
            process.own = self.sharing.own(pid, process.memory.rss);
        }
        name_launchers(&mut processes);
        let around = self.surroundings.look();
        let total = self.total(&processes, &around);
        // Measured for this sample only.
        self.private_and_shared = None;
        let coded = |process: &ProcessSample| {
            let Identity { pid, started, image, .. } = process.identity;
            Coded { pid, started, image, code: process.memory.code }
        };
        self.loaded.look(&processes.iter().map(coded).collect::<Vec<_>>());
        Some(TreeSample { processes, total, around, libraries: Arc::clone(self.loaded.libraries()) })
    }

    /// Finds new processes, reads all counters, and takes in the pending readings if they count.
    fn look(&mut self) -> Vec<ProcessSample> {
        // In this order: the child of a fork that is over is listed.
        match &mut self.pending {
            Some(pending) => {
                pending.forks.look();
                self.tree.list();
            }
            None => self.tree.look(),
        }
        let processes = self.read_counters();
        self.settle();
        processes
    }

    /// Reads every process's counters and follows which processes came and went.
    fn read_counters(&mut self) -> Vec<ProcessSample> {
        let (mut processes, mut gone) = (Vec::new(), Vec::new());
        let before = (std::mem::take(&mut self.present), std::mem::take(&mut self.zombies));
        let mut has_ended = false;
        for member in self.tree.members() {
            match member.process.memory() {
                Ok(Some(memory)) => {
                    let identity = member.process.identity.clone();
                    self.present.push(Present {
                        pid: identity.pid,
                        started: identity.started,
                        parent: identity.parent,
                        origin: member.origin(),
                        image: identity.image,
                        execs: member.process.execs(),
                        held: Kinds::from(&memory),
                        faulted: self.faults.bytes(memory.faults),
                        faults_of_children: memory.faults_of_children,
                    });
                    let (role, caught) = (member.role(), member.process.caught());
                    processes.push(ProcessSample { identity, role, memory, own: memory.rss, gpu: None, caught });
                }
                // A zombie has nothing but its process table entry.
                Ok(None) => {
                    self.zombies.push(member.process.identity.pid);
                    has_ended |= member.process.is_ending();
                }
                Err(_) => gone.push(member.process.identity.pid),
            }
        }
        for pid in gone {
            self.tree.remove(pid);
        }
        has_ended |= has_lost_one(&before.0, &self.present) || before.1 != self.zombies;
        if has_ended {
            self.ended = Some(Instant::now());
        }
        self.round.take_if(|round| !round.is_of(&self.present));
        if has_ended || self.round.is_none() {
            self.pending = None;
        }
        let huge = self.faults.look();
        if let Some(round) = &mut self.round {
            round.earlier.add_huge(huge);
        }
        self.sharing.follow(&self.present);
        self.families.follow(&self.present, huge);
        if let Some(pending) = &mut self.pending {
            pending.families.follow(&self.present, huge);
        }
        processes
    }

    /// Whether shares must be read: the bounds of anonymous memory are too far apart, or programs that are not forks of each
    /// other may map the same files.
    fn wants_shares(&self) -> bool {
        let strangers = self.sharing.unread_strangers(&self.present);
        let bounds = self.families.bounds();
        !bounds.are_close() || !Bounds { least: bounds.most, most: bounds.most + strangers }.are_close()
    }

    /// Whether shares may count: earlier ones are not pending, and no process that has ended can still have its pages.
    fn may_read_shares(&self) -> bool {
        self.pending.is_none() && self.ended.is_none_or(|ended| ended.elapsed() > LINGERS)
    }

    /// Whether the budget allows reading shares. Savings are kept for times when memory moves little enough for a round to end
    /// in a measurement.
    fn can_read_shares(&self) -> bool {
        let off = self.families.moved().saturating_mul(Round::samples(self.present.len()).saturating_sub(1) as u64);
        let most = self.families.bounds().most;
        let will_measure = Bounds { least: most.saturating_sub(off), most }.are_close();
        if will_measure { self.shares_pace.is_due() } else { self.shares_pace.is_affordable() }
    }

    /// Reads shares, then all counters again, to see whether the processes are still the same.
    fn read_shares(&mut self, portion: Portion) -> Vec<ProcessSample> {
        let round = self.round.get_or_insert_with(|| Round::new(&self.present, self.families.now()));
        let open_ones = open(&self.present, &self.closed);
        let next = match portion {
            Portion::Next => round.next(open_ones),
            Portion::Rest => round.rest(open_ones),
        };
        let readings: Vec<Reading> = next.into_iter().filter_map(|pid| self.read_share(pid)).collect();
        let forks = Forks::under_way(self.present.iter().map(|process| process.pid));
        self.tree.list();
        let ended = self.ended;
        let processes = self.read_counters();
        // There is none any more if a process came or went.
        let Some(round) = self.round.as_ref().filter(|_| self.ended == ended) else { return processes };
        let mut families = self.families.clone();
        readings.iter().for_each(|reading| families.hint(reading));
        let mut round = round.clone();
        round.add(readings.clone());
        let finished = round.finished(&self.present, open(&self.present, &self.closed));
        if let Some(readings) = &finished {
            families.learn(readings, &round.earlier);
        }
        self.pending = Some(Pending { readings, forks, families, finished });
        self.settle();
        processes
    }

    /// Takes in the pending readings once no fork can have been under way.
    fn settle(&mut self) {
        let Some(pending) = self.pending.take_if(|pending| pending.forks.are_over()) else { return };
        self.families = pending.families;
        match pending.finished {
            Some(readings) => {
                self.round = None;
                self.learn(&readings);
            }
            None => {
                if let Some(round) = &mut self.round {
                    round.add(pending.readings);
                }
            }
        }
    }

    /// Reads one process's shares, and on the way its counter's error.
    fn read_share(&mut self, pid: u32) -> Option<Reading> {
        let member = self.tree.members().find(|member| member.process.identity.pid == pid)?;
        let who = (pid, member.process.identity.started);
        match read_share(&mut member.process) {
            Ok(found) => {
                let (reading, error) = found?;
                self.counter_error = self.counter_error.max(error);
                Some(reading)
            }
            Err(error) => {
                if error.kind() == io::ErrorKind::PermissionDenied && self.closed.insert(who) {
                    self.failed += 1;
                }
                // Otherwise it has exited meanwhile.
                None
            }
        }
    }

    fn learn(&mut self, readings: &[Reading]) {
        if readings.is_empty() {
            return;
        }
        self.sharing.learn(readings);
        let sum = |of: fn(&Shares) -> u64| readings.iter().map(|reading| of(&reading.shares)).sum::<u64>();
        self.private_and_shared = Some((sum(|shares| shares.private), sum(|shares| shares.shared)));
    }

    /// The bounds of the tree's anonymous memory, from counters and the readings so far.
    fn bounds(&self) -> Bounds {
        self.families.bounds()
    }

    fn ask_gpus(&mut self) {
        let Some(gpus) = self.gpus.as_ref().filter(|_| self.gpu_pace.is_due()) else { return };
        let begin = Instant::now();
        self.gpu = gpus.look();
        self.gpu_pace.done(begin);
    }

    fn total(&self, processes: &[ProcessSample], around: &MachineMemory) -> Sample {
        let sum = |of: fn(&Memory) -> u64| processes.iter().map(|p| of(&p.memory)).sum::<u64>();
        let held = Kinds { anon: sum(|m| m.anon), file: sum(|m| m.file), shmem: sum(|m| m.shmem) };
        let bounds = self.bounds();
        let anon = if bounds.are_close() { bounds.least } else { bounds.most };
        let once = Kinds { anon, ..held.less(self.sharing.excess()) };
        let excess = held.less(once);
        let mut total = Sample::default();
        if !bounds.are_close() {
            total.set(Quantity::AnonLeast, bounds.least);
        }
        total.set(Quantity::Rss, once.total());
        total.set(Quantity::Anon, once.anon);
        total.set(Quantity::File, once.file);
        total.set(Quantity::Shmem, once.shmem);
        total.set(Quantity::Swap, sum(|m| m.swap));
        total.set(Quantity::Peak, sum(|m| m.peak).saturating_sub(excess.total()).max(once.total()));
        let gpu = (!self.gpu.by_process.is_empty()).then(|| processes.iter().filter_map(|p| p.gpu).sum());
        let is_tree = processes.len() > 1;
        let others = [
            (Quantity::Private, self.private_and_shared.filter(|_| is_tree).map(|(private, _)| private)),
            (Quantity::Shared, self.private_and_shared.filter(|_| is_tree).map(|(_, shared)| shared)),
            (Quantity::Gpu, gpu),
            (Quantity::GpuUsed, self.gpus.as_ref().map(|_| self.gpu.used)),
            (Quantity::Group, around.group_used),
            (Quantity::Available, around.available),
            (Quantity::DevShm, around.dev_shm),
            (Quantity::Pressure, around.pressure),
        ];
        for (quantity, value) in others {
            if let Some(value) = value {
                total.set(quantity, value);
            }
        }
        total
    }
}

/// The processes whose shares we may read.
fn open<'a>(present: &'a [Present], closed: &'a HashSet<(u32, u64)>) -> impl Iterator<Item = u32> + 'a {
    present.iter().filter(|process| !closed.contains(&(process.pid, process.started))).map(|process| process.pid)
}

/// Makes a training program that only starts a larger one, as home-made launchers do, its wrapper.
fn name_launchers(processes: &mut [ProcessSample]) {
    let training = |process: &ProcessSample| process.role == Role::Training;
    let launches = |parent: &ProcessSample| {
        let is_child = |child: &ProcessSample| child.identity.parent == parent.identity.pid && child.own > parent.own;
        processes.iter().any(|child| training(child) && is_child(child))
    };
    let launchers: Vec<u32> = processes
        .iter()
        .filter(|&process| training(process) && launches(process))
        .map(|process| process.identity.pid)
        .collect();
    for process in processes.iter_mut().filter(|process| launchers.contains(&process.identity.pid)) {
        process.role = Role::Wrapper;
    }
}

/// Reads a process's shares, and its counters before and after; `None` for a zombie.
///
/// Also returns the counter's error, which can be judged only if the counter stood still.
fn read_share(process: &mut Process) -> io::Result<Option<(Reading, u64)>> {
    let Some(before) = process.memory()? else { return Ok(None) };
    let shares = process.shares()?;
    let after = process.memory()?.unwrap_or(before);
    let reading = Reading { pid: process.identity.pid, held: Kinds::from(&before), shares, is_borrowed: false };
    Ok(Some((reading, counter_error(before.rss, &shares, after.rss))))
}

/// The distance of a page walk's result from the counter before and after it.
fn counter_error(before: u64, shares: &Shares, after: u64) -> u64 {
    let stands_still = before.abs_diff(after) <= STANDS_STILL;
    let distance = shares.rss.abs_diff(before).min(shares.rss.abs_diff(after));
    if stands_still { distance } else { 0 }
}

#[cfg(test)]
#[path = "sampler_tests.rs"]
mod tests;

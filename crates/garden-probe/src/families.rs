//! Bounds on the anonymous memory of forked processes together, without walking their pages.
//!
//! Forks of one program are a family: only they share anonymous pages. Counters give each member's pages and faults, and
//! every page takes a fault: a fork makes none, and copying a shared page takes a fault of the writer. So from one look to
//! the next, a family's distinct pages grow by no more than its members' faults, and a family holds no more than the sum
//! of its members. On the other side, a family holds no less than its largest member, and whatever happens (a page made,
//! copied, given back, a member gone), its distinct pages change by at least as much as the sum of the counters. Faults
//! overcount, since file pages take faults as well, and so does writing to a page that is no longer shared. Where that
//! leaves the bounds too far apart, the PSS is read, which walks every page, and narrows them.

use std::collections::BTreeMap;

use garden_memory::MIB;

use crate::huge::HugePages;
use crate::process::Shares;
use crate::sharing::{Present, Reading};

/// Bounds this close to each other, as a share of the upper one, are as good as a measurement.
const CLOSE: f64 = 0.03;
/// So are bounds that differ by less than this: starting a program faults in as much.
const SMALL: u64 = MIB;
/// More than any machine has, and small enough to add up.
const UNKNOWN: u64 = 1 << 56;

/// Lower and upper bound of an amount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    pub least: u64,
    pub most: u64,
}

impl Bounds {
    /// Whether the bounds are so close that the lower one is as good as a measurement.
    pub fn are_close(self) -> bool {
        is_close(self.least, self.most)
    }
}

fn is_close(least: u64, most: u64) -> bool {
    let gap = most.saturating_sub(least);
    gap <= SMALL || gap as f64 <= CLOSE * most as f64
}

/// The families of a tree.
#[derive(Clone, Debug, Default)]
pub struct Families {
    members: BTreeMap<u32, Member>,
    families: BTreeMap<u64, Family>,
    /// The number of families so far, which names the next one.
    named: u64,
    has_looked: bool,
    /// The most that relatives can have made and given back between the last two looks.
    moved: u64,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    family: u64,
    image: u64,
    execs: u32,
    anon: u64,
    faulted: u64,
    /// Upper bound of the bytes it made since its last fork: no other process has them, and they go when it exits.
    made: u64,
    /// Whether it is new with an unknown past: its forks may hold more of its earlier pages than it does now.
    is_foundling: bool,
}

impl Member {
    /// The most it can have made and given back since these counters; 0 without them.
    fn moved_since(&self, earlier: Option<&(u64, u64)>) -> u64 {
        let (anon, faulted) = earlier.copied().unwrap_or((self.anon, self.faulted));
        let made = self.faulted.saturating_sub(faulted);
        made + (made + anon).saturating_sub(self.anon)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Family {
    size: usize,
    least: u64,
    /// Upper bound of the family's bytes besides those that the members made.
    common: u64,
}

/// The counters of an earlier look.
#[derive(Clone, Debug, Default)]
pub struct Earlier {
    /// Anonymous memory, and the most that faults can have brought, by process id.
    counters: BTreeMap<u32, (u64, u64)>,
    /// Huge pages made since.
    huge: HugePages,
}

impl Earlier {
    /// Adds huge pages made since.
    pub fn add_huge(&mut self, huge: HugePages) {
        self.huge.add(huge);
    }
}

impl Families {
    /// The bounds of all families together.
    pub fn bounds(&self) -> Bounds {
        let least = self.families.values().map(|family| family.least).sum();
        let common: u64 = self.families.values().map(|family| family.common).sum();
        Bounds { least, most: common + self.members.values().map(|member| member.made).sum::<u64>() }
    }

    /// The most bytes that relatives can have made and given back between the last two looks.
    ///
    /// Shares read one after the other can be off by this much for each look they take.
    pub fn moved(&self) -> u64 {
        self.moved
    }

    /// The present counters.
    pub fn now(&self) -> Earlier {
        let counters = self.members.iter().map(|(&pid, member)| (pid, (member.anon, member.faulted)));
        Earlier { counters: counters.collect(), huge: HugePages::default() }
    }

    /// Takes in the present processes, and the huge pages made since the last look.
    pub fn follow(&mut self, present: &[Present], huge: HugePages) {
        let before = self.now();
        let here: BTreeMap<u32, u32> = present.iter().map(|process| (process.pid, process.execs)).collect();
        let has_left = |(pid, member): (&u32, &Member)| (here.get(pid) != Some(&member.execs)).then_some(*pid);
        let left: Vec<u32> = self.members.iter().filter_map(has_left).collect();
        left.into_iter().for_each(|pid| self.leave(pid));
        let (known, mut new): (Vec<_>, Vec<_>) =
            present.iter().partition(|process| self.members.contains_key(&process.pid));
        known.into_iter().for_each(|process| self.count(process));
        while !new.is_empty() {
            // Parents first. They can all wait for each other only if a process id was reused meanwhile.
            let waits = |process: &Present| new.iter().any(|other| other.pid == process.parent);
            let (later, ready): (Vec<_>, Vec<_>) = new.iter().copied().partition(|process| waits(process));
            let (ready, later) = if ready.is_empty() { (later, ready) } else { (ready, later) };
            ready.into_iter().for_each(|process| self.join(process, &before));
            new = later;
        }
        self.members.values_mut().for_each(|member| member.is_foundling = false);
        self.add_huge(huge, &before);
        self.has_looked = true;
        self.moved = self.moved_since(&before);
        self.settle();
    }

    /// Takes in shares read since an earlier look, while no process came or went.
    ///
    /// They were read one after the other, so each page made or given back meanwhile may be counted as before, as now, or in
    /// part. Nobody else may have had the pages: shares that an unseen process made smaller break the bounds.
    pub fn learn(&mut self, readings: &[Reading], earlier: &Earlier) {
        /// The readings of a family, summed.
        #[derive(Default)]
        struct Read {
            members: usize,
            sum: u64,
            slack: u64,
            faulted: u64,
        }
        let mut found: BTreeMap<u64, Read> = BTreeMap::new();
        for reading in readings {
            let Some(member) = self.members.get(&reading.pid) else { continue };
            let read = found.entry(member.family).or_default();
            read.members += 1;
            read.sum += if reading.is_borrowed { 0 } else { reading.pss().anon };
            let before = earlier.counters.get(&reading.pid);
            read.slack += member.moved_since(before);
            read.faulted += before.map_or(0, |&(_, faulted)| member.faulted.saturating_sub(faulted));
        }
        for (name, read) in found {
            let Some(family) = self.families.get_mut(&name).filter(|family| family.size == read.members) else {
                continue;
            };
            let slack = read.slack.saturating_add(earlier.huge.most_for(read.faulted));
            let (least, most) = (read.sum.saturating_sub(slack), read.sum.saturating_add(slack));
            // An unseen process had the pages as well, which makes all shares too small.
            if family.size < 2 || most < family.least && !is_close(most, family.least) {
                continue;
            }
            let members = || readings.iter().filter_map(|reading| self.members.get(&reading.pid));
            let known =
                family.common + members().filter(|member| member.family == name).map(|member| member.made).sum::<u64>();
            let most = most.min(known).max(family.least);
            family.least = family.least.max(least);
            let mut made = 0;
            for reading in readings {
                let Some(member) = self.members.get_mut(&reading.pid).filter(|member| member.family == name) else {
                    continue;
                };
                // A private page counts in full, any other at most by half. Some may have been given back since.
                let own =
                    if reading.is_borrowed { 0 } else { (2 * reading.pss().anon).saturating_sub(reading.held.anon) };
                let since = member.moved_since(earlier.counters.get(&reading.pid));
                member.made = own.saturating_sub(since).min(member.anon);
                made += member.made;
            }
            family.common = most.saturating_sub(made);
        }
        self.settle();
    }

    /// Takes in the shares of one member, read between the last two looks, which often suffices.
    ///
    /// If m processes have a page, it counts 1/m for each. A member's PSS is the sum of 1/m over its pages, and for a given
    /// sum over a given number of pages, the sum of the m is least where all are equal. So one member's PSS gives a lower
    /// bound on the pages that its relatives have in common with it, which is the excess in the sum of the counters. Where
    /// all have all pages, as after a fork, that is all there is to know.
    pub fn hint(&mut self, reading: &Reading) {
        let Some(name) = self.members.get(&reading.pid).map(|member| member.family) else { return };
        let relatives = || self.members.values().filter(|member| member.family == name);
        let held: u64 = relatives().map(|member| member.anon).sum();
        let made: u64 = relatives().map(|member| member.made).sum();
        let Some(family) = self.families.get_mut(&name).filter(|family| family.size > 1) else { return };
        let most = held.saturating_sub(in_common(reading)).saturating_add(self.moved);
        // An unseen process had the pages as well, which makes the share too small.
        let has_unseen = most < family.least && !is_close(most, family.least);
        if has_unseen || most >= family.common + made {
            return;
        }
        // A private page counts in full, any other at most by half. Nothing is known of the other members.
        let own = (2 * reading.pss().anon).saturating_sub(reading.held.anon).saturating_sub(self.moved);
        family.common = most.max(family.least).saturating_sub(own);
        for (&pid, member) in self.members.iter_mut().filter(|(_, member)| member.family == name) {
            member.made = if pid == reading.pid { own } else { 0 };
        }
        self.settle();
    }

    /// The most that relatives can have made and given back since an earlier look.
    fn moved_since(&self, earlier: &Earlier) -> u64 {
        let has_relatives = |member: &Member| self.families.get(&member.family).is_some_and(|family| family.size > 1);
        let members = self.members.iter().filter(|(_, member)| has_relatives(member));
        members.map(|(pid, member)| member.moved_since(earlier.counters.get(pid))).sum()
    }

    /// Adds the huge pages that members can have got since an earlier look, as far as their counters do not show them.
    fn add_huge(&mut self, huge: HugePages, earlier: &Earlier) {
        let mut since: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for (pid, member) in &self.members {
            let before = earlier.counters.get(pid);
            let made = member.faulted.saturating_sub(before.map_or(0, |&(_, faulted)| faulted));
            let (faulted, shown) = since.entry(member.family).or_default();
            *faulted = faulted.saturating_add(made);
            *shown += before.map_or(0, |&(anon, _)| member.anon.saturating_sub(anon).saturating_sub(made));
        }
        for (name, (faulted, shown)) in since {
            if let Some(family) = self.families.get_mut(&name).filter(|family| family.size > 1) {
                family.common = family.common.saturating_add(huge.most_for(faulted).saturating_sub(shown));
            }
        }
    }

    /// Takes in the counters of a known member.
    fn count(&mut self, process: &Present) {
        let Some(member) = self.members.get_mut(&process.pid) else { return };
        // Growth without faults is due to huge pages, or to faults that the last look saw before it saw the pages.
        let grown = process.held.anon.saturating_sub(member.anon);
        member.made = member.made.saturating_add(process.faulted.saturating_sub(member.faulted).max(grown));
        if let Some(family) = self.families.get_mut(&member.family) {
            family.least = (family.least + process.held.anon).saturating_sub(member.anon);
        }
        (member.anon, member.faulted) = (process.held.anon, process.faulted);
    }

    /// Takes in a new member; its parent, if new as well, has joined already.
    fn join(&mut self, process: &Present, before: &Earlier) {
        let faulted_before = before.counters.get(&process.pid).map_or(0, |&(_, faulted)| faulted);
        let faulted = process.faulted.saturating_sub(faulted_before);
        let has_image = |member: &&Member| process.image != 0 && member.image == process.image;
        let origin = process.origin.and_then(|origin| self.members.get(&origin));
        let relative = self.members.values().find(has_image).or(origin).map(|member| member.family);
        let is_foundling;
        let (name, made) = match relative {
            Some(name) => {
                let parent = self.members.get_mut(&process.parent);
                let parent = parent.filter(|parent| parent.family == name && !parent.is_foundling);
                // The fork has the pages that the parent had made until then; without a parent they are unknown.
                is_foundling = parent.is_none();
                let made = if is_foundling { process.held.anon } else { faulted };
                let inherited = parent.map_or(0, |parent| std::mem::take(&mut parent.made));
                self.families.entry(name).and_modify(|family| family.common = family.common.saturating_add(inherited));
                (name, made)
            }
            None => {
                self.named += 1;
                // It got anything beyond its faults from a process that has exited.
                is_foundling = self.has_looked && process.held.anon > faulted;
                // Everything it ever had, since it may have forked already. The time before the first look is unknown.
                (self.named, if self.has_looked { faulted.max(process.held.anon) } else { UNKNOWN })
            }
        };
        self.families.entry(name).or_default().size += 1;
        let Present { image, execs, faulted, .. } = *process;
        let anon = process.held.anon;
        self.members.insert(process.pid, Member { family: name, image, execs, anon, faulted, made, is_foundling });
    }

    /// Removes a process that has exited or called `exec`.
    fn leave(&mut self, pid: u32) {
        let Some(member) = self.members.remove(&pid) else { return };
        let Some(family) = self.families.get_mut(&member.family) else { return };
        family.size -= 1;
        family.least = family.least.saturating_sub(member.anon);
        if family.size == 0 {
            self.families.remove(&member.family);
        }
    }

    /// Tightens the bounds: a member made no more than it holds; a family holds no more than the sum and no less than its largest member.
    fn settle(&mut self) {
        let mut sums: BTreeMap<u64, (u64, u64, u64)> = BTreeMap::new();
        for member in self.members.values_mut() {
            let is_alone = self.families.get(&member.family).is_some_and(|family| family.size == 1);
            member.made = if is_alone { member.anon } else { member.made.min(member.anon) };
            let (held, made, largest) = sums.entry(member.family).or_default();
            *held += member.anon;
            *made += member.made;
            *largest = member.anon.max(*largest);
        }
        for (name, (held, made, largest)) in sums {
            let Some(family) = self.families.get_mut(&name) else { continue };
            family.least = family.least.clamp(largest, held);
            family.common = family.common.min(held - made).max(family.least.saturating_sub(made));
        }
    }
}

/// Lower bound of the pages that others have in common with a process, summed over them, from its shares alone.
fn in_common(reading: &Reading) -> u64 {
    // All from one page walk: the counters may have moved on meanwhile. Kernels before 5.9 lack the split.
    let Shares { anon, pss_anon, pss_file, pss_shmem, private, .. } = reading.shares;
    // Private file pages count in full as well, so the rest of the private pages is anonymous.
    let private = private.saturating_sub(pss_file + pss_shmem).min(pss_anon);
    let (shared, counted) = (anon.saturating_sub(private) as f64, (pss_anon - private) as f64);
    if counted <= 0.0 {
        return 0;
    }
    (shared * (shared / counted - 1.0)).max(0.0) as u64
}

#[cfg(test)]
#[path = "families_tests.rs"]
mod tests;

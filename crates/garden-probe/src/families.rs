//! How much anonymous memory forked processes hold together, as bounds that need no walk through their pages.
//!
//! Forks of one program are a family: only they share anonymous pages. Counters say how many pages each one holds and how many
//! times it faulted, and nothing else makes a page: a fork makes none, and a copy of a shared page takes a fault of whoever
//! writes to it. So from one look to the next a family's distinct pages grow by no more than its members' faults, and no family
//! holds more than the sum of its members. On the other side no family holds less than its largest member, and whatever happens
//! (a page made, copied, given back, a member gone), its distinct pages change by at least as much as the sum of the counters.
//! Faults say too much, since a page of a file takes one as well and so does writing to a page that is no longer shared. Where
//! that leaves the bounds too far apart, proportional shares are read, which walks through every page, and bring them together.

use std::collections::BTreeMap;

use garden_memory::MIB;

use crate::process::Shares;
use crate::sharing::{Present, Reading};

/// Bounds this close to each other, as a share of the upper one, are as good as a measurement.
const CLOSE: f64 = 0.03;
/// So are bounds that differ by less than this: a program's own start faults in as much.
const SMALL: u64 = MIB;
/// More than any machine has, and little enough to be added up.
const UNKNOWN: u64 = 1 << 56;

/// What something is at least and at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    pub least: u64,
    pub most: u64,
}

impl Bounds {
    /// Whether they are so close that their lower end is as good as a measurement.
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
    /// How many families there were so far, by which they are named.
    named: u64,
    has_looked: bool,
    /// What relatives can have made and given back between the last two looks.
    moved: u64,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    family: u64,
    image: u64,
    execs: u32,
    anon: u64,
    faulted: u64,
    /// At most so many bytes has it made since its last fork: nobody else has them, and they go when it goes.
    made: u64,
    /// Whether it is new and nobody knows what it had before it was seen: its own forks may have more of that than it has now.
    is_foundling: bool,
}

impl Member {
    /// What it can have made and given back since its counters were these; nothing if it was not there.
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
    /// At most so many bytes the family has besides what each member made.
    common: u64,
}

/// The counters of an earlier look.
#[derive(Clone, Debug, Default)]
pub struct Earlier {
    /// Anonymous memory and what faults can have brought, by process id.
    counters: BTreeMap<u32, (u64, u64)>,
    /// What huge pages can have brought since.
    huge: u64,
}

impl Earlier {
    /// Takes in what huge pages can have brought since.
    pub fn add_huge(&mut self, bytes: u64) {
        self.huge = self.huge.saturating_add(bytes);
    }
}

impl Families {
    /// The bounds of what all families hold.
    pub fn bounds(&self) -> Bounds {
        let least = self.families.values().map(|family| family.least).sum();
        let common: u64 = self.families.values().map(|family| family.common).sum();
        Bounds { least, most: common + self.members.values().map(|member| member.made).sum::<u64>() }
    }

    /// What relatives can have made and given back between the last two looks, in bytes: so much shares that are read one after
    /// the other can be off for each look that it takes.
    pub fn moved(&self) -> u64 {
        self.moved
    }

    /// The counters as they are now.
    pub fn now(&self) -> Earlier {
        let counters = self.members.iter().map(|(&pid, member)| (pid, (member.anon, member.faulted)));
        Earlier { counters: counters.collect(), huge: 0 }
    }

    /// Takes in who is there now, and what huge pages can have brought to anybody since the last look.
    pub fn follow(&mut self, present: &[Present], huge: u64) {
        let before = self.now();
        let here: BTreeMap<u32, u32> = present.iter().map(|process| (process.pid, process.execs)).collect();
        let has_left = |(pid, member): (&u32, &Member)| (here.get(pid) != Some(&member.execs)).then_some(*pid);
        let left: Vec<u32> = self.members.iter().filter_map(has_left).collect();
        left.into_iter().for_each(|pid| self.leave(pid));
        let (known, mut new): (Vec<_>, Vec<_>) =
            present.iter().partition(|process| self.members.contains_key(&process.pid));
        known.into_iter().for_each(|process| self.count(process));
        while !new.is_empty() {
            // Parents first. That all wait for each other can only be if an id was given out again meanwhile.
            let waits = |process: &Present| new.iter().any(|other| other.pid == process.parent);
            let (later, ready): (Vec<_>, Vec<_>) = new.iter().copied().partition(|process| waits(process));
            let (ready, later) = if ready.is_empty() { (later, ready) } else { (ready, later) };
            ready.into_iter().for_each(|process| self.join(process, &before));
            new = later;
        }
        self.members.values_mut().for_each(|member| member.is_foundling = false);
        for family in self.families.values_mut().filter(|family| family.size > 1) {
            family.common = family.common.saturating_add(huge);
        }
        self.has_looked = true;
        self.moved = self.moved_since(&before);
        self.settle();
    }

    /// Takes in shares that were read since an earlier look, while nobody came or went.
    ///
    /// They were read one after the other, so each page that was made or given back meanwhile may be counted as it was before,
    /// as it is now, or in part.
    pub fn learn(&mut self, readings: &[Reading], earlier: &Earlier) {
        /// What was read of a family.
        #[derive(Default)]
        struct Read {
            members: usize,
            sum: u64,
            slack: u64,
        }
        let mut found: BTreeMap<u64, Read> = BTreeMap::new();
        for reading in readings {
            let Some(member) = self.members.get(&reading.pid) else { continue };
            let read = found.entry(member.family).or_default();
            read.members += 1;
            read.sum += if reading.is_borrowed { 0 } else { reading.pss().anon };
            read.slack += member.moved_since(earlier.counters.get(&reading.pid));
        }
        for (name, read) in found {
            let Some(family) = self.families.get_mut(&name).filter(|family| family.size == read.members) else {
                continue;
            };
            let slack = read.slack.saturating_add(earlier.huge);
            let (least, most) = (read.sum.saturating_sub(slack), read.sum.saturating_add(slack));
            // Somebody who was not seen had the pages as well, which makes everybody's share too small.
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
                // A page of its own counts in full, any other at most by half. It may have given some back since.
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

    /// Takes in the shares of one member that were read between the last two looks, which often says enough.
    ///
    /// If m processes have a page, it counts 1/m for each. The proportional share of a member is the sum of that over its pages,
    /// and for a given sum over a given number of pages the sum of the m themselves is least where all are the same. So one
    /// member's share tells how many pages its relatives have in common with it at least, which is what the sum of the counters
    /// counts too often. Where all have all pages, as after a fork, that is all there is to know.
    pub fn hint(&mut self, reading: &Reading) {
        let Some(name) = self.members.get(&reading.pid).map(|member| member.family) else { return };
        let relatives = || self.members.values().filter(|member| member.family == name);
        let held: u64 = relatives().map(|member| member.anon).sum();
        let made: u64 = relatives().map(|member| member.made).sum();
        let Some(family) = self.families.get_mut(&name).filter(|family| family.size > 1) else { return };
        let most = held.saturating_sub(in_common(reading)).saturating_add(self.moved);
        // Somebody who was not seen had the pages as well, which makes the share too small.
        let has_unseen = most < family.least && !is_close(most, family.least);
        if has_unseen || most >= family.common + made {
            return;
        }
        // A page of its own counts in full, any other at most by half. Of the others nothing is known.
        let own = (2 * reading.pss().anon).saturating_sub(reading.held.anon).saturating_sub(self.moved);
        family.common = most.max(family.least).saturating_sub(own);
        for (&pid, member) in self.members.iter_mut().filter(|(_, member)| member.family == name) {
            member.made = if pid == reading.pid { own } else { 0 };
        }
        self.settle();
    }

    /// What relatives can have made and given back since an earlier look.
    fn moved_since(&self, earlier: &Earlier) -> u64 {
        let has_relatives = |member: &Member| self.families.get(&member.family).is_some_and(|family| family.size > 1);
        let members = self.members.iter().filter(|(_, member)| has_relatives(member));
        members.map(|(pid, member)| member.moved_since(earlier.counters.get(pid))).sum()
    }

    /// Takes in the counters of a member that was there before.
    fn count(&mut self, process: &Present) {
        let Some(member) = self.members.get_mut(&process.pid) else { return };
        member.made = member.made.saturating_add(process.faulted.saturating_sub(member.faulted));
        if let Some(family) = self.families.get_mut(&member.family) {
            family.least = (family.least + process.held.anon).saturating_sub(member.anon);
        }
        (member.anon, member.faulted) = (process.held.anon, process.faulted);
    }

    /// Takes in a new member; its parent, if that is new as well, is in already.
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
                // What the parent had made until then is the fork's as well. Without a parent nobody knows what that was.
                is_foundling = parent.is_none();
                let made = if is_foundling { process.held.anon } else { faulted };
                let inherited = parent.map_or(0, |parent| std::mem::take(&mut parent.made));
                self.families.entry(name).and_modify(|family| family.common = family.common.saturating_add(inherited));
                (name, made)
            }
            None => {
                self.named += 1;
                // More than it ever faulted in it has from somebody who has gone.
                is_foundling = self.has_looked && process.held.anon > faulted;
                // All it ever had, since it may have forked already. What was before the first look is not known.
                (self.named, if self.has_looked { faulted.max(process.held.anon) } else { UNKNOWN })
            }
        };
        self.families.entry(name).or_default().size += 1;
        let Present { image, execs, faulted, .. } = *process;
        let anon = process.held.anon;
        self.members.insert(process.pid, Member { family: name, image, execs, anon, faulted, made, is_foundling });
    }

    /// A process has gone, or become another program.
    fn leave(&mut self, pid: u32) {
        let Some(member) = self.members.remove(&pid) else { return };
        let Some(family) = self.families.get_mut(&member.family) else { return };
        family.size -= 1;
        family.least = family.least.saturating_sub(member.anon);
        if family.size == 0 {
            self.families.remove(&member.family);
        }
    }

    /// Tightens the bounds: nobody made more than it holds, all hold no more than the sum, and no less than the largest.
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

/// What others have at least in common with a process, summed over them, by its shares alone.
fn in_common(reading: &Reading) -> u64 {
    // All from one walk: the counters may have moved on meanwhile. Kernels before 5.9 do not tell.
    let Shares { anon, pss_anon, pss_file, pss_shmem, private, .. } = reading.shares;
    // Pages of files that nobody else has count in full as well, so the rest of the private pages is anonymous.
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

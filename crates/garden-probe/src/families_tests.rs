//! Tests of the bounds: forks as their counters show them, and a simulation that knows every page.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::process::Shares;
use crate::sharing::Kinds;

const PAGE: u64 = 4096;
const M: u64 = MIB;
const NO_HUGE: HugePages = HugePages { faulted: 0, collapsed: 0, times: 512 };

fn process(pid: u32, parent: u32, anon: u64, faulted: u64) -> Present {
    Present {
        pid,
        started: u64::from(pid),
        parent,
        origin: (parent != 1).then_some(parent),
        image: 7,
        execs: 0,
        held: Kinds { anon, ..Kinds::default() },
        faulted,
        faults_of_children: 0,
    }
}

fn reading(process: &Present, pss: u64) -> Reading {
    let shares = Shares { anon: process.held.anon, pss, pss_anon: pss, ..Shares::default() };
    Reading { pid: process.pid, held: process.held, shares, is_borrowed: false }
}

/// The bounds after each state in turn, in MiB.
fn follow(states: &[&[Present]]) -> Vec<(u64, u64)> {
    let mut families = Families::default();
    let step = |present: &&[Present]| {
        families.follow(present, NO_HUGE);
        let Bounds { least, most } = families.bounds();
        (least / M, most / M)
    };
    states.iter().map(step).collect()
}

#[test]
fn idle_forks_cost_what_they_faulted() {
    let p = process(10, 1, 1000 * M, 1100 * M);
    let forks: Vec<Present> = (11..27).map(|pid| process(pid, 10, 1000 * M, M)).collect();
    let all = [&[p][..], &forks].concat();
    assert_eq!(
        follow(&[&[p], &all, &all, &all[..9], &[p]]),
        [(1000, 1000), (1000, 1016), (1000, 1016), (1000, 1008), (1000, 1000)]
    );
}

#[test]
fn what_a_fork_may_have_copied_counts_until_it_goes() {
    let (p, a) = (process(10, 1, 100 * M, 100 * M), process(11, 10, 100 * M, 0));
    let (b, copied) = (process(12, 10, 100 * M, 0), process(11, 10, 100 * M, 60 * M));
    assert_eq!(follow(&[&[p], &[p, a, b], &[p, copied, b], &[p, b]]), [(100, 100), (100, 100), (100, 160), (100, 100)]);
    // A process copies no more than it has.
    assert_eq!(follow(&[&[p], &[p, process(11, 10, 100 * M, 900 * M)]])[1], (100, 200));
}

#[test]
fn what_the_parent_gives_back_its_forks_still_hold() {
    let (p, a, b) = (process(10, 1, 100 * M, 100 * M), process(11, 10, 100 * M, 0), process(12, 10, 100 * M, 0));
    let small = process(10, 1, 5 * M, 100 * M);
    assert_eq!(follow(&[&[p], &[p, a, b], &[small, a, b]])[2], (100, 100));
    // It forked and gave back between two looks.
    assert_eq!(follow(&[&[p], &[small, a]])[1], (100, 100));
    // It made more, forked, and gave it all back.
    let more = process(11, 10, 130 * M, 0);
    assert_eq!(follow(&[&[p], &[process(10, 1, 5 * M, 130 * M), more]])[1], (130, 130));
}

#[test]
fn a_fork_whose_parent_nobody_saw_may_have_anything() {
    let p = process(10, 1, 100 * M, 100 * M);
    let orphan = Present { parent: 1, origin: Some(10), ..process(12, 10, 300 * M, 0) };
    assert_eq!(follow(&[&[p], &[p, orphan]])[1], (300, 400));
    // The time before the first look is unknown, too.
    assert_eq!(follow(&[&[p, process(11, 10, 100 * M, 0)]])[0], (100, 200));
}

#[test]
fn a_grandchild_has_what_its_parent_made() {
    let (p, a) = (process(10, 1, 100 * M, 100 * M), process(11, 10, 150 * M, 50 * M));
    let grandchild = process(12, 11, 150 * M, 0);
    assert_eq!(follow(&[&[p], &[p, a, grandchild], &[p, grandchild]]), [(100, 100), (150, 150), (150, 150)]);
}

#[test]
fn another_program_is_a_family_of_its_own() {
    let (p, a) = (process(10, 1, 100 * M, 100 * M), process(11, 10, 100 * M, 0));
    let other = Present { execs: 1, image: 8, origin: None, ..process(11, 10, 40 * M, 50 * M) };
    let forks = |family: &[Present]| [&[p][..], family].concat();
    assert_eq!(follow(&[&[p], &forks(&[a]), &forks(&[other])]), [(100, 100), (100, 100), (140, 140)]);
    // It forked after `exec`, before the next look: its memory in between is bounded by its faults.
    let child = Present { image: 8, ..process(12, 11, 40 * M, 0) };
    assert_eq!(follow(&[&[p], &forks(&[a]), &forks(&[other, child])])[2], (140, 150));
}

#[test]
fn the_last_of_a_family_takes_nothing_off_another_one() {
    let (p, a) = (process(10, 1, 100 * M, 100 * M), process(11, 10, 100 * M, 0));
    let other = |process: Present| Present { image: 8, ..process };
    let (q, b) = (other(process(20, 1, 100 * M, 100 * M)), other(process(21, 20, 100 * M, 0)));
    assert_eq!(follow(&[&[p, q], &[p, a, q, b], &[a, q, b], &[q, b]])[1..], [(200, 200), (200, 200), (100, 100)]);
}

#[test]
fn huge_pages_count_for_families_only() {
    let (p, a) = (process(10, 1, 100 * M, 100 * M), process(11, 10, 100 * M, 0));
    let huge = |collapsed: u64| HugePages { collapsed, ..NO_HUGE };
    let mut families = Families::default();
    families.follow(&[p], NO_HUGE);
    families.follow(&[p], huge(64 * M));
    assert_eq!(families.bounds(), Bounds { least: 100 * M, most: 100 * M });
    families.follow(&[p, a], huge(32 * M));
    assert_eq!(families.bounds(), Bounds { least: 100 * M, most: 132 * M });
}

/// They are counted for the whole machine: those of other programs are not blamed on forks that stand still.
#[test]
fn huge_pages_by_faults_count_for_who_has_faults() {
    let (p, a) = (process(10, 1, 100 * M, 100 * M), process(11, 10, 100 * M, 0));
    let huge = HugePages { faulted: 64 * M, ..NO_HUGE };
    let mut families = Families::default();
    families.follow(&[p, a], NO_HUGE);
    families.learn(&[reading(&p, 50 * M), reading(&a, 50 * M)], &families.now());
    families.follow(&[p, a], huge);
    assert_eq!(families.bounds(), Bounds { least: 100 * M, most: 100 * M });
    families.follow(&[p, process(11, 10, 100 * M, PAGE)], huge);
    assert_eq!(families.bounds(), Bounds { least: 100 * M, most: 102 * M + PAGE });
    // The counter shows where they went.
    families.follow(&[p, process(11, 10, 164 * M, 33 * PAGE)], huge);
    assert_eq!(families.bounds().most, 166 * M + 33 * PAGE);
}

/// On a busy machine much may happen between the two files that have the counters.
#[test]
fn faults_seen_before_their_pages_count() {
    let (p, a) = (process(10, 1, 100 * M, 100 * M), process(11, 10, 10 * M, 0));
    let late = process(10, 1, 100 * M, 150 * M);
    let grown = process(10, 1, 150 * M, 150 * M);
    assert_eq!(follow(&[&[p, a], &[late, a], &[grown, a]]), [(100, 110), (100, 110), (150, 160)]);
}

#[test]
fn a_reading_brings_the_bounds_together_and_is_carried_on() {
    let (p, a, b) = (process(10, 1, 100 * M, 0), process(11, 10, 100 * M, 90 * M), process(12, 10, 100 * M, 0));
    let mut families = Families::default();
    families.follow(&[p], NO_HUGE);
    families.follow(&[p, a, b], NO_HUGE);
    assert_eq!(families.bounds(), Bounds { least: 100 * M, most: 190 * M });
    // 40 MiB were copied, the other faults were something else.
    let earlier = families.now();
    families.learn(&[reading(&p, 40 * M), reading(&a, 60 * M), reading(&b, 40 * M)], &earlier);
    assert_eq!(families.bounds(), Bounds { least: 140 * M, most: 140 * M });
    let grown = process(12, 10, 130 * M, 30 * M);
    families.follow(&[p, a, grown], NO_HUGE);
    assert_eq!(families.bounds(), Bounds { least: 170 * M, most: 170 * M });
    // At least 20 MiB of the first fork were private.
    families.follow(&[p, grown], NO_HUGE);
    assert_eq!(families.bounds(), Bounds { least: 130 * M, most: 150 * M });
}

#[test]
fn what_happens_during_a_reading_widens_it() {
    let (p, a) = (process(10, 1, 100 * M, 0), process(11, 10, 100 * M, 50 * M));
    let mut families = Families::default();
    families.follow(&[p], NO_HUGE);
    families.follow(&[p, a], NO_HUGE);
    let earlier = families.now();
    families.follow(&[p, process(11, 10, 100 * M, 54 * M)], NO_HUGE);
    families.learn(&[reading(&p, 50 * M), reading(&a, 50 * M)], &earlier);
    assert_eq!(families.bounds(), Bounds { least: 100 * M, most: 108 * M });
}

#[test]
fn shares_that_somebody_unseen_made_smaller_do_not_count() {
    let (p, a) = (process(10, 1, 100 * M, 0), process(11, 10, 100 * M, 50 * M));
    let mut families = Families::default();
    families.follow(&[p], NO_HUGE);
    families.follow(&[p, a], NO_HUGE);
    let earlier = families.now();
    families.learn(&[reading(&p, 33 * M), reading(&a, 33 * M)], &earlier);
    assert_eq!(families.bounds(), Bounds { least: 100 * M, most: 150 * M });
}

/// Processes whose every page is known.
#[derive(Default)]
struct World {
    pages: BTreeMap<u32, BTreeSet<u64>>,
    parents: BTreeMap<u32, u32>,
    faults: BTreeMap<u32, u64>,
    next_page: u64,
    next_pid: u32,
    seed: u64,
}

impl World {
    fn random(&mut self, below: u64) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed % below
    }

    fn any(&mut self) -> u32 {
        let pids: Vec<u32> = self.pages.keys().copied().collect();
        pids[self.random(pids.len() as u64) as usize]
    }

    fn sharers(&self, page: u64) -> usize {
        self.pages.values().filter(|pages| pages.contains(&page)).count()
    }

    /// A random action of a program.
    fn act(&mut self) {
        self.act_below(8);
    }

    /// A random action without a process coming or going.
    fn act_quietly(&mut self) {
        self.act_below(5);
    }

    fn act_below(&mut self, below: u64) {
        let pid = self.any();
        let count = 1 + self.random(40);
        match self.random(below) {
            0 | 1 => (0..count).for_each(|_| self.make(pid)),
            2 | 3 => {
                let pages: Vec<u64> = self.pages[&pid].iter().copied().take(count as usize).collect();
                pages.into_iter().for_each(|page| self.write(pid, page));
            }
            4 => {
                let pages: Vec<u64> = self.pages[&pid].iter().rev().copied().take(count as usize).collect();
                self.pages.entry(pid).and_modify(|own| own.retain(|page| !pages.contains(page)));
            }
            5 if self.pages.len() < 12 => {
                self.next_pid += 1;
                let child = self.next_pid;
                self.pages.insert(child, self.pages[&pid].clone());
                self.parents.insert(child, pid);
                self.faults.insert(child, 0);
            }
            6 if self.pages.len() > 1 => {
                self.pages.remove(&pid);
                for parent in self.parents.values_mut().filter(|parent| **parent == pid) {
                    *parent = 1;
                }
            }
            // A file is read.
            _ => *self.faults.entry(pid).or_default() += 1,
        }
    }

    fn make(&mut self, pid: u32) {
        self.next_page += 1;
        self.pages.entry(pid).or_default().insert(self.next_page);
        *self.faults.entry(pid).or_default() += 1;
    }

    /// Copies a page if it is shared, and faults in any case.
    fn write(&mut self, pid: u32, page: u64) {
        if self.sharers(page) > 1 {
            self.pages.entry(pid).or_default().remove(&page);
            self.make(pid);
        } else {
            *self.faults.entry(pid).or_default() += 1;
        }
    }

    fn distinct(&self) -> u64 {
        self.pages.values().flatten().collect::<BTreeSet<_>>().len() as u64 * PAGE
    }

    fn present(&self) -> Vec<Present> {
        let of = |(&pid, pages): (&u32, &BTreeSet<u64>)| {
            let (parent, faults) = (self.parents[&pid], self.faults[&pid]);
            Present { origin: None, ..process(pid, parent, pages.len() as u64 * PAGE, faults * PAGE) }
        };
        self.pages.iter().map(of).collect()
    }

    fn read(&self, process: &Present) -> Reading {
        let pages = &self.pages[&process.pid];
        let share = |page: &u64| PAGE as f64 / self.sharers(*page) as f64;
        let private = pages.iter().filter(|page| self.sharers(**page) == 1).count() as u64 * PAGE;
        let mut reading = reading(process, pages.iter().map(share).sum::<f64>() as u64);
        (reading.shares.private, reading.shares.anon) = (private, pages.len() as u64 * PAGE);
        reading
    }
}

/// The bounds hold whatever forks do between looks, and while shares are read one process a look.
#[test]
fn bounds_hold_whatever_happens() {
    // With the last seed, a process forks and exits, and the fork has forks with more than it holds, all between two looks.
    for seed in (1..400).chain([831]) {
        let mut world = World { next_pid: 10, seed: seed * 0x9e37_79b9, ..World::default() };
        world.pages.insert(10, BTreeSet::new());
        world.parents.insert(10, 1);
        world.faults.insert(10, 0);
        (0..200).for_each(|_| world.make(10));
        let mut families = Families::default();
        let mut round: Option<(Vec<u32>, Vec<Reading>, Earlier)> = None;
        for look in 0..60 {
            for _ in 0..world.random(if look % 20 < 8 { 6 } else { 2 }) {
                world.act();
            }
            let present = world.present();
            let set: Vec<u32> = present.iter().map(|process| process.pid).collect();
            families.follow(&present, NO_HUGE);
            let (_, mut readings, earlier) = round
                .take()
                .filter(|round| round.0 == set)
                .unwrap_or_else(|| (set.clone(), Vec::new(), families.now()));
            if let Some(process) = present.get(readings.len()) {
                readings.push(world.read(process));
            }
            if readings.len() == present.len() {
                families.learn(&readings, &earlier);
            } else {
                round = Some((set, readings, earlier));
            }
            let (bounds, truth) = (families.bounds(), world.distinct());
            // Shares are rounded down to bytes.
            let holds = bounds.least <= truth && truth <= bounds.most + 16;
            assert!(holds, "seed {seed}, look {look}: {truth} is not in {bounds:?}");
        }
    }
}

#[test]
fn one_share_tells_what_idle_forks_have_in_common() {
    let p = process(10, 1, 1000 * M, 1100 * M);
    let forks: Vec<Present> = (11..19).map(|pid| process(pid, 10, 1002 * M, 2 * M)).collect();
    let all = [&[p][..], &forks].concat();
    let mut families = Families::default();
    families.follow(&all, NO_HUGE);
    assert!(!families.bounds().are_close(), "{:?}", families.bounds());
    families.hint(&reading(&p, 1000 * M / 9 + 1));
    let Bounds { least, most } = families.bounds();
    assert_eq!((least / M, most / M), (1002, 1016));
    // Nine tenths are shared by all, one tenth is private: known as well if the two are reported apart.
    let mut families = Families::default();
    families.follow(&all, NO_HUGE);
    let mut found = reading(&p, 100 * M + 100 * M);
    found.shares.private = 100 * M;
    families.hint(&found);
    assert_eq!(families.bounds().most / M, 1000 + 8 * 102);
}

#[test]
fn one_share_that_somebody_unseen_made_smaller_does_not_count() {
    let (p, a) = (process(10, 1, 100 * M, 0), process(11, 10, 100 * M, 50 * M));
    let mut families = Families::default();
    families.follow(&[p, a], NO_HUGE);
    families.hint(&reading(&p, 33 * M));
    assert_eq!(families.bounds(), Bounds { least: 100 * M, most: 200 * M });
}

/// The share of one fork does not break the bounds, whatever forks do around it.
#[test]
fn bounds_hold_after_one_share() {
    for seed in (1..400).chain([831]) {
        let mut world = World { next_pid: 10, seed: seed * 0x9e37_79b9, ..World::default() };
        world.pages.insert(10, BTreeSet::new());
        world.parents.insert(10, 1);
        world.faults.insert(10, 0);
        (0..200).for_each(|_| world.make(10));
        let mut families = Families::default();
        for look in 0..60 {
            for _ in 0..world.random(if look % 20 < 8 { 6 } else { 2 }) {
                world.act();
            }
            families.follow(&world.present(), NO_HUGE);
            (0..world.random(3)).for_each(|_| world.act_quietly());
            let read = world.present()[world.random(world.pages.len() as u64) as usize];
            let mut reading = world.read(&read);
            // Rounded up, so that conclusions hold to the byte.
            reading.shares.pss_anon += 1;
            (0..world.random(3)).for_each(|_| world.act_quietly());
            families.follow(&world.present(), NO_HUGE);
            families.hint(&reading);
            let (bounds, truth) = (families.bounds(), world.distinct());
            let holds = bounds.least <= truth && truth <= bounds.most + 16;
            assert!(holds, "seed {seed}, look {look}: {truth} is not in {bounds:?}");
        }
    }
}

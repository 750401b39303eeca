//! Growth over passes, and what kind of growth it is.
//!
//! Memory is read after the C library gave back what is free, so a flat pipeline grows by a few pages and not by megabytes. That is
//! what makes two or three passes enough.

use crate::experiment::{Pass, Run, Visit};
use crate::finding::Kind;

/// Growth in a pass that may be chance, whatever was measured: some dozens of pages. Flat pipelines showed up to 12 KiB in pure Python
/// and 110 KiB with torch, transformers and Pillow.
const FLOOR: f64 = 192.0 * 1024.0;
/// ... and per example.
const FLOOR_PER_EXAMPLE: f64 = 512.0;
/// Growth of a later pass below this share of the first one's belongs to it: a cache whose last entries came late.
const TAIL: f64 = 0.05;
/// Later passes of a leak are alike: one half of them grows by at least this share of what the other half does.
const ALIKE: f64 = 0.4;
/// With one later pass only, a leak has this share of the first one's growth at least.
const LIKE_THE_FIRST: f64 = 0.25;
/// Garbage that is worth a word although the collector keeps up with it.
const WAITING: f64 = 1024.0 * 1024.0;
/// Growth of which this share came with a tenth of the batches is jumps, not growth per example.
const JUMPS: f64 = 0.8;
/// Batches from which on jumps can be told from growth per example.
const FEWEST_BATCHES: usize = 8;
/// A cache that had this share of its growth when so many of the examples were seen is full.
const NEARLY_ALL: f64 = 0.97;
const EARLY: f64 = 0.75;
/// Pages of files that may have been read by chance.
const FILE_FLOOR: f64 = 4.0 * 1024.0 * 1024.0;

/// Growth in each pass.
pub(crate) fn growth(run: &Run, of: impl Fn(&Pass) -> Option<i64>, base: Option<i64>) -> Vec<i64> {
    let Some(mut before) = base else { return Vec::new() };
    let mut grown = Vec::new();
    for pass in &run.passes {
        let Some(now) = of(pass) else { break };
        grown.push(now - before);
        before = now;
    }
    grown
}

/// Growth of held memory in each pass.
pub(crate) fn held(run: &Run) -> Vec<i64> {
    growth(run, |pass| Some(pass.end.held), run.base.map(|base| base.held))
}

/// Growth beyond that of an earlier run, pass by pass; passes that the earlier run lacks count as its last one.
pub(crate) fn beyond(grown: &[i64], earlier: &[i64]) -> Vec<i64> {
    let known = |index: usize| earlier.get(index).or(earlier.get(1..).and_then(<[i64]>::last)).copied().unwrap_or(0);
    grown.iter().enumerate().map(|(index, bytes)| bytes - known(index).max(0)).collect()
}

/// What growth may be chance, with so many examples in a pass.
pub(crate) fn floor(examples: u64) -> f64 {
    FLOOR.max(FLOOR_PER_EXAMPLE * examples as f64)
}

/// The kind of a growth over passes. `garbage` is what the garbage collector freed.
pub(crate) fn kind(added: &[i64], garbage: Garbage, run: &Run, examples: u64) -> Kind {
    let floor = floor(examples);
    let Some((&first, later)) = added.split_first() else { return Kind::Failed };
    let total = added.iter().sum::<i64>() as f64;
    if total > floor && (garbage.at_the_end as f64) > 0.5 * total {
        return Kind::Garbage;
    }
    let [early, late] = halves(later);
    let first = first as f64;
    let tail = floor.max(TAIL * first);
    if early + late > tail {
        // With one pass more it would be clear whether it has come to its end.
        let is_even =
            if later.len() >= 2 { early.min(late) >= ALIKE * early.max(late) } else { late >= LIKE_THE_FIRST * first };
        if is_even {
            return Kind::Leak;
        }
        if later.len() < 2 || late > tail {
            return Kind::Undecided;
        }
    } else if first <= floor {
        return quiet(run, garbage, floor);
    }
    let base = run.base.map_or(0, |base| base.held);
    let visits: Vec<&Visit> = run.visits.iter().filter(|visit| visit.number == 1).collect();
    match first <= floor || comes_in_jumps(&visits, base) {
        true => Kind::WarmUp,
        false if full_after(&visits, base).is_some() => Kind::FullCache,
        false => Kind::Cache,
    }
}

/// The kind of a run that holds no more at the end of its passes than at their beginning.
fn quiet(run: &Run, garbage: Garbage, floor: f64) -> Kind {
    if garbage.at_once as f64 > floor.max(WAITING) {
        return Kind::Garbage;
    }
    if file_growth(run) > FILE_FLOOR { Kind::FilePages } else { Kind::Flat }
}

/// What the garbage collector freed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Garbage {
    /// At the end, when it was asked to.
    pub at_the_end: i64,
    /// By itself during the passes, in one go at most.
    pub at_once: i64,
}

/// Growth in the first and in the second half of the later passes; of an odd number the middle one belongs to both by half.
fn halves(later: &[i64]) -> [f64; 2] {
    let sum = |part: &[i64]| part.iter().sum::<i64>() as f64;
    let half = later.len() / 2;
    let middle = if later.len() % 2 == 1 { later[half] as f64 / 2.0 } else { 0.0 };
    if later.len() == 1 {
        return [0.0, sum(later)];
    }
    [sum(&later[..half]) + middle, sum(&later[later.len() - half..]) + middle]
}

fn file_growth(run: &Run) -> f64 {
    let files = growth(run, |pass| Some(pass.end.file), run.base.map(|base| base.file));
    files.iter().sum::<i64>() as f64
}

/// Whether most of the growth of a pass came with few of its batches.
fn comes_in_jumps(visits: &[&Visit], base: i64) -> bool {
    if visits.len() < FEWEST_BATCHES {
        return false;
    }
    // New highs only: what is freed in between is no growth.
    let mut highest = base;
    let mut steps: Vec<f64> = Vec::new();
    for visit in visits {
        steps.push((visit.held - highest).max(0) as f64);
        highest = highest.max(visit.held);
    }
    // The first batch makes what a batch needs while it is worked on; that is not growth either.
    let steps = &mut steps[1..];
    steps.sort_by(|a, b| b.total_cmp(a));
    let all: f64 = steps.iter().sum();
    let few: f64 = steps.iter().take(steps.len().div_ceil(10)).sum();
    all > 0.0 && few > JUMPS * all
}

/// After how many examples a growth had ended within the first pass, if it had.
pub(crate) fn full_after(visits: &[&Visit], base: i64) -> Option<u64> {
    let last = visits.last()?;
    if visits.len() < FEWEST_BATCHES {
        return None;
    }
    let start = visits[0].held.max(base) as f64;
    let highest = visits.iter().map(|visit| visit.held).max()? as f64;
    let enough = start + NEARLY_ALL * (highest - start);
    let at = visits.iter().find(|visit| visit.held as f64 >= enough)?.examples;
    ((at as f64) < EARLY * last.examples as f64).then_some(at)
}

/// The growth per example that a kind is about.
pub(crate) fn per_example(kind: Kind, added: &[i64], examples: u64) -> Option<i64> {
    let examples = examples.max(1) as f64;
    let first = added.first().copied()? as f64;
    let later = &added[1..];
    let mean = later.iter().sum::<i64>() as f64 / later.len().max(1) as f64;
    let bytes = match kind {
        Kind::Leak if !later.is_empty() => mean,
        Kind::Cache | Kind::FullCache | Kind::Copies | Kind::Undecided => first,
        _ => return None,
    };
    Some((bytes / examples).round() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Held;

    const MIB: i64 = 1 << 20;

    /// A run of 50 examples whose first pass grows evenly.
    fn run(growth: &[i64]) -> Run {
        let mut run = Run { base: Some(Held { held: 100 * MIB, ..Held::default() }), ..Run::default() };
        let mut held = 100 * MIB;
        for (index, bytes) in growth.iter().enumerate() {
            for batch in 1..=25 {
                run.visits.push(Visit {
                    number: index as u64 + 1,
                    examples: 2 * batch,
                    held: held + bytes * batch as i64 / 25,
                    workers: None,
                });
            }
            held += bytes;
            run.passes.push(Pass { end: Held { held, ..Held::default() }, before_trim: held, seconds: 1.0 });
        }
        run
    }

    fn kind_of(growth: &[i64], collected: i64) -> Kind {
        kind(growth, Garbage { at_the_end: collected, at_once: 0 }, &run(growth), 50)
    }

    #[test]
    fn kinds_by_pass() {
        assert_eq!(kind_of(&[0, 0, 0], 0), Kind::Flat);
        assert_eq!(kind_of(&[80 << 10, 110 << 10, 40 << 10], 0), Kind::Flat);
        assert_eq!(kind_of(&[50 * MIB, 0, 0], 0), Kind::Cache);
        assert_eq!(kind_of(&[50 * MIB, MIB, 0], 0), Kind::Cache);
        assert_eq!(kind_of(&[50 * MIB, 50 * MIB, 50 * MIB], 0), Kind::Leak);
        assert_eq!(kind_of(&[90 * MIB, 10 * MIB, 10 * MIB], 0), Kind::Leak);
        assert_eq!(kind_of(&[50 * MIB, 50 * MIB], 0), Kind::Leak);
        assert_eq!(kind_of(&[50 * MIB, 50 * MIB, 50 * MIB], 149 * MIB), Kind::Garbage);
        assert_eq!(kind_of(&[50 * MIB, 20 * MIB, 5 * MIB], 0), Kind::Undecided);
        assert_eq!(kind_of(&[0, 3 * MIB, 0], 0), Kind::WarmUp);
        assert_eq!(kind_of(&[50 * MIB, 3 * MIB, 0], 0), Kind::Cache);
        assert_eq!(kind_of(&[50 * MIB, 5 * MIB], 0), Kind::Undecided);
        assert_eq!(kind_of(&[], 0), Kind::Failed);
    }

    #[test]
    fn a_cache_may_be_full_before_the_pass_ends() {
        let mut full = run(&[20 * MIB, 0, 0]);
        for visit in full.visits.iter_mut().filter(|visit| visit.number == 1) {
            visit.held = 100 * MIB + (2 * visit.examples as i64).min(40) * MIB / 2;
        }
        assert_eq!(kind(&[20 * MIB, 0, 0], Garbage::default(), &full, 50), Kind::FullCache);
        let visits: Vec<&Visit> = full.visits.iter().filter(|visit| visit.number == 1).collect();
        assert_eq!(full_after(&visits, 100 * MIB), Some(20));
    }

    #[test]
    fn jumps_are_no_cache() {
        let mut jumped = run(&[20 * MIB, 0, 0]);
        for visit in jumped.visits.iter_mut().filter(|visit| visit.number == 1) {
            visit.held = if visit.examples > 30 { 120 * MIB } else { 100 * MIB };
        }
        assert_eq!(kind(&[20 * MIB, 0, 0], Garbage::default(), &jumped, 50), Kind::WarmUp);
    }

    #[test]
    fn what_an_earlier_run_grew_by_is_taken_off() {
        assert_eq!(beyond(&[10, 9, 8], &[4, 3]), vec![6, 6, 5]);
        assert_eq!(beyond(&[10, 9], &[]), vec![10, 9]);
        assert_eq!(beyond(&[10, 9], &[-4, 3]), vec![10, 6]);
    }
}

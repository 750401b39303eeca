//! Growth over passes, and its kind.
//!
//! Memory is read after the C library gave back free memory, so a flat pipeline grows by a few pages, not by megabytes.
//! That is why two or three passes suffice.

use crate::experiment::{Held, Pass, Run, Visit};
use crate::finding::Kind;

/// Growth in a pass that may be chance, whatever was measured: some dozens of pages. Flat pipelines showed up to 12 KiB in pure Python
/// and 110 KiB with torch, transformers and Pillow.
const FLOOR: f64 = 192.0 * 1024.0;
/// ... and per example.
const FLOOR_PER_EXAMPLE: f64 = 512.0;
/// ... and as a share of the earlier pieces' growth in the same pass: two runs of the same growth differed by up to 2.4 %.
const OF_EARLIER: f64 = 0.05;
/// Growth of which at most this share is left has ended: it was given back, or only the last entries of a cache came late.
const TAIL: f64 = 0.05;
/// Later passes of a leak are alike: each half of them grows by at least this share of the other half's growth.
const ALIKE: f64 = 0.4;
/// With a single later pass, a leak grows in it by at least this share of the first pass's growth.
const LIKE_THE_FIRST: f64 = 0.25;
/// Garbage worth reporting although the collector keeps up with it.
const WAITING: f64 = 1024.0 * 1024.0;
/// Growth with more than this share in a tenth of the batches comes in jumps, not per example.
const JUMPS: f64 = 0.8;
/// Bytes allocated by `malloc` show how memory rose if they make up at least this share of the growth.
const HALF: f64 = 0.5;
/// Fewest batches to tell jumps from growth per example.
const FEWEST_BATCHES: usize = 8;
/// A cache with `NEARLY_ALL` of its growth before `EARLY` of the examples were seen is full.
const NEARLY_ALL: f64 = 0.97;
const EARLY: f64 = 0.75;
/// File pages that may have been read by chance.
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

/// Growth beyond an earlier run's, pass by pass; passes missing from the earlier run count as its last later pass.
pub(crate) fn beyond(grown: &[i64], earlier: &[i64]) -> Vec<i64> {
    let known = |index: usize| earlier.get(index).or(earlier.get(1..).and_then(<[i64]>::last)).copied().unwrap_or(0);
    grown.iter().enumerate().map(|(index, bytes)| bytes - known(index).max(0)).collect()
}

/// The growth in a pass of `examples` examples that may be chance.
pub(crate) fn floor(examples: u64) -> f64 {
    FLOOR.max(FLOOR_PER_EXAMPLE * examples as f64)
}

/// The growth that may be chance: in the first pass, and in all later ones together.
///
/// The two are separate, since a cache of an earlier piece makes only the first pass uncertain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chance {
    first: f64,
    later: f64,
}

impl Chance {
    /// For passes of `examples` examples, with the growth of the earlier pieces in each pass.
    pub fn new(examples: u64, earlier: &[i64]) -> Chance {
        let (first, later) = earlier.split_at(earlier.len().min(1));
        let of = |earlier: &[i64]| floor(examples).max(OF_EARLIER * earlier.iter().sum::<i64>() as f64);
        Chance { first: of(first), later: of(later) }
    }
}

/// The kind of a growth over passes. `garbage` is the memory freed by the garbage collector, `rise` the course of the first pass.
pub(crate) fn kind(added: &[i64], garbage: Garbage, run: &Run, rise: &Rise, chance: Chance) -> Kind {
    let Some((&first, later)) = added.split_first() else { return Kind::Failed };
    // Neither a growth nor a drop that may be chance counts against the later passes.
    let first = if first.abs() as f64 <= chance.first { 0.0 } else { first as f64 };
    let [early, late] = halves(later);
    let total = first + early + late;
    if total > chance.later && (garbage.at_the_end as f64) > 0.5 * total {
        return Kind::Garbage;
    }
    // Memory that was given back again is not growth: for example, garbage not yet collected when a pass ended.
    if total <= chance.later.max(TAIL * first) {
        return quiet(run, garbage, chance.later);
    }
    if early + late > chance.later {
        // With a single later pass, one more would show whether the growth has ended.
        let is_even =
            if later.len() >= 2 { early.min(late) >= ALIKE * early.max(late) } else { late >= LIKE_THE_FIRST * first };
        if is_even {
            return Kind::Leak;
        }
        // A leak grows as much late as early, so growth that has nearly ended is not one.
        if later.len() < 2 || late > chance.later.max(TAIL * early) {
            return Kind::Undecided;
        }
    }
    match first == 0.0 || rise.comes_in_jumps() {
        true => Kind::WarmUp,
        false if rise.full_after().is_some() => Kind::FullCache,
        false => Kind::Cache,
    }
}

/// The kind of a run that holds no more memory at the end of its passes than at their beginning.
fn quiet(run: &Run, garbage: Garbage, floor: f64) -> Kind {
    if garbage.at_once as f64 > floor.max(WAITING) {
        return Kind::Garbage;
    }
    if file_growth(run) > FILE_FLOOR { Kind::FilePages } else { Kind::Flat }
}

/// Bytes freed by the garbage collector.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Garbage {
    /// By `gc.collect()` at the end.
    pub at_the_end: i64,
    /// Most by one automatic collection during the passes.
    pub at_once: i64,
}

/// Growth in the first and in the second half of the later passes; the middle one of an odd number is split between both.
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

/// Bytes allocated by `malloc` in the first pass and not freed, if read after each batch.
pub(crate) fn given_out(run: &Run) -> Option<i64> {
    let has_all = run.visits.iter().all(|visit| visit.allocated.is_some());
    run.passes.first().filter(|_| has_all)?.end.allocated.zip(run.base?.allocated).map(|(after, before)| after - before)
}

/// How memory rose in the first pass, batch by batch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rise {
    /// Examples seen, and bytes above the level after the warm-up.
    places: Vec<(u64, f64)>,
}

impl Rise {
    /// The rise in a run beyond the run without its last piece, which saw the same batches.
    ///
    /// Taken from the bytes allocated by `malloc`, if these account for at least half of the growth: resident memory rises in lumps, since the C
    /// library takes more from the system at once than it needs and reuses freed memory.
    pub fn new(run: &Run, earlier: Option<&Run>) -> Rise {
        let grown = held(run).first().copied().unwrap_or(0) as f64;
        if given_out(run).is_some_and(|given| given as f64 >= HALF * grown) {
            return Rise::of(run, earlier, |held| held.allocated, |visit| visit.allocated);
        }
        Rise::of(run, earlier, |held| Some(held.held), |visit| Some(visit.held))
    }

    fn of(run: &Run, earlier: Option<&Run>, base: fn(&Held) -> Option<i64>, level: fn(&Visit) -> Option<i64>) -> Rise {
        let above = |run: &Run, visit: &Visit| Some(level(visit)? - base(run.base.as_ref()?)?);
        let before = |visit: &Visit| {
            let same = |other: &&Visit| (other.number, other.examples) == (visit.number, visit.examples);
            earlier.and_then(|run| above(run, run.visits.iter().find(same)?)).unwrap_or(0)
        };
        let first = run.visits.iter().filter(|visit| visit.number == 1);
        let place = |visit: &Visit| Some((visit.examples, (above(run, visit)? - before(visit).max(0)) as f64));
        Rise { places: first.filter_map(place).collect() }
    }

    /// Whether most of the growth came with few of the batches.
    fn comes_in_jumps(&self) -> bool {
        if self.places.len() < FEWEST_BATCHES {
            return false;
        }
        // New highs only: memory freed in between is not growth.
        let mut highest = 0.0f64;
        let mut steps: Vec<f64> = Vec::new();
        for (_, level) in &self.places {
            steps.push((level - highest).max(0.0));
            highest = highest.max(*level);
        }
        // The first batch allocates the working memory of a batch; that is not growth either.
        let steps = &mut steps[1..];
        steps.sort_by(|a, b| b.total_cmp(a));
        let all: f64 = steps.iter().sum();
        let few: f64 = steps.iter().take(steps.len().div_ceil(10)).sum();
        all > 0.0 && few > JUMPS * all
    }

    /// The number of examples after which the growth ended within the pass, if it did.
    pub fn full_after(&self) -> Option<u64> {
        let (last, _) = self.places.last()?;
        if self.places.len() < FEWEST_BATCHES {
            return None;
        }
        let start = self.places[0].1.max(0.0);
        let highest = self.places.iter().map(|(_, level)| *level).fold(start, f64::max);
        let enough = start + NEARLY_ALL * (highest - start);
        let (at, _) = self.places.iter().find(|(_, level)| *level >= enough)?;
        ((*at as f64) < EARLY * *last as f64).then_some(*at)
    }
}

/// The growth per example that matters for a kind.
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
                    ..Visit::default()
                });
            }
            held += bytes;
            run.passes.push(Pass { end: Held { held, ..Held::default() }, before_trim: held, seconds: 1.0 });
        }
        run
    }

    fn kind_of(growth: &[i64], collected: i64) -> Kind {
        kind(
            growth,
            Garbage { at_the_end: collected, at_once: 0 },
            &run(growth),
            &Rise::new(&run(growth), None),
            Chance::new(50, &[]),
        )
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
        assert_eq!(kind_of(&[2 * MIB, -2 * MIB, 0], 0), Kind::Flat);
        assert_eq!(kind_of(&[0, 3 * MIB, 0], 0), Kind::WarmUp);
        assert_eq!(kind_of(&[50 * MIB, 3 * MIB, 0], 0), Kind::Cache);
        assert_eq!(kind_of(&[50 * MIB, 5 * MIB], 0), Kind::Undecided);
        assert_eq!(kind_of(&[50 * MIB, 20 * MIB, 5 * MIB, MIB, MIB / 8], 0), Kind::Cache);
        assert_eq!(kind_of(&[], 0), Kind::Failed);
    }

    /// However large a cache is, growth in later passes is measured as well as without it.
    #[test]
    fn a_leak_does_not_hide_behind_a_cache() {
        for cache in [10, 80, 1000, 40_000] {
            assert_eq!(kind_of(&[(cache + 2) * MIB, 2 * MIB, 2 * MIB], 0), Kind::Leak, "{cache}");
            assert_eq!(kind_of(&[cache * MIB, MIB / 4, MIB / 4, MIB / 4], 0), Kind::Leak, "{cache}");
            // One more pass would decide.
            assert_eq!(kind_of(&[(cache + 2) * MIB, 2 * MIB], 0), Kind::Undecided, "{cache}");
            // With a cache of an earlier piece, the addition in the first pass is anything within its scatter.
            for scatter in [-2, 0, 2] {
                let added = [2 * MIB + scatter * cache * MIB / 100, 2 * MIB, 2 * MIB];
                let run = run(&[cache * MIB + added[0], added[1], added[2]]);
                let chance = Chance::new(50, &[cache * MIB, 0, 0]);
                let rise = Rise::new(&run, None);
                assert_eq!(kind(&added, Garbage::default(), &run, &rise, chance), Kind::Leak, "{cache} {scatter}");
                let none = [scatter * cache * MIB / 100, MIB / 16, -MIB / 16];
                assert_eq!(kind(&none, Garbage::default(), &run, &rise, chance), Kind::Flat, "{cache} {scatter}");
            }
        }
    }

    #[test]
    fn a_cache_may_be_full_before_the_pass_ends() {
        let mut full = run(&[20 * MIB, 0, 0]);
        for visit in full.visits.iter_mut().filter(|visit| visit.number == 1) {
            visit.held = 100 * MIB + (2 * visit.examples as i64).min(40) * MIB / 2;
        }
        let rise = Rise::new(&full, None);
        assert_eq!(kind(&[20 * MIB, 0, 0], Garbage::default(), &full, &rise, Chance::new(50, &[])), Kind::FullCache);
        assert_eq!(rise.full_after(), Some(20));
    }

    #[test]
    fn jumps_are_no_cache() {
        let mut jumped = run(&[20 * MIB, 0, 0]);
        for visit in jumped.visits.iter_mut().filter(|visit| visit.number == 1) {
            visit.held = if visit.examples > 30 { 120 * MIB } else { 100 * MIB };
        }
        assert_eq!(
            kind(&[20 * MIB, 0, 0], Garbage::default(), &jumped, &Rise::new(&jumped, None), Chance::new(50, &[])),
            Kind::WarmUp
        );
        // Also where an earlier piece keeps more, evenly.
        let before = run(&[60 * MIB, 0, 0]);
        let mut both = jumped.clone();
        for (visit, other) in both.visits.iter_mut().zip(&before.visits) {
            visit.held += other.held - 100 * MIB;
        }
        let rise = Rise::new(&both, Some(&before));
        assert_eq!(kind(&[20 * MIB, 0, 0], Garbage::default(), &both, &rise, Chance::new(50, &[])), Kind::WarmUp);
    }

    #[test]
    fn what_malloc_gave_out_is_smoother_than_what_is_resident() {
        let mut lumpy = run(&[20 * MIB, 0, 0]);
        for visit in &mut lumpy.visits {
            visit.allocated = Some(visit.held - 30 * MIB);
            visit.held = if visit.examples > 30 { 120 * MIB } else { 100 * MIB };
        }
        lumpy.base.as_mut().unwrap().allocated = Some(70 * MIB);
        lumpy.passes[0].end.allocated = Some(90 * MIB);
        assert_eq!(
            kind(&[20 * MIB, 0, 0], Garbage::default(), &lumpy, &Rise::new(&lumpy, None), Chance::new(50, &[])),
            Kind::Cache
        );
        // If it does not account for the growth, resident memory decides.
        lumpy.passes[0].end.allocated = Some(70 * MIB);
        assert_eq!(
            kind(&[20 * MIB, 0, 0], Garbage::default(), &lumpy, &Rise::new(&lumpy, None), Chance::new(50, &[])),
            Kind::WarmUp
        );
    }

    #[test]
    fn what_an_earlier_run_grew_by_is_taken_off() {
        assert_eq!(beyond(&[10, 9, 8], &[4, 3]), vec![6, 6, 5]);
        assert_eq!(beyond(&[10, 9], &[]), vec![10, 9]);
        assert_eq!(beyond(&[10, 9], &[-4, 3]), vec![10, 6]);
    }
}

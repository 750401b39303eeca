//! Holds every number that reports state to what the runs were drawn with.
//!
//! A claim says what it is about, its 95 % interval and the stretch of the clock; the floor that a run was drawn with gives the truth
//! for the same stretch. Each run is looked at five times as it grows. `GARDEN_SEED` and `GARDEN_RUNS` draw others.

#![allow(clippy::print_stdout, reason = "the shares by kind are part of the result")]

use std::collections::BTreeMap;

use crate::population::{EXTRA, Floor, HEALTHY, Kind, LEAKS, LONG, Random, Run, draw, runs};
use garden_memory::{Claim, Diagnosis, MIB, Quantified, Question, Verdict, diagnose};

const LOOKS: usize = 5;
/// Growth from here on is reported, so "not a leak" must not be said of more.
const MATERIAL: f64 = 16.0 * MIB as f64;

/// Claims of a kind, and those of them that were false.
#[derive(Clone, Copy, Default)]
struct Tally {
    all: u64,
    wrong: u64,
}

impl Tally {
    fn share(self) -> f64 {
        self.wrong as f64 / self.all.max(1) as f64
    }
}

/// What became of all claims, by what they are about and by the kind of run.
#[derive(Default)]
struct Tallies(BTreeMap<(String, Option<Kind>), Tally>);

impl Tallies {
    fn add(&mut self, what: &str, kind: Kind, holds: bool) {
        for key in [(what.to_string(), None), (what.to_string(), Some(kind))] {
            let tally = self.0.entry(key).or_default();
            tally.all += 1;
            tally.wrong += u64::from(!holds);
        }
    }

    fn of(&self, what: &str) -> Tally {
        self.0.get(&(what.to_string(), None)).copied().unwrap_or_default()
    }

    fn print(&self) {
        for ((what, kind), tally) in &self.0 {
            match kind {
                None => println!("{what}: {}, false {:.2} %", tally.all, 100.0 * tally.share()),
                Some(kind) if tally.share() > 0.05 => {
                    println!("    {kind:?}: {}, false {:.1} %", tally.all, 100.0 * tally.share());
                }
                Some(_) => {}
            }
        }
    }
}

/// What a run shows by now of its floor: before its first wave has fallen back the wave is all that there is to see, and until a third
/// one has, nobody can say.
fn visible(run: &Run, count: usize) -> Option<Floor> {
    let (floor, memory) = (run.floor.clone()?, run.memory.clone()?);
    let steps =
        run.samples[run.restart.filter(|&at| at < count).unwrap_or(0)..count].iter().filter_map(|sample| sample.step);
    let levels: Vec<f64> = steps.map(|step| memory(step)).collect();
    match levels.windows(2).filter(|pair| pair[1] < pair[0] - 1.0).count() {
        0 => Some(memory),
        1 | 2 => None,
        _ => Some(floor),
    }
}

/// What is true of the quantity that a claim is about; `None` where the drawn floor does not say. A warm-up goes on at its rate only as far
/// as a leak's is told from it.
fn truth(claim: &Claim, kind: Kind, floor: &Floor, is_leak: bool) -> Option<f64> {
    let (from, to) = (claim.from, claim.to);
    let change = floor(to) - floor(from);
    let mean = || (0..=20).map(|k| floor(from + (to - from) * f64::from(k) / 20.0)).sum::<f64>() / 21.0;
    match claim.quantity {
        Quantified::Level => Some(mean()),
        Quantified::Rate | Quantified::RateAtMost => (to > from).then(|| change / (to - from)),
        Quantified::Change => Some(change),
        Quantified::LevelIfBounded => matches!(kind, Kind::EpochFill | Kind::LongEpoch).then(|| floor(to)),
        Quantified::LevelIfEndless => {
            (kind == Kind::LinearLeak || is_leak && kind == Kind::WarmUpAndLine).then(|| floor(to))
        }
        Quantified::End => None,
    }
}

fn holds(claim: &Claim, truth: f64) -> bool {
    claim.low.is_none_or(|low| low <= truth) && claim.high.is_none_or(|high| truth <= high)
}

/// Where growth of a settled verdict ended, for kinds whose growth ends at one place: the last at which the drawn floor rose by then. If it
/// rises still, none has ended.
fn judge_end(tallies: &mut Tallies, run: &Run, kind: Kind, floor: &Floor, found: &Diagnosis) {
    if run.end.is_none() || found.verdict != Verdict::Settled {
        return;
    }
    // Growth that is said to go on more slowly has ended in part only.
    let goes_on = |end: &Claim| {
        let is_since = |claim: &&Claim| claim.quantity == Quantified::Change && Some(claim.from) == end.high;
        found.claims.iter().find(is_since).is_some_and(|since| since.low.is_some_and(|low| low > 0.0))
    };
    for claim in found.claims.iter().filter(|claim| claim.quantity == Quantified::End && !goes_on(claim)) {
        let steps = (claim.to - claim.from).ceil() as usize;
        let rises = |step: &f64| floor(*step) - floor(*step - 1.0) > 1.0;
        let last = (0..steps).map(|back| claim.to - back as f64).find(rises);
        let has_ended = last.is_some_and(|last| last < claim.to || run.end.is_some_and(|end| end >= claim.to - 1.0));
        // The end lies within the last step that rose.
        let is_there = last.is_some_and(|last| (0..=4).any(|part| holds(claim, last - 0.25 * f64::from(part))));
        tallies.add("End", kind, has_ended && is_there);
    }
}

/// A rate and a rise of one growth are about the same thing: over one stretch they agree, and a later part of a growth that never falls
/// adds no more than the whole.
fn judge_pair(tallies: &mut Tallies, kind: Kind, found: &Diagnosis) {
    let of = |quantity: Quantified| found.claims.iter().find(|claim| claim.quantity == quantity);
    let Some((rate, rise)) = of(Quantified::Rate).zip(of(Quantified::Change)) else { return };
    if found.growth.bytes_per_step.is_none() || rate.to != rise.to {
        return;
    }
    let by_rate = rate.value * (rate.to - rate.from);
    let agree = match rate.from == rise.from {
        true => (by_rate - rise.value).abs() <= 0.01 * by_rate.abs(),
        false => by_rate <= rise.high.unwrap_or(f64::INFINITY).max(rise.value),
    };
    tallies.add("rate and rise agree", kind, agree);
}

fn judge(tallies: &mut Tallies, kind: Kind, floor: &Floor, found: &Diagnosis) {
    judge_pair(tallies, kind, found);
    for claim in &found.claims {
        let Some(truth) = truth(claim, kind, floor, found.verdict == Verdict::Leak) else { continue };
        tallies.add(&format!("{:?}", claim.quantity), kind, holds(claim, truth));
        let has_width = claim.low.zip(claim.high).is_none_or(|(low, high)| low < high);
        tallies.add("an interval", kind, has_width);
    }
    let since = found.claims.iter().find(|claim| claim.quantity == Quantified::RateAtMost);
    if let Some(since) = since.filter(|_| found.summary.contains("not a leak")) {
        tallies.add("not a leak", kind, floor(since.to) - floor(since.from) < MATERIAL);
    }
}

fn drawn(kind: Kind) -> impl Iterator<Item = Run> {
    let seed = garden_testing::seed().wrapping_mul(7_000_003);
    // Fewer runs than in the other tests: each is told in full here, and makes many claims.
    (0..runs() / 20).map(move |run| {
        let mut run = draw(kind, &mut Random(seed ^ (kind as u64) << 32 ^ run));
        run.facts.total_steps = run.samples.last().and_then(|last| last.step).map(|last| 2 * last as u64);
        run
    })
}

#[test]
fn every_claim_of_a_report_holds() {
    let mut tallies = Tallies::default();
    let others = [Kind::SlowingCapacity, Kind::PausingLeak, Kind::WarmUpAndLine];
    for kind in HEALTHY.into_iter().chain(LEAKS).chain(EXTRA).chain(LONG).chain(others) {
        for run in drawn(kind) {
            for count in (1..=LOOKS).map(|look| run.samples.len() * look / LOOKS) {
                let Some(floor) = visible(&run, count) else { continue };
                let found = diagnose(&run.trace(count), &Question::default());
                judge(&mut tallies, kind, &floor, &found);
                judge_end(&mut tallies, &run, kind, &floor, &found);
            }
        }
    }
    println!("seed {}, {} runs of each kind", garden_testing::seed(), runs() / 20);
    tallies.print();
    let wrong = |what: &str| tallies.of(what).share();
    assert!((0.01..=0.10).contains(&wrong("Rate")), "{}", wrong("Rate"));
    for what in ["Level", "Change", "End", "LevelIfBounded", "LevelIfEndless"] {
        assert!(wrong(what) <= 0.10, "{what}: {}", wrong(what));
    }
    for what in ["RateAtMost", "not a leak"] {
        assert!(wrong(what) <= 0.05, "{what}: {}", wrong(what));
    }
    assert!(wrong("rate and rise agree") <= 0.01, "{}", wrong("rate and rise agree"));
    assert!(tallies.of("an interval").wrong == 0);
}

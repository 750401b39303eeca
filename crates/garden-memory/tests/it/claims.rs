//! Holds every number that reports state to what the runs were drawn with.
//!
//! A claim says what it is about, its 95 % interval and the stretch of the clock; the floor that a run was drawn with gives the truth
//! for the same stretch. Each run is looked at five times as it grows. `GARDEN_SEED` and `GARDEN_RUNS` draw others.

#![allow(clippy::print_stdout, reason = "the shares by kind are part of the result")]

use std::collections::BTreeMap;

use crate::population::{Floor, HEALTHY, Kind, LEAKS, Random, Run, draw, runs};
use garden_memory::{Claim, Diagnosis, MIB, Quantified, Question, diagnose};

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

/// What is true of the quantity that a claim is about; `None` where the drawn floor does not say.
fn truth(claim: &Claim, kind: Kind, floor: &Floor) -> Option<f64> {
    let (from, to) = (claim.from, claim.to);
    let change = floor(to) - floor(from);
    let mean = || (0..=20).map(|k| floor(from + (to - from) * f64::from(k) / 20.0)).sum::<f64>() / 21.0;
    match claim.quantity {
        Quantified::Level => Some(mean()),
        Quantified::Rate | Quantified::RateAtMost => (to > from).then(|| change / (to - from)),
        Quantified::Change => Some(change),
        Quantified::LevelIfBounded => matches!(kind, Kind::EpochFill | Kind::LongEpoch).then(|| floor(to)),
        Quantified::LevelIfEndless => (kind == Kind::LinearLeak).then(|| floor(to)),
        Quantified::End => None,
    }
}

fn holds(claim: &Claim, truth: f64) -> bool {
    claim.low.is_none_or(|low| low <= truth) && claim.high.is_none_or(|high| truth <= high)
}

fn judge(tallies: &mut Tallies, kind: Kind, floor: &Floor, found: &Diagnosis) {
    for claim in &found.claims {
        let Some(truth) = truth(claim, kind, floor) else { continue };
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
    for kind in HEALTHY.into_iter().chain(LEAKS).chain([Kind::SlowingCapacity, Kind::PausingLeak]) {
        for run in drawn(kind) {
            for count in (1..=LOOKS).map(|look| run.samples.len() * look / LOOKS) {
                let Some(floor) = visible(&run, count) else { continue };
                let found = diagnose(&run.trace(count), &Question::default());
                judge(&mut tallies, kind, &floor, &found);
            }
        }
    }
    println!("seed {}, {} runs of each kind", garden_testing::seed(), runs() / 20);
    tallies.print();
    let wrong = |what: &str| tallies.of(what).share();
    assert!((0.01..=0.10).contains(&wrong("Rate")), "{}", wrong("Rate"));
    for what in ["Level", "Change", "LevelIfBounded", "LevelIfEndless"] {
        assert!(wrong(what) <= 0.10, "{what}: {}", wrong(what));
    }
    for what in ["RateAtMost", "not a leak"] {
        assert!(wrong(what) <= 0.05, "{what}: {}", wrong(what));
    }
    assert!(tallies.of("an interval").wrong == 0);
}

//! Holds the error rates that `docs/diagnose.md` states, on the population that it describes.
//!
//! Each healthy run is looked at ten times as it grows; one `leak` at any look is an error. Each leaking run is looked at
//! once, at its end. `GARDEN_SEED` picks another draw, `GARDEN_RUNS` another number of runs per kind.

#![allow(clippy::print_stdout, reason = "the seed and the rates by kind are part of the result")]

use std::collections::BTreeMap;

use crate::population::{HEALTHY, Kind, LEAKS, Random, draw, runs};
use garden_memory::{Question, Verdict, diagnose};

const LOOKS: usize = 10;

/// Runs each kind so many times and counts the runs for which `is_wrong` holds.
fn errors(kinds: &[Kind], is_wrong: impl Fn(&crate::population::Run) -> bool) -> (f64, BTreeMap<Kind, f64>) {
    let (seed, runs) = (garden_testing::seed(), runs());
    println!("seed {seed}, {runs} runs of each kind; set GARDEN_SEED and GARDEN_RUNS for others");
    let mut by_kind = BTreeMap::new();
    for &kind in kinds {
        let wrong = (0..runs)
            .filter(|run| {
                let mut random = Random(seed.wrapping_mul(1_000_003) ^ (kind as u64) << 32 ^ run);
                let wrong = is_wrong(&draw(kind, &mut random));
                if wrong {
                    println!("wrong: {kind:?} run {run}");
                }
                wrong
            })
            .count();
        by_kind.insert(kind, wrong as f64 / runs as f64);
    }
    let mean = by_kind.values().sum::<f64>() / by_kind.len() as f64;
    println!("{mean:.4} {by_kind:?}");
    (mean, by_kind)
}

#[test]
fn healthy_runs_are_called_leaks_in_less_than_one_per_cent() {
    let (mean, _) = errors(&HEALTHY, |run| {
        (1..=LOOKS).any(|look| {
            let trace = run.trace(run.samples.len() * look / LOOKS);
            diagnose(&trace, &Question::default()).verdict == Verdict::Leak
        })
    });
    assert!(mean < 0.01, "{mean}");
}

#[test]
fn leaks_are_missed_in_less_than_five_per_cent() {
    let (mean, _) =
        errors(&LEAKS, |run| diagnose(&run.trace(run.samples.len()), &Question::default()).verdict != Verdict::Leak);
    assert!(mean < 0.05, "{mean}");
}

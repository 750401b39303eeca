//! What a reassuring verdict could not have seen: the slowest leak that would have shown in this trace.
//!
//! It is found by trying: straight growth is added to the samples, and they are judged again. A formula would have to know
//! every rule of the judge; this knows none of them.

use crate::context::Context;
use crate::diagnosis::{Clock, Sensitivity, Verdict};
use crate::judge::judge;
use crate::passes::Passes;
use crate::shape::Shape;

/// Each rate tried is this much faster than the one below.
const FINER: f64 = 1.25;
/// Rates tried below the one that comes to a material amount, at most: at half of it, a verdict hangs on chance.
const SLOWER: i32 = 3;
/// And above it: up to 14 times.
const FASTER: i32 = 12;

/// The slowest leak that would show; `None` unless the verdict reassures.
pub(crate) fn sensitivity(context: &Context) -> Option<Sensitivity> {
    if !matches!(context.finding.verdict, Verdict::Flat | Verdict::Sawtooth | Verdict::Settled) {
        return None;
    }
    let shape = context.shape;
    let knee = context.finding.knee.map(|(at, _, _)| at).filter(|_| context.finding.verdict == Verdict::Settled);
    let from = knee.or(context.finding.start_up.map(|growth| growth.to)).unwrap_or(shape.first());
    let length = Some(shape.last() - from).filter(|&length| length > 0.0)?;
    let per_unit = slowest_seen(shape, shape.material() / length);
    Some(Sensitivity {
        bytes_per_step: (context.clock == Clock::Step).then_some(per_unit),
        bytes_per_second: context.seconds_per_unit.map(|seconds| per_unit / seconds).filter(|rate| rate.is_finite()),
        over: length,
    })
}

/// The slowest growth that shows when it is added to a shape, from a guess on: down while it shows, else up until it does. If none
/// shows it is the fastest one tried.
fn slowest_seen(shape: &Shape, guess: f64) -> f64 {
    let rate = |trial: i32| guess * FINER.powi(trial);
    let shows = |trial: i32| {
        let leaking = shape.with_growth(rate(trial));
        // Without passes every leak is called growing, which is enough here.
        leaking.is_some_and(|leaking| judge(&leaking, Passes::Unknown).verdict == Verdict::Growing)
    };
    let trial = match shows(0) {
        true => (1..=SLOWER).map(|trial| -trial).take_while(|&trial| shows(trial)).last().unwrap_or(0),
        // Twice, since a rate may show by chance.
        false => (1..FASTER).find(|&trial| shows(trial) && shows(trial + 1)).unwrap_or(FASTER),
    };
    rate(trial)
}

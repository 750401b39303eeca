//! What a reassuring verdict could not have seen: the slowest leak that would have shown in this trace.

use crate::context::Context;
use crate::diagnosis::{Clock, Sensitivity, Verdict};
use crate::stats::{Point, student_t};
use crate::trend::Trend;

/// One-sided normal quantiles: a growth must rise this surely to count, and a leak at the stated rate does so 19 times in 20.
const SURE: f64 = 3.0;
const SEEN: f64 = 1.64;

/// The slowest leak that would show; `None` unless the verdict reassures.
pub(crate) fn sensitivity(context: &Context) -> Option<Sensitivity> {
    if !matches!(context.finding.verdict, Verdict::Flat | Verdict::Sawtooth | Verdict::Settled) {
        return None;
    }
    let shape = context.shape;
    let knee = context.finding.knee.map(|(at, _, _)| at).filter(|_| context.finding.verdict == Verdict::Settled);
    let from = knee.or(context.finding.start_up.map(|growth| growth.to)).unwrap_or(shape.first());
    let quiet: &[Point] = shape.floor_between(from, shape.last());
    let length = shape.last() - from;
    // After a growth that ended, only what its later half still shows counts as another (`judge.rs`).
    let is_halved = knee.is_some() && quiet.len() >= 10;
    let examined = if is_halved { &quiet[quiet.len() / 2..] } else { quiet };
    let trend = Trend::of(examined).filter(|_| length > 0.0)?;
    let by_noise = (student_t(SURE, trend.degrees) + SEEN) * trend.error;
    let per_unit = by_noise.max(shape.material() / length);
    Some(Sensitivity {
        bytes_per_step: (context.clock == Clock::Step).then_some(per_unit),
        bytes_per_second: context.seconds_per_unit.map(|seconds| per_unit / seconds).filter(|rate| rate.is_finite()),
        over: length,
    })
}

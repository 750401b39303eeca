//! What a reassuring verdict cannot exclude: the fastest growth that the samples allow.
//!
//! It is the upper end of the 95 % interval of the floor's own slope, so it contains whatever growth is there already. Nothing is
//! added to the samples to find it.

use crate::claims::Claims;
use crate::context::Context;
use crate::diagnosis::{Clock, Sensitivity, Verdict};

/// The fastest growth that the samples allow; `None` unless the verdict reassures.
pub(crate) fn sensitivity(context: &Context, claims: &Claims) -> Option<Sensitivity> {
    if !matches!(context.finding.verdict, Verdict::Flat | Verdict::Sawtooth | Verdict::Settled) {
        return None;
    }
    let most = claims.at_most?;
    let per_unit = most.high?;
    Some(Sensitivity {
        bytes_per_step: (context.clock == Clock::Step).then_some(per_unit),
        bytes_per_second: context.seconds_per_unit.map(|seconds| per_unit / seconds).filter(|rate| rate.is_finite()),
        over: most.to - most.from,
    })
}

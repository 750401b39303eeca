//! Amounts, rates, places and times, phrased for sentences.
//!
//! Sentences are written once, in the core (`summary.rs`, `evidence.rs`, `advice.rs`); text, Markdown and JSON show the same ones.

use crate::bytes::Bytes;
use crate::context::Context;
use crate::diagnosis::Clock;
use crate::elapsed::elapsed;
use crate::number::counted;
use crate::series::Bounds;

/// An amount for a sentence.
pub(crate) fn size(bytes: f64) -> Bytes {
    Bytes::from_f64(bytes)
}

/// A rate such as `171 MiB per step`.
pub(crate) fn rate(context: &Context, per_unit: f64) -> String {
    match context.clock {
        // People think in minutes when there are no steps.
        Clock::Time => format!("{} per minute", size(60.0 * per_unit)),
        clock => format!("{} per {}", size(per_unit), clock.unit()),
    }
}

/// A stretch of the clock, such as `40 steps` or `12 min`.
pub(crate) fn duration(context: &Context, length: f64) -> String {
    match context.clock {
        Clock::Time => elapsed(length),
        clock => counted(length.round() as usize, clock.unit()),
    }
}

/// A place such as `step 83` or `12 min`.
pub(crate) fn place(context: &Context, x: f64) -> String {
    match context.clock {
        Clock::Time => elapsed(x - context.origin),
        clock => format!("{} {:.0}", clock.unit(), x.round()),
    }
}

/// The note about samples with bounds only.
pub(crate) fn about_bounds(bounds: Bounds, samples: usize) -> Option<String> {
    let why = "only bounds of the process tree's memory are known, since its processes forked or copied pages and were not yet read";
    match bounds {
        Bounds::None => None,
        Bounds::LeftOut(count) => Some(format!("{count} of {} left out: {why}", counted(samples, "sample"))),
        Bounds::Taken(count) => {
            Some(format!("{count} of {} estimated from the change of their bounds: {why}", counted(samples, "sample")))
        }
    }
}

/// The note about a clock that was set, or samples in no order.
pub(crate) fn about_the_clock(set_back: usize, is_shuffled: bool, clock: Clock) -> Option<String> {
    match (set_back, is_shuffled) {
        (_, true) => Some(format!("the samples are in no order: sorted by {}", clock.unit())),
        (0, _) => None,
        (times, _) => Some(format!(
            "the clock goes back {}, though memory does not: taken for one process whose clock was set",
            if times == 1 { "once".into() } else { format!("{times} times") }
        )),
    }
}

/// The note about samples whose clock went back.
pub(crate) fn out_of_order(count: usize, clock: Clock) -> String {
    format!("{} skipped: the {} goes backwards", counted(count, "sample"), clock.unit())
}

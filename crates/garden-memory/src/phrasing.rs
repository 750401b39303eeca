//! Amounts, rates, places and times as sentences have them.
//!
//! Sentences are made in the core (`summary.rs`, `evidence.rs`, `advice.rs`), once; text, Markdown and JSON show the same ones.

use crate::bytes::Bytes;
use crate::context::Context;
use crate::diagnosis::Clock;
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

/// A place such as `step 83` or `12 min`.
pub(crate) fn place(context: &Context, x: f64) -> String {
    match context.clock {
        Clock::Time => duration(x - context.origin),
        clock => format!("{} {:.0}", clock.unit(), x.round()),
    }
}

/// A length of time in its natural unit.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 90.0 => format!("{s:.0} s"),
        s if s < 5400.0 => format!("{}:{:02} min", s as u64 / 60, s as u64 % 60),
        s if s < 172_800.0 => format!("{:.1} h", s / 3600.0),
        s => format!("{:.1} days", s / 86_400.0),
    }
}

/// A number with its noun, in the plural where it needs one.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// What became of samples that know bounds only.
pub(crate) fn about_bounds(bounds: Bounds, samples: usize) -> Option<String> {
    let why = "the memory of the process tree is known by bounds only, since its processes forked or copied pages and were not read yet";
    match bounds {
        Bounds::None => None,
        Bounds::LeftOut(count) => Some(format!("{count} of {} left out: {why}", counted(samples, "sample"))),
        Bounds::Taken(count) => {
            Some(format!("{count} of {} taken as the change of their bounds has it: {why}", counted(samples, "sample")))
        }
    }
}

/// The note about samples whose clock went back.
pub(crate) fn out_of_order(count: usize, clock: Clock) -> String {
    format!("{} skipped: the {} goes back behind an earlier one", counted(count, "sample"), clock.unit())
}

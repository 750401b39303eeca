//! The assertion `--stable-after STEP --max-variation BYTES`, for continuous integration.

use crate::bytes::Bytes;
use crate::diagnosis::{Clock, StabilityCheck};
use crate::series::Series;

/// Samples after the step at least: fewer cannot show that a level stays.
const FEWEST_AFTER: usize = 5;
/// The trace must go on for this share of the step: stability after step 90 takes until step 113 to show.
const REACH: f64 = 0.25;

/// Checks that the training samples after `step` stay within `bound`, and that there are enough of them to say so.
pub(crate) fn check_stability(series: &Series, step: f64, bound: Bytes, clock: Clock) -> StabilityCheck {
    let unit = clock.unit();
    let after = &series.points[series.points.partition_point(|p| p.x < step)..];
    let needed = step + REACH * step.abs();
    let last = series.points.last().map_or(f64::NEG_INFINITY, |p| p.x);
    let mut check = StabilityCheck {
        passed: false,
        after_step: step,
        max_variation_bytes: bound.0,
        variation_bytes: None,
        text: String::new(),
    };
    if after.len() < FEWEST_AFTER || last < needed {
        check.text = format!(
            "the trace must reach {unit} {needed:.0} with at least {FEWEST_AFTER} samples from {unit} {step:.0} on; \
             it has {} and ends at {unit} {}",
            after.len(),
            if last.is_finite() { format!("{last:.0}") } else { "0".into() },
        );
        return check;
    }
    let low = after.iter().map(|p| p.y).fold(f64::INFINITY, f64::min);
    let high = after.iter().map(|p| p.y).fold(f64::NEG_INFINITY, f64::max);
    let variation = Bytes::from_f64(high - low);
    check.variation_bytes = Some(variation.0);
    check.passed = variation <= bound;
    check.text = format!(
        "from {unit} {step:.0} to {last:.0} memory varied by {variation} (lowest {}, highest {}); allowed are {bound}",
        Bytes::from_f64(low),
        Bytes::from_f64(high),
    );
    check
}

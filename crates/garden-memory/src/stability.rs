//! The assertion `--stable-after STEP` or `--stable-between A..B`, with `--max-variation` and `--max-growth`, for continuous
//! integration.

use crate::bytes::Bytes;
use crate::diagnosis::{Clock, StabilityCheck};
use crate::series::Series;

/// Fewest samples after the step: fewer cannot show that a level stays.
const FEWEST_AFTER: usize = 5;
/// The trace must go on for this share of the step: stability after step 90 takes until step 113 to show.
const REACH: f64 = 0.25;
/// Fewest samples in a window. Its end is given, so there is no need to guess how far the trace must go on.
const FEWEST_BETWEEN: usize = 3;

/// The assertion.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stability {
    /// The first step that counts.
    pub from: f64,
    /// The last one; `None` for the end of the trace.
    pub to: Option<f64>,
    /// The highest level may exceed the lowest by at most this.
    pub max_variation: Option<Bytes>,
    /// No level may exceed an earlier one by more than this; memory may fall.
    pub max_growth: Option<Bytes>,
}

/// Checks the training samples that count, and that there are enough of them.
pub(crate) fn check_stability(series: &Series, asked: Stability, clock: Clock) -> StabilityCheck {
    let Stability { from, to, max_variation, max_growth } = asked;
    let unit = clock.unit();
    let begin = series.points.partition_point(|p| p.x < from);
    let end = to.map_or(series.points.len(), |to| series.points.partition_point(|p| p.x <= to));
    let points = series.points.get(begin..end).unwrap_or_default();
    let (needed, fewest) = match to {
        Some(to) => (to, FEWEST_BETWEEN),
        None => (from + REACH * from.abs(), FEWEST_AFTER),
    };
    let last = series.points.last().map_or(f64::NEG_INFINITY, |p| p.x);
    // A window is only known if the trace covers its beginning.
    let is_late = to.is_some() && series.points.first().is_none_or(|p| p.x > from);
    let mut check = StabilityCheck {
        passed: false,
        after_step: from,
        until_step: to,
        max_variation_bytes: max_variation.map(|bound| bound.0),
        variation_bytes: None,
        max_growth_bytes: max_growth.map(|bound| bound.0),
        growth_bytes: None,
        text: String::new(),
    };
    if points.len() < fewest || last < needed || is_late {
        let whole = if to.is_some() { format!("reach from {unit} {from:.0} to") } else { format!("reach {unit}") };
        let first = series.points.first().map_or(0.0, |p| p.x);
        check.text = format!(
            "the trace must {whole} {needed:.0} with at least {fewest} samples from {unit} {from:.0} on; \
             it has {}, begins at {unit} {first:.0} and ends at {unit} {}",
            points.len(),
            if last.is_finite() { format!("{last:.0}") } else { "0".into() },
        );
        return check;
    }
    let (mut low, mut high, mut growth) = (f64::INFINITY, f64::NEG_INFINITY, 0.0_f64);
    for point in points {
        (low, high) = (low.min(point.y), high.max(point.y));
        growth = growth.max(point.y - low);
    }
    let (variation, growth) = (Bytes::from_f64(high - low), Bytes::from_f64(growth));
    (check.variation_bytes, check.growth_bytes) = (Some(variation.0), Some(growth.0));
    check.passed =
        max_variation.is_none_or(|bound| variation <= bound) && max_growth.is_none_or(|bound| growth <= bound);
    let varied = max_variation.map(|bound| {
        let (low, high) = (Bytes::from_f64(low), Bytes::from_f64(high));
        format!("varied by {variation} (lowest {low}, highest {high}); {bound} allowed")
    });
    let grew = max_growth.map(|bound| format!("rose by at most {growth}; {bound} allowed"));
    let words: Vec<String> = varied.into_iter().chain(grew).collect();
    let last = to.unwrap_or(last);
    check.text = format!("from {unit} {from:.0} to {last:.0} memory {}", words.join(", and it "));
    check
}

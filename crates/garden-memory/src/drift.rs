//! What memory did since a place, with the interval that the samples allow: the numbers behind "and not since".
//!
//! A slope's interval is Student's, with noise estimated from residuals and widened for autocorrelation (`trend.rs`), and for the
//! resolution of the values.

use crate::growth::Stretch;
use crate::segments::Segment;
use crate::shape::Shape;
use crate::stats::{Point, Rate, median, student_t};
use crate::trend::{Bend, Trend, noise_of};
use crate::waves::Waves;

/// Below so many lows all samples are asked, unless waves stand on the lows.
const FEWEST_LOWS: usize = 8;
/// Samples at each end of a stretch: few, since a curve is steep at its beginning.
const AT_ENDS: usize = 3;
/// Of fewer samples than this, three at each end are too much of the stretch: their medians lie well inside of it.
const FEW: usize = 24;
/// One-sided normal quantile for "it is curved": 1 in 20.
const CURVED: f64 = 1.64;
/// Standard deviations of a sample within which 95 % of differences between the medians of three correlated samples lie: between 2 for
/// independent and 2.8 for equal ones.
const OF_ENDS: f64 = 2.4;
/// Two-sided normal quantile of 95 %.
const WITHIN: f64 = 1.96;

/// The points that show what the floor did over a stretch.
pub(crate) fn telling(shape: &Shape, from: f64, to: f64) -> &[Point] {
    let floor = shape.floor_between(from, to);
    let is_enough = floor.len() >= if has_waves(shape) { 3 } else { FEWEST_LOWS };
    if is_enough { floor } else { shape.points_between(from, to) }
}

/// Whether lows say more than samples do.
fn has_waves(shape: &Shape) -> bool {
    !matches!(shape.waves, Waves::None) || shape.staircase.is_some()
}

/// The mean rate over a stretch; `None` if too few samples say anything about it.
pub(crate) fn drift(shape: &Shape, from: f64, to: f64) -> Option<Rate> {
    Some(Trend::of(telling(shape, from, to))?.rate(shape.resolution))
}

/// The fastest growth since a place that the samples allow: over all of it, and over the straight stretch at its end, so that a fall
/// before does not hide a rise now.
pub(crate) fn most_since(shape: &Shape, from: f64) -> Option<f64> {
    let now = shape.last();
    let latest = shape.segments.last().map_or(from, |segment| shape.floor[segment.start].x);
    let whole = drift(shape, from, now)?.high;
    let recent = drift(shape, latest, now).filter(|_| latest > from).map_or(whole, |rate| rate.high);
    let ends = between_ends(shape, from, now).map_or(whole, |change| change.high / (now - from));
    Some(whole.max(recent).max(ends).max(0.0))
}

/// What the floor gained from one place to another, in bytes: by one line, or from the first of several straight stretches to the last.
///
/// A line says little about the ends of a curve, so the interval contains what the samples at both ends say.
pub(crate) fn change(shape: &Shape, from: f64, to: f64) -> Option<Rate> {
    let found = match stretches(shape, from, to).as_slice() {
        [first, .., last] => {
            let value = last.line.at(to) - first.line.at(from.max(shape.floor[first.start].x));
            let half = end_error(shape, first).hypot(end_error(shape, last)) + shape.resolution;
            Rate { value, low: value - half, high: value + half }
        }
        _ => {
            let rate = drift(shape, from, to)?;
            let over = |rate: f64| rate * (to - from);
            Rate { value: over(rate.value), low: over(rate.low), high: over(rate.high) }
        }
    };
    Some(widened(found, between_ends(shape, from, to)))
}

/// The straight stretches of the floor that lie in a stretch of the clock by half or more.
fn stretches(shape: &Shape, from: f64, to: f64) -> Vec<&Segment> {
    let is_inside = |segment: &&Segment| {
        let (start, end) = (shape.floor[segment.start].x, shape.floor[segment.end - 1].x);
        (from..=to).contains(&(0.5 * (start + end)))
    };
    shape.segments.iter().filter(is_inside).collect()
}

/// How far the end of a fitted line may be from the floor.
fn end_error(shape: &Shape, segment: &Segment) -> f64 {
    let points = &shape.floor[segment.start..segment.end];
    let (variance, degrees) = noise_of(&segment.line.residuals(points), 2.0);
    // A line is twice as uncertain at its ends as in its middle.
    student_t(WITHIN, degrees) * 2.0 * (variance / points.len().max(1) as f64).sqrt()
}

/// The rate of a growth over a stretch with its interval: that of the line, and what the samples at both ends say.
pub(crate) fn paced(shape: &Shape, from: f64, to: f64, value: f64) -> Rate {
    let length = (to - from).max(shape.spacing).max(f64::MIN_POSITIVE);
    // Two samples show their difference, and the noise of both.
    let blunt = (2.0 * WITHIN * shape.noise.sigma + shape.resolution) / length;
    let line = drift(shape, from, to).unwrap_or(Rate { value, low: value - blunt, high: value + blunt });
    let per_unit =
        |change: Rate| Rate { value: change.value / length, low: change.low / length, high: change.high / length };
    let with_value = widened(line, Some(Rate { value, low: value, high: value }));
    Rate { value, ..widened(with_value, between_ends(shape, from, to).map(per_unit)) }
}

/// A growth whose rate and rise say the same. Of a straight growth the robust rate is the better number, and the rise follows from it; of
/// any other the rise is what happened, and the rate is its mean.
pub(crate) fn agreeing(shape: &Shape, growth: Stretch) -> Stretch {
    let length = growth.to - growth.from;
    if growth.paced_from > growth.from || length <= 0.0 {
        return growth;
    }
    let by_rate = growth.rate.value * length;
    let is_straight =
        change(shape, growth.from, growth.to).is_some_and(|found| (found.low..=found.high).contains(&by_rate));
    if is_straight && by_rate > 0.0 && !growth.is_jump {
        return Stretch { rise: by_rate, ..growth };
    }
    let value = growth.rise / length;
    let rate = Rate { value, low: growth.rate.low.min(value), high: growth.rate.high.max(value) };
    Stretch { rate, ..growth }
}

fn widened(rate: Rate, other: Option<Rate>) -> Rate {
    let other = other.unwrap_or(rate);
    Rate { low: rate.low.min(other.low), high: rate.high.max(other.high), ..rate }
}

/// The difference between the typical samples at both ends of a stretch: with their noise where the stretch is no straight line, since
/// a line says little there; otherwise they only correct it.
fn between_ends(shape: &Shape, from: f64, to: f64) -> Option<Rate> {
    let points = if has_waves(shape) { shape.floor_between(from, to) } else { shape.points_between(from, to) };
    let count = if points.len() < FEW { 1 } else { AT_ENDS };
    let (first, last) = (points.get(..count)?, points.get(points.len().checked_sub(count)?..)?);
    let typical = |points: &[Point]| median(&points.iter().map(|point| point.y).collect::<Vec<f64>>());
    // The stretch may begin before its first sample and end after its last one.
    let apart = last.last()?.x - first.first()?.x;
    let whole = if apart > 0.0 { (to - from) / apart } else { return None };
    let value = whole * (typical(last) - typical(first));
    let bends = Bend::of(telling(shape, from, to))
        .is_some_and(|bend| !bend.may_keep(1.0, CURVED) || bend.surely_keeps(1.0, CURVED));
    let is_blunt = count == 1 || bends || stretches(shape, from, to).len() > 1;
    let half = if is_blunt { OF_ENDS * scatter(shape, points) } else { 0.0 };
    Some(Rate { value, low: value - whole * half, high: value + whole * half })
}

/// The standard deviation of samples around the straight stretches of the floor.
fn scatter(shape: &Shape, points: &[Point]) -> f64 {
    let around = |point: &Point| {
        let at = shape.segments.partition_point(|segment| shape.floor[segment.end - 1].x < point.x);
        let segment = shape.segments.get(at).or(shape.segments.last());
        segment.map(|segment| point.y - segment.line.at(point.x))
    };
    let residuals: Vec<f64> = points.iter().filter_map(around).collect();
    let center = median(&residuals);
    // 1.4826 makes the median absolute deviation a standard deviation for Gaussian noise.
    1.4826 * median(&residuals.iter().map(|residual| (residual - center).abs()).collect::<Vec<f64>>())
}

//! How far memory is from its limit: judged beside growth, since a level that no longer grows can still be too high.

use crate::context::Context;
use crate::diagnosis::{Forecast, Headroom, Likelihood, Mechanism, Verdict};
use crate::shape::Shape;
use crate::stats::Point;

/// Less than this share of the limit is no room: the kernel, its caches and other programs move by as much.
const NO_ROOM: f64 = 0.02;
/// Growth is a threat if it would reach the limit within this many times its length so far, and more likely than not never ends.
const AS_LONG_AGAIN: f64 = 1.0;
/// A plateau within this share of the limit may be the limit itself.
const AT_THE_CAP: f64 = 0.05;

/// The room left below the limit; `None` without a limit.
pub(crate) fn headroom(context: &Context, forecast: &Forecast, odds: Option<&Likelihood>) -> Option<Headroom> {
    let limit = context.facts.memory_limit?.as_f64();
    let left = limit - context.present();
    let top = || context.shape.points.iter().map(|point| point.y).fold(f64::NEG_INFINITY, f64::max);
    // Half of a swing of the load lies above its mean.
    let swing = context.swings_since().map_or(0.0, |_| top() - context.present());
    let spike = largest_spike(context.shape, &context.series.aside).max(swing);
    let is_harmless = context.finding.mechanism == Mechanism::FilePages;
    let in_reach = !is_harmless && (left < spike || left < NO_ROOM * limit || is_reached_soon(context, forecast, odds));
    Some(Headroom { left_bytes: left as i64, spike_bytes: spike as u64, in_reach })
}

/// Whether a plateau stands so close to the limit that the limit may be what holds it.
pub(crate) fn is_at_the_cap(context: &Context, headroom: &Headroom) -> bool {
    let limit = context.facts.memory_limit.map_or(0.0, |limit| limit.as_f64());
    context.finding.verdict == Verdict::Settled
        && headroom.left_bytes >= 0
        && (headroom.left_bytes as f64) < AT_THE_CAP * limit
}

/// The largest rise of a sample above the fitted floor, evaluations included.
fn largest_spike(shape: &Shape, aside: &[Point]) -> f64 {
    let above = |point: &Point| {
        let at = shape.segments.partition_point(|segment| shape.floor[segment.end - 1].x < point.x);
        let segment = shape.segments.get(at).or(shape.segments.last())?;
        // Before its first low and after its last a line says nothing: there may be a gap.
        let (start, end) = (shape.floor[segment.start].x, shape.floor[segment.end - 1].x);
        Some(point.y - segment.line.at(point.x.clamp(start, end)))
    };
    shape.points.iter().chain(aside).filter_map(above).fold(0.0, f64::max)
}

/// Whether growth that may never end would reach the limit before it has lasted as long again.
fn is_reached_soon(context: &Context, forecast: &Forecast, odds: Option<&Likelihood>) -> bool {
    let (Some(growth), Some(limit)) = (context.finding.growth, context.facts.memory_limit) else { return false };
    let is_open = context.finding.verdict == Verdict::Growing && !context.finding.pausing;
    let fits = forecast.if_bounded.is_some_and(|plateau| plateau.bytes < limit.0);
    let is_likely = odds.is_some_and(|odds| odds.leak >= 0.5);
    let time = (limit.as_f64() - context.present()) / growth.rate.value;
    is_open && !fits && is_likely && growth.rate.value > 0.0 && time <= AS_LONG_AGAIN * (growth.to - growth.from)
}

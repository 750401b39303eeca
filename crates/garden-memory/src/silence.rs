//! Whether a growth goes on at the end of the trace: a leak grows now, not only up to some time ago.
//!
//! The rise is divided into equal lumps; the places where each was reached are the growth's own rhythm. It has stopped if the floor
//! has been silent for longer than that rhythm explains and its slope since then is surely a fraction of the pace before. A bend to a
//! plateau shows earlier: in a straight growth as a whole, in any other between its last two straight stretches.

use crate::drift::telling;
use crate::growth::rate_between;
use crate::passes::Passes;
use crate::shape::Shape;
use crate::stats::Point;
use crate::trend::{Trend, line_over_hinge};
use crate::waves::Waves;

/// Lumps into which the rise is divided: half of one may be noise at its end.
const LUMPS: usize = 8;
/// Silence longer than this many of the usual gaps is none of them.
const USUAL: f64 = 1.5;
/// What surely grows at less than this share of its pace has stopped.
const STOPPED: f64 = 1.0 / 3.0;
/// One-sided normal quantile for that: 1 in 740.
const SURE: f64 = 3.0;
/// A growth rests where it is surely (1 in 100) below this share of its pace; with fewer rests than this it may be one in rounds.
const RESTS: f64 = 0.4;
const REST_IS_SURE: f64 = 2.33;
const FEWEST_RESTS: usize = 4;

/// Log-likelihood ratio of growth that ended at one of some places over a line that goes on: 20 to one. A leak that grows now has evidence for
/// it, so what speaks for an end counts long before it is beyond doubt.
const LIKELY_END: (f64, f64) = (3.0, LIKELY);
/// And that of a service, whose load rests, too: 1,000 to one, with a plateau that is sure.
const SURE_END: (f64, f64) = (7.0, SURE);
/// One-sided normal quantile for the slope of a plateau that such a bend shows already: 1 in 10.
const LIKELY: f64 = 1.28;
/// Places at which it may have ended, over this last share of it.
const ENDS: (usize, f64) = (16, 0.5);

/// Where a growth from a place on stopped: the last place at which the floor rose, and the one before; `None` if it goes on.
pub(crate) fn stopped_at(shape: &Shape, from: f64, passes: Passes) -> Option<(f64, f64)> {
    let is_training = passes.length().is_some();
    let ending = if is_training { LIKELY_END } else { SURE_END };
    bends_flat(shape, from, ending)
        .or_else(|| levels_off(shape, from).filter(|_| is_training))
        .or_else(|| falls_silent(shape, from))
}

/// Where a straight growth ended in a plateau, which shows long before its silence is unusual: a line up to there, and a level from there
/// on, explain the samples better than a line that goes on.
fn bends_flat(shape: &Shape, from: f64, (ended, sure): (f64, f64)) -> Option<(f64, f64)> {
    let now = shape.last();
    let apart = ENDS.1 * (now - from) / ENDS.0 as f64;
    let both = [shape.floor_between(from, now), shape.points_between(from, now)];
    let evidence = if matches!(shape.waves, Waves::None) && shape.staircase.is_none() { &both[..] } else { &both[..1] };
    let pace_to = |end: f64| rate_between(shape, from, end).map(|rate| rate.value);
    let has_ended = |end: f64| {
        let likelier = |points: &&[Point]| -line_over_hinge(points, end);
        let best = evidence.iter().map(likelier).fold(f64::NEG_INFINITY, f64::max);
        let since = Trend::of(telling(shape, end, now).get(1..)?)?;
        (best >= ended && since.at_most(sure) < STOPPED * pace_to(end)?).then_some((best, end))
    };
    let ends = (1..ENDS.0).map(|number| now - number as f64 * apart);
    let (_, end) = ends.filter_map(has_ended).max_by(|a, b| a.0.total_cmp(&b.0))?;
    Some((end, end - apart))
}

/// Whether the last straight stretch of the floor is a plateau after faster ones, and longer than the growth's own rests: growth that became
/// faster, or came in rounds, is no line that could have bent.
fn levels_off(shape: &Shape, from: f64) -> Option<(f64, f64)> {
    let [.., before, last] = shape.segments.as_slice() else { return None };
    let (start, end, now) = (shape.floor[before.start].x, shape.floor[last.start].x, shape.last());
    if start < from {
        return None;
    }
    // On the plateau only noise rises.
    let places = places_of_rise(shape.floor_between(from, end));
    let longest = longest_rest(&places);
    let pace = (shape.start_level(last) - shape.start_level(before)) / (end - start).max(shape.spacing);
    let since = Trend::of(telling(shape, end, now).get(1..)?)?;
    let is_rest = now - places.last()? <= USUAL * longest;
    (!is_rest && since.at_most(LIKELY) < STOPPED * pace).then_some((end, shape.floor[last.start - 1].x))
}

/// The longest rest of a growth after which it went on: longer than the gap before it, or the last gap. Growth that began slowly has not
/// rested.
fn longest_rest(places: &[f64]) -> f64 {
    let gaps: Vec<f64> = places.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let rests = gaps.windows(2).filter(|pair| pair[1] > USUAL * pair[0]).map(|pair| pair[1]);
    rests.chain(gaps.last().copied()).fold(0.0, f64::max)
}

fn falls_silent(shape: &Shape, from: f64) -> Option<(f64, f64)> {
    let floor = shape.floor_between(from, shape.last());
    let places = places_of_rise(floor);
    let ([.., before, last], Some(first)) = (places.as_slice(), places.first()) else { return None };
    let usual = (last - first) / (places.len() - 1) as f64;
    // Noise and chance make gaps uneven: silence that the growth has outlived before is not its end.
    let longest = places.windows(2).map(|pair| pair[1] - pair[0]).fold(USUAL * usual, f64::max);
    let pace = rate_between(shape, from, *last)?.value;
    let silent = telling(shape, *last, shape.last());
    // The first low of the silence may still be the climb's.
    let since = Trend::of(silent.get(1..)?)?;
    let has_stopped = shape.last() - last > longest && since.at_most(SURE) < STOPPED * pace;
    has_stopped.then_some((*last, *before))
}

/// Whether a growth came in a few bursts with rests between them, as in rounds: too few to say that more will come.
pub(crate) fn comes_in_few_bursts(shape: &Shape, from: f64) -> bool {
    let floor = shape.floor_between(from, shape.last());
    let places = places_of_rise(floor);
    let (Some(first), Some(last), Some(whole)) = (places.first(), places.last(), Trend::of(floor)) else { return true };
    let usual = (last - first) / (LUMPS - 1) as f64;
    let is_rest = |pair: &&[f64]| {
        let inside = telling(shape, pair[0], pair[1]);
        // Its first and last samples may still be the climb's.
        let is_slow = |trend: Trend| trend.at_most(REST_IS_SURE) < RESTS * whole.slope;
        let inner = inside.get(1..inside.len().saturating_sub(1));
        pair[1] - pair[0] > USUAL * usual && inner.and_then(Trend::of).is_some_and(is_slow)
    };
    let rests = places.windows(2).filter(is_rest).count();
    (1..FEWEST_RESTS).contains(&rests)
}

/// The places at which a floor reached each lump of its rise for good, once each.
fn places_of_rise(floor: &[Point]) -> Vec<f64> {
    let mut kept: Vec<Point> = floor.to_vec();
    for at in (1..kept.len()).rev() {
        kept[at - 1].y = kept[at - 1].y.min(kept[at].y);
    }
    let (Some(first), Some(last)) = (kept.first(), kept.last()) else { return Vec::new() };
    let height = |lump: usize| first.y + (lump as f64 + 0.5) / LUMPS as f64 * (last.y - first.y);
    let reached = |lump: usize| kept.iter().find(|point| point.y >= height(lump)).map(|point| point.x);
    let mut places: Vec<f64> = (0..LUMPS).filter_map(reached).collect();
    places.dedup();
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_staircase_rises_at_its_steps_and_a_line_all_the_time() {
        let floor = |value: &dyn Fn(f64) -> f64| -> Vec<Point> {
            (0..64).map(|i| Point { x: f64::from(i), y: value(f64::from(i)) }).collect()
        };
        assert_eq!(places_of_rise(&floor(&|x| (x / 16.0).floor())), [16.0, 32.0, 48.0]);
        assert_eq!(places_of_rise(&floor(&|x| x)).len(), 8);
        assert!(places_of_rise(&[]).is_empty());
    }
}

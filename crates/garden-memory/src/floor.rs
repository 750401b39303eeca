//! The floor: the level to which memory returns between spikes and collections.
//!
//! Peaks show what was needed for a moment, lows what is never given back. The floor is the lowest sample of each block,
//! where a block is long enough to hold at least one low of any waves. Every floor point is a real sample. Blocks also
//! bound the work: a million samples become at most about [`BLOCKS`] points.

use crate::stats::Point;
use crate::waves::{Waves, has_dips, lows_of_teeth};

/// Blocks of a long series. Enough to place a change within 1.5 % of the trace, and few enough for a quadratic search;
/// the knee is refined on the raw samples afterwards.
const BLOCKS: usize = 64;

/// Fewest samples of a block in a series with dips, so that its middle one is not in a dip.
const DIPS_PER_BLOCK: usize = 9;

/// The floor of a series with the given waves.
pub(crate) fn floor(points: &[Point], waves: Waves) -> Vec<Point> {
    // An even split, so that 65 samples do not become 32 blocks with a remainder.
    let by_count = (points.len() as f64 / BLOCKS as f64).round() as usize;
    let by_waves = match waves {
        Waves::Teeth(teeth) => return lows_around_teeth(points, by_count.max(1), teeth.period),
        Waves::Spikes { width, .. } => width + 2,
        // The lowest samples of dips are not a level that memory keeps.
        Waves::None if has_dips(points) => return typical(points, by_count.max(DIPS_PER_BLOCK)),
        Waves::None => 1,
    };
    lows(points, by_count.max(by_waves).max(1))
}

/// The lows between teeth, and the lows of blocks before the first tooth (there may be a warm-up).
fn lows_around_teeth(points: &[Point], block: usize, period: f64) -> Vec<Point> {
    let mut turns = lows_of_teeth(points);
    // A series that begins in mid-climb has no low at its first sample.
    if turns.len() > 1 && turns[0] == 0 && points[0].y > points[turns[1]].y {
        turns.remove(0);
    }
    let first = turns.first().copied().unwrap_or(0);
    // Samples less than a tooth before the first low are the climb that leads to it.
    let climb = points.partition_point(|p| p.x < points[first].x - 1.5 * period);
    let before = if climb >= block { lows(&points[..climb], block) } else { Vec::new() };
    let lows: Vec<Point> = before.into_iter().chain(turns.iter().map(|&i| points[i])).collect();
    // Very many teeth are condensed, too.
    let stride = lows.len().div_ceil(2 * BLOCKS).max(1);
    if stride > 1 { self::lows(&lows, stride) } else { lows }
}

/// The lowest sample of each block of `block` samples; an incomplete last block is joined to the one before it.
pub(crate) fn lows(points: &[Point], block: usize) -> Vec<Point> {
    let blocks = (points.len() / block).max(1);
    let lowest = |chunk: &[Point]| chunk.iter().copied().min_by(|a, b| a.y.total_cmp(&b.y));
    (0..blocks)
        .filter_map(|k| {
            let end = if k + 1 == blocks { points.len() } else { (k + 1) * block };
            lowest(&points[k * block..end])
        })
        .collect()
}

/// The middle sample of each block by size: what the level is between dips.
fn typical(points: &[Point], block: usize) -> Vec<Point> {
    let middle = |chunk: &[Point]| {
        let mut sorted = chunk.to_vec();
        sorted.sort_by(|a, b| a.y.total_cmp(&b.y));
        sorted.get(sorted.len() / 2).copied()
    };
    points.chunks(block.max(1)).filter_map(middle).collect()
}

/// The lowest sample of each stretch between two events: the level that remains after an evaluation or a checkpoint.
pub(crate) fn lows_between(points: &[Point], events: &[f64]) -> Vec<Point> {
    let mut lows = Vec::with_capacity(events.len() + 1);
    let mut start = 0;
    for border in events.iter().copied().chain([f64::INFINITY]) {
        let end = start + points[start..].partition_point(|p| p.x <= border);
        lows.extend(points[start..end].iter().copied().min_by(|a, b| a.y.total_cmp(&b.y)));
        start = end;
    }
    lows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::waves::find_waves;

    #[test]
    fn teeth_leave_a_flat_floor() {
        let points: Vec<Point> = (0..400).map(|i| Point { x: i as f64, y: 7e6 * (1 + i % 43) as f64 }).collect();
        let floor = floor(&points, find_waves(&points));
        assert!(floor.len() >= 7 && floor.iter().all(|p| p.y == 7e6), "{floor:?}");
    }

    #[test]
    fn floor_points_are_real_samples_and_few() {
        let points: Vec<Point> = (0..10_000).map(|i| Point { x: i as f64, y: (i * 7919 % 101) as f64 }).collect();
        let floor = lows(&points, 156);
        assert_eq!(floor.len(), 64);
        assert!(floor.iter().all(|p| points.contains(p)));
        assert!(lows(&[], 3).is_empty());
    }

    #[test]
    fn between_events_the_lowest_sample_counts() {
        let points: Vec<Point> = (0..10).map(|i| Point { x: i as f64, y: if i == 4 { 1.0 } else { 9.0 } }).collect();
        let found: Vec<f64> = lows_between(&points, &[2.0, 6.0]).iter().map(|p| p.y).collect();
        assert_eq!(found, [9.0, 1.0, 9.0]);
    }
}

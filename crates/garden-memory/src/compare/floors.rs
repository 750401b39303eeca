//! The floors of several runs over one stretch, in the same blocks, so that they can be subtracted.

use super::contrast::Estimate;
use super::{FEWEST_BLOCKS, slope};
use crate::shape::between;
use crate::stats::{Line, Point};
use crate::waves::Waves;

/// Blocks at most, as for a diagnosis.
const BLOCKS: usize = 64;
/// A block this many teeth long is sure to hold a low.
const TEETH_IN_A_BLOCK: f64 = 1.5;
/// A difference bends at a place if a line with a knee there leaves at most this share of the variance a straight line leaves. A wave of
/// one period leaves a fifth or more.
const KNEE_LEAVES: f64 = 0.05;
/// Memory counters move by pages.
const PAGE: u64 = 4096;

/// The samples of one run in clock order, and the waves on them where they are known.
pub(super) type Piece<'a> = (&'a [Point], Option<Waves>);

/// The floors of the runs before and after a change.
pub(super) struct Floors {
    /// By side, run and block: the lowest sample, moved to the middle of its block along the run's own trend.
    lows: [Vec<Vec<Option<f64>>>; 2],
    middles: Vec<f64>,
    resolution: f64,
    /// The length of the stretch.
    pub length: f64,
}

impl Floors {
    /// The floors over a stretch; `None` without samples in it.
    pub(super) fn of(sides: &[Vec<Piece>; 2], (from, to): (f64, f64)) -> Option<Floors> {
        let cut = |piece: &Piece| (between(piece.0, from, to).to_vec(), piece.1);
        let sides = sides.each_ref().map(|side| side.iter().map(cut).collect::<Vec<_>>());
        let all = || sides.iter().flatten();
        let blocks = all().map(|(points, waves)| blocks_for(points, *waves, to - from)).min().unwrap_or(0);
        if blocks == 0 {
            return None;
        }
        let width = (to - from) / blocks as f64;
        let middles: Vec<f64> = (0..blocks).map(|block| from + (block as f64 + 0.5) * width).collect();
        let lows = |side: &Vec<(Vec<Point>, Option<Waves>)>| {
            side.iter().map(|(points, _)| lows(points, &middles, from, width)).collect::<Vec<_>>()
        };
        let resolution = all().map(|(points, _)| resolution(points)).max().unwrap_or(PAGE) as f64;
        let lows = sides.each_ref().map(lows);
        Some(Floors { lows, middles, resolution, length: to - from })
    }

    fn points(&self, value: impl Fn(usize) -> Option<f64>) -> Vec<Point> {
        let point = |(block, &x): (usize, &f64)| value(block).map(|y| Point { x, y });
        self.middles.iter().enumerate().filter_map(point).collect()
    }

    /// The growth of one run.
    pub(super) fn growth(&self, side: usize, run: usize) -> Option<Estimate> {
        let lows = self.lows[side].get(run)?;
        slope(&self.points(|block| lows[block]), self.resolution)
    }

    /// The growth of one side: of its only run, or the mean of several with the standard error from their spread.
    pub(super) fn side(&self, side: usize) -> Option<Estimate> {
        let runs: Option<Vec<Estimate>> = (0..self.lows[side].len()).map(|run| self.growth(side, run)).collect();
        let runs = runs?;
        let values: Vec<f64> = runs.iter().map(|run| run.value).collect();
        let blind = 0.5 * self.resolution / self.length;
        Estimate::of_replicates(&values).map(|mean| mean.at_least(blind)).or(runs.first().copied())
    }

    /// After minus before; for one run each, the slope of their difference, in which common movements cancel.
    pub(super) fn difference(&self, before: Estimate, after: Estimate) -> Estimate {
        let [one, other] = &self.lows;
        let welch = after.minus(before);
        let ([one], [other]) = (one.as_slice(), other.as_slice()) else { return welch };
        let points = self.points(|block| Some(other[block]? - one[block]?));
        slope(&points, self.resolution).unwrap_or(welch)
    }
}

impl Floors {
    /// Whether the difference between the sides changes direction at this place, and is straight otherwise.
    pub(super) fn bends_at(&self, place: f64) -> bool {
        let mean = |side: &[Vec<Option<f64>>], block: usize| {
            let known: Option<f64> = side.iter().map(|lows| lows[block]).sum();
            Some(known? / side.len() as f64)
        };
        let points = self.points(|block| Some(mean(&self.lows[1], block)? - mean(&self.lows[0], block)?));
        // Residuals of a straight line through the difference, and through a knee.
        let left = |y: &dyn Fn(&Point) -> f64| -> Vec<f64> {
            let points: Vec<Point> = points.iter().map(|point| Point { x: point.x, y: y(point) }).collect();
            let line = Line::fit(&points);
            points.iter().map(|point| point.y - line.at(point.x)).collect()
        };
        let (difference, knee) = (left(&|point| point.y), left(&|point| (point.x - place).max(0.0)));
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let straight = dot(&difference, &difference);
        let explained = dot(&difference, &knee).powi(2) / dot(&knee, &knee);
        straight > 0.0 && straight - explained <= KNEE_LEAVES * straight
    }
}

/// The most blocks of a run such that each holds a low.
fn blocks_for(points: &[Point], waves: Option<Waves>, length: f64) -> usize {
    let by_waves = match waves {
        Some(Waves::Teeth(teeth)) => {
            let blocks = (length / (TEETH_IN_A_BLOCK * teeth.period)) as usize;
            // With too few teeth for a floor, climbs and drops are noise and widen the interval.
            if blocks >= FEWEST_BLOCKS { blocks } else { BLOCKS }
        }
        Some(Waves::Spikes { width, .. }) => points.len() / (width + 2),
        Some(Waves::None) | None => BLOCKS,
    };
    points.len().min(by_waves).min(BLOCKS)
}

/// The lowest sample of each block, moved to the block's middle along the trend of all the lows.
fn lows(points: &[Point], middles: &[f64], from: f64, width: f64) -> Vec<Option<f64>> {
    let mut found: Vec<Option<Point>> = vec![None; middles.len()];
    for point in points {
        let block = (((point.x - from) / width) as usize).min(middles.len() - 1);
        if found[block].is_none_or(|low| point.y < low.y) {
            found[block] = Some(*point);
        }
    }
    let known: Vec<Point> = found.iter().flatten().copied().collect();
    let trend = Line::fit(&known).slope;
    found.iter().zip(middles).map(|(low, middle)| low.map(|low| low.y + trend * (middle - low.x))).collect()
}

/// The resolution of the samples in bytes: all are multiples of it.
fn resolution(points: &[Point]) -> u64 {
    let bits = points.iter().fold(0, |bits, point| bits | point.y as u64);
    if bits == 0 { PAGE } else { PAGE.max(1 << bits.trailing_zeros()) }
}

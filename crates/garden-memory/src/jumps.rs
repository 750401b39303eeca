//! Growth in jumps: where the floor jumped, how regularly, and whether a pause after the last jump means that it is over.
//!
//! A leak in lumps, a buffer that grows to the largest batch so far and a list whose capacity doubles all rise in jumps
//! between plateaus. Their rhythm tells them apart: lumps come evenly, records get rarer like 1/n (`record_highs.rs`), and
//! the jumps of a capacity grow by the same factor as the time between them.

use crate::segments::Segment;
use crate::shape::Shape;
use crate::stats::{Point, median};

/// A jump exceeds the usual difference between neighbouring lows by this many standard deviations of such differences.
const STANDS_OUT: f64 = 6.0;
/// Nor is a jump less than this share of the growth, nor one step of a climb: its neighbours rise by less than this share of it.
const SMALLEST: f64 = 0.06;
const BESIDE: f64 = 0.5;
/// Jumps within this share of the trace are start-up.
const START_UP: f64 = 0.05;
/// Growth came in jumps if they make up this share of it.
const SHARE: f64 = 0.6;
/// Fewer jumps have no rhythm.
const FEWEST: usize = 3;
/// A rhythm is over once its silence would have this chance.
const SILENCE: f64 = 0.02;
/// Gaps that vary by less than this share of their mean are regular.
const REGULAR: f64 = 0.3;
/// A regular rhythm is over after this many of its gaps.
const REGULAR_SILENCE: f64 = 1.5;
/// Log-likelihood ratio by which jumps must be even in time rather than on a logarithmic clock.
const EVEN: f64 = 0.5;
/// Later jumps add at least this share of what as many earlier ones did.
const KEEPS_SIZE: f64 = 0.6;
/// Factors by which libraries let a capacity grow (1.5 to 2), with room for noise, and how far each jump's may be from the mean.
const FACTORS: (f64, f64) = (1.3, 2.3);
const SAME_FACTOR: f64 = 1.2;
/// Sizes that grow like a lower power of the time are those of a content that slows down, such as a vocabulary.
const STEADY_CONTENT: f64 = 0.95;

/// The jumps of a growth, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Jumps {
    /// Place on the clock and size of each.
    pub list: Vec<(f64, f64)>,
    last: f64,
}

impl Jumps {
    /// The jumps of the floor; none if it grew smoothly.
    pub(crate) fn of(shape: &Shape) -> Jumps {
        let rise = rise_of(&shape.floor);
        let is_growth = |list: &Vec<(f64, f64)>| {
            let jumped: f64 = list.iter().map(|jump| jump.1).sum();
            list.len() >= FEWEST && jumped >= SHARE * rise && jumped <= rise / SHARE
        };
        let found = [between_lows(&shape.floor), between_stretches(shape)].into_iter().filter(is_growth);
        let mut list = found.max_by_key(Vec::len).unwrap_or_default();
        list.retain(|jump| jump.0 - shape.first() >= START_UP * shape.length());
        Jumps { list, last: shape.last() }
    }

    /// The jumps from a place on.
    pub(crate) fn since(mut self, from: f64) -> Jumps {
        self.list.retain(|jump| jump.0 >= from);
        self
    }

    /// Whether jumps are even in time rather than on the logarithmic clock of records since `origin`, and do not get smaller.
    pub(crate) fn are_even(&self, origin: f64) -> bool {
        let (Some(first), half) = (self.list.first(), self.list.len() / 2) else { return false };
        let (from, to) = (first.0 - origin, self.last - origin);
        if half == 0 || from <= 0.0 || to <= from {
            return false;
        }
        // Densities of a jump at time t: 1 / (to - from), and 1 / (t ln(to / from)).
        let evidence: f64 =
            self.list[1..].iter().map(|jump| ((jump.0 - origin) * (to / from).ln() / (to - from)).ln()).sum();
        let sum = |jumps: &[(f64, f64)]| jumps.iter().map(|jump| jump.1).sum::<f64>();
        let (earlier, later) = (sum(&self.list[..half]), sum(&self.list[self.list.len() - half..]));
        evidence >= EVEN && later >= KEEPS_SIZE * earlier
    }

    fn gaps(&self) -> Vec<f64> {
        self.list.windows(2).map(|pair| pair[1].0 - pair[0].0).collect()
    }

    /// Whether the silence since the last jump is too short to say that no other will come.
    ///
    /// With k gaps of mean m between jumps at random, the next silence exceeds s with probability (km / (km + s))^k.
    pub(crate) fn may_go_on(&self) -> bool {
        let (gaps, Some(last)) = (self.gaps(), self.list.last()) else { return false };
        if gaps.len() + 1 < FEWEST {
            return false;
        }
        let count = gaps.len() as f64;
        let mean = gaps.iter().sum::<f64>() / count;
        let spread = (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / count).sqrt();
        let silence = self.last - last.0;
        if spread < REGULAR * mean {
            return silence < REGULAR_SILENCE * mean;
        }
        (count * mean / (count * mean + silence)).powf(count) > SILENCE
    }

    /// The factor between one jump and the next, if it is the same for all of them, in size and in time since `origin`: a capacity
    /// that grows by a factor whenever a content that grows steadily has filled it.
    pub(crate) fn growth_factor(&self, origin: f64) -> Option<f64> {
        if self.list.len() < FEWEST || self.list[0].0 <= origin {
            return None;
        }
        let logarithms = |of: &dyn Fn(&(f64, f64)) -> f64| -> Vec<f64> {
            self.list.windows(2).map(|pair| (of(&pair[1]) / of(&pair[0])).ln()).collect()
        };
        let (times, sizes) = (logarithms(&|jump| jump.0 - origin), logarithms(&|jump| jump.1));
        let sum = |ratios: &[f64]| ratios.iter().sum::<f64>();
        let mean = (sum(&times) + sum(&sizes)) / (times.len() + sizes.len()) as f64;
        let is_same = times.iter().chain(&sizes).all(|ratio| (ratio - mean).abs() <= SAME_FACTOR.ln());
        let is_steady = sum(&sizes) >= STEADY_CONTENT * sum(&times);
        Some(mean.exp()).filter(|factor| is_same && is_steady && (FACTORS.0..=FACTORS.1).contains(factor))
    }

    /// Whether it is too early for the next jump of a capacity that grows by this factor.
    pub(crate) fn next_may_come(&self, origin: f64, factor: f64) -> bool {
        let due = |last: &(f64, f64)| (last.0 - origin) * factor * SAME_FACTOR;
        self.list.last().is_some_and(|last| self.last - origin <= due(last))
    }
}

/// The rise from the first low to the last.
fn rise_of(floor: &[Point]) -> f64 {
    floor.last().zip(floor.first()).map_or(0.0, |(last, first)| last.y - first.y)
}

/// Jumps between neighbouring lows, from a level that was never reached before to one that was never left again.
fn between_lows(floor: &[Point]) -> Vec<(f64, f64)> {
    let steps: Vec<f64> = floor.windows(2).map(|pair| pair[1].y - pair[0].y).collect();
    let usual = median(&steps);
    let deviations: Vec<f64> = steps.iter().map(|step| (step - usual).abs()).collect();
    // 1.4826 makes the median absolute deviation a standard deviation for Gaussian noise.
    let least = (usual + STANDS_OUT * 1.4826 * median(&deviations)).max(SMALLEST * rise_of(floor));
    let stays = |at: usize| {
        let level = 0.5 * (floor[at].y + floor[at + 1].y);
        floor[..=at].iter().all(|p| p.y < level) && floor[at + 1..].iter().all(|p| p.y > level)
    };
    // Neighbours that rise as well make a climb.
    let is_alone = |at: usize| {
        let beside = |near: Option<&f64>| near.is_none_or(|&near| near < BESIDE * steps[at]);
        beside(at.checked_sub(1).and_then(|before| steps.get(before))) && beside(steps.get(at + 1))
    };
    let jumps = (0..steps.len()).filter(|&at| steps[at] > least && is_alone(at) && stays(at));
    jumps.map(|at| (0.5 * (floor[at].x + floor[at + 1].x), steps[at])).collect()
}

/// Jumps between the straight stretches of the floor, where noise hides them between lows.
fn between_stretches(shape: &Shape) -> Vec<(f64, f64)> {
    let mut highest = f64::NEG_INFINITY;
    let jump = |pair: &[Segment]| {
        let before = shape.end_level(&pair[0]);
        highest = highest.max(before).max(shape.start_level(&pair[0]));
        let size = (shape.start_level(&pair[1]) - highest).min(shape.start_level(&pair[1]) - before);
        (0.5 * (shape.floor[pair[0].end - 1].x + shape.floor[pair[1].start].x), size)
    };
    let least = shape.noise.sigma.max(SMALLEST * rise_of(&shape.floor));
    shape.segments.windows(2).map(jump).filter(|jump| jump.1 > least).collect()
}

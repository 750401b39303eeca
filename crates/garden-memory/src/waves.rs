//! Waves on a series: teeth (slow climb, sudden drop) and spikes (short excursions that return).
//!
//! Turning points are found by the zigzag rule: a peak counts once the series has fallen from it by a threshold, a trough
//! once it has risen by it. The threshold is six standard deviations of the sample-to-sample noise, so noise makes no
//! waves, and at least a twentieth of the range and a mebibyte, so ripples make none either.

use crate::bytes::MIB;
use crate::stats::{Point, median, noise_of_differences, quantile};

/// The waves of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Waves {
    /// None worth the name.
    None,
    /// Climbs and sudden drops over most of the series.
    Teeth(Teeth),
    /// Short excursions above the rest.
    Spikes { count: usize, height: f64, width: usize },
}

/// A sawtooth: lengths are in samples, the height in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Teeth {
    pub count: usize,
    pub height: f64,
    /// The typical distance between two lows on the clock.
    pub period: f64,
}

const THRESHOLD_SIGMAS: f64 = 6.0;
const THRESHOLD_RANGE: f64 = 0.05;
const THRESHOLD_BYTES: f64 = MIB as f64;

/// Fewer teeth than this must take back at least this share of their climb: noise on a growing level looks like two or three.
const MANY_TEETH: usize = 4;
const RETURNED: f64 = 0.65;

/// Finds the waves of a series.
pub(crate) fn find_waves(points: &[Point]) -> Waves {
    let turns = turning_points(points, threshold(points));
    let waves: Vec<Wave> = turns.windows(3).filter_map(|w| Wave::of(points, w[0], w[1], w[2])).collect();
    teeth(points, &waves).map(Waves::Teeth).or_else(|| spikes(&waves)).unwrap_or(Waves::None)
}

/// Whether a series leaves its level downwards now and then for a short while, as where workers restart: spikes, upside down.
pub(crate) fn has_dips(points: &[Point]) -> bool {
    let upside_down: Vec<Point> = points.iter().map(|point| Point { x: point.x, y: -point.y }).collect();
    matches!(find_waves(&upside_down), Waves::Spikes { .. })
}

/// The lows between the teeth of a series.
pub(crate) fn lows_of_teeth(points: &[Point]) -> Vec<usize> {
    let turns = turning_points(points, threshold(points));
    // Lows and highs alternate; the last turn is a low only if the series has risen from it, so every low is complete.
    turns.into_iter().step_by(2).collect()
}

fn threshold(points: &[Point]) -> f64 {
    threshold_of(points, THRESHOLD_RANGE)
}

fn threshold_of(points: &[Point], share: f64) -> f64 {
    let values: Vec<f64> = points.iter().map(|p| p.y).collect();
    let range = quantile(&values, 0.99) - quantile(&values, 0.01);
    (THRESHOLD_SIGMAS * noise_of_differences(points)).max(share * range).max(THRESHOLD_BYTES)
}

/// A load that comes and goes, as by day and night: memory rises and falls again as slowly, and neither end is its level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Swing {
    /// The length of one on the clock.
    pub period: f64,
    /// Bytes from low to high.
    pub height: f64,
}

/// A swing takes at least this share of the range: less is on the way.
const SWINGS_BY: f64 = 0.4;
/// Either way takes at least this share of it.
const EITHER_WAY: f64 = 0.25;
/// The turns of two whole swings: two lows and two highs.
const TURNS: usize = 4;
/// The lengths and heights of swings differ by at most this factor.
const ALIKE: f64 = 1.4;

/// The swings of a series, if it does nothing else.
pub(crate) fn find_swing(points: &[Point]) -> Option<Swing> {
    let turns = turning_points(points, threshold_of(points, SWINGS_BY));
    if turns.len() < TURNS {
        return None;
    }
    let place = |turn: usize| points[turns[turn]].x;
    let periods: Vec<f64> = (2..turns.len()).map(|turn| place(turn) - place(turn - 2)).collect();
    let heights: Vec<f64> = turns.windows(2).map(|pair| (points[pair[1]].y - points[pair[0]].y).abs()).collect();
    let (period, height) = (median(&periods), median(&heights));
    let is_like = |usual: f64| move |value: &f64| *value <= ALIKE * usual && usual <= ALIKE * *value;
    let is_slow = (1..turns.len()).all(|turn| place(turn) - place(turn - 1) >= EITHER_WAY * period);
    let is_regular = periods.iter().all(is_like(period)) && heights.iter().all(is_like(height));
    (is_slow && is_regular && period > 0.0).then_some(Swing { period, height })
}

/// Indices of alternating lows and highs, beginning with the first low; the last one may not be final.
fn turning_points(points: &[Point], threshold: f64) -> Vec<usize> {
    let mut turns = Vec::new();
    let (mut low, mut high) = (0, 0);
    let mut rising = None;
    for (i, point) in points.iter().enumerate() {
        if point.y < points[low].y {
            low = i;
        }
        if point.y > points[high].y {
            high = i;
        }
        if rising != Some(true) && point.y - points[low].y >= threshold {
            turns.push(low);
            rising = Some(true);
            high = i;
        } else if rising != Some(false) && points[high].y - point.y >= threshold {
            // A series that begins with a fall has no low before its first high.
            if rising.is_some() {
                turns.push(high);
            }
            rising = Some(false);
            low = i;
        }
    }
    turns
}

/// One wave: from a low over a high to the next low.
struct Wave {
    /// Samples from low to high, and from high to the next low.
    up: usize,
    down: usize,
    climb: f64,
    drop: f64,
    /// Mean height on the way up, as a share of the climb: 0.5 for a straight ramp.
    mean_up: f64,
    /// Samples above half the height.
    width: usize,
    period: f64,
}

impl Wave {
    fn of(points: &[Point], low: usize, high: usize, next: usize) -> Option<Wave> {
        if points[high].y <= points[low].y || next <= high || high <= low {
            return None;
        }
        let climb = points[high].y - points[low].y;
        let drop = points[high].y - points[next].y;
        let up = &points[low..=high];
        let mean_up = up.iter().map(|p| (p.y - points[low].y) / climb).sum::<f64>() / up.len() as f64;
        let half = points[high].y - 0.5 * drop.min(climb);
        let width = points[low..=next].iter().filter(|p| p.y > half).count();
        let period = points[next].x - points[low].x;
        Some(Wave { up: high - low, down: next - high, climb, drop, mean_up, width, period })
    }

    /// A slow straight climb and a sudden drop that takes back a third of it or more.
    fn is_tooth(&self) -> bool {
        // Noise may put the highest sample a little before the drop.
        let is_sudden = self.down <= (self.up / 16).max((self.up / 5).clamp(2, 4)) && self.up >= 2 * self.down;
        self.up >= 3 && is_sudden && (0.3..=0.7).contains(&self.mean_up) && 3.0 * self.drop >= self.climb
    }

    /// An excursion that fills at most a quarter of its time and comes back.
    fn is_spike(&self) -> bool {
        let length = self.up + self.down;
        length >= 8 && self.width * 4 <= length && 2.0 * self.drop >= self.climb
    }
}

fn teeth(points: &[Point], waves: &[Wave]) -> Option<Teeth> {
    let teeth: Vec<&Wave> = waves.iter().filter(|wave| wave.is_tooth()).collect();
    let covered: usize = teeth.iter().map(|tooth| tooth.up + tooth.down).sum();
    // Teeth must be the rule: most of the waves, and most of the time.
    let is_rule = teeth.len() >= 2 && teeth.len() * 10 >= waves.len() * 6 && covered * 2 >= points.len();
    let returned = median(&teeth.iter().map(|tooth| tooth.drop / tooth.climb).collect::<Vec<_>>());
    let is_rule = is_rule && (teeth.len() >= MANY_TEETH || returned >= RETURNED);
    is_rule.then(|| Teeth {
        count: teeth.len(),
        height: median(&teeth.iter().map(|tooth| tooth.drop).collect::<Vec<_>>()),
        period: median(&teeth.iter().map(|tooth| tooth.period).collect::<Vec<_>>()),
    })
}

fn spikes(waves: &[Wave]) -> Option<Waves> {
    let spikes: Vec<&Wave> = waves.iter().filter(|wave| wave.is_spike()).collect();
    let is_rule = spikes.len() >= 2 && spikes.len() * 10 >= waves.len() * 7;
    is_rule.then(|| Waves::Spikes {
        count: spikes.len(),
        height: median(&spikes.iter().map(|spike| spike.drop).collect::<Vec<_>>()),
        width: spikes.iter().map(|spike| spike.width).max().unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(n: usize, value: impl Fn(usize) -> f64) -> Vec<Point> {
        (0..n).map(|i| Point { x: i as f64, y: value(i) * MIB as f64 }).collect()
    }

    #[test]
    fn a_sawtooth_has_teeth() {
        let Waves::Teeth(teeth) = find_waves(&series(200, |i| (i % 40) as f64)) else { panic!("no teeth") };
        assert_eq!((teeth.count, teeth.period), (4, 40.0));
    }

    #[test]
    fn rare_peaks_are_spikes_and_a_ramp_has_no_waves() {
        let spiky = series(200, |i| if i % 50 == 25 { 100.0 } else { (i % 2) as f64 });
        assert!(matches!(find_waves(&spiky), Waves::Spikes { count: 3, .. }), "{:?}", find_waves(&spiky));
        assert_eq!(find_waves(&series(200, |i| i as f64)), Waves::None);
        assert_eq!(find_waves(&[]), Waves::None);
    }

    #[test]
    fn dips_from_a_plateau_are_not_teeth() {
        let dips = series(300, |i| if i % 17 == 0 { 30.0 } else { 41.0 });
        assert_eq!(find_waves(&dips), Waves::None);
    }
}

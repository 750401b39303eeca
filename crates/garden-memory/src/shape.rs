//! The shape of one series: its waves, its floor, the floor's straight stretches and the noise around them.

use crate::bytes::MIB;
use crate::floor::{floor, lows, lows_between};
use crate::segments::{Noise, Segment, band, segment};
use crate::series::{Series, condense};
use crate::stats::{Line, Point, median, rank_trend, resolution};
use crate::trend::Trend;
use crate::waves::{Swing, Waves, find_swing, find_waves};

/// Growth below this is not reported, however significant: Python's own arenas and counters move that much.
pub(crate) const MATERIAL_BYTES: f64 = 16.0 * MIB as f64;
/// Nor is a leak below this.
const MATERIAL_LEAK_BYTES: f64 = 32.0 * MIB as f64;
/// Nor is growth below this share of the level.
const MATERIAL_SHARE: f64 = 0.001;
/// Growth must also stand out from the floor's own noise band by this factor (about five standard deviations).
const MATERIAL_NOISE: f64 = 1.5;
/// A floor that rises beyond doubt from one end to the other needs to stand out less from its noise.
const BEYOND_DOUBT: (f64, f64) = (4.5, 0.5);
/// Ranks show a rise that a trend cannot where noise is far from Gaussian, as with dips: 1 in 30,000 by chance. Of a few lows
/// between teeth less is asked: 1 in 400.
const RANKS_RISE: f64 = 4.0;
const LOWS_RISE: f64 = 2.8;
/// And from the teeth above the floor by this share, or by one in the number of lows: a few lows do not show their noise.
const MATERIAL_TOOTH: f64 = 0.05;
/// Number of lows on which the noise of a possible leak is measured.
const DEEP_LOWS: usize = 12;
/// A run whose first sample is at one of its first steps was seen from its beginning.
const FIRST_STEPS: f64 = 3.0;
/// Samples at the very beginning that are start-up: one in the first number, at most the second.
const START_UP: (usize, usize) = (100, 10);

/// A series, taken apart.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// The training samples (condensed if there are very many), without the first per cent.
    pub points: Vec<Point>,
    pub waves: Waves,
    /// A load that comes and goes without teeth or spikes.
    pub swing: Option<Swing>,
    /// Real samples to which memory came down.
    pub floor: Vec<Point>,
    /// Straight stretches of the floor.
    pub segments: Vec<Segment>,
    pub noise: Noise,
    /// How many noise bands a growth from one end to the other must span to count.
    noise_bands: f64,
    /// Whether the floor rises at the events rather than between them.
    pub staircase: Option<Staircase>,
    /// Distance between samples on the clock.
    pub spacing: f64,
    /// Distance between values that the samples can tell apart, in bytes.
    pub resolution: f64,
    /// Where the samples begin, start-up included.
    first_sample: f64,
    /// Places of evaluations and checkpoints between the samples.
    events: Vec<f64>,
}

/// A floor that steps up at events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Staircase {
    pub events: usize,
    /// Typical step in bytes.
    pub step: f64,
}

impl Shape {
    /// Takes a series apart; `None` if nothing is left of it.
    pub(crate) fn of(series: &Series) -> Option<Shape> {
        let spacing = series.spacing();
        let first_sample = series.points.first()?.x;
        let start_up = (series.points.len() / START_UP.0).min(START_UP.1);
        let points = condense(&series.points[start_up..]);
        Shape::of_points(points, &series.events, spacing, first_sample)
    }

    /// The shape as it was at a place on the clock; `None` if nothing is left of it.
    pub(crate) fn up_to(&self, place: f64) -> Option<Shape> {
        let points = between(&self.points, self.first(), place).to_vec();
        Shape::of_points(points, &self.events, self.spacing, self.first_sample)
    }

    fn of_points(points: Vec<Point>, events: &[f64], spacing: f64, first_sample: f64) -> Option<Shape> {
        let (first, last) = (points.first()?.x, points.last()?.x);
        let waves = find_waves(&points);
        let events: Vec<f64> = events.iter().copied().filter(|&x| x > first && x < last).collect();
        let has_teeth = matches!(waves, Waves::Teeth(_));
        let staircase = if has_teeth { None } else { find_staircase(&points, &events) };
        let floor = match staircase {
            // Nothing happens between the steps, so one low per stretch says it all, without correlated noise.
            Some(_) => lows_between(&points, &events),
            None => floor(&points, waves),
        };
        let cut = segment(&floor);
        let is_sure = Trend::of(&floor).is_some_and(|trend| trend.rises(BEYOND_DOUBT.0))
            || rank_trend(&floor) >= if has_teeth { LOWS_RISE } else { RANKS_RISE };
        let noise_bands = if is_sure { BEYOND_DOUBT.1 } else { MATERIAL_NOISE };
        let (segments, noise, resolution) = (cut.segments, cut.noise, resolution(&floor));
        let swing = if waves == Waves::None { find_swing(&points) } else { None };
        Some(Shape {
            points,
            waves,
            swing,
            floor,
            segments,
            noise,
            noise_bands,
            staircase,
            spacing,
            resolution,
            first_sample,
            events,
        })
    }

    pub(crate) fn first(&self) -> f64 {
        self.points.first().map_or(0.0, |p| p.x)
    }

    /// Where the process began to see examples: at 0 if the samples begin there, else where they begin.
    ///
    /// A trace that begins at step 5000 is of a run that was resumed, or watched from then on. A resumed process sees every
    /// example for the first time again, so nothing follows from the earlier steps. The first steps may be over before the
    /// first sample.
    pub(crate) fn origin(&self) -> f64 {
        let is_start = self.first_sample.abs() <= (1.5 * self.spacing).max(FIRST_STEPS);
        if is_start { 0.0 } else { self.first_sample }
    }

    pub(crate) fn last(&self) -> f64 {
        self.points.last().map_or(0.0, |p| p.x)
    }

    pub(crate) fn length(&self) -> f64 {
        self.last() - self.first()
    }

    /// The mean of each whole swing, counted back from the last sample; empty without swings.
    pub(crate) fn means_of_swings(&self) -> Vec<f64> {
        let Some(swing) = self.swing else { return Vec::new() };
        let whole = (self.length() / swing.period).floor() as usize;
        let mean = |number: usize| {
            let to = self.last() - number as f64 * swing.period;
            let points = self.points_between(to - swing.period, to);
            points.iter().map(|point| point.y).sum::<f64>() / points.len().max(1) as f64
        };
        (0..whole).rev().map(mean).collect()
    }

    /// Floor according to the fitted lines, at the start of a segment.
    pub(crate) fn start_level(&self, segment: &Segment) -> f64 {
        segment.line.at(self.floor[segment.start].x)
    }

    /// Floor according to the fitted lines, at the end of a segment.
    pub(crate) fn end_level(&self, segment: &Segment) -> f64 {
        segment.line.at(self.floor[segment.end - 1].x)
    }

    /// The fitted floor at the end of the trace.
    pub(crate) fn present_level(&self) -> f64 {
        self.segments.last().map_or(0.0, |s| self.end_level(s))
    }

    /// The least growth worth reporting at this level and noise.
    pub(crate) fn material(&self) -> f64 {
        self.material_above(MATERIAL_NOISE * self.noise.amplitude)
    }

    /// The least growth worth reporting at this level, noise aside.
    pub(crate) fn material_without_noise(&self) -> f64 {
        MATERIAL_BYTES.max(MATERIAL_SHARE * self.present_level())
    }

    /// The least growth of some points of the floor worth reporting, by their own noise.
    pub(crate) fn material_among(&self, points: &[Point]) -> f64 {
        self.material_above(MATERIAL_NOISE * band(&Line::fit(points).residuals(points), 2.0))
    }

    /// The least growth from one end of the trace to the other worth reporting: if it is beyond doubt, noise matters less.
    pub(crate) fn material_throughout(&self) -> f64 {
        self.material_above(self.noise_bands * self.noise.amplitude)
    }

    /// The least growth worth calling a leak at this level and noise.
    pub(crate) fn material_leak(&self, from: f64) -> f64 {
        self.material_above(self.leak_noise(from)).max(MATERIAL_LEAK_BYTES)
    }

    /// The noise that a leak must stand out from: twice as much as other growth, since a run is judged again and again, but fewer and
    /// deeper lows may show less noise.
    pub(crate) fn leak_noise(&self, from: f64) -> f64 {
        let points = self.points_between(from, self.last());
        let deep = match (self.waves, self.staircase) {
            (Waves::Teeth(_), _) | (_, Some(_)) => self.floor_between(from, self.last()).to_vec(),
            _ => lows(points, points.len().div_ceil(DEEP_LOWS).max(1)),
        };
        let hidden = band(&Line::fit(&deep).residuals(&deep), 2.0);
        let bands = if matches!(self.waves, Waves::Teeth(_)) { self.noise_bands } else { MATERIAL_NOISE };
        2.0 * bands * hidden.min(self.noise.amplitude)
    }

    /// The least growth worth calling a leak, noise aside.
    pub(crate) fn least_leak(&self) -> f64 {
        self.material_above(0.0).max(MATERIAL_LEAK_BYTES)
    }

    fn material_above(&self, noise: f64) -> f64 {
        let tooth = match self.waves {
            Waves::Teeth(teeth) => teeth.height * MATERIAL_TOOTH.max(1.0 / self.floor.len().max(1) as f64),
            _ => 0.0,
        };
        MATERIAL_BYTES.max(MATERIAL_SHARE * self.present_level()).max(noise).max(tooth)
    }

    /// Floor points within a stretch of the clock.
    pub(crate) fn floor_between(&self, from: f64, to: f64) -> &[Point] {
        between(&self.floor, from, to)
    }

    /// Samples within a stretch of the clock.
    pub(crate) fn points_between(&self, from: f64, to: f64) -> &[Point] {
        between(&self.points, from, to)
    }
}

/// The points of an ordered list that lie within a stretch.
pub(crate) fn between(points: &[Point], from: f64, to: f64) -> &[Point] {
    let start = points.partition_point(|p| p.x < from);
    let end = points.partition_point(|p| p.x <= to);
    &points[start.min(end)..end]
}

/// Samples on each side of an event whose lowest counts as the level there: few, or growth between events would count too.
const EVENT_NEIGHBOURS: usize = 3;

/// Decides whether the floor's rise happens at the events: at least three events, three in four of them lifting it, and
/// together making up two thirds of the whole rise.
fn find_staircase(points: &[Point], events: &[f64]) -> Option<Staircase> {
    if events.len() < 3 || events.len() * 3 > points.len() {
        return None;
    }
    let lowest = |part: &[Point]| part.iter().map(|p| p.y).min_by(f64::total_cmp);
    let step_at = |&event: &f64| {
        let split = points.partition_point(|p| p.x <= event);
        let before = lowest(&points[split.saturating_sub(EVENT_NEIGHBOURS)..split])?;
        let after = lowest(&points[split..(split + EVENT_NEIGHBOURS).min(points.len())])?;
        Some(after - before)
    };
    let steps: Vec<f64> = events.iter().filter_map(step_at).collect();
    let up = steps.iter().filter(|&&step| step > 0.0).count();
    let lows = lows_between(points, events);
    let rise = lows.last()?.y - lows.first()?.y;
    // The median, so that one large movement that coincides with an event does not make a staircase.
    let share = median(&steps) * steps.len() as f64 / rise;
    let found = rise >= MATERIAL_BYTES && up * 4 >= steps.len() * 3 && (0.66..=1.5).contains(&share);
    found.then(|| Staircase { events: steps.len(), step: median(&steps) })
}

//! Tests whether a growth has outlived every bounded explanation.
//!
//! Only repetition can show it. In the first epoch a leak and a cache of first-seen examples look the same, so a
//! leak needs undiminished growth through a whole further epoch after a first pass, and two if an earlier growth ended or the second pass grew less.
//! "Undiminished" is tested against the slowest laws of healthy growth, and the growth must stand out from noise
//! and come in more than a few jumps. Error rates and the population they were measured on are in `docs/diagnose.md`.

use crate::growth::rate_between;
use crate::segments::Segment;
use crate::shape::Shape;
use crate::stats::Point;
use crate::sublinear::law_explains;
use crate::trend::{Bend, Trend, line_over_root, line_over_step};

/// One-sided normal quantile for "it rises on examples seen before": 1 in 100.
const LEAK_SURE: f64 = 2.33;
/// Before a third pass is over, the second must have grown at this share of the first pass's rate.
const AS_BEFORE: f64 = 0.75;
/// Fewest lumps of a leak in lumps.
const FEWEST_LUMPS: usize = 4;
/// Log-likelihood ratio by which a square root may fit better than a line, by chance (1 time in 25 for a line).
const ROOT_MAY_BE: f64 = 1.5;
/// Log-likelihood ratio that settles the matter: ten to one.
const ROOT_IS_SURE: f64 = 2.3;
/// A leak's rate may not be significantly below this share of its earlier rate.
pub(crate) const UNDIMINISHED: f64 = 0.9;

/// A test of whether a growth has outlived every bounded explanation.
pub(crate) struct LeakTest {
    /// Where the first pass over the data (or the earlier growth) ends.
    pub window_start: f64,
    /// The origin of the slowest bounded laws.
    origin: f64,
    /// The place on the clock from which the test can hold.
    pub known_at: f64,
    epoch: f64,
    growth_start: f64,
    after_fill: bool,
}

impl LeakTest {
    pub(crate) fn of(shape: &Shape, start: f64, late: bool, after_fill: bool, epoch: f64) -> LeakTest {
        let origin = if late { start } else { shape.origin() };
        let growth_start = if late || after_fill { start } else { origin };
        let window_start = start.max(origin + epoch);
        LeakTest { window_start, origin, known_at: growth_start + 2.0 * epoch, epoch, growth_start, after_fill }
    }

    /// Whether the verdict is `leak`: the one place where that is decided.
    pub(crate) fn holds(&self, shape: &Shape) -> bool {
        let now = shape.last();
        // A run of a whole number of epochs ends one sample before the boundary.
        if now + 1.5 * shape.spacing + 0.02 * self.epoch < self.known_at {
            return false;
        }
        let window = shape.floor_between(self.window_start, now);
        let (Some(trend), Some(bend)) = (Trend::of(window), Bend::of(window)) else { return false };
        bend.rises(LEAK_SURE)
            && trend.rise() >= shape.material_leak(self.window_start)
            && self.has_company(shape, &trend, now)
            && bend.may_keep(UNDIMINISHED, 1.64)
            && line_over_step(window) > 0.0
            && !self.comes_in_few_jumps(shape)
            && self.beats_the_root(shape, window, now)
            && !self.follows_a_law(shape)
    }

    /// Whether the further passes are plateaus with one to three jumps between them, as in a record process but not in a steady leak.
    fn comes_in_few_jumps(&self, shape: &Shape) -> bool {
        let inside: Vec<&Segment> =
            shape.segments.iter().filter(|s| shape.floor[s.end - 1].x > self.window_start).collect();
        let climbs: f64 = inside.iter().map(|s| (shape.end_level(s) - shape.start_level(s)).max(0.0)).sum();
        let jumps = inside.windows(2).map(|w| shape.start_level(w[1]) - shape.end_level(w[0]));
        let jumps: Vec<f64> = jumps.filter(|&jump| jump > 0.0).collect();
        let jumped: f64 = jumps.iter().sum();
        jumped > 2.0 * climbs && jumps.len() < FEWEST_LUMPS
    }

    /// Whether the growth from its origin on, earlier stretches included, is one smooth slowing curve.
    fn follows_a_law(&self, shape: &Shape) -> bool {
        law_explains(shape.floor_between(self.origin, shape.last()), self.origin)
    }

    /// The square root is the slowest law of healthy growth: a line must explain the further passes about as well.
    fn beats_the_root(&self, shape: &Shape, window: &[Point], now: f64) -> bool {
        let here = line_over_root(window, self.origin);
        let whole = line_over_root(shape.floor_between(self.growth_start, now), self.origin);
        // If the first pass looks like a root as well, the further ones must contradict a root by themselves.
        let needed = if !self.after_fill && whole < -ROOT_IS_SURE { ROOT_IS_SURE } else { -ROOT_MAY_BE };
        here >= needed
    }

    /// Before a third epoch is over, the second must have grown as the first did.
    fn has_company(&self, shape: &Shape, trend: &Trend, now: f64) -> bool {
        if self.after_fill || now >= self.growth_start + 3.0 * self.epoch - 1.5 * shape.spacing - 0.02 * self.epoch {
            return true;
        }
        let first_pass = rate_between(shape, self.growth_start, self.window_start);
        first_pass.is_some_and(|first| trend.slope >= AS_BEFORE * first.value)
    }
}

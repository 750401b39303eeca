//! Tests whether a growth has outlived every bounded explanation.
//!
//! Only repetition can show it. In the first epoch a leak and a cache of first-seen examples look the same, so a
//! leak needs undiminished growth through a whole further epoch after a first pass, and two if an earlier growth ended or the second pass grew less.
//! "Undiminished" is tested against the slowest laws of healthy growth, and the growth must stand out from noise
//! and come in more than a few jumps. Error rates and the population they were measured on are in `docs/diagnose.md`.

use crate::growth::rate_between;
use crate::jumps::Jumps;
use crate::segments::Segment;
use crate::shape::Shape;
use crate::silence::comes_in_few_bursts;
use crate::stats::{Point, median};
use crate::sublinear::law_explains;
use crate::trend::{Bend, Trend, line_over_hinge, line_over_power, line_over_step};
use crate::waves::Waves;

/// One-sided normal quantile for "it rises on examples seen before": 1 in 100.
const LEAK_SURE: f64 = 2.33;
/// Before a third pass is over, the second must have grown at this share of the first pass's rate.
const AS_BEFORE: f64 = 0.75;
/// Fewest lumps of a leak in lumps: pools grow, layers are unfrozen and batches enlarged in up to four steps. Steps at evaluations and
/// checkpoints have their cause beside them.
const FEWEST_LUMPS: usize = 5;
const FEWEST_STAIRS: usize = 4;
/// Log-likelihood ratio of growth that goes on over growth that ended with the second pass.
const OUTLASTS: f64 = 1.0;
/// Evidence that a leak needs, and growth after a fill, which has shown already that it outlives one (`is_evident`). Found on the
/// population of the property test: with less, powers of the time pass for lines.
pub(crate) const EVIDENT: f64 = 17.0;
const EVIDENT_AFTER_FILL: f64 = 5.0;
/// A power of the time that is easily taken for a line, such as a vocabulary's, and the root of the likelihood ratio that counts.
const NEARLY_STRAIGHT: (f64, f64) = (0.75, 3.0);
/// Log-likelihood ratios beyond this are beyond doubt.
const MOST_LIKELY: f64 = 10.0;
/// However straight, growth within its noise is none: this share of what a leak must stand out from is one band of it.
const ONE_BAND: f64 = 1.0 / 3.0;
/// One-sided normal quantile for "it slows down": 1 in 740.
pub(crate) const SLOWS: f64 = 3.0;
/// Log-likelihood ratio that settles the matter: ten to one.
pub(crate) const ROOT_IS_SURE: f64 = 2.3;
/// Growth that slowed down must keep its new rate for this many passes, and contradict these powers of the time.
const LATER_PASSES: f64 = 3.0;
const LATER_POWERS: [f64; 2] = [0.5, 0.75];
/// The levels of whole passes are few and exact, so they must contradict a power that is nearly straight.
const LEVEL_POWERS: [f64; 3] = [0.5, 0.7, 0.8];
/// Fewest passes after the first whose levels show growth in every one: by chance one order in 120 is rising.
const FEWEST_PASSES: usize = 5;
/// A buffer must have been full at least so often after the first pass: once may be the last example of it.
const FEWEST_REFILLS: usize = 2;
/// Fewest passes in which jumps fall.
const PASSES_WITH_JUMPS: usize = 3;
/// Fewest stretches, each slower than the one before, that make a curve: by chance one order in 24.
const FEWEST_TURNS: usize = 4;
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
        let steadily = || self.holds_from(shape, self.window_start);
        let in_steps = || self.grows_in_every_pass(shape) || self.comes_in_even_jumps(shape);
        let slows = self.follows_a_law(shape) || slows_at_each_turn(shape, self.growth_start);
        !slows && (steadily() || self.holds_later(shape) || in_steps()) || self.outgrows_its_capacity(shape)
    }

    /// Whether a buffer that grows by a factor when it is full was full again and again after the first pass: its content grows
    /// like a straight line, though the jumps get rarer.
    pub(crate) fn outgrows_its_capacity(&self, shape: &Shape) -> bool {
        let jumps = Jumps::of(shape);
        let factor = jumps.growth_factor(self.origin);
        let later = jumps.since(self.window_start);
        let rise: f64 = later.list.iter().map(|jump| jump.1).sum();
        factor.is_some_and(|factor| later.next_may_come(self.origin, factor))
            && later.list.len() >= FEWEST_REFILLS
            && rise >= shape.material_leak(self.window_start)
    }

    /// Whether each pass over the data stands above the one before, by about as much: evidence that a test for a straight line
    /// misses where the floor steps up once per pass.
    fn grows_in_every_pass(&self, shape: &Shape) -> bool {
        let first = self.growth_start;
        let whole = ((shape.last() - first + 1.5 * shape.spacing) / self.epoch).floor();
        // The first pass may fill a cache.
        let levels = levels(shape, first + self.epoch, self.epoch, (whole as usize).saturating_sub(1));
        let Some(levels) = levels.filter(|levels| levels.len() >= FEWEST_PASSES) else { return false };
        let rise = levels[levels.len() - 1].y - levels[0].y;
        each_above_the_last(&levels)
            && rise >= shape.material_leak(self.window_start)
            && LEVEL_POWERS.iter().all(|&power| line_over_power(&levels, self.origin, power) >= ROOT_IS_SURE)
    }

    /// Whether the further passes grew in jumps that keep coming: evenly in time, not ever more rarely as records do.
    fn comes_in_even_jumps(&self, shape: &Shape) -> bool {
        let jumps = Jumps::of(shape).since(self.window_start);
        let passes = jumps.list.iter().map(|jump| ((jump.0 - self.window_start) / self.epoch).floor() as usize);
        let passes: std::collections::BTreeSet<usize> = passes.collect();
        let rise: f64 = jumps.list.iter().map(|jump| jump.1).sum();
        passes.len() >= PASSES_WITH_JUMPS
            && jumps.list.len() >= FEWEST_LUMPS
            && jumps.may_go_on()
            && jumps.are_even(self.origin)
            && rise >= shape.material_leak(self.window_start)
    }

    /// Whether growth that once slowed down has kept its rate ever since, for several passes: evidence against every law that
    /// goes on slowing.
    fn holds_later(&self, shape: &Shape) -> bool {
        let latest = shape.last() - LATER_PASSES * self.epoch + 1.5 * shape.spacing;
        let starts = shape.segments.iter().map(|segment| shape.floor[segment.start].x);
        let mut starts = starts.filter(|&start| start > self.window_start && start <= latest);
        starts.any(|start| {
            let window = shape.floor_between(start, shape.last());
            LATER_POWERS.iter().all(|&power| line_over_power(window, self.origin, power) >= ROOT_IS_SURE)
                && self.holds_from(shape, start)
        })
    }

    /// Whether the floor rises undiminished on examples seen before, from a place on.
    fn holds_from(&self, shape: &Shape, from: f64) -> bool {
        let now = shape.last();
        let window = shape.floor_between(from, now);
        let (Some(trend), Some(bend)) = (Trend::of(window), Bend::of(window)) else { return false };
        bend.rises(LEAK_SURE)
            && trend.rise() >= shape.least_leak()
            && self.has_company(shape, &trend, now)
            && bend.may_keep(UNDIMINISHED, SLOWS)
            && line_over_step(window) > 0.0
            && !comes_in_few_jumps(shape, from)
            && self.outlasts_the_second_pass(shape, from)
            && (shape.staircase.is_some() || !comes_in_few_bursts(shape, from))
            && self.beats_the_root(shape, window, now)
            && self.stands_out(shape, &trend, from)
    }

    /// Whether the growth has surely gone on beyond the second pass: a fill that took nearly as long looks the same until then.
    fn outlasts_the_second_pass(&self, shape: &Shape, from: f64) -> bool {
        let later = |points: &[Point]| line_over_hinge(points, self.known_at);
        let (points, floor) = (shape.points_between(from, shape.last()), shape.floor_between(from, shape.last()));
        // Of a staircase's levels, one stands above the others or does not.
        let is_seen = from >= self.known_at || shape.staircase.is_some();
        is_seen || later(points).max(later(floor)) >= OUTLASTS
    }

    /// Whether the growth from its origin on, earlier stretches included, is one smooth slowing curve.
    fn follows_a_law(&self, shape: &Shape) -> bool {
        law_explains(shape.floor_between(self.origin, shape.last()), self.origin)
    }

    /// The square root is the slowest law of healthy growth: if the whole growth looks like one, the further passes must contradict it
    /// by themselves.
    fn beats_the_root(&self, shape: &Shape, window: &[Point], now: f64) -> bool {
        let whole = line_over_power(shape.floor_between(self.growth_start, now), self.origin, 0.5);
        self.after_fill || whole >= -ROOT_IS_SURE || line_over_power(window, self.origin, 0.5) >= ROOT_IS_SURE
    }

    /// Whether the growth since `from` stands out from noise. Lows between teeth or evaluations, and growth that has slowed down, are
    /// too few to say how straight they are.
    fn stands_out(&self, shape: &Shape, trend: &Trend, from: f64) -> bool {
        let in_noise = trend.rise() / shape.leak_noise(from);
        if from > self.window_start || matches!(shape.waves, Waves::Teeth(_)) || shape.staircase.is_some() {
            return in_noise >= 1.0;
        }
        let passes = (shape.last() - self.growth_start) / self.epoch;
        if self.after_fill {
            return is_evident(in_noise, passes, 0.0, EVIDENT_AFTER_FILL);
        }
        is_evident(in_noise, passes, line_over_a_power(shape, self.growth_start, self.origin), EVIDENT)
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

/// Whether a rise (in multiples of what a leak must stand out from), the passes it has lasted and the log-likelihood ratio of a line
/// over a power of the time add up to enough evidence: a noisy growth must be straight or last, a clear one may be found at once.
pub(crate) fn is_evident(in_noise: f64, passes: f64, line: f64, needed: f64) -> bool {
    in_noise >= ONE_BAND && in_noise * passes * (line.min(MOST_LIKELY) / NEARLY_STRAIGHT.1).exp() >= needed
}

/// Log-likelihood ratio of a line over a power of the time since `origin` that is easily taken for one: by the samples, which are more,
/// or by the floor, which is clear of spikes and dips.
pub(crate) fn line_over_a_power(shape: &Shape, from: f64, origin: f64) -> f64 {
    let ratio = |points: &[Point]| line_over_power(points, origin, NEARLY_STRAIGHT.0);
    ratio(shape.points_between(from, shape.last())).max(ratio(shape.floor_between(from, shape.last())))
}

/// The typical low of each of `count` stretches of a length, in their middles; `None` if one of them has no low.
pub(crate) fn levels(shape: &Shape, from: f64, length: f64, count: usize) -> Option<Vec<Point>> {
    let level = |number: usize| {
        let from = from + number as f64 * length;
        let lows: Vec<f64> = shape.floor_between(from, from + length).iter().map(|low| low.y).collect();
        (!lows.is_empty()).then(|| Point { x: from + 0.5 * length, y: median(&lows) })
    };
    (0..count).map(level).collect()
}

/// Whether each level stands above the one before.
pub(crate) fn each_above_the_last(levels: &[Point]) -> bool {
    levels.windows(2).all(|pair| pair[1].y > pair[0].y)
}

/// Whether each straight stretch of the growth is slower than the one before: a curve, whatever a jump in it does to a line.
fn slows_at_each_turn(shape: &Shape, from: f64) -> bool {
    let slopes: Vec<f64> = shape
        .segments
        .iter()
        .filter(|segment| shape.floor[segment.start].x >= from)
        .map(|segment| segment.line.slope)
        .collect();
    let falls = slopes.windows(2).all(|pair| pair[1] < pair[0]) && slopes.last().is_some_and(|&last| last > 0.0);
    falls && slopes.len() >= FEWEST_TURNS
}

/// Whether the further passes are plateaus with one to three jumps between them, as in a record process but not in a steady leak.
pub(crate) fn comes_in_few_jumps(shape: &Shape, from: f64) -> bool {
    let inside: Vec<&Segment> = shape.segments.iter().filter(|s| shape.floor[s.end - 1].x > from).collect();
    let climbs: f64 = inside.iter().map(|s| (shape.end_level(s) - shape.start_level(s)).max(0.0)).sum();
    let jumps = inside.windows(2).map(|w| shape.start_level(w[1]) - shape.end_level(w[0]));
    let jumps: Vec<f64> = jumps.filter(|&jump| jump > 0.0).collect();
    let jumped: f64 = jumps.iter().sum();
    let fewest = if shape.staircase.is_some() { FEWEST_STAIRS } else { FEWEST_LUMPS };
    jumped > 2.0 * climbs && jumps.len() < fewest
}

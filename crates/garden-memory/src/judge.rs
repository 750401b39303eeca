//! From a shape and the length of an epoch to a verdict.
//!
//! The order of questions: did the floor grow at all; did the growth end; if not, has the data outlived every bounded
//! explanation? Nothing but repetition can answer the last one. In the first epoch a leak and a cache of first-seen
//! examples look the same, so `leak` needs undiminished growth through a whole further epoch after a first pass, and two
//! if an earlier growth ended. Error rates and the population they were measured on are in `docs/diagnose.md`.

use crate::diagnosis::{Mechanism, Verdict};
use crate::laws::law_explains;
use crate::records::thins_out;
use crate::shape::Shape;
use crate::stats::{Line, Point, Rate, theil_sen};
use crate::trend::{Bend, Trend, line_over_root, line_over_step};
use crate::waves::Waves;

/// Samples below which nothing is said.
pub(crate) const FEWEST_SAMPLES: usize = 5;
/// One-sided normal quantile for "it rises": 1 in 740.
const SURE: f64 = 3.0;
/// One-sided normal quantile for "it rises on examples seen before": 1 in 100.
const LEAK_SURE: f64 = 2.33;
/// A growth breaks where its rate falls to this share.
const BREAK: f64 = 1.0 / 3.0;
/// Growth after the knee may be at most this share of the growth before it.
const AFTER_KNEE: f64 = 0.15;
/// Of a growth that came in pieces this share may come after what counts as its end.
const PIECES_LEFT: f64 = 1.0 / 3.0;
/// A plateau must last this share of the growth before it.
const PLATEAU_LENGTH: f64 = 0.15;
/// The rate after the knee must be below this share of the rate before it.
const PLATEAU_RATE: f64 = 0.15;
/// A leak's rate may not be significantly below this share of what it was.
const UNDIMINISHED: f64 = 0.9;
/// Log-likelihood ratio by which a square root may fit better than a line, by chance (1 time in 25 for a line).
const ROOT_MAY_BE: f64 = 1.5;
/// Log-likelihood ratio that settles the matter: ten to one.
const ROOT_IS_SURE: f64 = 2.3;
/// How far a knee may lie from the epoch's end, as a share of the epoch.
const ALIGNED: f64 = 0.1;
/// A plateau before a growth makes it late if it lasts this share of the trace.
const LATE: f64 = 0.15;
/// A growth that is over within this share of the trace, and adds at most this share of the level, is start-up.
const START_UP: f64 = 0.2;
/// A knee within this share of the trace is a start-up rather than a cache.
const EARLY: f64 = 0.12;

/// A growth of the floor, on the clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch {
    pub from: f64,
    pub to: f64,
    pub rise: f64,
    pub rate: Rate,
}

/// What the judge found in one series.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    pub verdict: Verdict,
    pub mechanism: Mechanism,
    /// The growth that decides the verdict.
    pub growth: Option<Stretch>,
    /// A small growth at the very beginning that does not count.
    pub start_up: Option<Stretch>,
    /// A larger growth that ended before the deciding one.
    pub earlier: Option<Stretch>,
    /// Where the (last large) growth ended: place, earliest, latest.
    pub knee: Option<(f64, f64, f64)>,
    /// Whether the knee lies at the end of a whole pass over the data.
    pub aligned: bool,
    /// Whether the growth began after a long plateau.
    pub late: bool,
    /// Whether the growth surely slows down.
    pub slowing: bool,
    /// Whether a plateau has begun that is too short to count.
    pub pausing: bool,
    /// The place on the clock at which the question leak-or-not can be answered, if the growth goes on.
    pub leak_known_at: Option<f64>,
}

/// Judges a shape; `epoch` is the number of steps after which examples repeat.
pub(crate) fn judge(shape: &Shape, epoch: Option<f64>) -> Finding {
    let levels = shape.segments.iter().flat_map(|s| [shape.start_level(s), shape.end_level(s)]);
    let lowest = levels.fold(f64::INFINITY, f64::min);
    let retained = shape.present_level() - lowest;
    let is_real = shape.segments.len() > 1
        || shape.staircase.is_some()
        || Trend::of(&shape.floor).is_some_and(|trend| trend.rises(SURE));
    if retained < shape.material().max(deepest_fall(shape)) || !is_real {
        return quiet(shape);
    }
    let broken = find_break(shape).or_else(|| if rises_now(shape) { None } else { ended_in_pieces(shape) });
    match broken {
        Some(broken) => after_break(shape, &broken, epoch),
        None => still_growing(shape, 0, None, epoch),
    }
}

impl Finding {
    /// Nothing can be said.
    pub(crate) fn nothing() -> Finding {
        Finding {
            verdict: Verdict::Insufficient,
            mechanism: Mechanism::None,
            growth: None,
            start_up: None,
            earlier: None,
            knee: None,
            aligned: false,
            late: false,
            slowing: false,
            pausing: false,
            leak_known_at: None,
        }
    }
}

/// No growth worth the name.
fn quiet(shape: &Shape) -> Finding {
    let (verdict, mechanism) = match shape.waves {
        Waves::Teeth(_) => (Verdict::Sawtooth, Mechanism::Sawtooth),
        Waves::Spikes { .. } => (Verdict::Flat, Mechanism::Spikes),
        Waves::None => (Verdict::Flat, Mechanism::None),
    };
    Finding { verdict, mechanism, ..Finding::nothing() }
}

/// The deepest fall of the fitted floor after its lowest place: a floor that falls as far as it rises only wanders.
fn deepest_fall(shape: &Shape) -> f64 {
    let levels: Vec<f64> = shape.segments.iter().flat_map(|s| [shape.start_level(s), shape.end_level(s)]).collect();
    let foot = (0..levels.len()).min_by(|&a, &b| levels[a].total_cmp(&levels[b])).unwrap_or(0);
    let (mut top, mut fall) = (f64::NEG_INFINITY, 0.0_f64);
    for &level in &levels[foot..] {
        top = top.max(level);
        fall = fall.max(top - level);
    }
    fall
}

/// A growth that ended, or gave way to a much slower one, at the start of a segment.
struct Break {
    /// The segment that begins there.
    segment: usize,
    /// The growth before it, from the foot of its climb on.
    growth: Stretch,
    /// What was added after it.
    after: f64,
}

/// The first place from which on next to nothing was added; else the last place where growth gave way to a slower one.
fn find_break(shape: &Shape) -> Option<Break> {
    let breaks: Vec<Break> = (1..shape.segments.len()).filter_map(|k| break_at(shape, k)).collect();
    let is_end = |b: &Break| b.after <= (AFTER_KNEE * b.growth.rise).max(shape.material());
    let place = breaks.iter().position(is_end).or(breaks.len().checked_sub(1))?;
    breaks.into_iter().nth(place)
}

/// The break at the start of segment `k`, if the rate falls there to a third or less for the rest of the trace.
fn break_at(shape: &Shape, k: usize) -> Option<Break> {
    let (before, segment) = (&shape.segments[k - 1], &shape.segments[k]);
    let border = shape.floor[segment.start].x;
    let level = shape.start_level(segment);
    let steep = (level - shape.start_level(before)) / (border - shape.floor[before.start].x).max(shape.spacing);
    let rest = &shape.segments[k..];
    let top = rest.iter().map(|s| shape.end_level(s).max(shape.start_level(s))).fold(level, f64::max);
    let left = shape.last() - border;
    let first = first_growing(shape, 0, k - 1);
    let rise = level - shape.start_level(&shape.segments[first]);
    let is_break = rise >= shape.material() && left > 0.0 && (top - level) / left <= BREAK * steep;
    is_break.then(|| Break { segment: k, growth: climb(shape, first, k, rise), after: top - level })
}

/// Whether the growth that leads up to the end of the trace is one that matters.
fn rises_now(shape: &Shape) -> bool {
    let last = shape.segments.len() - 1;
    let first = first_growing(shape, 0, last);
    shape.present_level() - shape.start_level(&shape.segments[first]) >= shape.material()
}

/// A growth that came in several pieces, none of which matters alone, and is over.
fn ended_in_pieces(shape: &Shape) -> Option<Break> {
    let level = |k: usize| shape.start_level(&shape.segments[k]);
    let foot = (0..shape.segments.len()).min_by(|&a, &b| level(a).total_cmp(&level(b)))?;
    let top = shape.segments.iter().map(|s| shape.end_level(s)).fold(shape.present_level(), f64::max);
    let rise = top - level(foot);
    let segment = (foot + 1..shape.segments.len()).find(|&k| top - level(k) <= PIECES_LEFT * rise)?;
    let (from, to) = (shape.floor[shape.segments[foot].start].x, shape.floor[shape.segments[segment].start].x);
    let value = rise / (to - from).max(shape.spacing);
    let growth = Stretch { from, to, rise, rate: Rate { value, low: value, high: value } };
    Some(Break { segment, growth, after: top - level(segment) })
}

/// The growth from segment `first` to the start of segment `next`: a climb, or a jump between two plateaus.
fn climb(shape: &Shape, first: usize, next: usize, rise: f64) -> Stretch {
    let before = &shape.segments[next - 1];
    let jump = shape.start_level(&shape.segments[next]) - shape.end_level(before);
    if jump > 0.7 * rise {
        let (from, to) = (shape.floor[before.end - 1].x, shape.floor[shape.segments[next].start].x);
        let value = jump / (to - from).max(shape.spacing);
        return Stretch { from, to, rise, rate: Rate { value, low: value, high: value } };
    }
    let from = shape.floor[shape.segments[first].start].x;
    let to = refine_knee(shape, next).0;
    // Too short for a robust fit: what was gained over how long it took.
    let plain = rise / (to - from).max(shape.spacing);
    let fitted = rate_between(shape, from, to).filter(|_| shape.points_between(from, to).len() >= 5);
    let rate = fitted.unwrap_or(Rate { value: plain, low: plain, high: plain });
    Stretch { from, to, rise, rate }
}

/// Growth broke: decide whether it ended for good, and whether something else goes on underneath.
fn after_break(shape: &Shape, broken: &Break, epoch: Option<f64>) -> Finding {
    let place = refine_knee(shape, broken.segment);
    let fill = broken.growth;
    let tail = &shape.floor[shape.segments[broken.segment].start..];
    let adds_up = broken.after > (AFTER_KNEE * fill.rise).max(shape.material());
    if adds_up || rises_underneath(shape, tail) {
        let mut finding = still_growing(shape, broken.segment, Some(fill), epoch);
        finding.knee = Some(place);
        return finding;
    }
    let pace = fill.rise / (fill.to - fill.from).max(shape.spacing);
    if theil_sen(tail).is_none_or(|rate| rate.value > PLATEAU_RATE * pace) {
        return still_growing(shape, 0, None, epoch);
    }
    let border = shape.floor[shape.segments[broken.segment].start].x;
    let ended = shape.points_between(border, shape.last()).len() >= 4
        && shape.last() - place.0 >= PLATEAU_LENGTH * (fill.to - fill.from);
    if ended && place.0 - shape.first() <= START_UP * shape.length() && fill.rise <= START_UP * shape.present_level() {
        return Finding { start_up: Some(fill), ..quiet(shape) };
    }
    // A leak in lumps pauses after each of them: growth that has outlived every bounded explanation does not end so soon.
    if !ended {
        let going_on = still_growing(shape, 0, None, epoch);
        if going_on.verdict == Verdict::Leak {
            return going_on;
        }
    }
    let late = is_late(shape, fill.from);
    let aligned = is_aligned(shape, place, fill.from, late, epoch);
    let bend = Bend::of(shape.floor_between(fill.from, place.0));
    let slowing = bend.is_some_and(|bend| !bend.may_keep(0.5, SURE));
    let mechanism = match () {
        () if aligned && !slowing => Mechanism::EpochFill,
        () if thins_out(shape, fill.from) => Mechanism::RecordHigh,
        () if slowing || place.0 - shape.first() < EARLY * shape.length() => Mechanism::WarmUp,
        () => Mechanism::CappedCache,
    };
    let (verdict, mechanism) = match ended {
        true => (Verdict::Settled, mechanism),
        false => (Verdict::Growing, if late { Mechanism::LateOnset } else { Mechanism::Linear }),
    };
    Finding {
        verdict,
        mechanism,
        growth: Some(fill),
        knee: Some(place),
        aligned,
        late,
        slowing,
        pausing: !ended,
        ..Finding::nothing()
    }
}

/// Whether the floor after a knee still rises in its later half, by an amount that matters.
fn rises_underneath(shape: &Shape, tail: &[Point]) -> bool {
    let later = if tail.len() >= 10 { &tail[tail.len() / 2..] } else { tail };
    let (Some(whole), Some(later)) = (Trend::of(tail), Trend::of(later)) else { return false };
    whole.rises(SURE) && later.rises(SURE) && (later.slope * whole.length).min(whole.rise()) >= shape.material()
}

/// Growth goes on at the end of the trace, from segment `from` on at the earliest.
fn still_growing(shape: &Shape, from: usize, earlier: Option<Stretch>, epoch: Option<f64>) -> Finding {
    let last = shape.segments.len() - 1;
    let first = first_growing(shape, from, last);
    let start = shape.floor[shape.segments[first].start].x;
    let late = earlier.is_none() && is_late(shape, start);
    let now = shape.last();
    let whole = shape.floor_between(start, now);
    let leak = epoch.map(|epoch| LeakTest::of(shape, start, late, earlier.is_some(), epoch));
    let is_leak = leak.as_ref().is_some_and(|test| test.holds(shape));
    let bend = Bend::of(whole);
    let slowing = bend.is_some_and(|bend| !bend.may_keep(UNDIMINISHED, SURE));
    let present = match &leak {
        Some(test) if is_leak => test.window_start,
        // Growth that changed its pace goes on at the present one.
        _ if slowing || bend.is_some_and(|bend| bend.surely_keeps(1.5, SURE)) => {
            shape.floor[shape.segments[last].start].x
        }
        _ => start,
    };
    let mut growth = stretch(shape, start, now);
    growth.rise = shape.present_level() - shape.start_level(&shape.segments[first]);
    growth.rate = rate_between(shape, present, now).unwrap_or(growth.rate);
    let mechanism = match () {
        () if shape.staircase.is_some() => Mechanism::Staircase,
        () if late => Mechanism::LateOnset,
        () if is_leak || !slowing => Mechanism::Linear,
        () if thins_out(shape, start) => Mechanism::RecordHigh,
        () => Mechanism::WarmUp,
    };
    Finding {
        verdict: if is_leak { Verdict::Leak } else { Verdict::Growing },
        mechanism,
        growth: Some(growth),
        earlier,
        late,
        slowing: slowing && !is_leak,
        leak_known_at: leak.map(|test| test.known_at),
        ..Finding::nothing()
    }
}

/// The question whether a growth has outlived every bounded explanation.
struct LeakTest {
    /// Where the first pass over the data (or the earlier growth) is over.
    window_start: f64,
    /// Where the process's slowest bounded laws have their origin.
    origin: f64,
    /// The clock must have come so far.
    known_at: f64,
    epoch: f64,
    growth_start: f64,
    after_fill: bool,
}

impl LeakTest {
    fn of(shape: &Shape, start: f64, late: bool, after_fill: bool, epoch: f64) -> LeakTest {
        // Steps count from the start of training, also where the first sample comes later.
        let origin = if late { start } else { shape.first().min(0.0) };
        let growth_start = if late || after_fill { start } else { origin };
        let window_start = start.max(origin + epoch);
        LeakTest { window_start, origin, known_at: growth_start + 2.0 * epoch, epoch, growth_start, after_fill }
    }

    fn holds(&self, shape: &Shape) -> bool {
        let now = shape.last();
        // A run of exactly so many epochs ends a sample before the border.
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
            && self.beats_the_root(shape, window, now)
            && !self.follows_a_law(shape)
    }

    /// Whether the growth from its origin on, earlier stretches included, is one smooth slowing curve.
    fn follows_a_law(&self, shape: &Shape) -> bool {
        law_explains(shape.floor_between(self.origin, shape.last()), self.origin)
    }

    /// The square root is the slowest law of healthy growth: a line must explain the further passes about as well.
    fn beats_the_root(&self, shape: &Shape, window: &[Point], now: f64) -> bool {
        let here = line_over_root(window, self.origin);
        let whole = line_over_root(shape.floor_between(self.growth_start, now), self.origin);
        // If the first pass looks like a root as well, the further ones must contradict it by themselves.
        let needed = if !self.after_fill && whole < -ROOT_IS_SURE { ROOT_IS_SURE } else { -ROOT_MAY_BE };
        here >= needed
    }

    /// Before a third epoch is over, the second must have grown as the first did.
    fn has_company(&self, shape: &Shape, trend: &Trend, now: f64) -> bool {
        if self.after_fill || now >= self.growth_start + 3.0 * self.epoch - 1.5 * shape.spacing - 0.02 * self.epoch {
            return true;
        }
        let first_pass = rate_between(shape, self.growth_start, self.window_start);
        first_pass.is_some_and(|first| trend.slope >= 0.75 * first.value)
    }
}

/// Walks back from segment `last` over growing segments; a stretch of some length at a third of the later pace ends the walk.
fn first_growing(shape: &Shape, from: usize, last: usize) -> usize {
    let mut first = last;
    for k in (from..last).rev() {
        let segment = &shape.segments[k];
        let next = &shape.segments[k + 1];
        let pace = |from: f64, to: f64, rise: f64| rise / (to - from).max(1e-9);
        let start = shape.floor[segment.start].x;
        let border = shape.floor[next.start].x;
        let end = shape.floor[shape.segments[last].end - 1].x;
        let rise = shape.start_level(next).max(shape.end_level(segment)) - shape.start_level(segment);
        let after = pace(border, end, shape.end_level(&shape.segments[last]) - shape.start_level(next));
        let is_slower = pace(start, border, rise) < BREAK * after.max(0.0) || rise <= 0.0;
        if is_slower && border - start >= 0.05 * shape.length() {
            break;
        }
        first = k;
    }
    first
}

fn is_late(shape: &Shape, start: f64) -> bool {
    start - shape.first() >= LATE * shape.length()
}

/// Whether the knee lies where a whole pass over the data ends.
fn is_aligned(shape: &Shape, knee: (f64, f64, f64), from: f64, late: bool, epoch: Option<f64>) -> bool {
    let Some(epoch) = epoch else { return false };
    let boundary = if late { from + epoch } else { epoch };
    let slack = (ALIGNED * epoch).max(shape.spacing);
    // A growth that covers only the end of the epoch is not a pass over it.
    let covers = if late { knee.0 - from >= 0.65 * epoch } else { from <= 0.35 * epoch };
    covers && boundary >= knee.1.min(knee.0 - slack) && boundary <= knee.2.max(knee.0 + slack)
}

fn stretch(shape: &Shape, from: f64, to: f64) -> Stretch {
    let rate = rate_between(shape, from, to).unwrap_or_default();
    Stretch { from, to, rise: rate.value * (to - from), rate }
}

/// The robust rate over a stretch: of the floor, or of all samples where the floor has too few points.
fn rate_between(shape: &Shape, from: f64, to: f64) -> Option<Rate> {
    let floor = shape.floor_between(from, to);
    let few = floor.len() < 8 && !matches!(shape.waves, Waves::Teeth(_)) && shape.staircase.is_none();
    theil_sen(if few { shape.points_between(from, to) } else { floor })
}

/// Finds the knee on the samples themselves: the best split into two lines around the floor's, and where these meet.
fn refine_knee(shape: &Shape, knee: usize) -> (f64, f64, f64) {
    let start = shape.floor[shape.segments[knee - 1].start].x;
    let border = shape.floor[shape.segments[knee].start].x;
    let end = shape.floor[shape.segments[knee].end - 1].x;
    let coarse = (border, shape.floor[shape.segments[knee].start - 1].x, border);
    if matches!(shape.waves, Waves::Teeth(_)) || shape.staircase.is_some() {
        return coarse;
    }
    // Only the stretch before the knee matters, and as much after it.
    let reach = border - start;
    let around = shape.points_between(start, end.min(border + reach));
    let Some(split) = best_split(around) else { return coarse };
    let (growing, flat) = (Line::fit(&around[..split]), Line::fit(&around[split..]));
    let (left, right) = (around[split - 1].x, around[split].x);
    let meeting = growing.mean_x
        + (flat.at(growing.mean_x) - growing.mean_y) / (growing.slope - flat.slope).max(f64::MIN_POSITIVE);
    let width = right - left;
    let at = if meeting > left - width && meeting < right + width { meeting } else { 0.5 * (left + right) };
    // Noise shifts the crossing by about its size over the slope.
    let blur = 2.0 * shape.noise.sigma / (growing.slope - flat.slope).abs().max(f64::MIN_POSITIVE);
    let blur = blur.min(reach / 2.0);
    (at, left.min(at) - blur, right.max(at) + blur)
}

/// The split of points into two lines with the least squared error.
fn best_split(points: &[Point]) -> Option<usize> {
    const MARGIN: usize = 2;
    let n = points.len();
    if n < 2 * MARGIN + 1 {
        return None;
    }
    let errors = |points: &mut dyn Iterator<Item = &Point>| {
        // Welford's running sums: numerically safe in one pass.
        let (mut n, mut mx, mut my, mut sxx, mut sxy, mut syy) = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0);
        let mut out = vec![0.0];
        for p in points {
            n += 1.0;
            let (dx, dy) = (p.x - mx, p.y - my);
            mx += dx / n;
            my += dy / n;
            sxx += dx * (p.x - mx);
            sxy += dx * (p.y - my);
            syy += dy * (p.y - my);
            out.push(if sxx > 0.0 { syy - sxy * sxy / sxx } else { 0.0 });
        }
        out
    };
    let left = errors(&mut points.iter());
    let right = errors(&mut points.iter().rev());
    (MARGIN..=n - MARGIN).min_by(|&a, &b| (left[a] + right[n - a]).total_cmp(&(left[b] + right[n - b])))
}

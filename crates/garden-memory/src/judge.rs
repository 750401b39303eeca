//! From a shape and the length of an epoch to a verdict.
//!
//! The order of questions: did the floor grow at all; did the growth end; if not, has the data outlived every bounded
//! explanation? Nothing but repetition can answer the last one. In the first epoch a leak and a cache of first-seen
//! examples look the same, so `leak` needs undiminished growth through a whole further epoch after a first pass, and two
//! if an earlier growth ended. Error rates and the population they were measured on are in `docs/diagnose.md`.

use crate::diagnosis::{Mechanism, Verdict};
use crate::records::thins_out;
use crate::shape::Shape;
use crate::stats::{Line, Point, Rate, theil_sen};
use crate::trend::{Bend, Trend};
use crate::waves::Waves;

/// Samples below which nothing is said.
pub(crate) const FEWEST_SAMPLES: usize = 5;
/// One-sided normal quantile for "it rises": 1 in 740.
const SURE: f64 = 3.0;
/// One-sided normal quantile for "it leaks": 1 in 2,000 for one look; a run is looked at again and again.
const LEAK_SURE: f64 = 3.29;
/// Growth after the knee may be at most this share of the growth before it.
const AFTER_KNEE: f64 = 0.15;
/// A plateau must last this share of the growth before it.
const PLATEAU_LENGTH: f64 = 0.15;
/// The rate after the knee must be below this share of the rate before it.
const PLATEAU_RATE: f64 = 0.15;
/// A leak's rate may not be significantly below this share of what it was.
const UNDIMINISHED: f64 = 0.9;
/// How far a knee may lie from the epoch's end, as a share of the epoch.
const ALIGNED: f64 = 0.06;
/// A plateau before a growth makes it late if it lasts this share of the trace.
const LATE: f64 = 0.15;
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
    let levels: Vec<(f64, f64)> =
        shape.segments.iter().map(|s| (shape.start_level(s), shape.end_level(s))).collect();
    let lowest = levels.iter().flat_map(|&(a, b)| [a, b]).fold(f64::INFINITY, f64::min);
    let retained = shape.present_level() - lowest;
    let is_real = shape.segments.len() > 1 || Trend::of(&shape.floor).is_some_and(|trend| trend.rises(SURE));
    if retained < shape.material() || !is_real {
        return quiet(shape);
    }
    match find_knee(shape, &levels) {
        Some(knee) => after_knee(shape, knee, epoch),
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

/// The first segment after which next to nothing was added; growth up to there is what ended.
fn find_knee(shape: &Shape, levels: &[(f64, f64)]) -> Option<usize> {
    (1..levels.len()).find(|&k| {
        let before = levels[..k].iter().flat_map(|&(a, b)| [a, b]).fold(f64::INFINITY, f64::min);
        let rise = levels[k].0 - before;
        let top = levels[k..].iter().flat_map(|&(a, b)| [a, b]).fold(f64::NEG_INFINITY, f64::max);
        rise >= shape.material() && top - levels[k].0 <= AFTER_KNEE * rise
    })
}

/// Growth ended at segment `knee`: decide whether it really did, and whether something else goes on underneath.
fn after_knee(shape: &Shape, knee: usize, epoch: Option<f64>) -> Finding {
    let first = first_growing(shape, 0, knee - 1);
    let boundary = shape.floor[shape.segments[knee].start].x;
    let place = refine_knee(shape, first, knee);
    let mut fill = stretch(shape, shape.floor[shape.segments[first].start].x, place.0);
    let tail = &shape.floor[shape.segments[knee].start..];
    fill.rise = shape.start_level(&shape.segments[knee]) - shape.start_level(&shape.segments[first]);
    if rises_underneath(shape, tail) {
        let mut finding = still_growing(shape, knee, Some(fill), epoch);
        finding.knee = Some(place);
        return finding;
    }
    let length = shape.last() - place.0;
    let samples = shape.points_between(boundary, shape.last()).len();
    let ended = samples >= 4
        && length >= PLATEAU_LENGTH * (fill.to - fill.from)
        && tail_rate(tail).is_some_and(|rate| rate <= PLATEAU_RATE * fill.rate.value);
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

/// The typical rate of a tail, also for three points.
fn tail_rate(tail: &[Point]) -> Option<f64> {
    theil_sen(tail).map(|rate| rate.value)
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
    // Growth that changed its pace goes on at the present one.
    let present = match &leak {
        Some(test) if is_leak => test.window_start,
        _ => shape.floor[shape.segments[last].start].x.max(start),
    };
    let mut growth = stretch(shape, start, now);
    growth.rate = rate_between(shape, present, now).unwrap_or(growth.rate);
    let slowing = Bend::of(whole).is_some_and(|bend| !bend.may_keep(UNDIMINISHED, SURE));
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
        trend.rises(LEAK_SURE)
            && trend.rise() >= shape.material()
            && self.has_company(shape, &trend, now)
            && bend.surely_keeps(self.slowest_law(now), LEAK_SURE)
            && bend.may_keep(UNDIMINISHED, 1.64)
    }

    /// Before a third epoch is over, the second must have grown as the first did.
    fn has_company(&self, shape: &Shape, trend: &Trend, now: f64) -> bool {
        if self.after_fill || now >= self.growth_start + 3.0 * self.epoch - 1.5 * shape.spacing - 0.02 * self.epoch {
            return true;
        }
        let first_pass = rate_between(shape, self.growth_start, self.window_start);
        first_pass.is_some_and(|first| trend.slope >= 0.75 * first.value)
    }

    /// The share of its rate that the slowest law of healthy growth, the square root, keeps over the window.
    fn slowest_law(&self, now: f64) -> f64 {
        ((self.window_start - self.origin) / (now - self.origin).max(1e-9)).sqrt().clamp(0.3, 0.8)
    }
}

/// Walks back from segment `last` over growing segments; plateaus and falls of some length end the walk.
fn first_growing(shape: &Shape, from: usize, last: usize) -> usize {
    let total = (shape.end_level(&shape.segments[last]) - shape.start_level(&shape.segments[from])).abs();
    let mut first = last;
    for k in (from..last).rev() {
        let segment = &shape.segments[k];
        let next = &shape.segments[k + 1];
        let rise = shape.start_level(next).max(shape.end_level(segment)) - shape.start_level(segment);
        let length = shape.floor[next.start].x - shape.floor[segment.start].x;
        let slope = rise / length.max(1e-9);
        let average = total / shape.length().max(1e-9);
        // A segment belongs to the growth if it rises at a tenth of the average pace or more.
        if slope < 0.1 * average && length >= 0.05 * shape.length() {
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
    let covers = late || from <= 0.35 * epoch;
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
fn refine_knee(shape: &Shape, first: usize, knee: usize) -> (f64, f64, f64) {
    let start = shape.floor[shape.segments[first].start].x;
    let border = shape.floor[shape.segments[knee].start].x;
    let end = shape.floor[shape.segments[knee].end - 1].x;
    let coarse = (border, shape.floor[shape.segments[knee].start - 1].x, border);
    if matches!(shape.waves, Waves::Teeth(_)) || shape.staircase.is_some() {
        return coarse;
    }
    // Only the growth next to the knee matters, and as much after it.
    let reach = (border - start).max(border - shape.floor[shape.segments[knee - 1].start].x);
    let around = shape.points_between(border - reach, end.min(border + reach));
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

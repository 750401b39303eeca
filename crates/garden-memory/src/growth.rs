//! Stretches of growth on the floor: where one begins, how fast it is, where it breaks, and the knee on the samples.

use crate::shape::Shape;
use crate::stats::{Line, Point, Rate, autocorrelation, theil_sen};
use crate::waves::Waves;

/// A growth breaks where its rate falls to this share.
pub(crate) const BREAK: f64 = 1.0 / 3.0;
/// A rise of which this share happens between two neighbouring lows is a jump.
const JUMP: f64 = 0.7;
/// A slower stretch shorter than this share of the trace does not separate two growths.
const SHORT: f64 = 0.05;
/// Share of a growth in pieces that may come after its end.
const PIECES_LEFT: f64 = 1.0 / 3.0;
/// Growth after the knee may be at most this share of the growth before it.
pub(crate) const AFTER_KNEE: f64 = 0.15;

/// A growth of the floor, on the clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch {
    pub from: f64,
    pub to: f64,
    pub rise: f64,
    pub rate: Rate,
    /// Where the stretch begins that the rate is of: a growth that changed its pace goes on at the present one.
    pub paced_from: f64,
    /// Whether it is one jump between two plateaus rather than a climb.
    pub is_jump: bool,
}

/// A growth that ended, or gave way to a much slower one, at the start of a segment.
pub(crate) struct Break {
    /// The segment that begins there.
    pub segment: usize,
    /// The growth before it, from the foot of its climb on.
    pub growth: Stretch,
    /// Bytes added after it.
    pub after: f64,
}

impl Break {
    /// The most that may be added after the end: a share of the growth, or an immaterial amount.
    pub(crate) fn may_follow(&self, shape: &Shape) -> f64 {
        (AFTER_KNEE * self.growth.rise).max(2.0 * shape.material())
    }
}

/// The first break after which next to nothing was added; else the last one, where growth gave way to a slower one.
pub(crate) fn find_break(shape: &Shape) -> Option<Break> {
    let breaks: Vec<Break> = (1..shape.segments.len()).filter_map(|k| break_at(shape, k)).collect();
    let is_end = |b: &Break| b.after <= b.may_follow(shape);
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
    // The rate falls at once, and stays low for the rest of the trace.
    let falls = segment.line.slope <= BREAK * steep && (top - level) / left <= BREAK * steep;
    let is_break = rise >= shape.material() && left > 0.0 && falls;
    is_break.then(|| Break { segment: k, growth: climb(shape, first, k, rise), after: top - level })
}

/// Whether the growth at the end of the trace is material.
pub(crate) fn rises_now(shape: &Shape) -> bool {
    let last = shape.segments.len() - 1;
    let first = first_growing(shape, 0, last);
    shape.present_level() - shape.start_level(&shape.segments[first]) >= shape.material_throughout()
}

/// A growth that is over and came in several pieces, none of them material alone.
pub(crate) fn ended_in_pieces(shape: &Shape) -> Option<Break> {
    let level = |k: usize| shape.start_level(&shape.segments[k]);
    let foot = (0..shape.segments.len()).min_by(|&a, &b| level(a).total_cmp(&level(b)))?;
    let top = shape.segments.iter().map(|s| shape.end_level(s)).fold(shape.present_level(), f64::max);
    let rise = top - level(foot);
    let segment = (foot + 1..shape.segments.len()).find(|&k| top - level(k) <= PIECES_LEFT * rise)?;
    let (from, to) = (shape.floor[shape.segments[foot].start].x, shape.floor[shape.segments[segment].start].x);
    let value = rise / (to - from).max(shape.spacing);
    let growth =
        Stretch { from, to, rise, rate: Rate { value, low: value, high: value }, paced_from: from, is_jump: false };
    Some(Break { segment, growth, after: top - level(segment) })
}

/// The growth from segment `first` to the start of segment `next`: a climb, or a jump between two plateaus.
fn climb(shape: &Shape, first: usize, next: usize, rise: f64) -> Stretch {
    let before = &shape.segments[next - 1];
    let jump = shape.start_level(&shape.segments[next]) - shape.end_level(before);
    if jump > JUMP * rise {
        let (from, to) = (shape.floor[before.end - 1].x, shape.floor[shape.segments[next].start].x);
        let rise = jump;
        let value = jump / (to - from).max(shape.spacing);
        return Stretch {
            from,
            to,
            rise,
            rate: Rate { value, low: value, high: value },
            paced_from: from,
            is_jump: true,
        };
    }
    let from = shape.floor[shape.segments[first].start].x;
    let to = refine_knee(shape, next).0;
    // For stretches too short for a robust fit: rise over length.
    let plain = rise / (to - from).max(shape.spacing);
    let enough = shape.points_between(from, to).len() >= 5;
    // A fit whose very sign is uncertain says nothing: the growth came in jumps.
    let fitted = rate_between(shape, from, to).filter(|rate| enough && rate.low > 0.0);
    let rate = fitted.unwrap_or(Rate { value: plain, low: plain, high: plain });
    Stretch { from, to, rise, rate, paced_from: from, is_jump: false }
}

/// Walks back from segment `last` over growing segments; a long enough stretch below a third of the later pace ends the walk.
pub(crate) fn first_growing(shape: &Shape, from: usize, last: usize) -> usize {
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
        let given_back = shape.end_level(segment) - shape.start_level(next);
        // Memory given back in one piece does not count towards the growth after it.
        let since = shape.end_level(&shape.segments[last]) - shape.start_level(next);
        let begins_anew = given_back >= (2.0 * shape.material()).max(0.5 * since);
        if begins_anew || (is_slower && border - start >= SHORT * shape.length()) {
            break;
        }
        first = k;
    }
    first
}

pub(crate) fn stretch(shape: &Shape, from: f64, to: f64) -> Stretch {
    let rate = rate_between(shape, from, to).unwrap_or_default();
    Stretch { from, to, rise: rate.value * (to - from), rate, paced_from: from, is_jump: false }
}

/// The robust rate over a stretch: of the floor, or of all samples where the floor has too few points.
pub(crate) fn rate_between(shape: &Shape, from: f64, to: f64) -> Option<Rate> {
    let floor = shape.floor_between(from, to);
    let few = floor.len() < 8 && !matches!(shape.waves, Waves::Teeth(_)) && shape.staircase.is_none();
    theil_sen(if few { shape.points_between(from, to) } else { floor })
}

/// Finds the knee on the samples themselves: the best split into two lines around the floor's, and where these meet.
pub(crate) fn refine_knee(shape: &Shape, knee: usize) -> (f64, f64, f64) {
    let start = shape.floor[shape.segments[knee - 1].start].x;
    let border = shape.floor[shape.segments[knee].start].x;
    let end = shape.floor[shape.segments[knee].end - 1].x;
    let coarse = (border, shape.floor[shape.segments[knee].start - 1].x, border);
    if matches!(shape.waves, Waves::Teeth(_)) || shape.staircase.is_some() {
        return coarse;
    }
    // Only the stretch before the knee matters, and one as long after it.
    let reach = border - start;
    let around = shape.points_between(start, end.min(border + reach));
    let Some((split, earliest, latest)) = best_split(around) else { return coarse };
    let (growing, flat) = (Line::fit(&around[..split]), Line::fit(&around[split..]));
    let (left, right) = (around[split - 1].x, around[split].x);
    let meeting = growing.mean_x
        + (flat.at(growing.mean_x) - growing.mean_y) / (growing.slope - flat.slope).max(f64::MIN_POSITIVE);
    let width = right - left;
    let at = if meeting > left - width && meeting < right + width { meeting } else { 0.5 * (left + right) };
    // Noise shifts the crossing by about its size over the slope.
    let blur = 2.0 * shape.noise.sigma / (growing.slope - flat.slope).abs().max(f64::MIN_POSITIVE);
    let blur = blur.min(reach / 2.0);
    (at, left.min(at - blur).min(around[earliest - 1].x), right.max(at + blur).max(around[latest].x))
}

/// Log-likelihood ratio within which 95 % of true splits lie: half of the quantile of chi squared.
const WITHIN: f64 = 1.92;

/// The split of points into two lines with the least squared error, and the first and last split that the points do not contradict.
fn best_split(points: &[Point]) -> Option<(usize, usize, usize)> {
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
    let error = |split: usize| left[split] + right[n - split];
    let best = (MARGIN..=n - MARGIN).min_by(|&a, &b| error(a).total_cmp(&error(b)))?;
    let (before, after) = points.split_at(best);
    let mut residuals = Line::fit(before).residuals(before);
    residuals.extend(Line::fit(after).residuals(after));
    // Correlated points count as fewer.
    let phi = autocorrelation(&residuals);
    let effective = (n as f64 * (1.0 - phi) / (1.0 + phi)).max(1.0);
    let most = error(best) * (2.0 * WITHIN / effective).exp();
    let mut may_be = (MARGIN..=n - MARGIN).filter(|&split| error(split) <= most);
    let earliest = may_be.next().unwrap_or(best);
    Some((best, earliest, may_be.next_back().unwrap_or(earliest).max(best)))
}

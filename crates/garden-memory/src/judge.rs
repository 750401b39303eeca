//! From a shape and the length of an epoch to a verdict.
//!
//! The order of questions: did the floor grow at all; did the growth end (`growth.rs`); if not, has it outlived every bounded
//! explanation (`leak.rs`)?

use crate::diagnosis::{Mechanism, Verdict};
use crate::drift::{agreeing, change, drift, most_since};
use crate::growth::{
    AFTER_KNEE, BREAK, Break, Stretch, ended_in_pieces, find_break, first_growing, rate_between, refine_knee,
    rises_now, stretch,
};
use crate::jumps::Jumps;
use crate::leak::{LeakTest, ROOT_IS_SURE, UNDIMINISHED};
use crate::passes::{Lacks, Passes};
use crate::record_highs::thins_out;
use crate::segments::Segment;
use crate::shape::Shape;
use crate::silence::stopped_at;
use crate::stats::{Point, Rate, median, theil_sen};
use crate::sublinear::{law_explains, power_of_time};
use crate::trend::{Bend, Trend, line_over_power};
use crate::waves::Waves;

/// Fewest samples for a verdict.
pub(crate) const FEWEST_SAMPLES: usize = 5;
/// One-sided normal quantile for "it rises": 1 in 740.
const SURE: f64 = 3.0;
/// A plateau must last this share of the growth before it.
pub(crate) const PLATEAU_LENGTH: f64 = 0.2;
/// And have this many samples.
pub(crate) const PLATEAU_SAMPLES: usize = 4;
/// The rate after the knee must be below this share of the rate before it.
const PLATEAU_RATE: f64 = 0.15;
/// How far a knee may lie from the epoch's end, as a share of the epoch.
const ALIGNED: f64 = 0.1;
/// A fill keeps its pace: each half grows at no less than this share of the other half's rate.
const STEADY: f64 = 0.6;
/// A growth counts as a pass over the data if it covers this share of the epoch.
const COVERS: f64 = 0.65;
/// A knee less certain than this share of an epoch proves nothing by containing the epoch's end.
const VAGUE: f64 = 0.25;
/// A plateau ends a growth that paused before if it lasts this many times the longest pause.
const OUTLASTS: f64 = 1.5;
/// A growth ended in a jump if that is this share of it, after a climb of this share.
const LAST_JUMP: f64 = 0.15;
const CLIMBED: f64 = 0.3;
/// So many lows in rising order are no chance: 1 in 40,320.
const MONOTONE: usize = 8;
/// A last stretch of this share of the growth, at this share of the pace before it, has not slowed down.
const LAST_PACE: (f64, f64) = (0.3, 0.9);
/// A leak goes on if it keeps this share of its pace.
const AS_FAST: f64 = 0.75;
/// A rise of this many times the deepest fall on the way is no chance.
const ONLY_CLIMBS: f64 = 4.0;
/// A plateau before a growth makes it late if it lasts this share of the trace.
const LATE: f64 = 0.15;
/// A growth that is over within this share of the trace, and adds at most this share of the level, is start-up.
const START_UP: f64 = 0.2;
/// A dip is over within this share of the trace: a longer one may hide a growth.
const DIP: f64 = 0.15;
/// The typical level rises by at least this share of a floor's growth: by half where the tops stay, as below a collector's limit.
const LIFTED: f64 = 0.2;
/// A knee within this share of the trace is start-up rather than a cache.
const EARLY: f64 = 0.12;

/// The judge's finding on one series.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    pub verdict: Verdict,
    pub mechanism: Mechanism,
    /// The growth that decides the verdict.
    pub growth: Option<Stretch>,
    /// A small growth at the very beginning, which does not count.
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
    /// The place on the clock at which a leak can be told from bounded growth, if the growth goes on.
    pub leak_known_at: Option<f64>,
    /// Whether it is a leak by the rule for data without passes.
    pub endless: bool,
    /// What it lacks to be one by that rule.
    pub lacks: Option<Lacks>,
    /// The power of the time that growth which slows down follows.
    pub power: Option<f64>,
    /// Whether growth that slowed down may have kept its pace lately, as far as its last straight stretch shows.
    pub levelled: bool,
    /// The jumps of a growth that pauses between them.
    pub jumps: Option<JumpCount>,
}

/// Jumps of a growth, counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JumpCount {
    pub count: usize,
    /// The last one's place on the clock.
    pub last: f64,
    /// Whether they get larger and rarer in proportion to the time.
    pub doubles: bool,
}

/// Judges a shape.
pub(crate) fn judge(shape: &Shape, passes: Passes) -> Finding {
    let mut finding = find(shape, passes);
    if matches!(finding.verdict, Verdict::Flat | Verdict::Sawtooth) {
        finding = still_a_leak(shape, passes).unwrap_or(finding);
    }
    Finding { growth: finding.growth.map(|growth| agreeing(shape, growth)), ..finding }
}

fn find(shape: &Shape, passes: Passes) -> Finding {
    if only_swings(shape) {
        return quiet(shape);
    }
    let levels = shape.segments.iter().flat_map(|s| [shape.start_level(s), shape.end_level(s)]);
    let lowest = levels.fold(f64::INFINITY, f64::min);
    let retained = shape.present_level() - lowest;
    let is_real = has_trend(shape) || only_climbs(&shape.floor) || ends_far_above(&shape.floor);
    if retained < shape.material_throughout().max(deepest_fall(shape)) || !is_real || is_dip(shape) {
        return quiet(shape);
    }
    let broken = find_break(shape).or_else(|| if rises_now(shape) { None } else { ended_in_pieces(shape) });
    match broken {
        Some(broken) => after_break(shape, &broken, passes),
        None => {
            let finding = still_growing(shape, 0, None, passes);
            // A floor that has come out of a dip is higher than in it, and may not rise at all.
            let rises = finding.growth.is_some_and(|growth| growth.rate.value > 0.0);
            let lifts = finding.growth.is_some_and(|growth| lifts_the_level(shape, &growth));
            if (rises || shape.staircase.is_some()) && lifts { finding } else { quiet(shape) }
        }
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
            endless: false,
            lacks: None,
            power: None,
            levelled: false,
            jumps: None,
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

/// Means of whole swings within this share of their height are one level: the length of a swing is known no better.
const SAME_MEAN: f64 = 0.05;

/// Whether memory only comes and goes with its load: each whole swing has the mean of the others.
fn only_swings(shape: &Shape) -> bool {
    let means = shape.means_of_swings();
    let (low, high) =
        means.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), &m| (low.min(m), high.max(m)));
    let height = shape.swing.map_or(0.0, |swing| swing.height);
    means.len() > 1 && high - low < shape.material_without_noise().max(SAME_MEAN * height)
}

/// Whether the lowest place is only a dip: the floor left its usual level for a short while, came back, and stands there still.
fn is_dip(shape: &Shape) -> bool {
    let lowest = |&a: &usize, &b: &usize| shape.floor[a].y.total_cmp(&shape.floor[b].y);
    let Some(foot) = (0..shape.floor.len()).min_by(lowest).filter(|&foot| foot >= PLATEAU_SAMPLES) else {
        return false;
    };
    let (before, after) = shape.floor.split_at(foot);
    let usual = median(&before.iter().map(|point| point.y).collect::<Vec<f64>>());
    // Half of what counts as growth: what is left of a dip on both sides must not come to one.
    let slack = 0.5 * shape.material_throughout();
    let is_usual = |point: &Point| point.y >= usual - slack;
    let (Some(left), Some(back)) = (before.iter().rposition(is_usual), after.iter().position(is_usual)) else {
        return false;
    };
    // Between lows the floor is not known.
    let unseen = shape.length() / shape.floor.len() as f64;
    let is_short = after[back].x - before[left].x <= DIP * shape.length() + 2.0 * unseen;
    is_short && after.len() - back >= PLATEAU_SAMPLES && (shape.present_level() - usual).abs() < slack
}

/// Whether the typical level rises with the floor: dips that only get shallower lift the lows, but not the level.
fn lifts_the_level(shape: &Shape, growth: &Stretch) -> bool {
    let points = shape.points_between(growth.from, growth.to);
    let edge = points.len() / 5;
    if edge < PLATEAU_SAMPLES {
        return true;
    }
    let typical = |points: &[Point]| median(&points.iter().map(|point| point.y).collect::<Vec<f64>>());
    typical(&points[points.len() - edge..]) - typical(&points[..edge]) >= LIFTED * growth.rise
}

/// The deepest fall of the fitted floor after its lowest place: a floor that falls as far as it rises merely wanders.
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

/// Growth broke: decide whether it ended for good, and whether something else goes on underneath.
fn after_break(shape: &Shape, broken: &Break, passes: Passes) -> Finding {
    let fill = broken.growth;
    let place = if fill.is_jump { (fill.to, fill.from, fill.to) } else { refine_knee(shape, broken.segment) };
    let tail = &shape.floor[shape.segments[broken.segment].start..];
    let goes_on = broken.after > broken.may_follow(shape) || rises_underneath(shape, tail);
    if goes_on || has_surely_risen(shape, tail[0].x, &fill) {
        let mut finding = still_growing(shape, broken.segment, Some(fill), passes);
        let whole = (!goes_on).then(|| still_growing(shape, 0, None, passes));
        if let Some(leak) = whole.filter(|whole| whole.verdict == Verdict::Leak) {
            return leak;
        }
        finding.knee = finding.knee.or(Some(place));
        // One curve that slows down is not two growths.
        return if finding.slowing { still_growing(shape, 0, None, passes) } else { finding };
    }
    if theil_sen(tail).is_none_or(|rate| rate.value > PLATEAU_RATE * pace_of(shape, &fill)) {
        return still_growing(shape, 0, None, passes);
    }
    let border = shape.floor[shape.segments[broken.segment].start].x;
    let is_long = shape.points_between(border, shape.last()).len() >= PLATEAU_SAMPLES
        && shape.last() - place.0 >= PLATEAU_LENGTH * (fill.to - fill.from);
    if is_long
        && !has_gained(shape, place.2)
        && place.0 - shape.first() <= START_UP * shape.length()
        && fill.rise <= START_UP * shape.present_level()
    {
        return Finding { start_up: Some(fill), ..quiet(shape) };
    }
    let ended = is_long && is_surely_over(shape, border, &fill);
    // A leak in lumps pauses after each lump: growth that has outlived every bounded explanation does not end so soon.
    if !ended {
        let going_on = still_growing(shape, 0, None, passes);
        if going_on.verdict == Verdict::Leak {
            return going_on;
        }
    }
    // A plateau that memory has just left upwards is over.
    if ended && leaves_upwards(shape, place.0) {
        return still_growing(shape, 0, None, passes);
    }
    // Nor has growth ended that paused and went on before, until its pause is the longest by far.
    if ended && !outlasts_earlier_pauses(shape, broken, place.0) {
        let going_on = still_growing(shape, 0, None, passes);
        let pausing = going_on.verdict != Verdict::Leak;
        return Finding { pausing, knee: pausing.then_some(place), ..going_on };
    }
    // Nor does growth in jumps end before a pause that its rhythm makes unlikely.
    let jumps = Jumps::of(shape);
    let is_capacity = jumps.growth_factor(shape.origin()).is_some();
    let pauses = jumps.may_go_on() || ended_in_a_jump(shape, broken);
    if ended && (is_capacity || pauses && !thins_out(shape, shape.first())) {
        let going_on = still_growing(shape, 0, None, passes);
        let (count, is_leak) = (jumps.list.len(), going_on.verdict == Verdict::Leak);
        let last = jumps.list.last().map_or(place.0, |jump| jump.0);
        let jumps = (count > 1).then_some(JumpCount { count, last, doubles: is_capacity });
        let pausing = !is_leak && !is_capacity;
        return Finding { pausing, jumps, knee: pausing.then_some(place), ..going_on };
    }
    let late = is_late(shape, fill.from);
    let aligned = is_aligned(shape, place, fill.from, late, passes.length());
    let pace = later_pace(shape, fill.from, place.0).filter(|_| !fill.is_jump);
    let slowing = pace.is_some_and(|pace| pace < STEADY);
    let is_steady = pace.is_none_or(|pace| (STEADY..=1.0 / STEADY).contains(&pace)) && !fill.is_jump;
    let mechanism = match () {
        () if thins_out(shape, shape.first()) => Mechanism::RecordHigh,
        () if aligned && is_steady => Mechanism::EpochFill,
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
        aligned: aligned && mechanism == Mechanism::EpochFill,
        late,
        slowing,
        pausing: !ended,
        ..Finding::nothing()
    }
}

/// Whether the floor has surely gained a material amount since a place, noise aside.
fn has_gained(shape: &Shape, since: f64) -> bool {
    let gained = change(shape, since, shape.last());
    gained.is_some_and(|gained| gained.low > 0.0 && gained.value >= shape.material_without_noise())
}

/// Whether the floor has surely gained more since a growth broke than may follow its end, noise aside, and still does.
fn has_surely_risen(shape: &Shape, since: f64, fill: &Stretch) -> bool {
    let least = (AFTER_KNEE * fill.rise).max(shape.material_without_noise());
    let now = shape.last();
    let still_rises = || drift(shape, 0.5 * (since + now), now).is_some_and(|rate| rate.low > 0.0);
    change(shape, since, now).is_some_and(|gained| gained.low > 0.0 && gained.value > least) && still_rises()
}

/// Whether the samples of a plateau exclude that the growth before it goes on, be it at a third of its pace: what is slower is no part of
/// it, and is reported as still possible.
fn is_surely_over(shape: &Shape, plateau: f64, fill: &Stretch) -> bool {
    most_since(shape, plateau).is_some_and(|most| most < BREAK * pace_of(shape, fill))
}

/// The mean pace of a growth: one in jumps has no other. A short fast stretch at the end of a long growth is not its pace.
fn pace_of(shape: &Shape, fill: &Stretch) -> f64 {
    let own = fill.rise / (fill.to - fill.from).max(shape.spacing);
    let before = shape.floor_between(shape.first(), fill.from);
    let Some(foot) = before.iter().min_by(|a, b| a.y.total_cmp(&b.y)) else { return own };
    let risen = before[before.len() - 1].y - foot.y;
    match risen >= fill.rise && risen >= shape.material() {
        true => own.min((risen + fill.rise) / (fill.to - foot.x).max(shape.spacing)),
        false => own,
    }
}

/// Where a plateau will be sure enough, if it stays as it is: the error of its slope falls with the power 3/2 of its length.
pub(crate) fn sure_from(shape: &Shape, plateau: f64, fill: &Stretch) -> Option<f64> {
    let share = most_since(shape, plateau)? / (BREAK * pace_of(shape, fill));
    let length = shape.last() - plateau;
    Some(plateau + length * share.max(1.0).powf(2.0 / 3.0)).filter(|place| place.is_finite())
}

/// Whether the last samples stand above a plateau by a material amount, as none on it does: no spike, but a new growth.
fn leaves_upwards(shape: &Shape, plateau: f64) -> bool {
    let points = shape.points_between(plateau, shape.last());
    let (Some(last), false) = (points.last(), matches!(shape.waves, Waves::Spikes { .. })) else { return false };
    let before = &points[..points.len() - (points.len() / 20).clamp(1, 3)];
    let top = before.iter().map(|point| point.y).fold(f64::NEG_INFINITY, f64::max);
    before.len() >= PLATEAU_SAMPLES && last.y - top >= shape.material()
}

/// Whether a plateau is longer than every earlier one after which memory grew again.
fn outlasts_earlier_pauses(shape: &Shape, broken: &Break, plateau: f64) -> bool {
    let start = |k: usize| shape.floor[shape.segments[k].start].x;
    let level = |k: usize| shape.start_level(&shape.segments[k]);
    let lowest = |k: usize| (0..=k).map(level).fold(f64::INFINITY, f64::min);
    let top = level(broken.segment);
    let pace = broken.growth.rise / (broken.growth.to - broken.growth.from).max(shape.spacing);
    let is_pause = |&k: &usize| {
        let grew_before = level(k) - lowest(k) >= shape.material();
        let grew_again = top - level(k + 1) >= shape.material();
        grew_before && grew_again && (level(k + 1) - level(k)) / (start(k + 1) - start(k)) <= PLATEAU_RATE * pace
    };
    let longest = (1..broken.segment).filter(is_pause).map(|k| start(k + 1) - start(k)).fold(0.0, f64::max);
    shape.last() - plateau >= OUTLASTS * longest
}

/// Whether a growth ended in a jump, so that the next jump may still come: a buffer that doubles rests for as long as it has grown.
fn ended_in_a_jump(shape: &Shape, broken: &Break) -> bool {
    let (before, after) = (&shape.segments[broken.segment - 1], &shape.segments[broken.segment]);
    let jump = shape.start_level(after) - shape.end_level(before);
    let fill = &broken.growth;
    let rests = shape.last() - fill.to;
    let climbed = shape.end_level(before) - shape.floor[0].y;
    !fill.is_jump && jump >= LAST_JUMP * fill.rise && climbed >= CLIMBED * fill.rise && rests < fill.to - shape.first()
}

/// The rate of the later half of a growth as a share of the earlier half's; `None` if there are too few samples to say.
fn later_pace(shape: &Shape, from: f64, to: f64) -> Option<f64> {
    let middle = 0.5 * (from + to);
    let half = |from, to| {
        let points = shape.points_between(from, to);
        theil_sen(points).filter(|_| points.len() >= 3).map(|rate| rate.value)
    };
    let (earlier, later) = (half(from, middle)?, half(middle, to)?);
    (earlier > 0.0).then(|| later / earlier)
}

/// Whether the floor after a knee still rises in its later half by a material amount.
fn rises_underneath(shape: &Shape, tail: &[Point]) -> bool {
    let recent = if tail.len() >= 10 { &tail[tail.len() / 2..] } else { tail };
    let (Some(whole), Some(later)) = (Trend::of(tail), Trend::of(recent)) else { return false };
    let rise = (later.slope * whole.length).min(whole.rise());
    let by_trend = whole.rises(SURE) && later.rises(SURE) && rise >= shape.material();
    // A curve that slows down has no trend to speak of, but each low stands above the one before; the noise of the fill does not
    // matter then.
    let without_exception = recent.len() >= MONOTONE && recent.windows(2).all(|pair| pair[1].y > pair[0].y);
    by_trend || (without_exception && rise >= shape.material_among(tail))
}

/// Whether the floor's movements are more than noise: several stretches explain it better than one, or one that surely rises.
fn has_trend(shape: &Shape) -> bool {
    let rises = |points: &[Point]| Trend::of(points).is_some_and(|trend| trend.rises(SURE));
    shape.segments.len() > 1 || shape.staircase.is_some() || rises(&shape.floor)
}

/// Whether the last quarter of points lies above the first by more than the first one's own range.
fn ends_far_above(points: &[Point]) -> bool {
    let quarter = points.len() / 4;
    let range = |points: &[Point]| {
        points.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), p| (low.min(p.y), high.max(p.y)))
    };
    let ((low, high), (lowest, _)) = (range(&points[..quarter]), range(&points[points.len() - quarter..]));
    quarter >= PLATEAU_SAMPLES && lowest - high > high - low
}

/// Whether points rise by a multiple of their deepest fall. A trend in jumps has residuals as correlated as a random walk's, and
/// a test for a line cannot tell the two apart; but a random walk falls about as far as it rises.
fn only_climbs(points: &[Point]) -> bool {
    let (mut top, mut fall) = (f64::NEG_INFINITY, 0.0_f64);
    for point in points {
        top = top.max(point.y);
        fall = fall.max(top - point.y);
    }
    let rise = points.last().zip(points.first()).map_or(0.0, |(last, first)| last.y - first.y);
    let enough = if points.len() >= 8 { ONLY_CLIMBS * fall } else { f64::INFINITY };
    points.len() >= FEWEST_SAMPLES && rise > 0.0 && (fall <= 0.0 || rise >= enough)
}

/// Growth goes on at the end of the trace, from segment `from` on at the earliest.
fn still_growing(shape: &Shape, from: usize, earlier: Option<Stretch>, passes: Passes) -> Finding {
    let last = shape.segments.len() - 1;
    let first = first_growing(shape, from, last);
    let start = shape.floor[shape.segments[first].start].x;
    let late = earlier.is_none() && is_late(shape, start);
    let now = shape.last();
    let whole = shape.floor_between(start, now);
    let leak = passes.length().map(|epoch| LeakTest::of(shape, start, late, earlier.is_some(), epoch));
    let holds = has_trend(shape) && leak.as_ref().is_some_and(|test| test.holds(shape));
    let is_endless =
        matches!(passes, Passes::None(rule) if rule.holds(shape, start) || rule.holds_faster(shape, start));
    let is_unbounded = holds
        || is_endless
        || was_a_leak(shape, start, passes)
        || has_trend(shape) && was_unbounded(shape, earlier.is_some(), passes);
    // The capacity of a list rests the longer the larger it is.
    let doubles = || leak.as_ref().is_some_and(|test| test.outgrows_its_capacity(shape));
    let stopped = stopped_at(shape, start, passes).filter(|_| is_unbounded && !doubles());
    let is_leak = is_unbounded && stopped.is_none();
    let bend = Bend::of(whole);
    let bends = bend.is_some_and(|bend| !bend.may_keep(UNDIMINISHED, SURE));
    let origin = if late { start } else { shape.origin() };
    let law = || law_explains(shape.floor_between(origin, now), origin);
    let slowing = !is_leak && !keeps_its_last_pace(shape, start) && (bends || law());
    let is_faster = bend.is_some_and(|bend| bend.surely_keeps(1.5, SURE));
    let present = match &leak {
        // Growth that surely changed its pace goes on at the present one.
        _ if (slowing || is_faster) && has_changed_its_pace(shape, start) => shape.floor[shape.segments[last].start].x,
        Some(test) if holds => test.window_start,
        _ => start,
    };
    let mut growth = stretch(shape, start, now);
    // Up to now, as the rate is: the last low may lie a little before.
    growth.rise = shape.segments[last].line.at(now) - shape.start_level(&shape.segments[first]);
    growth.rate = rate_between(shape, present, now).unwrap_or(growth.rate);
    growth.paced_from = present;
    if growth.rate.low <= 0.0 {
        // The median slope of a growth in a few jumps is that of the plateaus between them; its line has a slope of its own.
        let mean = growth.rise / (now - start).max(shape.spacing);
        growth.rate =
            fitted_rate(shape.floor_between(present, now)).unwrap_or(Rate { value: mean, low: 0.0, high: 2.0 * mean });
    }
    // After a warm-up a line may follow: the last stretch says whether a law that slows down still holds.
    let lately = shape.segments.get(last).map_or(now, |segment| shape.floor[segment.start].x);
    let contradicts = |power: f64| {
        lately > start && line_over_power(shape.points_between(lately, now), origin, power) >= ROOT_IS_SURE
    };
    let mechanism = match () {
        () if shape.staircase.is_some() => Mechanism::Staircase,
        () if late && !grew_before(shape, first) => Mechanism::LateOnset,
        () if is_leak || !slowing => Mechanism::Linear,
        () if thins_out(shape, shape.first()) => Mechanism::RecordHigh,
        () => Mechanism::WarmUp,
    };
    Finding {
        verdict: if is_leak { Verdict::Leak } else { Verdict::Growing },
        mechanism,
        growth: Some(growth),
        knee: stopped.map(|(last, before)| (last, before, last)),
        pausing: stopped.is_some(),
        earlier,
        late,
        slowing,
        leak_known_at: leak.map(|test| test.known_at),
        endless: is_leak && matches!(passes, Passes::None(_)),
        lacks: match passes {
            Passes::None(rule) if !is_leak => Some(rule.lacks(shape, start)),
            _ => None,
        },
        power: power_of_time(shape.floor_between(origin, now), origin).filter(|&power| slowing && !contradicts(power)),
        levelled: slowing && contradicts(0.5),
        ..Finding::nothing()
    }
}

/// Whether the last straight stretch of a growth is surely of another pace than the whole: a short one shows little of its own.
fn has_changed_its_pace(shape: &Shape, start: f64) -> bool {
    let latest = shape.segments.last().map_or(start, |segment| shape.floor[segment.start].x);
    let (Some(whole), Some(last)) = (drift(shape, start, shape.last()), drift(shape, latest, shape.last())) else {
        return false;
    };
    latest > start && !(last.low..=last.high).contains(&whole.value)
}

/// Whether the last long stretch of a growth is about as fast as the one before it: a fast beginning alone is no slowing.
fn keeps_its_last_pace(shape: &Shape, start: f64) -> bool {
    let [.., before, last] = shape.segments.as_slice() else { return false };
    let length = |segment: &Segment| shape.floor[segment.end - 1].x - shape.floor[segment.start].x;
    let is_long = length(last) >= LAST_PACE.0 * (shape.last() - start) && length(last) >= length(before);
    let (earlier, later) = (before.line.slope, last.line.slope);
    is_long && shape.floor[before.start].x >= start && earlier > 0.0 && later >= LAST_PACE.1 * earlier
}

/// The rate of a line, if it surely rises.
fn fitted_rate(points: &[Point]) -> Option<Rate> {
    let trend = Trend::of(points)?;
    let high = trend.at_most(1.96);
    let low = 2.0 * trend.slope - high;
    (low > 0.0).then_some(Rate { value: trend.slope, low, high })
}

/// Looks back by these shares of the trace: what was a leak then is one still, unless memory has given a reason to think otherwise.
const LOOKS_BACK: [f64; 2] = [0.1, 0.2];

/// Whether growth was a leak a little earlier and has gone on as fast since: a verdict is not taken back for a wobble.
fn was_unbounded(shape: &Shape, after_fill: bool, passes: Passes) -> bool {
    LOOKS_BACK.iter().any(|share| {
        let place = shape.last() - share * shape.length();
        let Some(before) = shape.up_to(place).filter(|before| before.points.len() >= FEWEST_SAMPLES) else {
            return false;
        };
        let first = first_growing(&before, 0, before.segments.len() - 1);
        let start = before.floor[before.segments[first].start].x;
        let was_a_leak = match passes {
            Passes::Every(epoch) => {
                has_trend(&before)
                    && LeakTest::of(&before, start, is_late(&before, start), after_fill, epoch).holds(&before)
            }
            Passes::None(rule) => rule.holds(&before, start),
            Passes::Unknown => false,
        };
        let goes_on = || {
            let pace = rate_between(&before, start, place).map_or(f64::INFINITY, |rate| rate.value);
            drift(shape, place, shape.last()).is_some_and(|rate| rate.value >= AS_FAST * pace)
        };
        was_a_leak && stopped_at(&before, start, passes).is_none() && goes_on()
    })
}

/// A leak of a little earlier that only seems to be gone, as where a trace ends in a dip: memory has typically been higher since then, by what
/// the leak would have added.
fn still_a_leak(shape: &Shape, passes: Passes) -> Option<Finding> {
    if matches!(passes, Passes::Unknown) {
        return None;
    }
    let typical = |from: f64, to: f64| {
        let values: Vec<f64> = shape.points_between(from, to).iter().map(|point| point.y).collect();
        (!values.is_empty()).then(|| median(&values))
    };
    LOOKS_BACK.iter().find_map(|share| {
        let (now, length) = (shape.last(), share * shape.length());
        let before = shape.up_to(now - length).filter(|before| before.points.len() >= FEWEST_SAMPLES)?;
        let earlier = find(&before, passes);
        let growth = earlier.growth.filter(|_| earlier.verdict == Verdict::Leak)?;
        let added = typical(now - length, now)? - typical(now - 2.0 * length, now - length)?;
        // Memory below the foot of the growth has given all of it back.
        let is_held = shape.points.last()?.y > before.floor_between(growth.from, growth.to).first()?.y;
        let goes_on = is_held && growth.rate.value > 0.0 && added >= AS_FAST * growth.rate.value * length;
        let rise = growth.rise + growth.rate.value * (now - growth.to);
        goes_on.then_some(Finding { growth: Some(Stretch { to: now, rise, ..growth }), ..earlier })
    })
}

/// Whether growth was a leak already where it changed its pace for the last time: that it has become faster since, or in jumps, is
/// no reason to begin anew.
fn was_a_leak(shape: &Shape, changed: f64, passes: Passes) -> bool {
    if matches!(passes, Passes::Unknown) || changed - shape.first() < LATE * shape.length() {
        return false;
    }
    let Some(before) = shape.up_to(changed).filter(|before| before.points.len() >= FEWEST_SAMPLES) else {
        return false;
    };
    let earlier = judge(&before, passes);
    let Some(pace) = earlier.growth.map(|growth| growth.rate.value) else { return false };
    // A plateau after a fill that was taken for a leak is the end of it.
    let goes_on = rate_between(shape, changed, shape.last()).is_some_and(|rate| rate.value >= AS_FAST * pace);
    earlier.verdict == Verdict::Leak && goes_on && shape.present_level() >= before.present_level()
}

/// Whether the segment before this one grew as well, so that the growth after it is not late.
fn grew_before(shape: &Shape, first: usize) -> bool {
    let before = first.checked_sub(1).map(|k| &shape.segments[k]);
    before.is_some_and(|s| shape.end_level(s) - shape.start_level(s) >= shape.material())
}

fn is_late(shape: &Shape, start: f64) -> bool {
    start - shape.first() >= LATE * shape.length()
}

/// Whether the knee lies where a whole pass over the data ends.
fn is_aligned(shape: &Shape, knee: (f64, f64, f64), from: f64, late: bool, epoch: Option<f64>) -> bool {
    let Some(epoch) = epoch else { return false };
    let begin = if late { from } else { shape.origin() };
    let boundary = begin + epoch;
    let slack = (ALIGNED * epoch).max(shape.spacing);
    // A growth that covers only the end of the epoch is not a pass over it.
    let covers = knee.0 - from >= COVERS * epoch;
    let slack = (0.5 * (knee.2 - knee.1)).min(VAGUE * epoch).max(slack);
    covers && (knee.0 - boundary).abs() <= slack
}

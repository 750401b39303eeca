//! Whether one run, or kind of run, grows differently from another, and what its steps cost: the whole flow, top to bottom.
//!
//! All runs are compared over the same stretch of the clock: where the runs before the change grew, else where the runs
//! after it grew, else all that they share without the warm-up. A stretch does not reach across the beginning of a
//! plateau, since no line describes both sides of it: where one kind of run settles and the other grows on, they are
//! compared from there on. Each floor is reduced to the same blocks. The growth of a run is the slope of its floor, with
//! an error widened for autocorrelation as in the judge. With one run each, the difference is the slope of the blocks'
//! differences, so that a common shape cancels; with several, it is the difference of their means by Welch's t.

mod contrast;
mod floors;
mod pace;
mod phrasing;

use crate::bytes::MIB;
use crate::comparison::*;
use crate::diagnose::judge_part;
use crate::diagnosis::{Clock, Verdict};
use crate::judge::Finding;
use crate::number::counted;
use crate::passes::Passes;
use crate::series::{JudgedMemory, Series, Timeline, clock_of, condense, split_at_restarts};
use crate::shape::{MATERIAL_BYTES, Shape, between};
use crate::stats::{Point, median};
use crate::trace::{Quantity, RunFacts, Trace};
use crate::trend::Trend;

use contrast::Estimate;
use floors::Floors;
use pace::Pace;

/// A difference below this share of the growth is not an effect.
const MATTERS_SHARE: f64 = 0.1;
/// Nor is a difference that adds less than this over the compared stretch: Python's heap grows in arenas of this size.
const MATTERS_BYTES: f64 = MIB as f64;
/// A difference below this share of the step time is not an effect.
const MATTERS_TIME: f64 = 0.01;
/// A change of the highest level below this share (or below what a diagnosis calls material) is not reported.
const MATTERS_LEVEL: f64 = 0.05;
/// Share of the common stretch left out at the beginning, unless the question gives a start: start-up is not growth.
const WARM_UP: f64 = 0.1;
/// A growth shorter than this share of the common stretch is start-up, and growth is not compared over it.
const LEAST_GROWTH: f64 = 0.2;
/// Fewest blocks for a slope.
const FEWEST_BLOCKS: usize = 5;
/// Runs whose steps overlap by less than this share of the shortest run are aligned at their beginnings instead.
const OVERLAP: f64 = 0.5;

/// A run to compare.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its trace.
    pub trace: &'a Trace,
}

/// What to compare, and from where on.
#[derive(Clone, Debug, Default)]
pub struct CompareQuestion {
    /// Facts about all runs; the traces' headers fill the gaps.
    pub facts: RunFacts,
    /// Compare this quantity alone; otherwise unreclaimable memory, or all resident memory.
    pub only: Option<Quantity>,
    /// Leave out everything before this place on the clock, instead of the first tenth.
    pub from: Option<f64>,
}

/// Compares the runs before a change with those after it.
pub fn compare(before: &[Run], after: &[Run], question: &CompareQuestion) -> Comparison {
    let mut notes = Vec::new();
    let traces: Vec<&Trace> = before.iter().chain(after).map(|run| run.trace).collect();
    let clock = common_clock(&traces, &mut notes);
    let memory = common_memory(&traces, question.only, &mut notes);
    let read = |runs: &[Run], notes: &mut Vec<String>| -> Vec<Reading> {
        runs.iter().map(|run| Reading::of(run, clock, memory, question, notes)).collect()
    };
    let mut sides = [read(before, &mut notes), read(after, &mut notes)];
    align(&mut sides, clock, &mut notes);
    let shared = shared_stretch(&sides).and_then(|shared| stretch(&sides, shared, question.from, clock, &mut notes));
    contrast(&sides, clock, shared, notes)
}

/// One run, read and judged.
struct Reading {
    name: String,
    finding: Finding,
    shape: Option<Shape>,
    series: Series,
    pace: Pace,
    samples: usize,
}

impl Reading {
    fn of(
        run: &Run,
        clock: Clock,
        memory: JudgedMemory,
        question: &CompareQuestion,
        notes: &mut Vec<String>,
    ) -> Reading {
        let trace = run.trace;
        let facts = question.facts.clone().or(trace.facts.clone());
        let timeline = Timeline::on(trace, clock);
        let parts = split_at_restarts(trace, &timeline);
        if parts.len() > 1 {
            notes.push(format!("`{}` was restarted: its last process is compared", run.name));
        }
        let last = parts.last().cloned().unwrap_or(0..0);
        let epoch = facts.epoch_steps().filter(|_| clock == Clock::Step);
        let passes = epoch.map_or(Passes::Unknown, |steps| Passes::Every(steps as f64));
        let judged = judge_part(trace, last.clone(), &timeline, question.only, passes);
        let series = Series::of(trace, last.clone(), &timeline, memory);
        let pace = if clock == Clock::Step { Pace::of(trace, last, &timeline) } else { Pace::default() };
        let samples = series.points.len();
        Reading { name: run.name.to_string(), finding: judged.finding, shape: judged.shape, series, pace, samples }
    }

    fn ends(&self) -> Option<(f64, f64)> {
        self.series.ends()
    }

    /// Shifts the run along the clock.
    fn shift(&mut self, by: f64) {
        let Series { points, aside, events, .. } = &mut self.series;
        points.iter_mut().chain(aside).for_each(|point| point.x += by);
        events.iter_mut().for_each(|place| *place += by);
        self.pace.shift(by);
        for growth in self.finding.growth.iter_mut().chain(&mut self.finding.start_up) {
            growth.from += by;
            growth.to += by;
            growth.paced_from += by;
        }
        if let Some((place, earliest, latest)) = &mut self.finding.knee {
            [place, earliest, latest].into_iter().for_each(|place| *place += by);
        }
    }

    /// The samples within a stretch, evaluations included.
    fn held(&self, from: f64, to: f64) -> impl Iterator<Item = &Point> {
        self.series.points.iter().chain(&self.series.aside).filter(move |point| (from..=to).contains(&point.x))
    }

    /// The samples for a chart, evaluations included.
    fn curve(&self) -> Vec<(f64, f64)> {
        let mut points: Vec<Point> = self.series.points.iter().chain(&self.series.aside).copied().collect();
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        condense(&points).into_iter().map(|point| (point.x, point.y)).collect()
    }

    fn highest(&self, stretch: &Stretch) -> Option<f64> {
        self.held(stretch.shared.0, stretch.shared.1).map(|point| point.y).max_by(f64::total_cmp)
    }

    fn last(&self, stretch: &Stretch) -> Option<f64> {
        let held = self.held(stretch.shared.0, stretch.shared.1);
        held.max_by(|a, b| a.x.total_cmp(&b.x)).map(|point| point.y)
    }
}

/// The stretches of the clock that a comparison uses.
#[derive(Clone, Copy)]
struct Stretch {
    /// The stretch that all runs cover.
    shared: (f64, f64),
    /// `shared` without the warm-up: step times are compared here.
    warm: (f64, f64),
    /// Where growth is compared.
    growth: (f64, f64),
}

/// Steps if all have them, else times if all have them, else samples.
fn common_clock(traces: &[&Trace], notes: &mut Vec<String>) -> Clock {
    let clocks: Vec<Clock> = traces.iter().map(|trace| clock_of(trace)).collect();
    let first = clocks.first().copied().unwrap_or(Clock::Sample);
    if clocks.iter().all(|&clock| clock == first) {
        return first;
    }
    let has_times = |trace: &&Trace| {
        let known = (0..trace.len()).filter(|&index| trace.time_s(index).is_some()).count();
        2 * known >= trace.len() && known >= 2
    };
    let clock = if traces.iter().all(has_times) { Clock::Time } else { Clock::Sample };
    let along = if clock == Clock::Time { "time" } else { "sample number, which may mean different things" };
    notes.push(format!("not all traces have steps, so growth is compared by {along}"));
    clock
}

/// Unreclaimable memory if all traces have it, else all resident memory.
fn common_memory(traces: &[&Trace], only: Option<Quantity>, notes: &mut Vec<String>) -> JudgedMemory {
    if let Some(quantity) = only {
        return JudgedMemory::Only(quantity);
    }
    let with_kinds = traces.iter().filter(|trace| trace.has(Quantity::Anon)).count();
    if with_kinds == traces.len() {
        return JudgedMemory::Unreclaimable;
    }
    if with_kinds > 0 {
        notes
            .push("not all traces record anonymous memory, so resident memory is compared, file pages included".into());
    }
    JudgedMemory::Total
}

/// Aligns the runs: by their steps if these overlap, else at their beginnings.
fn align(sides: &mut [Vec<Reading>; 2], clock: Clock, notes: &mut Vec<String>) {
    let ends: Vec<(f64, f64)> = sides.iter().flatten().filter_map(Reading::ends).collect();
    let shortest = ends.iter().map(|(from, to)| to - from).fold(f64::INFINITY, f64::min);
    let overlap = overlap(&ends).map_or(0.0, |(from, to)| to - from);
    if clock == Clock::Step && overlap >= OVERLAP * shortest {
        return;
    }
    if clock == Clock::Step && !ends.is_empty() {
        notes.push("the runs cover different steps, so they are compared from the start of each trace".into());
    }
    for run in sides.iter_mut().flatten() {
        if let Some((from, _)) = run.ends() {
            run.shift(-from);
        }
    }
}

fn overlap(ends: &[(f64, f64)]) -> Option<(f64, f64)> {
    let from = ends.iter().map(|end| end.0).fold(f64::NEG_INFINITY, f64::max);
    let to = ends.iter().map(|end| end.1).fold(f64::INFINITY, f64::min);
    (from < to && to.is_finite()).then_some((from, to))
}

/// The stretch that all runs cover; `None` if a run has no samples or nothing is shared.
fn shared_stretch(sides: &[Vec<Reading>; 2]) -> Option<(f64, f64)> {
    let ends: Option<Vec<(f64, f64)>> = sides.iter().flatten().map(Reading::ends).collect();
    if sides.iter().any(Vec::is_empty) { None } else { overlap(&ends?) }
}

/// Decides over which stretches to compare.
fn stretch(
    sides: &[Vec<Reading>; 2],
    shared: (f64, f64),
    from: Option<f64>,
    clock: Clock,
    notes: &mut Vec<String>,
) -> Option<Stretch> {
    let start = from.map_or(shared.0 + WARM_UP * (shared.1 - shared.0), |from| from.max(shared.0));
    let warm = (start, shared.1);
    let earliest = if from.is_some() { start } else { shared.0 };
    let least = LEAST_GROWTH * (shared.1 - shared.0);
    let within =
        |(begin, end): (f64, f64)| Some((begin.max(earliest), end.min(shared.1))).filter(|(a, b)| b - a >= least);
    let plateau = plateau_beside_growth(sides, (earliest, shared.1));
    let plateau = plateau.map(|begin| (begin.max(earliest), shared.1));
    let plateau = plateau.filter(|(begin, end)| has_samples(sides, *begin, *end));
    if let Some((begin, _)) = plateau {
        let place = if clock == Clock::Time { format!("{begin:.0} s") } else { format!("{} {begin:.0}", clock.unit()) };
        notes.push(format!(
            "one grows until {place} and stops, the other keeps growing: growth is compared from there on"
        ));
    }
    let growth = plateau
        .or_else(|| fills_of_both(sides).and_then(within))
        .or_else(|| sides.iter().find_map(|side| growth_of(side).and_then(within)))
        .unwrap_or(warm);
    (warm.0 < warm.1).then_some(Stretch { shared, warm, growth })
}

/// Where one kind of run has surely stopped growing, if the other kind goes on and their difference bends there.
fn plateau_beside_growth(sides: &[Vec<Reading>; 2], within: (f64, f64)) -> Option<f64> {
    let goes_on = |side: &[Reading]| {
        let growing = side.iter().filter(|run| matches!(run.finding.verdict, Verdict::Growing | Verdict::Leak));
        2 * growing.count() > side.len()
    };
    let end = match (ended_at(&sides[0]), ended_at(&sides[1])) {
        (Some(end), None) if goes_on(&sides[1]) => end,
        (None, Some(end)) if goes_on(&sides[0]) => end,
        _ => return None,
    };
    // The judge may take a wave for a plateau, but a wave does not bend the difference.
    let floors = Floors::of(&sides.each_ref().map(|side| pieces(side)), within)?;
    floors.bends_at(end.0).then_some(end.1)
}

/// Where the growth of most runs of one kind ended according to the judge, and from where on that is sure for all of them.
fn ended_at(side: &[Reading]) -> Option<(f64, f64)> {
    let end = |run: &Reading| match run.finding.verdict {
        Verdict::Settled => run.finding.knee.map(|(place, _, latest)| (place, latest)),
        Verdict::Flat | Verdict::Sawtooth => run.finding.start_up.map(|start_up| (start_up.to, start_up.to)),
        _ => None,
    };
    let ends: Vec<(f64, f64)> = side.iter().filter_map(end).collect();
    let place = median(&ends.iter().map(|end| end.0).collect::<Vec<_>>());
    (2 * ends.len() > side.len()).then(|| (place, ends.iter().map(|end| end.1).fold(place, f64::max)))
}

/// Where both kinds of run grew before they settled.
fn fills_of_both(sides: &[Vec<Reading>; 2]) -> Option<(f64, f64)> {
    ended_at(&sides[0]).zip(ended_at(&sides[1]))?;
    overlap(&[growth_of(&sides[0])?, growth_of(&sides[1])?])
}

fn has_samples(sides: &[Vec<Reading>; 2], from: f64, to: f64) -> bool {
    sides.iter().flatten().all(|run| between(&run.series.points, from, to).len() >= FEWEST_BLOCKS)
}

/// Where most runs of one kind grew, according to the judge.
fn growth_of(side: &[Reading]) -> Option<(f64, f64)> {
    let grown: Vec<_> = side.iter().filter_map(|run| run.finding.growth).filter(|growth| !growth.is_jump).collect();
    let middle = |place: &dyn Fn(&crate::growth::Stretch) -> f64| median(&grown.iter().map(place).collect::<Vec<_>>());
    (2 * grown.len() > side.len()).then(|| (middle(&|growth| growth.from), middle(&|growth| growth.to)))
}

/// Puts the comparison together.
fn contrast(sides: &[Vec<Reading>; 2], clock: Clock, stretch: Option<Stretch>, notes: Vec<String>) -> Comparison {
    let is_repeated = sides.iter().any(|side| side.len() > 1);
    let basis = if is_repeated { Basis::Replicates } else { Basis::Within };
    let floors = stretch.and_then(|stretch| Floors::of(&sides.each_ref().map(|side| pieces(side)), stretch.growth));
    let growth = floors.as_ref().and_then(|floors| growth_contrast(floors, clock));
    let times = stretch.map(|stretch| sides.each_ref().map(|side| estimates(side, stretch.warm)));
    let step_time = times.as_ref().and_then(|times| time_contrast(times, sides, stretch?.warm));
    let level = |of: &dyn Fn(&Reading, &Stretch) -> Option<f64>| {
        let known = |side: &Vec<Reading>| side.iter().map(|run| of(run, &stretch?)).collect::<Option<Vec<f64>>>();
        Some(level_contrast(&known(&sides[0])?, &known(&sides[1])?))
    };
    let highest = level(&Reading::highest);
    let last = level(&Reading::last);
    let (effect, growth) = match growth {
        Some((effect, growth)) => (effect, Some(growth)),
        None => (Effect::Insufficient, None),
    };
    let told = |side: usize| {
        let run = |(place, run): (usize, &Reading)| ComparedRun {
            name: run.name.clone(),
            verdict: if run.shape.is_some() { run.finding.verdict } else { Verdict::Insufficient },
            mechanism: run.finding.mechanism,
            samples: run.samples,
            growth: floors.as_ref().and_then(|floors| floors.growth(side, place)).map(Estimate::interval),
            step_time: times.as_ref().and_then(|times| times[side][place]).map(pace::seconds),
            highest: stretch.and_then(|stretch| run.highest(&stretch)),
        };
        sides[side].iter().enumerate().map(run).collect::<Vec<_>>()
    };
    let mut comparison = Comparison {
        effect,
        needs_more: false,
        summary: String::new(),
        advice: String::new(),
        clock,
        from: stretch.map(|stretch| stretch.growth.0),
        to: stretch.map(|stretch| stretch.growth.1),
        basis,
        growth,
        step_time,
        highest,
        last,
        before: told(0),
        after: told(1),
        notes,
        curves: sides.each_ref().map(|side| side.iter().map(Reading::curve).collect()),
    };
    comparison.needs_more = needs_more(&comparison);
    comparison.summary = phrasing::summary(&comparison);
    comparison.advice = phrasing::advice(&comparison);
    comparison
}

/// The input of the floors: the samples of each run, and their waves.
fn pieces(side: &[Reading]) -> Vec<floors::Piece<'_>> {
    side.iter().map(|run| (run.series.points.as_slice(), run.shape.as_ref().map(|shape| shape.waves))).collect()
}

fn growth_contrast(floors: &Floors, clock: Clock) -> Option<(Effect, GrowthContrast)> {
    let [before, after] = [floors.side(0)?, floors.side(1)?];
    let difference = floors.difference(before, after);
    let (grows, now, change) = (before.interval(), after.interval(), difference.interval());
    let tiny = MATTERS_BYTES / floors.length;
    let does_grow = grows.low > 0.0 && grows.value >= tiny;
    let notable = if does_grow { (MATTERS_SHARE * grows.value).max(tiny) } else { tiny };
    // If the runs before the change do not grow, the threshold is what a diagnosis calls growth.
    let matters = if does_grow { notable } else { MATERIAL_BYTES / floors.length };
    let effect = if change.excludes_zero() && change.value.abs() >= notable {
        match change.value {
            less if less < 0.0 && does_grow && now.high <= notable => Effect::Ends,
            less if less < 0.0 => Effect::Less,
            _ => Effect::More,
        }
    } else if change.is_within(matters) {
        Effect::None
    } else {
        Effect::Unclear
    };
    let ratio = if does_grow { after.over(before) } else { None };
    let mut growth =
        GrowthContrast { text: String::new(), before: grows, after: now, difference: change, ratio, matters };
    growth.text = phrasing::growth(effect, &growth, clock);
    Some((effect, growth))
}

/// The logarithm of each run's mean step time.
fn estimates(side: &[Reading], stretch: (f64, f64)) -> Vec<Option<Estimate>> {
    side.iter().map(|run| run.pace.between(stretch.0, stretch.1)).collect()
}

fn time_contrast(
    times: &[Vec<Option<Estimate>>; 2],
    sides: &[Vec<Reading>; 2],
    stretch: (f64, f64),
) -> Option<TimeContrast> {
    let side = |times: &Vec<Option<Estimate>>| {
        let known: Vec<Estimate> = times.iter().copied().collect::<Option<_>>()?;
        let values: Vec<f64> = known.iter().map(|estimate| estimate.value).collect();
        Estimate::of_replicates(&values).or(known.first().copied())
    };
    let (before, after) = (side(&times[0])?, side(&times[1])?);
    let ratio = pace::seconds(after.minus(before));
    let share = Interval { value: ratio.value - 1.0, low: ratio.low - 1.0, high: ratio.high - 1.0 };
    let effect = match share {
        share if share.is_within(MATTERS_TIME) => TimeEffect::None,
        share if share.low > 0.0 => TimeEffect::Costs,
        share if share.high < 0.0 => TimeEffect::Saves,
        _ => TimeEffect::Unclear,
    };
    let typical = |side: &Vec<Reading>| {
        median(&side.iter().filter_map(|run| run.pace.typical(stretch.0, stretch.1)).collect::<Vec<_>>())
    };
    Some(TimeContrast {
        effect,
        text: phrasing::time(effect, share),
        before: pace::seconds(before),
        after: pace::seconds(after),
        ratio,
        typical: (typical(&sides[0]), typical(&sides[1])),
    })
}

fn level_contrast(before: &[f64], after: &[f64]) -> LevelContrast {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let both = Estimate::of_replicates(before).zip(Estimate::of_replicates(after));
    let interval = both.map(|(before, after)| after.minus(before).interval());
    LevelContrast {
        before: mean(before),
        after: mean(after),
        difference: mean(after) - mean(before),
        low: interval.map(|interval| interval.low),
        high: interval.map(|interval| interval.high),
    }
}

/// Whether a level moved by enough to report, and not by chance as far as that is known.
fn is_notable(level: &LevelContrast) -> bool {
    let is_large = level.difference.abs() >= MATERIAL_BYTES.max(MATTERS_LEVEL * level.before);
    let is_sure = level.low.zip(level.high).is_none_or(|(low, high)| low > 0.0 || high < 0.0);
    is_large && is_sure
}

/// Whether memory needs more after the change: it grows more, and what it holds less is not as much as that adds in a stretch as long again;
/// or it grows as before at a higher level, at its peak and at its end.
fn needs_more(comparison: &Comparison) -> bool {
    let by = |level: &Option<LevelContrast>| {
        level.as_ref().filter(|level| is_notable(level)).map_or(0.0, |level| level.difference)
    };
    let (peak, last) = (by(&comparison.highest), by(&comparison.last));
    match comparison.effect {
        Effect::More => {
            let length = comparison.from.zip(comparison.to).map_or(0.0, |(from, to)| to - from);
            let adds = comparison.growth.as_ref().map_or(f64::INFINITY, |growth| growth.difference.high * length);
            -peak.max(last) <= adds
        }
        Effect::None | Effect::Unclear => peak > 0.0 && last > 0.0,
        Effect::Ends | Effect::Less | Effect::Insufficient => false,
    }
}

/// The trend of a floor as an estimate.
fn slope(points: &[Point], resolution: f64) -> Option<Estimate> {
    let trend = Trend::of(points).filter(|_| points.len() >= FEWEST_BLOCKS)?;
    // A counter may hide a movement of up to one unit of its resolution.
    let blind = 0.5 * resolution / trend.length;
    Some(Estimate { value: trend.slope, error: trend.error, degrees: trend.degrees }.at_least(blind))
}

/// Why there is no answer.
fn missing(comparison: &Comparison) -> String {
    let short = comparison.before.iter().chain(&comparison.after).find(|run| run.samples < FEWEST_BLOCKS);
    match short {
        Some(run) => format!("`{}` has {}", run.name, counted(run.samples, "sample")),
        None if comparison.from.is_none() => "the runs do not overlap in steps or time".into(),
        None => "too few samples in the range that all runs cover".into(),
    }
}

#[cfg(test)]
mod tests;

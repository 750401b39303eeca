//! From a trace to the one series that is judged: which clock, which memory, which process, which samples.
//!
//! Restarts split a trace, evaluations are set aside, samples that go back in time are dropped and counted. The series is
//! not interpreted here.

use std::ops::Range;

use crate::diagnosis::Clock;
use crate::stats::{Point, median};
use crate::trace::{Activity, EventKind, Quantity, Trace};

/// Which memory is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JudgedMemory {
    /// Memory the kernel cannot reclaim: anonymous + shared + swapped.
    Unreclaimable,
    /// Everything resident (or its proportional share) + swapped.
    Total,
    /// One quantity alone.
    Only(Quantity),
}

impl JudgedMemory {
    /// The amount at one sample, or its lower bound, in bytes.
    pub fn at_least(self, trace: &Trace, index: usize) -> Option<u64> {
        self.at(trace, index).map(|(least, _)| least as u64)
    }

    /// Lower and upper bound of the amount at one sample, if the sample has it; equal if it was measured.
    fn at(self, trace: &Trace, index: usize) -> Option<(f64, f64)> {
        let main = match self {
            JudgedMemory::Unreclaimable => Quantity::Anon,
            JudgedMemory::Total => total_quantity(trace),
            JudgedMemory::Only(quantity) => quantity,
        };
        let others: &[Quantity] = match self {
            JudgedMemory::Unreclaimable => &[Quantity::Shmem, Quantity::Swap],
            JudgedMemory::Total => &[Quantity::Swap],
            JudgedMemory::Only(_) => &[],
        };
        let others: f64 = others.iter().filter_map(|&other| trace.value(index, other)).map(|bytes| bytes as f64).sum();
        let (least, most) = (trace.at_least(index, main)?, trace.value(index, main)?);
        Some((least as f64 + others, most as f64 + others))
    }

    /// Whether only bounds are known at this sample, because only bounds of the tree's anonymous memory are.
    fn is_bound(self, trace: &Trace, index: usize) -> bool {
        let follows = match self {
            JudgedMemory::Unreclaimable | JudgedMemory::Total => true,
            JudgedMemory::Only(quantity) => quantity.follows_anon(),
        };
        follows && trace.is_bound(index)
    }

    /// The file's names of the judged columns, for example `anon_mb + shmem_mb`.
    pub(crate) fn column_names(self, trace: &Trace) -> String {
        let parts = match self {
            JudgedMemory::Unreclaimable => vec![Quantity::Anon, Quantity::Shmem, Quantity::Swap],
            JudgedMemory::Total => vec![total_quantity(trace), Quantity::Swap],
            JudgedMemory::Only(quantity) => vec![quantity],
        };
        let present: Vec<&str> = parts.into_iter().filter(|&q| trace.has(q)).map(|q| trace.name_of(q)).collect();
        present.join(" + ")
    }
}

/// RSS, or PSS where a trace has only that.
fn total_quantity(trace: &Trace) -> Quantity {
    if trace.has(Quantity::Pss) && !trace.has(Quantity::Rss) { Quantity::Pss } else { Quantity::Rss }
}

/// The clock of a trace, and each sample's place on it.
#[derive(Clone, Debug)]
pub(crate) struct Timeline {
    pub clock: Clock,
    /// NaN where a sample has no place.
    places: Vec<f64>,
    /// Samples at which another process begins, because the clock fell back together with the memory.
    restarts: Vec<usize>,
    /// How often the time went back while the program went on: somebody set the clock.
    pub set_back: usize,
    /// The samples are in no order at all, as in a file of shuffled lines: their places decide.
    pub is_shuffled: bool,
}

impl Timeline {
    pub(crate) fn of(trace: &Trace) -> Timeline {
        Timeline::on(trace, clock_of(trace))
    }

    /// The timeline on a given clock, whether or not the trace has a better one.
    pub(crate) fn on(trace: &Trace, clock: Clock) -> Timeline {
        let raw = |index: usize| match clock {
            Clock::Step => trace.step(index),
            Clock::Time => trace.time_s(index),
            Clock::Sample => Some(index as f64),
        };
        let places = (0..trace.len()).map(|index| raw(index).unwrap_or(f64::NAN)).collect();
        let mut timeline = Timeline { clock, places, restarts: Vec::new(), set_back: 0, is_shuffled: false };
        timeline.is_shuffled = restart_events(trace).is_empty() && is_shuffled(&timeline.places);
        if !timeline.is_shuffled {
            timeline.unroll(trace);
        }
        timeline
    }

    pub(crate) fn place(&self, index: usize) -> Option<f64> {
        self.places.get(index).copied().filter(|x| x.is_finite())
    }

    /// The samples of a part in the order of the clock.
    fn in_order(&self, part: Range<usize>) -> Box<dyn Iterator<Item = usize>> {
        if !self.is_shuffled {
            return Box::new(part);
        }
        let mut order: Vec<usize> = part.collect();
        order.sort_by(|&a, &b| self.places[a].total_cmp(&self.places[b]));
        Box::new(order.into_iter())
    }

    /// The first known place.
    pub(crate) fn first(&self) -> f64 {
        self.places.iter().copied().find(|x| x.is_finite()).unwrap_or(0.0)
    }

    /// Tells a restarted process from a step counter that restarts with each epoch.
    ///
    /// Both make the clock fall back. A new process begins with little memory; one that only resets its counter keeps its
    /// memory, and its steps go on from where they were.
    fn unroll(&mut self, trace: &Trace) {
        let explicit: Vec<usize> = restart_events(trace);
        let mut offset = 0.0;
        let mut from = 0;
        for reset in clock_resets(&self.places) {
            for place in &mut self.places[from..reset] {
                *place += offset;
            }
            from = reset;
            let begins_anew = self.clock == Clock::Time && self.begins_anew(reset);
            let is_new = explicit.contains(&reset) || begins_anew || gives_memory_back(trace, reset);
            let last = || self.places[..reset].iter().rev().copied().find(|x| x.is_finite()).unwrap_or(0.0);
            if is_new {
                self.restarts.push(reset);
                offset = 0.0;
            } else if self.clock == Clock::Time {
                offset = last() + usual_gap(&self.places) - self.places[reset];
                self.set_back += 1;
            } else {
                // The first step of an epoch is 0 or 1; either follows the last step of the epoch before.
                offset = last() + if self.places[reset] > 0.0 { 0.0 } else { 1.0 };
            }
        }
        for place in &mut self.places[from..] {
            *place += offset;
        }
    }
}

impl Timeline {
    /// Whether times count from where they began, as seconds since the start of another process do; a clock that was set back goes on
    /// from some other time.
    fn begins_anew(&self, reset: usize) -> bool {
        (self.places[reset] - self.first()).abs() <= FIRST_SAMPLES * usual_gap(&self.places)
    }
}

/// A process is first sampled within so many gaps of its start.
const FIRST_SAMPLES: f64 = 3.0;
/// One in so many samples that lie before the one above them are no restarts any more.
const SHUFFLED: usize = 10;

/// Whether places go back again and again, though no two are the same: the lines of a file were shuffled.
fn is_shuffled(places: &[f64]) -> bool {
    let known = || places.iter().copied().filter(|x| x.is_finite());
    let falls = known().zip(known().skip(1)).filter(|(earlier, later)| later < earlier).count();
    if falls * SHUFFLED < places.len() || falls < SHUFFLED {
        return false;
    }
    let mut sorted: Vec<f64> = known().collect();
    sorted.sort_by(f64::total_cmp);
    sorted.windows(2).all(|pair| pair[0] < pair[1])
}

/// The usual distance between neighbouring places.
fn usual_gap(places: &[f64]) -> f64 {
    let gaps: Vec<f64> = places.windows(2).map(|pair| pair[1] - pair[0]).filter(|gap| *gap > 0.0).collect();
    median(&gaps)
}

/// A restarted process begins with less than this share of its predecessor's memory.
const NEW_PROCESS: f64 = 0.8;

/// Whether memory drops at this sample as it does when another process takes over.
fn gives_memory_back(trace: &Trace, at: usize) -> bool {
    let near = |mut indices: Box<dyn Iterator<Item = usize>>| indices.find_map(|i| JudgedMemory::Total.at(trace, i));
    let before = near(Box::new((0..at).rev()));
    let after = near(Box::new(at..trace.len()));
    // Lower bound before against upper bound after: uncertainty is not a drop.
    before.zip(after).is_some_and(|((before, _), (_, after))| after < NEW_PROCESS * before)
}

/// The clock that most samples have: steps, else times, else the samples' order.
pub(crate) fn clock_of(trace: &Trace) -> Clock {
    let enough = |known: usize| known >= 2 && known * 10 >= trace.len() * 5;
    let distinct = |place: &dyn Fn(usize) -> Option<f64>| {
        let first = (0..trace.len()).find_map(place);
        (0..trace.len()).any(|i| place(i).is_some() && place(i) != first)
    };
    let steps = (0..trace.len()).filter(|&i| trace.step(i).is_some()).count();
    if enough(steps) && distinct(&|i| trace.step(i)) {
        return Clock::Step;
    }
    let times = (0..trace.len()).filter(|&i| trace.time_s(i).is_some()).count();
    if enough(times) && distinct(&|i| trace.time_s(i)) { Clock::Time } else { Clock::Sample }
}

fn restart_events(trace: &Trace) -> Vec<usize> {
    let restarts = trace.events.iter().filter(|event| event.kind == EventKind::Restart);
    restarts.map(|event| event.before_sample.min(trace.len())).collect()
}

/// The samples of each process, as index ranges.
pub(crate) fn split_at_restarts(trace: &Trace, timeline: &Timeline) -> Vec<Range<usize>> {
    let mut borders = restart_events(trace);
    borders.extend(&timeline.restarts);
    borders.push(trace.len());
    borders.sort_unstable();
    let mut parts = Vec::new();
    let mut start = 0;
    for border in borders {
        if border > start {
            parts.push(start..border);
            start = border;
        }
    }
    parts
}

/// Samples at which the clock falls back and stays behind.
///
/// A single late sample (10, 20, 15, 30) is not a reset: the clock must stay behind for three samples.
fn clock_resets(places: &[f64]) -> Vec<usize> {
    const STAYS_BEHIND: usize = 3;
    let mut resets = Vec::new();
    let mut highest = f64::NEG_INFINITY;
    for index in (0..places.len()).filter(|&index| places[index].is_finite()) {
        let mut next = places[index..].iter().filter(|place| place.is_finite()).take(STAYS_BEHIND);
        // Most samples are ahead of all before.
        if places[index] < highest && next.clone().count() == STAYS_BEHIND && next.all(|&later| later < highest) {
            resets.push(index);
            highest = f64::NEG_INFINITY;
        }
        highest = highest.max(places[index]);
    }
    resets
}

/// Samples before a program's end (its last step, its processes exiting one by one) that give the typical level, and the share of that
/// level below which the last sample shows memory being given back.
const FAREWELL_SAMPLES: usize = 10;
const FAREWELL: f64 = 0.9;

/// The judged samples of one process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Series {
    /// Training samples in clock order.
    pub points: Vec<Point>,
    /// Samples taken during evaluations or checkpoints.
    pub aside: Vec<Point>,
    /// Places of evaluations and checkpoints.
    pub events: Vec<f64>,
    /// Samples dropped because their clock went back.
    pub out_of_order: usize,
    /// Samples with bounds only.
    pub bounds: Bounds,
    /// The trace index of the last point.
    pub last_sample: Option<usize>,
    /// The last place on the clock, of samples set aside or left out as well.
    pub until: f64,
}

/// Samples with bounds only, and how they are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Bounds {
    #[default]
    None,
    /// The number left out: a bound is not a measurement, and there are enough measurements.
    LeftOut(usize),
    /// The number used, since they are the majority: each gets the value of [`way_through`].
    Taken(usize),
}

impl Bounds {
    fn of(trace: &Trace, part: &Range<usize>, memory: JudgedMemory) -> Bounds {
        match part.clone().filter(|&index| memory.is_bound(trace, index)).count() {
            0 => Bounds::None,
            count if 2 * count > part.len() => Bounds::Taken(count),
            count => Bounds::LeftOut(count),
        }
    }
}

impl Series {
    /// Puts the series of one part of a trace together.
    pub(crate) fn of(trace: &Trace, part: Range<usize>, timeline: &Timeline, memory: JudgedMemory) -> Series {
        let mut series = Series { bounds: Bounds::of(trace, &part, memory), ..Series::default() };
        let leaves_bounds_out = matches!(series.bounds, Bounds::LeftOut(_));
        let is_measured = series.bounds == Bounds::None;
        let mut latest = f64::NEG_INFINITY;
        // Of millions of samples, only their points are kept.
        let mut sorter = Sorter { evaluations: evaluations_in(trace, &part), samples: Vec::new(), was_aside: false };
        let is_ending = has_ended(trace, &part);
        series.points.reserve_exact(part.len());
        let (mut places, mut ranges) = (Vec::new(), Vec::new());
        for index in timeline.in_order(part.clone()) {
            let (Some(x), Some(range)) = (timeline.place(index), memory.at(trace, index)) else { continue };
            if leaves_bounds_out && memory.is_bound(trace, index) {
                continue;
            }
            if x < latest {
                series.out_of_order += 1;
                continue;
            }
            latest = x;
            series.until = x;
            // Where everything was measured, there is one way through the bounds.
            if is_measured {
                sorter.add(&mut series, trace, index, Point { x, y: range.0 }, is_ending);
            } else {
                places.push((index, x));
                ranges.push(range);
            }
        }
        for ((index, x), y) in places.into_iter().zip(way_through(&ranges)) {
            sorter.add(&mut series, trace, index, Point { x, y }, is_ending);
        }
        if is_ending {
            series.drop_farewell(trace, &part, &sorter.samples);
            series.last_sample = series.points.len().checked_sub(1).map(|last| sorter.samples[last]);
        }
        series.add_events(trace, &part, timeline);
        spread_ties(&mut series.points);
        series
    }

    /// Drops the final samples of a program that gave its memory back because it ended.
    fn drop_farewell(&mut self, trace: &Trace, part: &Range<usize>, samples: &[usize]) {
        let leaving = leaving_from(trace, part);
        let last_place = self.points.last().map_or(0, |last| self.points.partition_point(|point| point.x < last.x));
        let ending = samples.partition_point(|&sample| sample < leaving).min(last_place);
        let before: Vec<f64> =
            self.points[ending.saturating_sub(FAREWELL_SAMPLES)..ending].iter().map(|point| point.y).collect();
        if before.is_empty() {
            return;
        }
        // Compared with the typical level, since waves may end at their foot.
        let gives_back = |point: &Point| point.y < FAREWELL * median(&before);
        if self.points.last().is_some_and(gives_back) {
            let kept = self.points.iter().rposition(|point| !gives_back(point)).map_or(0, |last| last + 1);
            self.points.truncate(kept);
        }
    }

    /// Adds the places of events without samples.
    fn add_events(&mut self, trace: &Trace, part: &Range<usize>, timeline: &Timeline) {
        for event in &trace.events {
            let lifts = matches!(event.kind, EventKind::EvalStart | EventKind::Checkpoint);
            if !lifts || !(part.start..=part.end).contains(&event.before_sample) {
                continue;
            }
            let at = timeline.place(event.before_sample.min(trace.len().saturating_sub(1)));
            self.events.extend(at.filter(|x| x.is_finite()));
        }
        self.events.sort_by(f64::total_cmp);
        self.events.dedup();
    }

    /// The typical distance between samples on the clock.
    pub(crate) fn spacing(&self) -> f64 {
        let gaps = || self.points.windows(2).map(|pair| pair[1].x - pair[0].x).filter(|gap| *gap > 0.0);
        match gaps().count() {
            few if few <= 4096 => median(&gaps().collect::<Vec<f64>>()),
            many => gaps().sum::<f64>() / many as f64,
        }
    }

    /// First and last place on the clock.
    pub(crate) fn ends(&self) -> Option<(f64, f64)> {
        Some((self.points.first()?.x, self.points.last()?.x))
    }
}

/// Whether a part ends with its program.
fn has_ended(trace: &Trace, part: &Range<usize>) -> bool {
    trace.events.iter().any(|event| event.kind == EventKind::Exit && event.before_sample == part.end)
}

/// Puts samples of training and samples of evaluations where they belong.
struct Sorter {
    evaluations: Vec<Range<usize>>,
    /// The sample of each point, where the end of the program may take some of them away again.
    samples: Vec<usize>,
    was_aside: bool,
}

impl Sorter {
    fn add(&mut self, series: &mut Series, trace: &Trace, index: usize, point: Point, keeps_samples: bool) {
        let over = self.evaluations.partition_point(|range| range.end <= index);
        let in_evaluation = self.evaluations.get(over).is_some_and(|range| range.contains(&index));
        let aside = in_evaluation || trace.activity(index) != Activity::Train;
        if aside {
            series.aside.push(point);
            if !self.was_aside {
                series.events.push(point.x);
            }
        } else {
            series.points.push(point);
            series.last_sample = Some(index);
            if keeps_samples {
                self.samples.push(index);
            }
        }
        self.was_aside = aside;
    }
}

/// The sample from which the processes of an ended program only exited and no new ones came.
fn leaving_from(trace: &Trace, part: &Range<usize>) -> usize {
    let came =
        trace.processes.iter().filter_map(|track| Some(track.levels.first()?.0)).filter(|came| part.contains(came));
    let last_came = came.max().unwrap_or(part.start);
    let mut left: Vec<usize> = trace.processes.iter().filter_map(|track| track.gone).collect();
    left.retain(|gone| part.contains(gone) && *gone > last_came);
    left.sort_unstable();
    let is_soon = |from: usize, left: usize| from - left <= FAREWELL_SAMPLES;
    left.into_iter()
        .rev()
        .try_fold(part.end, |from, left| if is_soon(from, left) { Ok(left) } else { Err(from) })
        .unwrap_or_else(|from| from)
}

/// Bounds that narrow or widen by more than this factor, and stay so, do it because more or less is known.
const LEARNT: f64 = 2.0;
/// Samples before and after over which bounds must stay so.
const STAYS: usize = 8;

/// A path through the bounds that moves as memory did.
///
/// The bounds of a tree that forked narrow when its pages are read, and widen again when a process ends and voids the
/// reading; either bound alone would show that as memory that came or went. At such a sample only a movement of both
/// bounds is a change, and memory that a reading found was there before. Otherwise memory is taken to move with the
/// lower bound, so that growth is not overlooked.
fn way_through(ranges: &[(f64, f64)]) -> Vec<f64> {
    let apart = |ranges: &[(f64, f64)]| {
        let distances = ranges.iter().map(|range| range.1 - range.0);
        distances.fold((f64::INFINITY, 0.0_f64), |(low, high), distance| (low.min(distance), high.max(distance)))
    };
    let is_learnt = |later: usize| {
        // Fewer samples cannot show that the bounds stay so.
        let (Some(from), true) = (later.checked_sub(STAYS), later + STAYS <= ranges.len()) else { return false };
        let (before, after) = (apart(&ranges[from..later]), apart(&ranges[later..later + STAYS]));
        before.0 > LEARNT * after.1 || after.0 > LEARNT * before.1
    };
    let change = |later: usize| {
        let (before, now) = (ranges[later - 1], ranges[later]);
        let (least, most) = (now.0 - before.0, now.1 - before.1);
        match is_learnt(later) {
            true if least > 0.0 => least.min(most.max(0.0)),
            true => least.max(most.min(0.0)),
            false => least,
        }
    };
    let changes: Vec<f64> = (1..ranges.len()).map(change).collect();
    let clamp = |value: f64, (least, most): (f64, f64)| value.clamp(least, most.max(least));
    let mut way: Vec<f64> = ranges.iter().take(1).map(|range| range.0).collect();
    for (change, &range) in changes.iter().zip(ranges.iter().skip(1)) {
        way.extend(way.last().map(|&last| clamp(last + change, range)));
    }
    for later in (1..ranges.len()).rev() {
        way[later - 1] = clamp(way[later] - changes[later - 1], ranges[later - 1]);
    }
    way
}

/// Index ranges between an evaluation's start and its end.
fn evaluations_in(trace: &Trace, part: &Range<usize>) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let mut open = None;
    for event in &trace.events {
        match event.kind {
            EventKind::EvalStart => open = Some(event.before_sample),
            EventKind::EvalEnd => {
                if let Some(start) = open.take() {
                    ranges.push(start.max(part.start)..event.before_sample.min(part.end));
                }
            }
            _ => {}
        }
    }
    ranges.retain(|range| !range.is_empty());
    ranges
}

/// Spreads samples that share a place evenly up to the next place, so that rates within a step are finite.
fn spread_ties(points: &mut [Point]) {
    let mut start = 0;
    while start < points.len() {
        let x = points[start].x;
        let end = start + points[start..].iter().take_while(|p| p.x == x).count();
        let next = points.get(end).map_or(x + 1.0, |p| p.x);
        let count = (end - start) as f64;
        for (k, point) in points[start..end].iter_mut().enumerate() {
            point.x = x + (next - x) * k as f64 / count;
        }
        start = end;
    }
}

/// Most samples the judge sees; longer series are condensed first, which bounds the cost of a diagnosis.
const MOST_SAMPLES: usize = 4096;

/// Keeps the lowest and the highest sample of each bucket, in order, so that no extreme is lost.
pub(crate) fn condense(points: &[Point]) -> Vec<Point> {
    if points.len() <= MOST_SAMPLES {
        return points.to_vec();
    }
    let bucket = points.len().div_ceil(MOST_SAMPLES / 2);
    let mut kept = Vec::with_capacity(MOST_SAMPLES);
    for chunk in points.chunks(bucket) {
        let (mut low, mut high) = (0, 0);
        for (i, point) in chunk.iter().enumerate() {
            if point.y < chunk[low].y {
                low = i;
            }
            if point.y > chunk[high].y {
                high = i;
            }
        }
        kept.push(chunk[low.min(high)]);
        if low != high {
            kept.push(chunk[low.max(high)]);
        }
    }
    kept
}

/// Seconds per unit of the clock, by the median over the part: how steps turn into time.
pub(crate) fn seconds_per_unit(trace: &Trace, part: Range<usize>, timeline: &Timeline) -> Option<f64> {
    if timeline.clock == Clock::Time {
        return Some(1.0);
    }
    let known = || part.clone().filter_map(|i| Some((timeline.place(i)?, trace.time_s(i)?)));
    let count = known().count();
    // Pairs a few samples apart average out uneven steps; the median ignores pauses.
    let reach = (count / 20).max(1);
    let stride = (count / 2000).max(1);
    let rates: Vec<f64> = known()
        .zip(known().skip(reach))
        .step_by(stride)
        .filter(|(a, b)| b.0 > a.0 && b.1 > a.1)
        .map(|(a, b)| (b.1 - a.1) / (b.0 - a.0))
        .collect();
    (!rates.is_empty()).then(|| median(&rates))
}

//! The charts and the table of a diagnosed trace: the one place that turns samples, events and a diagnosis into pictures.
//!
//! Memory by component comes first; then, as far as recorded, the attempts of a restarted run, the processes, counts, GPU
//! memory and the machine. Verdict, forecast and decision come from the diagnosis alone.

use garden_memory::{Clock, EventKind, JudgedMemory, Mechanism, ProcessTrack, Quantity, Trace, Verdict, judged_places};

use crate::Report;
use crate::chart::{Axis, AxisKind, Base, Chart, ChartKind, Curve, Level, Mark, Role, Shape, Size, Tone, Unit};
use crate::events::events;
use crate::format::{ClockWords, knee_place};
use crate::outlook::{end_of_axis, outlooks, phases};
use crate::plot::{MOST_PLACE, Plot, overlap};
use crate::samples::samples_table;
use crate::thin::thin;

/// Most processes with their own curve; the rest is summed.
const MOST_PROCESSES: usize = 7;
/// A process that stays below this share of the largest process's peak cannot be seen in a stack.
const SMALL_PROCESS: f64 = 0.005;
/// Most epoch boundaries drawn; more would be hatching.
const MOST_EPOCHS: usize = 40;
/// So many counts are drawn as points: a line through two would claim a course that nobody saw.
pub(crate) const FEW_COUNTS: usize = 2;
/// A line begins at zero unless its lowest value is above this share of the highest.
const ZERO_BASE: f64 = 0.6;

/// Adds the charts and the table of samples of its trace to a report.
pub fn illustrate(report: &mut Report, trace: &Trace) {
    let Some(scene) = Scene::new(report, trace) else { return };
    let charts = [
        Some(scene.memory()),
        scene.attempts(),
        scene.processes(),
        scene.quantities("Tensors", "", Unit::Count, &[Quantity::Tensors, Quantity::TensorsCpu, Quantity::TensorsGpu]),
        scene.quantities("Python objects", "", Unit::Count, &[Quantity::Objects]),
        scene
            .quantities(
                "GPU memory",
                "Of the watched processes, and of all processes on the GPUs.",
                Unit::Bytes,
                &[Quantity::Gpu, Quantity::GpuUsed],
            )
            .map(|chart| Chart { kind: ChartKind::GpuMemory, ..chart }),
        scene.sharing(),
        scene.quantities(
            "Machine",
            "Available memory, and usage of the control group and /dev/shm, other programs included.",
            Unit::Bytes,
            &[Quantity::Available, Quantity::Group, Quantity::DevShm],
        ),
        scene.pressure(),
    ];
    // Thinned one by one, so that a long trace is never held twice.
    let charts: Vec<Chart> = charts.into_iter().flatten().map(thin).collect();
    let table = samples_table(trace, &scene.samples, scene.words);
    report.charts.extend(charts);
    report.samples = Some(table);
}

/// The data shared by all charts of a trace.
struct Scene<'a> {
    report: &'a Report<'a>,
    trace: &'a Trace,
    plot: Plot<'a>,
    words: ClockWords,
    /// Samples in the order of drawing, process after process.
    samples: Vec<(usize, f64)>,
    /// Where in `samples` each later process begins.
    breaks: Vec<usize>,
}

impl<'a> Scene<'a> {
    fn new(report: &'a Report<'a>, trace: &'a Trace) -> Option<Self> {
        let plot = Plot::new(report)?;
        let mut parts = judged_places(trace);
        parts.iter_mut().for_each(|part| part.retain(|sample| sample.1.abs() < MOST_PLACE));
        parts.retain(|part| !part.is_empty());
        let breaks = parts.iter().scan(0, |end, part| {
            *end += part.len();
            Some(*end)
        });
        let breaks = breaks.take(parts.len().saturating_sub(1)).collect();
        let words = plot.words;
        let mut samples = parts.concat();
        samples.iter_mut().for_each(|sample| sample.1 -= words.zero);
        Some(Scene { report, trace, plot, words, samples, breaks })
    }

    /// A chart over the diagnosis's clock with everything but its curves.
    fn chart(&self, title: &str, unit: Unit) -> Chart {
        let zero = self.words.zero;
        let kind = if self.words.clock == Clock::Time { AxisKind::Time } else { AxisKind::Number };
        // The plot of a restarted run may show its last attempt alone; here all are drawn.
        let first = self.samples.iter().map(|sample| sample.1).fold(f64::INFINITY, f64::min);
        let (from, to) = ((self.plot.from - zero).min(first), (self.plot.to - zero).max(self.last_place()));
        let axis = Axis { name: self.words.name().into(), kind, from, to };
        Chart {
            title: title.into(),
            unit,
            axis,
            places: self.samples.iter().map(|sample| sample.1).collect(),
            breaks: self.breaks.clone(),
            ..Chart::default()
        }
    }

    fn curve(&self, name: String, role: Role, value: impl Fn(usize) -> Option<u64>) -> Curve {
        let values = self.samples.iter().map(|&(index, _)| value(index).map_or(f64::NAN, |value| value as f64));
        Curve { name, role, values: values.collect(), ..Curve::default() }
    }

    fn memory(&self) -> Chart {
        let diagnosis = self.report.diagnosis;
        let mut chart = self.chart("Memory", Unit::Bytes);
        (chart.kind, chart.size) = (ChartKind::Memory, Size::Large);
        chart.curves = self.components();
        let is_stacked = chart.curves.iter().any(|curve| curve.role == Role::Stacked);
        let judged = self.judged(is_stacked);
        chart.curves.extend(self.at_most(&judged));
        chart.curves.push(judged);
        if overlap(&diagnosis.parts) {
            self.part_attempts(&mut chart);
        }
        chart.base = self.base(&chart, is_stacked);
        let end = end_of_axis(self.report, &self.plot);
        chart.outlooks = outlooks(self.report, &self.plot, end);
        chart.axis.to = chart.axis.to.max(end - self.words.zero);
        chart.bands = phases(self.report, self.words.zero);
        let limit = diagnosis.forecast.limit_bytes.or(self.report.facts.memory_limit.map(|limit| limit.0));
        chart.levels = limit
            .map(|limit| Level { name: "limit".into(), value: limit as f64, ..Level::default() })
            .into_iter()
            .collect();
        chart.marks = self.marks(end);
        chart.note = match is_stacked {
            true => "By kind: the kernel can reclaim file pages, but not the others.".into(),
            false => String::new(),
        };
        chart
    }

    /// The components of memory, as far as recorded.
    fn components(&self) -> Vec<Curve> {
        let trace = self.trace;
        if !trace.has(Quantity::Anon) {
            return Vec::new();
        }
        let kinds = [
            (Quantity::Anon, "anonymous", Tone::Next),
            (Quantity::Shmem, "shared", Tone::Next),
            (Quantity::Swap, "swapped", Tone::Next),
            (Quantity::File, "file pages", Tone::Muted),
        ];
        // A component that was always empty would only fill the legend.
        let is_used =
            |quantity| (0..trace.len()).any(|index| trace.value(index, quantity).is_some_and(|value| value > 0));
        let used = kinds.into_iter().filter(|kind| trace.has(kind.0) && is_used(kind.0));
        let curve = |(quantity, name, tone): (Quantity, &str, Tone)| Curve {
            tone,
            ..self.curve(name.into(), Role::Stacked, |index| trace.at_least(index, quantity))
        };
        used.map(curve).collect()
    }

    /// The judged memory.
    fn judged(&self, is_stacked: bool) -> Curve {
        let (input, trace) = (&self.report.diagnosis.input, self.trace);
        let judged = input.judged.unwrap_or(JudgedMemory::Total);
        let curve = |name: &str, role| self.curve(name.into(), role, |index| judged.at_least(trace, index));
        if judged == JudgedMemory::Unreclaimable || is_stacked {
            return Curve { tone: Tone::Strong, ..curve("judged", Role::Line) };
        }
        curve(input.column.as_deref().unwrap_or("memory"), Role::Area)
    }

    /// The upper bound of the judged memory, where only bounds are known.
    fn at_most(&self, judged: &Curve) -> Option<Curve> {
        let trace = self.trace;
        let gap = |index: usize| {
            let (most, least) = (trace.value(index, Quantity::Anon)?, trace.value(index, Quantity::AnonLeast)?);
            Some(most.saturating_sub(least) as f64)
        };
        let values = self.samples.iter().zip(&judged.values);
        let values: Vec<f64> =
            values.map(|(&(index, _), least)| gap(index).map_or(f64::NAN, |gap| least + gap)).collect();
        let is_any = values.iter().any(|value| value.is_finite());
        is_any.then(|| Curve { name: "at most".into(), role: Role::Line, tone: Tone::Muted, values })
    }

    /// Draws only the last attempt in full and the others as lines, where attempts count the same steps again.
    fn part_attempts(&self, chart: &mut Chart) {
        let last = self.breaks.last().copied().unwrap_or(0);
        let Some(judged) = chart.curves.last().cloned() else { return };
        for curve in &mut chart.curves {
            curve.values[..last].fill(f64::NAN);
        }
        let starts: Vec<usize> = std::iter::once(0).chain(self.breaks.iter().copied()).collect();
        for (number, range) in starts.windows(2).enumerate() {
            let mut values = vec![f64::NAN; judged.values.len()];
            values[range[0]..range[1]].copy_from_slice(&judged.values[range[0]..range[1]]);
            chart.curves.push(Curve { name: attempt_name(number), tone: Tone::Next, values, role: Role::Line });
        }
    }

    /// Where the vertical axis begins.
    ///
    /// A flat line should look flat, and a stack with its lowest part cut off misleads; a line that moved a little on a high
    /// level is shown enlarged.
    fn base(&self, chart: &Chart, is_stacked: bool) -> Base {
        let known = chart.curves.iter().flat_map(|curve| &curve.values).copied().filter(|value| value.is_finite());
        let (low, high) = known.fold((f64::INFINITY, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
        let has_moved = !matches!(self.report.diagnosis.verdict, Verdict::Flat | Verdict::Insufficient);
        if has_moved && !is_stacked && low > ZERO_BASE * high { Base::Fitted } else { Base::Zero }
    }

    /// Knee, decision, restarts, epochs and events.
    fn marks(&self, end: f64) -> Vec<Mark> {
        let diagnosis = self.report.diagnosis;
        let zero = self.words.zero;
        let pin = |name: &str, at: f64| Mark {
            name: name.into(),
            label: format!("{name} {}", self.words.number(at)),
            at: at - zero,
            shape: Shape::Pin,
            stretch: None,
        };
        let knee = knee_place(self.report).map(|at| {
            let interval = diagnosis.knee.map(|knee| (knee.low - zero, knee.high - zero));
            Mark { stretch: interval.filter(|range| range.0.is_finite() && range.1.is_finite()), ..pin("knee", at) }
        });
        let at_step = |at: &f64| self.words.clock == Clock::Step && at.is_finite();
        let decided = diagnosis.forecast.decided_by_step.filter(at_step).map(|at| pin("decided by", at));
        let mut marks: Vec<Mark> = knee.into_iter().chain(decided).collect();
        if !overlap(&diagnosis.parts) {
            marks.extend(self.breaks.iter().map(|&at| restart(self.samples[at].1)));
        }
        marks.extend(events(self.trace, &self.samples, self.words));
        if !marks.iter().any(|mark| mark.name == "epoch") {
            marks.extend(self.epochs(end));
        }
        marks
    }

    /// Where epochs end, as far as known.
    fn epochs(&self, end: f64) -> Vec<Mark> {
        let steps = self.report.facts.epoch_steps().filter(|_| self.words.clock == Clock::Step);
        let Some(steps) = steps.map(|steps| steps as f64) else { return Vec::new() };
        let epochs = 1..=((end / steps) as usize).min(MOST_EPOCHS + 1);
        let mark = |epoch: usize| Mark {
            name: "epoch".into(),
            label: format!("epoch {epoch} ends"),
            at: epoch as f64 * steps,
            ..Mark::default()
        };
        let marks: Vec<Mark> = epochs.map(mark).filter(|mark| mark.at >= self.plot.from).collect();
        if marks.len() > MOST_EPOCHS { Vec::new() } else { marks }
    }

    /// Each attempt of a restarted run over time, where the main chart counts steps.
    fn attempts(&self) -> Option<Chart> {
        let place = |index: usize| self.trace.time_s(index);
        let zero = (0..self.trace.len()).find_map(place)?;
        let mut walk: Vec<(usize, f64)> =
            (0..self.trace.len()).filter_map(|index| Some((index, place(index)? - zero))).collect();
        let is_forward = walk.windows(2).all(|pair| pair[0].1 <= pair[1].1);
        if self.breaks.is_empty() || self.words.clock != Clock::Step || !is_forward {
            return None;
        }
        let starts: Vec<usize> = self.breaks.iter().map(|&at| self.start_of(at)).collect();
        let attempt_of = |index: usize| starts.partition_point(|&start| start <= index);
        let total = if self.trace.has(Quantity::Rss) { Quantity::Rss } else { Quantity::Pss };
        walk.retain(|&(index, _)| self.trace.value(index, total).is_some());
        let value = |index: usize| self.trace.value(index, total).map_or(f64::NAN, |value| value as f64);
        let curve = |attempt: usize| Curve {
            name: attempt_name(attempt),
            role: Role::Area,
            tone: Tone::Next,
            values: walk.iter().map(|w| if attempt_of(w.0) == attempt { value(w.0) } else { f64::NAN }).collect(),
        };
        let words = ClockWords::over(Clock::Time, zero, walk.iter().map(|sample| sample.1 + zero));
        let limit = self.report.diagnosis.forecast.limit_bytes.or(self.report.facts.memory_limit.map(|limit| limit.0));
        let breaks: Vec<usize> = starts.iter().map(|&start| walk.partition_point(|sample| sample.0 < start)).collect();
        let mut marks: Vec<Mark> =
            breaks.iter().filter_map(|&at| walk.get(at)).map(|&(_, place)| restart(place)).collect();
        marks.extend(events(self.trace, &walk, words));
        Some(Chart {
            kind: ChartKind::Attempts,
            title: "Attempts over time".into(),
            note: "Resident memory of each attempt; marks at the bottom are events.".into(),
            unit: Unit::Bytes,
            axis: Axis { name: "time".into(), kind: AxisKind::Time, ..Axis::default() },
            size: Size::Large,
            places: walk.iter().map(|sample| sample.1).collect(),
            curves: (0..=starts.len()).map(curve).collect(),
            levels: limit
                .map(|limit| Level { name: "limit".into(), value: limit as f64, ..Level::default() })
                .into_iter()
                .collect(),
            breaks,
            marks,
            ..Chart::default()
        })
    }

    /// The first sample of the attempt whose first sample on the clock is given: it may have begun before it counted steps.
    fn start_of(&self, at: usize) -> usize {
        let (before, first) = (self.samples[at - 1].0, self.samples[at].0);
        let restarts = self.trace.events.iter().filter(|event| event.kind == EventKind::Restart);
        let between = |index: &usize| (before + 1..=first).contains(index);
        restarts.map(|event| event.before_sample).find(between).unwrap_or(first)
    }

    /// The processes of the tree, the largest with their own curves.
    fn processes(&self) -> Option<Chart> {
        let highest = |track: &ProcessTrack| track.levels.iter().map(|level| level.1).max().unwrap_or(0);
        let mut tracks: Vec<&ProcessTrack> = self.trace.processes.iter().filter(|track| highest(track) > 0).collect();
        if tracks.len() < 2 || overlap(&self.report.diagnosis.parts) {
            return None;
        }
        tracks.sort_by_key(|track| std::cmp::Reverse(highest(track)));
        let least = tracks.first().map_or(0.0, |largest| SMALL_PROCESS * highest(largest) as f64);
        let large = tracks.iter().take_while(|track| highest(track) as f64 >= least).count();
        let rest = tracks.split_off(large.min(MOST_PROCESSES));
        // By age, so that the oldest is at the bottom.
        tracks.sort_by_key(|track| track.levels.first().map(|level| level.0));
        let mut chart = self.chart("Processes", Unit::Bytes);
        chart.size = Size::Large;
        chart.note = "Memory of each process, without what it shares with its parent.".into();
        for track in &tracks {
            chart.curves.push(self.stacked(process_name(track), Tone::Next, std::slice::from_ref(track)));
        }
        if !rest.is_empty() {
            let name = format!("{} more", rest.len());
            chart.curves.push(self.stacked(name, Tone::Muted, &rest));
        }
        chart.marks = self.breaks.iter().map(|&at| restart(self.samples[at].1)).collect();
        chart.axis.to = self.last_place();
        Some(chart)
    }

    fn stacked(&self, name: String, tone: Tone, tracks: &[&ProcessTrack]) -> Curve {
        let levels = levels_of(tracks, self.trace.len());
        Curve { tone, ..self.curve(name, Role::Stacked, |index| levels.get(index).copied()) }
    }

    fn last_place(&self) -> f64 {
        self.samples.iter().map(|sample| sample.1).fold(f64::NEG_INFINITY, f64::max)
    }

    /// A small chart of recorded quantities.
    fn quantities(&self, title: &str, note: &str, unit: Unit, quantities: &[Quantity]) -> Option<Chart> {
        let recorded: Vec<Quantity> = quantities.iter().copied().filter(|&quantity| self.trace.has(quantity)).collect();
        let named = |&quantity: &Quantity| {
            let name = quantity_name(quantity).map_or_else(|| self.trace.name_of(quantity).to_string(), str::to_string);
            self.curve(name, Role::Line, |index| self.trace.value(index, quantity))
        };
        let mut chart = self.chart(title, unit);
        chart.note = note.into();
        chart.curves = recorded.iter().map(named).collect();
        // Quantities that were always zero need no curve.
        chart.curves.retain(|curve| curve.values.iter().any(|&value| value > 0.0));
        drop_empty_places(&mut chart);
        // Nobody knows what was between two counts.
        if unit == Unit::Count && chart.places.len() <= FEW_COUNTS {
            chart.curves.iter_mut().for_each(|curve| curve.role = Role::Points);
        }
        chart.axis.to = self.last_place();
        let knee = knee_place(self.report).map(|at| at - self.words.zero).filter(|_| unit == Unit::Count);
        chart.marks = knee
            .map(|at| Mark { name: "knee".into(), label: "knee".into(), at, shape: Shape::Pin, stretch: None })
            .into_iter()
            .chain(self.breaks.iter().map(|&at| restart(self.samples[at].1)))
            .collect();
        (!chart.curves.is_empty()).then_some(chart)
    }

    /// Private and shared pages, where forked processes copied pages.
    fn sharing(&self) -> Option<Chart> {
        let matters = self.report.diagnosis.mechanism == Mechanism::CopyOnWrite;
        let note = "Shared pages become private when a forked process writes to them.";
        let quantities = [Quantity::Private, Quantity::Shared];
        matters.then(|| self.quantities("Private and shared pages", note, Unit::Bytes, &quantities)).flatten()
    }

    /// Memory pressure: how long processes waited for memory, as a share of the time.
    fn pressure(&self) -> Option<Chart> {
        /// Pressure is recorded in hundredths of a percent.
        const WHOLE: f64 = 10_000.0;
        let note = "Share of the last ten seconds in which some process waited for memory.";
        let mut chart = self.quantities("Memory pressure", note, Unit::Percent, &[Quantity::Pressure])?;
        chart.curves.iter_mut().flat_map(|curve| &mut curve.values).for_each(|value| *value /= WHOLE);
        Some(chart)
    }
}

/// Drops the places where none of a chart's quantities was measured: counts are rarer than samples, and their lines would
/// have more gaps than points.
fn drop_empty_places(chart: &mut Chart) {
    let is_known: Vec<bool> =
        (0..chart.places.len()).map(|at| chart.curves.iter().any(|curve| curve.values[at].is_finite())).collect();
    let known = |values: &[f64]| values.iter().zip(&is_known).filter(|kept| *kept.1).map(|kept| *kept.0).collect();
    for curve in &mut chart.curves {
        curve.values = known(&curve.values);
    }
    chart.places = known(&chart.places);
    for at in &mut chart.breaks {
        *at = is_known[..*at].iter().filter(|known| **known).count();
    }
    chart.breaks.retain(|&at| at > 0 && at < chart.places.len());
    chart.breaks.dedup();
}

fn restart(at: f64) -> Mark {
    Mark { name: "restart".into(), at, shape: Shape::Pin, ..Mark::default() }
}

fn attempt_name(index: usize) -> String {
    format!("attempt {}", index + 1)
}

/// A process in the legend: `python3 4711 training`.
fn process_name(track: &ProcessTrack) -> String {
    format!("{} {} {}", track.name, track.pid, track.role).trim().to_string()
}

/// The name of a quantity in the legend, where the trace's own name says too little.
fn quantity_name(quantity: Quantity) -> Option<&'static str> {
    match quantity {
        Quantity::Gpu => Some("processes"),
        Quantity::GpuUsed => Some("all processes"),
        Quantity::Available => Some("available"),
        Quantity::Group => Some("control group"),
        Quantity::DevShm => Some("/dev/shm"),
        Quantity::Pressure => Some("waiting for memory"),
        _ => None,
    }
}

/// The memory of several processes together at each sample.
fn levels_of(tracks: &[&ProcessTrack], samples: usize) -> Vec<u64> {
    let mut sums = vec![0_u64; samples];
    for track in tracks {
        let gone = track.gone.unwrap_or(samples).min(samples);
        let ends = track.levels.iter().skip(1).map(|level| level.0).chain([gone]);
        for (&(from, bytes), to) in track.levels.iter().zip(ends) {
            let range = from.min(gone)..to.clamp(from.min(gone), gone);
            sums[range].iter_mut().for_each(|sum| *sum = sum.saturating_add(bytes));
        }
    }
    sums
}

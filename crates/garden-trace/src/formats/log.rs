//! Training logs: any text with lines that show memory, as people print them.
//!
//! A line's numbers are found and named (`log/amounts.rs`, `log/labels.rs`), then combined here with the state from
//! earlier lines: the clock, the epoch, the banner, whether an evaluation is running. Lines without memory are not
//! counted as skipped; they are simply about something else. GPU memory, differences and the machine's free memory are
//! never taken for the process's memory.

mod amounts;
mod bars;
mod events;
mod facts;
mod labels;
mod line;
mod marks;
mod memo;
mod ranks;
mod tally;

use std::collections::HashMap;
use std::io::Read;

use garden_memory::{Activity, Event, EventKind, MIB, Quantity, RunFacts, Sample, Subject};

use super::{Contents, Head, Reader, Recognised, claim, explain_nothing};
use crate::ReadOptions;
use crate::amount::Amount;
use crate::columns::choice::ONLY_A_PEAK;
use crate::columns::names::is_of_kernel;
use crate::error::Error;
use crate::lines::{HeadLine, LineEnd, Lines};
use crate::reading::{BareColumn, Reading, TOO_LONG, TOO_MANY_SERIES, show_line};
use crate::series::identity::{Identity, Who};
use crate::time::Midnights;
use crate::unit::factor_name;
use crate::unit::rule::{Convention, KERNEL, LOGS, PSUTIL};

use amounts::Stamp;
use bars::Bars;
use facts::Facts;
use labels::Kind;
pub(crate) use line::strip_colours;
use line::{LogLine, Main, Parser};
use marks::Marks;
use tally::Tally;

/// Takes any text.
pub(super) fn recognise(_: &Head<'_>) -> Recognised {
    claim(TrainingLog)
}

struct TrainingLog;

impl Reader for TrainingLog {
    fn name(&self) -> &'static str {
        "training log"
    }

    fn read(&self, file: &mut Contents<'_>, reading: &mut Reading) -> Result<(), Error> {
        read(&mut file.lines, file.head, file.options, reading)?;
        if reading.is_empty() { Err(explain_nothing(file.head, file.options)) } else { Ok(()) }
    }
}

/// Reads the lines that show memory, and the events and facts between them.
fn read<R: Read>(
    lines: &mut Lines<R>,
    head: &[HeadLine],
    options: &ReadOptions,
    reading: &mut Reading,
) -> Result<(), Error> {
    let mut parser = Parser::new(options.column.as_deref());
    parser.look_ahead(head);
    let marks = Marks::of(&parser.lines_with_memory(head));
    let mut logs = Logs { factor: options.unit.map(|unit| unit.factor()), marks, ..Logs::default() };
    while let Some(line) = lines.next()? {
        if line.end == LineEnd::TooLong {
            reading.leave();
            reading.skip_line(TOO_LONG, line.number, || show_line(line.text));
            continue;
        }
        let parsed = parser.parse(line.text);
        logs.take(&parsed, line.number, reading);
    }
    logs.finish(reading);
    match &options.column {
        Some(_) if reading.is_empty() && parser.share.is_some() => {
            Err(Error::Share { column: parser.share.take().unwrap_or_default() })
        }
        Some(asked) if reading.is_empty() && !parser.labels.is_empty() => {
            Err(Error::NoSuchColumn { asked: asked.clone(), available: std::mem::take(&mut parser.labels) })
        }
        _ => Ok(()),
    }
}

/// Whether a line shows memory that the log reader would judge.
pub(crate) struct Scout(Parser);

impl Scout {
    pub(crate) fn new(options: &ReadOptions) -> Self {
        Scout(Parser::new(options.column.as_deref()))
    }

    pub(crate) fn shows_memory(&mut self, line: &str) -> bool {
        self.0.parse(line.as_bytes()).mains.iter().any(Option::is_some)
    }
}

/// Whether a line has an amount of memory or a percentage.
pub(crate) fn has_amount(line: &str) -> bool {
    let mut found = Vec::new();
    amounts::scan(&line.to_ascii_lowercase(), &mut found);
    found.iter().any(|number| number.factor.is_some() || number.kind == amounts::NumberKind::Percent)
}

/// The log reader for a listener: one line at a time, without memory values.
pub(crate) struct Hearing {
    parser: Parser,
    log: Log,
}

impl Default for Hearing {
    fn default() -> Self {
        Hearing { parser: Parser::new(None), log: Log::default() }
    }
}

impl Hearing {
    /// Takes in one line; returns its step and appends its events.
    pub(crate) fn take(&mut self, line: &[u8], events: &mut Vec<EventKind>) -> Option<f64> {
        let before = self.log.told_step.take();
        let parsed = self.parser.parse(line);
        let (mut told_events, shows_memory) = (Vec::new(), parsed.mains.iter().any(Option::is_some));
        self.log.take(&parsed, &mut told_events);
        if shows_memory {
            self.log.saw_sample(&parsed);
        }
        // The caller measures between any two lines.
        self.log.just_restarted = false;
        let told = self.log.told_step;
        self.log.told_step = told.or(before);
        events.extend(told_events.iter().map(|event| event.kind));
        told
    }

    /// All facts so far.
    pub(crate) fn facts(&self) -> RunFacts {
        self.log.facts.finish()
    }
}

/// The lines of a file, told apart by the rank that wrote them.
#[derive(Default)]
struct Logs {
    /// The lines that name no rank.
    shared: Log,
    ranks: Vec<(Identity, Log)>,
    /// Their places, by identity.
    places: HashMap<Identity, usize>,
    /// The series, by place among those of the reading, of each kind of memory.
    kinds: Vec<Kind>,
    tally: Tally,
    marks: Marks,
    /// The unit that the caller gave for numbers without one.
    factor: Option<u64>,
    bare: Option<BareColumn>,
    key: Vec<u8>,
}

impl Logs {
    fn take(&mut self, line: &LogLine<'_>, number: u64, reading: &mut Reading) {
        reading.leave();
        let identity = ranks::identity_of(line.lower, line.keywords.rank);
        let Some(identity) = identity.or_else(|| self.marks.identity_of(line.lower)) else {
            // What no rank claims is true for all of them.
            for (_, log) in &mut self.ranks {
                log.take(line, &mut Vec::new());
            }
            let mut events = Vec::new();
            let place = self.shared.take(line, &mut events);
            events.iter().for_each(|event| reading.push_event(event.kind, event.step, event.time_s));
            return self.take_memory(None, Shown { line, number, place }, reading);
        };
        let index = match self.places.get(&identity) {
            Some(&index) => index,
            None if self.ranks.len() >= MOST_RANKS => {
                return reading.skip_line(TOO_MANY_SERIES, number, || show_line(line.clean.as_bytes()));
            }
            None => {
                self.places.insert(identity.clone(), self.ranks.len());
                self.ranks.push((identity, self.shared.clone()));
                self.ranks.len() - 1
            }
        };
        let mut events = Vec::new();
        let place = self.ranks[index].1.take(line, &mut events);
        for event in &events {
            let of_rank =
                reading.series.iter_mut().filter(|series| series.identity.as_ref() == Some(&self.ranks[index].0));
            of_rank.for_each(|series| series.trace.push_event(event.kind, event.step, event.time_s));
        }
        self.take_memory(Some(index), Shown { line, number, place }, reading);
    }

    /// Adds the memory that a line shows to the series of its kinds.
    fn take_memory(&mut self, rank: Option<usize>, shown: Shown<'_>, reading: &mut Reading) {
        let line = shown.line;
        let is_shown = |kind: &Kind| line.mains[*kind as usize].is_some();
        let strong = || Kind::ALL.into_iter().filter(|kind| kind.is_strong()).filter(is_shown);
        let weak = if strong().next().is_none() { Kind::ALL.into_iter().find(is_shown) } else { None };
        let kinds = || strong().chain(weak);
        if kinds().next().is_none() {
            return;
        }
        self.tally.count(kinds(), shown.number, line.clean);
        for kind in kinds() {
            if kind == Kind::Device && line.gpus.len() > 1 {
                for (gpu, main) in &line.gpus {
                    self.take_sample(Of { rank, kind, gpu: Some(*gpu) }, main, shown, reading);
                }
            } else if let Some(main) = &line.mains[kind as usize] {
                let gpu = line.gpus.first().map(|(gpu, _)| *gpu).filter(|_| kind == Kind::Device);
                self.take_sample(Of { rank, kind, gpu }, main, shown, reading);
            }
        }
        self.log(rank).saw_sample(line);
    }

    fn log(&mut self, rank: Option<usize>) -> &mut Log {
        match rank {
            Some(index) => &mut self.ranks[index].1,
            None => &mut self.shared,
        }
    }

    fn take_sample(&mut self, of: Of, main: &Main, shown: Shown<'_>, reading: &mut Reading) {
        let Shown { line, number, .. } = shown;
        if !self.enter(of, reading) {
            return reading.skip_line(TOO_MANY_SERIES, number, || show_line(line.clean.as_bytes()));
        }
        let amount = Amount { value: main.value, factor: main.factor };
        let bytes = match amount.scaled(self.factor.unwrap_or(MIB)) {
            Ok(bytes) => bytes,
            Err(problem) => return reading.skip_line(problem.reason(), number, || show_line(line.clean.as_bytes())),
        };
        let sample = self.sample_of(of, bytes, shown);
        if !reading.trace().names.contains_key(&Quantity::Rss) {
            reading.name_main(&line.name_of(main));
            reading.trace().subject = subject_of(of.kind);
        }
        if main.factor.is_none() {
            self.saw_bare(line, main, number);
        }
        match main.factor.or(self.factor) {
            Some(factor) => {
                reading.saw_factor(factor);
                reading.push(&sample);
            }
            None => reading.push_bare(&sample, &[(Quantity::Rss, main.value)]),
        }
    }

    fn sample_of(&mut self, of: Of, bytes: u64, Shown { line, place, .. }: Shown<'_>) -> Sample {
        let mut sample = if of.kind == Kind::Device { Sample::default() } else { line.others.clone() };
        (sample.step, sample.time_s, sample.activity) = (place.step, place.time_s, place.activity);
        let log = self.log(of.rank);
        match of.kind {
            Kind::Device => log.device = Some(bytes),
            // DeepSpeed prints the GPU's memory on the line before.
            Kind::Machine => log.device.take().into_iter().for_each(|bytes| sample.set(Quantity::Gpu, bytes)),
            _ => {}
        }
        sample.set(Quantity::Rss, bytes);
        sample
    }

    fn saw_bare(&mut self, line: &LogLine<'_>, main: &Main, number: u64) {
        let bare = self.bare.get_or_insert_with(|| {
            let name = line.name_of(main);
            let convention = convention(&name, line.lower);
            BareColumn { convention, name, provisional: MIB, in_log: Some((0, number)) }
        });
        if let Some((count, _)) = &mut bare.in_log {
            *count += 1;
        }
    }

    /// Turns to the series of a rank's (or GPU's) memory of a kind; false if there are too many.
    fn enter(&mut self, Of { rank, kind, gpu }: Of, reading: &mut Reading) -> bool {
        let byte = |number: Option<usize>| number.map_or([0; 4], |number| (number as u32 + 1).to_le_bytes());
        self.key.clear();
        self.key.push(kind as u8);
        self.key.extend(byte(rank));
        self.key.extend(byte(gpu.map(|gpu| gpu as usize)));
        let of_rank = rank.map(|rank| self.ranks[rank].0.clone());
        let identity = || match (of_rank, gpu) {
            (rank, None) => rank,
            (None, Some(gpu)) => Some(Identity::of(Who::Gpu, gpu.to_string())),
            (Some(mut rank), Some(gpu)) => {
                rank.parts.extend(Identity::of(Who::Gpu, gpu.to_string()).parts);
                Some(rank)
            }
        };
        let is_entered = reading.enter_optional(&self.key, identity);
        // The first series is the reading's own, which a log does not use.
        self.kinds.resize(self.kinds.len().max(reading.series.len() - 1), kind);
        is_entered
    }

    /// Chooses the kind to judge, and leaves the others out.
    fn finish(self, reading: &mut Reading) {
        reading.leave();
        for series in &mut reading.series {
            let of_rank = series.identity.as_ref().and_then(|identity| self.places.get(identity));
            series.trace.facts = of_rank.map_or(&self.shared, |&index| &self.ranks[index].1).facts.finish();
        }
        let Some(judged) = self.tally.best() else { return };
        let mut kinds = std::iter::once(judged).chain(self.kinds);
        reading.series.retain(|_| kinds.next() == Some(judged));
        if matches!(judged, Kind::Peak | Kind::DevicePeak) {
            reading.note(format!("only a peak is shown, which never falls: {ONLY_A_PEAK}"));
        }
        self.tally.report(judged, reading);
        match (self.bare, self.factor) {
            (Some(bare), None) => reading.declare_bare(Quantity::Rss, bare),
            (Some(BareColumn { in_log: Some((count, first)), .. }), Some(factor)) => {
                let unit = factor_name(factor);
                reading
                    .note(format!("values without a unit are read as {unit} ({count} of them, first: line {first})"));
            }
            _ => {}
        }
    }
}

/// More ranks than any run has.
const MOST_RANKS: usize = 10_000;

fn subject_of(kind: Kind) -> Subject {
    match kind {
        Kind::Rss | Kind::Pss | Kind::Memory | Kind::Peak => Subject::Process,
        Kind::Machine => Subject::Machine,
        Kind::Device | Kind::DevicePeak => Subject::Device,
    }
}

/// Who writes numbers under such a label, in such a line in lower case.
fn convention(label: &str, line: &str) -> Convention {
    match () {
        _ if is_of_kernel(label) => KERNEL,
        // What `psutil.Process().memory_info()` looks like in print.
        _ if line.contains("pmem(rss=") => PSUTIL,
        _ => LOGS,
    }
}

/// Whose memory it is, and of which kind.
#[derive(Clone, Copy)]
struct Of {
    rank: Option<usize>,
    kind: Kind,
    gpu: Option<u32>,
}

/// A line, its number, and where in the run it stands.
#[derive(Clone, Copy)]
struct Shown<'a> {
    line: &'a LogLine<'a>,
    number: u64,
    place: Place,
}

/// Where in the run a line stands.
#[derive(Clone, Copy, Default)]
struct Place {
    step: Option<f64>,
    time_s: Option<f64>,
    activity: Activity,
}

/// The source of a log's times; the first one seen stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TimeSource {
    Date,
    Clock,
    Elapsed,
    Bar,
}

/// The state from earlier lines.
#[derive(Clone, Default)]
struct Log {
    facts: Facts,
    time_source: Option<TimeSource>,
    midnights: Midnights,
    last_step: Option<f64>,
    // The last step of any line, for memory values on a separate line.
    told_step: Option<f64>,
    last_epoch: Option<f64>,
    // Added to steps that restart with each epoch.
    step_offset: f64,
    bars: Bars,
    // The step at which the running evaluation began.
    evaluating: Option<f64>,
    // The GPU's memory on an earlier line.
    device: Option<u64>,
    // The step of the present line's memory.
    memory_step: Option<f64>,
    // Whether nothing was measured since the last restart.
    just_restarted: bool,
}

impl Log {
    /// Takes in a line; returns where memory that it shows stands in the run.
    fn take(&mut self, line: &LogLine<'_>, events: &mut Vec<Event>) -> Place {
        if events::begins_training(line.lower, line.keywords) {
            self.facts.in_evaluation = false;
        }
        let step = self.global_step(line);
        let time_s = self.time_of(line);
        if let Some(kind) = events::event_in(line.lower, line.keywords) {
            self.take_event(kind, step, time_s, events);
        }
        self.facts.take(line, step.or(line.bar_step()).or(self.last_step));
        if let Some(step) = step
            && self.evaluating.is_some_and(|begun| step > begun)
        {
            self.end_evaluation();
        }
        // Many programs print the step on one line and the memory on the next.
        let bar = self.training_bar(line);
        let told = step.or(bar);
        self.told_step = told.or(self.told_step);
        self.memory_step = step.or(line.bar_step()).or(self.told_step);
        let in_evaluation = self.evaluating.is_some() || events::is_evaluation_line(line.lower, line.keywords);
        let activity = if in_evaluation { Activity::Eval } else { Activity::Train };
        self.last_step = step.or(self.last_step);
        self.last_epoch = line.epoch.map(|(epoch, _)| epoch).or(self.last_epoch);
        Place { step: self.memory_step, time_s, activity }
    }

    /// Learns from the fact that a line shows memory.
    fn saw_sample(&mut self, line: &LogLine<'_>) {
        self.facts.saw_total(line.total_steps());
        self.last_step = self.memory_step.or(self.last_step);
        self.just_restarted = false;
    }

    /// The step of a bar that counts training steps.
    fn training_bar(&mut self, line: &LogLine<'_>) -> Option<f64> {
        let told = self.bars.take(line, self.facts.stated_total().map(|total| total as f64))?;
        if let Some(steps) = told.epoch_steps {
            self.facts.steps_of_an_epoch(steps, line.epoch.and_then(|(_, epochs)| epochs));
        }
        self.evaluating.is_none().then_some(told.step)
    }

    /// The line's step; where steps restart with each epoch, the steps of the earlier epochs are added.
    fn global_step(&mut self, line: &LogLine<'_>) -> Option<f64> {
        let (step, of) = line.step?;
        let epoch_rose = match (self.last_epoch, line.epoch) {
            (Some(before), Some((now, _))) => now.floor() > before.floor(),
            _ => false,
        };
        if let Some(of) = of {
            let went_back = self.last_step.is_some_and(|last| step + self.step_offset <= last);
            if epoch_rose && went_back && of >= step {
                self.step_offset += of;
                self.facts.steps_of_an_epoch(of, line.epoch.and_then(|(_, epochs)| epochs));
            }
        }
        Some(step + self.step_offset)
    }

    fn time_of(&mut self, line: &LogLine<'_>) -> Option<f64> {
        let found = match (line.stamp, line.elapsed, line.bar) {
            (Some(Stamp::Date(seconds)), ..) => Some((TimeSource::Date, seconds)),
            (Some(Stamp::Clock(seconds)), ..) => Some((TimeSource::Clock, seconds)),
            (None, Some(seconds), _) => Some((TimeSource::Elapsed, seconds)),
            (None, None, Some(bar)) => Some((TimeSource::Bar, bar.elapsed)),
            _ => None,
        };
        let (source, seconds) = found?;
        // The first memory line decides which clock counts; before it, nothing needs a time.
        if self.time_source.is_none() && line.mains.iter().any(Option::is_some) {
            self.time_source = Some(source);
        }
        let counts = self.time_source.is_none_or(|chosen| chosen == source);
        let seconds = if source == TimeSource::Clock && counts { self.midnights.unroll(seconds) } else { seconds };
        counts.then_some(seconds)
    }

    fn take_event(&mut self, kind: EventKind, step: Option<f64>, time_s: Option<f64>, events: &mut Vec<Event>) {
        let step = step.or(self.last_step);
        match kind {
            EventKind::Restart => {
                if std::mem::replace(&mut self.just_restarted, true) {
                    return;
                }
                (self.last_step, self.told_step, self.last_epoch, self.step_offset) = (None, None, None, 0.0);
                self.bars = Bars::default();
                self.end_evaluation();
            }
            EventKind::EvalStart => {
                self.evaluating = Some(step.unwrap_or(f64::NEG_INFINITY));
                self.facts.in_evaluation = true;
            }
            EventKind::EvalEnd if self.evaluating.is_none() => return,
            EventKind::EvalEnd => self.end_evaluation(),
            _ => {}
        }
        events.push(Event { kind, before_sample: 0, step, time_s });
    }

    fn end_evaluation(&mut self) {
        self.evaluating = None;
        self.facts.in_evaluation = false;
    }
}

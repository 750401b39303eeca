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
mod memo;

use std::io::Read;

use garden_memory::{Activity, EventKind, MIB, Quantity, RunFacts};

use crate::ReadOptions;
use crate::amount::Amount;
use crate::error::Error;
use crate::lines::{HeadLine, LineEnd, Lines};
use crate::reading::{Reading, TOO_LONG, show_line};
use crate::time::Midnights;
use crate::unit::factor_name;

use amounts::Stamp;
use bars::Bars;
use facts::Facts;
use labels::Kind;
use line::{LogLine, Main, Parser};

/// Reads the lines that show memory, and the events and facts between them.
pub(crate) fn read<R: Read>(
    lines: &mut Lines<R>,
    head: &[HeadLine],
    options: &ReadOptions,
    reading: &mut Reading,
) -> Result<(), Error> {
    let mut parser = Parser::new(options.column.as_deref());
    let default_factor = options.unit.map_or(MIB, |unit| unit.factor());
    let mut log = Log { judged: judged_kind(&mut parser, head), default_factor, ..Log::default() };
    while let Some(line) = lines.next()? {
        if line.end == LineEnd::TooLong {
            reading.skip_line(TOO_LONG, line.number, || show_line(line.text));
            continue;
        }
        let parsed = parser.parse(line.text);
        log.take(&parsed, line.number, reading);
    }
    log.finish(reading);
    match &options.column {
        Some(asked) if reading.trace.is_empty() && !parser.labels.is_empty() => {
            Err(Error::NoSuchColumn { asked: asked.clone(), available: std::mem::take(&mut parser.labels) })
        }
        _ => Ok(()),
    }
}

/// The log reader for a listener: one line at a time, without memory values.
pub(crate) struct Hearing {
    parser: Parser,
    log: Log,
    reading: Reading,
}

impl Default for Hearing {
    fn default() -> Self {
        Hearing { parser: Parser::new(None), log: Log::default(), reading: Reading::new("output") }
    }
}

impl Hearing {
    /// Takes in one line; returns its step and appends its events.
    pub(crate) fn take(&mut self, line: &[u8], events: &mut Vec<EventKind>) -> Option<f64> {
        let before = self.log.told_step.take();
        let parsed = self.parser.parse(line);
        self.log.take(&parsed, 0, &mut self.reading);
        let told = self.log.told_step;
        self.log.told_step = told.or(before);
        events.extend(self.reading.trace.events.iter().map(|event| event.kind));
        // Only steps and events matter here; the samples of a long run must not pile up.
        self.reading = Reading::new("output");
        told
    }

    /// All facts so far.
    pub(crate) fn facts(&self) -> RunFacts {
        self.log.facts.finish()
    }
}

/// Which kind of label to judge where a log has several: the best one that is not rare in the first 64 KiB.
fn judged_kind(parser: &mut Parser, head: &[HeadLine]) -> Option<Kind> {
    let mut counts = [0usize; 3];
    for line in head {
        let parsed = parser.parse(line.text.as_bytes());
        for (count, main) in counts.iter_mut().zip(&parsed.mains) {
            *count += usize::from(main.is_some());
        }
    }
    let most = counts.iter().copied().max().filter(|&most| most > 0)?;
    let kinds = [Kind::Rss, Kind::Pss, Kind::Memory];
    kinds.into_iter().zip(counts).find(|(_, count)| 4 * count >= most).map(|(kind, _)| kind)
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
#[derive(Default)]
struct Log {
    judged: Option<Kind>,
    default_factor: u64,
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
    bare_values: usize,
    first_bare: u64,
}

impl Log {
    fn take(&mut self, line: &LogLine<'_>, number: u64, reading: &mut Reading) {
        if events::begins_training(line.lower, line.keywords) {
            self.facts.in_evaluation = false;
        }
        let step = self.global_step(line);
        let time = self.time_of(line);
        if let Some(kind) = events::event_in(line.lower, line.keywords) {
            self.take_event(kind, step, time, reading);
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
        if let Some(main) = self.choose(line) {
            self.take_sample(main, line, step.or(line.bar_step()).or(self.told_step), time, number, reading);
        } else if line.mains.iter().any(Option::is_some) {
            reading.skip_line("a different kind of memory than the one judged", number, || {
                show_line(line.clean.as_bytes())
            });
        }
        self.last_step = step.or(self.last_step);
        self.last_epoch = line.epoch.map(|(epoch, _)| epoch).or(self.last_epoch);
    }

    fn choose<'a>(&mut self, line: &'a LogLine<'_>) -> Option<&'a Main> {
        let best = [Kind::Rss, Kind::Pss, Kind::Memory].into_iter().find(|&kind| line.mains[kind as usize].is_some());
        let judged = *self.judged.get_or_insert(best?);
        line.mains[judged as usize].as_ref()
    }

    fn take_sample(
        &mut self,
        main: &Main,
        line: &LogLine<'_>,
        step: Option<f64>,
        time_s: Option<f64>,
        number: u64,
        reading: &mut Reading,
    ) {
        let amount = Amount { value: main.value, factor: main.factor };
        let bytes = match amount.scaled(self.default_factor) {
            Ok(bytes) => bytes,
            Err(problem) => return reading.skip_line(problem.reason(), number, || show_line(line.clean.as_bytes())),
        };
        if main.factor.is_none() {
            self.bare_values += 1;
            self.first_bare = if self.bare_values == 1 { number } else { self.first_bare };
        }
        let mut sample = line.others.clone();
        (sample.step, sample.time_s) = (step, time_s);
        let in_evaluation = self.evaluating.is_some() || events::is_evaluation_line(line.lower, line.keywords);
        sample.activity = if in_evaluation { Activity::Eval } else { Activity::Train };
        sample.set(Quantity::Rss, bytes);
        if !reading.trace.names.contains_key(&Quantity::Rss) {
            reading.name_main(&line.name_of(main));
        }
        reading.saw_factor(main.factor.unwrap_or(self.default_factor));
        reading.trace.push(&sample);
        self.facts.saw_total(line.total_steps());
        self.last_step = sample.step.or(self.last_step);
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

    fn take_event(&mut self, kind: EventKind, step: Option<f64>, time: Option<f64>, reading: &mut Reading) {
        let step = step.or(self.last_step);
        match kind {
            EventKind::Restart => {
                let nothing_since = reading.trace.events.last().is_some_and(|event| {
                    event.kind == EventKind::Restart && event.before_sample == reading.trace.len()
                });
                if nothing_since {
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
        reading.trace.push_event(kind, step, time);
    }

    fn end_evaluation(&mut self) {
        self.evaluating = None;
        self.facts.in_evaluation = false;
    }

    fn finish(&self, reading: &mut Reading) {
        reading.trace.facts = self.facts.finish();
        if self.bare_values > 0 {
            reading.note(format!(
                "values without a unit are read as {} ({} of them, first: line {}); `--unit` overrides",
                factor_name(self.default_factor),
                self.bare_values,
                self.first_bare
            ));
        }
    }
}

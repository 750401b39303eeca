//! One series of samples being read: its trace, the numbers whose unit is decided last, and what was skipped.

pub(crate) mod ends;
pub(crate) mod identity;
pub(crate) mod mixed;
pub(crate) mod several;
pub(crate) mod skips;

use garden_memory::{EventKind, GIB, KIB, MIB, Quantity, Sample, TIB, Trace};

use crate::amount::{Amount, Problem};
use crate::series::identity::Identity;
use crate::series::skips::Skips;
use crate::unit::{PAGE, factor_name};

/// A number that states no unit, as read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bare {
    pub(crate) sample: usize,
    pub(crate) quantity: Quantity,
    pub(crate) value: f64,
}

/// A limit that the tool prints beside the memory.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Limit<T> {
    #[default]
    Unknown,
    Constant(T),
    Varies,
}

impl<T: Copy + PartialEq> Limit<T> {
    fn saw(&mut self, value: T) {
        *self = match *self {
            Limit::Unknown => Limit::Constant(value),
            Limit::Constant(before) if before == value => *self,
            _ => Limit::Varies,
        };
    }
}

/// One series.
#[derive(Clone, Debug, Default)]
pub(crate) struct Series {
    pub(crate) trace: Trace,
    pub(crate) identity: Option<Identity>,
    /// The format, where a file holds the output of several tools.
    pub(crate) format: Option<&'static str>,
    pub(crate) bare: Vec<Bare>,
    pub(crate) skips: Skips,
    pub(crate) notes: Vec<String>,
    /// The limit in bytes.
    pub(crate) limit: Limit<u64>,
    /// The limit as printed, in the unit that is decided for the judged column.
    pub(crate) bare_limit: Limit<f64>,
    /// One bit per power of 1024 used as the unit of a main value.
    pub(crate) factors: u64,
    /// The rows of the file at which it began and ended, for telling series side by side from one after the other.
    pub(crate) rows: Option<(u64, u64)>,
}

impl Series {
    /// Adds a sample; `bare` are its numbers without a unit.
    pub(crate) fn push(&mut self, sample: &Sample, bare: &[(Quantity, f64)], row: u64) {
        let index = self.trace.len();
        self.bare.extend(bare.iter().map(|&(quantity, value)| Bare { sample: index, quantity, value }));
        self.trace.push(sample);
        self.rows = Some((self.rows.map_or(row, |(first, _)| first), row));
    }

    /// Records the unit of a value of the main column.
    pub(crate) fn saw_factor(&mut self, factor: u64) {
        self.factors |= factor_bit(factor);
    }

    /// Records the limit printed beside a sample.
    pub(crate) fn saw_limit(&mut self, bytes: u64) {
        self.limit.saw(bytes);
    }

    /// Records a limit that states no unit.
    pub(crate) fn saw_bare_limit(&mut self, value: f64) {
        self.bare_limit.saw(value);
    }

    /// Gives the limit that states no unit the unit of the judged column.
    pub(crate) fn settle_limit(&mut self, factor: u64) {
        if let Limit::Constant(value) = self.bare_limit
            && let Ok(bytes) = (Amount { value, factor: None }).scaled(factor)
        {
            self.saw_limit(bytes);
        }
    }

    /// Adds a note, once.
    pub(crate) fn note(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }

    /// The highest judged value.
    pub(crate) fn peak(&self) -> u64 {
        (0..self.trace.len()).filter_map(|index| self.trace.value(index, Quantity::Rss)).max().unwrap_or(0)
    }

    /// Gives bare numbers their unit: `factor` is that of a quantity, or `None` to leave its numbers out.
    ///
    /// Returns how many samples lost their judged value and were dropped.
    pub(crate) fn scale(&mut self, factor: impl Fn(Quantity) -> Option<u64>) -> usize {
        let bare = std::mem::take(&mut self.bare);
        let mut next = bare.iter().peekable();
        let mut dropped = 0;
        self.rebuild(|index, sample| {
            while let Some(number) = next.next_if(|number| number.sample == index) {
                let scaled = factor(number.quantity)
                    .ok_or(Problem::Missing)
                    .and_then(|factor| Amount { value: number.value, factor: None }.scaled(factor));
                match scaled {
                    Ok(bytes) => sample.set(number.quantity, bytes),
                    Err(_) if number.quantity == Quantity::Rss => {
                        dropped += 1;
                        return false;
                    }
                    Err(_) => {}
                }
            }
            true
        });
        dropped
    }

    /// Builds the trace again from the samples that `keep` accepts, perhaps changed.
    pub(crate) fn rebuild(&mut self, mut keep: impl FnMut(usize, &mut Sample) -> bool) {
        let old = std::mem::take(&mut self.trace);
        // Where each old sample is now, for the events between them.
        let mut places = Vec::with_capacity(old.len() + 1);
        for index in 0..old.len() {
            places.push(self.trace.len());
            let mut sample = old.sample(index);
            if keep(index, &mut sample) {
                self.trace.push(&sample);
            }
        }
        places.push(self.trace.len());
        self.trace.events.clone_from(&old.events);
        for event in &mut self.trace.events {
            event.before_sample = places[event.before_sample.min(places.len() - 1)];
        }
        self.keep_surroundings(old);
    }

    /// Takes over what a trace has beside its samples and events.
    fn keep_surroundings(&mut self, old: Trace) {
        (self.trace.facts, self.trace.subject, self.trace.origin) = (old.facts, old.subject, old.origin);
        (self.trace.processes, self.trace.libraries, self.trace.names) = (old.processes, old.libraries, old.names);
    }

    /// Puts the samples in another order; events, whose places mean nothing then, are left out.
    pub(crate) fn reorder(&mut self, order: &[usize]) {
        let old = std::mem::take(&mut self.trace);
        for &index in order {
            self.trace.push(&old.sample(index));
        }
        self.keep_surroundings(old);
    }

    /// Turns the order of the samples round.
    pub(crate) fn reverse(&mut self) {
        let old = std::mem::take(&mut self.trace);
        for index in (0..old.len()).rev() {
            self.trace.push(&old.sample(index));
        }
        let turned = |event: &garden_memory::Event| garden_memory::Event {
            before_sample: old.len().saturating_sub(event.before_sample),
            ..*event
        };
        self.trace.events = old.events.iter().rev().map(turned).collect();
        self.keep_surroundings(old);
    }

    /// Appends a later series of the same thing, after a restart.
    pub(crate) fn append(&mut self, other: Series) {
        self.trace.push_event(EventKind::Restart, None, None);
        let offset = self.trace.len();
        for index in 0..other.trace.len() {
            self.trace.push(&other.trace.sample(index));
        }
        let moved = other.trace.events.into_iter().map(|mut event| {
            event.before_sample += offset;
            event
        });
        self.trace.events.extend(moved);
        self.factors |= other.factors;
        self.skips.extend(other.skips);
        other.notes.into_iter().for_each(|note| self.note(note));
        if let Limit::Constant(bytes) = other.limit {
            self.saw_limit(bytes);
        }
        self.rows = self.rows.zip(other.rows).map(|((first, _), (_, last))| (first, last));
    }

    /// Marks a restart before a sample, unless one is marked there.
    pub(crate) fn mark_restart(&mut self, before_sample: usize) {
        let events = &mut self.trace.events;
        if events.iter().any(|event| event.kind == EventKind::Restart && event.before_sample == before_sample) {
            return;
        }
        let place = events.partition_point(|event| event.before_sample <= before_sample);
        let restart = garden_memory::Event { kind: EventKind::Restart, before_sample, step: None, time_s: None };
        events.insert(place, restart);
    }
}

/// The units of main values, by their bits.
const FACTORS: [u64; 6] = [1, KIB, MIB, GIB, TIB, PAGE];

/// The factor of the only unit seen, if it is the only one.
pub(crate) fn only_factor(factors: u64) -> Option<u64> {
    (factors.count_ones() == 1).then(|| FACTORS[factors.trailing_zeros() as usize])
}

fn factor_bit(factor: u64) -> u64 {
    let bit = FACTORS.iter().position(|&known| known == factor).unwrap_or(0);
    1 << bit
}

/// The units of the main values, for people.
pub(crate) fn unit_text(factors: u64) -> Option<String> {
    let named: Vec<&str> =
        (0..FACTORS.len()).filter(|bit| factors >> bit & 1 == 1).map(|bit| factor_name(FACTORS[bit])).collect();
    match named.as_slice() {
        [] => None,
        [one] => Some((*one).to_string()),
        several => Some(format!("mixed: {}", several.join(", "))),
    }
}

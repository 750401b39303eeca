//! A file being read: the samples so far, each in the series it belongs to, and a count of everything unusable.
//!
//! Readers call [`Reading::enter`] with the identity of a row before they push its sample; a reader of a format without
//! identities never does, and all its samples are one series. Units that no row states are decided at the end, from all
//! rows (`unit/rule.rs`).

use std::collections::{BTreeMap, HashMap};

use garden_memory::{Bytes, EventKind, GIB, Input, MIB, Quantity, RunFacts, Sample, Subject, TIB, Trace};

use crate::error::Error;
use crate::formats::nvidia_smi;
use crate::series::identity::Identity;
use crate::series::skips::{Part, Skips};
use crate::series::{Limit, Series, ends, mixed, only_factor, several, unit_text};
use crate::time::Times;
use crate::unit::rule::{Convention, Decision, Evidence, decide, decide_by_total};
use crate::{ReadOptions, ReadTrace};

pub(crate) use crate::series::skips::{TOO_LONG, show_line, show_value};

/// Most series of one file; more would be a column of ever new values.
const MOST_SERIES: usize = 10_000;

/// Ends each value in the key of a row's identity.
pub(crate) const KEY_END: u8 = 0x1f;
/// The reason given for rows of further series.
pub(crate) const TOO_MANY_SERIES: &str = "more than 10,000 series";

/// How the numbers of a column that state no unit get one.
#[derive(Clone, Debug)]
pub(crate) struct BareColumn {
    /// The column's name, or the label in a log.
    pub(crate) name: String,
    pub(crate) convention: Convention,
    /// The factor with which its samples were pushed.
    pub(crate) provisional: u64,
    /// In a log: how many values have no unit, and the line of the first.
    pub(crate) in_log: Option<(usize, u64)>,
}

/// What it means that the identities of a file follow each other in blocks and never alternate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Blocks {
    /// Several series, one below the other.
    #[default]
    Series,
    /// One series that was restarted, as long as its clock runs on.
    Restarts,
}

/// Who wrote a file, where that says how it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// We did: units, times and ends are certain.
    Own,
    /// nvidia-smi, whose rows of one moment are one for each GPU.
    NvidiaSmi,
    /// Another program or a person.
    Foreign,
}

/// The state filled in by every reader.
pub(crate) struct Reading {
    format: &'static str,
    origin: Origin,
    pub(crate) blocks: Blocks,
    /// Series whose peak never exceeds this are left out, if others do.
    pub(crate) least_peak: Option<u64>,
    /// The names of columns, for all series.
    pub(crate) names: BTreeMap<Quantity, String>,
    /// The first one has no identity.
    pub(crate) series: Vec<Series>,
    /// The forms of the times.
    pub(crate) times: Times,
    bare: BTreeMap<Quantity, BareColumn>,
    notes: Vec<String>,
    skips: Skips,
    places: HashMap<Box<[u8]>, usize>,
    // The series of the present row; none where the row belongs to all of them.
    scope: Option<usize>,
    // The series entered last, and its key.
    last: Option<usize>,
    last_key: Vec<u8>,
    rows: u64,
}

impl Reading {
    pub(crate) fn new(format: &'static str, origin: Origin) -> Self {
        Reading {
            format,
            origin,
            blocks: Blocks::default(),
            least_peak: None,
            names: BTreeMap::new(),
            series: vec![Series::default()],
            times: Times::default(),
            bare: BTreeMap::new(),
            notes: Vec::new(),
            skips: Skips::default(),
            places: HashMap::new(),
            scope: None,
            last: None,
            last_key: Vec::new(),
            rows: 0,
        }
    }

    /// Turns to the series of a key; `identity` is called for a new one. False if there are too many series.
    pub(crate) fn enter(&mut self, key: &[u8], identity: impl FnOnce() -> Identity) -> bool {
        self.enter_optional(key, || Some(identity()))
    }

    /// Turns to the series of a key, which may have no identity.
    pub(crate) fn enter_optional(&mut self, key: &[u8], identity: impl FnOnce() -> Option<Identity>) -> bool {
        // Most files with an identity have one series, whose key never changes.
        if self.last.is_some() && self.last_key == key {
            self.scope = self.last;
            return true;
        }
        let place = match self.places.get(key) {
            Some(&place) => place,
            None if self.series.len() > MOST_SERIES => {
                self.scope = None;
                return false;
            }
            None => {
                let mut series = Series { identity: identity(), ..Series::default() };
                // What happened before its first sample happened to all.
                series.trace.events.clone_from(&self.series[0].trace.events);
                series.trace.events.iter_mut().for_each(|event| event.before_sample = 0);
                self.series.push(series);
                self.places.insert(key.into(), self.series.len() - 1);
                self.series.len() - 1
            }
        };
        (self.scope, self.last) = (Some(place), Some(place));
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        true
    }

    /// Turns to what all series share.
    pub(crate) fn leave(&mut self) {
        self.scope = None;
    }

    /// The present series.
    pub(crate) fn current(&mut self) -> &mut Series {
        let place = self.scope.unwrap_or(0);
        &mut self.series[place]
    }

    /// The place of the present series among all.
    pub(crate) fn place(&self) -> usize {
        self.scope.unwrap_or(0)
    }

    /// The present series' trace.
    pub(crate) fn trace(&mut self) -> &mut Trace {
        &mut self.current().trace
    }

    /// Whether no series has a sample.
    pub(crate) fn is_empty(&self) -> bool {
        self.series.iter().all(|series| series.trace.is_empty())
    }

    /// Adds a sample to the present series.
    pub(crate) fn push(&mut self, sample: &Sample) {
        self.push_bare(sample, &[]);
    }

    /// Adds a sample with numbers that state no unit; the sample has them by the provisional factor.
    pub(crate) fn push_bare(&mut self, sample: &Sample, bare: &[(Quantity, f64)]) {
        self.rows += 1;
        let row = self.rows;
        self.current().push(sample, bare, row);
    }

    /// Adds an event to the present series, or to all of them.
    pub(crate) fn push_event(&mut self, kind: EventKind, step: Option<f64>, time_s: Option<f64>) {
        match self.scope {
            Some(place) => self.series[place].trace.push_event(kind, step, time_s),
            None => self.series.iter_mut().for_each(|series| series.trace.push_event(kind, step, time_s)),
        }
    }

    /// Changes the facts of all series.
    pub(crate) fn learn(&mut self, change: impl Fn(&mut RunFacts)) {
        self.series.iter_mut().for_each(|series| change(&mut series.trace.facts));
    }

    /// Declares a column whose numbers state no unit.
    pub(crate) fn declare_bare(&mut self, quantity: Quantity, column: BareColumn) {
        self.bare.insert(quantity, column);
    }

    /// Adds a note, once.
    pub(crate) fn note(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }

    /// Counts an unusable line; `detail` shows the first one of its kind.
    pub(crate) fn skip_line(&mut self, reason: &'static str, line: u64, detail: impl FnOnce() -> String) {
        self.skips_here().add(Part::Line, reason, line, detail);
    }

    /// Counts an unusable value in a usable line.
    pub(crate) fn skip_value(&mut self, reason: &'static str, line: u64, detail: impl FnOnce() -> String) {
        self.skips_here().add(Part::Value, reason, line, detail);
    }

    /// Counts several unusable lines of one kind.
    pub(crate) fn skip_lines(&mut self, reason: &'static str, count: usize, first: String) {
        self.skips_here().add_lines(reason, count, first);
    }

    fn skips_here(&mut self) -> &mut Skips {
        match self.scope {
            Some(place) => &mut self.series[place].skips,
            None => &mut self.skips,
        }
    }

    /// Records the unit of a value of the main column.
    pub(crate) fn saw_factor(&mut self, factor: u64) {
        self.current().saw_factor(factor);
    }

    /// Sets the file's name for the main column of the present series.
    pub(crate) fn name_main(&mut self, name: &str) {
        self.trace().names.insert(Quantity::Rss, name.to_string());
    }

    /// Ends the reading: units, restarts and ends are decided, and each series becomes a trace.
    pub(crate) fn finish(mut self, options: &ReadOptions) -> Result<Vec<ReadTrace>, Error> {
        self.drop_empty();
        self.settle_units(options)?;
        if self.origin != Origin::Own {
            let notes = self.times.settle(&mut self.series);
            notes.into_iter().for_each(|note| self.note(note));
        }
        // Other programs print bursts of lines about one GPU.
        if self.origin == Origin::NvidiaSmi {
            nvidia_smi::split_by_place(&mut self.series);
        }
        several::join_restarts(&mut self.series, self.blocks);
        if self.origin != Origin::Own {
            self.series.iter_mut().for_each(ends::settle);
        }
        if let [only] = self.series.as_mut_slice()
            && self.origin != Origin::Own
        {
            mixed::note(&only.trace).into_iter().for_each(|note| only.note(note));
        }
        let notes = several::leave_out(&mut self.series, self.least_peak);
        self.notes.extend(notes);
        let names = several::names(&self.series);
        let chosen = several::select(&names, &self.series, options.select.as_deref())?;
        let series = std::mem::take(&mut self.series).into_iter().zip(names);
        let chosen = series.enumerate().filter(|(place, _)| chosen.is_none_or(|chosen| chosen == *place));
        Ok(chosen.map(|(_, (series, name))| self.finish_series(series, name, options)).collect())
    }

    /// Drops series without a sample, except the only one; what they skipped counts for all.
    fn drop_empty(&mut self) {
        let keep_first = self.is_empty();
        let mut kept = Vec::new();
        for (place, series) in std::mem::take(&mut self.series).into_iter().enumerate() {
            if !series.trace.is_empty() || (keep_first && place == 0) {
                kept.push(series);
            } else {
                self.skips.extend(series.skips);
            }
        }
        self.series = kept;
    }

    fn finish_series(&self, mut series: Series, name: Option<String>, options: &ReadOptions) -> ReadTrace {
        if self.origin != Origin::Own {
            series.notes.extend(implausible(&series, options));
        }
        let (format, factors) = (series.format.unwrap_or(self.format), series.factors);
        let mut trace = series.trace;
        for (quantity, name) in &self.names {
            trace.names.entry(*quantity).or_insert_with(|| name.clone());
        }
        if let Limit::Constant(bytes) = series.limit {
            trace.facts.memory_limit.get_or_insert(Bytes(bytes));
        }
        let mut skips = self.skips.clone();
        skips.extend(series.skips);
        let mut notes = self.notes.clone();
        notes.extend(series.notes);
        notes.extend(skips.notes());
        let input = Input {
            format: format.to_string(),
            samples: trace.len(),
            column: trace.names.get(&Quantity::Rss).cloned(),
            judged: None,
            unit: unit_text(factors),
            skipped: skips.count(),
            notes,
        };
        ReadTrace { trace, input, name }
    }

    /// Decides the unit of the numbers that state none, from all rows.
    fn settle_units(&mut self, options: &ReadOptions) -> Result<(), Error> {
        let columns = std::mem::take(&mut self.bare);
        let mut factors: BTreeMap<Quantity, Option<u64>> = BTreeMap::new();
        if let Some(main) = columns.get(&Quantity::Rss)
            && self.has_bare(Quantity::Rss)
        {
            let factor = self.settle_main(main, options)?;
            factors.insert(Quantity::Rss, factor);
        }
        for (quantity, column) in columns.iter().filter(|(quantity, _)| **quantity != Quantity::Rss) {
            if self.has_bare(*quantity) {
                let factor = self.settle_side(*quantity, column, factors.get(&Quantity::Rss).copied().flatten());
                factors.insert(*quantity, Some(factor));
            }
        }
        let provisional = |quantity: Quantity| columns.get(&quantity).map(|column| column.provisional);
        let changed = factors.iter().any(|(quantity, factor)| *factor != provisional(*quantity));
        for series in &mut self.series {
            if let (Some(Some(factor)), true) =
                (factors.get(&Quantity::Rss), series.bare.iter().any(|bare| bare.quantity == Quantity::Rss))
            {
                series.saw_factor(*factor);
            }
            factors.get(&Quantity::Rss).copied().flatten().iter().for_each(|&factor| series.settle_limit(factor));
            if changed {
                let first = series.bare.first().map_or(0.0, |bare| bare.value);
                let dropped = series.scale(|quantity| factors.get(&quantity).copied().flatten());
                series.skips.add_lines("value without a unit", dropped, format!("`{first}`"));
            }
        }
        Ok(())
    }

    fn has_bare(&self, quantity: Quantity) -> bool {
        self.series.iter().any(|series| series.bare.iter().any(|bare| bare.quantity == quantity))
    }

    /// The factor of the judged column's bare numbers; none if they cannot be told while others state a unit.
    fn settle_main(&mut self, column: &BareColumn, options: &ReadOptions) -> Result<Option<u64>, Error> {
        let evidence = self.evidence(Quantity::Rss);
        let machine = self.known_limit(options);
        let by_total = self.bare_total().and_then(|total| decide_by_total(&evidence, total, machine));
        match by_total.map_or_else(|| decide(&column.name, &evidence, column.convention, machine), Ok) {
            Ok(decision) => {
                self.note(note_of(column, &decision));
                Ok(Some(decision.unit.factor()))
            }
            Err(_) if self.series.iter().any(|series| series.factors != 0) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The factor of a column beside the judged one: the same unit, unless it is another device's or only its own fits.
    fn settle_side(&mut self, quantity: Quantity, column: &BareColumn, main: Option<u64>) -> u64 {
        let fallback = main.or_else(|| self.only_factor()).unwrap_or(MIB);
        let shares = main.is_some() && quantity != Quantity::Gpu;
        let limit = Some(Bytes(self.series.iter().map(Series::peak).max().unwrap_or(0).max(GIB)));
        let own = || decide(&column.name, &self.evidence(quantity), Convention::None, limit).ok();
        let decided = if shares { None } else { own() };
        let factor = decided.map_or(fallback, |decision| decision.unit.factor());
        let unit = crate::unit::factor_name(factor);
        self.note(format!("column `{}` has no unit: read as {unit}; `--unit` overrides", column.name));
        factor
    }

    fn only_factor(&self) -> Option<u64> {
        let factors = self.series.iter().fold(0, |all, series| all | series.factors);
        only_factor(factors)
    }

    fn evidence(&self, quantity: Quantity) -> Evidence {
        let mut evidence = Evidence::default();
        for series in &self.series {
            let mut bare = series.bare.iter().filter(|bare| bare.quantity == quantity).peekable();
            let has_stated = series.factors != 0 && quantity == Quantity::Rss;
            if !has_stated {
                bare.for_each(|bare| evidence.observe(bare.value));
                continue;
            }
            for index in 0..series.trace.len() {
                match bare.next_if(|bare| bare.sample == index) {
                    Some(bare) => evidence.observe(bare.value),
                    None => {
                        let stated = series.trace.value(index, quantity).map(|bytes| bytes as f64);
                        stated.into_iter().for_each(|bytes| evidence.observe_stated(bytes));
                    }
                }
            }
        }
        evidence
    }

    /// The largest memory printed beside the memory in use, in the same unit.
    fn bare_total(&self) -> Option<f64> {
        let totals = self.series.iter().filter_map(|series| match series.bare_limit {
            Limit::Constant(value) => Some(value),
            _ => None,
        });
        totals.max_by(f64::total_cmp)
    }

    /// The memory within which the values must lie, as far as is known.
    fn known_limit(&self, options: &ReadOptions) -> Option<Bytes> {
        let printed = self.series.iter().filter_map(|series| match series.limit {
            Limit::Constant(bytes) => Some(Bytes(bytes)),
            _ => series.trace.facts.memory_limit,
        });
        // No GPU has more memory, whatever the host has.
        const LARGEST_GPU: Bytes = Bytes(512 * GIB);
        let is_device = self.series.iter().any(|series| series.trace.subject == Subject::Device);
        printed.max().or(if is_device { Some(LARGEST_GPU) } else { options.machine })
    }
}

fn note_of(column: &BareColumn, decision: &Decision) -> String {
    let unit = decision.unit.name();
    match column.in_log {
        Some((count, first)) => {
            let why = if decision.unit.factor() == MIB { "" } else { decision.why.as_str() };
            format!(
                "values without a unit are read as {unit} ({count} of them, first: line {first}){why}; `--unit` overrides"
            )
        }
        None => format!("column `{}` has no unit: read as {unit}{}; `--unit` overrides", column.name, decision.why),
    }
}

/// A note on a level that hardly any process has.
fn implausible(series: &Series, options: &ReadOptions) -> Option<String> {
    let peak = series.peak();
    let too_high = options.machine.is_none_or(|machine| peak / 4 > machine.0) && peak > 4 * TIB;
    // A tool's unit is known, and a shell is small.
    let too_low = peak < 4 * MIB && !series.trace.is_empty() && series.format.is_none();
    let judgement = if too_high { "more than nearly any machine has" } else { "less than nearly any program takes" };
    (too_high || too_low)
        .then(|| format!("the highest value is {}, {judgement}: check the column and its unit", Bytes(peak)))
}

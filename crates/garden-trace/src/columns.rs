//! What each column of a table (or key of JSON objects) is used for, in which unit, and how rows become samples.
//!
//! `choice.rs` chooses the memory to judge. It becomes the trace's `Rss`, under the file's own name.

pub(crate) mod choice;
pub(crate) mod epochs;
pub(crate) mod names;

use std::borrow::Cow;

use garden_memory::{Activity, Bytes, MIB, Quantity, Sample, Subject};

use crate::ReadOptions;
use crate::amount::{Amount, Comma, Problem, parse_amount};
use crate::columns::epochs::EpochLength;
use crate::columns::names::{Meaning, understand};
use crate::reading::{BareColumn, Reading, show_value};
use crate::time::{Form, parse_moment};
use crate::unit::PAGE;
use crate::unit::rule::{Convention, Evidence, decide};

/// What one column is used for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Use {
    Step,
    Time {
        seconds_per_unit: f64,
    },
    Epoch,
    Activity,
    Value {
        quantity: Quantity,
        factor: u64,
        unit: Stated,
    },
    /// The memory that there is, beside the memory in use.
    Limit {
        /// The unit; none if it is that of the judged column.
        factor: Option<u64>,
    },
}

/// Whether the name of a column (or the caller) states its unit; if not, the factor is provisional.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stated {
    Yes,
    No,
}

/// The columns in use, the main one first.
#[derive(Clone, Debug)]
pub(crate) struct Columns {
    pub(crate) names: Vec<String>,
    pub(crate) used: Vec<(usize, Use)>,
    pub(crate) subject: Subject,
    notes: Vec<String>,
    unstated: Vec<Unstated>,
}

/// A column whose unit neither the name nor the caller states.
#[derive(Clone, Debug)]
struct Unstated {
    index: usize,
    quantity: Quantity,
    convention: Convention,
    evidence: Evidence,
}

impl Columns {
    /// Decides the use of all columns beside the main one; `others` are main columns of other series.
    pub(crate) fn beside(
        names: Vec<String>,
        main: usize,
        others: &[usize],
        convention: Convention,
        options: &ReadOptions,
    ) -> Self {
        let subject = Subject::default();
        let mut columns = Columns { names, used: Vec::new(), subject, notes: Vec::new(), unstated: Vec::new() };
        let asked = options.unit.map(|unit| unit.factor());
        let stated = understand(&columns.names[main]).factor;
        columns.add_amount(main, Quantity::Rss, asked.or(stated), convention);
        for index in (0..columns.names.len()).filter(|index| !others.contains(index)) {
            columns.add(index, main, options);
        }
        columns
    }

    fn add(&mut self, index: usize, main: usize, options: &ReadOptions) {
        let name = understand(&self.names[index]);
        let asked = options.unit.map(|unit| unit.factor());
        let axis = match name.meaning {
            _ if index == main && name.meaning != Meaning::Quantity(Quantity::Pss) => return,
            Meaning::Unknown | Meaning::Memory => return,
            Meaning::Quantity(quantity) if quantity.is_count() => Use::Value { quantity, factor: 1, unit: Stated::Yes },
            Meaning::Quantity(quantity) => {
                let own = if index == main { asked.or(name.factor) } else { name.factor.or(asked) };
                return self.add_amount(index, quantity, own, Convention::None);
            }
            Meaning::Step => Use::Step,
            Meaning::Time(seconds_per_unit) => Use::Time { seconds_per_unit },
            Meaning::Epoch => Use::Epoch,
            Meaning::Activity => Use::Activity,
        };
        if !self.taken(axis, index) {
            self.used.push((index, axis));
        }
    }

    fn add_amount(&mut self, index: usize, quantity: Quantity, factor: Option<u64>, convention: Convention) {
        let unit = if factor.is_some() { Stated::Yes } else { Stated::No };
        let amount = Use::Value { quantity, factor: factor.unwrap_or(MIB), unit };
        if self.taken(amount, index) {
            return;
        }
        self.used.push((index, amount));
        if factor == Some(PAGE) {
            let name = &self.names[index];
            self.notes.push(format!("column `{name}` counts pages, taken to be of 4 KiB (`getconf PAGESIZE` tells)"));
        }
        if factor.is_none() {
            self.unstated.push(Unstated { index, quantity, convention, evidence: Evidence::default() });
        }
    }

    /// Uses a column as the limit, in its own unit or that of the judged column.
    pub(crate) fn add_limit(&mut self, index: usize) {
        let judged = match self.used[0].1 {
            Use::Value { factor, unit: Stated::Yes, .. } => Some(factor),
            _ => None,
        };
        let factor = understand(&self.names[index]).factor.or(judged);
        self.used.push((index, Use::Limit { factor }));
    }

    /// Stops using a column.
    pub(crate) fn forget(&mut self, index: usize) {
        self.used.retain(|(used, _)| *used != index);
        self.unstated.retain(|unstated| unstated.index != index);
    }

    /// Adds a note on the choice.
    pub(crate) fn note(&mut self, text: String) {
        self.notes.push(text);
    }

    /// Whether another column already has this use; the first one keeps it.
    fn taken(&mut self, wanted: Use, index: usize) -> bool {
        let same = |used: Use| match (used, wanted) {
            (Use::Value { quantity: ours, .. }, Use::Value { quantity: theirs, .. }) => ours == theirs,
            _ => std::mem::discriminant(&used) == std::mem::discriminant(&wanted),
        };
        let Some((first, _)) = self.used.iter().copied().find(|(_, used)| same(*used)) else { return false };
        let (name, used) = (&self.names[index], &self.names[first]);
        self.notes.push(match name == used {
            true => format!("column `{name}` appears more than once; using the first"),
            false => format!("column `{name}` ignored: using `{used}`"),
        });
        true
    }

    /// Takes in a value from the head of the file, for provisional units.
    pub(crate) fn observe(&mut self, index: usize, amount: Amount) {
        for unstated in self.unstated.iter_mut().filter(|unstated| unstated.index == index) {
            if amount.factor.is_none() {
                unstated.evidence.observe(amount.value);
            }
        }
    }

    /// Chooses provisional units by the head of the file; the rows below decide in the end.
    pub(crate) fn settle(&mut self, machine: Option<Bytes>) {
        for unstated in &self.unstated {
            let name = &self.names[unstated.index];
            let decided = decide(name, &unstated.evidence, unstated.convention, machine);
            let guessed = decided.map_or(MIB, |decision| decision.unit.factor());
            for (index, used) in &mut self.used {
                if let Use::Value { quantity, factor, unit: Stated::No } = used
                    && (*index, *quantity) == (unstated.index, unstated.quantity)
                {
                    *factor = guessed;
                }
            }
        }
    }

    /// The index of the main column.
    pub(crate) fn main(&self) -> usize {
        self.used[0].0
    }

    /// Declares the columns to the reading.
    pub(crate) fn introduce(&self, reading: &mut Reading) {
        for &(index, used) in &self.used {
            let Use::Value { quantity, factor, unit } = used else { continue };
            reading.names.insert(quantity, self.names[index].clone());
            if unit == Stated::No {
                let unstated = self.unstated.iter().find(|unstated| unstated.quantity == quantity);
                let convention = unstated.map_or(Convention::None, |unstated| unstated.convention);
                let name = self.names[index].clone();
                let column = BareColumn { name, convention, provisional: factor, in_log: None };
                reading.declare_bare(quantity, column);
            }
        }
        self.notes.iter().for_each(|note| reading.note(note.as_str()));
    }
}

/// The activity that a phase or label names.
pub(crate) fn activity_of(label: &str) -> Activity {
    let label = label.trim();
    let is = |words: &[&str]| words.iter().any(|word| word.eq_ignore_ascii_case(label));
    match () {
        _ if is(&["eval", "evaluation", "evaluate", "evaluating", "predict", "test"]) => Activity::Eval,
        _ if is(&["validation", "validate", "valid", "val"]) => Activity::Eval,
        _ if is(&["checkpoint", "checkpointing", "save", "saving"]) => Activity::Checkpoint,
        _ => Activity::Train,
    }
}

/// A row being assembled.
pub(crate) struct Row {
    pub(crate) sample: Sample,
    /// The numbers that state no unit.
    bare: Vec<(Quantity, f64)>,
    main_factor: Option<u64>,
    limit: Option<u64>,
    bare_limit: Option<f64>,
    is_container: bool,
    epoch: Option<f64>,
    epochs: EpochLength,
    time_form: Form,
}

impl Row {
    pub(crate) fn new() -> Self {
        Row {
            sample: Sample::default(),
            bare: Vec::new(),
            main_factor: None,
            limit: None,
            bare_limit: None,
            is_container: false,
            epoch: None,
            epochs: EpochLength::new(),
            time_form: Form::Exact,
        }
    }

    /// Begins a new row.
    pub(crate) fn clear(&mut self) {
        self.sample = Sample::default();
        self.time_form = Form::Exact;
        self.bare.clear();
        (self.main_factor, self.limit, self.bare_limit, self.epoch) = (None, None, None, None);
    }

    /// Takes in one cell; `amount` is called only if a number is needed, `text` only for words and times.
    pub(crate) fn set<'t>(
        &mut self,
        what: Use,
        amount: impl FnOnce() -> Result<Amount, Problem>,
        text: impl FnOnce() -> Cow<'t, str>,
    ) -> Result<(), Problem> {
        match what {
            Use::Step => self.sample.step = Some(finite(amount()?)?),
            Use::Epoch => self.epoch = amount().ok().map(|amount| amount.value),
            Use::Activity => self.sample.activity = activity_of(&text()),
            Use::Time { seconds_per_unit } => match amount() {
                Ok(Amount { value, factor: None }) if seconds_per_unit != 1.0 => {
                    self.sample.time_s = Some(value * seconds_per_unit).filter(|time| time.is_finite());
                }
                Ok(Amount { value, .. }) if value.abs() < 1e11 => self.sample.time_s = Some(value),
                Err(Problem::Missing) => return Err(Problem::Missing),
                _ => {
                    let moment = parse_moment(&text()).ok_or(Problem::NotANumber)?;
                    (self.sample.time_s, self.time_form) = (Some(moment.seconds), moment.form);
                }
            },
            Use::Value { quantity, factor, unit } => {
                let amount = match amount() {
                    Err(Problem::NotANumber) => self.set_part(&text())?,
                    amount => amount?,
                };
                self.sample.set(quantity, amount.scaled(factor)?);
                if unit == Stated::No && amount.factor.is_none() {
                    self.bare.push((quantity, amount.value));
                } else if quantity == Quantity::Rss {
                    self.main_factor = Some(amount.factor.unwrap_or(factor));
                }
            }
            Use::Limit { factor } => self.set_limit(amount().ok(), factor),
        }
        Ok(())
    }

    fn set_limit(&mut self, amount: Option<Amount>, factor: Option<u64>) {
        match amount.and_then(|amount| amount.factor).or(factor) {
            Some(factor) => self.limit = amount.and_then(|amount| amount.scaled(factor).ok()),
            None => self.bare_limit = amount.map(|amount| amount.value),
        }
    }

    /// Takes in a cell such as `1.5GiB / 31GiB`, as docker prints it: memory in use, and the limit.
    fn set_part(&mut self, text: &str) -> Result<Amount, Problem> {
        let (part, whole) = text.split_once(" / ").ok_or(Problem::NotANumber)?;
        let parse = |text: &str| parse_amount(text.as_bytes(), Comma::Thousands);
        self.limit = Some(parse(whole)?.scaled(1)?);
        self.is_container = true;
        parse(part)
    }

    /// Ends the row and adds its sample to the present series.
    pub(crate) fn push(&mut self, subject: Subject, reading: &mut Reading) {
        if let (Some(step), Some(epoch)) = (self.sample.step, self.epoch) {
            self.epochs.observe(step, epoch);
        }
        reading.times.saw(self.time_form);
        let series = reading.current();
        self.main_factor.iter().for_each(|&factor| series.saw_factor(factor));
        self.limit.iter().for_each(|&limit| series.saw_limit(limit));
        self.bare_limit.iter().for_each(|&limit| series.saw_bare_limit(limit));
        series.trace.subject = if self.is_container { Subject::Container } else { subject };
        reading.push_bare(&self.sample, &self.bare);
    }

    /// Ends the reading: records the facts learned from the rows.
    pub(crate) fn finish(&self, reading: &mut Reading) {
        let steps = self.epochs.steps();
        reading.learn(|facts| facts.steps_per_epoch = steps);
    }
}

fn finite(amount: Amount) -> Result<f64, Problem> {
    if amount.value.is_finite() && amount.factor.is_none() { Ok(amount.value) } else { Err(Problem::NotANumber) }
}

/// Counts a skipped cell of a row that is kept, unless it was left blank.
pub(crate) fn skip_cell(reading: &mut Reading, problem: Problem, line: u64, name: &str, value: &[u8]) {
    if problem != Problem::Missing {
        reading.skip_value(problem.reason(), line, || show_value(name, value));
    }
}

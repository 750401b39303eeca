//! Which column of a table (or key of JSON objects) is what, and in which unit: shared by `table.rs` and `jsonl.rs`.
//!
//! The memory to judge is the requested column, else RSS, else PSS, else plain "memory" or "ram". It becomes the trace's
//! `Rss`, under the file's own name.

use std::borrow::Cow;

use garden_memory::{Activity, MIB, Quantity, Sample};

use crate::ReadOptions;
use crate::amount::{Amount, Problem};
use crate::epochs::EpochLength;
use crate::error::Error;
use crate::names::{Meaning, understand, words};
use crate::reading::{Reading, show_value};
use crate::time::parse_time;
use crate::unit::factor_name;

/// A median above this is a number of bytes: as MiB it would be a terabyte.
const BYTES_ABOVE: f64 = 1e6;

/// What one column is used for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Use {
    Step,
    Time { seconds_per_unit: f64 },
    Epoch,
    Activity,
    Value { quantity: Quantity, factor: u64 },
}

/// The columns in use, the main one first.
#[derive(Clone, Debug)]
pub(crate) struct Columns {
    pub(crate) names: Vec<String>,
    pub(crate) used: Vec<(usize, Use)>,
    notes: Vec<String>,
    // Columns whose unit neither the name nor the caller states, with the values seen so far.
    unstated: Vec<(usize, Vec<f64>)>,
}

impl Columns {
    /// Decides what each named column is.
    pub(crate) fn choose(names: Vec<String>, options: &ReadOptions) -> Result<Self, Error> {
        let main = main_column(&names, options)?;
        let mut columns = Columns { names, used: Vec::new(), notes: Vec::new(), unstated: Vec::new() };
        let asked = options.unit.map(|unit| unit.factor());
        let stated = understand(&columns.names[main]).factor;
        columns.add_amount(main, Quantity::Rss, asked.or(stated));
        for index in 0..columns.names.len() {
            columns.add(index, main, options);
        }
        Ok(columns)
    }

    fn add(&mut self, index: usize, main: usize, options: &ReadOptions) {
        let name = understand(&self.names[index]);
        let asked = options.unit.map(|unit| unit.factor());
        let axis = match name.meaning {
            _ if index == main && name.meaning != Meaning::Quantity(Quantity::Pss) => return,
            Meaning::Unknown | Meaning::Memory => return,
            Meaning::Quantity(quantity) if quantity.is_count() => Use::Value { quantity, factor: 1 },
            Meaning::Quantity(quantity) => {
                let own = if index == main { asked.or(name.factor) } else { name.factor.or(asked) };
                return self.add_amount(index, quantity, own);
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

    fn add_amount(&mut self, index: usize, quantity: Quantity, factor: Option<u64>) {
        let amount = Use::Value { quantity, factor: factor.unwrap_or(MIB) };
        if self.taken(amount, index) {
            return;
        }
        self.used.push((index, amount));
        if factor.is_none() && !self.unstated.iter().any(|(other, _)| *other == index) {
            self.unstated.push((index, Vec::new()));
        }
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

    /// Takes in a value from the head of the file, for guessing units.
    pub(crate) fn observe(&mut self, index: usize, amount: Amount) {
        if let Some((_, values)) = self.unstated.iter_mut().find(|(unstated, _)| *unstated == index)
            && amount.factor.is_none()
            && amount.value.is_finite()
        {
            values.push(amount.value);
        }
    }

    /// Guesses units that are not stated, and notes the guesses.
    pub(crate) fn guess_units(&mut self) {
        for (index, mut values) in std::mem::take(&mut self.unstated) {
            if values.is_empty() {
                continue;
            }
            let middle = values.len() / 2;
            let (_, median, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
            let (factor, side) = if *median > BYTES_ABOVE { (1, "above") } else { (MIB, "not above") };
            self.notes.push(format!(
                "column `{}` has no unit: read as {} because the median of its first values is {side} 1,000,000; \
                 `--unit` overrides",
                self.names[index],
                factor_name(factor)
            ));
            for (used, what) in &mut self.used {
                if let Use::Value { factor: guessed, .. } = what
                    && *used == index
                {
                    *guessed = factor;
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
            if let Use::Value { quantity, .. } = used {
                reading.trace.names.insert(quantity, self.names[index].clone());
            }
        }
        self.notes.iter().for_each(|note| reading.note(note.as_str()));
    }
}

fn main_column(names: &[String], options: &ReadOptions) -> Result<usize, Error> {
    if let Some(asked) = &options.column {
        let missing = || Error::NoSuchColumn { asked: asked.clone(), available: names.to_vec() };
        return find_column(names, asked).ok_or_else(missing);
    }
    let meanings: Vec<Meaning> = names.iter().map(|name| understand(name).meaning).collect();
    [Meaning::Quantity(Quantity::Rss), Meaning::Quantity(Quantity::Pss), Meaning::Memory]
        .iter()
        .find_map(|wanted| meanings.iter().position(|meaning| meaning == wanted))
        .ok_or_else(|| Error::NoMemoryColumn { columns: names.to_vec() })
}

/// Finds a column by its exact name, else by its letters and digits alone.
pub(crate) fn find_column(names: &[String], asked: &str) -> Option<usize> {
    let bare = |name: &str| words(name).concat();
    let exact = names.iter().position(|name| name.trim() == asked.trim());
    exact.or_else(|| names.iter().position(|name| !bare(name).is_empty() && bare(name) == bare(asked)))
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
    epoch: Option<f64>,
    epochs: EpochLength,
}

impl Row {
    pub(crate) fn new() -> Self {
        Row { sample: Sample::default(), epoch: None, epochs: EpochLength::new() }
    }

    /// Begins a new row.
    pub(crate) fn clear(&mut self) {
        self.sample = Sample::default();
        self.epoch = None;
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
                _ => self.sample.time_s = Some(parse_time(&text()).ok_or(Problem::NotANumber)?),
            },
            Use::Value { quantity, factor } => self.sample.set(quantity, amount()?.scaled(factor)?),
        }
        Ok(())
    }

    /// Ends the row and adds its sample to the trace.
    pub(crate) fn push(&mut self, reading: &mut Reading) {
        if let (Some(step), Some(epoch)) = (self.sample.step, self.epoch) {
            self.epochs.observe(step, epoch);
        }
        reading.trace.push(&self.sample);
    }

    /// Ends the reading: records the facts learned from the rows.
    pub(crate) fn finish(&self, reading: &mut Reading) {
        reading.trace.facts.steps_per_epoch = self.epochs.steps();
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

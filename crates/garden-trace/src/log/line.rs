//! One log line, understood on its own: step, epoch, time, memory and facts.

use std::ops::Range;

use garden_memory::{MIB, Quantity, Sample};

use super::amounts::{Found, NumberKind, Stamp, scan};
use super::events::Keywords;
use super::facts::whole;
use super::labels::{Fact, Kind, Label, Postfix, Words, postfix, postfix_clause};
use super::memo::Memo;
use crate::amount::Amount;
use crate::names::words;

/// A reading of the process's memory.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Main {
    pub(super) value: f64,
    /// Bytes per unit, where the line states a unit.
    pub(super) factor: Option<u64>,
    /// Its name in the line.
    pub(super) name: Name,
}

/// The name of a value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Name {
    /// The last words of this range of the line.
    Label(Range<usize>),
    /// A name of ours, if the line has none before the value.
    Given(&'static str),
}

/// The state of a tqdm bar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bar {
    pub(super) step: f64,
    pub(super) total: f64,
    pub(super) elapsed: f64,
}

/// The content of a line.
#[derive(Debug, Default, PartialEq)]
pub(super) struct LogLine<'a> {
    /// The line without colours.
    pub(super) clean: &'a str,
    /// `clean` in lower case.
    pub(super) lower: &'a str,
    pub(super) keywords: Keywords,
    pub(super) stamp: Option<Stamp>,
    pub(super) elapsed: Option<f64>,
    /// The step, and the total behind it.
    pub(super) step: Option<(f64, Option<f64>)>,
    pub(super) epoch: Option<(f64, Option<f64>)>,
    pub(super) bar: Option<Bar>,
    /// Memory by kind of label, in the order of [`Kind`].
    pub(super) mains: [Option<Main>; 3],
    /// All other quantities, as a sample without step and time.
    pub(super) others: Sample,
    pub(super) facts: Vec<(Fact, u64)>,
}

impl LogLine<'_> {
    /// The step of the bar.
    pub(super) fn bar_step(&self) -> Option<f64> {
        self.bar.map(|bar| bar.step)
    }

    /// The name of the memory, as the file spells it.
    pub(super) fn name_of(&self, main: &Main) -> String {
        match &main.name {
            Name::Label(place) => short_name(&self.clean[place.clone()]),
            Name::Given(name) => (*name).to_string(),
        }
    }

    /// The total behind the step or the bar.
    pub(super) fn total_steps(&self) -> Option<f64> {
        match self.step {
            Some((_, total)) => total,
            None => self.bar.map(|bar| bar.total),
        }
    }
}

/// Parses lines one after the other, in reused buffers.
pub(super) struct Parser {
    // The words of the requested label, joined.
    asked: Option<String>,
    /// With a requested label: the labels of the amounts seen.
    pub(super) labels: Vec<String>,
    clean: String,
    lower: String,
    found: Vec<Found>,
    gaps: Memo<Gap>,
}

/// The meaning of the text between two numbers, for both of them.
#[derive(Clone, Copy)]
struct Gap {
    /// The meaning of the number after it.
    label: Label,
    /// The unit in the label.
    factor: Option<u64>,
    /// For a step or epoch: the meaning of an unlabelled number after it.
    after_axis: Label,
    /// Its meaning for the number before it.
    postfix: Option<Postfix>,
    counts_tensors: bool,
    begins_with_letter: bool,
}

impl Gap {
    fn of(text: &str) -> Self {
        let words = Words::of(text);
        let label = words.label();
        let is_axis = matches!(label, Label::Step | Label::Epoch);
        let begin = text.trim_start();
        Gap {
            label,
            factor: words.factor(),
            after_axis: if is_axis { words.after_axis(text) } else { Label::Unknown },
            postfix: postfix(postfix_clause(text)),
            counts_tensors: begin.starts_with("tensors"),
            begins_with_letter: begin.starts_with(char::is_alphabetic),
        }
    }
}

/// The name of a value that directly follows the step, as in `Step 20: 7,159 MB`.
const UNNAMED: &str = "value after the step";
const MOST_LABELS: usize = 20;

impl Parser {
    pub(super) fn new(asked: Option<&str>) -> Self {
        let asked = asked.map(|asked| words(asked).concat());
        Parser {
            asked,
            labels: Vec::new(),
            clean: String::new(),
            lower: String::new(),
            found: Vec::new(),
            gaps: Memo::new(Gap::of),
        }
    }

    /// Parses a line.
    pub(super) fn parse(&mut self, text: &[u8]) -> LogLine<'_> {
        match std::str::from_utf8(text) {
            Ok(text) => strip_colours(text, &mut self.clean),
            Err(_) => strip_colours(&String::from_utf8_lossy(text), &mut self.clean),
        }
        self.lower.clear();
        self.lower.push_str(&self.clean);
        self.lower.make_ascii_lowercase();
        let stamp = scan(&self.lower, &mut self.found);
        let keywords = Keywords::of(&self.lower);
        let mut line = LogLine { clean: &self.clean, lower: &self.lower, keywords, stamp, ..LogLine::default() };
        // The label that an unlabelled number inherits from the number before it, and its range.
        let mut left = (Label::Unknown, 0..0);
        let mut counts_tensors = false;
        // The text after a number usually is the label of the next one.
        let mut shared = None;
        for (index, number) in self.found.iter().enumerate() {
            let before = shared.unwrap_or_else(|| self.gaps.look_up(&self.lower[number.label.clone()]));
            let is_shared = self.found.get(index + 1).is_some_and(|next| next.label == number.after);
            let text = &self.lower[number.after.clone()];
            // An unshared text contains times or rates; its first clause alone is likely to recur.
            let after = self.gaps.look_up(if is_shared { text } else { postfix_clause(text) });
            shared = is_shared.then_some(after);
            let inherits = before.label == Label::Nothing;
            let (label, place) = if inherits { left } else { (before.label, number.label.clone()) };
            let factor = number.factor.or(before.factor);
            counts_tensors |= after.counts_tensors;
            let context = Context { number, label, inherits, place: place.clone(), factor, after, counts_tensors };
            match &self.asked {
                Some(asked) if !inherits => {
                    remember(&mut self.labels, &self.clean[number.label.clone()]);
                    let words = Words::of(&self.lower[number.label.clone()]);
                    let matches = words.list().concat().contains(asked.as_str()) && !asked.is_empty();
                    context.take_asked(matches, &mut line);
                }
                _ => context.take(&mut line),
            }
            // `GPU 0: 10 GB` and `RAM: 45% (14.5 GB)`: the second number belongs to the first one's label.
            let is_bare = number.factor.is_none() && number.over.is_none() && number.kind != NumberKind::Change;
            left = match label {
                Label::Step | Label::Epoch if !inherits => (before.after_axis, place),
                _ if is_bare => (label, place),
                _ => (Label::Unknown, place),
            };
        }
        line.stamp = line.stamp.or_else(|| unix_stamp(&self.found, &self.lower));
        line
    }
}

/// A number with everything that decides its meaning.
struct Context<'a> {
    number: &'a Found,
    label: Label,
    inherits: bool,
    /// The range of the label.
    place: Range<usize>,
    factor: Option<u64>,
    /// The text after it.
    after: Gap,
    /// Whether the line counts tensors, so that `CPU: 330` is a number of them.
    counts_tensors: bool,
}

impl Context<'_> {
    /// Takes only the requested label as memory; everything else keeps its meaning.
    fn take_asked(&self, matches: bool, line: &mut LogLine<'_>) {
        let is_level = matches!(self.number.kind, NumberKind::Plain);
        match self.label {
            _ if matches && is_level => self.set_main(Kind::Memory, line),
            Label::Main(_) => {}
            _ => self.take(line),
        }
    }

    fn take(&self, line: &mut LogLine<'_>) {
        let Found { value, over, kind, .. } = *self.number;
        match kind {
            NumberKind::Bar(elapsed) => {
                line.bar = Some(Bar { step: value, total: over.unwrap_or(value), elapsed });
                return;
            }
            NumberKind::Change | NumberKind::Percent => return,
            NumberKind::Seconds if self.label != Label::Elapsed => return,
            _ => {}
        }
        match (self.label, self.after.postfix) {
            (_, Some(Postfix::Is(Label::Other(quantity)))) if quantity.is_count() => self.set_count(quantity, line),
            (Label::Step, _) if !self.inherits => self.set_step(line),
            (Label::Epoch, _) if !self.inherits => {
                line.epoch.get_or_insert((value, over));
            }
            (Label::Elapsed, _) => line.elapsed = Some(value).filter(|elapsed| elapsed.is_finite()),
            (Label::Fact(fact), _) => line.facts.extend(whole(value).map(|value| (fact, value))),
            (_, Some(Postfix::OtherAmount)) => {}
            (Label::Other(quantity), _) if quantity.is_count() => self.set_count(quantity, line),
            (Label::Cpu, _) if self.counts_tensors && self.factor.is_none() => {
                self.set_count(Quantity::TensorsCpu, line)
            }
            (Label::Gpu, _) if self.counts_tensors && self.factor.is_none() => {
                self.set_count(Quantity::TensorsGpu, line)
            }
            (label, behind) => self.take_memory(label, behind, line),
        }
    }

    fn take_memory(&self, label: Label, behind: Option<Postfix>, line: &mut LogLine<'_>) {
        let has_unit = self.factor.is_some();
        match label {
            Label::Main(kind) if has_unit || !self.after.begins_with_letter => {
                self.set_main(kind, line);
            }
            Label::Other(quantity) if has_unit || !self.after.begins_with_letter => self.set_amount(quantity, line),
            Label::Gpu if has_unit => self.set_amount(Quantity::Gpu, line),
            Label::Cpu if has_unit => self.set_main(Kind::Memory, line),
            _ if !has_unit => {}
            Label::Nothing | Label::Unknown | Label::Step | Label::Epoch => match behind {
                Some(Postfix::Is(Label::Main(kind))) => self.name_main(kind, line, "RAM"),
                Some(Postfix::Is(Label::Other(quantity))) => self.set_amount(quantity, line),
                _ if self.inherits && matches!(label, Label::Step | Label::Epoch) => {
                    self.name_main(Kind::Memory, line, UNNAMED);
                }
                _ => {}
            },
            _ => {}
        }
    }

    fn set_step(&self, line: &mut LogLine<'_>) {
        let Found { value, over, .. } = *self.number;
        if self.factor.is_none() && value.fract() == 0.0 && value >= 0.0 {
            line.step.get_or_insert((value, over));
        }
    }

    fn set_main(&self, kind: Kind, line: &mut LogLine<'_>) {
        self.add_main(kind, line, Name::Label(self.place.clone()));
    }

    fn name_main(&self, kind: Kind, line: &mut LogLine<'_>, name: &'static str) {
        self.add_main(kind, line, Name::Given(name));
    }

    fn add_main(&self, kind: Kind, line: &mut LogLine<'_>, name: Name) {
        let main = Main { value: self.number.value, factor: self.factor, name };
        line.mains[kind as usize].get_or_insert(main);
    }

    fn set_amount(&self, quantity: Quantity, line: &mut LogLine<'_>) {
        let amount = Amount { value: self.number.value, factor: self.factor };
        if let Ok(bytes) = amount.scaled(MIB) {
            set_once(&mut line.others, quantity, bytes);
        }
    }

    fn set_count(&self, quantity: Quantity, line: &mut LogLine<'_>) {
        if self.factor.is_none()
            && self.number.value.fract() == 0.0
            && let Ok(count) = (Amount { value: self.number.value, factor: None }).scaled(1)
        {
            set_once(&mut line.others, quantity, count);
        }
    }
}

fn set_once(sample: &mut Sample, quantity: Quantity, value: u64) {
    if sample.get(quantity).is_none() {
        sample.set(quantity, value);
    }
}

/// The last words of a label, as the file spells them.
fn short_name(label: &str) -> String {
    let words = |c: char| !(c.is_alphanumeric() || matches!(c, '_' | ' ' | '(' | ')'));
    let last = label.trim_matches(|c: char| !c.is_alphanumeric() && c != ')').rsplit(words).next().unwrap_or(label);
    let last = last.trim_matches(|c: char| !c.is_alphanumeric() && !matches!(c, '(' | ')'));
    let is_place = |word: &&str| ["at", "step", "before", "after"].iter().any(|place| place.eq_ignore_ascii_case(word));
    let words = last.split_whitespace().rev();
    let mut few: Vec<&str> = match last.split_whitespace().count() {
        1 => words.collect(),
        _ => words.skip_while(is_place).take(3).collect(),
    };
    few.reverse();
    let name = few.join(" ");
    // A bracket that was closed before the label began does not belong to it.
    match name.contains('(') {
        true => name,
        false => name.trim_start_matches([')', ' ']).to_string(),
    }
}

fn remember(labels: &mut Vec<String>, label: &str) {
    let name = short_name(label);
    if labels.len() < MOST_LABELS && !name.is_empty() && !labels.contains(&name) {
        labels.push(name);
    }
}

/// Seconds since 1970 at the very beginning of a line.
fn unix_stamp(found: &[Found], line: &str) -> Option<Stamp> {
    let first = found.first()?;
    let begins_line = !line[first.label.clone()].contains(char::is_alphanumeric) && first.label.start == 0;
    let plausible = (1e9..1e10).contains(&first.value) && first.factor.is_none() && first.kind == NumberKind::Plain;
    (begins_line && plausible).then_some(Stamp::Date(first.value))
}

/// Removes the escape sequences of terminal colours.
fn strip_colours(text: &str, clean: &mut String) {
    clean.clear();
    let mut rest = text;
    while let Some(escape) = rest.find('\x1b') {
        clean.push_str(&rest[..escape]);
        rest = &rest[escape + 1..];
        if let Some(sequence) = rest.strip_prefix('[') {
            let is_final = |c: char| ('@'..='~').contains(&c);
            rest = sequence.find(is_final).map_or("", |end| &sequence[end + 1..]);
        }
    }
    clean.push_str(rest);
}

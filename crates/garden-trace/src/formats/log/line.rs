//! One log line, understood on its own: step, epoch, time, memory and facts.

use std::ops::Range;

use garden_memory::{Quantity, Sample};

use super::amounts::{Found, NumberKind, Stamp, scan};
use super::events::Keywords;
use super::facts::whole;
use super::labels::{Fact, Kind, Label, Postfix, Words, key_of, postfix, postfix_clause};
use super::memo::Memo;
use crate::amount::Amount;
use crate::columns::names::words;
use crate::lines::HeadLine;
use crate::time::in_seconds;
use crate::unit::Unit;
use crate::unit::rule::bare_factor;

/// A reading of the process's memory.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Main {
    pub(super) value: f64,
    /// Bytes per unit, where the line states a unit.
    pub(super) factor: Option<u64>,
    /// Its name in the line.
    pub(super) name: Name,
    fit: Fit,
}

/// How well a label fits; the better one of a line is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    /// The memory of a part, such as `data_mem`, or a label that merely contains the requested name.
    Loose,
    Exact,
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
    pub(super) mains: [Option<Main>; Kind::ALL.len()],
    /// The memory of numbered GPUs, as in `GPU 0: 10 GB, GPU 1: 11 GB`.
    pub(super) gpus: Vec<(u32, Main)>,
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

    /// Whether the line shows the memory of a part of the program, so that a total beside it is the whole.
    fn shows_part(&self) -> bool {
        self.mains[Kind::Memory as usize].as_ref().is_some_and(|main| main.fit == Fit::Loose)
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
    // Whether some label is exactly the requested one, so that longer ones are others.
    is_exact: bool,
    /// With a requested label: the labels of the amounts seen.
    pub(super) labels: Vec<String>,
    /// With a requested label: the first that fits it, but names a share of memory.
    pub(super) share: Option<String>,
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
    unit: Option<Unit>,
    /// For a step or epoch: the meaning of an unlabelled number after it.
    after_axis: Label,
    /// Its meaning for the number before it.
    postfix: Option<Postfix>,
    counts_tensors: bool,
    /// Whether it begins with a word that may say what the number before it counts.
    begins_with_letter: bool,
    /// Whether it names the memory of a part of the program, or of all its parts.
    is_part: bool,
    is_total: bool,
}

impl Gap {
    fn of(text: &str) -> Self {
        let words = Words::of(text);
        let label = words.label();
        let is_axis = matches!(label, Label::Step | Label::Epoch);
        let begin = text.trim_start();
        Gap {
            label,
            unit: words.unit(),
            after_axis: if is_axis { words.after_axis(text) } else { Label::Unknown },
            postfix: postfix(postfix_clause(text)),
            counts_tensors: begin.starts_with("tensors"),
            begins_with_letter: begin.starts_with(char::is_alphabetic) && !begins_with_key(begin),
            is_part: words.names_part(),
            is_total: words.names_total(),
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
            is_exact: false,
            labels: Vec::new(),
            share: None,
            clean: String::new(),
            lower: String::new(),
            found: Vec::new(),
            gaps: Memo::new(Gap::of),
        }
    }

    /// Looks for labels that are exactly the requested one.
    pub(super) fn look_ahead(&mut self, head: &[HeadLine]) {
        if self.asked.is_some() {
            head.iter().for_each(|line| drop(self.parse(line.text.as_bytes())));
        }
    }

    /// The lines that show memory, in lower case.
    pub(super) fn lines_with_memory(&mut self, head: &[HeadLine]) -> Vec<String> {
        let mut lines = Vec::new();
        for line in head {
            let parsed = self.parse(line.text.as_bytes());
            if parsed.mains.iter().any(Option::is_some) {
                lines.push(parsed.lower.to_string());
            }
        }
        lines
    }

    /// Parses a line.
    pub(super) fn parse<'l>(&'l mut self, text: &'l [u8]) -> LogLine<'l> {
        let clean = match std::str::from_utf8(text) {
            Ok(text) if !text.contains('\x1b') => text,
            _ => {
                strip_colours(&String::from_utf8_lossy(text), &mut self.clean);
                &self.clean
            }
        };
        self.lower.clear();
        self.lower.push_str(clean);
        self.lower.make_ascii_lowercase();
        let stamp = scan(&self.lower, &mut self.found);
        let keywords = Keywords::of(&self.lower);
        let mut line = LogLine { clean, lower: &self.lower, keywords, stamp, ..LogLine::default() };
        // The label that an unlabelled number inherits from the number before it, and its range.
        let mut left = (Label::Unknown, 0..0);
        let mut counts_tensors = false;
        // The index in `GPU 1:`, for the amount behind it.
        let mut gpu = None;
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
            let label = in_context(label, &self.lower, &place, gpu);
            let factor = number.factor.or(before.unit.map(Unit::factor));
            counts_tensors |= after.counts_tensors;
            let only_asked = self.asked.is_some();
            let context = Context {
                number,
                label,
                inherits,
                place: place.clone(),
                factor,
                after,
                counts_tensors,
                gpu,
                only_asked,
                fit: if before.is_part && !inherits { Fit::Loose } else { Fit::Exact },
            };
            match &self.asked {
                Some(asked) if !inherits => {
                    remember(&mut self.labels, &clean[number.label.clone()]);
                    let words = Words::of(&self.lower[number.label.clone()]);
                    let is_share = words.name_share() || number.kind == NumberKind::Percent;
                    let fit = words.fit_of(asked);
                    if is_share && fit.is_some() && self.share.is_none() {
                        self.share = Some(short_name(&clean[number.label.clone()]));
                    }
                    let fit = fit.filter(|_| !is_share);
                    self.is_exact |= fit == Some(Fit::Exact);
                    let fit = fit.filter(|&fit| fit == Fit::Exact || !self.is_exact);
                    Context { fit: fit.unwrap_or(Fit::Loose), ..context }.take_asked(fit.is_some(), &mut line);
                }
                None if before.is_total && !inherits && line.shows_part() => {
                    Context { label: Label::Main(Kind::Memory), ..context }.take(&mut line);
                }
                _ => context.take(&mut line),
            }
            gpu = match label {
                Label::Gpu | Label::Other(Quantity::Gpu) if factor.is_none() => gpu_index(number),
                _ => None,
            };
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
    /// The index of the GPU named just before.
    gpu: Option<u32>,
    /// Whether only a requested label is judged.
    only_asked: bool,
    fit: Fit,
}

impl Context<'_> {
    /// Takes only the requested label as memory; everything else keeps its meaning.
    fn take_asked(&self, matches: bool, line: &mut LogLine<'_>) {
        let is_level = matches!(self.number.kind, NumberKind::Plain);
        match self.label {
            Label::Gpu | Label::Other(Quantity::Gpu) if matches && is_level => {
                self.put_main(Kind::Device, line, Name::Label(self.place.clone()));
            }
            _ if matches && is_level => self.put_main(Kind::Memory, line, Name::Label(self.place.clone())),
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
            Label::Cpu if has_unit && !self.is_of_processor(line) => self.set_main(Kind::Memory, line),
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

    /// Whether the number is time of a processor: `cpu: 250m` is a quarter of one.
    fn is_of_processor(&self, line: &LogLine<'_>) -> bool {
        self.number.after.start.checked_sub(1).and_then(|last| line.clean.as_bytes().get(last)) == Some(&b'm')
    }

    fn set_step(&self, line: &mut LogLine<'_>) {
        let Found { value, over, .. } = *self.number;
        if self.factor.is_none() && value.fract() == 0.0 && value >= 0.0 {
            line.step.get_or_insert((value, over));
        }
    }

    fn set_main(&self, kind: Kind, line: &mut LogLine<'_>) {
        let name = match kind {
            Kind::Machine if line.lower.contains("svmem(") => Name::Given("virtual_memory().used"),
            Kind::Machine => Name::Given("CPU Virtual Memory used"),
            _ => Name::Label(self.place.clone()),
        };
        self.add_main(kind, line, name);
    }

    fn name_main(&self, kind: Kind, line: &mut LogLine<'_>, name: &'static str) {
        self.add_main(kind, line, Name::Given(name));
    }

    fn add_main(&self, kind: Kind, line: &mut LogLine<'_>, name: Name) {
        if !self.only_asked {
            self.put_main(kind, line, name);
        }
    }

    fn put_main(&self, kind: Kind, line: &mut LogLine<'_>, name: Name) {
        let main = Main { value: self.number.value, factor: self.factor, name, fit: self.fit };
        let place = &mut line.mains[kind as usize];
        if place.as_ref().is_none_or(|before| before.fit < self.fit) {
            *place = Some(main);
        }
    }

    fn set_amount(&self, quantity: Quantity, line: &mut LogLine<'_>) {
        let amount = Amount { value: self.number.value, factor: self.factor };
        if quantity == Quantity::Gpu {
            let name = if self.gpu.is_some() { Name::Given("GPU memory") } else { Name::Label(self.place.clone()) };
            let main = Main { value: self.number.value, factor: self.factor, name: name.clone(), fit: self.fit };
            self.gpu.iter().for_each(|&gpu| line.gpus.push((gpu, main.clone())));
            self.add_main(Kind::Device, line, name);
        }
        if let Ok(bytes) = amount.scaled(bare_factor(amount.value)) {
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

impl Words<'_> {
    /// How well the words fit the requested label, whose words are joined.
    fn fit_of(&self, asked: &str) -> Option<Fit> {
        let own = self.list().concat();
        let is_same = own == asked || self.list_without_unit().concat() == asked;
        let contains = !asked.is_empty() && own.contains(asked);
        if is_same && contains { Some(Fit::Exact) } else { contains.then_some(Fit::Loose) }
    }
}

/// The meaning of a label where the rest of the line adds to it; `gpu` is an index just before.
fn in_context(label: Label, line: &str, place: &Range<usize>, gpu: Option<u32>) -> Label {
    match label {
        // psutil's `svmem(total=.., used=..)` is the machine's memory.
        Label::Unknown if line[place.clone()].ends_with(" used=") && line.contains("svmem(") => {
            Label::Main(Kind::Machine)
        }
        // `GPU 0 memory: 5 GB` is the GPU's, though the words before the amount do not say so.
        Label::Main(Kind::Memory) if gpu.is_some() && !names_host(&line[place.clone()]) => Label::Other(Quantity::Gpu),
        _ => label,
    }
}

/// Whether a text begins with the key of the next value, as in ` batch=4`.
fn begins_with_key(text: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '-' | '/');
    text.trim_start_matches(is_word).starts_with(['=', ':'])
}

/// The index of a GPU, if the number can be one.
fn gpu_index(number: &Found) -> Option<u32> {
    const MOST_GPUS: f64 = 64.0;
    let is_index = number.kind == NumberKind::Plain && number.over.is_none() && number.value.fract() == 0.0;
    (is_index && (0.0..MOST_GPUS).contains(&number.value)).then_some(number.value as u32)
}

/// Whether a label in lower case speaks of host memory.
fn names_host(label: &str) -> bool {
    label.split(|c: char| !c.is_alphanumeric()).any(|word| matches!(word, "ram" | "rss" | "cpu" | "host" | "process"))
}

fn set_once(sample: &mut Sample, quantity: Quantity, value: u64) {
    if sample.get(quantity).is_none() {
        sample.set(quantity, value);
    }
}

/// The last words of a label, as the file spells them.
fn short_name(label: &str) -> String {
    let label = key_of(label);
    let words = |c: char| !(c.is_alphanumeric() || matches!(c, '_' | ' ' | '(' | ')'));
    let last = label.trim_matches(|c: char| !c.is_alphanumeric() && c != ')').rsplit(words).next().unwrap_or(label);
    let last = last.trim_matches(|c: char| !c.is_alphanumeric() && !matches!(c, '(' | ')'));
    let is_place = |word: &&str| ["at", "step", "before", "after"].iter().any(|place| place.eq_ignore_ascii_case(word));
    let words = last.split_whitespace().rev();
    let mut few: Vec<&str> = match last.split_whitespace().count() {
        1 => words.collect(),
        _ => words.skip_while(is_place).take(if last.contains("set size") { 5 } else { 3 }).collect(),
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

/// Seconds since 1970 at the very beginning of a line, perhaps behind a key such as `ts=`.
fn unix_stamp(found: &[Found], line: &str) -> Option<Stamp> {
    let first = found.first()?;
    let label = line[first.label.clone()].trim_matches(|c: char| !c.is_alphanumeric());
    let is_key = matches!(label, "" | "ts" | "t" | "time" | "timestamp" | "epoch" | "unix" | "date");
    let begins_line = is_key && first.label.start == 0;
    let seconds = in_seconds(first.value);
    let plausible = (1e9..1e10).contains(&seconds) && first.factor.is_none() && first.kind == NumberKind::Plain;
    (begins_line && plausible).then_some(Stamp::Date(seconds))
}

/// Removes the escape sequences of terminal colours.
pub(crate) fn strip_colours(text: &str, clean: &mut String) {
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

//! Lines that hold one amount and nothing else, perhaps behind a time stamp: `4000`, `10:00:00 - 4000 MB`,
//! `1700000000 4000`; the stamp may also stand on a line of its own.
//!
//! Units that no line states are decided by `unit/rule.rs`.

use std::io::Read;

use garden_memory::{MIB, Quantity, Sample};

use super::{Contents, Head, Reader, Recognised, claim};
use crate::ReadOptions;
use crate::amount::{Amount, Comma, parse_amount};
use crate::columns::choice::Choice;
use crate::columns::names::{is_other_amount, words};
use crate::error::Error;
use crate::formats::table::header_names;
use crate::lines::{HeadLine, LineEnd, Lines};
use crate::reading::{BareColumn, Reading, TOO_LONG, show_line};
use crate::time::{ShortClocks, Stamps};
use crate::unit::rule::Convention;

/// The share of lines that must be amounts; the rest may be a title or a message.
const MOST_LINES: f64 = 0.9;

enum Line {
    Amount(Amount),
    Stamp,
    Other,
}

/// Recognises lines of amounts.
pub(super) fn recognise(head: &Head<'_>) -> Recognised {
    if !are_amounts(head.lines) {
        return None;
    }
    // Numbers under the name of something else are not memory, however alike they look.
    let foreign = foreign_names(head.lines).and_then(|names| Choice::of(names, head.options).err());
    foreign.map_or(claim(Plain), |error| Some(Err(error)))
}

struct Plain;

impl Reader for Plain {
    fn name(&self) -> &'static str {
        "amounts"
    }

    fn read(&self, file: &mut Contents<'_>, reading: &mut Reading) -> Result<(), Error> {
        read(&mut file.lines, file.options, reading)
    }
}

/// Whether nearly all lines are amounts.
pub(super) fn are_amounts(head: &[HeadLine]) -> bool {
    if counts_rows(head) {
        return false;
    }
    let mut stamps = Stamps::new(ShortClocks::AreStamps);
    let (mut amounts, mut known) = (0, 0);
    for line in head {
        let parsed = parse(&line.text, &mut stamps);
        amounts += usize::from(matches!(parsed, Line::Amount(_)));
        known += usize::from(!matches!(parsed, Line::Other));
    }
    amounts >= 2 && known as f64 >= MOST_LINES * head.len() as f64
}

/// Whether all amounts are written in a form.
pub(super) fn are_all(head: &[HeadLine], is_form: impl Fn(&str) -> bool) -> bool {
    let mut stamps = Stamps::new(ShortClocks::AreStamps);
    head.iter().all(|line| !matches!(parse(&line.text, &mut stamps), Line::Amount(_)) || is_form(&line.text))
}

fn parse(line: &str, stamps: &mut Stamps) -> Line {
    if let Some(amount) = amount_of(line).filter(|_| !stamps.is_next_number(line)) {
        return Line::Amount(amount);
    }
    let before = stamps.count();
    let rest = stamps.strip(line);
    match amount_of(rest) {
        _ if stamps.count() == before => Line::Other,
        Some(amount) => Line::Amount(amount),
        None if rest.is_empty() => Line::Stamp,
        None => Line::Other,
    }
}

/// An amount; two numbers with a comma between them are not one.
fn amount_of(text: &str) -> Option<Amount> {
    let parts_thousands = text.split(',').skip(1).all(|part| part.bytes().take_while(u8::is_ascii_digit).count() == 3);
    parse_amount(text.as_bytes(), Comma::Thousands).ok().filter(|_| parts_thousands)
}

/// Whether lines such as `7,101,301` are rows that begin with their own number, rather than amounts with thousands.
fn counts_rows(head: &[HeadLine]) -> bool {
    // A number with thousands begins with at most three digits; seconds since 1970 have ten.
    let first = |line: &HeadLine| {
        let (first, _) = line.text.split_once(',').filter(|(first, _)| first.trim().len() <= 3)?;
        first.trim().parse::<u64>().ok()
    };
    let firsts: Vec<u64> = head.iter().filter_map(first).collect();
    // No number with thousands begins with a zero, and three amounts in a row hardly ever grow by exactly a thousand.
    firsts.contains(&0) || (firsts.len() > 2 && firsts.windows(2).all(|pair| pair[0] + 1 == pair[1]))
}

/// The most words of a heading that is a name; a longer one is a sentence about the file.
const MOST_WORDS: usize = 3;

/// The names in a heading above the amounts that says that they are something other than memory in use.
pub(super) fn foreign_names(head: &[HeadLine]) -> Option<Vec<String>> {
    let mut stamps = Stamps::new(ShortClocks::AreStamps);
    let is_comment = |line: &&HeadLine| line.text.starts_with('#');
    if let Some(comment) = head.iter().take_while(is_comment).find(|line| names_other_amount(&line.text)) {
        return Some(vec![comment.text.trim_start_matches(['#', ' ']).to_string()]);
    }
    let first = head.iter().find(|line| !is_comment(line))?;
    let is_heading = matches!(parse(&first.text, &mut stamps), Line::Other) && first.text.contains(char::is_alphabetic);
    if !is_heading {
        return None;
    }
    if let Some((_, names)) = header_names(&first.text).filter(|(_, names)| names.len() > 1) {
        return Some(names);
    }
    let names: Vec<String> = first.text.split_whitespace().map(str::to_string).collect();
    let is_foreign = names_other_amount(&first.text) || (names.len() <= MOST_WORDS && !names_memory(&first.text));
    is_foreign.then_some(names)
}

fn names_memory(text: &str) -> bool {
    const MEMORY: [&str; 9] = ["memory", "mem", "ram", "rss", "pss", "uss", "vmrss", "resident", "vram"];
    words(text).iter().any(|word| MEMORY.contains(&word.as_str()))
}

/// Whether words name memory, but not memory in use: `free memory in MB`, `memory_percent`.
fn names_other_amount(text: &str) -> bool {
    names_memory(text) && (text.contains('%') || words(text).iter().any(|word| is_other_amount(word)))
}

/// The name of the numbers in reports.
const COLUMN: &str = "value";

/// Reads the amounts.
pub(super) fn read<R: Read>(lines: &mut Lines<R>, options: &ReadOptions, reading: &mut Reading) -> Result<(), Error> {
    if let Some(asked) = &options.column {
        return Err(Error::NoSuchColumn { asked: asked.clone(), available: Vec::new() });
    }
    let column = BareColumn { name: COLUMN.to_string(), convention: Convention::None, provisional: MIB, in_log: None };
    reading.declare_bare(Quantity::Rss, column);
    let factor = options.unit.map(|unit| unit.factor());
    let mut amounts = Amounts { stamps: Stamps::new(ShortClocks::AreStamps), last_stamp: 0, factor };
    while let Some(line) = lines.next()? {
        let taken = match line.end {
            LineEnd::TooLong => Err(TOO_LONG),
            _ => amounts.take(&String::from_utf8_lossy(line.text), reading),
        };
        if let Err(reason) = taken {
            reading.skip_line(reason, line.number, || show_line(line.text));
        }
    }
    reading.name_main(COLUMN);
    Ok(())
}

struct Amounts {
    stamps: Stamps,
    /// The number of the stamp used last.
    last_stamp: u64,
    /// The unit that the caller gave.
    factor: Option<u64>,
}

impl Amounts {
    fn take(&mut self, line: &str, reading: &mut Reading) -> Result<(), &'static str> {
        let amount = match parse(line, &mut self.stamps) {
            Line::Amount(amount) => amount,
            Line::Stamp => return Ok(()),
            Line::Other => return Err("not an amount"),
        };
        let bytes = amount.scaled(self.factor.unwrap_or(MIB)).map_err(|problem| problem.reason())?;
        // A stamp dates one sample.
        let stamp = self.stamps.now().filter(|stamp| stamp.number != self.last_stamp);
        self.last_stamp = stamp.map_or(self.last_stamp, |stamp| stamp.number);
        let mut sample = Sample::default();
        sample.time_s = stamp.map(|stamp| stamp.time_s);
        stamp.iter().for_each(|stamp| reading.times.saw(stamp.form));
        sample.set(Quantity::Rss, bytes);
        match amount.factor.or(self.factor) {
            Some(factor) => {
                reading.saw_factor(factor);
                reading.push(&sample);
            }
            None => reading.push_bare(&sample, &[(Quantity::Rss, amount.value)]),
        }
        Ok(())
    }
}

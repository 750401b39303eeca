//! What a template may use up: a budget of work for each rendering, and bounds on how long a text and how deep a value may become.
//!
//! A template is code from outside, and a few characters of it can ask for more than a machine has: a text that doubles forty times, a list that holds
//! itself twice in each of sixty turns. So everything that reads or makes more than a few bytes pays for it beforehand, in
//! bytes and not in time, so that a row is refused on every machine or on none. Only finite values of bounded depth can be made, and all that
//! walks through values (comparing, writing, dropping) needs no more stack for that.

use std::cell::Cell;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// Steps of the interpreter: a hundred for each of a hundred thousand messages.
pub(super) const STEPS: u64 = 10_000_000;
/// Bytes of the longest text that a template is given or makes: four million tokens.
pub(super) const LONGEST_TEXT: usize = 16 << 20;
/// Bytes that a rendering may read. One that is made costs as much as reading [`MADE`], so it makes 128 MiB at most.
const WORK: u64 = 512 << 20;
const MADE: u64 = 4;
/// Bytes that an element of a list is counted as.
const ELEMENT: u64 = 64;
/// Looking at a value takes as long as reading so many bytes.
const LOOK: u64 = 64;
/// Bytes of a text that are compared or searched as fast as one is made.
const SEARCHED: usize = 16;
/// Lists in lists: rows have at most 128, as they come from JSON.
const DEEPEST: usize = 200;
/// Bytes that a character may become where a text inside of a list is written.
const ESCAPED: u64 = 6;
/// Bytes that numbers and words are counted as.
const WORD: u64 = 24;

thread_local! {
    /// What is left to the rendering on this thread. Renderings do not nest.
    static LEFT: Cell<u64> = const { Cell::new(0) };
}

/// Begins a rendering.
pub(super) fn begin() {
    LEFT.set(WORK);
}

fn error(problem: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, problem)
}

/// Pays for bytes that are read.
pub(super) fn read(bytes: u64) -> Result<(), Error> {
    let Some(left) = LEFT.get().checked_sub(bytes) else {
        LEFT.set(0);
        let problem = format!("it reads more than {} MiB or makes more than {} MiB", WORK >> 20, (WORK / MADE) >> 20);
        return Err(error(problem));
    };
    LEFT.set(left);
    Ok(())
}

/// Pays for a search through texts.
pub(super) fn searched(bytes: usize) -> Result<(), Error> {
    read((bytes / SEARCHED) as u64 + 1)
}

/// Pays for a text that is made.
pub(super) fn made(bytes: u64) -> Result<(), Error> {
    longest(bytes)?;
    read(bytes.saturating_mul(MADE))
}

/// Pays for a list that is made.
pub(super) fn listed(elements: u64) -> Result<(), Error> {
    read(elements.saturating_mul(ELEMENT * MADE))
}

fn longest(bytes: u64) -> Result<(), Error> {
    match bytes > LONGEST_TEXT as u64 {
        true => Err(error(format!("it makes a text of more than {} MiB", LONGEST_TEXT >> 20))),
        false => Ok(()),
    }
}

/// A text that grows as far as the budget allows.
#[derive(Default)]
pub(super) struct Text(String);

impl Text {
    /// Adds to it.
    pub(super) fn push(&mut self, more: &str) -> Result<(), Error> {
        longest((self.0.len() + more.len()) as u64)?;
        made(more.len() as u64)?;
        self.0.push_str(more);
        Ok(())
    }

    /// Adds blanks to it.
    pub(super) fn blanks(&mut self, count: usize) -> Result<(), Error> {
        longest((self.0.len() as u64).saturating_add(count as u64))?;
        made(count as u64)?;
        self.0.extend(std::iter::repeat_n(' ', count));
        Ok(())
    }

    /// All of it.
    pub(super) fn finish(self) -> String {
        self.0
    }
}

/// Goes through a value and pays for it. The answer is how many bytes it has at most when it is written out.
pub(super) fn weigh(value: &Value) -> Result<u64, Error> {
    weigh_at(value, 0)
}

fn weigh_at(value: &Value, depth: usize) -> Result<u64, Error> {
    too_deep(depth)?;
    read(LOOK)?;
    if let Some(text) = value.as_str() {
        searched(text.len())?;
        return Ok(text.len() as u64 * if depth == 0 { 1 } else { ESCAPED });
    }
    let kind = value.kind();
    if !matches!(kind, ValueKind::Seq | ValueKind::Iterable | ValueKind::Map) {
        return Ok(WORD);
    }
    if depth > 0 && is_namespace(value) {
        return Err(error("a namespace cannot be part of another value".to_string()));
    }
    let mut bytes = WORD;
    for item in value.try_iter()? {
        if kind == ValueKind::Map {
            bytes += weigh_at(&value.get_item(&item)?, depth + 1)?;
        }
        bytes += WORD + weigh_at(&item, depth + 1)?;
    }
    Ok(bytes)
}

/// Refuses what is written or read too many levels down.
pub(super) fn too_deep(depth: usize) -> Result<(), Error> {
    match depth > DEEPEST {
        true => Err(error(format!("it makes a value with more than {DEEPEST} lists or objects inside of each other"))),
        false => Ok(()),
    }
}

/// Pays for a value that was just made. What would be computed only when it is read is computed now: views of views would
/// otherwise go as deep as a template likes.
pub(super) fn held(value: Value) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        made(text.len() as u64)?;
        return Ok(value);
    }
    if value.kind() == ValueKind::Iterable {
        return listed_now(&value);
    }
    weigh(&value)?;
    Ok(value)
}

/// Pays for a list of what a value gives one by one.
pub(super) fn listed_now(value: &Value) -> Result<Value, Error> {
    let mut items = Vec::new();
    for item in value.try_iter()? {
        listed(1)?;
        items.push(item);
    }
    let value = Value::from(items);
    weigh(&value)?;
    Ok(value)
}

/// Pays for a value that becomes part of a namespace.
pub(super) fn kept(value: Value) -> Result<Value, Error> {
    weigh_at(&value, 1)?;
    Ok(value)
}

/// Pays for going through a value once, and not into its elements.
pub(super) fn walked(value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => searched(text.len()),
        None => read(1 + value.len().unwrap_or(0) as u64),
    }
}

/// Namespaces are the only values that change, so the only ones that could come to hold themselves.
fn is_namespace(value: &Value) -> bool {
    value.as_object().is_some_and(|object| object.type_name().ends_with("::Namespace"))
}

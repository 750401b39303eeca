//! Resource limits of a template: a budget of work per rendering, and bounds on the length of texts and the depth of values.
//!
//! A template is untrusted code, and a few characters of it can demand more than a machine has: a text that doubles forty times, a list that holds
//! itself twice in each of sixty turns. So everything that reads or produces more than a few bytes is charged beforehand, in
//! bytes and not in time, so that a row is refused on every machine or on none. Only finite values of bounded depth can be made, so
//! everything that traverses values (comparing, writing, dropping) needs bounded stack, too.

use std::cell::Cell;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// Interpreter steps: a hundred for each of a hundred thousand messages.
pub(super) const STEPS: u64 = 10_000_000;
/// Maximum bytes of a text given to or made by a template: four million tokens.
pub(super) const LONGEST_TEXT: usize = 16 << 20;
/// Bytes that a rendering may read. A byte produced costs as much as reading [`MADE`], so at most 128 MiB are produced.
const WORK: u64 = 512 << 20;
const MADE: u64 = 4;
/// Bytes charged per list element.
const ELEMENT: u64 = 64;
/// Looking at a value costs as much as reading this many bytes.
const LOOK: u64 = 64;
/// Bytes compared or searched at the cost of producing one.
const SEARCHED: usize = 16;
/// Maximum nesting of lists and objects; rows have at most 128 levels, as they come from JSON.
const DEEPEST: usize = 200;
/// Maximum bytes that a character becomes when a string inside a list is printed.
const ESCAPED: u64 = 6;
/// Bytes charged for numbers and keywords.
const WORD: u64 = 24;

thread_local! {
    /// Budget left for the rendering on this thread. Renderings do not nest.
    static LEFT: Cell<u64> = const { Cell::new(0) };
}

/// Starts a rendering.
pub(super) fn begin() {
    LEFT.set(WORK);
}

fn error(problem: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, problem)
}

/// Charges for bytes read.
pub(super) fn read(bytes: u64) -> Result<(), Error> {
    let Some(left) = LEFT.get().checked_sub(bytes) else {
        LEFT.set(0);
        let problem = format!("it reads more than {} MiB or makes more than {} MiB", WORK >> 20, (WORK / MADE) >> 20);
        return Err(error(problem));
    };
    LEFT.set(left);
    Ok(())
}

/// Charges for a search through text.
pub(super) fn searched(bytes: usize) -> Result<(), Error> {
    read((bytes / SEARCHED) as u64 + 1)
}

/// Charges for text produced.
pub(super) fn made(bytes: u64) -> Result<(), Error> {
    longest(bytes)?;
    read(bytes.saturating_mul(MADE))
}

/// Charges for a list produced.
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
    /// Appends text.
    pub(super) fn push(&mut self, more: &str) -> Result<(), Error> {
        longest((self.0.len() + more.len()) as u64)?;
        made(more.len() as u64)?;
        self.0.push_str(more);
        Ok(())
    }

    /// Appends blanks.
    pub(super) fn blanks(&mut self, count: usize) -> Result<(), Error> {
        longest((self.0.len() as u64).saturating_add(count as u64))?;
        made(count as u64)?;
        self.0.extend(std::iter::repeat_n(' ', count));
        Ok(())
    }

    /// The whole text.
    pub(super) fn finish(self) -> String {
        self.0
    }
}

/// Traverses a value and charges for it. Returns the maximum number of bytes it has when printed.
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

/// Refuses values nested too deeply.
pub(super) fn too_deep(depth: usize) -> Result<(), Error> {
    match depth > DEEPEST {
        true => Err(error(format!("it makes a value with more than {DEEPEST} nested lists or objects"))),
        false => Ok(()),
    }
}

/// Charges for a new value. Lazy values are evaluated now: views of views could otherwise
/// nest without limit.
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

/// Charges for collecting an iterable into a list.
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

/// Charges for a value stored in a namespace.
pub(super) fn kept(value: Value) -> Result<Value, Error> {
    weigh_at(&value, 1)?;
    Ok(value)
}

/// Charges for iterating over a value once, without descending into its elements.
pub(super) fn walked(value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => searched(text.len()),
        None => read(1 + value.len().unwrap_or(0) as u64),
    }
}

/// Namespaces are the only mutable values, so the only ones that could contain themselves.
fn is_namespace(value: &Value) -> bool {
    value.as_object().is_some_and(|object| object.type_name().ends_with("::Namespace"))
}

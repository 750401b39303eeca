//! JSON with a memory field: one object per line, or one list of objects.
//!
//! Keys are understood like the columns of a table. Only keys in the first 64 KiB are used.

mod objects;

use std::borrow::Cow;
use std::io::{BufRead, BufReader, Read};

use garden_memory::Quantity;

use super::{Contents, Head, Reader, Recognised, claim};
use crate::ReadOptions;
use crate::amount::{Amount, Comma, Problem, parse_amount};
use crate::columns::choice::{Choice, Variant};
use crate::columns::{Row, skip_cell};
use crate::error::Error;
use crate::lines::{HeadLine, LONGEST_LINE, LineEnd, Lines};
use crate::reading::{KEY_END, Reading, TOO_LONG, TOO_MANY_SERIES, show_line, show_value};
use objects::{Objects, Scalar, visit_object};

const NOT_JSON: &str = "not a JSON object";

/// Recognises lines that are objects with a memory field.
pub(super) fn recognise_lines(head: &Head<'_>) -> Recognised {
    // Objects without a memory field may still hold log lines as texts.
    match columns_of_lines(head.lines, head.options)? {
        Ok(choice) => claim(JsonLines(choice)),
        Err(error @ Error::Share { .. }) => Some(Err(error)),
        Err(_) => None,
    }
}

/// Recognises a list of objects.
pub(super) fn recognise_array(head: &Head<'_>) -> Recognised {
    Some(columns_of_array(head.bytes, head.options)?.map(|choice| Box::new(JsonArray(choice)) as Box<dyn Reader>))
}

struct JsonLines(Choice);

impl Reader for JsonLines {
    fn name(&self) -> &'static str {
        "json lines"
    }

    fn read(&self, file: &mut Contents<'_>, reading: &mut Reading) -> Result<(), Error> {
        read_lines(&mut file.lines, &self.0, reading)
    }
}

struct JsonArray(Choice);

impl Reader for JsonArray {
    fn name(&self) -> &'static str {
        "json array"
    }

    fn read(&self, file: &mut Contents<'_>, reading: &mut Reading) -> Result<(), Error> {
        read_array(&mut file.lines, &self.0, reading)
    }
}

/// Finds the memory field in lines that are JSON objects; an error lists the fields.
pub(super) fn columns_of_lines(head: &[HeadLine], options: &ReadOptions) -> Option<Result<Choice, Error>> {
    let first = head.first()?;
    let first_is_object = visit_object(first.text.as_bytes(), &mut String::new(), &mut |_, _| {}).is_ok();
    first_is_object.then(|| columns_of(head.iter().map(|line| line.text.as_bytes()), options))
}

/// Finds the memory field in a list of objects.
fn columns_of_array(head: &[u8], options: &ReadOptions) -> Option<Result<Choice, Error>> {
    let mut significant = head.iter().filter(|byte| !byte.is_ascii_whitespace());
    let opening = [significant.next()?, significant.next()?, significant.next()?];
    if opening != [&b'[', &b'{', &b'"'] {
        return None;
    }
    let mut objects = Objects::default();
    let mut found = Vec::new();
    for &byte in head {
        if objects.push(byte) {
            found.push(objects.object().to_vec());
        }
    }
    Some(columns_of(found.iter().map(Vec::as_slice), options))
}

fn columns_of<'a>(objects: impl Iterator<Item = &'a [u8]> + Clone, options: &ReadOptions) -> Result<Choice, Error> {
    let mut path = String::new();
    let mut names: Vec<String> = Vec::new();
    for object in objects.clone() {
        // A line that is not an object says nothing about the others.
        let _ = visit_object(object, &mut path, &mut |key, _| {
            if !names.iter().any(|name| name == key) && names.len() < MOST_KEYS {
                names.push(key.to_string());
            }
        });
    }
    let mut choice = Choice::of(names, options)?;
    for object in objects {
        let _ = visit_object(object, &mut path, &mut |key, value| {
            let Some(index) = choice.columns().names.iter().position(|name| name == key) else { return };
            if let Ok(amount) = amount_of(value) {
                choice.observe(index, amount);
            }
            if choice.wants_text(index) {
                choice.observe_text(index, &text_of(value));
            }
        });
    }
    choice.settle(options);
    Ok(choice)
}

/// A file with more different keys than this is a dictionary, not a series of rows.
const MOST_KEYS: usize = 1000;

fn amount_of(value: Scalar<'_>) -> Result<Amount, Problem> {
    match value {
        Scalar::Number(value) => Ok(Amount { value, factor: None }),
        Scalar::Text(text) => parse_amount(text.as_bytes(), Comma::Thousands),
    }
}

/// Reads one object per line.
fn read_lines<R: Read>(lines: &mut Lines<R>, choice: &Choice, reading: &mut Reading) -> Result<(), Error> {
    choice.introduce(reading);
    let mut rows = Rows { choice, row: Row::new(), path: String::new(), key: Vec::new() };
    while let Some(line) = lines.next()? {
        match line.end {
            LineEnd::TooLong => reading.skip_line(TOO_LONG, line.number, || show_line(line.text)),
            _ => rows.take(line.text, line.number, reading),
        }
    }
    rows.row.finish(reading);
    Ok(())
}

/// Reads one list of objects.
fn read_array<R: Read>(lines: &mut Lines<R>, choice: &Choice, reading: &mut Reading) -> Result<(), Error> {
    choice.introduce(reading);
    let mut rows = Rows { choice, row: Row::new(), path: String::new(), key: Vec::new() };
    let mut reader = BufReader::new(lines.reader());
    let (mut objects, mut line) = (Objects::default(), 1);
    loop {
        let chunk = match reader.fill_buf() {
            Ok(chunk) => chunk,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(source) => return Err(Error::Read { line, source }),
        };
        if chunk.is_empty() {
            break;
        }
        for &byte in chunk {
            line += u64::from(byte == b'\n');
            if objects.push(byte) {
                rows.take(objects.object(), line, reading);
            }
        }
        let count = chunk.len();
        reader.consume(count);
    }
    if objects.is_inside() {
        reading.skip_line("the last object is incomplete", line, || show_line(objects.object()));
    }
    rows.row.finish(reading);
    Ok(())
}

struct Rows<'a> {
    choice: &'a Choice,
    row: Row,
    path: String,
    key: Vec<u8>,
}

impl Rows<'_> {
    fn take(&mut self, object: &[u8], line: u64, reading: &mut Reading) {
        reading.leave();
        if object.len() > LONGEST_LINE {
            return reading.skip_line(TOO_LONG, line, || show_line(object));
        }
        for variant in &self.choice.variants {
            if !self.enter(object, variant, reading) {
                return reading.skip_line(TOO_MANY_SERIES, line, || show_line(object));
            }
            self.take_variant(object, variant, line, reading);
        }
    }

    /// Turns to the series of an object; false if there are too many.
    fn enter(&mut self, object: &[u8], variant: &Variant, reading: &mut Reading) -> bool {
        let choice = self.choice;
        if let Some(identity) = &variant.series {
            return reading.enter(identity.name(|_| true).as_bytes(), || identity.clone());
        }
        if choice.identity.is_empty() {
            return true;
        }
        let names = &variant.columns.names;
        let mut values: Vec<(usize, String)> = Vec::new();
        let _ = visit_object(object, &mut self.path, &mut |key, value| {
            if let Some((index, _)) = choice.identity.iter().find(|(index, _)| names[*index] == key) {
                values.push((*index, text_of(value).into_owned()));
            }
        });
        if values.is_empty() {
            return true;
        }
        self.key.clear();
        for (_, value) in &values {
            self.key.extend(value.bytes().chain([KEY_END]));
        }
        let cell = |index| values.iter().find(|(at, _)| *at == index).map(|(_, value)| value.as_str());
        reading.enter(&self.key, || choice.identity_of(cell))
    }

    fn take_variant(&mut self, object: &[u8], variant: &Variant, line: u64, reading: &mut Reading) {
        let (row, columns) = (&mut self.row, &variant.columns);
        row.clear();
        // Unusable numbers are counted only once the object is known to be complete.
        let mut problems: Vec<(usize, Problem, String)> = Vec::new();
        let parsed = visit_object(object, &mut self.path, &mut |key, value| {
            for &(index, what) in columns.used.iter().filter(|(index, _)| columns.names[*index] == key) {
                if let Err(problem) = row.set(what, || amount_of(value), || text_of(value)) {
                    problems.push((index, problem, text_of(value).into_owned()));
                }
            }
        });
        if parsed.is_err() {
            reading.leave();
            return reading.skip_line(NOT_JSON, line, || show_line(object));
        }
        if row.sample.get(Quantity::Rss).is_none() {
            let main = problems.into_iter().find(|(index, ..)| *index == columns.main());
            return match main {
                Some((index, problem, value)) => {
                    let shown = || show_value(&columns.names[index], value.as_bytes());
                    reading.skip_line(problem.reason(), line, shown)
                }
                None => reading.skip_line(Problem::Missing.reason(), line, || show_line(object)),
            };
        }
        for (index, problem, value) in problems {
            skip_cell(reading, problem, line, &columns.names[index], value.as_bytes());
        }
        row.push(columns.subject, reading);
        if variant.series.is_some() {
            reading.name_main(&columns.names[columns.main()]);
        }
    }
}

fn text_of(value: Scalar<'_>) -> Cow<'_, str> {
    match value {
        Scalar::Number(number) => number.to_string().into(),
        Scalar::Text(text) => text.into(),
    }
}

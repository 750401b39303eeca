//! JSON with a memory field: one object per line, or one list of objects.
//!
//! Keys are understood like the columns of a table. Only keys in the first 64 KiB are used.

use std::borrow::Cow;
use std::io::{BufRead, BufReader, Read};

use garden_memory::Quantity;

use crate::ReadOptions;
use crate::amount::{Amount, Comma, Problem, parse_amount};
use crate::columns::{Columns, Row, Use, skip_cell};
use crate::error::Error;
use crate::json::{Objects, Scalar, visit_object};
use crate::lines::{HeadLine, LONGEST_LINE, LineEnd, Lines};
use crate::reading::{Reading, TOO_LONG, show_line, show_value};

const NOT_JSON: &str = "not a JSON object";

/// Finds the memory field in lines that are JSON objects; an error lists the fields.
pub(crate) fn recognise_lines(head: &[HeadLine], options: &ReadOptions) -> Option<Result<Columns, Error>> {
    let first = head.first()?;
    let first_is_object = visit_object(first.text.as_bytes(), &mut String::new(), &mut |_, _| {}).is_ok();
    first_is_object.then(|| columns_of(head.iter().map(|line| line.text.as_bytes()), options))
}

/// Finds the memory field in a list of objects.
pub(crate) fn recognise_array(head: &[u8], options: &ReadOptions) -> Option<Result<Columns, Error>> {
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

fn columns_of<'a>(objects: impl Iterator<Item = &'a [u8]> + Clone, options: &ReadOptions) -> Result<Columns, Error> {
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
    let mut columns = Columns::choose(names, options)?;
    for object in objects {
        let _ = visit_object(object, &mut path, &mut |key, value| {
            let index = columns.names.iter().position(|name| name == key);
            if let (Some(index), Ok(amount)) = (index, amount_of(value)) {
                columns.observe(index, amount);
            }
        });
    }
    columns.guess_units();
    Ok(columns)
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
pub(crate) fn read_lines<R: Read>(lines: &mut Lines<R>, columns: &Columns, reading: &mut Reading) -> Result<(), Error> {
    columns.introduce(reading);
    let mut rows = Rows { columns, row: Row::new(), path: String::new() };
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
pub(crate) fn read_array<R: Read>(lines: &mut Lines<R>, columns: &Columns, reading: &mut Reading) -> Result<(), Error> {
    columns.introduce(reading);
    let mut rows = Rows { columns, row: Row::new(), path: String::new() };
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
    columns: &'a Columns,
    row: Row,
    path: String,
}

impl Rows<'_> {
    fn take(&mut self, object: &[u8], line: u64, reading: &mut Reading) {
        if object.len() > LONGEST_LINE {
            return reading.skip_line(TOO_LONG, line, || show_line(object));
        }
        let (row, columns) = (&mut self.row, self.columns);
        row.clear();
        // Unusable numbers are counted only once the object is known to be complete.
        let mut problems: Vec<(usize, Problem, String)> = Vec::new();
        let mut factor = None;
        let parsed = visit_object(object, &mut self.path, &mut |key, value| {
            for &(index, what) in columns.used.iter().filter(|(index, _)| columns.names[*index] == key) {
                let amount = amount_of(value);
                if let (Use::Value { quantity: Quantity::Rss, factor: unstated }, Ok(amount)) = (what, amount) {
                    factor = Some(amount.factor.unwrap_or(unstated));
                }
                if let Err(problem) = row.set(what, || amount, || text_of(value)) {
                    problems.push((index, problem, text_of(value).into_owned()));
                }
            }
        });
        if parsed.is_err() {
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
        factor.into_iter().for_each(|factor| reading.saw_factor(factor));
        row.push(reading);
    }
}

fn text_of(value: Scalar<'_>) -> Cow<'_, str> {
    match value {
        Scalar::Number(number) => number.to_string().into(),
        Scalar::Text(text) => text.into(),
    }
}

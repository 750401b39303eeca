//! Rows of a row group: assembled from the columns' values by Dremel's levels (Melnik et al., Dremel, VLDB 2010).

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::sync::Arc;

use super::data_page::{Page, PageHeader, Plain, broken};
use super::footer::{Chunk, Footer, Group, Kind, Leaf, Node, Number};
use crate::dataset::value::{Object, Value};

/// One entry of a column: a value or null, with its levels.
pub(crate) struct Entry {
    repetition: u8,
    definition: u8,
    value: Vec<u8>,
}

/// Reads rows of a row group, fastest in order.
pub(crate) struct GroupReader {
    columns: Vec<ColumnReader>,
}

impl GroupReader {
    pub(crate) fn new(file: &Arc<File>, footer: &Footer, group: &Group) -> GroupReader {
        let column = |(leaf, chunk): (&Leaf, &Chunk)| ColumnReader::new(file.clone(), *leaf, *chunk);
        GroupReader { columns: footer.leaves.iter().zip(&group.chunks).map(column).collect() }
    }

    /// The fields of a row that can be read.
    pub(crate) fn read_each(&mut self, footer: &Footer, row: u64) -> Vec<(String, Value<'static>)> {
        let mut rest = &mut self.columns[..];
        let mut fields = Vec::with_capacity(footer.columns.len());
        for node in &footer.columns {
            let (own, others) = rest.split_at_mut(width(node));
            fields.extend(column(node, own, row).ok().map(|value| (node.name.clone(), value)));
            rest = others;
        }
        fields
    }

    /// Reads the fields of a row. An error comes with the name of its column.
    pub(crate) fn read(&mut self, footer: &Footer, row: u64) -> Result<Value<'static>, (String, io::Error)> {
        let mut rest = &mut self.columns[..];
        let mut fields = Vec::with_capacity(footer.columns.len());
        for node in &footer.columns {
            let (own, others) = rest.split_at_mut(width(node));
            let read = column(node, own, row).map_err(|error| (node.name.clone(), error))?;
            fields.push((Cow::Owned(node.name.clone()), read));
            rest = others;
        }
        Ok(Value::Object(Object(fields)))
    }
}

/// A row's value of a column, from its leaves.
fn column(node: &Node, leaves: &mut [ColumnReader], row: u64) -> io::Result<Value<'static>> {
    let mut entries = Vec::with_capacity(leaves.len());
    for leaf in leaves {
        entries.push(leaf.read(row)?);
    }
    let mut slices: Vec<&mut [Entry]> = entries.iter_mut().map(Vec::as_mut_slice).collect();
    value(node, &mut slices)
}

/// A column of a row group.
struct ColumnReader {
    file: Arc<File>,
    leaf: Leaf,
    chunk: Chunk,
    dictionary: Option<Plain>,
    page: Option<Page>,
    /// Offset of the next page.
    next_page: u64,
    /// The rows that begin in the open page: `first_row..end_row`.
    first_row: u64,
    end_row: u64,
}

impl ColumnReader {
    fn new(file: Arc<File>, leaf: Leaf, chunk: Chunk) -> ColumnReader {
        ColumnReader {
            file,
            leaf,
            chunk,
            dictionary: None,
            page: None,
            next_page: chunk.start,
            first_row: 0,
            end_row: 0,
        }
    }

    fn read(&mut self, row: u64) -> io::Result<Vec<Entry>> {
        if row < self.first_row {
            *self = ColumnReader::new(self.file.clone(), self.leaf, self.chunk);
        }
        while row >= self.end_row {
            if !self.turn(row)? {
                return Err(broken("a column with too few rows"));
            }
        }
        let mut entries = Vec::new();
        let first = self.entry_of(row - self.first_row)?;
        self.take(first, &mut entries)?;
        // A row of lists may continue in the next page, which its first repetition level shows.
        while self.leaf.repetition > 0 && row + 1 == self.end_row && self.turn(row + 1)? {
            let goes_on = self.page.as_ref().and_then(|page| page.repetition.first()).is_some_and(|level| *level > 0);
            if !goes_on {
                break;
            }
            self.take(0, &mut entries)?;
        }
        Ok(entries)
    }

    /// Moves to the next data page. Pages of flat columns before the row are skipped unopened.
    fn turn(&mut self, row: u64) -> io::Result<bool> {
        while self.next_page < self.chunk.end {
            let header = PageHeader::read(&self.file, self.next_page, self.chunk.end)?;
            self.next_page = header.end;
            if header.is_dictionary() {
                self.dictionary = Some(Plain::dictionary(&self.file, &self.chunk, &self.leaf, &header)?);
            } else if header.is_data() {
                let flat = self.leaf.repetition == 0;
                self.first_row = self.end_row;
                if flat && row >= self.end_row + header.values() {
                    self.end_row += header.values();
                    continue;
                }
                let page = Page::open(&self.file, &self.chunk, &self.leaf, &header)?;
                self.end_row += page.repetition.iter().filter(|level| **level == 0).count() as u64;
                self.page = Some(page);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The first entry of a row in the open page.
    fn entry_of(&self, row: u64) -> io::Result<usize> {
        let page = self.page.as_ref().ok_or_else(|| broken("a page"))?;
        let mut starts = page.repetition.iter().enumerate().filter(|(_, level)| **level == 0).map(|(index, _)| index);
        starts.nth(row as usize).ok_or_else(|| broken("a page with too few rows"))
    }

    /// Takes entries up to the next row.
    fn take(&mut self, first: usize, entries: &mut Vec<Entry>) -> io::Result<()> {
        let Some(page) = &mut self.page else { return Err(broken("a page")) };
        let highest = self.leaf.definition;
        let mut number = page.definition[..first].iter().filter(|level| **level == highest).count();
        let mut index = first;
        while index < page.repetition.len() && (index == first || page.repetition[index] > 0) {
            let (repetition, definition) = (page.repetition[index], page.definition[index]);
            let mut value = Vec::new();
            if definition == highest {
                value = page.value(number, &mut self.dictionary)?;
                number += 1;
            }
            entries.push(Entry { repetition, definition, value });
            index += 1;
        }
        Ok(())
    }
}

/// Number of leaf columns below a node.
fn width(node: &Node) -> usize {
    match &node.kind {
        Kind::Text | Kind::Bytes | Kind::Number(_) => 1,
        Kind::Object(nodes) => nodes.iter().map(width).sum(),
        Kind::List(node, _) => width(node),
    }
}

/// The fields of an object, each from its columns.
fn fields(nodes: &[Node], columns: &mut [&mut [Entry]]) -> io::Result<Object<'static>> {
    let mut rest = columns;
    let mut fields = Vec::with_capacity(nodes.len());
    for node in nodes {
        let (own, others) = rest.split_at_mut(width(node));
        fields.push((Cow::Owned(node.name.clone()), value(node, own)?));
        rest = others;
    }
    Ok(Object(fields))
}

fn value(node: &Node, columns: &mut [&mut [Entry]]) -> io::Result<Value<'static>> {
    let Some(level) = columns.first().and_then(|column| column.first()).map(|entry| entry.definition) else {
        return Err(broken("inconsistent columns"));
    };
    if node.repeated {
        return if level < node.definition { Ok(Value::List(Vec::new())) } else { elements(node, columns) };
    }
    if node.optional && level < node.definition {
        return Ok(Value::Null);
    }
    content(node, columns)
}

/// The values of a repeated node.
fn elements(node: &Node, columns: &mut [&mut [Entry]]) -> io::Result<Value<'static>> {
    let mut pieces: Vec<Vec<&mut [Entry]>> = Vec::with_capacity(columns.len());
    for column in columns.iter_mut() {
        let mut rest: &mut [Entry] = column;
        let mut own = Vec::new();
        while !rest.is_empty() {
            let next = rest.iter().skip(1).position(|entry| entry.repetition <= node.repetition);
            let (piece, others) = rest.split_at_mut(next.map_or(rest.len(), |next| next + 1));
            own.push(piece);
            rest = others;
        }
        own.reverse();
        pieces.push(own);
    }
    let mut values = Vec::new();
    while pieces.iter().any(|column| !column.is_empty()) {
        let element: Option<Vec<&mut [Entry]>> = pieces.iter_mut().map(Vec::pop).collect();
        values.push(content(node, &mut element.ok_or_else(|| broken("lists of different lengths"))?)?);
    }
    Ok(Value::List(values))
}

fn content(node: &Node, columns: &mut [&mut [Entry]]) -> io::Result<Value<'static>> {
    match &node.kind {
        Kind::Object(nodes) => Ok(Value::Object(fields(nodes, columns)?)),
        Kind::List(inner, wrapper) => match value(inner, columns)? {
            Value::List(list) if *wrapper => Ok(Value::List(list.into_iter().map(unwrapped).collect())),
            other => Ok(other),
        },
        Kind::Text => {
            let text = String::from_utf8(taken(columns)?)
                .map_err(|_| broken(&format!("`{}` is not UTF-8 text", node.name)))?;
            Ok(Value::Text(Cow::Owned(text)))
        }
        Kind::Bytes => Ok(Value::Bytes(taken(columns)?)),
        Kind::Number(number) => number_of(*number, &taken(columns)?),
    }
}

fn number_of(number: Number, bytes: &[u8]) -> io::Result<Value<'static>> {
    let wide = |_| broken("a number of another size than its column's");
    let four = || bytes.try_into().map_err(wide);
    let eight = || bytes.try_into().map_err(wide);
    Ok(match number {
        Number::Bool => Value::Bool(bytes.first().is_some_and(|byte| *byte != 0)),
        Number::Int32 => Value::Integer(i32::from_le_bytes(four()?).into()),
        Number::Unsigned32 => Value::Integer(u32::from_le_bytes(four()?).into()),
        Number::Float => Value::Number(f32::from_le_bytes(four()?).into()),
        Number::Int64 => Value::Integer(i64::from_le_bytes(eight()?).into()),
        Number::Unsigned64 => Value::Integer(u64::from_le_bytes(eight()?).into()),
        Number::Double => Value::Number(f64::from_le_bytes(eight()?)),
    })
}

fn taken(columns: &mut [&mut [Entry]]) -> io::Result<Vec<u8>> {
    let entry = columns.first_mut().and_then(|column| column.first_mut());
    entry.map(|entry| std::mem::take(&mut entry.value)).ok_or_else(|| broken("a column without values"))
}

/// The element without the wrapper group of lists.
fn unwrapped(value: Value<'static>) -> Value<'static> {
    match value {
        Value::Object(mut object) if object.0.len() == 1 => object.0.remove(0).1,
        other => other,
    }
}

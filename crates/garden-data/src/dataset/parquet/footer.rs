//! The metadata in the footer of a Parquet file: its columns, and where their chunks are.

use std::fs::File;

use super::thrift::{self, Item};
use crate::dataset::conversation::is_known;
use crate::dataset::field_names::FieldNames;
use crate::dataset::stored::Stored;
use crate::dataset::suspect::name_may_look;
use crate::error::Error;

pub(crate) const MAGIC: &[u8] = b"PAR1";
/// The physical type of strings and bytes.
const BYTE_ARRAY: i64 = 6;
/// Converted types of unsigned integers, and of signed ones.
const UNSIGNED: std::ops::RangeInclusive<i64> = 11..=14;
const SIGNED: std::ops::RangeInclusive<i64> = 15..=18;
const OPTIONAL: i64 = 1;
const REPEATED: i64 = 2;

/// A column, or a part of one.
#[derive(Debug)]
pub(crate) struct Node {
    pub name: String,
    pub repeated: bool,
    pub optional: bool,
    /// Maximum definition and repetition level of this node.
    pub definition: u8,
    pub repetition: u8,
    pub kind: Kind,
}

#[derive(Debug)]
pub(crate) enum Kind {
    Text,
    Bytes,
    Number(Number),
    Object(Vec<Node>),
    /// A group around a repeated one; whether the repeated group only wraps the element.
    List(Box<Node>, bool),
}

/// How a number is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Number {
    Bool,
    Int32,
    Int64,
    Unsigned32,
    Unsigned64,
    Float,
    Double,
}

impl Number {
    /// Bytes per value; `None` for booleans, which take a bit.
    pub(crate) fn width(self) -> Option<usize> {
        match self {
            Number::Bool => None,
            Number::Int32 | Number::Unsigned32 | Number::Float => Some(4),
            Number::Int64 | Number::Unsigned64 | Number::Double => Some(8),
        }
    }
}

/// A leaf column.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaf {
    /// Index among all columns of the file.
    ordinal: usize,
    pub definition: u8,
    pub repetition: u8,
    /// How its numbers are stored; `None` for strings or bytes.
    pub number: Option<Number>,
}

/// A row group.
#[derive(Debug)]
pub(crate) struct Group {
    pub first_row: u64,
    pub rows: u64,
    /// One per leaf that is read.
    pub chunks: Vec<Chunk>,
}

/// The pages of a column in a row group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    pub start: u64,
    pub end: u64,
    pub codec: i64,
}

/// The whole footer.
#[derive(Debug)]
pub(crate) struct Footer {
    pub columns: Vec<Node>,
    pub leaves: Vec<Leaf>,
    pub groups: Vec<Group>,
    /// Columns, or parts of them, that are not read.
    pub unread: Vec<String>,
}

/// Which columns are read.
#[derive(Clone, Copy)]
pub(crate) enum Wanted<'a> {
    /// Those that mean something, those whose names look as if they did, and these.
    Meant(&'a FieldNames, &'a [String]),
    /// All others that have texts or bytes, but for those that the user leaves out.
    Others(&'a FieldNames),
}

impl Footer {
    pub(crate) fn read(stored: &Stored, file: &File, wanted: Wanted<'_>) -> Result<Footer, Error> {
        let cut_off = || {
            Error::dataset(&stored.path, "is truncated: parquet files end with `PAR1`")
                .with_hint("was it downloaded or copied completely?")
        };
        if stored.length < 12 {
            return Err(cut_off());
        }
        let tail = stored.read(file, stored.length - 8, 8)?;
        let length = u64::from(u32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]));
        if &tail[4..] != MAGIC || length > stored.length - 12 {
            return Err(cut_off());
        }
        let bytes = stored.read(file, stored.length - 8 - length, length as usize)?;
        let broken = |_| Error::dataset(&stored.path, "has a broken footer");
        let (item, _) = thrift::read(&bytes).map_err(broken)?;
        Footer::of(stored, &item, wanted)
    }

    fn of(stored: &Stored, item: &Item, wanted: Wanted<'_>) -> Result<Footer, Error> {
        let broken = |what: &str| Error::dataset(&stored.path, format!("has a broken footer: {what}"));
        let mut schema =
            Schema { elements: item.list(2), wanted, next: 0, ordinal: 0, leaves: Vec::new(), unread: Vec::new() };
        let columns = schema.root().ok_or_else(|| broken("the schema is inconsistent"))?;
        if columns.is_empty() && matches!(wanted, Wanted::Meant(..)) {
            let names: Vec<String> =
                item.list(2).iter().skip(1).filter_map(|element| element.text(4)).take(20).collect();
            return Err(Error::dataset(
                &stored.path,
                format!("has no known column: it has {}", names.join(", ")),
            )
            .with_hint(
                "known columns are `messages`, `conversations`, or `prompt` and `response`, with `image` or `images`; `--field question=NAME` says which column is one",
            ));
        }
        let (leaves, unread) = (schema.leaves, schema.unread);
        let mut groups = Vec::new();
        let mut first_row = 0;
        for group in item.list(4) {
            let rows = group
                .int(3)
                .and_then(|rows| u64::try_from(rows).ok())
                .ok_or_else(|| broken("a row group without rows"))?;
            let chunk = |leaf: &Leaf| chunk(stored, group.list(1).get(leaf.ordinal)?.field(3)?);
            let chunks: Option<Vec<Chunk>> = leaves.iter().map(chunk).collect();
            groups.push(Group {
                first_row,
                rows,
                chunks: chunks.ok_or_else(|| broken("a column is outside the file"))?,
            });
            first_row += rows;
        }
        Ok(Footer { columns, leaves, groups, unread })
    }
}

fn chunk(stored: &Stored, column: &Item) -> Option<Chunk> {
    let data = column.int(9)?;
    // Old writers put 0 for no dictionary.
    let dictionary = column.int(11).filter(|offset| *offset > 0).unwrap_or(data);
    let start = u64::try_from(data.min(dictionary)).ok()?;
    let end = start.checked_add(u64::try_from(column.int(7)?).ok()?)?;
    (end <= stored.length).then_some(Chunk { start, end, codec: column.int(4)? })
}

/// The schema as stored: all nodes flattened, each with its number of children.
struct Schema<'a> {
    elements: &'a [Item],
    wanted: Wanted<'a>,
    next: usize,
    ordinal: usize,
    leaves: Vec<Leaf>,
    unread: Vec<String>,
}

impl Schema<'_> {
    /// The columns that are read.
    fn root(&mut self) -> Option<Vec<Node>> {
        let children = self.elements.first()?.int(5)?;
        self.next = 1;
        let mut columns = Vec::new();
        for _ in 0..children {
            let name = self.elements.get(self.next)?.text(4)?;
            let is_wanted = self.wants(&name);
            if !is_wanted {
                self.unread.push(name.clone());
            }
            columns.extend(self.node(0, 0, is_wanted.then_some(name.as_str()), 0)?);
        }
        Some(columns)
    }

    /// Whether a column is read: for its meaning, or because it looks as if it had one, in which case its values decide.
    fn wants(&self, column: &str) -> bool {
        let has_bytes = || {
            let children = self.elements.get(self.next).and_then(|element| element.int(5)).unwrap_or(0).min(4) as usize;
            let children = self.elements.iter().skip(self.next + 1).take(children);
            children.filter_map(|child| child.text(4)).any(|name| name == "bytes")
        };
        let (Wanted::Meant(names, _) | Wanted::Others(names)) = self.wanted;
        let is_meant = is_known(column) || names.gives_meaning_to(column) || name_may_look(column) || has_bytes();
        let is_wanted = match self.wanted {
            Wanted::Meant(_, also) => is_meant || also.iter().any(|name| name == column),
            Wanted::Others(_) => !is_meant,
        };
        is_wanted && !names.ignores(column)
    }

    /// The next node; `Some(None)` if nothing of it is read. `wanted` is the path of a column that should be.
    fn node(&mut self, definition: u8, repetition: u8, wanted: Option<&str>, depth: usize) -> Option<Option<Node>> {
        let element = self.elements.get(self.next)?;
        self.next += 1;
        let (repeated, optional) = (element.int(3) == Some(REPEATED), element.int(3) == Some(OPTIONAL));
        let definition = definition.checked_add(u8::from(repeated || optional))?;
        let repetition = repetition + u8::from(repeated);
        let name = element.text(4)?;
        let kind = match element.int(5).filter(|children| *children > 0) {
            None => self.leaf(element, Leaf { ordinal: self.ordinal, definition, repetition, number: None }, wanted),
            Some(_) if depth > 32 => return None,
            Some(children) => {
                let wrapper = self.wraps_an_element(children, &name);
                let mut nodes = Vec::new();
                for _ in 0..children {
                    let inner = self.elements.get(self.next)?.text(4)?;
                    let path = wanted.map(|path| format!("{path}.{inner}"));
                    nodes.extend(self.node(definition, repetition, path.as_deref(), depth + 1)?);
                }
                match nodes.len() {
                    0 => None,
                    1 if children == 1 && nodes[0].repeated => Some(Kind::List(Box::new(nodes.remove(0)), wrapper)),
                    _ => Some(Kind::Object(nodes)),
                }
            }
        };
        Some(kind.map(|kind| Node { name, repeated, optional, definition, repetition, kind }))
    }

    fn leaf(&mut self, element: &Item, leaf: Leaf, wanted: Option<&str>) -> Option<Kind> {
        self.ordinal += 1;
        let path = wanted?;
        // The name of a column says all that numbers can.
        if element.int(1) != Some(BYTE_ARRAY) && matches!(self.wanted, Wanted::Others(_)) {
            return None;
        }
        if element.int(1) != Some(BYTE_ARRAY) {
            // Columns of nulls have a type of their own.
            let is_null = element.field(10).is_some_and(|logical| logical.field(11).is_some());
            let Some(number) = number(element) else {
                if is_null {
                    return None;
                }
                // The wrapper groups of a list are not fields.
                self.unread.push(path.replace(".list.element", "[]"));
                return None;
            };
            self.leaves.push(Leaf { number: Some(number), ..leaf });
            return Some(Kind::Number(number));
        }
        self.leaves.push(leaf);
        // Converted types UTF8, ENUM and JSON, or the logical type of strings.
        let logical =
            element.field(10).is_some_and(|logical| logical.field(1).is_some() || logical.field(12).is_some());
        let is_text = logical || matches!(element.int(6), Some(0 | 4 | 19));
        Some(if is_text { Kind::Text } else { Kind::Bytes })
    }

    /// Whether the next repeated group only wraps an element: it has one child and none of the names used by old writers.
    fn wraps_an_element(&self, children: i64, list: &str) -> bool {
        let Some(inner) = self.elements.get(self.next) else { return false };
        let name = inner.text(4).unwrap_or_default();
        children == 1 && inner.int(5) == Some(1) && name != "array" && name != format!("{list}_tuple")
    }
}

/// How a leaf stores plain numbers; `None` for dates, decimals and others that are stored as numbers but mean something else.
fn number(element: &Item) -> Option<Number> {
    let converted = element.int(6);
    // The logical type of integers.
    if element.field(10).is_some_and(|logical| logical.field(10).is_none()) {
        return None;
    }
    match (element.int(1)?, converted) {
        (0, None) => Some(Number::Bool),
        (1, Some(kind)) if UNSIGNED.contains(&kind) => Some(Number::Unsigned32),
        (2, Some(kind)) if UNSIGNED.contains(&kind) => Some(Number::Unsigned64),
        (1, kind) if kind.is_none_or(|kind| SIGNED.contains(&kind)) => Some(Number::Int32),
        (2, kind) if kind.is_none_or(|kind| SIGNED.contains(&kind)) => Some(Number::Int64),
        (4, None) => Some(Number::Float),
        (5, None) => Some(Number::Double),
        _ => None,
    }
}

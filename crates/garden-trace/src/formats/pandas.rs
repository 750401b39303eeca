//! Data frames as pandas writes them in one piece: `to_json()` by columns, `orient="index"` by rows, and `orient="split"`.
//!
//! Records (`orient="records"`, with or without `lines=True`) are lists and lines of objects, which `jsonl.rs` reads. A frame by
//! columns has the last column's first value at its end, so it is held whole and read as a table.

use std::fmt;
use std::io::{BufReader, Read};
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;

use super::{Contents, Head, Reader, Recognised, claim, read_as, table};
use crate::error::Error;
use crate::lines::Lines;
use crate::reading::Reading;
use crate::time::parse_moment;

/// How a frame is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Columns,
    Rows,
    Split,
}

const UNREADABLE: Error = Error::NoUsedMemory {
    problem: "it begins like a data frame of pandas, but breaks off or is not valid JSON",
    advice: "write it again, best with `to_csv()` or `to_json(orient=\"records\", lines=True)`",
};

/// Recognises one data frame.
pub(super) fn recognise(head: &Head<'_>) -> Recognised {
    form_of(head).map(claim)?
}

impl Reader for Form {
    fn name(&self) -> &'static str {
        "json of pandas"
    }

    fn read(&self, file: &mut Contents<'_>, reading: &mut Reading) -> Result<(), Error> {
        let table = to_table(&mut file.lines, *self)?;
        read_as(&table, table::recognise, file.options, reading)
    }
}

fn form_of(head: &Head<'_>) -> Option<Form> {
    // One object per line is something else.
    let is_whole = head.lines.len() == 1 || head.lines.first()?.text == "{";
    let text = head.json_keys();
    let rest = text.strip_prefix("{\"").filter(|_| is_whole)?;
    if rest.starts_with("columns\":[") {
        return Some(Form::Split);
    }
    let (outer, inside) = rest.split_once("\":{\"")?;
    let (inner, _) = inside.split_once("\":")?;
    let is_index = |key: &str| key.parse::<f64>().is_ok() || parse_moment(key).is_some();
    match (is_index(outer), is_index(inner)) {
        _ if outer.contains(['{', '[']) || inner.contains(['{', '}']) => None,
        (false, true) => Some(Form::Columns),
        (true, false) => Some(Form::Rows),
        _ => None,
    }
}

/// The frame as a table with commas.
fn to_table<R: Read>(lines: &mut Lines<R>, form: Form) -> Result<String, Error> {
    let reader = BufReader::new(lines.reader());
    let unreadable = |_: serde_json::Error| UNREADABLE;
    let frame = match form {
        Form::Split => serde_json::from_reader::<_, Split>(reader).map_err(unreadable)?.into_frame(),
        Form::Columns => of_columns(serde_json::from_reader(reader).map_err(unreadable)?),
        Form::Rows => of_rows(serde_json::from_reader(reader).map_err(unreadable)?),
    };
    Ok(frame.to_table())
}

struct Frame {
    names: Vec<String>,
    index: Vec<String>,
    rows: Vec<Vec<Value>>,
}

#[derive(Deserialize)]
struct Split {
    columns: Vec<Value>,
    #[serde(default)]
    index: Vec<Value>,
    data: Vec<Vec<Value>>,
}

impl Split {
    fn into_frame(self) -> Frame {
        let texts = |values: &[Value]| values.iter().map(text_of).collect();
        Frame { names: texts(&self.columns), index: texts(&self.index), rows: self.data }
    }
}

fn of_columns(columns: Ordered<Ordered<Value>>) -> Frame {
    let index = columns.0.first().map_or(Vec::new(), |(_, cells)| cells.0.iter().map(|(key, _)| key.clone()).collect());
    let mut rows = vec![Vec::new(); index.len()];
    let mut names = Vec::new();
    for (name, cells) in columns.0 {
        names.push(name);
        // All columns of a frame have the same index.
        let cells = cells.0.into_iter().map(|(_, cell)| cell).chain(std::iter::repeat(Value::Null));
        rows.iter_mut().zip(cells).for_each(|(row, cell)| row.push(cell));
    }
    Frame { names, index, rows }
}

fn of_rows(rows: Ordered<Ordered<Value>>) -> Frame {
    let names = rows.0.first().map_or(Vec::new(), |(_, cells)| cells.0.iter().map(|(key, _)| key.clone()).collect());
    let (index, rows) =
        rows.0.into_iter().map(|(key, row)| (key, row.0.into_iter().map(|(_, cell)| cell).collect())).unzip();
    Frame { names, index, rows }
}

/// Milliseconds since 1970 are times; smaller numbers count the rows.
const EARLIEST_MS: f64 = 1e11;

impl Frame {
    fn to_table(&self) -> String {
        let is_time = |key: &String| key.parse::<f64>().map_or(parse_moment(key).is_some(), |ms| ms >= EARLIEST_MS);
        let has_times = self.index.first().is_some_and(is_time) && self.index.len() == self.rows.len();
        let mut table = String::new();
        let mut line = |cells: &mut dyn Iterator<Item = String>| {
            table.push_str(&cells.map(|cell| quoted(&cell)).collect::<Vec<_>>().join(","));
            table.push('\n');
        };
        let index = |at: usize| has_times.then(|| self.index[at].clone());
        line(&mut self.names.iter().cloned().chain(has_times.then(|| "timestamp".to_string())));
        for (at, row) in self.rows.iter().enumerate() {
            line(&mut row.iter().map(text_of).chain(index(at)));
        }
        table
    }
}

fn text_of(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn quoted(cell: &str) -> String {
    match cell.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace(['\n', '\r'], " ").replace('"', "\"\"")),
        false => cell.to_string(),
    }
}

/// An object whose keys keep their order.
struct Ordered<T>(Vec<(String, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Ordered<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
            type Value = Ordered<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Ordered<T>, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Ordered(entries))
            }
        }
        deserializer.deserialize_map(Entries(PhantomData))
    }
}

//! Trace files: our own JSON Lines format, and readers for the formats people already have.
//!
//! [`read_all`] looks at the first 64 KiB, recognises the format by its content (never by the file's name) and streams
//! the rest line by line, so memory stays bounded by the samples kept, whatever the file is. A file may hold several
//! series; each becomes a trace. Unusable input is skipped, counted and reported. A file in which nothing is recognised
//! is an error, and so is one whose numbers could be of several units. Traces are not judged here.

mod amount;
mod audit;
mod columns;
mod encoding;
mod error;
mod formats;
mod lines;
mod listener;
mod reading;
mod series;
mod time;
mod unit;
mod writer;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use garden_memory::{Bytes, Input, Trace};

pub use audit::{AuditRecord, NamedTrace, read_audit};
pub use error::{Closest, Error, Lack, UnitReading};
pub use formats::own::last_time_s;
pub use listener::{Heard, Listener};
pub use unit::Unit;
pub use writer::{VERSION, Writer};

use formats::{Contents, Head};
use lines::Source;
use reading::Reading;

/// Options that override what the file says.
#[derive(Clone, Debug, Default)]
pub struct ReadOptions {
    /// The column (or, in a log, the label) that holds the memory to judge.
    pub column: Option<String>,
    /// The unit of that column, and of every number that states none.
    pub unit: Option<Unit>,
    /// The series to read, by its name or a unique part of it.
    pub select: Option<String>,
    /// This machine's memory, which rules out impossible units; `None` if unknown.
    pub machine: Option<Bytes>,
}

/// A trace, and how it was read.
#[derive(Clone, Debug)]
pub struct ReadTrace {
    /// The recorded run; the memory to judge is its `Quantity::Rss`.
    pub trace: Trace,
    /// The recognised format, the column used, and what was skipped.
    pub input: Input,
    /// Which of several series it is, such as `GPU 1` or `rank 3`; `None` for the only one.
    pub name: Option<String>,
}

/// Reads the only series in a file.
pub fn read_path(path: &Path, options: &ReadOptions) -> Result<ReadTrace, Error> {
    only(read_all_path(path, options)?)
}

/// Reads the only series from anything that yields bytes, such as standard input.
pub fn read(reader: impl Read, options: &ReadOptions) -> Result<ReadTrace, Error> {
    only(read_all(reader, options)?)
}

/// Reads all series in a file, in the order of their first sample; never empty.
pub fn read_all_path(path: &Path, options: &ReadOptions) -> Result<Vec<ReadTrace>, Error> {
    let failed = |source| Error::Open { path: path.to_path_buf(), source };
    let file = File::open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.is_dir() {
        return Err(Error::Directory { path: path.to_path_buf() });
    }
    read_all(file, options)
}

/// Reads all series from anything that yields bytes, in the order of their first sample; never empty.
pub fn read_all(reader: impl Read, options: &ReadOptions) -> Result<Vec<ReadTrace>, Error> {
    let text = encoding::text_of(reader).map_err(|source| Error::Read { line: 1, source })?;
    let source = Source::open(text)?;
    let head = source.head_lines();
    let format = formats::recognise(&Head { bytes: &source.head, lines: &head, options })?;
    let mut reading = Reading::new(format.name(), format.origin());
    format.read(&mut Contents { lines: source.into_lines(), head: &head, options }, &mut reading)?;
    reading.finish(options)
}

fn only(mut all: Vec<ReadTrace>) -> Result<ReadTrace, Error> {
    match all.pop() {
        Some(only) if all.is_empty() => Ok(only),
        last => {
            let names = all.into_iter().chain(last).filter_map(|read| read.name).collect();
            Err(Error::Several { names })
        }
    }
}

//! Trace files: our own JSON Lines format, and readers for the formats people already have.
//!
//! [`read`] looks at the first 64 KiB, recognises the format by its content (never by the file's name) and streams the
//! rest line by line, so memory stays bounded by the samples kept, whatever the file is. Unusable input is skipped,
//! counted and reported; only a file in which nothing is recognised is an error. Traces are not judged here.

mod amount;
mod audit;
mod columns;
mod epochs;
mod error;
mod json;
mod jsonl;
mod lines;
mod listener;
mod log;
mod mprof;
mod names;
mod own;
mod psrecord;
mod reading;
mod recognise;
mod table;
mod time;
mod unit;
mod writer;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use garden_memory::{Input, Trace};

pub use audit::{AuditRecord, NamedTrace, read_audit};
pub use error::Error;
pub use listener::{Heard, Listener};
pub use own::last_time_s;
pub use unit::Unit;
pub use writer::{VERSION, Writer};

use lines::Source;
use reading::Reading;
use recognise::Format;

/// Options that override what the file says.
#[derive(Clone, Debug, Default)]
pub struct ReadOptions {
    /// The column (or, in a log, the label) that holds the memory to judge.
    pub column: Option<String>,
    /// The unit of that column, and of every number that states none.
    pub unit: Option<Unit>,
}

/// A trace, and how it was read.
#[derive(Clone, Debug)]
pub struct ReadTrace {
    /// The recorded run; the memory to judge is its `Quantity::Rss`.
    pub trace: Trace,
    /// The recognised format, the column used, and what was skipped.
    pub input: Input,
}

/// Reads the trace in a file.
pub fn read_path(path: &Path, options: &ReadOptions) -> Result<ReadTrace, Error> {
    let failed = |source| Error::Open { path: path.to_path_buf(), source };
    let file = File::open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.is_dir() {
        return Err(Error::Directory { path: path.to_path_buf() });
    }
    read(file, options)
}

/// Reads a trace from anything that yields bytes, such as standard input.
pub fn read(reader: impl Read, options: &ReadOptions) -> Result<ReadTrace, Error> {
    let source = Source::open(reader)?;
    let head = source.head_lines();
    let format = recognise::recognise(&source, &head, options)?;
    let mut reading = Reading::new(format.name());
    let mut lines = source.into_lines();
    match &format {
        Format::Own => own::read(&mut lines, options, &mut reading)?,
        Format::MemoryProfiler => mprof::read(&mut lines, options, &mut reading)?,
        Format::Psrecord(header) => psrecord::read(&mut lines, header, options, &mut reading)?,
        Format::JsonLines(columns) => jsonl::read_lines(&mut lines, columns, &mut reading)?,
        Format::JsonArray(columns) => jsonl::read_array(&mut lines, columns, &mut reading)?,
        Format::Table(layout) => table::read(&mut lines, layout, &mut reading)?,
        Format::Log => log::read(&mut lines, &head, options, &mut reading)?,
    }
    if matches!(format, Format::Log) && reading.trace.is_empty() {
        return Err(recognise::explain_nothing(&head, options));
    }
    Ok(reading.finish())
}

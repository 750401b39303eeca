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

use formats::{
    Format, amounts, cloud, gpustat, jsonl, log, mprof, own, pandas, prometheus, psrecord, table, tools, trainer_state,
};
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
    let format = formats::recognise(&source, &head, options)?;
    let mut reading = Reading::new(format.name(), format.origin());
    let mut lines = source.into_lines();
    match &format {
        Format::Own => own::read(&mut lines, options, &mut reading)?,
        Format::MemoryProfiler => mprof::read(&mut lines, options, &mut reading)?,
        Format::Psrecord(header) => psrecord::read(&mut lines, header, options, &mut reading)?,
        Format::JsonLines(columns) => jsonl::read_lines(&mut lines, columns, &mut reading)?,
        Format::JsonArray(columns) => jsonl::read_array(&mut lines, columns, &mut reading)?,
        Format::Prometheus(form) => prometheus::read(&mut lines, *form, options, &mut reading)?,
        Format::Pandas(form) => return read_frame(&mut lines, *form, options),
        Format::TrainerState => return read_state(&mut lines, options),
        Format::Cloud(cloud) => cloud::read(&mut lines, *cloud, &mut reading)?,
        Format::Gpustat => gpustat::read(&mut lines, &mut reading)?,
        Format::Plain(plain) => amounts::read(&mut lines, *plain, options, &mut reading)?,
        Format::Tools => tools::read(&mut lines, &head, options, &mut reading)?,
        Format::Table(layout) => table::read(&mut lines, layout, &mut reading)?,
        Format::Log => log::read(&mut lines, &head, options, &mut reading)?,
    }
    if matches!(format, Format::Log) && reading.is_empty() {
        return Err(formats::explain_nothing(&head, options));
    }
    reading.finish(options)
}

/// Reads a data frame, which is a table in another order.
fn read_frame<R: Read>(
    lines: &mut lines::Lines<R>,
    form: pandas::Form,
    options: &ReadOptions,
) -> Result<Vec<ReadTrace>, Error> {
    let table = pandas::to_table(lines, form)?;
    let mut all = read_all(table.as_bytes(), options)?;
    all.iter_mut().for_each(|read| read.input.format = "json of pandas".to_string());
    Ok(all)
}

/// Reads the state of a trainer, whose entries are lines of JSON in one object.
fn read_state<R: Read>(lines: &mut lines::Lines<R>, options: &ReadOptions) -> Result<Vec<ReadTrace>, Error> {
    let state = trainer_state::read(lines)?;
    let mut all = read_all(state.to_lines().as_bytes(), options)?;
    for read in &mut all {
        read.input.format = Format::TrainerState.name().to_string();
        read.trace.facts.total_steps = read.trace.facts.total_steps.or(state.max_steps);
    }
    Ok(all)
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

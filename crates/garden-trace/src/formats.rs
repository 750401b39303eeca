//! Recognises the format of a file by its first 64 KiB.
//!
//! The strict formats are tried first; a file that none of them claims is read as a log. If a log turns out to hold no
//! memory, the file is examined once more for the most helpful error.

pub(crate) mod amounts;
mod closest;
pub(crate) mod cloud;
pub(crate) mod gpustat;
pub(crate) mod jsonl;
pub(crate) mod log;
pub(crate) mod mprof;
pub(crate) mod own;
pub(crate) mod pandas;
pub(crate) mod prometheus;
pub(crate) mod psrecord;
pub(crate) mod table;
pub(crate) mod tools;
pub(crate) mod trainer_state;

use crate::ReadOptions;
use crate::columns::choice::Choice;
use crate::error::{Error, shorten};
use crate::lines::{HeadLine, Source};
use crate::reading::Origin;
use table::headless;

/// A recognised format, with details learned on the way.
pub(crate) enum Format {
    Own,
    MemoryProfiler,
    Psrecord(psrecord::Header),
    JsonLines(Choice),
    JsonArray(Choice),
    Prometheus(prometheus::Form),
    Pandas(pandas::Form),
    Cloud(cloud::Cloud),
    TrainerState,
    Gpustat,
    Tools,
    Plain(amounts::Plain),
    Table(table::Layout),
    Log,
}

impl Format {
    /// The name in reports.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Format::Own => "model-garden trace",
            Format::MemoryProfiler => "memory_profiler",
            Format::Psrecord(_) => "psrecord",
            Format::JsonLines(_) => "json lines",
            Format::JsonArray(_) => "json array",
            Format::Prometheus(_) => "prometheus",
            Format::Pandas(_) => "json of pandas",
            Format::Cloud(cloud) => cloud.name(),
            Format::TrainerState => "trainer_state.json",
            Format::Gpustat => "gpustat",
            Format::Plain(amounts::Plain::NvidiaSmi) => "nvidia-smi",
            Format::Plain(amounts::Plain::Amounts) => "amounts",
            Format::Tools => "output of tools",
            Format::Table(layout) => layout.format_name(),
            Format::Log => "training log",
        }
    }

    /// Who writes it.
    pub(crate) fn origin(&self) -> Origin {
        match self {
            Format::Own => Origin::Own,
            Format::Plain(amounts::Plain::NvidiaSmi) => Origin::NvidiaSmi,
            Format::Table(layout) if layout.is_nvidia() => Origin::NvidiaSmi,
            _ => Origin::Foreign,
        }
    }
}

/// Recognises the format.
pub(crate) fn recognise<R>(source: &Source<R>, head: &[HeadLine], options: &ReadOptions) -> Result<Format, Error> {
    refuse_binary(&source.head)?;
    if head.is_empty() {
        return Err(Error::Empty);
    }
    if own::recognise(head) {
        return Ok(Format::Own);
    }
    if mprof::recognise(head) {
        return Ok(Format::MemoryProfiler);
    }
    if let Some(header) = psrecord::recognise(head) {
        return Ok(Format::Psrecord(header));
    }
    if let Some(form) = prometheus::recognise(&source.head) {
        return Ok(Format::Prometheus(form));
    }
    if let Some(cloud) = cloud::recognise(&source.head) {
        return Ok(Format::Cloud(cloud));
    }
    if trainer_state::recognise(&source.head) {
        return Ok(Format::TrainerState);
    }
    if gpustat::recognise(&source.head) {
        return Ok(Format::Gpustat);
    }
    if let Some(form) = pandas::recognise(&source.head, head) {
        return Ok(Format::Pandas(form));
    }
    if let Some(columns) = jsonl::recognise_array(&source.head, options) {
        return columns.map(Format::JsonArray);
    }
    // Objects without a memory field may still hold log lines as texts.
    if let Some(Ok(columns)) = jsonl::recognise_lines(head, options) {
        return Ok(Format::JsonLines(columns));
    }
    if tools::recognise(head, options) {
        return Ok(Format::Tools);
    }
    if let Some(layout) = table::recognise(head, options) {
        return Ok(Format::Table(layout));
    }
    if headless::has_stamps_of_nvidia(head)
        && let Some(layout) = headless::recognise(head, options)
    {
        return layout.map(Format::Table);
    }
    if let Some(plain) = amounts::recognise(head) {
        // Numbers under the name of something else are not memory, however alike they look.
        let foreign = amounts::foreign_heading(head).and_then(|names| Choice::of(names, options).err());
        return foreign.map_or(Ok(Format::Plain(plain)), Err);
    }
    headless::recognise(head, options).map_or(Ok(Format::Log), |layout| layout.map(Format::Table))
}

/// The error for a log without a single memory value.
pub(crate) fn explain_nothing(head: &[HeadLine], options: &ReadOptions) -> Error {
    if let Some(Err(error)) = jsonl::recognise_lines(head, options) {
        return error;
    }
    if let [first, second, ..] = head
        && let Some((delimiter, names)) = table::header_names(&first.text)
        && table::fits(&second.text, delimiter, &names)
    {
        return match Choice::of(names.clone(), options) {
            Err(error) => error,
            Ok(_) => Error::NoMemoryColumn { columns: names },
        };
    }
    if let Some(error) = closest::known_tool(head) {
        return error;
    }
    let first_line = head.first().map(|line| shorten(&line.text)).unwrap_or_default();
    Error::Unrecognised { first_line, closest: closest::find(head) }
}

/// Share of odd bytes that no text reaches, whatever its encoding, and that random bytes exceed twice over.
const BINARY_SHARE: f64 = 0.3;

fn refuse_binary(head: &[u8]) -> Result<(), Error> {
    let known: [(&[u8], &str, &str); 2] = [
        (b"PK\x03\x04", "a zip archive", "unpack it first"),
        (b"\x28\xb5\x2f\xfd", "zstd", "decompress it first: `zstd -dc FILE | model-garden diagnose -`"),
    ];
    if let Some(&(_, looks_like, advice)) = known.iter().find(|(magic, ..)| head.starts_with(magic)) {
        return Err(Error::Binary { looks_like, advice });
    }
    let (mut odd, mut all) = (0usize, 0usize);
    for chunk in head.utf8_chunks() {
        // NUL bytes do not count: a log that was truncated while open begins with thousands of them.
        let is_odd = |c: &char| c.is_control() && !matches!(c, '\t' | '\n' | '\r' | '\x1b' | '\x08' | '\x0c' | '\0');
        odd += chunk.valid().chars().filter(is_odd).count() + chunk.invalid().len();
        all += chunk.valid().chars().filter(|&c| c != '\0').count() + chunk.invalid().len();
    }
    if odd as f64 > BINARY_SHARE * all as f64 || (all == 0 && !head.is_empty()) {
        let advice = "pass the text log with the memory values, not a model, archive or profile";
        return Err(Error::Binary { looks_like: "not text", advice });
    }
    Ok(())
}

//! Why a file cannot be read as a trace, and what to do about it.

use std::fmt;
use std::io;
use std::path::PathBuf;

use garden_memory::Bytes;

use crate::formats;
use crate::unit::Unit;

/// What a column's highest value would be in a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitReading {
    /// The unit.
    pub unit: Unit,
    /// The highest value, read in that unit.
    pub most: Bytes,
}

/// Why no trace could be read.
#[derive(Debug)]
pub enum Error {
    /// The file cannot be opened.
    Open {
        /// The file asked for.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The path is a directory.
    Directory {
        /// The path asked for.
        path: PathBuf,
    },
    /// The file stopped being readable.
    Read {
        /// The line that was being read.
        line: u64,
        /// The system's error.
        source: io::Error,
    },
    /// The file is empty.
    Empty,
    /// The content is not text.
    Binary {
        /// What it looks like.
        looks_like: &'static str,
        /// What to do about it.
        advice: &'static str,
    },
    /// Our own format, in an unknown version.
    Version {
        /// The version in the header.
        found: String,
    },
    /// Our own format, with an invalid header.
    Header {
        /// What is wrong with it.
        problem: String,
    },
    /// An invalid record of an experiment.
    Record {
        /// The record's manifest.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A table or JSON file without a memory column.
    NoMemoryColumn {
        /// The columns that are there.
        columns: Vec<String>,
    },
    /// The column asked for does not exist.
    NoSuchColumn {
        /// The column asked for.
        asked: String,
        /// The columns that are there.
        available: Vec<String>,
    },
    /// The column asked for holds shares of memory.
    Share {
        /// The column, or the label in a log.
        column: String,
    },
    /// Numbers without a unit, of which several units (or none) make a process's memory.
    AmbiguousUnit {
        /// The column, or the label in a log.
        column: String,
        /// The highest value, as the file has it.
        example: f64,
        /// What it would be in each unit in question.
        readings: Vec<UnitReading>,
        /// Whether those units are possible at all.
        is_possible: bool,
    },
    /// A file with several series, of which none was selected.
    Several {
        /// The names of the series, in the order of the file.
        names: Vec<String>,
    },
    /// The series asked for does not exist, or more than one has that name.
    NoSuchSeries {
        /// The name asked for.
        asked: String,
        /// The series that are there.
        available: Vec<String>,
    },
    /// The output of a known tool that does not show used memory.
    NoUsedMemory {
        /// The tool, and what its output lacks.
        problem: &'static str,
        /// What to record instead.
        advice: &'static str,
    },
    /// No known format.
    Unrecognised {
        /// The first line that is not blank, shortened.
        first_line: String,
        /// The line that comes closest to showing memory, and what it lacks.
        closest: Option<Closest>,
    },
}

/// The line of an unknown file that comes closest to showing memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closest {
    /// Its number.
    pub line: u64,
    /// Its beginning.
    pub text: String,
    /// What it lacks.
    pub lack: Lack,
}

/// What a line that mentions memory lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// It shows a percentage.
    Share,
    /// It shows free or available memory.
    Free,
    /// It shows a limit or the memory installed.
    Total,
    /// It shows virtual memory.
    Virtual,
    /// It has no number behind a label such as `RAM:`.
    Label,
}

impl Lack {
    fn text(self) -> &'static str {
        match self {
            Lack::Share => "it shows a percentage",
            Lack::Free => "it shows free memory",
            Lack::Total => "it shows a total",
            Lack::Virtual => "it shows virtual memory",
            Lack::Label => "no amount follows a label such as `RAM:`",
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Open { path, .. } => write!(f, "cannot open `{}`", path.display()),
            Error::Directory { path } => write!(f, "cannot read `{}`: it is a directory", path.display()),
            Error::Read { line, .. } => write!(f, "reading failed at line {line}"),
            Error::Empty => f.write_str("not a memory trace: the file is empty"),
            Error::Binary { looks_like, .. } => write!(f, "not a memory trace: the content is binary ({looks_like})"),
            Error::Version { found } => {
                write!(f, "the trace has format version {found}; this program reads version {}", crate::writer::VERSION)
            }
            Error::Header { problem } => write!(f, "cannot parse the trace's header (line 1): {problem}"),
            Error::Record { path, problem } => write!(f, "cannot parse `{}`: {problem}", path.display()),
            Error::NoMemoryColumn { columns } => write!(f, "no memory column among {}", listed(columns)),
            Error::NoSuchColumn { asked, available } if available.is_empty() => write!(f, "no column `{asked}`"),
            Error::NoSuchColumn { asked, available } => write!(f, "no column `{asked}` among {}", listed(available)),
            Error::Share { column } => write!(f, "column `{column}` is a percentage, not an amount of memory"),
            Error::AmbiguousUnit { column, example, readings, is_possible } => {
                ambiguous(f, column, *example, readings, *is_possible)
            }
            Error::Several { names } => write!(f, "{} series in one file: {}", names.len(), listed(names)),
            Error::NoSuchSeries { asked, available } if available.is_empty() => {
                write!(f, "no series `{asked}`: the file has only one, without a name")
            }
            Error::NoSuchSeries { asked, available } => {
                write!(f, "no single series `{asked}` among {}", listed(available))
            }
            Error::NoUsedMemory { problem, .. } => f.write_str(problem),
            Error::Unrecognised { first_line, closest: None } => {
                write!(f, "not a memory trace: unknown format, beginning with `{first_line}`")
            }
            Error::Unrecognised { closest: Some(Closest { line, text, lack }), .. } => {
                write!(f, "no memory in use found; closest is line {line}, `{text}`: {}", lack.text())
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Open { source, .. } | Error::Read { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl Error {
    /// The setting that would help or is wrong.
    pub fn setting(&self) -> Option<&'static str> {
        match self {
            Error::NoMemoryColumn { .. } | Error::NoSuchColumn { .. } | Error::Share { .. } => Some("column"),
            Error::AmbiguousUnit { .. } => Some("unit"),
            Error::Several { .. } | Error::NoSuchSeries { .. } => Some("select"),
            _ => None,
        }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Error::Open { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => "check the path; `-` reads standard input".to_string(),
                io::ErrorKind::PermissionDenied => "run as a user with read permission".to_string(),
                _ => return None,
            },
            Error::Directory { .. } => "pass a trace file inside it".to_string(),
            Error::Read { .. } => return None,
            Error::Empty => "has the run written anything yet? Output may still be buffered".to_string(),
            Error::Binary { advice, .. } => (*advice).to_string(),
            Error::Version { .. } => "read it with the version of model-garden that wrote it".to_string(),
            Error::Header { .. } => "the first line should be {\"model_garden_trace\":1,\"facts\":{..}}".to_string(),
            Error::Record { .. } => "create a record with `model-garden audit ... --record FOLDER`".to_string(),
            Error::NoMemoryColumn { .. } => "select the memory column with `--column NAME`".to_string(),
            Error::NoSuchColumn { .. } => "spell the `--column` name as in the file".to_string(),
            Error::Share { .. } => {
                "select a column of bytes or MiB with `--column NAME`, or leave it out".to_string()
            }
            Error::AmbiguousUnit { readings, .. } => {
                let flags = readings
                    .iter()
                    .map(|reading| format!("`--unit {}` ({} at most)", reading.unit.flag(), reading.most));
                format!("pass {}", any_of(flags.collect()))
            }
            Error::Several { .. } => "choose one with `--select NAME`".to_string(),
            Error::NoSuchSeries { available, .. } if available.is_empty() => "leave out `--select`".to_string(),
            Error::NoSuchSeries { available, .. } => format!("choose one with `--select`: {}", listed(available)),
            Error::NoUsedMemory { advice, .. } => (*advice).to_string(),
            Error::Unrecognised { closest: Some(Closest { lack, .. }), .. } => match lack {
                Lack::Label => format!("name the label with `--column NAME`; {}", understood()),
                _ => {
                    "record memory in use instead: `model-garden monitor --pid PID`, `ps -p PID -o pid,rss,cmd` or `free -m`"
                        .to_string()
                }
            },
            Error::Unrecognised { first_line, .. } if looks_like_numbers(first_line) => {
                let of_ps = if first_line.contains([',', ';']) { "" } else { "; keep the one of `ps`" };
                format!("a table needs a header line, such as `step,rss_mb`{of_ps}")
            }
            Error::Unrecognised { .. } => understood(),
        })
    }
}

/// The formats that are known, for a hint.
fn understood() -> String {
    format!("known formats: {}", formats::known())
}

fn ambiguous(
    f: &mut fmt::Formatter<'_>,
    column: &str,
    example: f64,
    readings: &[UnitReading],
    is_possible: bool,
) -> fmt::Result {
    if is_possible {
        let named = readings.iter().map(|reading| format!("{} ({})", reading.unit.name(), reading.most));
        return write!(f, "column `{column}` has no unit: {example} may be {}", any_of(named.collect()));
    }
    let amounts = readings.iter().map(|reading| reading.most.to_string());
    write!(f, "column `{column}` has no unit, and {example} fits none: {}", any_of(amounts.collect()))
}

/// Texts with commas and an "or" between them.
fn any_of(texts: Vec<String>) -> String {
    match texts.split_last() {
        Some((last, before)) if !before.is_empty() => format!("{} or {last}", before.join(", ")),
        _ => texts.concat(),
    }
}

fn listed(names: &[String]) -> String {
    const SHOWN: usize = 12;
    let mut text = names.iter().take(SHOWN).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN {
        text += &format!(" and {} more", names.len() - SHOWN);
    }
    text
}

fn looks_like_numbers(line: &str) -> bool {
    let mut words = line.split([',', ';', '\t', ' ']).filter(|word| !word.is_empty());
    words.clone().count() > 1 && words.all(|word| word.parse::<f64>().is_ok())
        || line.split_whitespace().take(2).filter(|word| word.parse::<u64>().is_ok()).count() == 2
}

/// Shortens a piece of the file for a message, and keeps it on one line.
pub(crate) fn shorten(text: &str) -> String {
    const SHOWN: usize = 60;
    let mut short: String = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).take(SHOWN).collect();
    if text.trim().chars().nth(SHOWN).is_some() {
        short.push('…');
    }
    short
}

//! Why a file cannot be read as a trace, and what to do about it.

use std::fmt;
use std::io;
use std::path::PathBuf;

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
    /// No known format.
    Unrecognised {
        /// The first line that is not blank, shortened.
        first_line: String,
    },
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
            Error::Unrecognised { first_line } => {
                write!(f, "not a memory trace: unknown format, beginning with `{first_line}`")
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
            Error::Unrecognised { first_line } if looks_like_numbers(first_line) => {
                "a table needs a header line, such as `step,rss_mb`".to_string()
            }
            Error::Unrecognised { .. } => UNDERSTOOD.to_string(),
        })
    }
}

const UNDERSTOOD: &str = "known formats: a model-garden trace; CSV or TSV with a header such as `step,rss_mb`; JSON \
    lines such as {\"step\":10,\"rss_mb\":5434}; training logs with lines such as `Step 10: RAM: 5434 MB`; mprof's \
    `mprofile_*.dat`; psrecord logs";

fn listed(names: &[String]) -> String {
    const SHOWN: usize = 12;
    let mut text = names.iter().take(SHOWN).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN {
        text += &format!(" and {} more", names.len() - SHOWN);
    }
    text
}

fn looks_like_numbers(line: &str) -> bool {
    line.contains(|c: char| c.is_ascii_digit())
        && line.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | ',' | ';' | '\t' | ' ' | '-' | '+' | 'e' | 'E'))
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

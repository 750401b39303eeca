//! Configuration errors: always the file, the field, the expected and the actual value.

use std::fmt;
use std::path::{Path, PathBuf};

/// Why a configuration cannot be used.
#[derive(Debug)]
pub enum Error {
    /// A file cannot be read.
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file is malformed.
    Broken {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A field is missing or has an unsupported value.
    Field {
        /// The file.
        path: PathBuf,
        /// The field, such as `text_config.hidden_size`.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl Error {
    pub(crate) fn file(path: &Path, source: std::io::Error) -> Error {
        Error::File { path: path.to_path_buf(), source }
    }

    pub(crate) fn broken(path: &Path, problem: impl fmt::Display) -> Error {
        Error::Broken { path: path.to_path_buf(), problem: problem.to_string() }
    }

    pub(crate) fn field(path: &Path, field: impl Into<String>, problem: impl Into<String>) -> Error {
        Error::Field { path: path.to_path_buf(), field: field.into(), problem: problem.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::File { path, source } => write!(f, "`{}`: {source}", path.display()),
            Error::Broken { path, problem } => write!(f, "`{}`: {problem}", path.display()),
            Error::Field { path, field, problem } => write!(f, "`{}`: field `{field}` {problem}", path.display()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::File { source, .. } => Some(source),
            Error::Broken { .. } | Error::Field { .. } => None,
        }
    }
}

//! Configuration errors: always the file, the field, the expected and the actual value.

use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::family::{FAMILIES, supported};

/// What a model folder has.
const FILES: &str =
    "a model folder has config.json, tokenizer.json, preprocessor_config.json and weights as *.safetensors";

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
    /// A model of a kind that is not supported.
    Unsupported {
        /// The file.
        path: PathBuf,
        /// `model_type`, or nothing where it is missing.
        kind: String,
    },
    /// A field is missing or has an unsupported value.
    Field {
        /// The file.
        path: PathBuf,
        /// The field, such as `text_config.hidden_size`.
        field: String,
        /// What is wrong with it.
        problem: String,
        /// What would help, if known.
        hint: Option<&'static str>,
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
        Error::Field { path: path.to_path_buf(), field: field.into(), problem: problem.into(), hint: None }
    }

    /// The same error with a hint.
    pub(crate) fn with_hint(mut self, text: &'static str) -> Error {
        if let Error::Field { hint, .. } = &mut self {
            *hint = Some(text);
        }
        self
    }

    /// What would help, if known.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Error::Unsupported { .. } => Some(supported()),
            Error::Field { hint, .. } => *hint,
            Error::File { source, .. } if source.kind() == ErrorKind::NotFound => Some(FILES),
            Error::File { .. } | Error::Broken { .. } => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::File { path, source } => write!(f, "`{}`: {source}", path.display()),
            Error::Broken { path, problem } => write!(f, "`{}`: {problem}", path.display()),
            Error::Unsupported { path, kind } => {
                let known: Vec<String> = FAMILIES.iter().map(|family| format!("`{}`", family.model_type)).collect();
                let known = known.join(", ");
                write!(f, "`{}`: field `model_type` is `{kind}`; this program trains {known}", path.display())
            }
            Error::Field { path, field, problem, .. } => write!(f, "`{}`: field `{field}` {problem}", path.display()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::File { source, .. } => Some(source),
            Error::Broken { .. } | Error::Unsupported { .. } | Error::Field { .. } => None,
        }
    }
}

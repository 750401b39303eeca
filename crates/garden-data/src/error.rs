//! Errors in files, conversations and pictures: always which one, and what is wrong with it.

use std::fmt;
use std::path::{Path, PathBuf};

/// Why a tokenizer, a template, a picture or a row of a dataset cannot be used.
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
        /// What would help, if known.
        hint: Option<&'static str>,
    },
    /// A field of a configuration is missing or has an unsupported value.
    Field {
        /// The file.
        path: PathBuf,
        /// The field, such as `model.byte_fallback`.
        field: String,
        /// What is wrong with it.
        problem: String,
        /// What would help, if known.
        hint: Option<&'static str>,
    },
    /// A picture cannot be used.
    Picture {
        /// The file, or its position in a file.
        name: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A conversation cannot be rendered, or does not match its pictures.
    Conversation(String),
    /// A dataset cannot be opened.
    Dataset {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
        /// What would help, if known.
        hint: Option<String>,
    },
    /// A folder lacks the requested split.
    NoSplit {
        /// The folder.
        path: PathBuf,
        /// The split.
        split: String,
        /// The splits that it has.
        hint: String,
    },
    /// A row has too many tokens.
    TooLong {
        /// The row's position, such as `train.jsonl:17`.
        place: String,
        /// The number of tokens, and what would help.
        problem: String,
    },
    /// A model folder cannot be found.
    Folder {
        /// The path or name as given.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
        /// What would help, if known.
        hint: Option<String>,
    },
    /// A row of a dataset cannot be used; the others may be fine.
    Row {
        /// The row's position, such as `train.jsonl:17`.
        place: String,
        /// The field, such as `messages[0].content[1].image_url`; empty for the whole row.
        field: String,
        /// What is wrong with it.
        problem: String,
        /// What would help, if known.
        hint: Option<String>,
    },
}

impl Error {
    pub(crate) fn file(path: &Path, source: std::io::Error) -> Error {
        Error::File { path: path.to_path_buf(), source }
    }

    pub(crate) fn broken(path: &Path, problem: impl fmt::Display) -> Error {
        Error::Broken { path: path.to_path_buf(), problem: problem.to_string(), hint: None }
    }

    pub(crate) fn field(path: &Path, field: impl Into<String>, problem: impl Into<String>) -> Error {
        Error::Field { path: path.to_path_buf(), field: field.into(), problem: problem.into(), hint: None }
    }

    /// The same error of a model's file with what to do about it.
    pub(crate) fn advised(mut self, text: &'static str) -> Error {
        if let Error::Broken { hint, .. } | Error::Field { hint, .. } = &mut self {
            *hint = Some(text);
        }
        self
    }

    pub(crate) fn dataset(path: &Path, problem: impl Into<String>) -> Error {
        Error::Dataset { path: path.to_path_buf(), problem: problem.into(), hint: None }
    }

    pub(crate) fn row_field(place: &str, field: &str, problem: impl Into<String>) -> Error {
        Error::Row { place: place.to_string(), field: field.to_string(), problem: problem.into(), hint: None }
    }

    /// The same error with a hint.
    pub(crate) fn with_hint(mut self, text: impl Into<String>) -> Error {
        if let Error::Dataset { hint, .. } | Error::Folder { hint, .. } | Error::Row { hint, .. } = &mut self {
            *hint = Some(text.into());
        }
        self
    }

    /// What would help, if known.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Error::Dataset { hint, .. } | Error::Folder { hint, .. } | Error::Row { hint, .. } => hint.as_deref(),
            Error::NoSplit { hint, .. } => Some(hint),
            Error::Broken { hint, .. } | Error::Field { hint, .. } => *hint,
            _ => None,
        }
    }

    pub(crate) fn picture(name: &str, problem: impl fmt::Display) -> Error {
        Error::Picture { name: name.to_string(), problem: problem.to_string() }
    }

    pub(crate) fn too_long(place: &str, problem: String) -> Error {
        Error::TooLong { place: place.to_string(), problem }
    }

    pub(crate) fn row(place: &str, problem: impl fmt::Display) -> Error {
        Error::row_field(place, "", problem.to_string())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::File { path, source } => write!(f, "`{}`: {source}", path.display()),
            Error::Broken { path, problem, .. } => write!(f, "`{}`: {problem}", path.display()),
            Error::Field { path, field, problem, .. } => write!(f, "`{}`: field `{field}` {problem}", path.display()),
            Error::Picture { name, problem } => write!(f, "picture `{name}`: {problem}"),
            Error::Conversation(problem) => f.write_str(problem),
            Error::NoSplit { path, split, .. } => write!(f, "dataset `{}`: has no split `{split}`", path.display()),
            Error::Dataset { path, problem, .. } => write!(f, "dataset `{}`: {problem}", path.display()),
            Error::Folder { path, problem, .. } => write!(f, "`{}`: {problem}", path.display()),
            Error::TooLong { place, problem } => write!(f, "`{place}`: {problem}"),
            Error::Row { place, field, problem, .. } if field.is_empty() => write!(f, "`{place}`: {problem}"),
            Error::Row { place, field, problem, .. } => write!(f, "`{place}`: field `{field}` {problem}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::File { source, .. } => Some(source),
            _ => None,
        }
    }
}

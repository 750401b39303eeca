//! Errors in files and batches: always the file, the field or tensor, what was expected and what was found.

use std::fmt;
use std::path::{Path, PathBuf};

use garden_device::{DeviceError, Dtype, OutOfMemory};

use crate::checkpoint::safetensors_writer::torch_name;

/// Why a model, an adapter or a batch cannot be used.
#[derive(Debug)]
pub enum Error {
    /// A file cannot be read or written.
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file is malformed.
    Broken {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
        /// What would help, if known.
        hint: Option<String>,
    },
    /// A model's configuration cannot be used.
    Config(garden_input::Error),
    /// A field of an adapter's or a checkpoint's file is missing or has an unsupported value.
    Field {
        /// The file.
        path: PathBuf,
        /// The field, such as `text_config.hidden_size`.
        field: String,
        /// What is wrong with it.
        problem: String,
        /// What would help, if known.
        hint: Option<String>,
    },
    /// A tensor is missing or does not match the configuration.
    Tensor {
        /// Its file, or the folder it is missing from.
        path: PathBuf,
        /// Its name.
        tensor: String,
        /// What is wrong with it.
        problem: String,
        /// What would help, if known.
        hint: Option<String>,
    },
    /// A value of a tensor is too large for the dtype it is written in.
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The dtype, as PyTorch calls it.
        dtype: &'static str,
        /// The place of the value.
        place: usize,
    },
    /// A batch is inconsistent, or larger than what a model was built for.
    Batch(String),
    /// Settings of an adapter that the model cannot have.
    Adapter(String),
    /// Results that are not finite.
    NotFinite(String),
    /// Sampling settings are invalid.
    Sampling(String),
    /// There is not enough memory.
    Memory(OutOfMemory),
    /// The device failed while computing.
    Device(DeviceError),
    /// Stopped on request.
    Stopped,
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

    /// The same error with what to do about it.
    pub(crate) fn advised(mut self, text: impl Into<String>) -> Error {
        if let Error::Broken { hint, .. } | Error::Field { hint, .. } | Error::Tensor { hint, .. } = &mut self {
            *hint = Some(text.into());
        }
        self
    }

    /// What would help, if known.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Error::Broken { hint, .. } | Error::Field { hint, .. } | Error::Tensor { hint, .. } => hint.as_deref(),
            Error::Config(error) => error.hint(),
            _ => None,
        }
    }

    /// A value that is not finite once it is rounded to the dtype it is written in.
    pub(crate) fn not_written(path: &Path, tensor: &str, dtype: Dtype, place: usize, value: f32) -> Error {
        match value.is_finite() {
            true => Error::TooLarge {
                path: path.to_path_buf(),
                tensor: tensor.to_string(),
                dtype: torch_name(dtype),
                place,
            },
            false => Error::tensor(path, tensor, format!("has a value that is not finite at {place}")),
        }
    }

    pub(crate) fn tensor(path: &Path, tensor: impl Into<String>, problem: impl Into<String>) -> Error {
        Error::Tensor { path: path.to_path_buf(), tensor: tensor.into(), problem: problem.into(), hint: None }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::File { path, source } => write!(f, "`{}`: {source}", path.display()),
            Error::Broken { path, problem, .. } => write!(f, "`{}`: {problem}", path.display()),
            Error::Field { path, field, problem, .. } => write!(f, "`{}`: field `{field}` {problem}", path.display()),
            Error::Tensor { path, tensor, problem, .. } => {
                write!(f, "`{}`: tensor `{tensor}` {problem}", path.display())
            }
            Error::TooLarge { path, tensor, dtype, place } => {
                write!(f, "`{}`: tensor `{tensor}` is too large for {dtype} at {place}", path.display())
            }
            Error::Batch(problem) | Error::Adapter(problem) | Error::NotFinite(problem) | Error::Sampling(problem) => {
                f.write_str(problem)
            }
            Error::Config(error) => error.fmt(f),
            Error::Memory(error) => error.fmt(f),
            Error::Device(error) => error.fmt(f),
            Error::Stopped => f.write_str("it was asked to stop"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::File { source, .. } => Some(source),
            Error::Config(error) => error.source(),
            Error::Memory(error) => Some(error),
            Error::Device(error) => Some(error),
            _ => None,
        }
    }
}

impl From<garden_input::Error> for Error {
    fn from(error: garden_input::Error) -> Error {
        Error::Config(error)
    }
}

impl From<DeviceError> for Error {
    fn from(error: DeviceError) -> Error {
        Error::Device(error)
    }
}

impl From<OutOfMemory> for Error {
    fn from(error: OutOfMemory) -> Error {
        Error::Memory(error)
    }
}

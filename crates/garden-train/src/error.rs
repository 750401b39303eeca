//! Why a run cannot begin or go on.

use std::fmt;
use std::path::{Path, PathBuf};

use garden_data::Problem;
use garden_memory::Bytes;

use crate::job::TARGETS;
use crate::recipe::RecipeError;

/// Which rows something is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Those to learn from.
    Train,
    /// Those to evaluate on.
    Eval,
}

/// Why a run cannot begin or go on.
#[derive(Debug)]
pub enum Error {
    /// A dataset cannot be used.
    Dataset {
        /// Which one.
        split: Split,
        /// Why.
        source: Box<Error>,
    },
    /// A row, a picture, the tokenizer or the template cannot be used.
    Data(garden_data::Error),
    /// A row turned out broken after all rows were looked at.
    BrokenRow {
        /// Which one, and why.
        source: Box<Error>,
        /// The checkpoint with all steps before it, if any was made.
        saved: Option<PathBuf>,
    },
    /// The model, an adapter or a batch cannot be used.
    Model(garden_model::Error),
    /// A file cannot be read or written.
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The disk has too little space for what is about to be written.
    NoSpace {
        /// The folder.
        folder: PathBuf,
        /// What needs how much.
        what: String,
        /// What there is.
        free: Bytes,
    },
    /// A checkpoint is not whole, or is of another run.
    Checkpoint {
        /// The checkpoint.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
        /// What would help, where that is known.
        hint: Option<String>,
    },
    /// Another process works in the run's folder.
    Busy {
        /// The folder.
        folder: PathBuf,
        /// The process; 0 if that cannot be told.
        pid: u32,
    },
    /// The adapter to begin with was made with other settings than the recipe has.
    Adapter {
        /// Its folder.
        path: PathBuf,
        /// The setting of the recipe.
        field: &'static str,
        /// What the recipe says.
        given: String,
        /// What the adapter says.
        found: String,
    },
    /// The model's configuration wants dropout of attention weights.
    Dropout {
        /// `config.json`.
        path: PathBuf,
        /// The share that would be dropped.
        share: f32,
    },
    /// The loss is no number any more.
    NotFinite {
        /// The step.
        step: usize,
        /// What is no number: `loss` or `gradient norm`.
        what: &'static str,
    },
    /// Rows cannot be used, and none may be left out.
    BadRows {
        /// How many.
        count: usize,
        /// Of how many.
        rows: usize,
        /// What is wrong with the first ones.
        problems: Vec<Problem>,
    },
    /// An evaluation does not have the number by which the best one is chosen.
    NoMetric {
        /// The number.
        name: &'static str,
        /// What it needs.
        needs: &'static str,
    },
    /// A row is longer than a micro-batch may be.
    LongerThanBatch {
        /// Where it stands.
        place: String,
        /// Its tokens.
        length: usize,
        /// Tokens of a micro-batch.
        tokens: usize,
    },
    /// A setting does not go with the model.
    Recipe(RecipeError),
    /// There is nothing to train.
    Empty(String),
    /// A dataset is another one than the run began with.
    Changed(String),
}

impl Error {
    pub(crate) fn file(path: &Path, source: std::io::Error) -> Error {
        Error::File { path: path.to_path_buf(), source }
    }

    pub(crate) fn checkpoint(path: &Path, problem: impl Into<String>) -> Error {
        Error::Checkpoint { path: path.to_path_buf(), problem: problem.into(), hint: None }
    }

    /// As an error of one of the datasets.
    pub(crate) fn of(split: Split) -> impl Fn(Error) -> Error {
        move |error| Error::Dataset { split, source: Box::new(error) }
    }

    /// Whether one row, or one micro-batch, is to blame.
    pub(crate) fn is_of_row(&self) -> bool {
        use garden_data::Error as Row;
        match self {
            Error::Data(error) => !matches!(error, Row::Dataset { .. } | Row::NoSplit { .. } | Row::Folder { .. }),
            Error::Model(error) => matches!(error, garden_model::Error::Batch(_)),
            _ => false,
        }
    }

    /// The dataset that it is about, if it is one, and what is wrong.
    pub fn split(&self) -> (Option<Split>, &Error) {
        match self {
            Error::Dataset { split, source } => (Some(*split), source.split().1),
            other => (None, other),
        }
    }

    /// Whether the disk was full.
    pub fn is_disk_full(&self) -> bool {
        match self {
            Error::Dataset { source, .. } => source.is_disk_full(),
            Error::NoSpace { .. } => true,
            Error::File { source, .. } | Error::Model(garden_model::Error::File { source, .. }) => {
                matches!(source.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
            }
            _ => false,
        }
    }

    /// What would help, where that is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::Dataset { source, .. } => source.hint(),
            Error::BrokenRow { saved: Some(_), .. } => Some(
                "skip such rows from here on with `--resume auto --on-bad-image skip`; or, if the file was changed or moved, put it back and \
                 use `--resume auto`"
                    .into(),
            ),
            Error::BrokenRow { saved: None, .. } => Some(
                "`--on-bad-image skip` skips, names and counts such rows; `model-garden check --decode` looks for them before a run".into(),
            ),
            Error::Data(error) => error.hint().map(str::to_string),
            Error::NoSpace { .. } => Some(
                "free some space, then use `--resume auto` (checkpoints are intact); or keep fewer with a smaller `save-total-limit`, or use \
                 another `output-dir`"
                    .into(),
            ),
            Error::Checkpoint { hint, .. } => hint.clone(),
            Error::Recipe(error) => error.hint.clone(),
            Error::Busy { .. } => Some(
                "wait until it ends (Ctrl-C, or SIGTERM to that process, makes it save and exit), or use another `output-dir`"
                    .into(),
            ),
            Error::Adapter { field: TARGETS, given, .. } => {
                let setting = if given.starts_with('`') { given.clone() } else { format!("`{TARGETS}`") };
                Some(format!("omit {setting}: an adapter goes on with the layers that it has"))
            }
            Error::Adapter { field, found, .. } => Some(format!("use the adapter's own setting: `--{field} {found}`")),
            Error::Dropout { .. } => Some("set it to 0; `lora-dropout` drops inputs of the adapter".into()),
            Error::BadRows { problems, .. } => Some(
                problems.first().and_then(|first| first.hint.as_ref()).map_or_else(String::new, |hint| format!("{hint}; "))
                    + "`model-garden check` lists them all; `--on-bad-row skip` skips and counts them, \
                 `--on-long-row drop` or `shrink` handles those that are too long",
            ),
            Error::NoMetric { .. } => Some("choose another `metric-for-best-model`, or other rows to evaluate on".into()),
            Error::LongerThanBatch { length, tokens, .. } => Some(format!(
                "use `--batch-tokens {length}`, or `--max-length {tokens}` with `--on-long-row shrink` or `drop`"
            )),
            Error::NotFinite { .. } => Some(
                "try a lower `learning-rate` or more `warmup-steps`; the checkpoints are from before this step"
                    .into(),
            ),
            Error::File { source, .. } | Error::Model(garden_model::Error::File { source, .. })
                if source.kind() == std::io::ErrorKind::StorageFull =>
            {
                Some(
                    "the disk is full: free some space, then resume with `--resume auto`; the checkpoints are intact"
                        .into(),
                )
            }
            Error::Model(garden_model::Error::Device(_)) => Some(
                "check `nvidia-smi` and the system log; the checkpoints are intact: resume with `--resume auto`".into(),
            ),
            Error::Model(garden_model::Error::Memory(_)) => Some(
                "another program may have taken it since the plan: check `nvidia-smi`, or plan again with --dry-run".into(),
            ),
            Error::Model(error) => error.hint().map(str::to_string),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Dataset { source, .. } => source.fmt(f),
            Error::Data(error) => error.fmt(f),
            Error::BrokenRow { source, saved: Some(path) } => {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                write!(f, "{source}; all steps before it are in {name}")
            }
            Error::BrokenRow { source, saved: None } => source.fmt(f),
            Error::Model(error) => error.fmt(f),
            Error::File { path, source } => write!(f, "`{}`: {source}", path.display()),
            Error::NoSpace { folder, what, free } => {
                write!(f, "{what}, but only {free} is free in `{}`", folder.display())
            }
            Error::Checkpoint { path, problem, .. } => write!(f, "checkpoint `{}`: {problem}", path.display()),
            Error::Busy { folder, pid } => {
                write!(f, "`{}` is in use: process {pid} is training there", folder.display())
            }
            Error::Adapter { path, field, given, found } => {
                let path = path.display();
                write!(f, "the adapter `{path}` was made with `{field}` {found}, but the recipe says {given}")
            }
            Error::Dropout { path, share } => {
                write!(
                    f,
                    "`{}`: field `attention_dropout` is {share}; training drops no attention weights",
                    path.display()
                )
            }
            Error::NotFinite { step, what } => write!(f, "the {what} is NaN or infinite at step {step}"),
            Error::BadRows { count, rows, problems } => {
                let first =
                    problems.first().map_or_else(String::new, |problem| format!("; the first: {}", words(problem)));
                write!(f, "{count} of {rows} rows cannot be used{first}")
            }
            Error::NoMetric { name, needs } => {
                write!(f, "choosing the best checkpoint by `{name}` needs {needs}")
            }
            Error::LongerThanBatch { place, length, tokens } => {
                write!(f, "`{place}` has {length} tokens; a micro-batch holds at most {tokens} (`batch-tokens`)")
            }
            Error::Recipe(error) => error.fmt(f),
            Error::Empty(problem) | Error::Changed(problem) => f.write_str(problem),
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

impl From<garden_data::Error> for Error {
    fn from(error: garden_data::Error) -> Error {
        Error::Data(error)
    }
}

impl From<RecipeError> for Error {
    fn from(error: RecipeError) -> Error {
        Error::Recipe(error)
    }
}

impl From<garden_input::Error> for Error {
    fn from(error: garden_input::Error) -> Error {
        Error::Model(error.into())
    }
}

impl From<garden_model::Error> for Error {
    fn from(error: garden_model::Error) -> Error {
        Error::Model(error)
    }
}

/// A problem with its place.
pub(crate) fn words(problem: &Problem) -> String {
    let field = if problem.field.is_empty() { String::new() } else { format!("field `{}` ", problem.field) };
    format!("`{}`: {field}{}", problem.place, problem.problem)
}

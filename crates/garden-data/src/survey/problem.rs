//! Problems of rows, by position and field.

use serde::Serialize;

use crate::error::Error;

/// A problem of a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The row's index.
    pub row: usize,
    /// The row's position, such as `train.jsonl:17`.
    pub place: String,
    /// The field, such as `messages[0].content[1].image_url`; empty for the whole row.
    pub field: String,
    /// Kind of problem.
    pub kind: ProblemKind,
    /// What is wrong.
    pub problem: String,
    /// What would help, if known.
    pub hint: Option<String>,
}

/// Kind of problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProblemKind {
    /// The row cannot be read or used.
    Unusable,
    /// The row has too many tokens.
    TooLong,
}

impl Problem {
    /// The problem for an error. A position inside the error takes precedence.
    pub(crate) fn of(row: usize, place: String, error: Error) -> Problem {
        let (kind, hint) = (ProblemKind::Unusable, error.hint().map(str::to_string));
        let mut found = Problem { row, place, field: String::new(), kind, problem: error.to_string(), hint };
        match error {
            Error::Row { place, field, problem, .. } => {
                (found.place, found.field, found.problem) = (place, field, problem);
            }
            Error::TooLong { place, problem } => {
                (found.place, found.problem, found.kind) = (place, problem, ProblemKind::TooLong);
            }
            Error::Picture { name, problem } => {
                if let Some((place, field)) = name.split_once(": ") {
                    let (field, file) = field.split_once(" (").unwrap_or((field, ""));
                    (found.place, found.field) = (place.to_string(), field.to_string());
                    found.problem = match file.strip_suffix(')') {
                        Some(file) => format!("names `{file}`: {problem}"),
                        None => format!("is not a usable picture: {problem}"),
                    };
                }
            }
            _ => {}
        }
        found
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.field.as_str() {
            "" => write!(f, "{}: {}", self.place, self.problem),
            field => write!(f, "{}: field `{field}` {}", self.place, self.problem),
        }
    }
}

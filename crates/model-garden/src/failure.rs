//! A failure as the user sees it: what failed, why, and what would help.

use std::error::Error;
use std::fmt::Display;

/// Something that went wrong on our side or with the input; exit code 2.
#[derive(Debug)]
pub struct Failure {
    /// What failed, in one line.
    pub what: String,
    /// Why, from the outer to the inner cause.
    pub causes: Vec<String>,
    /// What would help.
    pub hint: Option<String>,
}

/// An error that may know what would help.
pub trait Advised: Display {
    /// What would help.
    fn advice(&self) -> Option<String>;
}

impl Advised for garden_data::Error {
    fn advice(&self) -> Option<String> {
        self.hint().map(str::to_string)
    }
}

impl Advised for garden_model::Error {
    fn advice(&self) -> Option<String> {
        self.hint().map(str::to_string)
    }
}

impl Advised for garden_input::Error {
    fn advice(&self) -> Option<String> {
        self.hint().map(str::to_string)
    }
}

impl Failure {
    /// What was being done when an error with its own advice came.
    pub fn of(what: impl Into<String>, error: &dyn Advised) -> Failure {
        Failure { what: what.into(), causes: vec![error.to_string()], hint: error.advice() }
    }

    /// Wraps an error with what was being done.
    pub fn new(what: impl Into<String>, error: &dyn Error, hint: Option<String>) -> Failure {
        let mut causes = vec![error.to_string()];
        let mut source = error.source();
        while let Some(inner) = source {
            causes.push(inner.to_string());
            source = inner.source();
        }
        Failure { what: what.into(), causes, hint }
    }
}

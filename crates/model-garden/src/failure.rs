//! A failure as the user sees it: what failed, why, and what would help.

use std::error::Error;

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

impl Failure {
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

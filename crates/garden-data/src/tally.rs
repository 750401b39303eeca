//! Counts over many rows: how many were kept, and of what their tokens are.

use serde::Serialize;

use crate::example::Outcome;

/// What became of rows, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Rows that are trained.
    pub kept: usize,
    /// Those of them whose images had to be made smaller.
    pub shrunk: usize,
    /// Rows that were left out because they are too long.
    pub dropped: usize,
    /// Tokens of rows that are trained.
    pub tokens: usize,
    /// Those that stand for images.
    pub image_tokens: usize,
    /// Those that are asked for.
    pub trained: usize,
    /// Tokens of answers, before structure was taken out of them.
    pub answer_tokens: usize,
    /// Those of them that were taken out.
    pub masked: usize,
}

impl Tally {
    /// Counts a row.
    pub fn add(&mut self, outcome: &Outcome) {
        let Outcome::Kept(example) = outcome else {
            self.dropped += 1;
            return;
        };
        self.kept += 1;
        self.shrunk += usize::from(example.shrunk_to.is_some());
        self.tokens += example.tokens.len();
        self.image_tokens += example.image_tokens;
        self.trained += example.trained();
        self.answer_tokens += example.answer_tokens;
        self.masked += example.masked;
    }

    /// The share of answer tokens that selective loss takes out, if there are answers.
    pub fn masked_share(&self) -> Option<f64> {
        (self.answer_tokens > 0).then(|| self.masked as f64 / self.answer_tokens as f64)
    }
}

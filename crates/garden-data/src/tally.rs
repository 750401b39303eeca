//! Counts over many rows: how many were kept, and of what their tokens are.

use serde::Serialize;

use crate::example::{Example, Outcome};

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
    /// A row that is trained.
    pub fn of(example: &Example) -> Tally {
        Tally {
            kept: 1,
            shrunk: usize::from(example.shrunk_to.is_some()),
            dropped: 0,
            tokens: example.tokens.len(),
            image_tokens: example.image_tokens,
            trained: example.trained(),
            answer_tokens: example.answer_tokens,
            masked: example.masked,
        }
    }

    /// Counts a row.
    pub fn add(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Kept(example) => *self = self.plus(&Tally::of(example)),
            Outcome::Dropped(_) => self.dropped += 1,
        }
    }

    /// The rows of both.
    pub fn plus(&self, other: &Tally) -> Tally {
        Tally {
            kept: self.kept + other.kept,
            shrunk: self.shrunk + other.shrunk,
            dropped: self.dropped + other.dropped,
            tokens: self.tokens + other.tokens,
            image_tokens: self.image_tokens + other.image_tokens,
            trained: self.trained + other.trained,
            answer_tokens: self.answer_tokens + other.answer_tokens,
            masked: self.masked + other.masked,
        }
    }

    /// The share of answer tokens that selective loss takes out, if there are answers.
    pub fn masked_share(&self) -> Option<f64> {
        (self.answer_tokens > 0).then(|| self.masked as f64 / self.answer_tokens as f64)
    }
}

//! What the commands do, one file per command.

pub mod diagnose;

/// How a command ended, as an exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Fine.
    Fine = 0,
    /// The answer is bad news.
    BadNews = 1,
    /// There is not enough data for an answer.
    NotEnoughData = 3,
}

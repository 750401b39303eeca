//! What the losses of a step are divided by.
//!
//! How many tokens a step trains is known when the last of its micro-batches has been read. So each micro-batch adds the gradients of its own sum or mean,
//! and what was added up is divided once, before the update.

use serde::{Deserialize, Serialize};

/// What the losses of a step are divided by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Normalisation {
    /// The mean of each micro-batch, and the mean of those: what Hugging Face's trainer does with Qwen2.5-VL. A token of a short answer weighs
    /// more than one of a long answer.
    #[default]
    #[serde(rename = "batch")]
    MicroBatch,
    /// Every trained token of the group weighs the same, however the rows are cut into micro-batches: what Unsloth does.
    #[serde(rename = "tokens")]
    Token,
}

impl Normalisation {
    /// What the sum of a micro-batch's losses is multiplied with, from how many tokens it trains.
    pub fn scale(self, trained: usize) -> f32 {
        match self {
            Normalisation::MicroBatch => (1.0 / trained as f64) as f32,
            Normalisation::Token => 1.0,
        }
    }

    /// What is added up over a group is divided by, from how many micro-batches train anything and how many tokens all of them train.
    ///
    /// The last group of an epoch may be shorter and is divided by its own length.
    pub fn divisor(self, batches: usize, trained: usize) -> f64 {
        match self {
            Normalisation::MicroBatch => batches as f64,
            Normalisation::Token => trained as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The weight of a token in a group of micro-batches with 10 and with 40 trained tokens.
    #[test]
    fn groups_are_averaged_over_batches_or_tokens() {
        let weight = |how: Normalisation, trained| f64::from(how.scale(trained)) / how.divisor(2, 50);
        let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-9, "{found}");
        near(weight(Normalisation::MicroBatch, 10), 0.05);
        near(weight(Normalisation::MicroBatch, 40), 0.0125);
        near(weight(Normalisation::Token, 10), 0.02);
        near(weight(Normalisation::Token, 40), 0.02);
    }
}

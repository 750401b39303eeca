//! The divisor of a step's loss.
//!
//! The number of tokens that count in a step's loss is known once the last of its micro-batches is read. So each micro-batch accumulates the gradients of its own
//! sum or mean, and the total is divided once, before the update.

use serde::{Deserialize, Serialize};

/// How the loss of a step is normalised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Normalisation {
    /// The mean of the means of all micro-batches, as in Hugging Face's trainer for Qwen2.5-VL. A token of a short answer weighs
    /// more than one of a long answer.
    #[default]
    #[serde(rename = "batch")]
    MicroBatch,
    /// Every token that counts in the loss of a step weighs the same, however the rows are cut into micro-batches, as in Unsloth.
    #[serde(rename = "tokens")]
    Token,
}

impl Normalisation {
    /// Factor for the summed loss of a micro-batch with this many loss tokens.
    pub fn scale(self, trained: usize) -> f32 {
        match self {
            Normalisation::MicroBatch => (1.0 / trained as f64) as f32,
            Normalisation::Token => 1.0,
        }
    }

    /// Divisor of the accumulated gradients, from the number of micro-batches with any loss tokens and the total of those tokens.
    ///
    /// The last group of an epoch may be shorter, and is divided by its own length.
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

    /// The weight of a token in a group of micro-batches with 10 and with 40 loss tokens.
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

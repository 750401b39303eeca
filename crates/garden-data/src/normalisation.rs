//! What the losses of a step are divided by.
//!
//! The model adds up gradients of `scale` times the sum of a micro-batch's losses, so the average over a group of micro-batches
//! is a matter of that factor. Numbers of trained tokens are known before any picture is decoded ([`Example::trained`](crate::Example::trained)).

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
    /// The factor for the sum of losses of each micro-batch of a group, from how many tokens each trains.
    ///
    /// The last group of an epoch may be shorter and is divided by its own length. A micro-batch that trains nothing gets 0 and
    /// does not count as one.
    pub fn scales(self, trained: &[usize]) -> Vec<f32> {
        let batches = trained.iter().filter(|count| **count > 0).count() as f64;
        let all = trained.iter().sum::<usize>() as f64;
        let scale = |count: &usize| match (self, *count) {
            (_, 0) => 0.0,
            (Normalisation::MicroBatch, count) => (1.0 / (batches * count as f64)) as f32,
            (Normalisation::Token, _) => (1.0 / all) as f32,
        };
        trained.iter().map(scale).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_averaged_over_batches_or_tokens() {
        assert_eq!(Normalisation::MicroBatch.scales(&[10, 40]), [0.05, 0.0125]);
        assert_eq!(Normalisation::Token.scales(&[10, 40]), [0.02, 0.02]);
        assert_eq!(Normalisation::MicroBatch.scales(&[4, 0]), [0.25, 0.0]);
        assert_eq!(Normalisation::Token.scales(&[0, 0]), [0.0, 0.0]);
        assert_eq!(Normalisation::MicroBatch.scales(&[8]), Normalisation::Token.scales(&[8]));
    }
}

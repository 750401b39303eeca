//! Several datasets: their weights, and how many rows of each are drawn.

use super::{Recipe, RecipeError, wrong, wrong_but};
use crate::job::Rows;

impl Recipe {
    /// Rows of a split of the datasets, before anybody looked at them.
    pub fn rows(&self, split: &str) -> Rows {
        let most = self.max_samples.clone().unwrap_or_default();
        Rows { most, seed: self.seed, ..Rows::of_split(&self.datasets, split, self) }
    }

    /// The datasets in words, as they were given.
    pub fn dataset_words(&self) -> String {
        self.datasets.iter().map(|path| path.display().to_string()).collect::<Vec<String>>().join(", ")
    }

    pub(super) fn check_mixing(&self) -> Result<(), RecipeError> {
        let datasets = self.datasets.len();
        if let Some(weights) = &self.dataset_weights {
            self.check_count("dataset-weights", weights.len(), datasets)?;
            if let Some(weight) = weights.iter().find(|weight| !weight.is_finite() || **weight <= 0.0) {
                let hint = "omit a `dataset` whose rows shall not come";
                return Err(wrong_but("dataset-weights", format!("has {weight}; a weight must be above 0"), hint));
            }
            if self.batch_tokens.is_some() {
                let hint = "use `batch-size` with weights: with `batch-tokens`, the same rows share a micro-batch in every epoch";
                return Err(wrong_but("dataset-weights", "cannot be used with `batch-tokens`", hint));
            }
        }
        let Some(most) = &self.max_samples else { return Ok(()) };
        if most.len() > 1 {
            self.check_count("max-samples", most.len(), datasets)?;
        }
        match most.contains(&0) {
            true => Err(wrong("max-samples", "has 0; it must be at least 1")),
            false => Ok(()),
        }
    }

    fn check_count(&self, name: &str, given: usize, datasets: usize) -> Result<(), RecipeError> {
        if given == datasets {
            return Ok(());
        }
        let count = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        let problem = format!("has {} for {}", count(given, "number"), count(datasets, "dataset"));
        Err(wrong_but(
            name,
            problem,
            format!("give one for each `dataset`, in the same order: {}", self.dataset_words()),
        ))
    }
}

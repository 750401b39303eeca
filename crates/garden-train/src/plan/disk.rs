//! What a run writes into its output folder: checkpoints, the result, and what tells about it.
//!
//! Checkpoints and result have what is trained in 32 bits, so their size is known before the first step, but for headers and settings of some KB.

use std::path::Path;

use garden_device::{Plan, Purpose};
use garden_memory::Bytes;
use serde::Serialize;

use super::PlanInput;
use crate::error::Error;
use crate::recipe::Recipe;

/// Logs, the trace and the page of a run of some thousand steps, and the settings beside each tensor's values.
const TOLD: u64 = 1 << 20;
/// The files of a released processor that a result gets copies of: tokenizer.json, vocab.json and merges.txt most of all.
const RELEASED_PROCESSOR: u64 = 16 << 20;

/// What a run writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DiskPlan {
    /// A checkpoint.
    pub checkpoint_bytes: u64,
    /// Checkpoints at a time, at most: those that are kept, the best one, and one that is being written.
    pub checkpoints: usize,
    /// The result, with its tokenizer.
    pub result_bytes: u64,
    /// All of it, with logs and the page.
    pub total_bytes: u64,
}

impl DiskPlan {
    pub(super) fn of(input: &PlanInput, plan: &Plan) -> DiskPlan {
        let trained = plan.bytes(Purpose::Gradients) as u64;
        let checkpoint_bytes = checkpoint_bytes(plan);
        let checkpoints = most_checkpoints(input.recipe, input.evaluates, input.saves);
        let result_bytes = trained + input.processor_bytes.unwrap_or(RELEASED_PROCESSOR);
        let total_bytes = checkpoints as u64 * checkpoint_bytes + result_bytes + TOLD;
        DiskPlan { checkpoint_bytes, checkpoints, result_bytes, total_bytes }
    }

    /// Refuses to write into a folder that has no room for it; what an earlier start has left there is part of it.
    pub fn check(&self, folder: &Path) -> Result<(), Error> {
        let needed = self.total_bytes.saturating_sub(garden_files::folder_bytes(folder));
        let what = || {
            format!(
                "the run needs {} of disk for {} checkpoints of {} and the result",
                Bytes(needed),
                self.checkpoints,
                Bytes(self.checkpoint_bytes)
            )
        };
        check_free(folder, needed, what)
    }

    /// What it is, in a sentence.
    pub fn words(&self) -> String {
        let count = match self.checkpoints {
            1 => "a checkpoint".to_string(),
            count => format!("{count} checkpoints"),
        };
        let (all, each, result) = (Bytes(self.total_bytes), Bytes(self.checkpoint_bytes), Bytes(self.result_bytes));
        format!("{all}: {count} of {each}, {result} for the result, and logs")
    }
}

/// The values of a checkpoint: what is trained, as large as its gradients, and the state of the optimizer.
pub(crate) fn checkpoint_bytes(plan: &Plan) -> u64 {
    (plan.bytes(Purpose::Gradients) + plan.bytes(Purpose::Optimizer)) as u64
}

/// Checkpoints that are there at the same time.
fn most_checkpoints(recipe: &Recipe, evaluates: bool, saves: Option<usize>) -> usize {
    let kept = recipe.save_total_limit + usize::from(evaluates);
    // The oldest goes once the newest is whole.
    saves.map_or(kept + 1, |saves| saves.clamp(1, kept + 1))
}

/// Refuses to write so many bytes into a folder, if its disk does not have them. Of a disk that does not say, nothing is known.
pub(crate) fn check_free(folder: &Path, needed: u64, what: impl FnOnce() -> String) -> Result<(), Error> {
    // A folder that is not there yet will be on the disk of the one that it is in.
    let place = std::path::absolute(folder).unwrap_or_else(|_| folder.to_path_buf());
    let place = place.ancestors().find(|place| place.exists()).unwrap_or(Path::new("/"));
    match garden_files::free_bytes(place) {
        Ok(free) if free < needed => {
            Err(Error::NoSpace { folder: folder.to_path_buf(), what: what(), free: Bytes(free) })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_are_those_that_are_kept_and_the_one_being_written() {
        let recipe = Recipe { save_total_limit: 3, ..Recipe::default() };
        let count = |evaluates, saves| most_checkpoints(&recipe, evaluates, saves);
        assert_eq!([count(false, None), count(true, None), count(true, Some(100))], [4, 5, 5]);
        // A short run saves once, and nothing has to go for it.
        assert_eq!([count(false, Some(0)), count(false, Some(1)), count(false, Some(3))], [1, 1, 3]);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_numbers() {
        let folder = std::env::temp_dir();
        assert!(check_free(&folder, 0, String::new).is_ok());
        let refused = check_free(&folder, u64::MAX, || "it needs much".to_string());
        let Err(error) = refused else { panic!("there is no such disk") };
        assert!(error.is_disk_full() && error.to_string().starts_with("it needs much, but only "), "{error}");
        // A folder that is not there yet is no reason to look no further.
        assert!(check_free(&folder.join("not/there/yet"), u64::MAX, String::new).is_err());
    }
}

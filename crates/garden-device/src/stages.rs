//! The stages of a training step, and their times on a device. The caller marks the start of each stage; a device that times stages
//! records the moments, others do nothing.

/// A stage of a training step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Making and uploading a batch.
    Batch,
    /// The forward pass of what turns other inputs than text into embeddings.
    Encode,
    /// The forward pass of the decoder, with head and loss.
    Forward,
    /// The backward pass, with all recomputation.
    Backward,
    /// Clearing the gradients of the last step, and the update.
    Update,
    /// Nothing is queued: the device waits for the next batch.
    Idle,
    /// Work outside a step, such as an evaluation.
    Elsewhere,
}

impl Stage {
    /// All stages that do work for a step, in order.
    pub const ALL: [Stage; 5] = [Stage::Batch, Stage::Encode, Stage::Forward, Stage::Backward, Stage::Update];

    /// Whether a mark counts after the last one. Work outside a step ends when a step starts, whatever is computed meanwhile.
    pub(crate) fn counts_after(self, last: Option<Stage>) -> bool {
        last != Some(Stage::Elsewhere) || self == Stage::Update
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Batch => "batch",
            Stage::Encode => "encode",
            Stage::Forward => "forward",
            Stage::Backward => "backward",
            Stage::Update => "update",
            Stage::Idle => "idle",
            Stage::Elsewhere => "elsewhere",
        }
    }
}

/// The time of one kind of operation in a step.
#[derive(Clone, Debug, PartialEq)]
pub struct OperationTime {
    /// The kernel, or the product with its sizes.
    pub name: String,
    /// Number of runs.
    pub count: usize,
    /// Total seconds.
    pub seconds: f64,
}

/// The time of each stage.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StageTimes {
    /// Of the stages in [`Stage::ALL`], then of [`Stage::Idle`].
    seconds: [f64; Stage::ALL.len() + 1],
}

impl StageTimes {
    /// From marks and the time between each and the next; the time after the last one does not count.
    pub(crate) fn of<E>(
        stages: &[Stage],
        mut seconds_after: impl FnMut(usize) -> Result<f64, E>,
    ) -> Result<StageTimes, E> {
        let mut times = StageTimes::default();
        for (index, stage) in stages.iter().enumerate().take(stages.len().saturating_sub(1)) {
            if let Some(seconds) = times.seconds.get_mut(*stage as usize) {
                *seconds += seconds_after(index)?;
            }
        }
        Ok(times)
    }

    /// Seconds of one stage.
    pub fn seconds(&self, stage: Stage) -> f64 {
        self.seconds.get(stage as usize).copied().unwrap_or(0.0)
    }

    /// Seconds of all stages that do work.
    pub fn total(&self) -> f64 {
        Stage::ALL.map(|stage| self.seconds(stage)).iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_ends_where_the_next_begins() {
        use Stage::{Batch, Elsewhere, Encode, Forward, Idle, Update};
        let marks = [Update, Batch, Forward, Encode, Forward, Idle, Elsewhere, Batch];
        let lengths = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0];
        let times = StageTimes::of(&marks, |index| Ok::<f64, ()>(lengths[index])).unwrap();
        let of = |stage| times.seconds(stage);
        assert_eq!(Stage::ALL.map(of), [2.0, 8.0, 20.0, 0.0, 1.0]);
        assert_eq!((of(Idle), of(Elsewhere), times.total()), (32.0, 0.0, 31.0));
        assert_eq!(StageTimes::of(&[], |_| Err(())), Ok(StageTimes::default()));
    }
}

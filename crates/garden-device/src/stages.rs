//! The stages of a training step, and how long a device took for each. Whoever makes a step marks where a stage begins; a device that was asked to
//! time stages keeps the moments, others do nothing.

/// A stage of a training step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Making a batch and bringing it to the device.
    Batch,
    /// The forward pass of the vision tower.
    Vision,
    /// The forward pass of the decoder, with head and loss.
    Forward,
    /// The backward pass, with everything that is made again for it.
    Backward,
    /// Forgetting the gradients of the last step, and the update.
    Update,
    /// Nothing is queued: the device waits for the next batch.
    Idle,
    /// Something that is no part of a step, such as an evaluation.
    Elsewhere,
}

impl Stage {
    /// All in which something is done for a step, in its order.
    pub const ALL: [Stage; 5] = [Stage::Batch, Stage::Vision, Stage::Forward, Stage::Backward, Stage::Update];

    /// Whether a mark counts after another one. What is no part of a step ends with the beginning of one, whatever is computed meanwhile.
    pub(crate) fn counts_after(self, last: Option<Stage>) -> bool {
        last != Some(Stage::Elsewhere) || self == Stage::Update
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Batch => "batch",
            Stage::Vision => "vision",
            Stage::Forward => "forward",
            Stage::Backward => "backward",
            Stage::Update => "update",
            Stage::Idle => "idle",
            Stage::Elsewhere => "elsewhere",
        }
    }
}

/// What one kind of operation took of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct OperationTime {
    /// The kernel, or the product with its sizes.
    pub name: String,
    /// How often it was done.
    pub count: usize,
    /// Seconds of all of them.
    pub seconds: f64,
}

/// How long each stage took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StageTimes {
    /// Of all stages, and of none last.
    seconds: [f64; Stage::ALL.len() + 1],
}

impl StageTimes {
    /// Of marks and the time between each and the next; that after the last one is nobody's.
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

    /// Seconds of one.
    pub fn seconds(&self, stage: Stage) -> f64 {
        self.seconds.get(stage as usize).copied().unwrap_or(0.0)
    }

    /// Seconds of all in which something is done.
    pub fn total(&self) -> f64 {
        Stage::ALL.map(|stage| self.seconds(stage)).iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_ends_where_the_next_begins() {
        use Stage::{Batch, Elsewhere, Forward, Idle, Update, Vision};
        let marks = [Update, Batch, Forward, Vision, Forward, Idle, Elsewhere, Batch];
        let lengths = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0];
        let times = StageTimes::of(&marks, |index| Ok::<f64, ()>(lengths[index])).unwrap();
        let of = |stage| times.seconds(stage);
        assert_eq!(Stage::ALL.map(of), [2.0, 8.0, 20.0, 0.0, 1.0]);
        assert_eq!((of(Idle), of(Elsewhere), times.total()), (32.0, 0.0, 31.0));
        assert_eq!(StageTimes::of(&[], |_| Err(())), Ok(StageTimes::default()));
    }
}

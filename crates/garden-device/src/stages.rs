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
    /// No stage: what follows is not timed.
    Outside,
}

impl Stage {
    /// All that are timed, in the order of a step.
    pub const ALL: [Stage; 5] = [Stage::Batch, Stage::Vision, Stage::Forward, Stage::Backward, Stage::Update];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Batch => "batch",
            Stage::Vision => "vision",
            Stage::Forward => "forward",
            Stage::Backward => "backward",
            Stage::Update => "update",
            Stage::Outside => "outside",
        }
    }
}

/// How long each stage took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StageTimes {
    seconds: [f64; Stage::ALL.len()],
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

    /// Seconds of all.
    pub fn total(&self) -> f64 {
        self.seconds.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_ends_where_the_next_begins() {
        let marks =
            [Stage::Update, Stage::Batch, Stage::Forward, Stage::Vision, Stage::Forward, Stage::Outside, Stage::Batch];
        let lengths = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0];
        let times = StageTimes::of(&marks, |index| Ok::<f64, ()>(lengths[index])).unwrap();
        let of = |stage| times.seconds(stage);
        assert_eq!(Stage::ALL.map(of), [2.0, 8.0, 20.0, 0.0, 1.0]);
        assert_eq!((of(Stage::Outside), times.total()), (0.0, 31.0));
        assert_eq!(StageTimes::of(&[], |_| Err(())), Ok(StageTimes::default()));
    }
}

//! What one start cost and gave: which checkpoint is its newest, and what was done after it.

use super::{Guard, Phase, Reached};
use crate::checkpoint::Checkpoint;
use crate::launch::Ending;

/// What can be gone on from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recovered {
    /// Every step that was done, as far as it told them.
    All,
    /// A checkpoint, but not the steps after it.
    Part,
    /// Nothing.
    Nothing,
    /// It ended by itself after it was asked to save, but where it saves is not known.
    Unknown,
}

impl Guard<'_, '_> {
    /// Writes down what the attempt cost and gave.
    pub(super) fn settle_accounts(&mut self, ending: Ending) -> Recovered {
        let newest = self.session.saves.as_ref().and_then(|saves| saves.newest().complete);
        let is_ended_by_us = matches!(self.phase, Phase::Ending { .. });
        let lost_steps = match &newest {
            Some(newest) => self.lost_since(newest),
            None => self.attempt.first_step.zip(self.attempt.last_step).map(|(first, last)| last - first + 1.0),
        };
        let kept = match (&newest, self.reached) {
            (Some(_), Some(Reached::JustSaved)) => Recovered::All,
            (Some(_), _) if lost_steps.is_none_or(|lost| lost <= 0.0) => Recovered::All,
            _ if self.has_told && !is_ended_by_us => Recovered::All,
            (Some(_), _) => Recovered::Part,
            (None, reached) if self.session.saves.is_none() && !is_ended_by_us && self.was_to_save(reached) => {
                Recovered::Unknown
            }
            (None, _) => Recovered::Nothing,
        };
        let attempt = &mut self.attempt;
        attempt.seconds = self.began.elapsed().as_secs_f64();
        attempt.ending = match ending {
            Ending::Signal(signal) if is_ended_by_us => format!("was ended by the guard (signal {signal})"),
            _ => ending.words(),
        };
        attempt.stopping_seconds = self.asked_at.map(|asked| asked.at.elapsed().as_secs_f64());
        attempt.checkpoint_step = newest.as_ref().and_then(|checkpoint| checkpoint.step);
        // A program that told of its checkpoint knows best.
        let is_told = kept == Recovered::All && self.reached != Some(Reached::JustSaved);
        attempt.lost_steps = if is_told { attempt.last_step.map(|_| 0.0) } else { lost_steps };
        attempt.checkpoint = newest.map(|checkpoint| checkpoint.path);
        kept
    }

    fn was_to_save(&self, reached: Option<Reached>) -> bool {
        reached == Some(Reached::Asked) || matches!(self.phase, Phase::Saving(_))
    }

    /// Steps that were done after the last one that a checkpoint holds.
    fn lost_since(&self, newest: &Checkpoint) -> Option<f64> {
        let last = self.attempt.last_step?;
        let kept = self.session.saves.as_ref().and_then(|saves| saves.step_of(newest, last))?;
        Some((last - kept).max(0.0))
    }
}

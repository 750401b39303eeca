//! What one start cost and gave: which checkpoint is its newest, and what was done after it.

use super::{Guard, Phase, Reached};
use crate::checkpoint::Checkpoint;
use crate::launch::Ending;

/// What can be gone on from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
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
    pub(super) fn settle_accounts(&mut self, ending: Ending) -> Kept {
        let newest = self.keeper.saves.as_ref().and_then(|saves| saves.newest().complete);
        let is_ended_by_us = matches!(self.phase, Phase::Ending { .. });
        let lost_steps = newest.as_ref().map_or(self.attempt.last_step, |newest| self.lost_since(newest));
        let kept = match (&newest, self.reached) {
            (Some(_), Some(Reached::JustSaved)) => Kept::All,
            (Some(_), _) if lost_steps.is_none_or(|lost| lost <= 0.0) => Kept::All,
            _ if self.has_told && !is_ended_by_us => Kept::All,
            (Some(_), _) => Kept::Part,
            (None, Some(Reached::Asked)) if self.keeper.saves.is_none() && !is_ended_by_us => Kept::Unknown,
            (None, _) => Kept::Nothing,
        };
        let attempt = &mut self.attempt;
        attempt.seconds = self.began.elapsed().as_secs_f64();
        attempt.ending = match ending {
            Ending::Signal(signal) if is_ended_by_us => format!("was ended by the guard (signal {signal})"),
            _ => ending.words(),
        };
        attempt.stopping_seconds = self.asked_at.map(|asked| asked.at.elapsed().as_secs_f64());
        attempt.checkpoint_step = newest.as_ref().and_then(|checkpoint| checkpoint.step);
        attempt.lost_steps = if kept == Kept::All { attempt.last_step.map(|_| 0.0) } else { lost_steps };
        attempt.checkpoint = newest.map(|checkpoint| checkpoint.path);
        kept
    }

    /// Steps that were told after a checkpoint was complete.
    fn lost_since(&self, newest: &Checkpoint) -> Option<f64> {
        let last = self.attempt.last_step?;
        let seen = self.newest.as_ref().filter(|(seen, _)| seen.path == newest.path).and_then(|(_, step)| *step);
        let named = newest.step.map(|step| step as f64);
        let kept = match (seen, named) {
            // What is told comes a little before or after the checkpoint is seen, so the name says it best; but it may count epochs.
            (Some(seen), Some(named)) if (seen - named).abs() <= 2.0 => named,
            (Some(seen), _) => seen,
            // It was complete only when the program had ended.
            (None, _)
                if self.asked_at.is_some_and(|asked| newest.written().is_some_and(|(_, at)| at >= asked.date)) =>
            {
                last
            }
            (None, Some(named)) => named,
            (None, None) => return None,
        };
        Some((last - kept).max(0.0))
    }
}

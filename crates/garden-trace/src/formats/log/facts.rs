//! Facts about the run that trainers print: the banners of HF and Unsloth, totals behind step counts, fractional
//! epochs.

use garden_memory::RunFacts;

use super::labels::Fact;
use super::line::LogLine;
use crate::columns::epochs::EpochLength;

/// The facts stated by the lines so far; the first statement of a fact counts.
#[derive(Clone)]
pub(super) struct Facts {
    stated: RunFacts,
    total_batch: Option<u64>,
    epochs: Option<u64>,
    // The total behind step counts: unknown, always the same, or contradictory.
    total: Total,
    length: EpochLength,
    /// Whether the banner being printed is an evaluation's, whose numbers are about another dataset.
    pub(super) in_evaluation: bool,
}

#[derive(Clone, Copy)]
enum Total {
    Unknown,
    Same(f64),
    Contradictory,
}

impl Default for Facts {
    fn default() -> Self {
        Facts {
            stated: RunFacts::default(),
            total_batch: None,
            epochs: None,
            total: Total::Unknown,
            length: EpochLength::new(),
            in_evaluation: false,
        }
    }
}

impl Facts {
    /// Takes in a line's facts, and its epoch with the step it belongs to.
    pub(super) fn take(&mut self, line: &LogLine<'_>, step: Option<f64>) {
        if let (Some((epoch, _)), Some(step)) = (line.epoch, step) {
            self.length.observe(step, epoch);
        }
        if self.in_evaluation {
            return;
        }
        for &(fact, value) in &line.facts {
            let place = match fact {
                Fact::Examples => &mut self.stated.examples,
                Fact::BatchSize => &mut self.stated.batch_size,
                Fact::Accumulation => &mut self.stated.gradient_accumulation,
                Fact::TotalSteps => &mut self.stated.total_steps,
                Fact::TotalBatchSize => &mut self.total_batch,
                Fact::Epochs => &mut self.epochs,
            };
            place.get_or_insert(value);
        }
    }

    /// The number of steps stated by a banner.
    pub(super) fn stated_total(&self) -> Option<u64> {
        self.stated.total_steps
    }

    /// Takes in the total behind a step, as in `12/249`.
    pub(super) fn saw_total(&mut self, total: Option<f64>) {
        let Some(total) = total else { return };
        self.total = match self.total {
            Total::Unknown => Total::Same(total),
            Total::Same(before) if before == total => Total::Same(total),
            _ => Total::Contradictory,
        };
    }

    /// Records that the total behind the steps is an epoch's.
    pub(super) fn steps_of_an_epoch(&mut self, steps: f64, epochs: Option<f64>) {
        self.stated.steps_per_epoch = whole(steps);
        self.stated.total_steps = self.stated.total_steps.or(epochs.and_then(|epochs| whole(steps * epochs)));
        self.total = Total::Contradictory;
    }

    /// The facts, put together.
    pub(super) fn finish(&self) -> RunFacts {
        let mut facts = self.stated.clone();
        // With several devices a step sees more examples than one device's batch times the accumulation.
        if let (Some(total), accumulation) = (self.total_batch, facts.gradient_accumulation.unwrap_or(1).max(1))
            && total >= accumulation
            && total % accumulation == 0
        {
            facts.batch_size = Some(total / accumulation);
        }
        if let (None, Total::Same(total)) = (facts.total_steps, self.total) {
            facts.total_steps = whole(total);
        }
        if facts.epoch_steps().is_none() {
            let divided = match (facts.total_steps, self.epochs) {
                (Some(total), Some(epochs)) if epochs > 0 && total % epochs == 0 => Some(total / epochs),
                _ => None,
            };
            facts.steps_per_epoch = divided.or_else(|| self.length.steps());
        }
        facts
    }
}

/// A number of steps or examples, if it is one.
pub(super) fn whole(number: f64) -> Option<u64> {
    ((1.0..=1e15).contains(&number) && number.fract() == 0.0).then_some(number as u64)
}

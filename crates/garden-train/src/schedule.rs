//! The learning rate at each step, by the formulas of transformers.

use crate::recipe::{Recipe, Scheduler};

/// The learning rate of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    kind: Scheduler,
    highest: f64,
    /// Where a cosine ends.
    lowest: f64,
    warmup: usize,
    steps: usize,
}

impl Schedule {
    /// The schedule of a recipe for so many steps.
    pub fn new(recipe: &Recipe, steps: usize) -> Schedule {
        let by_ratio = recipe.warmup_ratio.map(|ratio| (ratio * steps as f64).ceil() as usize);
        let warmup = by_ratio.unwrap_or(recipe.warmup_steps);
        let (highest, lowest) = (recipe.learning_rate, recipe.min_learning_rate);
        Schedule { kind: recipe.lr_scheduler, highest, lowest, warmup, steps }
    }

    /// The rate of a step, counted from 0. The first step of a warm-up has rate 0, as in transformers.
    pub fn rate(&self, step: usize) -> f64 {
        if self.kind != Scheduler::Constant && step < self.warmup {
            return self.highest * step as f64 / self.warmup as f64;
        }
        let progress = (step - self.warmup.min(step)) as f64 / self.steps.saturating_sub(self.warmup).max(1) as f64;
        let share = match self.kind {
            Scheduler::Cosine => {
                let share = 0.5 * (1.0 + (std::f64::consts::PI * progress).cos());
                return self.lowest + (self.highest - self.lowest) * share.max(0.0);
            }
            Scheduler::Linear => 1.0 - progress,
            Scheduler::Constant | Scheduler::ConstantWithWarmup => 1.0,
        };
        self.highest * share.max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(kind: Scheduler) -> Schedule {
        Schedule { kind, highest: 1.0, lowest: 0.0, warmup: 4, steps: 20 }
    }

    /// Numbers of transformers' `get_scheduler` with 4 steps of warm-up and 20 in all.
    #[test]
    fn rates_are_those_of_transformers() {
        let check = |kind, expected: [f64; 5]| {
            for (step, rate) in [0, 2, 4, 12, 19].into_iter().zip(expected) {
                let found = schedule(kind).rate(step);
                assert!((found - rate).abs() < 1e-12, "{kind:?} {step}: {found}");
            }
        };
        check(Scheduler::Cosine, [0.0, 0.5, 1.0, 0.5, 0.009607359798384785]);
        check(Scheduler::Linear, [0.0, 0.5, 1.0, 0.5, 0.0625]);
        check(Scheduler::ConstantWithWarmup, [0.0, 0.5, 1.0, 1.0, 1.0]);
        check(Scheduler::Constant, [1.0; 5]);
        // `cosine_with_min_lr` with `min_lr` 0.1.
        let least = Schedule { lowest: 0.1, ..schedule(Scheduler::Cosine) };
        for (step, rate) in [(0, 0.0), (2, 0.5), (4, 1.0), (12, 0.55), (19, 0.10864662381854632)] {
            assert!((least.rate(step) - rate).abs() < 1e-12, "{step}: {}", least.rate(step));
        }
    }

    #[test]
    fn a_warm_up_longer_than_the_run_is_no_failure() {
        let short = Schedule { warmup: 10, steps: 3, ..schedule(Scheduler::Cosine) };
        assert!((short.rate(2) - 0.2).abs() < 1e-12 && short.rate(50) >= 0.0);
    }
}

//! Cross entropy of a chunk of rows: the loss of each, whether its target has the largest logit, and its gradient in place of the logits.

use super::exponential::exp;
use super::sums::{highest, sum};
use super::threads::Threads;
use crate::wide::widest;

pub(super) fn cross_entropy(
    threads: &Threads,
    logits: &mut [f32],
    targets: &[i32],
    losses: &mut [f32],
    hits: &mut [f32],
    rows: usize,
    scale: f32,
) {
    let width = logits.len() / rows.max(1);
    assert_eq!((targets.len(), losses.len(), hits.len(), logits.len()), (rows, rows, rows, rows * width));
    threads.by_rows_with(logits, width, [losses, hits], |first, logits, [losses, hits]| {
        let results = losses.iter_mut().zip(hits).zip(&targets[first..]);
        for (logits, ((loss, hit), target)) in logits.chunks_exact_mut(width).zip(results) {
            (*loss, *hit) = row(logits, *target as usize, scale);
        }
    });
}

widest! {
    /// The loss of one row, and 1 if its target is the first of the largest logits, else 0; the logits are replaced by their gradient.
    fn row(logits: &mut [f32], target: usize, scale: f32) -> (f32, f32) {
        let highest = highest(logits);
        let asked = logits[target];
        // Equal ones are rare, and so is a scan for them.
        let is_hit = asked >= highest && !logits[..target].contains(&asked);
        for logit in logits.iter_mut() {
            *logit = exp(*logit - highest);
        }
        // A vocabulary is large: f32 would lose precision.
        let sum: f64 = logits.chunks(256).map(|piece| f64::from(sum(piece))).sum();
        let factor = (f64::from(scale) / sum) as f32;
        logits.iter_mut().for_each(|logit| *logit *= factor);
        logits[target] -= scale;
        let loss = (sum.ln() + f64::from(highest) - f64::from(asked)) as f32;
        (loss, if is_hit { 1.0 } else { 0.0 })
    }
}

/// Index of the largest logit, the first of equal ones; -1 if it is not finite. NaN is skipped.
pub(super) fn best_of(logits: &[f32]) -> i32 {
    let highest = highest_number(logits);
    let place = logits.iter().position(|logit| *logit == highest).filter(|_| highest.is_finite());
    place.map_or(-1, |place| place as i32)
}

widest! {
    fn highest_number(values: &[f32]) -> f32 {
        values.iter().fold(f32::NEG_INFINITY, |highest, value| if *value > highest { *value } else { highest })
    }
}

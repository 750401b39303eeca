//! Cross entropy of a chunk of rows: the loss of each, and its gradient in place of the logits.

use super::exponential::exp;
use super::threads::Threads;

pub(super) fn cross_entropy(
    threads: &Threads,
    logits: &mut [f32],
    targets: &[i32],
    losses: &mut [f32],
    rows: usize,
    scale: f32,
) {
    let width = logits.len() / rows.max(1);
    assert_eq!((targets.len(), losses.len(), logits.len()), (rows, rows, rows * width));
    for ((logits, target), loss) in logits.chunks_exact(width).zip(targets).zip(losses) {
        let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|logit| f64::from(exp(logit - highest))).sum();
        *loss = (sum.ln() + f64::from(highest) - f64::from(logits[*target as usize])) as f32;
    }
    threads.by_rows(logits, width, |first, logits| {
        for (logits, target) in logits.chunks_exact_mut(width).zip(&targets[first..]) {
            let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            logits.iter_mut().for_each(|logit| *logit = exp(*logit - highest));
            let factor = scale / logits.iter().map(|value| f64::from(*value)).sum::<f64>() as f32;
            logits.iter_mut().for_each(|logit| *logit *= factor);
            logits[*target as usize] -= scale;
        }
    });
}

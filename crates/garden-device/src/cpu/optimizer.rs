//! AdamW, and the norm of all gradients.

use crate::device::AdamW;

use super::threads::Threads;
use super::wide::widest;

/// Added to the norm before gradients are divided by it, as PyTorch does.
const CLIP_EPSILON: f32 = 1e-6;
/// Pieces whose squares are summed apart, whoever does it.
const PIECES: usize = 64;

/// What gradients are multiplied with so that their norm is at most `largest`.
pub(super) fn shrink(squares: f32, largest: f32) -> f32 {
    (largest / (squares.sqrt() + CLIP_EPSILON)).min(1.0)
}

pub(super) fn add_squares(threads: &Threads, x: &[f32], sum: &mut [f32]) {
    let mut sums = [0.0_f32; PIECES];
    let length = x.len().div_ceil(PIECES).max(1);
    let of = |piece: &[f32]| piece.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>() as f32;
    threads.by_values(&mut sums, length, |first, sums| {
        for (sum, piece) in sums.iter_mut().zip(x.chunks(length).skip(first)) {
            *sum = of(piece);
        }
    });
    sum[0] += sums.iter().map(|sum| f64::from(*sum)).sum::<f64>() as f32;
}

/// Decay first, then the moments, then the step: p -= rate / (1 - b1^t) m / (sqrt(v) / sqrt(1 - b2^t) + eps).
pub(super) fn adamw(
    threads: &Threads,
    update: &AdamW,
    shrink: f32,
    value: &mut [f32],
    gradient: &[f32],
    first: &mut [f32],
    second: &mut [f32],
) {
    let (beta1, beta2) = (f64::from(update.beta1), f64::from(update.beta2));
    let step = (f64::from(update.rate) / (1.0 - beta1.powi(update.step as i32))) as f32;
    let root = (1.0 / (1.0 - beta2.powi(update.step as i32)).sqrt()) as f32;
    let keep = (1.0 - f64::from(update.rate) * f64::from(update.decay)) as f32;
    let (new1, new2) = ((1.0 - beta1) as f32, (1.0 - beta2) as f32);
    threads.by_rows_of_two(first, second, 1, |at, first, second| {
        moments(&gradient[at..], first, second, shrink, (update.beta1, new1), (update.beta2, new2));
    });
    let (first, second) = (&*first, &*second);
    threads.by_rows(value, 1, |at, value| {
        steps(value, &first[at..], &second[at..], keep, step, root, update.epsilon);
    });
}

widest! {
    fn moments(
        gradient: &[f32],
        first: &mut [f32],
        second: &mut [f32],
        shrink: f32,
        beta1: (f32, f32),
        beta2: (f32, f32),
    ) {
        for ((m, v), g) in first.iter_mut().zip(second).zip(gradient) {
            let g = g * shrink;
            *m = beta1.0 * *m + beta1.1 * g;
            *v = beta2.0 * *v + beta2.1 * g * g;
        }
    }
}

widest! {
    fn steps(value: &mut [f32], first: &[f32], second: &[f32], keep: f32, step: f32, root: f32, epsilon: f32) {
        for ((p, m), v) in value.iter_mut().zip(first).zip(second) {
            *p = *p * keep - step * m / (v.sqrt() * root + epsilon);
        }
    }
}

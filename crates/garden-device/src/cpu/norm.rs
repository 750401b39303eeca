//! RMS norm: y = w x / sqrt(mean(x^2) + eps), row by row.

use crate::device::Write;

use super::sums::sum_of;
use super::threads::Threads;
use crate::wide::widest;

pub(super) fn forward(threads: &Threads, x: &[f32], weight: &[f32], y: &mut [f32], rows: usize, epsilon: f32) {
    let width = weight.len();
    assert_eq!((x.len(), y.len()), (rows * width, rows * width), "x and y [{rows}, {width}] are needed");
    threads.by_rows(y, width, |first, y| forward_rows(&x[first * width..], weight, y, epsilon));
}

widest! {
    fn forward_rows(x: &[f32], weight: &[f32], y: &mut [f32], epsilon: f32) {
        let width = weight.len();
        for (x, y) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)) {
            let root = inverse_root(x, epsilon);
            for ((y, x), w) in y.iter_mut().zip(x).zip(weight) {
                *y = w * (x * root);
            }
        }
    }
}

/// With n = x / root and g = w dy: dx = (g - n mean(g n)) / root, dw = sum over rows of dy n.
pub(super) fn backward(
    threads: &Threads,
    dy: &[f32],
    x: &[f32],
    weight: &[f32],
    dx: &mut [f32],
    gradient: Option<&mut [f32]>,
    rows: usize,
    epsilon: f32,
    write: Write,
) {
    let width = weight.len();
    assert_eq!(
        (x.len(), dy.len(), dx.len()),
        (rows * width, rows * width, rows * width),
        "[{rows}, {width}] is needed"
    );
    if let Some(gradient) = gradient {
        for (x, dy) in x.chunks_exact(width).zip(dy.chunks_exact(width)) {
            let root = inverse_root(x, epsilon);
            for ((g, x), dy) in gradient.iter_mut().zip(x).zip(dy) {
                *g += dy * (x * root);
            }
        }
    }
    threads.by_rows(dx, width, |first, dx| {
        backward_rows(&dy[first * width..], &x[first * width..], weight, dx, epsilon, write == Write::Add);
    });
}

widest! {
    fn backward_rows(dy: &[f32], x: &[f32], weight: &[f32], dx: &mut [f32], epsilon: f32, adds: bool) {
        let width = weight.len();
        let inputs = x.chunks_exact(width).zip(dy.chunks_exact(width));
        for ((x, dy), dx) in inputs.zip(dx.chunks_exact_mut(width)) {
            let root = inverse_root(x, epsilon);
            let along = along(x, dy, weight) * root / width as f32;
            for (((dx, x), dy), w) in dx.iter_mut().zip(x).zip(dy).zip(weight) {
                let value = (w * dy - x * root * along) * root;
                *dx = if adds { *dx + value } else { value };
            }
        }
    }
}

#[inline(always)]
fn inverse_root(x: &[f32], epsilon: f32) -> f32 {
    1.0 / (sum_of(x, |value| value * value) / x.len() as f32 + epsilon).sqrt()
}

/// The sum of w dy x.
#[inline(always)]
fn along(x: &[f32], dy: &[f32], weight: &[f32]) -> f32 {
    let mut sums = [0.0_f32; 16];
    for ((x, dy), w) in x.chunks(16).zip(dy.chunks(16)).zip(weight.chunks(16)) {
        sums.iter_mut().zip(x).zip(dy).zip(w).for_each(|(((sum, x), dy), w)| *sum += w * dy * x);
    }
    sums.iter().sum()
}

//! RMS norm: y = w x / sqrt(mean(x^2) + eps), row by row.

use crate::device::Write;

use super::threads::Threads;

pub(super) fn forward(threads: &Threads, x: &[f32], weight: &[f32], y: &mut [f32], rows: usize, epsilon: f32) {
    let width = weight.len();
    assert_eq!((x.len(), y.len()), (rows * width, rows * width), "x and y [{rows}, {width}] are needed");
    threads.by_rows(y, width, |first, y| {
        for (x, y) in x[first * width..].chunks_exact(width).zip(y.chunks_exact_mut(width)) {
            let root = inverse_root(x, epsilon);
            for ((y, x), w) in y.iter_mut().zip(x).zip(weight) {
                *y = w * (x * root);
            }
        }
    });
}

/// With n = x / root and g = w dy: dx = (g - n mean(g n)) / root, dw = sum over rows of dy n.
#[allow(clippy::too_many_arguments)]
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
        let inputs = x[first * width..].chunks_exact(width).zip(dy[first * width..].chunks_exact(width));
        for ((x, dy), dx) in inputs.zip(dx.chunks_exact_mut(width)) {
            let root = inverse_root(x, epsilon);
            let along: f32 =
                x.iter().zip(dy).zip(weight).map(|((x, dy), w)| w * dy * (x * root)).sum::<f32>() / width as f32;
            for (((dx, x), dy), w) in dx.iter_mut().zip(x).zip(dy).zip(weight) {
                let value = (w * dy - x * root * along) * root;
                *dx = if write == Write::Add { *dx + value } else { value };
            }
        }
    });
}

fn inverse_root(x: &[f32], epsilon: f32) -> f32 {
    // Eight sums side by side: one alone would be added up one value after the other.
    let mut sums = [0.0_f32; 8];
    let eights = x.chunks_exact(8);
    let rest: f32 = eights.remainder().iter().map(|x| x * x).sum();
    for eight in eights {
        sums.iter_mut().zip(eight).for_each(|(sum, x)| *sum += x * x);
    }
    1.0 / ((sums.iter().sum::<f32>() + rest) / x.len() as f32 + epsilon).sqrt()
}

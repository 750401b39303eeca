//! Elementwise operations.

use crate::device::Write;
use garden_random::mix;

use super::exponential::exp;
use super::threads::Threads;
use crate::wide::widest;

pub(super) fn add(threads: &Threads, x: &[f32], y: &mut [f32]) {
    assert_eq!(x.len(), y.len());
    threads.by_rows(y, 1, |first, y| y.iter_mut().zip(&x[first..]).for_each(|(y, x)| *y += x));
}

pub(super) fn add_bias(threads: &Threads, y: &mut [f32], bias: &[f32], rows: usize) {
    assert_eq!(y.len(), rows * bias.len(), "y [{rows}, {}] is needed", bias.len());
    threads.by_rows(y, bias.len(), |_, y| {
        y.chunks_exact_mut(bias.len()).for_each(|row| row.iter_mut().zip(bias).for_each(|(y, bias)| *y += bias));
    });
}

pub(super) fn bias_gradient(threads: &Threads, dy: &[f32], gradient: &mut [f32], rows: usize) {
    let width = gradient.len();
    assert_eq!(dy.len(), rows * width, "dy [{rows}, {width}] is needed");
    // By columns: each sum has one owner.
    threads.by_values(gradient, rows.max(1), |first, gradient| {
        for row in dy.chunks_exact(width) {
            gradient.iter_mut().zip(&row[first..]).for_each(|(sum, dy)| *sum += dy);
        }
    });
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

pub(super) fn swiglu(threads: &Threads, gate: &[f32], up: &[f32], y: &mut [f32]) {
    assert_eq!((gate.len(), up.len()), (y.len(), y.len()));
    threads.by_rows(y, 1, |first, y| swiglu_piece(&gate[first..], &up[first..], y));
}

widest! {
    fn swiglu_piece(gate: &[f32], up: &[f32], y: &mut [f32]) {
        for ((y, gate), up) in y.iter_mut().zip(gate).zip(up) {
            *y = gate * sigmoid(*gate) * up;
        }
    }
}

/// `dup` holds dy on entry.
pub(super) fn swiglu_backward(threads: &Threads, gate: &[f32], up: &[f32], dgate: &mut [f32], dup: &mut [f32]) {
    assert_eq!((gate.len(), up.len(), dup.len()), (dgate.len(), dgate.len(), dgate.len()));
    threads.by_rows_of_two(dgate, dup, 1, |first, dgate, dup| {
        swiglu_backward_piece(&gate[first..], &up[first..], dgate, dup);
    });
}

widest! {
    /// d silu(g) / dg = s + g s (1 - s), s = sigmoid(g).
    fn swiglu_backward_piece(gate: &[f32], up: &[f32], dgate: &mut [f32], dup: &mut [f32]) {
        for ((dgate, dup), (gate, up)) in dgate.iter_mut().zip(dup).zip(gate.iter().zip(up)) {
            let (dy, s) = (*dup, sigmoid(*gate));
            *dgate = dy * up * (s + gate * s * (1.0 - s));
            *dup = dy * gate * s;
        }
    }
}

pub(super) fn gelu(threads: &Threads, x: &[f32], y: &mut [f32]) {
    assert_eq!(x.len(), y.len());
    threads.by_rows(y, 1, |first, y| y.iter_mut().zip(&x[first..]).for_each(|(y, x)| *y = x * normal_below(*x)));
}

/// d (x P(x)) / dx = P(x) + x p(x), with the normal distribution's P and its density p.
pub(super) fn gelu_backward(threads: &Threads, x: &[f32], dx: &mut [f32]) {
    assert_eq!(x.len(), dx.len());
    threads.by_rows(dx, 1, |first, dx| {
        for (dx, x) in dx.iter_mut().zip(&x[first..]) {
            let density = exp(-0.5 * x * x) * 0.398_942_3;
            *dx *= normal_below(*x) + x * density;
        }
    });
}

/// The cumulative distribution function of the standard normal distribution.
fn normal_below(x: f32) -> f32 {
    0.5 * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2))
}

/// The error function: its series near zero, its continued fraction further out. No lookup tables, with an error of 1e-7.
fn erf(x: f32) -> f32 {
    let x = f64::from(x);
    let size = x.abs();
    let value = if size < 2.0 {
        // 2/sqrt(pi) e^(-x^2) sum over n of 2^n x^(2n+1) / (1 3 5 .. (2n+1)): all terms are positive, so none cancel.
        let square = 2.0 * size * size;
        let (mut term, mut sum, mut n) = (size, size, 1.0);
        while term > 1e-9 * sum {
            term *= square / (2.0 * n + 1.0);
            sum += term;
            n += 1.0;
        }
        std::f64::consts::FRAC_2_SQRT_PI * (-size * size).exp() * sum
    } else {
        // 1 - exp(-x^2) / (x sqrt(pi)) * 1 / (1 + 1/(2x^2) / (1 + 2/(2x^2) / (1 + ...))).
        let square = 2.0 * size * size;
        let fraction = (1..24).rev().fold(1.0, |inner, n| 1.0 + f64::from(n) / square / inner);
        1.0 - (-size * size).exp() / (size * fraction) * (0.5 * std::f64::consts::FRAC_2_SQRT_PI)
    };
    value.copysign(x) as f32
}

/// Whether a value is kept is a hash of the seed and its index: nothing has to be saved for the backward pass.
pub(super) fn dropout(threads: &Threads, x: &[f32], y: &mut [f32], rate: f32, seed: u64, write: Write) {
    assert_eq!(x.len(), y.len());
    let scale = 1.0 / (1.0 - rate);
    let border = (f64::from(rate) * (1u64 << 32) as f64) as u64;
    threads.by_rows(y, 1, |first, y| {
        for (place, (y, x)) in y.iter_mut().zip(&x[first..]).enumerate() {
            let stays = mix(seed ^ mix((first + place) as u64)) >> 32 >= border;
            let value = if stays { x * scale } else { 0.0 };
            *y = if write == Write::Add { *y + value } else { value };
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_function() {
        for (x, expected) in [
            (0.0, 0.0),
            (0.1, 0.112_462_92),
            (1.0, 0.842_700_8),
            (1.99, 0.995_111_4),
            (2.01, 0.995_524_9),
            (2.4, 0.999_311_5),
            (2.6, 0.999_764),
            (4.0, 0.999_999_98),
            (-1.5, -0.966_105_16),
        ] {
            assert!((erf(x) - expected).abs() < 2e-7, "erf({x}) = {}", erf(x));
        }
    }

    #[test]
    fn dropout_keeps_its_share_and_its_choice() {
        let threads = Threads::new(2);
        let x = vec![1.0; 100_000];
        let (mut y, mut z) = (vec![0.0; x.len()], vec![0.0; x.len()]);
        dropout(&threads, &x, &mut y, 0.3, 7, Write::Set);
        dropout(&threads, &x, &mut z, 0.3, 7, Write::Set);
        assert_eq!(y, z);
        let kept = y.iter().filter(|y| **y != 0.0).count() as f64 / x.len() as f64;
        assert!((kept - 0.7).abs() < 0.01, "{kept}");
    }
}

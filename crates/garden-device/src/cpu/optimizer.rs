//! AdamW, and the norm of all gradients.

use crate::device::AdamW;
use crate::scalars::StepScalars;

use crate::dynamic_8bit::{BLOCK, Map};

use super::matmul::Shared;
use super::threads::Threads;
use crate::wide::widest;

/// Added to the norm before dividing gradients by it, as in PyTorch.
const CLIP_EPSILON: f32 = 1e-6;
/// Pieces whose squares are summed separately, whichever thread does it.
const PIECES: usize = 64;

/// The factor of the gradients that limits their norm to `largest`.
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
    scalars: &StepScalars,
    shrink: f32,
    value: &mut [f32],
    gradient: &[f32],
    first: &mut [f32],
    second: &mut [f32],
) {
    let (beta1, beta2) = (f64::from(update.beta1), f64::from(update.beta2));
    let (rate, updates) = (f64::from(scalars.rate), scalars.updates_of(update.group) as i32);
    let step = (rate / (1.0 - beta1.powi(updates))) as f32;
    let root = (1.0 / (1.0 - beta2.powi(updates)).sqrt()) as f32;
    let keep = (1.0 - rate * f64::from(update.decay)) as f32;
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

/// Blocks per work item.
const BLOCKS: usize = 32;

/// AdamW with 8-bit moments, as in bitsandbytes on GPUs: moments are decoded and updated, the parameter is updated with them
/// before they are rounded, and decay comes last.
pub(super) fn adamw_8bit(
    threads: &Threads,
    update: &AdamW,
    scalars: &StepScalars,
    shrink: f32,
    value: &mut [f32],
    gradient: &[f32],
    codes: [&mut [u8]; 2],
    scales: [&mut [f32]; 2],
) {
    let length = value.len();
    assert_eq!((gradient.len(), codes[0].len(), codes[1].len()), (length, length, length));
    let blocks = length.div_ceil(BLOCK);
    assert_eq!((scales[0].len(), scales[1].len()), (blocks, blocks));
    let (rate, updates) = (f64::from(scalars.rate), scalars.updates_of(update.group) as i32);
    let power = |beta: f32| f64::from(beta).powi(updates);
    let (first, second) = (1.0 - power(update.beta1), (1.0 - power(update.beta2)).sqrt());
    let settings = Step8bit {
        shrink,
        beta1: update.beta1,
        beta2: update.beta2,
        step: (-rate * second / first) as f32,
        epsilon: (second * f64::from(update.epsilon)) as f32,
        keep: (1.0 - rate * f64::from(update.decay)) as f32,
    };
    let [codes1, codes2] = codes.map(<[u8]>::as_mut_ptr);
    let [scales1, scales2] = scales.map(<[f32]>::as_mut_ptr);
    let given = Shared::of((value.as_mut_ptr(), codes1, codes2, scales1, scales2));
    threads.each(blocks.div_ceil(BLOCKS), |_, piece| {
        let (value, codes1, codes2, scales1, scales2) = given.get();
        for block in piece * BLOCKS..blocks.min((piece + 1) * BLOCKS) {
            let (first, count) = (block * BLOCK, BLOCK.min(length - block * BLOCK));
            // SAFETY: inside the slices, whose lengths were checked; each block is done once.
            unsafe {
                settings.block(
                    std::slice::from_raw_parts_mut(value.add(first), count),
                    &gradient[first..first + count],
                    std::slice::from_raw_parts_mut(codes1.add(first), count),
                    std::slice::from_raw_parts_mut(codes2.add(first), count),
                    &mut *scales1.add(block),
                    &mut *scales2.add(block),
                );
            }
        }
    });
}

/// Settings shared by all blocks of a step.
struct Step8bit {
    shrink: f32,
    beta1: f32,
    beta2: f32,
    step: f32,
    epsilon: f32,
    keep: f32,
}

impl Step8bit {
    fn block(
        &self,
        value: &mut [f32],
        gradient: &[f32],
        codes1: &mut [u8],
        codes2: &mut [u8],
        scale1: &mut f32,
        scale2: &mut f32,
    ) {
        let (map1, map2) = (Map::signed(), Map::unsigned());
        let (mut m, mut v) = ([0.0_f32; BLOCK], [0.0_f32; BLOCK]);
        for (index, p) in value.iter_mut().enumerate() {
            let g = gradient[index] * self.shrink;
            // A single NaN or infinite gradient must not spoil its whole block.
            if !g.is_finite() {
                continue;
            }
            let before1 = map1.values[usize::from(codes1[index])] * *scale1;
            let before2 = map2.values[usize::from(codes2[index])] * *scale2;
            m[index] = self.beta1 * before1 + (1.0 - self.beta1) * g;
            v[index] = self.beta2 * before2 + (1.0 - self.beta2) * g * g;
            *p = (*p + self.step * m[index] / (v[index].sqrt() + self.epsilon)) * self.keep;
        }
        let largest = |values: &[f32]| values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        (*scale1, *scale2) = (largest(&m), largest(&v));
        for (code, m) in codes1.iter_mut().zip(&m) {
            *code = if *scale1 == 0.0 { map1.nearest(0.0) } else { with_sign(map1.nearest(m / *scale1), *m) };
        }
        for (code, v) in codes2.iter_mut().zip(&v) {
            *code = if *scale2 == 0.0 { map2.nearest(0.0) } else { map2.nearest(v / *scale2) };
        }
    }
}

/// A first moment keeps its sign when rounded: the next code on its side is taken. Zero counts as positive.
fn with_sign(code: u8, moment: f32) -> u8 {
    let is_same = Map::signed().values[usize::from(code)].is_sign_negative() == moment.is_sign_negative();
    match is_same {
        true => code,
        false if moment > 0.0 => code + 1,
        false => code - 1,
    }
}

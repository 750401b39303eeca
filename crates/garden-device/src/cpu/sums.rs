//! Sums in parallel lanes, for vector instructions.

/// The number of parallel sums.
const LANES: usize = 16;

/// The sum of all values.
#[inline(always)]
pub(super) fn sum(values: &[f32]) -> f32 {
    sum_of(values, |value| value)
}

/// The sum of a function of each value.
#[inline(always)]
pub(super) fn sum_of(values: &[f32], of: impl Fn(f32) -> f32) -> f32 {
    let mut sums = [0.0_f32; LANES];
    let pieces = values.chunks_exact(LANES);
    let rest: f32 = pieces.remainder().iter().map(|value| of(*value)).sum();
    for piece in pieces {
        sums.iter_mut().zip(piece).for_each(|(sum, value)| *sum += of(*value));
    }
    sums.iter().sum::<f32>() + rest
}

/// The dot product of values.
#[inline(always)]
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0_f32; LANES];
    let (left, right) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest: f32 = left.remainder().iter().zip(right.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in left.zip(right) {
        sums.iter_mut().zip(a).zip(b).for_each(|((sum, a), b)| *sum += a * b);
    }
    sums.iter().sum::<f32>() + rest
}

/// The highest value; NaN is ignored.
#[inline(always)]
pub(super) fn highest(values: &[f32]) -> f32 {
    let higher = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let pieces = values.chunks_exact(LANES);
    let rest = pieces.remainder().iter().copied().fold(f32::NEG_INFINITY, higher);
    for piece in pieces {
        lanes.iter_mut().zip(piece).for_each(|(lane, value)| *lane = higher(*lane, *value));
    }
    lanes.into_iter().fold(rest, higher)
}

//! Cross entropy, sums over a batch, and the largest logit.

use super::driver::Argument;
use super::{Cuda, VALUES};
use crate::buffer::{Buffer, Dtype};

/// Maximum pieces of a sum of squares: the order of a sum must not depend on the card.
pub(super) const SQUARE_PIECES: usize = 512;

pub(super) fn cross_entropy(
    cuda: &mut Cuda,
    logits: Buffer,
    targets: Buffer,
    losses: Buffer,
    hits: Buffer,
    rows: usize,
    scalars: Buffer,
) {
    let width = logits.length() / rows.max(1);
    let lengths = [targets, losses, hits, logits].map(|buffer| buffer.length());
    assert_eq!(lengths, [rows, rows, rows, rows * width]);
    let arguments = [
        cuda.activation(logits),
        cuda.of(targets, Dtype::I32),
        cuda.of(losses, Dtype::F32),
        cuda.of(hits, Dtype::F32),
        Argument::I32(width as i32),
        cuda.of(scalars, Dtype::I32),
    ];
    cuda.launch("cross_entropy_bf16", [rows, 1, 1], [1024, 1, 1], 0, &arguments);
}

pub(super) fn add_losses(cuda: &mut Cuda, losses: Buffer, hits: Buffer, sums: Buffer, scalars: Buffer) {
    assert_eq!((losses.length(), sums.length()), (hits.length(), 2));
    let arguments = [
        cuda.of(losses, Dtype::F32),
        cuda.of(hits, Dtype::F32),
        cuda.of(sums, Dtype::F32),
        cuda.of(scalars, Dtype::I32),
        Argument::I64(losses.length() as i64),
    ];
    cuda.launch("add_losses", [1, 1, 1], [1024, 1, 1], 0, &arguments);
}

pub(super) fn add_squares(cuda: &mut Cuda, x: Buffer, sum: Buffer) {
    let pieces = x.length().div_ceil(VALUES).clamp(1, SQUARE_PIECES);
    let partial = cuda.of(cuda.scratch().partial.first(2 * pieces), Dtype::F32);
    let arguments = [cuda.of(x, Dtype::F32), partial, Argument::I64(x.length() as i64)];
    cuda.launch("squares", [pieces, 1, 1], [256, 1, 1], 0, &arguments);
    let arguments = [partial, cuda.of(sum, Dtype::F32), Argument::I32(pieces as i32)];
    cuda.launch("add_squares", [1, 1, 1], [512, 1, 1], 0, &arguments);
}

pub(super) fn best_of_rows(cuda: &mut Cuda, logits: Buffer, best: Buffer, rows: usize) {
    assert_eq!(best.length(), rows, "a place for each row is needed");
    cuda.apart(&[logits], &[best]);
    let width = logits.length() / rows.max(1);
    let arguments = [cuda.activation(logits), cuda.of(best, Dtype::I32), Argument::I32(width as i32)];
    cuda.launch("best_of_rows_bf16", [rows, 1, 1], [1024, 1, 1], 0, &arguments);
}

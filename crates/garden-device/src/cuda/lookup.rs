//! Lookup of rows by index: embeddings, gather and scatter.

use super::Cuda;
use super::driver::Argument;
use crate::buffer::{Buffer, Dtype, Weight};
use crate::device::Device;

pub(super) fn embed(cuda: &mut Cuda, weight: &Weight, tokens: Buffer, y: Buffer, rows: usize) {
    let width = weight.columns;
    assert_eq!((tokens.length(), y.length()), (rows, rows * width));
    let arguments = [
        cuda.of(weight.buffer, Dtype::Bf16),
        cuda.of(tokens, Dtype::I32),
        cuda.activation(y),
        Argument::I32(rows as i32),
        Argument::I32(width as i32),
    ];
    cuda.by_rows("embed_bf16_bf16", rows, width, &arguments);
}

pub(super) fn embed_backward(
    cuda: &mut Cuda,
    dy: Buffer,
    tokens: Buffer,
    gradient: &Weight,
    rows: usize,
    skipped: &[i32],
) {
    let width = gradient.columns;
    assert_eq!((tokens.length(), dy.length()), (rows, rows * width));
    let list = cuda.scratch().skipped.first(skipped.len());
    let bytes: Vec<u8> = skipped.iter().flat_map(|token| token.to_le_bytes()).collect();
    cuda.upload(list, &bytes);
    let arguments = [
        cuda.activation(dy),
        cuda.of(tokens, Dtype::I32),
        cuda.of(gradient.buffer, Dtype::F32),
        Argument::I32(rows as i32),
        Argument::I32(width as i32),
        cuda.of(list, Dtype::I32),
        Argument::I32(skipped.len() as i32),
    ];
    cuda.launch("embed_backward_bf16", [rows, 1, 1], [256, 1, 1], 0, &arguments);
}

pub(super) fn gather(cuda: &mut Cuda, x: Buffer, places: Buffer, y: Buffer, rows: usize, width: usize) {
    assert_eq!((places.length(), y.length()), (rows, rows * width));
    cuda.apart(&[x], &[y]);
    let shape = [rows, width].map(|size| Argument::I32(size as i32));
    let arguments = [cuda.activation(x), cuda.of(places, Dtype::I32), cuda.activation(y), shape[0], shape[1]];
    cuda.by_rows("gather_bf16", rows, width, &arguments);
}

pub(super) fn scatter(cuda: &mut Cuda, x: Buffer, places: Buffer, y: Buffer, rows: usize, width: usize) {
    assert_eq!((places.length(), x.length()), (rows, rows * width));
    cuda.apart(&[x], &[y]);
    let shape = [rows, width].map(|size| Argument::I32(size as i32));
    let arguments = [cuda.activation(x), cuda.of(places, Dtype::I32), cuda.activation(y), shape[0], shape[1]];
    cuda.by_rows("scatter_bf16", rows, width, &arguments);
}

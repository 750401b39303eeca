//! Lookup of rows by index: embeddings, gather and scatter.

use super::Cuda;
use super::driver::Argument;
use crate::buffer::{Buffer, Dtype, Rows, Weight};
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
    dy: Rows,
    tokens: Buffer,
    gradient: &Weight,
    rows: usize,
    skipped: &[i32],
) {
    let width = gradient.columns;
    assert_eq!((tokens.length(), dy.width), (rows, width));
    let list = cuda.scratch().skipped.first(skipped.len());
    let bytes: Vec<u8> = skipped.iter().flat_map(|token| token.to_le_bytes()).collect();
    cuda.upload(list, &bytes);
    let dy = cuda.with_stride(dy, rows);
    let arguments = [
        dy[0],
        dy[1],
        cuda.of(tokens, Dtype::I32),
        cuda.of(gradient.buffer, Dtype::F32),
        Argument::I32(rows as i32),
        Argument::I32(width as i32),
        cuda.of(list, Dtype::I32),
        Argument::I32(skipped.len() as i32),
    ];
    cuda.launch("embed_backward_bf16", [rows, 1, 1], [256, 1, 1], 0, &arguments);
}

pub(super) fn gather(cuda: &mut Cuda, x: Rows, places: Buffer, y: Rows, rows: usize) {
    assert_eq!((places.length(), x.width), (rows, y.width));
    cuda.apart(&[x.buffer], &[y.buffer]);
    by_places(cuda, "gather_bf16", x, places, y, rows);
}

pub(super) fn scatter(cuda: &mut Cuda, x: Rows, places: Buffer, y: Rows, rows: usize) {
    assert_eq!((places.length(), x.width), (rows, y.width));
    cuda.apart(&[x.buffer], &[y.buffer]);
    by_places(cuda, "scatter_bf16", x, places, y, rows);
}

fn by_places(cuda: &mut Cuda, name: &'static str, x: Rows, places: Buffer, y: Rows, rows: usize) {
    let width = y.width;
    // Places may name any row that the buffers have.
    let [[x, x_stride], [y, y_stride]] = [x, y].map(|given| cuda.with_stride(given, usize::from(rows > 0)));
    let shape = [rows, width].map(|size| Argument::I32(size as i32));
    let arguments = [x, x_stride, cuda.of(places, Dtype::I32), y, y_stride, shape[0], shape[1]];
    cuda.by_rows(name, rows, width, &arguments);
}

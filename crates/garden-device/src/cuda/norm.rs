//! RMSNorm and its backward pass.

use super::Cuda;
use super::driver::Argument;
use crate::buffer::{Buffer, Dtype, Rows};
use crate::device::Write;

/// Maximum pieces of a sum over rows: the order of a sum must not depend on the card.
pub(super) const NORM_PIECES: usize = 264;

/// Threads of a block that has a row.
fn norm_threads(width: usize) -> usize {
    if width <= 2048 { 128 } else { 256 }
}

/// Rows of a block whose warps have a row each.
const ROWS_OF_BLOCK: usize = 4;

/// The kernel that keeps rows in registers, if it can take these: all begin at multiples of 16 bytes and are not too wide.
fn in_warps(x: Buffer, weight: Buffer, y: Rows) -> Option<&'static str> {
    let bytes = [2 * x.offset, 4 * weight.offset, 2 * y.buffer.offset, 2 * y.stride, 2 * y.width];
    match bytes.iter().all(|bytes| bytes.is_multiple_of(16)) {
        true if y.width <= 2048 => Some("rms_norm_2048"),
        true if y.width <= 4096 => Some("rms_norm_4096"),
        _ => None,
    }
}

pub(super) fn rms_norm(cuda: &mut Cuda, x: Buffer, weight: Buffer, y: Rows, rows: usize, epsilon: f32) {
    let width = weight.length();
    assert_eq!((x.length(), y.width), (rows * width, width), "x and y [{rows}, {width}] are needed");
    cuda.apart(&[x, weight], &[y.buffer]);
    let arguments = [
        cuda.activation(x),
        cuda.of(weight, Dtype::F32),
        Argument::Address(cuda.rows(y, rows)),
        Argument::I64(y.stride as i64),
        Argument::I32(rows as i32),
        Argument::I32(width as i32),
        Argument::F32(epsilon),
    ];
    match in_warps(x, weight, y) {
        Some(name) => {
            cuda.launch(name, [rows.div_ceil(ROWS_OF_BLOCK), 1, 1], [32 * ROWS_OF_BLOCK, 1, 1], 0, &arguments);
        }
        None => cuda.launch("rms_norm_bf16_f32", [rows, 1, 1], [norm_threads(width), 1, 1], 0, &arguments),
    }
}

pub(super) fn rms_norm_backward(
    cuda: &mut Cuda,
    dy: Buffer,
    x: Buffer,
    weight: Buffer,
    dx: Rows,
    gradient: Option<Buffer>,
    rows: usize,
    epsilon: f32,
    write: Write,
) {
    let width = weight.length();
    assert_eq!((x.length(), dy.length(), dx.width), (rows * width, rows * width, width));
    cuda.apart(&[dy, x, weight], &[dx.buffer]);
    let width_argument = Argument::I32(width as i32);
    if let Some(gradient) = gradient {
        let pieces = rows.div_ceil(8).clamp(1, NORM_PIECES);
        let partial = cuda.of(cuda.scratch().partial.first(pieces * width), Dtype::F32);
        let arguments = [
            cuda.activation(dy),
            cuda.activation(x),
            partial,
            Argument::I32(rows as i32),
            width_argument,
            Argument::F32(epsilon),
        ];
        cuda.launch("rms_norm_weight_gradient_bf16", [pieces, 1, 1], [256, 1, 1], 4 * width, &arguments);
        let arguments = [partial, cuda.of(gradient, Dtype::F32), Argument::I32(pieces as i32), width_argument];
        cuda.launch("add_pieces", [width.div_ceil(256), 1, 1], [256, 1, 1], 0, &arguments);
    }
    let arguments = [
        cuda.activation(dy),
        cuda.activation(x),
        cuda.of(weight, Dtype::F32),
        Argument::Address(cuda.rows(dx, rows)),
        Argument::I64(dx.stride as i64),
        width_argument,
        Argument::F32(epsilon),
        Argument::I32((write == Write::Add).into()),
    ];
    cuda.launch("rms_norm_backward_bf16_f32", [rows, 1, 1], [norm_threads(width), 1, 1], 0, &arguments);
}

//! Elementwise operations: casts, activation functions, dropout.

use super::Cuda;
use super::driver::{Address, Argument};
use crate::buffer::{Buffer, Dtype};
use crate::device::Write;
use crate::scalars::Seed;

/// Splits values into rows whose width is a multiple of 8, if possible.
pub(super) fn as_rows(length: usize) -> (usize, usize) {
    const WIDTH: usize = 8192;
    if length.is_multiple_of(WIDTH) { (length / WIDTH, WIDTH) } else { (1, length) }
}

pub(super) fn cast(cuda: &mut Cuda, x: Buffer, y: Buffer) {
    assert_eq!(x.length(), y.length(), "as many values are needed");
    cuda.apart(&[x], &[y]);
    let name = match (x.dtype, y.dtype) {
        (Dtype::F32, Dtype::Bf16) => "convert_f32_bf16",
        (Dtype::F32, Dtype::F16) => "convert_f32_f16",
        (Dtype::F32, Dtype::F32) => "convert_f32_f32",
        (Dtype::Bf16, Dtype::F32) => "convert_bf16_f32",
        (Dtype::Bf16, Dtype::Bf16) => "convert_bf16_bf16",
        (Dtype::Bf16, Dtype::F16) => "convert_bf16_f16",
        (Dtype::F16, Dtype::F32) => "convert_f16_f32",
        (Dtype::F16, Dtype::Bf16) => "convert_f16_bf16",
        (Dtype::F16, Dtype::F16) => "convert_f16_f16",
        pair => panic!("{pair:?} are not floating point"),
    };
    // In rows short enough for the kernel's integers.
    const ROW: usize = 1 << 20;
    let (from, to) = (cuda.address(x), cuda.address(y));
    let rows = x.length() / ROW;
    for (first, rows, width) in [(0, rows, ROW), (rows * ROW, 1, x.length() % ROW)] {
        if rows * width == 0 {
            continue;
        }
        let arguments = [
            Argument::Address(from + (first * x.dtype.size()) as Address),
            Argument::I64(width as i64),
            Argument::Address(to + (first * y.dtype.size()) as Address),
            Argument::I64(width as i64),
            Argument::I32(rows as i32),
            Argument::I32(width as i32),
            Argument::I32(width as i32),
        ];
        cuda.by_rows(name, rows, width, &arguments);
    }
}

pub(super) fn swiglu(cuda: &mut Cuda, gate: Buffer, up: Buffer, y: Buffer) {
    let (rows, width) = as_rows(y.length());
    assert_eq!((gate.length(), up.length()), (y.length(), y.length()));
    cuda.apart(&[gate, up], &[y]);
    let stride = Argument::I64(width as i64);
    let arguments = [
        cuda.activation(gate),
        stride,
        cuda.activation(up),
        stride,
        cuda.activation(y),
        stride,
        Argument::I32(rows as i32),
        Argument::I32(width as i32),
    ];
    cuda.by_rows("swiglu_bf16", rows, width, &arguments);
}

pub(super) fn swiglu_backward(cuda: &mut Cuda, dy: Buffer, gate: Buffer, up: Buffer, dgate: Buffer, y: Option<Buffer>) {
    let length = dy.length();
    assert!([gate, up, dgate].iter().chain(&y).all(|given| given.length() == length));
    cuda.apart(&[gate, up], &[dy, dgate, y.unwrap_or(dgate.first(0))]);
    let arguments = [
        cuda.activation(dy),
        cuda.activation(gate),
        cuda.activation(up),
        cuda.activation(dgate),
        y.map_or(Argument::Address(0), |y| cuda.activation(y)),
        Argument::I64(length as i64),
    ];
    cuda.by_values("swiglu_backward_bf16", length, &arguments);
}

pub(super) fn dropout(cuda: &mut Cuda, x: Buffer, y: Buffer, rate: f32, seed: Seed, write: Write) {
    assert_eq!(x.length(), y.length());
    cuda.apart(&[x], &[y]);
    let arguments = [
        cuda.activation(x),
        cuda.activation(y),
        Argument::U64((f64::from(rate) * (1_u64 << 32) as f64) as u64),
        Argument::F32(1.0 / (1.0 - rate)),
        cuda.of(seed.scalars, Dtype::I32),
        Argument::U64(seed.choice()),
        Argument::I32((write == Write::Add).into()),
        Argument::I64(x.length() as i64),
    ];
    cuda.by_values("dropout_bf16", x.length(), &arguments);
}

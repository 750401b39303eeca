//! Elementwise operations: casts, activation functions, dropout.

use super::Cuda;
use super::driver::{Address, Argument};
use crate::buffer::{Buffer, Dtype, Rows};
use crate::device::Write;
use crate::scalars::Seed;

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

pub(super) fn copy_rows(cuda: &mut Cuda, x: Rows, y: Rows, rows: usize) {
    let width = y.width;
    assert_eq!(x.width, width);
    assert!(!x.overlap(y, rows), "an operation would read what it writes: {x:?} and {y:?}");
    let [[x, x_stride], [y, y_stride]] = [x, y].map(|given| cuda.with_stride(given, rows));
    let size = |size: usize| Argument::I32(size as i32);
    let arguments = [x, x_stride, y, y_stride, size(rows), size(width)];
    cuda.by_values("copy_rows_bf16", rows * width, &arguments);
}

pub(super) fn keep_own(cuda: &mut Cuda, x: Rows, owners: Buffer, each: usize, of: usize, rows: usize) {
    assert_eq!(owners.length(), rows);
    let [values, stride] = cuda.with_stride(x, rows);
    let size = |size: usize| Argument::I32(size as i32);
    let arguments = [values, stride, cuda.of(owners, Dtype::I32), size(each), size(of), size(rows), size(x.width)];
    cuda.by_values("keep_own_bf16", rows * x.width, &arguments);
}

pub(super) fn swiglu(cuda: &mut Cuda, gate: Rows, up: Rows, y: Rows, rows: usize) {
    let width = y.width;
    assert_eq!((gate.width, up.width), (width, width));
    cuda.apart(&[gate.buffer, up.buffer], &[y.buffer]);
    let [[gate, gate_stride], [up, up_stride], [y, y_stride]] =
        [gate, up, y].map(|given| cuda.with_stride(given, rows));
    let size = |size: usize| Argument::I32(size as i32);
    let arguments = [gate, gate_stride, up, up_stride, y, y_stride, size(rows), size(width)];
    cuda.by_values("swiglu_bf16", rows * width, &arguments);
}

pub(super) fn swiglu_backward(
    cuda: &mut Cuda,
    dy: Rows,
    gate: Rows,
    up: Rows,
    dgate: Rows,
    y: Option<Rows>,
    rows: usize,
) {
    let width = dy.width;
    assert!([gate, up, dgate].iter().chain(&y).all(|given| given.width == width));
    assert_eq!((dy.stride, gate.stride), (dgate.stride, up.stride), "gate and up are apart by the same stride");
    let null = [Argument::Address(0), Argument::I64(0)];
    for written in [dy, dgate].into_iter().chain(y) {
        cuda.apart(&[gate.buffer, up.buffer], &[written.buffer]);
    }
    assert!(!dy.overlap(dgate, rows), "gradients of gate and up need a place each");
    let [[dy, gradient_stride], [dgate, _], [gate, stride], [up, _]] =
        [dy, dgate, gate, up].map(|given| cuda.with_stride(given, rows));
    let [y, y_stride] = y.map_or(null, |y| cuda.with_stride(y, rows));
    let size = |size: usize| Argument::I32(size as i32);
    let arguments = [dy, dgate, gradient_stride, gate, up, stride, y, y_stride, size(rows), size(width)];
    cuda.by_values("swiglu_backward_bf16", rows * width, &arguments);
}

pub(super) fn dropout(cuda: &mut Cuda, x: Rows, y: Rows, rows: usize, rate: f32, seed: Seed, write: Write) {
    let width = y.width;
    assert_eq!(x.width, width);
    cuda.apart(&[x.buffer], &[y.buffer]);
    let [[x, x_stride], [y, y_stride]] = [x, y].map(|given| cuda.with_stride(given, rows));
    let arguments = [
        x,
        x_stride,
        y,
        y_stride,
        Argument::I32(rows as i32),
        Argument::I32(width as i32),
        Argument::U64((f64::from(rate) * (1_u64 << 32) as f64) as u64),
        Argument::F32(1.0 / (1.0 - rate)),
        cuda.of(seed.scalars, Dtype::I32),
        Argument::U64(seed.choice()),
        Argument::I32((write == Write::Add).into()),
    ];
    cuda.by_rows("dropout_bf16", rows, width, &arguments);
}

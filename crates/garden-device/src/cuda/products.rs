//! Matrix products with cuBLASLt, with NF4 weights dequantised before.

use super::blas::{Operands, Product};
use super::driver::{Address, Argument};
use super::timing::Operation;
use super::{Cuda, VALUES};
use crate::buffer::{Buffer, Dtype, Nf4Scales, Weight};
use crate::device::{Device, Plus, Write};

/// Maximum pieces of a sum over rows: the order of a sum must not depend on the card.
const BIAS_PIECES: usize = 64;

impl Cuda {
    /// A matrix product; an NF4 weight is dequantised first.
    pub(super) fn product(
        &mut self,
        product: Product,
        first: Buffer,
        weight: &Weight,
        to: Buffer,
        rows: usize,
        scale: f32,
        write: Write,
    ) {
        let (n, k) = (weight.rows, weight.columns);
        let (inputs, outputs) = match product {
            Product::Forward => (first, to),
            _ => (to, first),
        };
        assert_eq!(inputs.length(), rows * k, "inputs [{rows}, {k}] are needed");
        assert_eq!(outputs.length(), rows * n, "outputs [{rows}, {n}] are needed");
        assert!(first.dtype == Dtype::Bf16 && to.dtype == Dtype::Bf16, "activations are bf16 on this device");
        self.apart(&[first, weight.buffer], &[to]);
        let second = self.widened(weight);
        let (first, to) = (self.address(first), self.address(to));
        let plus = (write == Write::Add).then_some(to);
        let (to_dtype, bias) = (Dtype::Bf16, None);
        self.multiply(&Operands { product, rows, n, k, first, second, to, to_dtype, scale, plus, bias });
    }

    pub(super) fn multiply(&mut self, operands: &Operands) {
        if self.failure.is_some() || operands.rows == 0 {
            return;
        }
        let workspace = self.address(self.scratch().blas);
        // SAFETY: addresses and sizes were checked; the result does not overlap.
        let result = unsafe { self.blas.multiply(operands, workspace, self.driver.stream()) };
        self.latch(result);
        let Operands { product, rows, n, k, .. } = *operands;
        self.done(Operation::Product { product, rows, n, k });
    }

    /// The address of a weight as bf16, dequantised if necessary.
    pub(super) fn widened(&mut self, weight: &Weight) -> Address {
        let Some(blocks) = weight.blocks else {
            assert_eq!(weight.buffer.length(), weight.rows * weight.columns, "a whole weight is needed");
            assert_eq!(weight.buffer.dtype, Dtype::Bf16, "a weight is bf16 on this device, or packed");
            return self.address(weight.buffer);
        };
        let (stored, columns) = (blocks.rows * blocks.columns, weight.columns);
        assert_eq!(weight.buffer.length(), crate::nf4::packed_length(stored), "a whole weight is needed");
        let to = self.scratch().widened.first(weight.rows * columns);
        let filled = to.first(blocks.rows * columns);
        if blocks.rows < weight.rows {
            self.zero(to.part(filled.length(), to.length() - filled.length()));
        }
        let shape = [blocks.rows, blocks.columns, columns].map(|size| Argument::I32(size as i32));
        let (packed, y) = (self.of(weight.buffer, Dtype::U8), self.activation(to));
        let grid = [stored.div_ceil(VALUES).min(4096), 1, 1];
        match blocks.scales {
            Nf4Scales::Plain(scales) => {
                let scales = self.of(scales, Dtype::F32);
                let arguments = [packed, scales, y, shape[0], shape[1], shape[2], Argument::I32(1)];
                self.launch("widen_nf4_bf16", grid, [256, 1, 1], 0, &arguments);
            }
            Nf4Scales::Double { codes, scales, offset } => {
                let map = self.of(self.scratch().constants.first(256), Dtype::F32);
                let (codes, scales) = (self.of(codes, Dtype::U8), self.of(scales, Dtype::F32));
                let offset = Argument::F32(offset);
                let arguments = [packed, codes, scales, offset, map, y, shape[0], shape[1], shape[2], Argument::I32(1)];
                self.launch("widen_nf4_double_bf16", grid, [256, 1, 1], 0, &arguments);
            }
        }
        self.address(to)
    }
}

pub(super) fn linear(
    cuda: &mut Cuda,
    x: Buffer,
    weight: &Weight,
    bias: Option<Buffer>,
    y: Buffer,
    rows: usize,
    plus: Plus,
) {
    let (n, k) = (weight.rows, weight.columns);
    assert_eq!((x.length(), y.length()), (rows * k, rows * n), "[{rows}, {k}] and [{rows}, {n}] are needed");
    assert!(x.dtype == Dtype::Bf16 && y.dtype == Dtype::Bf16, "activations are bf16 on this device");
    let other = match plus {
        Plus::Nothing => None,
        Plus::Itself => Some(y),
        Plus::Other(other) => {
            assert_eq!((other.dtype, other.length()), (y.dtype, y.length()), "as many values are needed");
            cuda.apart(&[other], &[y]);
            Some(other)
        }
    };
    cuda.apart(&[x, weight.buffer], &[y]);
    // The library adds what it can before rounding.
    let (fused, apart) = match bias {
        Some(bias) if bias.dtype == Dtype::Bf16 => (Some(bias), None),
        bias => (None, bias),
    };
    assert!(fused.is_none_or(|bias| bias.length() == n), "a bias of {n} values is needed");
    let second = cuda.widened(weight);
    let operands = Operands {
        product: Product::Forward,
        rows,
        n,
        k,
        first: cuda.address(x),
        second,
        to: cuda.address(y),
        to_dtype: Dtype::Bf16,
        scale: 1.0,
        plus: other.map(|other| cuda.address(other)),
        bias: fused.map(|bias| cuda.address(bias)),
    };
    cuda.multiply(&operands);
    if let Some(bias) = apart {
        cuda.add_bias(y, bias, rows);
    }
}

pub(super) fn weight_gradient(cuda: &mut Cuda, dy: Buffer, x: Buffer, gradient: &Weight, rows: usize, scale: f32) {
    let (n, k) = (gradient.rows, gradient.columns);
    assert_eq!((dy.length(), x.length(), gradient.buffer.length()), (rows * n, rows * k, n * k));
    assert_eq!((dy.dtype, x.dtype, gradient.buffer.dtype), (Dtype::Bf16, Dtype::Bf16, Dtype::F32));
    cuda.apart(&[dy, x], &[gradient.buffer]);
    let (first, second, to) = (cuda.address(dy), cuda.address(x), cuda.address(gradient.buffer));
    let (product, to_dtype, plus, bias) = (Product::Weight, Dtype::F32, Some(to), None);
    cuda.multiply(&Operands { product, rows, n, k, first, second, to, to_dtype, scale, plus, bias });
}

pub(super) fn add_bias(cuda: &mut Cuda, y: Buffer, bias: Buffer, rows: usize) {
    let width = bias.length();
    assert_eq!(y.length(), rows * width, "y [{rows}, {width}] is needed");
    let arguments = [
        cuda.activation(y),
        Argument::I64(width as i64),
        cuda.of(bias, Dtype::F32),
        Argument::I32(rows as i32),
        Argument::I32(width as i32),
    ];
    cuda.by_rows("add_bias_bf16_f32", rows, width, &arguments);
}

pub(super) fn bias_gradient(cuda: &mut Cuda, dy: Buffer, gradient: Buffer, rows: usize) {
    let width = gradient.length();
    assert_eq!(dy.length(), rows * width, "dy [{rows}, {width}] is needed");
    let pieces = rows.div_ceil(64).clamp(1, BIAS_PIECES);
    let partial = cuda.of(cuda.scratch().partial.first(pieces * width), Dtype::F32);
    let [rows_argument, width_argument, pieces_argument] = [rows, width, pieces].map(|size| Argument::I32(size as i32));
    let arguments = [cuda.activation(dy), Argument::I64(width as i64), partial, rows_argument, width_argument];
    cuda.launch("bias_gradient_bf16", [width.div_ceil(256), pieces, 1], [32, 8, 1], 0, &arguments);
    let arguments = [partial, cuda.of(gradient, Dtype::F32), pieces_argument, width_argument];
    cuda.launch("add_pieces", [width.div_ceil(256), 1, 1], [256, 1, 1], 0, &arguments);
}

//! Matrix products with cuBLASLt, with NF4 weights dequantised before.

use super::blas::{Algorithm, Operands, Product, Strides};
use super::driver::{Address, Argument, Failure, Stream};
use super::timing::Operation;
use super::{Cuda, VALUES};
use crate::buffer::{Buffer, Dtype, Nf4Scales, Rows, Weight};
use crate::device::Write;
use crate::fused::{FusedWeight, side_by_side};

/// Maximum pieces of a sum over rows: the order of a sum must not depend on the card.
const BIAS_PIECES: usize = 64;

/// Results of many rows that are at least this wide are computed part by part: on an H200 the library takes 327 microseconds for 2,560 rows of gate and up
/// (22,016 columns), and 150 for each of the two.
const WIDE: usize = 16384;
const MANY: usize = 256;

/// Multiplications of a product from which on algorithms are measured: some 5 microseconds on an H200.
const LARGE: usize = 1 << 31;
/// How often each is run for that.
const MEASURED: usize = 3;

/// A matrix in the GPU's memory, bf16: an address and the distance between its rows.
#[derive(Clone, Copy)]
struct Plain {
    address: Address,
    stride: usize,
}

impl Plain {
    /// From another row and column on.
    fn at(self, row: usize, column: usize) -> Plain {
        Plain { address: self.address + 2 * (row * self.stride + column) as Address, ..self }
    }
}

impl Cuda {
    /// A matrix product; an NF4 weight is dequantised first.
    pub(super) fn product(
        &mut self,
        product: Product,
        first: Rows,
        weight: &Weight,
        to: Rows,
        rows: usize,
        scale: f32,
        write: Write,
    ) {
        let (n, k) = (weight.rows, weight.columns);
        let widths = if product == Product::Forward { (k, n) } else { (n, k) };
        assert_eq!((first.width, to.width), widths, "a weight [{n}, {k}] needs other rows");
        self.apart(&[weight.buffer], &[to.buffer]);
        let second = self.widened(weight);
        let plus = (write == Write::Add).then_some(to);
        self.multiply_rows(product, first, second, (n, k), to, rows, scale, plus, None);
    }

    /// A product of rows with a matrix `[n, k]`.
    fn multiply_rows(
        &mut self,
        product: Product,
        first: Rows,
        second: Plain,
        (n, k): (usize, usize),
        to: Rows,
        rows: usize,
        scale: f32,
        plus: Option<Rows>,
        bias: Option<Buffer>,
    ) {
        assert!(!first.overlap(to, rows), "an operation would read what it writes: {first:?} and {to:?}");
        assert!(plus.is_none_or(|plus| plus.stride == to.stride), "what is added has other rows than the result");
        assert!(
            bias.is_none_or(|bias| (bias.length(), bias.dtype) == (n, Dtype::Bf16)),
            "a bias of {n} bf16 is needed"
        );
        let operands = Operands {
            product,
            rows,
            n,
            k,
            strides: Strides { first: first.stride, second: second.stride, to: to.stride },
            first: self.rows(first, rows),
            second: second.address,
            to: self.rows(to, rows),
            to_dtype: Dtype::Bf16,
            scale,
            plus: plus.map(|plus| self.rows(plus, rows)),
            bias: bias.map(|bias| self.address(bias)),
        };
        self.multiply(&operands);
    }

    /// The address of rows of activations, after checking that all of them are there.
    pub(super) fn rows(&self, rows: Rows, count: usize) -> Address {
        assert_eq!(rows.buffer.dtype, Dtype::Bf16, "activations are bf16 on this device");
        assert!(rows.length(count) <= rows.buffer.length(), "{count} rows are needed: {rows:?}");
        self.address(rows.buffer)
    }

    pub(super) fn multiply(&mut self, operands: &Operands) {
        if self.failure.is_some() || operands.rows == 0 {
            return;
        }
        let chosen = self.blas.chosen(operands).map_or_else(|| self.choose(operands), Ok);
        let result = chosen.and_then(|algorithm| self.multiply_by(operands, algorithm));
        self.latch(result);
        let Operands { product, rows, n, k, .. } = *operands;
        self.done(Operation::Product { product, rows, n, k });
    }

    fn multiply_by(&mut self, operands: &Operands, algorithm: Algorithm) -> Result<(), String> {
        let workspace = self.address(self.scratch().blas);
        // SAFETY: addresses and sizes were checked; the result does not overlap.
        unsafe { self.blas.multiply(operands, algorithm, workspace, self.driver.stream()) }
    }

    /// Chooses an algorithm for a product that comes for the first time: of those that give the same bits the fastest, where that is worth a measurement.
    fn choose(&mut self, operands: &Operands) -> Result<Algorithm, String> {
        let candidates = self.blas.candidates(operands)?;
        let Operands { rows, n, k, to, to_dtype, plus, .. } = *operands;
        // A result that is added to itself cannot be computed again.
        let is_repeatable = to_dtype == Dtype::Bf16 && plus != Some(to) && !self.is_recording;
        let mut best = candidates[0];
        if rows * n * k >= LARGE && is_repeatable && candidates.len() > 1 {
            let expected = self.measure(operands, best)?;
            // Nothing but zeros, such as what comes back through a new adapter: all algorithms agree on that. The next one of its kind may tell more.
            if expected.1 == 0 {
                return Ok(best);
            }
            let mut shortest = expected.0;
            for candidate in &candidates[1..] {
                // An algorithm that the library offers and cannot run is passed over.
                let Ok((seconds, digest)) = self.measure(operands, *candidate) else { continue };
                if digest == expected.1 && seconds < shortest {
                    (best, shortest) = (*candidate, seconds);
                }
            }
        }
        self.blas.choose(operands, best);
        Ok(best)
    }

    /// Seconds that an algorithm takes, and a digest of its result.
    fn measure(&mut self, operands: &Operands, algorithm: Algorithm) -> Result<(f64, u64), String> {
        let text = |failure: Failure| failure.text;
        self.multiply_by(operands, algorithm)?;
        let digest = self.digest(operands)?;
        let [began, ended] = [self.driver.event().map_err(text)?, self.driver.event().map_err(text)?];
        self.driver.record(&began, Stream::Work).map_err(text)?;
        for _ in 0..MEASURED {
            self.multiply_by(operands, algorithm)?;
        }
        self.driver.record(&ended, Stream::Work).map_err(text)?;
        ended.wait().map_err(text)?;
        Ok((ended.seconds_since(&began).map_err(text)?, digest))
    }

    /// A number that differs if a bit of a product's result does; 0 for zeros.
    fn digest(&mut self, operands: &Operands) -> Result<u64, String> {
        let Operands { product, rows, n, k, strides, to, .. } = *operands;
        let width = if product == Product::Forward { n } else { k };
        let sum = self.address(self.scratch().partial.first(2));
        self.driver.zero(sum, 8).map_err(|failure| failure.text)?;
        let size = |size: usize| Argument::I32(size as i32);
        let stride = Argument::I64(strides.to as i64);
        let arguments = [Argument::Address(to), stride, size(rows), size(width), Argument::Address(sum)];
        self.by_values("digest", rows * width, &arguments);
        let mut bytes = [0; 8];
        self.driver.copy_from(&mut bytes, sum).map_err(|failure| failure.text)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// A weight as bf16, dequantised if necessary.
    fn widened(&mut self, weight: &Weight) -> Plain {
        if weight.blocks.is_none() {
            assert_eq!(weight.buffer.dtype, Dtype::Bf16, "a weight is bf16 on this device, or packed");
            assert!(weight.as_rows().length(weight.rows) <= weight.buffer.length(), "a whole weight is needed");
            return Plain { address: self.address(weight.buffer), stride: weight.stride };
        }
        let to = self.scratch().widened.first(weight.rows * weight.columns);
        let to = Plain { address: self.address(to), stride: weight.columns };
        self.put_together(weight, to);
        to
    }

    /// Copies a weight into a larger matrix, dequantised if necessary.
    fn put_together(&mut self, weight: &Weight, to: Plain) {
        let (rows, columns) = (weight.rows, weight.columns);
        let Some(blocks) = weight.blocks else {
            let from = Plain { address: self.address(weight.buffer), stride: weight.stride };
            assert_eq!(weight.buffer.dtype, Dtype::Bf16, "a weight is bf16 on this device, or packed");
            return self.copy_plain(from, to, rows, columns);
        };
        let stored = blocks.rows * blocks.columns;
        assert_eq!(weight.buffer.length(), crate::nf4::packed_length(stored), "a whole weight is needed");
        if blocks.rows < rows {
            let zeros = to.at(blocks.rows, 0);
            // Whole rows: what lies beside the weight is filled after it.
            let result = self.driver.zero(zeros.address, 2 * (rows - blocks.rows) * to.stride);
            self.latch(result.map_err(|failure| failure.text));
            self.done(Operation::Fill);
        }
        let shape = [blocks.rows, blocks.columns, columns, to.stride].map(|size| Argument::I32(size as i32));
        let (packed, y) = (self.of(weight.buffer, Dtype::U8), Argument::Address(to.address));
        let grid = [stored.div_ceil(VALUES).min(4096), 1, 1];
        match blocks.scales {
            Nf4Scales::Plain(scales) => {
                let scales = self.of(scales, Dtype::F32);
                let arguments = [packed, scales, y, shape[0], shape[1], shape[2], shape[3], Argument::I32(1)];
                self.launch("widen_nf4_bf16", grid, [256, 1, 1], 0, &arguments);
            }
            Nf4Scales::Double { codes, scales, offset } => {
                let map = self.of(self.scratch().constants.first(256), Dtype::F32);
                let (codes, scales) = (self.of(codes, Dtype::U8), self.of(scales, Dtype::F32));
                let [rows, columns, padded, stride] = shape;
                let offset = Argument::F32(offset);
                let arguments =
                    [packed, codes, scales, offset, map, y, rows, columns, padded, stride, Argument::I32(1)];
                self.launch("widen_nf4_double_bf16", grid, [256, 1, 1], 0, &arguments);
            }
        }
    }

    fn copy_plain(&mut self, from: Plain, to: Plain, rows: usize, columns: usize) {
        let size = |size: usize| Argument::I32(size as i32);
        let stride = |plain: Plain| Argument::I64(plain.stride as i64);
        let [x, y] = [from, to].map(|plain| Argument::Address(plain.address));
        let arguments = [x, stride(from), y, stride(to), size(rows), size(columns)];
        self.by_values("copy_rows_bf16", rows * columns, &arguments);
    }

    /// M of linears, or what one direction needs of it: for the way back W over A, else W beside s B.
    fn joined(&mut self, weight: &FusedWeight, is_back: bool) -> Plain {
        let joined = weight.joined.unwrap_or_else(|| panic!("linears are joined on this device"));
        let stride = weight.stride();
        if let Some(matrix) = joined.matrix {
            assert_eq!((matrix.length(), matrix.dtype), (weight.values(), Dtype::Bf16), "all of the matrix is needed");
            return Plain { address: self.address(matrix), stride };
        }
        let outputs = weight.outputs();
        let to = Plain { address: self.address(self.scratch().widened.first(weight.values())), stride };
        let mut first = 0;
        for part in &weight.parts {
            self.put_together(&part.weight, to.at(first, 0));
            first += part.weight.rows;
        }
        let around = match is_back {
            true => joined.down.map(|down| (down, to.at(outputs, 0))),
            false => joined.up.map(|up| (up, to.at(0, weight.inputs))),
        };
        if let Some((around, to)) = around {
            self.put_together(&around, to);
        }
        to
    }
}

/// All A or all B of linears.
fn all(part: Option<Weight>) -> Weight {
    part.unwrap_or_else(|| panic!("adapters are joined on this device"))
}

pub(super) fn fused_down(cuda: &mut Cuda, x: Rows, weight: &FusedWeight, t: &[Rows], rows: usize) {
    let down = all(weight.joined.and_then(|joined| joined.down));
    cuda.product(Product::Forward, x, &down, side_by_side(t), rows, 1.0, Write::Set);
}

pub(super) fn fused_linear(
    cuda: &mut Cuda,
    x: Rows,
    t: &[Rows],
    weight: &FusedWeight,
    y: &[Rows],
    rows: usize,
    plus: Option<Buffer>,
) {
    let (x, y) = (side_by_side([&x].into_iter().chain(t)), side_by_side(y));
    assert_eq!(y.width, weight.outputs(), "a place for every output is needed");
    assert!(x.width == weight.inputs || x.width == weight.stride(), "inputs, and all low-rank products or none");
    let plus = plus.map(|other| Rows::dense(other, y.width));
    let matrix = cuda.joined(weight, false);
    let bias = weight.joined.and_then(|joined| joined.bias);
    if y.width < WIDE || plus.is_some() || rows < MANY {
        return cuda.multiply_rows(Product::Forward, x, matrix, (y.width, x.width), y, rows, 1.0, plus, bias);
    }
    let mut first = 0;
    for part in &weight.parts {
        let n = part.weight.rows;
        let (y, bias) = (y.columns(first, n), bias.map(|bias| bias.part(first, n)));
        cuda.multiply_rows(Product::Forward, x, matrix.at(first, 0), (n, x.width), y, rows, 1.0, None, bias);
        first += n;
    }
}

pub(super) fn fused_up_backward(cuda: &mut Cuda, dy: &[Rows], weight: &FusedWeight, dt: &[Rows], rows: usize) {
    let up = all(weight.joined.and_then(|joined| joined.up));
    cuda.product(Product::Backward, side_by_side(dy), &up, side_by_side(dt), rows, 1.0, Write::Set);
}

pub(super) fn fused_linear_backward(
    cuda: &mut Cuda,
    dy: &[Rows],
    dt: &[Rows],
    weight: &FusedWeight,
    dx: Rows,
    rows: usize,
) {
    let (dy, outputs) = (side_by_side(dy.iter().chain(dt)), weight.outputs());
    assert_eq!(dx.width, weight.inputs, "a place for every input is needed");
    assert!(dy.width == outputs || dy.width == outputs + weight.narrow(), "outputs, and all low-rank products or none");
    let matrix = cuda.joined(weight, true);
    cuda.multiply_rows(Product::Backward, dy, matrix, (dy.width, dx.width), dx, rows, 1.0, None, None);
}

/// One product where the gradients of all A lie one behind the other.
pub(super) fn fused_down_gradient(cuda: &mut Cuda, dt: &[Rows], x: Rows, gradients: &[Weight], rows: usize) {
    let [first, .., last] = gradients else {
        return gradients.iter().for_each(|gradient| weight_gradient(cuda, dt[0], x, gradient, rows, 1.0));
    };
    let ends = |weight: &Weight| weight.buffer.offset + weight.buffer.length;
    let is_whole =
        gradients.windows(2).all(|two| two[0].buffer.id == two[1].buffer.id && ends(&two[0]) == two[1].buffer.offset);
    if !is_whole {
        let each = dt.iter().zip(gradients);
        return each.for_each(|(dt, gradient)| weight_gradient(cuda, *dt, x, gradient, rows, 1.0));
    }
    let buffer = Buffer { length: ends(last) - first.buffer.offset, ..first.buffer };
    let all = Weight::plain(buffer, gradients.iter().map(|gradient| gradient.rows).sum(), first.columns);
    weight_gradient(cuda, side_by_side(dt), x, &all, rows, 1.0);
}

pub(super) fn weight_gradient(cuda: &mut Cuda, dy: Rows, x: Rows, gradient: &Weight, rows: usize, scale: f32) {
    let (n, k) = (gradient.rows, gradient.columns);
    assert_eq!((dy.width, x.width, gradient.buffer.length()), (n, k, n * k));
    assert_eq!((gradient.stride, gradient.buffer.dtype), (k, Dtype::F32));
    cuda.apart(&[dy.buffer, x.buffer], &[gradient.buffer]);
    let (first, second, to) = (cuda.rows(dy, rows), cuda.rows(x, rows), cuda.address(gradient.buffer));
    let strides = Strides { first: dy.stride, second: x.stride, to: k };
    let (product, to_dtype, plus, bias) = (Product::Weight, Dtype::F32, Some(to), None);
    cuda.multiply(&Operands { product, rows, n, k, strides, first, second, to, to_dtype, scale, plus, bias });
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

pub(super) fn bias_gradient(cuda: &mut Cuda, dy: Rows, gradient: Buffer, rows: usize) {
    let width = gradient.length();
    assert_eq!(dy.width, width, "dy [{rows}, {width}] is needed");
    let pieces = rows.div_ceil(64).clamp(1, BIAS_PIECES);
    let partial = cuda.of(cuda.scratch().partial.first(pieces * width), Dtype::F32);
    let [rows_argument, width_argument, pieces_argument] = [rows, width, pieces].map(|size| Argument::I32(size as i32));
    let dy = (Argument::Address(cuda.rows(dy, rows)), Argument::I64(dy.stride as i64));
    let arguments = [dy.0, dy.1, partial, rows_argument, width_argument];
    cuda.launch("bias_gradient_bf16", [width.div_ceil(256), pieces, 1], [32, 8, 1], 0, &arguments);
    let arguments = [partial, cuda.of(gradient, Dtype::F32), pieces_argument, width_argument];
    cuda.launch("add_pieces", [width.div_ceil(256), 1, 1], [256, 1, 1], 0, &arguments);
}

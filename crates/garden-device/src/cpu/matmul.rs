//! Matrix products, split so that each thread computes its own part of the result. Weights that are not f32 are converted during packing, never as a whole.

use std::ops::Range;

use crate::buffer::{Buffer, Dtype, Nf4Scales, Weight};
use crate::device::Write;
use crate::nf4;

use super::arena::Arena;
use super::few::{FEW, STRIPE, multiply_few};
use super::gemm::{Matrix, Source, multiply};
use super::grid::{Grid, Packing};
use super::threads::Threads;
use super::widen::{round, widen};
use super::{Cpu, buffers_of};

/// Inputs of a converted weight that are multiplied with few rows at once.
const FEW_INPUTS: usize = 2048;

/// A row-major matrix.
pub(super) fn row_major(values: &[f32], columns: usize) -> Matrix {
    Matrix { start: values.as_ptr(), row: columns as isize, column: 1 }
}

/// The transpose of a matrix.
pub(super) fn turned(matrix: Matrix) -> Matrix {
    Matrix { row: matrix.column, column: matrix.row, ..matrix }
}

impl Cpu {
    /// y `[rows, n]` = scale x `[rows, k]` W^T.
    pub(super) fn product(&mut self, x: Buffer, weight: &Weight, y: Buffer, rows: usize, scale: f32, write: Write) {
        let (n, k) = (weight.rows, weight.columns);
        check(x, weight, y, rows);
        let packed = self.packed();
        // If activations are rounded, so are the NF4 weights that they are multiplied with.
        let rounded = weight.blocks.and(self.profile.shadow());
        let (x, values, to, packed) = operands(&mut self.arena, packed, x, weight, y, rounded);
        let (x, to) = (Shared::of(row_major(x, k)), Shared::of(to.as_mut_ptr()));
        by_parts(&self.threads, weight, rows, n, k, packed, |workspace, tokens, outputs| {
            let x = x.get().at(tokens.start, 0);
            // SAFETY: this part of y lies inside y and belongs to this thread; `operands` has checked that nothing overlaps.
            unsafe {
                let to = to.get().add(tokens.start * n + outputs.start);
                if rows <= FEW {
                    return product_of_few(to, tokens.len(), x, &values, (n, k), outputs, scale, write, workspace);
                }
                let fill = |output: usize, first: usize, to: &mut [f32]| {
                    values.widen(outputs.start + output, first, k, to);
                };
                let w = match &values.stored {
                    Stored::Wide(values) => turned(row_major(values, k).at(outputs.start, 0)).into(),
                    _ => Source::Columns(&fill),
                };
                multiply(to, n as isize, tokens.len(), outputs.len(), k, x, w, scale, write, workspace);
            }
        });
    }

    /// dx `[rows, k]` = scale dy `[rows, n]` W.
    pub(super) fn product_backward(
        &mut self,
        dy: Buffer,
        weight: &Weight,
        dx: Buffer,
        rows: usize,
        scale: f32,
        write: Write,
    ) {
        let (n, k) = (weight.rows, weight.columns);
        check(dx, weight, dy, rows);
        let packed = self.packed();
        // An NF4 weight is rounded to its original dtype.
        let rounded = weight.blocks.map(|blocks| self.profile.shadow().unwrap_or(blocks.packed_from));
        let (dy, values, to, packed) = operands(&mut self.arena, packed, dy, weight, dx, rounded);
        let (dy, to) = (Shared::of(row_major(dy, n)), Shared::of(to.as_mut_ptr()));
        by_parts(&self.threads, weight, rows, k, n, packed, |workspace, tokens, inputs| {
            let fill = |output: usize, first: usize, to: &mut [f32]| values.widen(output, inputs.start + first, k, to);
            let w = match &values.stored {
                Stored::Wide(values) => row_major(values, k).at(0, inputs.start).into(),
                _ => Source::Rows(&fill),
            };
            let dy = dy.get().at(tokens.start, 0);
            // SAFETY: this part of dx lies inside dx and belongs to this thread; `operands` has checked that nothing overlaps.
            unsafe {
                let to = to.get().add(tokens.start * k + inputs.start);
                multiply(to, k as isize, tokens.len(), inputs.len(), n, dy, w, scale, write, workspace);
            }
        });
    }

    /// dW `[n, k]` += scale dy^T x.
    pub(super) fn outer_product(&mut self, dy: Buffer, x: Buffer, gradient: &Weight, rows: usize, scale: f32) {
        let (n, k) = (gradient.rows, gradient.columns);
        check(x, gradient, dy, rows);
        let packed = self.packed();
        let ([dy, x], [dw, packed]) = self.arena.views([dy, x], [gradient.buffer, packed]);
        let (dy, x) = (Shared::of(row_major(dy.f32(), n)), Shared::of(row_major(x.f32(), k)));
        let to = Shared::of(dw.f32().as_mut_ptr());
        by_parts(&self.threads, gradient, n, k, rows, packed.f32(), |workspace, outputs, inputs| {
            // SAFETY: this part of the gradient belongs to this thread, sizes were checked, and nothing overlaps.
            unsafe {
                multiply(
                    to.get().add(outputs.start * k + inputs.start),
                    k as isize,
                    outputs.len(),
                    inputs.len(),
                    rows,
                    turned(dy.get().at(0, outputs.start)),
                    x.get().at(0, inputs.start),
                    scale,
                    Write::Add,
                    workspace,
                );
            }
        });
    }
}

/// A product with few rows.
///
/// # Safety
/// x and y hold these rows, and nobody else uses these outputs of y.
unsafe fn product_of_few(
    to: *mut f32,
    rows: usize,
    x: Matrix,
    values: &Values<'_>,
    (n, k): (usize, usize),
    outputs: Range<usize>,
    scale: f32,
    write: Write,
    workspace: &mut [f32],
) {
    // Converted values stay in L1 until they have been used.
    let most = match values.stored {
        Stored::Wide(_) => [usize::MAX; 2],
        _ => [STRIPE, FEW_INPUTS],
    };
    let first = outputs.start;
    for outputs in by(outputs, most[0]) {
        for inputs in by(0..k, most[1]) {
            let write = if inputs.start == 0 { write } else { Write::Add };
            let w = match values.stored {
                Stored::Wide(values) => row_major(values, k).at(outputs.start, inputs.start),
                _ => {
                    let tile = &mut workspace[..outputs.len() * inputs.len()];
                    for (output, to) in outputs.clone().zip(tile.chunks_exact_mut(inputs.len())) {
                        values.widen(output, inputs.start, k, to);
                    }
                    row_major(tile, inputs.len())
                }
            };
            let (x, to) = (x.at(0, inputs.start), to.wrapping_add(outputs.start - first));
            // SAFETY: the caller's.
            unsafe { multiply_few(to, n, rows, outputs.len(), inputs.len(), x, w, scale, write) };
        }
    }
}

/// A product's input, weight and output, and the packing workspace of all threads.
fn operands<'a>(
    arena: &'a mut Arena,
    packed: Buffer,
    from: Buffer,
    weight: &Weight,
    to: Buffer,
    rounded: Option<Dtype>,
) -> (&'a [f32], Values<'a>, &'a mut [f32], &'a mut [f32]) {
    let [values, first, second] = buffers_of(weight);
    let ([from, values, first, second], [to, packed]) = arena.views([from, values, first, second], [to, packed]);
    let stored = match weight.blocks {
        None if weight.is_f32() => Stored::Wide(values.f32()),
        None => Stored::Half(values.dtype, values.half()),
        Some(blocks) => {
            let scales = match blocks.scales {
                Nf4Scales::Plain(_) => nf4::Scales::Plain(first.f32()),
                Nf4Scales::Double { offset, .. } => nf4::Scales::Double(first.u8(), second.f32(), offset),
            };
            Stored::Nf4 { packed: values.u8(), scales, rows: blocks.rows, columns: blocks.columns }
        }
    };
    (from.f32(), Values { stored, rounded }, to.f32(), packed.f32())
}

/// The values of a weight, and the dtype they are rounded to when converted to f32.
struct Values<'a> {
    stored: Stored<'a>,
    rounded: Option<Dtype>,
}

/// Storage format of values.
enum Stored<'a> {
    Wide(&'a [f32]),
    Half(Dtype, &'a [u16]),
    /// Without the padding, which is zeros.
    Nf4 {
        packed: &'a [u8],
        scales: nf4::Scales<'a>,
        rows: usize,
        columns: usize,
    },
}

impl Values<'_> {
    /// Converts values of an output, from an input on; the weight has `inputs` inputs.
    fn widen(&self, output: usize, input: usize, inputs: usize, to: &mut [f32]) {
        match self.stored {
            Stored::Wide(values) => to.copy_from_slice(&values[output * inputs + input..][..to.len()]),
            Stored::Half(dtype, values) => widen(dtype, &values[output * inputs + input..][..to.len()], to),
            Stored::Nf4 { packed, scales, rows, columns } => {
                let stored = if output < rows { columns.saturating_sub(input).min(to.len()) } else { 0 };
                let (to, padding) = to.split_at_mut(stored);
                if stored > 0 {
                    nf4::unpack(packed, scales, output * columns + input, to);
                }
                padding.fill(0.0);
            }
        }
        if let Some(dtype) = self.rounded {
            round(dtype, to);
        }
    }
}

fn check(inputs: Buffer, weight: &Weight, outputs: Buffer, rows: usize) {
    let (n, k) = (weight.rows, weight.columns);
    assert_eq!(inputs.length(), rows * k, "inputs [{rows}, {k}] are needed");
    assert_eq!(outputs.length(), rows * n, "outputs [{rows}, {n}] are needed");
    let stored = weight.blocks.map_or(n * k, |blocks| nf4::packed_length(blocks.rows * blocks.columns));
    assert_eq!(weight.buffer.length(), stored, "a weight [{n}, {k}] is needed");
}

/// Runs work for parts of a result `[m, n]` with a cost of `k` per value: (the thread's packing workspace, rows, columns).
fn by_parts(
    threads: &Threads,
    weight: &Weight,
    m: usize,
    n: usize,
    k: usize,
    packed: &mut [f32],
    work: impl Fn(&mut [f32], Range<usize>, Range<usize>) + Sync,
) {
    let packing = if weight.blocks.is_some() { Packing::Unpacked } else { Packing::Plain };
    let grid = Grid::of(m, n, k, threads.number(), packing);
    threads.each_with(packed, grid.count(), |workspace, number| {
        let (rows, columns) = grid.piece(number);
        work(workspace, rows, columns);
    });
}

/// Splits a range into steps.
fn by(range: Range<usize>, step: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(step).map(move |start| start..end.min(start.saturating_add(step)))
}

/// Pointers that threads share while the caller waits for them; what each writes belongs to it alone.
#[derive(Clone, Copy)]
pub(super) struct Shared<T>(T);
// SAFETY: see above.
unsafe impl<T> Sync for Shared<T> {}

impl<T: Copy> Shared<T> {
    pub fn of(given: T) -> Shared<T> {
        Shared(given)
    }

    pub fn get(&self) -> T {
        self.0
    }
}

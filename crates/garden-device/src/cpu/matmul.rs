//! Matrix products, cut so that each thread makes its own part of the result. Weights that are not f32 are widened tile by tile, never as a whole.

use std::ops::Range;

use gemm_f32::gemm::f32::get_gemm_fn;

use crate::buffer::{Buffer, Dtype, Nf4Scales, Weight};
use crate::device::Write;
use crate::nf4;

use super::arena::Arena;
use super::few::{FEW, STRIPE, multiply_few};
use super::threads::Threads;
use super::widen::{round, widen};
use super::{Cpu, TILE_COLUMNS, TILE_ROWS, buffers_of};

/// Results are cut at multiples of this, where the library's kernels end too.
const CUT: usize = 64;

/// Multiplications that are worth more than one thread.
const WORTH: usize = 1 << 17;

/// A matrix in memory: where it starts, and how far apart rows and columns are.
#[derive(Clone, Copy)]
pub(super) struct Matrix {
    pub start: *const f32,
    pub row: isize,
    pub column: isize,
}

impl Matrix {
    /// The part of it that begins at a row and a column inside of it.
    pub fn at(self, row: usize, column: usize) -> Matrix {
        Matrix { start: self.start.wrapping_offset(row as isize * self.row + column as isize * self.column), ..self }
    }
}

/// c [m, n] = scale a [m, k] b [k, n], or added to it, on this thread; c lies row by row, `row` values apart.
///
/// # Safety
/// All three lie inside memory that is valid for them, and c overlaps with neither a nor b.
pub(super) unsafe fn multiply(
    c: *mut f32,
    row: isize,
    m: usize,
    n: usize,
    k: usize,
    a: Matrix,
    b: Matrix,
    scale: f32,
    write: Write,
) {
    if m == 0 || n == 0 {
        return;
    }
    // The library is quickest where columns are contiguous, so it gets c^T = b^T a^T.
    // SAFETY: passed on to the caller.
    unsafe {
        get_gemm_fn()(
            n,
            m,
            k,
            c,
            row,
            1,
            write == Write::Add,
            b.start,
            b.row,
            b.column,
            a.start,
            a.row,
            a.column,
            1.0,
            scale,
            false,
            false,
            false,
            gemm_common::Parallelism::None,
        );
    }
}

/// A matrix that lies row by row.
pub(super) fn row_major(values: &[f32], columns: usize) -> Matrix {
    Matrix { start: values.as_ptr(), row: columns as isize, column: 1 }
}

/// The transpose of a matrix.
pub(super) fn turned(matrix: Matrix) -> Matrix {
    Matrix { row: matrix.column, column: matrix.row, ..matrix }
}

impl Cpu {
    /// y [rows, n] = scale x [rows, k] W^T.
    pub(super) fn product(&mut self, x: Buffer, weight: &Weight, y: Buffer, rows: usize, scale: f32, write: Write) {
        let (n, k) = (weight.rows, weight.columns);
        check(x, weight, y, rows);
        let (x, values, to, tiles) = operands(&mut self.arena, self.tiles, x, weight, y);
        let (x, to) = (row_major(x, k), Shared::of(to.as_mut_ptr()));
        let (x, is_few) = (Shared::of(x), rows <= FEW);
        // Where activations are rounded, so is what they are multiplied with.
        let rounded = weight.blocks.and(self.profile.shadow());
        by_parts(&self.threads, weight, rows, n, k, tiles, |tile, tokens, outputs| {
            for outputs in by(outputs, if is_few { few_rows(weight) } else { tile_rows(weight) }) {
                for inputs in by(0..k, tile_columns(weight)) {
                    let write = if inputs.start == 0 { write } else { Write::Add };
                    let (m, n_here, k_here) = (tokens.len(), outputs.len(), inputs.len());
                    let tile = values.tile(tile, k, outputs.clone(), inputs.clone(), rounded);
                    let x = x.get().at(tokens.start, inputs.start);
                    // SAFETY: this part of y lies inside y and belongs to this thread; `operands` has seen that nothing overlaps.
                    unsafe {
                        let to = to.get().add(tokens.start * n + outputs.start);
                        match is_few {
                            true => multiply_few(to, n, m, n_here, k_here, x, tile, scale, write),
                            false => multiply(to, n as isize, m, n_here, k_here, x, turned(tile), scale, write),
                        }
                    }
                }
            }
        });
    }

    /// dx [rows, k] = scale dy [rows, n] W.
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
        let (dy, values, to, tiles) = operands(&mut self.arena, self.tiles, dy, weight, dx);
        let (dy, to) = (Shared::of(row_major(dy, n)), Shared::of(to.as_mut_ptr()));
        // A weight of 4 bits is rounded to what it was packed from.
        let rounded = weight.blocks.map(|blocks| self.profile.shadow().unwrap_or(blocks.packed_from));
        by_parts(&self.threads, weight, rows, k, n, tiles, |tile, tokens, inputs| {
            for inputs in by(inputs, tile_columns(weight)) {
                for outputs in by(0..n, tile_rows(weight)) {
                    let write = if outputs.start == 0 { write } else { Write::Add };
                    let tile = values.tile(tile, k, outputs.clone(), inputs.clone(), rounded);
                    // SAFETY: this part of dx lies inside dx and belongs to this thread; `operands` has seen that nothing overlaps.
                    unsafe {
                        multiply(
                            to.get().add(tokens.start * k + inputs.start),
                            k as isize,
                            tokens.len(),
                            inputs.len(),
                            outputs.len(),
                            dy.get().at(tokens.start, outputs.start),
                            tile,
                            scale,
                            write,
                        );
                    }
                }
            }
        });
    }

    /// dW [n, k] += scale dy^T x.
    pub(super) fn outer_product(&mut self, dy: Buffer, x: Buffer, gradient: &Weight, rows: usize, scale: f32) {
        let (n, k) = (gradient.rows, gradient.columns);
        check(x, gradient, dy, rows);
        let ([dy, x], [dw]) = self.arena.views([dy, x], [gradient.buffer]);
        let (dy, x) = (Shared::of(row_major(dy.f32(), n)), Shared::of(row_major(x.f32(), k)));
        let to = Shared::of(dw.f32().as_mut_ptr());
        by_parts(&self.threads, gradient, n, k, rows, &mut [], |_, outputs, inputs| {
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
                );
            }
        });
    }
}

/// What a product reads, its weight, what it writes, and tiles for all threads.
fn operands<'a>(
    arena: &'a mut Arena,
    tiles: Option<Buffer>,
    from: Buffer,
    weight: &Weight,
    to: Buffer,
) -> (&'a [f32], Values<'a>, &'a mut [f32], &'a mut [f32]) {
    let tiles = match weight.is_f32() {
        true => to.first(0),
        false => tiles.unwrap_or_else(|| panic!("no room was reserved for the tiles of a weight")),
    };
    let [values, first, second] = buffers_of(weight);
    let ([from, values, first, second], [to, tiles]) = arena.views([from, values, first, second], [to, tiles]);
    let values = match weight.blocks {
        None if weight.is_f32() => Values::Wide(values.f32()),
        None => Values::Half(values.dtype, values.half()),
        Some(blocks) => {
            let scales = match blocks.scales {
                Nf4Scales::Plain(_) => nf4::Scales::Plain(first.f32()),
                Nf4Scales::Double { offset, .. } => nf4::Scales::Double(first.u8(), second.f32(), offset),
            };
            Values::Nf4 { packed: values.u8(), scales, rows: blocks.rows, columns: blocks.columns }
        }
    };
    (from.f32(), values, to.f32(), tiles.f32())
}

/// The values of a weight, however they are stored.
enum Values<'a> {
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
    /// A part of a weight with so many columns as f32: where it lies, or widened into a tile, and rounded to a dtype if one is given.
    fn tile(
        &self,
        tile: &mut [f32],
        columns: usize,
        outputs: Range<usize>,
        inputs: Range<usize>,
        rounded: Option<Dtype>,
    ) -> Matrix {
        if let Values::Wide(values) = self {
            return row_major(values, columns).at(outputs.start, inputs.start);
        }
        let tile = &mut tile[..outputs.len() * inputs.len()];
        for (row, to) in outputs.zip(tile.chunks_exact_mut(inputs.len())) {
            let first = row * columns + inputs.start;
            match self {
                Values::Wide(_) => {}
                Values::Half(dtype, values) => widen(*dtype, &values[first..first + to.len()], to),
                Values::Nf4 { packed, scales, rows, columns } => {
                    let stored = if row < *rows { columns.saturating_sub(inputs.start).min(to.len()) } else { 0 };
                    let (to, padding) = to.split_at_mut(stored);
                    nf4::unpack(packed, *scales, row * columns + inputs.start, to);
                    padding.fill(0.0);
                }
            }
        }
        if let Some(dtype) = rounded {
            round(dtype, tile);
        }
        row_major(tile, inputs.len())
    }
}

fn check(inputs: Buffer, weight: &Weight, outputs: Buffer, rows: usize) {
    let (n, k) = (weight.rows, weight.columns);
    assert_eq!(inputs.length(), rows * k, "inputs [{rows}, {k}] are needed");
    assert_eq!(outputs.length(), rows * n, "outputs [{rows}, {n}] are needed");
    let stored = weight.blocks.map_or(n * k, |blocks| nf4::packed_length(blocks.rows * blocks.columns));
    assert_eq!(weight.buffer.length(), stored, "a weight [{n}, {k}] is needed");
}

/// Does something for parts of a result [m, n] whose values cost `k` each: (the thread's tile, rows, columns).
///
/// The longer side is cut, so that what several threads read is the smaller of the two factors; columns where a weight has to be widened, which
/// nobody should do twice.
fn by_parts(
    threads: &Threads,
    weight: &Weight,
    m: usize,
    n: usize,
    k: usize,
    tiles: &mut [f32],
    work: impl Fn(&mut [f32], Range<usize>, Range<usize>) + Sync,
) {
    let cuts_columns = n >= m || !weight.is_f32();
    let side = if cuts_columns { n } else { m };
    let parts = if m * n * k < WORTH { 1 } else { threads.number() };
    let length = side.div_ceil(parts).next_multiple_of(CUT);
    threads.each_with(tiles, side.div_ceil(length), |tile, number| {
        let part = number * length..side.min((number + 1) * length);
        let (rows, columns) = if cuts_columns { (0..m, part) } else { (part, 0..n) };
        work(tile, rows, columns);
    });
}

/// How much of a weight is made f32 at once: all of it where it is f32 already.
fn tile_rows(weight: &Weight) -> usize {
    if weight.is_f32() { usize::MAX } else { TILE_ROWS }
}

/// The same for few rows: what stays in the nearest cache until it has been used.
fn few_rows(weight: &Weight) -> usize {
    if weight.is_f32() { usize::MAX } else { STRIPE }
}

fn tile_columns(weight: &Weight) -> usize {
    if weight.is_f32() { usize::MAX } else { TILE_COLUMNS }
}

/// A range in steps.
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

//! Matrix products, cut so that each thread makes its own part of the result. Weights that are not f32 are widened tile by tile, never as a whole.

use std::ops::Range;

use gemm_f32::gemm::f32::get_gemm_fn;

use crate::buffer::{Buffer, Nf4Scales, Weight};
use crate::device::Write;
use crate::nf4;

use super::few::{FEW, STRIPE, multiply_few};
use super::widen::{round, widen};
use super::{Cpu, TILE_COLUMNS, TILE_ROWS};

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
    pub(super) fn product(&self, x: Buffer, weight: &Weight, y: Buffer, rows: usize, scale: f32, write: Write) {
        let (n, k) = (weight.rows, weight.columns);
        self.check(x, weight, y, rows);
        let x = row_major(self.arena.read(x), k);
        let to = self.arena.write(y).as_mut_ptr();
        let is_few = rows <= FEW;
        self.by_parts(weight, rows, n, k, (to, x), |thread, (to, x), tokens, outputs| {
            for outputs in by(outputs, if is_few { few_rows(weight) } else { tile_rows(weight) }) {
                for inputs in by(0..k, tile_columns(weight)) {
                    let write = if inputs.start == 0 { write } else { Write::Add };
                    let tile = self.tile(thread, weight, outputs.clone(), inputs.clone());
                    let (m, n_here, k_here) = (tokens.len(), outputs.len(), inputs.len());
                    let x = x.at(tokens.start, inputs.start);
                    // SAFETY: this part of y lies inside y, belongs to this thread, and `check` has seen that nothing overlaps.
                    unsafe {
                        let to = to.add(tokens.start * n + outputs.start);
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
        &self,
        dy: Buffer,
        weight: &Weight,
        dx: Buffer,
        rows: usize,
        scale: f32,
        write: Write,
    ) {
        let (n, k) = (weight.rows, weight.columns);
        self.check(dx, weight, dy, rows);
        let dy = row_major(self.arena.read(dy), n);
        let to = self.arena.write(dx).as_mut_ptr();
        self.by_parts(weight, rows, k, n, (to, dy), |thread, (to, dy), tokens, inputs| {
            for inputs in by(inputs, tile_columns(weight)) {
                for outputs in by(0..n, tile_rows(weight)) {
                    let write = if outputs.start == 0 { write } else { Write::Add };
                    let tile = self.tile_backward(thread, weight, outputs.clone(), inputs.clone());
                    // SAFETY: this part of dx lies inside dx, belongs to this thread, and `check` has seen that nothing overlaps.
                    unsafe {
                        multiply(
                            to.add(tokens.start * k + inputs.start),
                            k as isize,
                            tokens.len(),
                            inputs.len(),
                            outputs.len(),
                            dy.at(tokens.start, outputs.start),
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
    pub(super) fn outer_product(&self, dy: Buffer, x: Buffer, gradient: &Weight, rows: usize, scale: f32) {
        let (n, k) = (gradient.rows, gradient.columns);
        self.check(x, gradient, dy, rows);
        self.arena.apart(&[dy, x], &[gradient.buffer]);
        let (dy, x) = (row_major(self.arena.read(dy), n), row_major(self.arena.read(x), k));
        let to = self.arena.write(gradient.buffer).as_mut_ptr();
        self.by_parts(gradient, n, k, rows, (to, dy, x), |_, (to, dy, x), outputs, inputs| {
            // SAFETY: this part of the gradient belongs to this thread, sizes were checked, and nothing overlaps.
            unsafe {
                multiply(
                    to.add(outputs.start * k + inputs.start),
                    k as isize,
                    outputs.len(),
                    inputs.len(),
                    rows,
                    turned(dy.at(0, outputs.start)),
                    x.at(0, inputs.start),
                    scale,
                    Write::Add,
                );
            }
        });
    }

    fn check(&self, inputs: Buffer, weight: &Weight, outputs: Buffer, rows: usize) {
        let (n, k) = (weight.rows, weight.columns);
        assert_eq!(inputs.length(), rows * k, "inputs [{rows}, {k}] are needed");
        assert_eq!(outputs.length(), rows * n, "outputs [{rows}, {n}] are needed");
        let stored = if weight.blocks.is_some() { nf4::packed_length(n * k) } else { n * k };
        assert_eq!(weight.buffer.length(), stored, "a weight [{n}, {k}] is needed");
        self.arena.apart(&[inputs, weight.buffer], &[outputs]);
    }

    /// Does something for parts of a result [m, n] whose values cost `k` each: (thread, what is given, rows, columns).
    ///
    /// The longer side is cut, so that what several threads read is the smaller of the two factors; columns where a weight has to be widened, which
    /// nobody should do twice.
    fn by_parts<G: Copy>(
        &self,
        weight: &Weight,
        m: usize,
        n: usize,
        k: usize,
        given: G,
        work: impl Fn(usize, G, Range<usize>, Range<usize>) + Sync,
    ) {
        let given = Shared(given);
        let cuts_columns = n >= m || !weight.is_f32();
        let side = if cuts_columns { n } else { m };
        let parts = if m * n * k < WORTH { 1 } else { self.threads.number() };
        let length = side.div_ceil(parts).next_multiple_of(CUT);
        self.threads.each(side.div_ceil(length), |thread, number| {
            let part = number * length..side.min((number + 1) * length);
            let (rows, columns) = if cuts_columns { (0..m, part) } else { (part, 0..n) };
            work(thread, given.get(), rows, columns);
        });
    }

    /// A part of a weight as f32: where it lies, or widened into this thread's tile.
    fn tile(&self, thread: usize, weight: &Weight, outputs: Range<usize>, inputs: Range<usize>) -> Matrix {
        if weight.is_f32() {
            return row_major(self.arena.read(weight.buffer), weight.columns).at(outputs.start, inputs.start);
        }
        let tile = self.room_for_tile(thread, outputs.len() * inputs.len());
        for (row, to) in outputs.zip(tile.chunks_exact_mut(inputs.len())) {
            self.widened_part(weight, row * weight.columns + inputs.start, to);
        }
        row_major(tile, inputs.len())
    }

    /// As `tile`, for a backward pass: a weight of 4 bits is rounded to what it was packed from.
    fn tile_backward(&self, thread: usize, weight: &Weight, outputs: Range<usize>, inputs: Range<usize>) -> Matrix {
        let length = outputs.len() * inputs.len();
        let tile = self.tile(thread, weight, outputs, inputs);
        if let Some(blocks) = weight.blocks {
            round(blocks.packed_from, self.room_for_tile(thread, length));
        }
        tile
    }

    #[allow(clippy::mut_from_ref)]
    fn room_for_tile(&self, thread: usize, length: usize) -> &mut [f32] {
        let tiles = self.tiles.unwrap_or_else(|| panic!("no room was reserved for the tiles of a weight"));
        let each = tiles.length() / self.threads.number();
        self.arena.write(tiles.part(thread * each, length))
    }

    /// Values of a weight that is not f32, from the `first` on.
    fn widened_part(&self, weight: &Weight, first: usize, to: &mut [f32]) {
        match weight.blocks {
            None => {
                widen(weight.buffer.dtype(), &self.arena.read_half(weight.buffer)[first..first + to.len()], to);
            }
            Some(blocks) => {
                let scales = match blocks.scales {
                    Nf4Scales::Plain(scales) => nf4::Scales::Plain(self.arena.read(scales)),
                    Nf4Scales::Double { codes, scales, offset } => {
                        nf4::Scales::Double(self.arena.read_bytes(codes), self.arena.read(scales), offset)
                    }
                };
                nf4::unpack(self.arena.read_bytes(weight.buffer), scales, first, to);
            }
        }
    }
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

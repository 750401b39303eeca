//! Matrix products. Weights that are not f32 are widened tile by tile, never as a whole.

use gemm_f32::gemm::f32::get_gemm_fn;
use rayon::prelude::*;

use crate::buffer::{Buffer, Kind, Weight};
use crate::device::Write;

use super::widen::widen;
use super::{Cpu, TILE_ROWS};

/// A matrix in memory: where it starts, and how far apart rows and columns are.
#[derive(Clone, Copy)]
pub(super) struct Matrix {
    pub start: *const f32,
    pub row: isize,
    pub column: isize,
}

/// c [m, n] = scale a [m, k] b [k, n], or added to it; c lies row by row, `row` values apart.
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
    parallelism: gemm_common::Parallelism,
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
            parallelism,
        );
    }
}

/// A matrix that lies row by row.
pub(super) fn row_major(values: &[f32], columns: usize) -> Matrix {
    Matrix { start: values.as_ptr(), row: columns as isize, column: 1 }
}

/// The transpose of a matrix that lies row by row.
pub(super) fn transposed(values: &[f32], columns: usize) -> Matrix {
    Matrix { start: values.as_ptr(), row: 1, column: columns as isize }
}

impl Cpu {
    /// y [rows, n] = scale x [rows, k] W^T.
    pub(super) fn product(&self, x: Buffer, weight: &Weight, y: Buffer, rows: usize, scale: f32, write: Write) {
        let (n, k) = (weight.rows, weight.columns);
        self.check(x, weight, y, rows);
        let (from, to) = (self.arena.read(x), self.arena.write(y));
        self.by_tiles(weight, |first, tile| {
            let height = tile.len() / k;
            let (to, from) = (Pointer(to.as_ptr().cast_mut()), from);
            // SAFETY: the tile's columns of y lie inside y, and `check` has seen that nothing overlaps.
            self.threads.run(move || unsafe {
                let to = to;
                multiply(
                    to.0.add(first),
                    n as isize,
                    rows,
                    height,
                    k,
                    row_major(from, k),
                    transposed(tile, k),
                    scale,
                    write,
                    self.threads.parallelism(),
                );
            });
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
        let (from, to) = (self.arena.read(dy), self.arena.write(dx));
        self.by_tiles(weight, |first, tile| {
            let height = tile.len() / k;
            let write = if first == 0 { write } else { Write::Add };
            let to = Pointer(to.as_ptr().cast_mut());
            let part = Matrix { start: from[first.min(from.len())..].as_ptr(), row: n as isize, column: 1 };
            let part = SendMatrix(part);
            // SAFETY: the tile's columns of dy lie inside dy, and `check` has seen that nothing overlaps.
            self.threads.run(move || unsafe {
                let (to, part) = (to, part);
                multiply(
                    to.0,
                    k as isize,
                    rows,
                    k,
                    height,
                    part.0,
                    row_major(tile, k),
                    scale,
                    write,
                    self.threads.parallelism(),
                );
            });
        });
    }

    /// dW [n, k] += scale dy^T x.
    pub(super) fn outer_product(&self, dy: Buffer, x: Buffer, gradient: &Weight, rows: usize, scale: f32) {
        let (n, k) = (gradient.rows, gradient.columns);
        self.check(x, gradient, dy, rows);
        self.arena.apart(&[dy, x], &[gradient.buffer]);
        let (dy, x) = (self.arena.read(dy), self.arena.read(x));
        let to = Pointer(self.arena.write(gradient.buffer).as_mut_ptr());
        // SAFETY: sizes were checked, and the gradient overlaps with neither.
        self.threads.run(move || unsafe {
            let to = to;
            multiply(
                to.0,
                k as isize,
                n,
                k,
                rows,
                transposed(dy, n),
                row_major(x, k),
                scale,
                Write::Add,
                self.threads.parallelism(),
            );
        });
    }

    fn check(&self, inputs: Buffer, weight: &Weight, outputs: Buffer, rows: usize) {
        let (n, k) = (weight.rows, weight.columns);
        assert_eq!(inputs.length(), rows * k, "inputs [{rows}, {k}] are needed");
        assert_eq!(outputs.length(), rows * n, "outputs [{rows}, {n}] are needed");
        assert_eq!(weight.buffer.length(), n * k, "a weight [{n}, {k}] is needed");
        self.arena.apart(&[inputs, weight.buffer], &[outputs]);
    }

    /// Does something for tiles of a weight: (first row, the tile's values row by row). A weight of f32 is one tile.
    fn by_tiles(&self, weight: &Weight, mut work: impl FnMut(usize, &[f32])) {
        let k = weight.columns;
        if weight.buffer.kind() == Kind::F32 {
            work(0, self.arena.read(weight.buffer));
            return;
        }
        let values = self.arena.read_half(weight.buffer);
        let tile = self.tile.unwrap_or_else(|| panic!("no room was reserved for the tiles of a weight"));
        for (index, rows) in values.chunks(TILE_ROWS * k).enumerate() {
            let tile = self.arena.write(tile.first(rows.len()));
            let kind = weight.buffer.kind();
            self.threads.run(|| {
                let pieces = tile.par_chunks_mut(16 * 1024).zip(rows.par_chunks(16 * 1024));
                pieces.for_each(|(to, from)| widen(kind, from, to));
            });
            work(index * TILE_ROWS, tile);
        }
    }
}

/// A pointer that may go to another thread: the pool's, while we wait for it.
#[derive(Clone, Copy)]
struct Pointer(*mut f32);
// SAFETY: see above.
unsafe impl Send for Pointer {}

/// A matrix that may go to another thread: the pool's, while we wait for it.
#[derive(Clone, Copy)]
struct SendMatrix(Matrix);
// SAFETY: see above.
unsafe impl Send for SendMatrix {}

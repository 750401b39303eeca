//! Matrix products with few rows, such as the one row per answer while decoding: every weight is used a handful of times, so none are packed,
//! and memory bandwidth limits the speed.

use std::slice;

use crate::device::Write;

use super::gemm::Matrix;
use crate::wide::widest;

/// Up to this many rows it is faster than the GEMM, which packs the weights first; measured with 512 to 2048 columns.
pub(super) const FEW: usize = 12;

/// Rows and outputs computed at once: their sums fill the registers.
const ROWS: usize = 4;
const OUTPUTS: usize = 4;

/// Outputs whose weights are used for all rows before the next ones.
pub(super) const STRIPE: usize = 16;

/// Parallel sums, for vector instructions.
const LANES: usize = 16;

/// c `[m, n]` = scale a `[m, k]` b `[n, k]`^T, or added to it, on this thread. Rows of a and b are contiguous; rows of c are `row` values apart.
///
/// # Safety
/// All three lie inside memory that is valid for them, and c overlaps with neither a nor b.
pub(super) unsafe fn multiply_few(
    c: *mut f32,
    row: usize,
    m: usize,
    n: usize,
    k: usize,
    a: Matrix,
    b: Matrix,
    scale: f32,
    write: Write,
) {
    assert!(a.column == 1 && b.column == 1, "rows are contiguous");
    // SAFETY: rows of a and b, which the caller has promised.
    let lines = |of: Matrix, first: usize, count: usize| unsafe {
        slice::from_raw_parts(of.at(first, 0).start, (count - 1) * of.row as usize + k)
    };
    // A stripe of weights stays in cache until all rows have used it.
    for output in (0..n).step_by(STRIPE) {
        let outputs = STRIPE.min(n - output);
        let w = lines(b, output, outputs);
        for first in (0..m).step_by(ROWS) {
            let rows = ROWS.min(m - first);
            let mut sums = [0.0; ROWS * STRIPE];
            let sums = &mut sums[..rows * outputs];
            stripe(lines(a, first, rows), a.row as usize, w, b.row as usize, k, sums, outputs);
            for (index, sums) in sums.chunks_exact(outputs).enumerate() {
                // SAFETY: inside of c, which nobody else uses.
                let to = unsafe { slice::from_raw_parts_mut(c.add((first + index) * row + output), outputs) };
                match write {
                    Write::Set => to.iter_mut().zip(sums).for_each(|(to, sum)| *to = scale * *sum),
                    Write::Add => to.iter_mut().zip(sums).for_each(|(to, sum)| *to += scale * *sum),
                }
            }
        }
    }
}

widest! {
    /// Dot products `[rows, outputs]` of rows of x with rows of w, which start `x_row` and `w_row` values apart.
    fn stripe(x: &[f32], x_row: usize, w: &[f32], w_row: usize, k: usize, sums: &mut [f32], outputs: usize) {
        match sums.len() / outputs {
            1 => rows::<1>(x, x_row, w, w_row, k, sums, outputs),
            2 => rows::<2>(x, x_row, w, w_row, k, sums, outputs),
            3 => rows::<3>(x, x_row, w, w_row, k, sums, outputs),
            _ => rows::<ROWS>(x, x_row, w, w_row, k, sums, outputs),
        }
    }
}

#[inline(always)]
fn rows<const R: usize>(x: &[f32], x_row: usize, w: &[f32], w_row: usize, k: usize, sums: &mut [f32], outputs: usize) {
    let x: [&[f32]; R] = std::array::from_fn(|row| &x[row * x_row..row * x_row + k]);
    let w = |output: usize| &w[output * w_row..output * w_row + k];
    let whole = outputs / OUTPUTS * OUTPUTS;
    for first in (0..whole).step_by(OUTPUTS) {
        let found = dots::<R, OUTPUTS>(x, std::array::from_fn(|output| w(first + output)));
        for (row, found) in found.iter().enumerate() {
            sums[row * outputs + first..row * outputs + first + OUTPUTS].copy_from_slice(found);
        }
    }
    for output in whole..outputs {
        for (row, [found]) in dots::<R, 1>(x, [w(output)]).into_iter().enumerate() {
            sums[row * outputs + output] = found;
        }
    }
}

/// Dot products of every x with every w, all of the same length.
#[inline(always)]
fn dots<const R: usize, const O: usize>(x: [&[f32]; R], w: [&[f32]; O]) -> [[f32; O]; R] {
    let pieces = x[0].len() / LANES;
    let x_pieces = x.map(|x| &x.as_chunks::<LANES>().0[..pieces]);
    let w_pieces = w.map(|w| &w.as_chunks::<LANES>().0[..pieces]);
    let mut sums = [[[0.0_f32; LANES]; O]; R];
    for piece in 0..pieces {
        let w: [[f32; LANES]; O] = std::array::from_fn(|output| w_pieces[output][piece]);
        for row in 0..R {
            let x = x_pieces[row][piece];
            for output in 0..O {
                let (sum, w) = (sums[row][output], w[output]);
                sums[row][output] = std::array::from_fn(|lane| sum[lane] + x[lane] * w[lane]);
            }
        }
    }
    let whole = pieces * LANES;
    // A copy, because a closure's captures have to be in memory: the loop above would write there each time.
    let sums = sums;
    std::array::from_fn(|row| {
        std::array::from_fn(|output| {
            let rest: f32 = x[row][whole..].iter().zip(&w[output][whole..]).map(|(x, w)| x * w).sum();
            sums[row][output].iter().sum::<f32>() + rest
        })
    })
}

//! The innermost loop: one tile of the result, which stays in registers over all of k.

use crate::device::Write;

use super::lanes::Lanes;

/// A tile `[rows, columns]` of the result, its inputs, and its destination.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    pub k: usize,
    /// Values of a: rows are `a_row` apart, values of k `a_step`.
    pub a: *const f32,
    pub a_row: isize,
    pub a_step: isize,
    /// Values of b: contiguous, as many as the tile has vectors; values of k are `b_step` apart.
    pub b: *const f32,
    pub b_step: isize,
    pub c: *mut f32,
    pub c_row: isize,
    pub columns: usize,
    pub scale: f32,
    pub write: Write,
}

/// Multiplies one tile.
pub(super) type Kernel = unsafe fn(&Tile);

/// Unrolls a body for each row of a tile: an array indexed by a variable would spill to memory.
macro_rules! each_row {
    ($rows:expr, $row:ident => $body:block) => {
        each_row!(@ $rows, $row, $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13)
    };
    (@ $rows:expr, $row:ident, $body:block, $($number:literal)*) => {
        $(if $number < $rows {
            const $row: usize = $number;
            $body
        })*
    };
}

/// Unrolls a body for each vector of a tile.
macro_rules! each_vector {
    ($vectors:expr, $vector:ident => $body:block) => {
        each_row!(@ $vectors, $vector, $body, 0 1 2 3)
    };
}

/// A tile of R rows and V vectors. With `TIGHT`, rows of a are contiguous.
///
/// Every value is summed in the order of k whatever the shape of the tile, so the tiling changes no bit of the result.
#[inline(always)]
unsafe fn multiply<L: Lanes, const R: usize, const V: usize, const TIGHT: bool>(tile: &Tile) {
    let Tile { k, a_row, a_step, b_step, c, c_row, scale, .. } = *tile;
    let (mut a, mut b) = (tile.a, tile.b);
    // Four bases and three offsets instead of a pointer per row, for which there are not enough registers.
    let bases = [0, 4, 8, 12].map(|row: isize| row * a_row);
    let within = [0, 1, 2, 3].map(|row: isize| row * a_row);
    // SAFETY: the caller has promised that all of the tile, of a and of b is there.
    unsafe {
        let mut sums = [[L::splat(0.0); V]; R];
        let mut vectors = [L::splat(0.0); V];
        each_row!(R, ROW => {
            L::prefetch(c.wrapping_offset(ROW as isize * c_row));
            each_vector!(V, VECTOR => {
                L::prefetch(c.wrapping_offset(ROW as isize * c_row + ((VECTOR + 1) * L::COUNT) as isize - 1));
            });
        });
        for _ in 0..k {
            each_vector!(V, VECTOR => { vectors[VECTOR] = L::load(b.add(VECTOR * L::COUNT)); });
            each_row!(R, ROW => {
                let value = L::splat(if TIGHT { *a.add(ROW) } else { *a.offset(bases[ROW / 4]).offset(within[ROW % 4]) });
                each_vector!(V, VECTOR => {
                    sums[ROW][VECTOR] = value.times_plus(vectors[VECTOR], sums[ROW][VECTOR]);
                });
            });
            a = a.wrapping_offset(a_step);
            b = b.wrapping_offset(b_step);
        }
        let scale = L::splat(scale);
        let last = tile.columns - (V - 1) * L::COUNT;
        each_row!(R, ROW => {
            let to = c.offset(ROW as isize * c_row);
            each_vector!(V, VECTOR => {
                let is_whole = VECTOR + 1 < V || last == L::COUNT;
                store::<L>(sums[ROW][VECTOR], to.add(VECTOR * L::COUNT), last, is_whole, scale, tile.write);
            });
        });
    }
}

#[inline(always)]
unsafe fn store<L: Lanes>(sums: L, to: *mut f32, count: usize, is_whole: bool, scale: L, write: Write) {
    // SAFETY: the caller has promised that `count` values are there.
    unsafe {
        match (write, is_whole) {
            (Write::Set, true) => sums.times(scale).store(to),
            (Write::Add, true) => sums.times_plus(scale, L::load(to)).store(to),
            (Write::Set, false) => sums.times(scale).store_some(to, count),
            (Write::Add, false) => sums.times_plus(scale, L::load_some(to, count)).store_some(to, count),
        }
    }
}

/// All kernels of a processor: by number of vectors, number of rows, and whether rows of a are apart or contiguous.
pub(super) type Kernels = [&'static [[Kernel; 2]]];

macro_rules! kernels {
    ($name:ident, $lanes:ty, [$([$vectors:literal: $($rows:literal)*])*], $(#[$feature:meta])?) => {
        pub(super) static $name: &Kernels = {
            $(#[$feature])?
            unsafe fn kernel<const R: usize, const V: usize, const TIGHT: bool>(tile: &Tile) {
                // SAFETY: the caller's.
                unsafe { multiply::<$lanes, R, V, TIGHT>(tile) };
            }
            &[$(&[$([kernel::<$rows, $vectors, false>, kernel::<$rows, $vectors, true>]),*]),*]
        };
    };
}

kernels!(PORTABLE, super::lanes::Portable, [[1: 1 2 3 4] [2: 1 2 3 4]],);
#[cfg(target_arch = "x86_64")]
kernels!(
    AVX2,
    super::lanes::Avx2,
    [[1: 1 2 3 4 5 6 7 8 9 10 11 12] [2: 1 2 3 4 5 6]],
    #[target_feature(enable = "avx2,fma")]
);
#[cfg(target_arch = "x86_64")]
kernels!(
    AVX512,
    super::lanes::Avx512,
    [
        [1: 1 2 3 4 5 6 7 8 9 10 11 12 13 14]
        [2: 1 2 3 4 5 6 7 8 9 10 11 12 13 14]
        [3: 1 2 3 4 5 6 7 8]
        [4: 1 2 3 4 5 6]
    ],
    #[target_feature(enable = "avx512f")]
);

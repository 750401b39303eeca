//! Splits a product between threads: into a grid of equal pieces, which threads take in turn.
//!
//! One part per thread along one side leaves threads idle if that side is short (256 columns of keys and values over 16 threads),
//! and everybody waits for the slowest. Here both sides may be cut; the cost of that (b is packed once per piece of rows, a is read once per
//! piece of columns) is weighed against it. No value depends on the cut, see `gemm`.

use std::ops::Range;

/// Pieces end at multiples of this many columns, as vectors and cache lines do.
const COLUMNS: usize = 16;
/// Columns of a whole tile; any rest is a little slower.
const TILE: usize = 64;
/// Rows of a whole tile.
const ROWS: usize = 6;

/// Costs in multiplications: of reading a value of a, and of handing a piece to a thread. Measured with AVX-512 (m = 64 to 1024, n = 64 to 2048).
const READ: usize = 6;
const HAND_OVER: usize = 1 << 14;
/// Cost of starting and joining all threads: products below it stay on one thread.
const BEGIN: usize = 1 << 17;
/// Maximum pieces per thread.
const PIECES: usize = 4;

/// Cost of packing a value of b, in multiplications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    /// f32 and 16-bit values: mostly the cost of reading them.
    Plain,
    /// 4-bit values, which are looked up and scaled.
    Unpacked,
}

impl Packing {
    fn cost(self) -> usize {
        match self {
            Packing::Plain => 24,
            Packing::Unpacked => 64,
        }
    }
}

/// A result `[m, n]` in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grid {
    m: usize,
    n: usize,
    /// Rows and columns per piece; the last ones may have fewer.
    rows: usize,
    columns: usize,
}

impl Grid {
    /// The fastest split: by the number of rounds, plus half a piece for late threads.
    pub fn of(m: usize, n: usize, k: usize, threads: usize, packing: Packing) -> Grid {
        let whole = Grid { m, n, rows: m.max(1), columns: n.max(1) };
        let mut best = (whole.cost(k, packing), whole);
        if m == 0 || n == 0 || threads < 2 || best.0 < BEGIN {
            return whole;
        }
        for down in 1..=PIECES * threads {
            let rows = m.div_ceil(down).next_multiple_of(ROWS).min(whole.rows);
            for across in 1..=PIECES * threads / down {
                let columns = n.div_ceil(across).next_multiple_of(COLUMNS).min(whole.columns);
                let grid = Grid { m, n, rows, columns };
                let piece = grid.cost(k, packing);
                let cost = BEGIN + grid.count().div_ceil(threads) * piece + piece / 2;
                if cost < best.0 {
                    best = (cost, grid);
                }
            }
        }
        best.1
    }

    /// The cost of a piece.
    fn cost(&self, k: usize, packing: Packing) -> usize {
        let rest = (self.columns % TILE).next_multiple_of(COLUMNS);
        let columns = self.columns / TILE * TILE + rest + rest / 8;
        HAND_OVER + k * (self.rows * columns + self.columns * packing.cost() + self.rows * READ)
    }

    /// Number of pieces.
    pub fn count(&self) -> usize {
        self.m.div_ceil(self.rows) * self.n.div_ceil(self.columns)
    }

    /// Rows and columns of a piece. Pieces with the same columns are consecutive, so that threads pack the same values of b at the same time.
    pub fn piece(&self, number: usize) -> (Range<usize>, Range<usize>) {
        let down = self.m.div_ceil(self.rows);
        let (row, column) = (number % down * self.rows, number / down * self.columns);
        (row..self.m.min(row + self.rows), column..self.n.min(column + self.columns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_a_result_once() {
        for (m, n) in [(0, 7), (7, 0), (1, 1), (5, 64), (63, 65), (64, 2048), (314, 256), (2560, 3420), (17, 1000)] {
            for threads in [1, 2, 3, 7, 16, 64] {
                for packing in [Packing::Plain, Packing::Unpacked] {
                    let grid = Grid::of(m, n, 512, threads, packing);
                    let mut seen = vec![0_u8; m * n];
                    for number in 0..grid.count() {
                        let (rows, columns) = grid.piece(number);
                        for row in rows {
                            seen[row * n..][columns.clone()].iter_mut().for_each(|seen| *seen += 1);
                        }
                    }
                    assert!(seen.iter().all(|seen| *seen == 1), "{m} x {n} on {threads}: {grid:?}");
                }
            }
        }
    }

    /// The fraction of time that threads are busy, if all are equally fast.
    fn busy(m: usize, n: usize, k: usize, threads: usize) -> f64 {
        let grid = Grid::of(m, n, k, threads, Packing::Plain);
        let most = grid.count().div_ceil(threads) * grid.rows * grid.columns;
        (m * n) as f64 / (most * threads) as f64
    }

    #[test]
    fn all_threads_have_work() {
        // Products of a 3B model: queries, keys and values, both layers of the MLP, and the vision tower.
        for (m, n, k) in
            [(314, 2048, 2048), (314, 11008, 2048), (314, 2048, 11008), (1256, 1280, 1280), (1256, 3420, 1280)]
        {
            for threads in [2, 4, 8, 16, 32] {
                assert!(busy(m, n, k, threads) > 0.85, "{m} x {n} on {threads}: {}", busy(m, n, k, threads));
            }
        }
        // Products with a short side.
        for threads in [2, 4, 8, 16] {
            assert!(busy(314, 256, 2048, threads) > 0.8, "{threads}: {}", busy(314, 256, 2048, threads));
            assert!(busy(64, 1280, 1280, threads) > 0.8, "{threads}: {}", busy(64, 1280, 1280, threads));
        }
    }

    #[test]
    fn small_products_stay_on_one_thread() {
        assert_eq!(Grid::of(4, 64, 64, 16, Packing::Plain).count(), 1);
        assert_eq!(Grid::of(314, 2048, 2048, 1, Packing::Plain).count(), 1);
    }

    #[test]
    fn few_rows_are_not_cut() {
        for threads in [2, 16] {
            assert_eq!(Grid::of(8, 2048, 2048, threads, Packing::Plain).rows, 8);
            assert_eq!(Grid::of(64, 2048, 2048, threads, Packing::Unpacked).rows, 64);
        }
    }
}

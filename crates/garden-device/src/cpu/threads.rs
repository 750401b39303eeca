//! Threads, and how work is cut: into pieces of a fixed size, so that results do not depend on who does which.

use rayon::prelude::*;

use crate::device::Write;

use super::matmul::{multiply, row_major};

/// Values that are worth a piece of their own.
const PIECE: usize = 16 * 1024;

/// The side of the matrices that threads begin with: large enough to fill the library's room.
const WARM_UP: usize = 768;

/// The threads of a device.
#[derive(Debug)]
pub(super) struct Threads {
    pool: Option<rayon::ThreadPool>,
    number: usize,
}

impl Threads {
    pub fn new(wanted: usize) -> Threads {
        let number = if wanted == 0 { std::thread::available_parallelism().map_or(1, usize::from) } else { wanted };
        // One thread needs no pool, and where the system gives none the caller's has to do.
        let pool = (number > 1).then(|| rayon::ThreadPoolBuilder::new().num_threads(number).build().ok()).flatten();
        let threads = Threads { number: if pool.is_some() { number } else { 1 }, pool };
        threads.warm_up();
        threads
    }

    /// Has every thread do a product once: the library keeps room for each thread, which should not come into being in the middle of a run.
    fn warm_up(&self) {
        let product = || {
            let side = WARM_UP;
            let (a, mut c) = (vec![1.0_f32; side * side], vec![0.0_f32; side * side]);
            let matrix = row_major(&a, side);
            // SAFETY: three square matrices of which only c is written.
            unsafe {
                multiply(
                    c.as_mut_ptr(),
                    side as isize,
                    side,
                    side,
                    side,
                    matrix,
                    matrix,
                    1.0,
                    Write::Set,
                    gemm_common::Parallelism::None,
                )
            };
        };
        match &self.pool {
            Some(pool) => drop(pool.broadcast(|_| product())),
            None => product(),
        }
    }

    pub fn number(&self) -> usize {
        self.number
    }

    /// How a product may use the threads; call it inside `run`.
    pub fn parallelism(&self) -> gemm_common::Parallelism {
        if self.number > 1 { gemm_common::Parallelism::Rayon(self.number) } else { gemm_common::Parallelism::None }
    }

    /// Runs work with the pool's threads at hand.
    pub fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        match &self.pool {
            Some(pool) => pool.install(work),
            None => work(),
        }
    }

    /// Rows that make a piece.
    fn rows(width: usize) -> usize {
        PIECE.div_ceil(width.max(1)).max(1)
    }

    /// Does something for pieces of whole rows of `y`: (first row, rows of the piece).
    pub fn by_rows(&self, y: &mut [f32], width: usize, work: impl Fn(usize, &mut [f32]) + Sync) {
        let rows = Self::rows(width);
        if y.len() <= rows * width || self.number == 1 {
            work(0, y);
            return;
        }
        self.run(|| y.par_chunks_mut(rows * width).enumerate().for_each(|(index, piece)| work(index * rows, piece)));
    }

    /// Does something for pieces of values of `y` that cost so much each: (first value, the piece).
    pub fn by_values(&self, y: &mut [f32], cost: usize, work: impl Fn(usize, &mut [f32]) + Sync) {
        let values = Self::rows(cost);
        if y.len() <= values || self.number == 1 {
            work(0, y);
            return;
        }
        self.run(|| y.par_chunks_mut(values).enumerate().for_each(|(index, piece)| work(index * values, piece)));
    }

    /// As `by_rows`, with one value of `z` for each row of `y`.
    pub fn by_rows_with(
        &self,
        y: &mut [f32],
        width: usize,
        z: &mut [f32],
        work: impl Fn(usize, &mut [f32], &mut [f32]) + Sync,
    ) {
        let rows = Self::rows(width);
        if z.len() <= rows || self.number == 1 {
            work(0, y, z);
            return;
        }
        self.run(|| {
            let pieces = y.par_chunks_mut(rows * width).zip(z.par_chunks_mut(rows)).enumerate();
            pieces.for_each(|(index, (y, z))| work(index * rows, y, z));
        });
    }

    /// As `by_rows`, for two buffers of the same width.
    pub fn by_rows_of_two(
        &self,
        y: &mut [f32],
        z: &mut [f32],
        width: usize,
        work: impl Fn(usize, &mut [f32], &mut [f32]) + Sync,
    ) {
        let rows = Self::rows(width);
        if y.len() <= rows * width || self.number == 1 {
            work(0, y, z);
            return;
        }
        self.run(|| {
            let pieces = y.par_chunks_mut(rows * width).zip(z.par_chunks_mut(rows * width)).enumerate();
            pieces.for_each(|(index, (y, z))| work(index * rows, y, z));
        });
    }

    /// Does something for each number below `count`, on all threads.
    pub fn each(&self, count: usize, work: impl Fn(usize) + Sync + Send) {
        if self.number == 1 || count <= 1 {
            (0..count).for_each(work);
            return;
        }
        self.run(|| (0..count).into_par_iter().with_max_len(1).for_each(work));
    }

    /// The number of the thread that asks, below `number`.
    pub fn current(&self) -> usize {
        if self.number == 1 { 0 } else { rayon::current_thread_index().unwrap_or(0) }
    }
}

//! GEMM on one thread, in memory planned by the device.
//!
//! The idea is Goto's and BLIS's: a packed block of b stays in the L2 cache, a few rows of a in L1, and a tile of the result
//! in registers. Packing needs workspace, which the caller provides: a product allocates nothing.
//!
//! Each value of the result is summed in the order of k, block by block; blocks depend on k alone. So neither the split between threads
//! nor the vector width changes a bit of the result, as long as the processor has FMA.

mod kernels;
mod lanes;
mod pack;
#[cfg(test)]
mod tests;

use crate::device::Write;

use kernels::{Kernel, Kernels, Tile};
use lanes::{Lanes, MOST};
use pack::{Block, Factor};

pub(super) use pack::Fill;

/// Values of k packed at once: more would evict rows of a from L1, fewer read and write c more often. Measured against 384: about as fast.
const DEPTH: usize = 512;
/// Columns of b packed at once, more if k is shorter: half a MiB, which fits most L2 caches.
const COLUMNS: usize = 256;
/// Rows of a packed at once, if necessary.
const HEIGHT: usize = 48;

/// Staging values for conversion to f32: as many lines as the longest vector has values.
const STAGE: usize = DEPTH * MOST;

/// Up to this many rows of a, packing b is not worthwhile if rows of b are contiguous.
const FEW_ROWS: usize = 24;
/// Up to this many values of k, contiguous columns of a stay in L1.
const SHORT: usize = 128;

/// A strided matrix in memory.
#[derive(Clone, Copy)]
pub(super) struct Matrix {
    pub start: *const f32,
    pub row: isize,
    pub column: isize,
}

impl Matrix {
    /// The submatrix starting at a row and a column.
    pub fn at(self, row: usize, column: usize) -> Matrix {
        Matrix { start: self.start.wrapping_offset(row as isize * self.row + column as isize * self.column), ..self }
    }
}

/// Source of a factor's values.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    /// f32 in memory.
    Values(Matrix),
    /// Row-major in another format: fills values of a row from a column on.
    Rows(&'a Fill<'a>),
    /// Column-major in another format: fills values of a column from a row on.
    Columns(&'a Fill<'a>),
}

impl From<Matrix> for Source<'_> {
    fn from(matrix: Matrix) -> Self {
        Source::Values(matrix)
    }
}

/// Workspace of a product per thread, in values.
pub(super) const fn workspace() -> usize {
    MOST + DEPTH * (COLUMNS + HEIGHT) + STAGE
}

/// c `[m, n]` = scale a `[m, k]` b `[k, n]`, or added to it, on this thread; rows of c are `row` values apart. `workspace` has [`workspace`] values.
///
/// # Safety
/// All three lie inside memory that is valid for them, and c overlaps with neither a nor b.
pub(super) unsafe fn multiply<'a>(
    c: *mut f32,
    row: isize,
    m: usize,
    n: usize,
    k: usize,
    a: impl Into<Source<'a>>,
    b: impl Into<Source<'a>>,
    scale: f32,
    write: Write,
    workspace: &mut [f32],
) {
    let a = match a.into() {
        Source::Values(a) => Factor::Strided { start: a.start, along: a.column, across: a.row },
        Source::Rows(fill) => Factor::Lines(fill),
        Source::Columns(fill) => Factor::Steps(fill),
    };
    let b = match b.into() {
        Source::Values(b) => Factor::Strided { start: b.start, along: b.row, across: b.column },
        Source::Rows(fill) => Factor::Steps(fill),
        Source::Columns(fill) => Factor::Lines(fill),
    };
    let product = Product { c, row, m, n, k, a, b, scale, write };
    // SAFETY: passed on to the caller; the processor has what each is compiled for.
    unsafe { product.on(processor(), workspace) }
}

/// Instruction set of the processor.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Processor {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Any,
}

/// The vector instructions that matrix products use on this processor, by name; `None` if there are none that help much.
pub fn vector_instructions() -> Option<&'static str> {
    match processor() {
        #[cfg(target_arch = "x86_64")]
        Processor::Avx512 => Some("AVX-512"),
        #[cfg(target_arch = "x86_64")]
        Processor::Avx2 => Some("AVX2"),
        // Every processor of this architecture has them.
        Processor::Any if cfg!(target_arch = "aarch64") => Some("NEON"),
        Processor::Any => None,
    }
}

fn processor() -> Processor {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512f") {
            return Processor::Avx512;
        }
        if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
            return Processor::Avx2;
        }
    }
    Processor::Any
}

struct Product<'a> {
    c: *mut f32,
    row: isize,
    m: usize,
    n: usize,
    k: usize,
    a: Factor<'a>,
    b: Factor<'a>,
    scale: f32,
    write: Write,
}

impl Product<'_> {
    /// # Safety
    /// As for [`multiply`]; and the processor supports this instruction set.
    unsafe fn on(&self, processor: Processor, workspace: &mut [f32]) {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f")]
        unsafe fn avx512(product: &Product<'_>, workspace: &mut [f32]) {
            // SAFETY: the caller's.
            unsafe { product.blocks::<lanes::Avx512>(kernels::AVX512, workspace) };
        }

        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma")]
        unsafe fn avx2(product: &Product<'_>, workspace: &mut [f32]) {
            // SAFETY: the caller's.
            unsafe { product.blocks::<lanes::Avx2>(kernels::AVX2, workspace) };
        }

        if self.m == 0 || self.n == 0 {
            return;
        }
        if self.k == 0 {
            // SAFETY: the caller's.
            return unsafe { self.nothing() };
        }
        // SAFETY: the caller's.
        unsafe {
            match processor {
                #[cfg(target_arch = "x86_64")]
                Processor::Avx512 => avx512(self, workspace),
                #[cfg(target_arch = "x86_64")]
                Processor::Avx2 => avx2(self, workspace),
                Processor::Any => self.blocks::<lanes::Portable>(kernels::PORTABLE, workspace),
            }
        }
    }

    /// An empty sum.
    unsafe fn nothing(&self) {
        if self.write == Write::Set {
            for row in 0..self.m as isize {
                // SAFETY: a row of c.
                unsafe { self.c.offset(row * self.row).write_bytes(0, self.n) };
            }
        }
    }

    #[inline(always)]
    unsafe fn blocks<L: Lanes>(&self, kernels: &Kernels, workspace: &mut [f32]) {
        let widest = L::ROWS.len() * L::COUNT;
        let depth = depth(self.k);
        // If k is short, more columns fit: rows of c are then written in longer runs.
        let most = (DEPTH * COLUMNS / depth).min(STAGE) / widest * widest;
        let mut first = 0;
        while first < self.n {
            let rest = self.n - first;
            // Columns left over after whole tiles get their own tiles, narrower and higher.
            let columns = if rest < widest { rest } else { most.min(rest / widest * widest) };
            // SAFETY: the caller's.
            unsafe {
                self.columns::<L>(kernels, first, columns, columns.min(widest).div_ceil(L::COUNT), depth, workspace)
            };
            first += columns;
        }
    }

    /// Computes some columns of the result, in tiles of `vectors` vectors.
    #[inline(always)]
    unsafe fn columns<L: Lanes>(
        &self,
        kernels: &Kernels,
        first: usize,
        columns: usize,
        vectors: usize,
        depth: usize,
        workspace: &mut [f32],
    ) {
        let (packed_b, rest) = aligned(workspace).split_at_mut(DEPTH * COLUMNS);
        let (packed_a, stage) = rest.split_at_mut(DEPTH * HEIGHT);
        let a_in_place = self.a_in_place::<L>();
        // Rows are divided evenly into blocks, and rows of a block into tiles: a tile of few rows wastes registers.
        let highest = L::ROWS[vectors - 1];
        let height = if a_in_place { self.m } else { even(self.m, HEIGHT / highest * highest) };
        let mut write = self.write;
        for first_k in (0..self.k).step_by(depth) {
            let k = depth.min(self.k - first_k);
            let width = vectors * L::COUNT;
            let block = Block { first_k, k, first_line: first, lines: columns, width, step: width };
            // SAFETY: the caller's.
            let b = unsafe { panels::<L>(self.b, block, self.b_in_place::<L>(), packed_b, stage) };
            for first_row in (0..self.m).step_by(height) {
                let rows = height.min(self.m - first_row);
                let step = rows.next_multiple_of(L::COUNT);
                let block = Block { first_k, k, first_line: first_row, lines: rows, width: rows, step };
                // SAFETY: the caller's.
                unsafe {
                    let a = panels::<L>(self.a, block, a_in_place, packed_a, stage);
                    self.tiles(kernels[vectors - 1], a, even(rows, highest), b, write);
                }
            }
            write = Write::Add;
        }
    }

    /// Whether a is used unpacked: if k is contiguous, which kernels read as fast as packed values, or if it is used too little.
    fn a_in_place<L: Lanes>(&self) -> bool {
        let is_contiguous = matches!(self.a, Factor::Strided { along: 1, .. });
        let few = if self.k <= SHORT { 2 * L::ROWS.len() * L::COUNT } else { L::COUNT };
        is_contiguous || self.n <= few
    }

    /// Whether b is used unpacked: if its rows are contiguous, it is used too little, and a tile's part of a row is long enough.
    fn b_in_place<L: Lanes>(&self) -> bool {
        let is_contiguous = matches!(self.b, Factor::Strided { across: 1, .. });
        let is_worth = self.k <= SHORT || L::ROWS.len() * L::COUNT >= 64;
        is_contiguous && is_worth && self.m <= FEW_ROWS && self.n.is_multiple_of(L::COUNT)
    }

    /// Computes all tiles of some rows of a with some columns of b.
    #[inline(always)]
    unsafe fn tiles(&self, kernels: &[[Kernel; 2]], a: Panels, height: usize, b: Panels, write: Write) {
        let is_tight = usize::from(a.across == 1);
        let tile = |row: usize, column: usize| {
            let rows = height.min(a.block.lines - row);
            let tile = Tile {
                k: a.block.k,
                a: a.start.wrapping_offset(row as isize * a.across),
                a_row: a.across,
                a_step: a.along,
                b: b.start.wrapping_offset((column / b.block.width) as isize * b.panel),
                b_step: b.along,
                c: self
                    .c
                    .wrapping_offset((a.block.first_line + row) as isize * self.row)
                    .wrapping_add(b.block.first_line + column),
                c_row: self.row,
                columns: b.block.width.min(b.block.lines - column),
                scale: self.scale,
                write,
            };
            // SAFETY: the caller's: this tile of c is there, and so are its inputs.
            unsafe { kernels[rows - 1][is_tight](&tile) };
        };
        let rows = || (0..a.block.lines).step_by(height);
        let columns = || (0..b.block.lines).step_by(b.block.width);
        // The inner loop should run over the smaller of the two.
        match self.m <= FEW_ROWS {
            true => columns().for_each(|column| rows().for_each(|row| tile(row, column))),
            false => rows().for_each(|row| columns().for_each(|column| tile(row, column))),
        }
    }
}

/// Lines of a factor, packed or in place.
#[derive(Clone, Copy)]
struct Panels {
    block: Block,
    start: *const f32,
    /// Strides of k, lines and panels.
    along: isize,
    across: isize,
    panel: isize,
}

#[inline(always)]
unsafe fn panels<L: Lanes>(
    factor: Factor<'_>,
    block: Block,
    in_place: bool,
    to: &mut [f32],
    stage: &mut [f32],
) -> Panels {
    match factor {
        Factor::Strided { start, along, across } if in_place => {
            let start = start.wrapping_offset(block.first_k as isize * along + block.first_line as isize * across);
            Panels { block, start, along, across, panel: block.width as isize * across }
        }
        _ => {
            assert!(block.lines.div_ceil(block.width) * block.panel_length() <= to.len());
            // SAFETY: the caller's; `to` is large enough.
            unsafe { pack::pack::<L>(factor, block, to.as_mut_ptr(), stage) };
            let (along, panel) = (block.step as isize, block.panel_length() as isize);
            Panels { block, start: to.as_ptr(), along, across: 1, panel }
        }
    }
}

/// The length of equal parts that are at most `longest`.
fn even(length: usize, longest: usize) -> usize {
    length.div_ceil(length.div_ceil(longest))
}

/// Values of k packed at once: nearly equal parts.
fn depth(k: usize) -> usize {
    even(k, DEPTH)
}

/// The cache-line aligned part of a slice.
fn aligned(workspace: &mut [f32]) -> &mut [f32] {
    let skipped = workspace.as_ptr().align_offset(4 * MOST).min(MOST);
    let length = workspace.len().saturating_sub(MOST);
    &mut workspace[skipped..skipped + length]
}

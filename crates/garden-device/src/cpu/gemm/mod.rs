//! Matrix products on one thread, in memory that the device has planned.
//!
//! The idea is Goto's and BLIS's: a block of b lies packed in the second-level cache, a few rows of a at a time in the first, and a tile of the result
//! in registers. What is packed needs room, which the caller hands in: a product allocates nothing.
//!
//! Each value of the result is summed in the order of k, block by block; blocks depend on k alone. So neither the cut of a result between threads
//! nor the kind of vectors changes a bit of it, as long as the processor multiplies and adds in one step.

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

/// Values of k that are packed at once: longer parts push rows of a out of the first-level cache, shorter ones read and write c more often. Measured against 384: about as fast.
const DEPTH: usize = 512;
/// Columns of b that are packed at once, more where k is shorter: they take half a MiB, which most second-level caches hold.
const COLUMNS: usize = 256;
/// Rows of a that are packed at once, where they have to be.
const HEIGHT: usize = 48;

/// Values that other forms are turned into f32 through: as many lines as the longest vector has values.
const STAGE: usize = DEPTH * MOST;

/// Up to so many rows of a are too few to pack b for, if rows of b are contiguous.
const FEW_ROWS: usize = 24;
/// Up to so many values of k, columns of a that are contiguous stay in the first-level cache.
const SHORT: usize = 128;

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

/// Where values of a factor come from.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    /// f32 in memory.
    Values(Matrix),
    /// Stored row by row in some other form: fills values of a row from a column on.
    Rows(&'a Fill<'a>),
    /// Stored column by column in some other form: fills values of a column from a row on.
    Columns(&'a Fill<'a>),
}

impl From<Matrix> for Source<'_> {
    fn from(matrix: Matrix) -> Self {
        Source::Values(matrix)
    }
}

/// Values that a product packs into, for each thread.
pub(super) const fn workspace() -> usize {
    MOST + DEPTH * (COLUMNS + HEIGHT) + STAGE
}

/// c [m, n] = scale a [m, k] b [k, n], or added to it, on this thread; c lies row by row, `row` values apart. `workspace` has [`workspace`] values.
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

/// What the processor can do.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Processor {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Any,
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
    /// That of [`multiply`]; and the processor is one of these.
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

    /// A sum of nothing.
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
        // Where k is short there is room for more columns: rows of c are then written in long pieces.
        let most = (DEPTH * COLUMNS / depth).min(STAGE) / widest * widest;
        let mut first = 0;
        while first < self.n {
            let rest = self.n - first;
            // What is left of columns behind whole tiles has tiles of its own, narrower and higher.
            let columns = if rest < widest { rest } else { most.min(rest / widest * widest) };
            // SAFETY: the caller's.
            unsafe {
                self.columns::<L>(kernels, first, columns, columns.min(widest).div_ceil(L::COUNT), depth, workspace)
            };
            first += columns;
        }
    }

    /// Some columns of the result, in tiles of so many vectors.
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
        // Rows are shared out evenly between blocks, and rows of a block between tiles: a tile of few rows wastes registers.
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

    /// Whether a is used where it lies: where k is contiguous, which kernels read as well as what is packed; or where it is used too little.
    fn a_in_place<L: Lanes>(&self) -> bool {
        let is_contiguous = matches!(self.a, Factor::Strided { along: 1, .. });
        let few = if self.k <= SHORT { 2 * L::ROWS.len() * L::COUNT } else { L::COUNT };
        is_contiguous || self.n <= few
    }

    /// Whether b is used where it lies: where its rows are contiguous, it is used too little, and a tile's piece of a row is worth a jump.
    fn b_in_place<L: Lanes>(&self) -> bool {
        let is_contiguous = matches!(self.b, Factor::Strided { across: 1, .. });
        let is_worth = self.k <= SHORT || L::ROWS.len() * L::COUNT >= 64;
        is_contiguous && is_worth && self.m <= FEW_ROWS && self.n.is_multiple_of(L::COUNT)
    }

    /// All tiles of some rows of a with some columns of b.
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
            // SAFETY: the caller's: this tile of c is there, and so is what it is made of.
            unsafe { kernels[rows - 1][is_tight](&tile) };
        };
        let rows = || (0..a.block.lines).step_by(height);
        let columns = || (0..b.block.lines).step_by(b.block.width);
        // What the inner loop runs over again and again should be the smaller of the two.
        match self.m <= FEW_ROWS {
            true => columns().for_each(|column| rows().for_each(|row| tile(row, column))),
            false => rows().for_each(|row| columns().for_each(|column| tile(row, column))),
        }
    }
}

/// Lines of a factor, packed or where they lie.
#[derive(Clone, Copy)]
struct Panels {
    block: Block,
    start: *const f32,
    /// How far apart values of k, lines and panels are.
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
            // SAFETY: the caller's; there is room.
            unsafe { pack::pack::<L>(factor, block, to.as_mut_ptr(), stage) };
            let (along, panel) = (block.step as isize, block.panel_length() as isize);
            Panels { block, start: to.as_ptr(), along, across: 1, panel }
        }
    }
}

/// The length of equal parts that are no longer than the longest.
fn even(length: usize, longest: usize) -> usize {
    length.div_ceil(length.div_ceil(longest))
}

/// Values of k that are packed at once: nearly equal parts.
fn depth(k: usize) -> usize {
    even(k, DEPTH)
}

/// What of a slice begins where a line of the cache does.
fn aligned(workspace: &mut [f32]) -> &mut [f32] {
    let skipped = workspace.as_ptr().align_offset(4 * MOST).min(MOST);
    let length = workspace.len().saturating_sub(MOST);
    &mut workspace[skipped..skipped + length]
}

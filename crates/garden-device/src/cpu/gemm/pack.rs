//! Packing: copies the next part of a factor into panels that the kernels read sequentially.
//!
//! A panel interleaves some lines of a factor (rows of a, columns of b): value (k, line) is at k * step + line. Elements of a panel
//! without a line are unspecified: their results are never stored.

use super::lanes::{Lanes, MOST};

/// Fills values of a stored line, from a given one on: (line, first value, to).
pub(crate) type Fill<'a> = dyn Fn(usize, usize, &mut [f32]) + 'a;

/// A factor seen from its lines: rows of a, columns of b.
#[derive(Clone, Copy)]
pub(super) enum Factor<'a> {
    /// f32 in memory: values of k are `along` apart, lines `across`.
    Strided { start: *const f32, along: isize, across: isize },
    /// Another format, line by line: k is contiguous.
    Lines(&'a Fill<'a>),
    /// Another format, k by k: lines are contiguous.
    Steps(&'a Fill<'a>),
}

/// A block to pack: a range of k and of lines, which are cut into panels.
#[derive(Clone, Copy)]
pub(super) struct Block {
    pub first_k: usize,
    pub k: usize,
    pub first_line: usize,
    pub lines: usize,
    /// Lines per panel; the last may have fewer.
    pub width: usize,
    /// Stride of k in a panel.
    pub step: usize,
}

impl Block {
    /// Lines of each panel, from the block's first.
    pub fn panels(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let Block { lines, width, .. } = *self;
        (0..lines).step_by(width).map(move |first| (first, width.min(lines - first)))
    }

    /// Values per panel.
    pub fn panel_length(&self) -> usize {
        self.step * self.k
    }
}

/// Packs a block.
///
/// # Safety
/// The factor has these values; `to` is large enough for all panels; the processor supports the vectors' instructions.
#[inline(always)]
pub(super) unsafe fn pack<L: Lanes>(factor: Factor<'_>, block: Block, to: *mut f32, stage: &mut [f32]) {
    // SAFETY: the caller's, for all of it; the stage is large enough for as many lines as a vector has values, and for the lines of a block.
    unsafe {
        match factor {
            Factor::Strided { start, along, across } => {
                let start = start.offset(block.first_k as isize * along + block.first_line as isize * across);
                match (along, across) {
                    (_, 1) => {
                        for k in 0..block.k {
                            spread::<L>(start.offset(k as isize * along), block, to.add(k * block.step));
                        }
                    }
                    (1, _) => gather::<L>(block, to, |first, count| {
                        lines(start.offset(first as isize * across), across, count)
                    }),
                    _ => singly(start, along, across, block, to),
                }
            }
            Factor::Lines(fill) => {
                let row = block.k;
                let stage = &mut stage[..L::COUNT * row];
                gather::<L>(block, to, |first, count| {
                    for (line, to) in stage.chunks_exact_mut(row).enumerate().take(count) {
                        fill(block.first_line + first + line, block.first_k, to);
                    }
                    lines(stage.as_ptr(), row as isize, count)
                });
            }
            Factor::Steps(fill) => {
                let stage = &mut stage[..block.lines];
                for k in 0..block.k {
                    fill(block.first_k + k, block.first_line, stage);
                    spread::<L>(stage.as_ptr(), block, to.add(k * block.step));
                }
            }
        }
    }
}

/// Distributes the values of all lines for one k to the panels.
#[inline(always)]
unsafe fn spread<L: Lanes>(from: *const f32, block: Block, to: *mut f32) {
    let mut to = to;
    for (first, count) in block.panels() {
        // SAFETY: the caller's; only values of existing lines are read.
        unsafe {
            let from = from.add(first);
            let mut at = 0;
            while at + L::COUNT <= count {
                L::load(from.add(at)).store(to.add(at));
                at += L::COUNT;
            }
            if at < count {
                L::load_some(from.add(at), count - at).store(to.add(at));
            }
            to = to.wrapping_add(block.panel_length());
        }
    }
}

/// Pointers to `count` lines, repeating the last up to a vector's number of values.
#[inline(always)]
fn lines(start: *const f32, across: isize, count: usize) -> [*const f32; MOST] {
    std::array::from_fn(|line| start.wrapping_offset(line.min(count - 1) as isize * across))
}

/// Packs lines with contiguous k, as many at a time as a vector has values.
#[inline(always)]
unsafe fn gather<L: Lanes>(block: Block, to: *mut f32, mut lines_from: impl FnMut(usize, usize) -> [*const f32; MOST]) {
    let mut panel = to;
    for (first, width) in block.panels() {
        for within in (0..width).step_by(L::COUNT) {
            let from = lines_from(first + within, L::COUNT.min(width - within));
            let to = panel.wrapping_add(within);
            // SAFETY: the caller's.
            unsafe {
                let whole = block.k / L::COUNT * L::COUNT;
                for k in (0..whole).step_by(L::COUNT) {
                    L::turn(from.map(|line| line.add(k)), to.add(k * block.step), block.step);
                }
                if whole < block.k {
                    turn_rest::<L>(from, whole, block.k - whole, to.add(whole * block.step), block.step);
                }
            }
        }
        panel = panel.wrapping_add(block.panel_length());
    }
}

/// Transposes the rest of the lines after whole squares, through squares on the stack.
#[inline(always)]
unsafe fn turn_rest<L: Lanes>(from: [*const f32; MOST], at: usize, count: usize, to: *mut f32, step: usize) {
    let mut square = [0.0; MOST * MOST];
    let mut turned = [0.0; MOST * MOST];
    // SAFETY: the caller's; squares are as large as the longest vector's.
    unsafe {
        for (line, from) in from.iter().enumerate().take(L::COUNT) {
            L::load_some(from.add(at), count).store(square.as_mut_ptr().add(line * L::COUNT));
        }
        let start = square.as_ptr();
        L::turn(std::array::from_fn(|line| start.wrapping_add(line * L::COUNT)), turned.as_mut_ptr(), L::COUNT);
        for k in 0..count {
            L::load(turned.as_ptr().add(k * L::COUNT)).store(to.add(k * step));
        }
    }
}

/// Packs a factor that is contiguous in no direction.
unsafe fn singly(start: *const f32, along: isize, across: isize, block: Block, to: *mut f32) {
    let mut to = to;
    for (first, count) in block.panels() {
        for k in 0..block.k {
            for line in 0..count {
                // SAFETY: the caller's.
                unsafe {
                    *to.add(k * block.step + line) =
                        *start.offset(k as isize * along + (first + line) as isize * across);
                }
            }
        }
        to = to.wrapping_add(block.panel_length());
    }
}

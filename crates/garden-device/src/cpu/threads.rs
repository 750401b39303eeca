//! Cuts work into pieces of a fixed size, so that results do not depend on which thread runs which.

use std::marker::PhantomData;

use super::spin_pool::SpinPool;

/// Values per piece.
const PIECE: usize = 16 * 1024;

/// The threads of a device.
#[derive(Debug)]
pub(super) struct Threads {
    team: SpinPool,
}

impl Threads {
    pub fn new(wanted: usize) -> Threads {
        let number = if wanted == 0 { std::thread::available_parallelism().map_or(1, usize::from) } else { wanted };
        Threads { team: SpinPool::new(number) }
    }

    pub fn number(&self) -> usize {
        self.team.number()
    }

    /// Runs work for each number below `count`, on all threads: (the thread's number, the number).
    pub fn each(&self, count: usize, work: impl Fn(usize, usize) + Sync) {
        self.team.each(count, work);
    }

    /// As [`Threads::each`], with scratch memory per thread: (the thread's part, the number).
    pub fn each_with(&self, scratch: &mut [f32], count: usize, work: impl Fn(&mut [f32], usize) + Sync) {
        self.each_with_number(scratch, count, |_, scratch, number| work(scratch, number));
    }

    fn each_with_number(&self, scratch: &mut [f32], count: usize, work: impl Fn(usize, &mut [f32], usize) + Sync) {
        let part = scratch.len() / self.number();
        let scratch = Parts::of(scratch, part.max(1));
        self.each(count, |thread, number| {
            // SAFETY: a thread's number belongs to one thread while it works, and its part to no other.
            work(thread, if part > 0 { unsafe { scratch.part(thread) } } else { &mut [] }, number);
        });
    }

    /// As [`Threads::each_with`], with two kinds of scratch.
    pub fn each_with_two(
        &self,
        scratch: &mut [f32],
        other: &mut [f32],
        count: usize,
        work: impl Fn(&mut [f32], &mut [f32], usize) + Sync,
    ) {
        let part = other.len() / self.number();
        let other = Parts::of(other, part.max(1));
        self.each_with_number(scratch, count, |thread, scratch, number| {
            // SAFETY: a thread's number belongs to one thread while it works, and its part to no other.
            work(scratch, if part > 0 { unsafe { other.part(thread) } } else { &mut [] }, number);
        });
    }

    /// Rows per piece.
    fn rows(width: usize) -> usize {
        PIECE.div_ceil(width.max(1)).max(1)
    }

    /// Runs work for pieces of whole rows of `y`: (first row, rows of the piece).
    pub fn by_rows(&self, y: &mut [f32], width: usize, work: impl Fn(usize, &mut [f32]) + Sync) {
        let rows = Self::rows(width);
        let y = Parts::of(y, rows * width);
        // SAFETY: each piece is asked for once.
        self.each(y.number(), |_, index| work(index * rows, unsafe { y.part(index) }));
    }

    /// Runs work for pieces of values of `y` with a cost per value: (first value, the piece).
    pub fn by_values(&self, y: &mut [f32], cost: usize, work: impl Fn(usize, &mut [f32]) + Sync) {
        let values = Self::rows(cost);
        let y = Parts::of(y, values);
        // SAFETY: each piece is asked for once.
        self.each(y.number(), |_, index| work(index * values, unsafe { y.part(index) }));
    }

    /// As `by_rows`, with one value of each of `z` for each row of `y`.
    pub fn by_rows_with(
        &self,
        y: &mut [f32],
        width: usize,
        z: [&mut [f32]; 2],
        work: impl Fn(usize, &mut [f32], [&mut [f32]; 2]) + Sync,
    ) {
        let rows = Self::rows(width);
        let (y, [one, other]) = (Parts::of(y, rows * width), z.map(|z| Parts::of(z, rows)));
        self.each(one.number(), |_, index| {
            // SAFETY: each piece is asked for once.
            let (y, z) = unsafe { (y.part(index), [one.part(index), other.part(index)]) };
            work(index * rows, y, z);
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
        let (y, z) = (Parts::of(y, rows * width), Parts::of(z, rows * width));
        // SAFETY: each piece is asked for once.
        self.each(y.number(), |_, index| unsafe { work(index * rows, y.part(index), z.part(index)) });
    }
}

/// A slice in pieces for different threads.
struct Parts<'a> {
    start: *mut f32,
    length: usize,
    piece: usize,
    slice: PhantomData<&'a mut [f32]>,
}

// SAFETY: pieces do not overlap, and each has one user.
unsafe impl Sync for Parts<'_> {}

impl<'a> Parts<'a> {
    fn of(slice: &'a mut [f32], piece: usize) -> Parts<'a> {
        Parts { start: slice.as_mut_ptr(), length: slice.len(), piece, slice: PhantomData }
    }

    fn number(&self) -> usize {
        self.length.div_ceil(self.piece)
    }

    /// # Safety
    /// Nobody else has this piece.
    #[allow(clippy::mut_from_ref)]
    unsafe fn part(&self, index: usize) -> &mut [f32] {
        let first = (index * self.piece).min(self.length);
        // SAFETY: inside the slice; pieces do not overlap.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(first), self.piece.min(self.length - first)) }
    }
}

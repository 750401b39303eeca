//! The largest batch that any order of rows can produce: the largest rows together, separately for each size.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use garden_input::Limits;

/// Sizes that add up over the rows of a batch.
const SIZES: usize = 4;

/// The limits of a row, packed: one is held per row of a dataset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowSize {
    /// Number of tokens.
    pub tokens: u32,
    targets: u32,
    patches: u32,
    images: u32,
}

impl RowSize {
    pub(super) fn of(limits: &Limits) -> RowSize {
        // No row has four billion of anything.
        let [tokens, targets, patches, images] = [limits.tokens, limits.targets, limits.patches, limits.images]
            .map(|size| u32::try_from(size).unwrap_or(u32::MAX));
        RowSize { tokens, targets, patches, images }
    }

    pub(super) fn limits(self) -> Limits {
        let [tokens, targets, patches, images] =
            [self.tokens, self.targets, self.patches, self.images].map(|size| size as usize);
        Limits { tokens, rows: 1, targets, patches, images, longest: 0 }
    }
}

/// The largest rows of a dataset, for each size: as many as a micro-batch has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LargestRows {
    longest: usize,
    sizes: [Vec<usize>; SIZES],
}

/// The largest rows so far, for each size.
#[derive(Default)]
pub(super) struct LargestBatch {
    batch_size: usize,
    rows: usize,
    longest: usize,
    largest: [BinaryHeap<Reverse<usize>>; SIZES],
}

impl LargestBatch {
    pub(super) fn new(batch_size: usize) -> LargestBatch {
        LargestBatch { batch_size, ..LargestBatch::default() }
    }

    /// Adds a row.
    pub(super) fn add(&mut self, row: Limits) {
        let Limits { tokens, targets, patches, images, longest, .. } = row;
        self.rows += 1;
        self.longest = self.longest.max(longest);
        for (heap, size) in self.largest.iter_mut().zip([tokens, targets, patches, images]) {
            heap.push(Reverse(size));
            if heap.len() > self.batch_size {
                heap.pop();
            }
        }
    }

    /// The limits where so many rows of each of these datasets share a micro-batch at most, and each row is among them so often at most.
    pub(super) fn limits_of_mixed(datasets: &[LargestRows], most: &[(usize, usize)], batch_size: usize) -> Limits {
        let size = |number: usize| {
            let rows = datasets.iter().zip(most).flat_map(|(rows, (count, times))| {
                let each = rows.sizes[number].iter().flat_map(move |size| std::iter::repeat_n(*size, *times));
                each.take(*count)
            });
            let mut rows: Vec<usize> = rows.collect();
            rows.sort_unstable_by_key(|size| Reverse(*size));
            rows.iter().take(batch_size).sum()
        };
        let [tokens, targets, patches, images] = std::array::from_fn(size);
        let rows = most.iter().map(|(count, _)| count).sum::<usize>().min(batch_size);
        let longest = datasets.iter().map(|rows| rows.longest).max().unwrap_or(0);
        Limits { tokens, rows, targets, patches, images, longest }
    }

    /// The largest rows, the larger ones first.
    pub(super) fn rows(self) -> LargestRows {
        let sorted = |heap: BinaryHeap<Reverse<usize>>| heap.into_sorted_vec().into_iter().map(|size| size.0).collect();
        LargestRows { longest: self.longest, sizes: self.largest.map(sorted) }
    }

    pub(super) fn limits(&self) -> Limits {
        let sum = |heap: &BinaryHeap<Reverse<usize>>| heap.iter().map(|size| size.0).sum();
        let [tokens, targets, patches, images] = self.largest.each_ref().map(sum);
        let (rows, longest) = (self.rows.min(self.batch_size), self.longest);
        Limits { tokens, rows, targets, patches, images, longest }
    }
}

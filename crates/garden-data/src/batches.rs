//! Which rows make up which micro-batch of a run.
//!
//! Everything follows from a number, so a run that resumes is at its place at once. Epochs are cut into micro-batches as Hugging Face's loader does it:
//! the last one of an epoch may be shorter, and none reaches into the next epoch.

use std::sync::Arc;

use crate::dataset::Order;

/// The rows of each micro-batch, counted from the beginning of the run.
#[derive(Clone, Debug)]
pub struct Batches {
    order: Order,
    /// Rows that are never taken, ascending. A row that is taken is found by counting these, so that no list of the others is held.
    left_out: Arc<[u32]>,
    batch_size: usize,
}

impl Batches {
    /// Rows of a dataset in an order of their own for each epoch, or as they are stored if there is no seed. `left_out` is ascending.
    pub fn new(rows: usize, left_out: Arc<[u32]>, batch_size: usize, seed: Option<u64>) -> Batches {
        let taken = rows.saturating_sub(left_out.len());
        let order = seed.map_or_else(|| Order::stored(taken), |seed| Order::new(taken, seed));
        Batches { order, left_out, batch_size: batch_size.max(1) }
    }

    /// Rows of an epoch.
    pub fn rows_per_epoch(&self) -> usize {
        self.order.len()
    }

    /// Micro-batches of an epoch.
    pub fn per_epoch(&self) -> usize {
        self.order.len().div_ceil(self.batch_size)
    }

    /// The epoch that a micro-batch is in, counted from 0.
    pub fn epoch(&self, number: usize) -> usize {
        number / self.per_epoch().max(1)
    }

    /// The rows of a micro-batch, as numbers of the dataset.
    pub fn rows(&self, number: usize) -> Vec<usize> {
        let first = number % self.per_epoch().max(1) * self.batch_size;
        let last = (first + self.batch_size).min(self.order.len());
        (first..last).map(|position| self.row(self.order.at(self.epoch(number) as u64, position))).collect()
    }

    /// The row that is the n-th of those that are taken.
    fn row(&self, n: usize) -> usize {
        // Before the k-th row that is left out, `left_out[k] - k` rows are taken.
        let (mut low, mut high) = (0, self.left_out.len());
        while low < high {
            let middle = low.midpoint(high);
            if self.left_out[middle] as usize - middle <= n {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        n + low
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_that_is_not_left_out_comes_once_in_each_epoch() {
        for left_out in [&[][..], &[0], &[9], &[0, 1, 2, 5, 9], &[3, 4, 5, 6]] {
            for seed in [None, Some(7)] {
                let batches = Batches::new(10, left_out.into(), 3, seed);
                let expected: Vec<usize> = (0..10).filter(|row| !left_out.contains(&(*row as u32))).collect();
                assert_eq!(batches.rows_per_epoch(), expected.len());
                for epoch in 0..3 {
                    let numbers = epoch * batches.per_epoch()..(epoch + 1) * batches.per_epoch();
                    assert!(numbers.clone().all(|number| batches.epoch(number) == epoch));
                    let mut rows: Vec<usize> = numbers.flat_map(|number| batches.rows(number)).collect();
                    if seed.is_some() {
                        rows.sort_unstable();
                    }
                    assert_eq!(rows, expected);
                }
            }
        }
    }

    /// The story's numbers: 663 rows, 2 at a time, 4 micro-batches to a step make 83 steps.
    #[test]
    fn the_last_micro_batch_of_an_epoch_may_be_shorter() {
        let batches = Batches::new(663, [].into(), 2, Some(42));
        assert_eq!(batches.per_epoch(), 332);
        assert_eq!(batches.per_epoch().div_ceil(4), 83);
        assert_eq!((batches.rows(331).len(), batches.rows(332).len()), (1, 2));
    }
}

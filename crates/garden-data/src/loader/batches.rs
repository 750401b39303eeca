//! Assigns rows to the micro-batches of a run.
//!
//! Everything is computed from the micro-batch number, so a run resumes at any point immediately. Epochs are cut into micro-batches as in Hugging Face's
//! data loader: the last one of an epoch may be shorter, and none reaches into the next epoch.
//!
//! With a token budget, rows are grouped into micro-batches once for the run, and each epoch shuffles the groups. So all epochs have the
//! same number of steps, and the largest micro-batch is known exactly and not only bounded.

use std::collections::VecDeque;
use std::sync::Arc;

use super::mixture::Mixture;
use crate::dataset::Order;

/// Groups filled at the same time: more of them pack rows tighter, but take longer to search.
const OPEN_GROUPS: usize = 16;
/// Pseudo-epoch of the order in which groups are filled, different from every real epoch.
const FILLING: u64 = u64::MAX;

/// Size of a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BatchSize {
    /// Number of rows.
    Rows(usize),
    /// Maximum number of tokens.
    Tokens(usize),
}

/// Rows that share a micro-batch.
#[derive(Debug)]
struct Groups {
    /// Indices among the rows in use, group by group.
    members: Vec<u32>,
    /// The start of each group, and the end of the last.
    starts: Vec<u32>,
}

impl Groups {
    /// Puts each row, in shuffled order, into the first open group that it fits. A row longer than the budget is alone.
    fn of(order: &Sequence, open: usize, tokens: usize, length: impl Fn(usize) -> usize) -> Groups {
        let mut groups = Groups { members: Vec::with_capacity(order.len()), starts: vec![0] };
        let mut filling: VecDeque<(usize, Vec<u32>)> = VecDeque::new();
        for position in 0..order.len() {
            let row = order.at(FILLING, position);
            let needed = length(row);
            match filling.iter_mut().find(|(used, _)| used + needed <= tokens) {
                Some((used, rows)) => {
                    *used += needed;
                    rows.push(row as u32);
                }
                None => {
                    filling.push_back((needed, vec![row as u32]));
                    if filling.len() > open
                        && let Some((_, rows)) = filling.pop_front()
                    {
                        groups.close(&rows);
                    }
                }
            }
        }
        filling.iter().for_each(|(_, rows)| groups.close(rows));
        groups
    }

    fn close(&mut self, rows: &[u32]) {
        self.members.extend_from_slice(rows);
        self.starts.push(self.members.len() as u32);
    }

    fn len(&self) -> usize {
        self.starts.len() - 1
    }

    fn rows(&self, group: usize) -> &[u32] {
        &self.members[self.starts[group] as usize..self.starts[group + 1] as usize]
    }
}

/// What comes at which position of an epoch.
#[derive(Clone, Debug)]
enum Sequence {
    /// Each once.
    Once(Order),
    /// Datasets by their weights.
    Mixed(Mixture),
}

impl Sequence {
    fn len(&self) -> usize {
        match self {
            Sequence::Once(order) => order.len(),
            Sequence::Mixed(mixture) => mixture.len(),
        }
    }

    fn at(&self, epoch: u64, position: usize) -> usize {
        match self {
            Sequence::Once(order) => order.at(epoch, position),
            Sequence::Mixed(mixture) => mixture.at(epoch, position),
        }
    }
}

/// The rows of each micro-batch of a run.
#[derive(Clone, Debug)]
pub struct Batches {
    /// Order of rows, or of groups if there are any.
    order: Sequence,
    /// Excluded rows, ascending. The others are found by counting these, so that no list of them is held.
    left_out: Arc<[u32]>,
    batch_size: usize,
    groups: Option<Arc<Groups>>,
}

impl Batches {
    /// Rows shuffled differently in each epoch, or in storage order without a seed. `left_out` is ascending.
    pub fn new(rows: usize, left_out: Arc<[u32]>, batch_size: usize, seed: Option<u64>) -> Batches {
        let taken = rows.saturating_sub(left_out.len());
        let order = seed.map_or_else(|| Order::stored(taken), |seed| Order::new(taken, seed));
        Batches { order: Sequence::Once(order), left_out, batch_size: batch_size.max(1), groups: None }
    }

    /// Rows of datasets mixed by weight.
    pub fn mixed(mixture: Mixture, left_out: Arc<[u32]>, batch_size: usize) -> Batches {
        Batches { order: Sequence::Mixed(mixture), left_out, batch_size: batch_size.max(1), groups: None }
    }

    /// Micro-batches of at most `tokens` tokens; `lengths` has the tokens of every row of the dataset. Without a seed, rows keep their order.
    pub fn of_tokens(left_out: Arc<[u32]>, tokens: usize, lengths: &[u32], seed: Option<u64>) -> Batches {
        let rows = Batches::new(lengths.len(), left_out, 1, seed);
        let open = if seed.is_some() { OPEN_GROUPS } else { 1 };
        let groups = Groups::of(&rows.order, open, tokens, |place| lengths[rows.row(place)] as usize);
        let order = seed.map_or_else(|| Order::stored(groups.len()), |seed| Order::new(groups.len(), seed));
        Batches { order: Sequence::Once(order), groups: Some(Arc::new(groups)), ..rows }
    }

    /// Rows per epoch.
    pub fn rows_per_epoch(&self) -> usize {
        self.groups.as_ref().map_or(self.order.len(), |groups| groups.members.len())
    }

    /// Micro-batches per epoch.
    pub fn per_epoch(&self) -> usize {
        self.order.len().div_ceil(self.batch_size)
    }

    /// The epoch of a micro-batch, from 0.
    pub fn epoch(&self, number: usize) -> usize {
        number / self.per_epoch().max(1)
    }

    /// The rows of a micro-batch, as indices into the dataset.
    pub fn rows(&self, number: usize) -> Vec<usize> {
        if let Some(groups) = &self.groups {
            let group = self.order.at(self.epoch(number) as u64, number % self.per_epoch().max(1));
            return groups.rows(group).iter().map(|place| self.row(*place as usize)).collect();
        }
        let first = number % self.per_epoch().max(1) * self.batch_size;
        let last = (first + self.batch_size).min(self.order.len());
        (first..last).map(|position| self.row(self.order.at(self.epoch(number) as u64, position))).collect()
    }

    /// The n-th row in use.
    fn row(&self, n: usize) -> usize {
        // `left_out[k] - k` rows in use come before the k-th excluded one.
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

    #[test]
    fn a_budget_of_tokens_is_kept_and_well_used() {
        let lengths: Vec<u32> = (0..500).map(|row: u32| 20 + row.wrapping_mul(2_654_435_761) % 381).collect();
        let left_out: Arc<[u32]> = [0, 7, 8, 499].into();
        let expected: Vec<usize> = (0..500).filter(|row| !left_out.contains(&(*row as u32))).collect();
        let all: usize = expected.iter().map(|row| lengths[*row] as usize).sum();
        for (seed, fullest) in [(Some(3), 1.1), (None, 1.5)] {
            let batches = Batches::of_tokens(left_out.clone(), 1000, &lengths, seed);
            assert_eq!(batches.rows_per_epoch(), expected.len());
            assert!((batches.per_epoch() as f64) < fullest * all as f64 / 1000.0, "{} batches", batches.per_epoch());
            let rows_of = |batches: &Batches, epoch: usize| -> Vec<Vec<usize>> {
                (0..batches.per_epoch()).map(|number| batches.rows(epoch * batches.per_epoch() + number)).collect()
            };
            for epoch in 0..2 {
                let made = rows_of(&batches, epoch);
                let sums = made.iter().map(|rows| rows.iter().map(|row| lengths[*row] as usize).sum::<usize>());
                assert!(sums.clone().all(|sum| sum <= 1000), "{:?}", sums.max());
                let mut rows = made.concat();
                if seed.is_some() {
                    rows.sort_unstable();
                }
                assert_eq!(rows, expected);
            }
            let again = Batches::of_tokens(left_out.clone(), 1000, &lengths, seed);
            assert_eq!(rows_of(&again, 1), rows_of(&batches, 1));
            assert_eq!(rows_of(&again, 0) == rows_of(&batches, 1), seed.is_none(), "each epoch has its own order");
        }
        // A row longer than the budget is alone.
        let long = Batches::of_tokens([].into(), 10, &[3, 30, 3], None);
        assert_eq!(
            (0..long.per_epoch()).map(|number| long.rows(number)).collect::<Vec<_>>(),
            [vec![0], vec![1], vec![2]]
        );
    }

    /// The story's numbers: 663 rows, 2 per micro-batch, 4 micro-batches per step make 83 steps.
    #[test]
    fn the_last_micro_batch_of_an_epoch_may_be_shorter() {
        let batches = Batches::new(663, [].into(), 2, Some(42));
        assert_eq!(batches.per_epoch(), 332);
        assert_eq!(batches.per_epoch().div_ceil(4), 83);
        assert_eq!((batches.rows(331).len(), batches.rows(332).len()), (1, 2));
    }
}

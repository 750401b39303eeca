//! Datasets mixed by weight: which row comes at which position of an epoch.
//!
//! An epoch has as many positions as there are rows in all datasets together, so weights change what comes, and not how many steps there are. Each
//! dataset has a fixed number of positions in every epoch, its quota, spread evenly from the first to the last as Bresenham's line does it: the mixture is
//! the same in each step, and no dataset has a run of luck. At its positions a dataset gives its rows in their shuffled order, each once,
//! and then again in another order: what did not fit into an epoch comes in the next. Everything is computed from the position.

use std::sync::Arc;

use crate::dataset::Order;

/// Keeps the orders of the datasets apart. The first one has the order that it would have alone.
const SOURCE: u64 = 0xd6e8_feb8_6659_fd93;

/// Datasets mixed by weight.
#[derive(Clone, Debug)]
pub struct Mixture {
    sources: Arc<[MixedSource]>,
}

/// A dataset in a mixture.
#[derive(Clone, Copy, Debug)]
struct MixedSource {
    /// The place of its first row among all rows in use.
    first: usize,
    /// Positions of an epoch.
    quota: usize,
    /// Its rows.
    order: Order,
}

impl Mixture {
    /// Mixes datasets of so many rows in use; there is a weight for each. Without a seed, rows keep their order.
    pub fn new(rows: &[usize], weights: &[f64], seed: Option<u64>) -> Mixture {
        let quotas = quotas(rows.iter().sum(), weights);
        let mut first = 0;
        let source = |(place, (rows, quota)): (usize, (&usize, usize))| {
            let seed = seed.map(|seed| seed ^ SOURCE.wrapping_mul(place as u64));
            let order = seed.map_or_else(|| Order::stored(*rows), |seed| Order::new(*rows, seed));
            first += rows;
            MixedSource { first: first - rows, quota, order }
        };
        Mixture { sources: rows.iter().zip(quotas).enumerate().map(source).collect() }
    }

    /// Positions of each dataset in an epoch.
    pub fn quotas(&self) -> Vec<usize> {
        self.sources.iter().map(|source| source.quota).collect()
    }

    /// Positions of an epoch.
    pub fn len(&self) -> usize {
        self.sources.iter().map(|source| source.quota).sum()
    }

    /// Whether an epoch has no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The place of the row at a position of an epoch among all rows in use.
    pub fn at(&self, epoch: u64, position: usize) -> usize {
        let (mut position, mut length) = (position as u64, self.len() as u64);
        let Some((last, others)) = self.sources.split_last() else { return 0 };
        for source in others {
            let quota = source.quota as u64;
            // Positions of this dataset before a position: the line from 0 to its quota, rounded.
            let before = |position: u64| (position * quota + length / 2) / length;
            let drawn = before(position);
            if before(position + 1) > drawn {
                return source.row(epoch * quota + drawn);
            }
            // The datasets behind it share what it leaves, and the last one has all that is left then.
            (position, length) = (position - drawn, length - quota);
        }
        last.row(epoch * last.quota as u64 + position)
    }

    /// Rows of each dataset that a micro-batch of so many rows can have at most, and how often the same row can be among them.
    pub(crate) fn most_in(&self, batch_size: usize) -> Vec<(usize, usize)> {
        let mut length = self.len();
        // None reaches into the next epoch.
        let mut window = batch_size.min(length);
        let mut most = Vec::new();
        for source in self.sources.iter() {
            let rows = (window * source.quota).div_ceil(length.max(1));
            // So many passes may meet in so many consecutive draws.
            let passes = if rows < 2 { rows } else { (rows - 2) / source.order.len().max(1) + 2 };
            most.push((rows, passes));
            window -= window * source.quota / length.max(1);
            length -= source.quota;
        }
        most
    }
}

impl MixedSource {
    /// The row of a draw, counted from the beginning of the run.
    fn row(&self, draw: u64) -> usize {
        let rows = self.order.len() as u64;
        self.first + self.order.at(draw / rows, (draw % rows) as usize)
    }
}

/// Positions of an epoch by weight: rounded down, and those that are left over go to the largest remainders.
fn quotas(length: usize, weights: &[f64]) -> Vec<usize> {
    let sum: f64 = weights.iter().sum();
    let exact: Vec<f64> = weights.iter().map(|weight| weight / sum * length as f64).collect();
    let mut quotas: Vec<usize> = exact.iter().map(|share| share.floor() as usize).collect();
    let mut by_remainder: Vec<usize> = (0..weights.len()).collect();
    by_remainder.sort_by(|one, other| exact[*other].fract().total_cmp(&exact[*one].fract()));
    let left = length.saturating_sub(quotas.iter().sum());
    by_remainder.iter().cycle().take(left).for_each(|place| quotas[*place] += 1);
    quotas
}

//! The order of rows in each epoch: a shuffle without a stored list.
//!
//! `at(epoch, position)` is computed, so a run resumes at any position immediately, and a billion rows cost as much memory as ten.
//! The permutation is "swap or not" (Hoang, Morris, Rogaway: An Enciphering Scheme Based on a Card Shuffle, CRYPTO 2012):
//! in each round every position has a partner, and one coin for the pair decides whether they swap. It works for any number of rows,
//! where a Feistel network needs a power of two and cycle walking.

use garden_random::mix;

/// Number of rounds. Six per bit of the length make it hard to tell from chance: 96 are enough for 65,536 rows in that sense, and the bias
/// that remains for more rows is far too small to show in an epoch of training.
const ROUNDS: u64 = 96;

/// The order of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    length: usize,
    /// `None`: storage order.
    seed: Option<u64>,
}

impl Order {
    /// A different order in each epoch, determined by the seed alone.
    pub fn new(length: usize, seed: u64) -> Order {
        Order { length, seed: Some(seed) }
    }

    /// Storage order in each epoch.
    pub fn stored(length: usize) -> Order {
        Order { length, seed: None }
    }

    /// Rows per epoch.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether an epoch has no rows.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The row at a position of an epoch, both from 0. The position must be less than the length.
    pub fn at(&self, epoch: u64, position: usize) -> usize {
        assert!(position < self.length, "position {position} of an epoch of {} rows", self.length);
        let Some(seed) = self.seed else { return position };
        let length = self.length as u64;
        let key = mix(mix(seed) ^ epoch.wrapping_mul(0xd1b5_4a32_d192_ed03));
        let mut place = position as u64;
        for round in 0..ROUNDS {
            let round_key = mix(key.wrapping_add(round.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
            let pivot = scaled(round_key, length);
            let partner = if pivot >= place { pivot - place } else { pivot + length - place };
            // Both partners must see the same coin, so it is drawn for the larger of the two.
            let coin = mix(round_key ^ place.max(partner).wrapping_mul(0xa076_1d64_78bd_642f));
            if coin >> 63 == 1 {
                place = partner;
            }
        }
        place as usize
    }

    /// The rows from a position of the whole run on, epoch after epoch without end: where a run resumes after `position` rows.
    pub fn rows_from(self, position: u64) -> impl Iterator<Item = usize> + Send + 'static {
        let length = self.length as u64;
        (position..)
            .take_while(move |_| length > 0)
            .map(move |position| self.at(position / length, (position % length) as usize))
    }
}

/// A number below the length, uniform up to one part in 2^64.
fn scaled(number: u64, length: u64) -> u64 {
    ((u128::from(number) * u128::from(length)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::Order;

    fn epoch(length: usize, seed: u64, epoch: u64) -> Vec<usize> {
        (0..length).map(|position| Order::new(length, seed).at(epoch, position)).collect()
    }

    #[test]
    fn every_row_once() {
        for length in (1..130).chain([255, 256, 257, 663, 1000, 4097]) {
            let mut rows = epoch(length, 7, 3);
            rows.sort_unstable();
            assert!(rows.into_iter().eq(0..length), "{length}");
        }
    }

    #[test]
    fn epochs_and_seeds_differ() {
        assert_ne!(epoch(663, 1, 0), epoch(663, 1, 1));
        assert_ne!(epoch(663, 1, 0), epoch(663, 2, 0));
        assert_ne!(epoch(663, 1, 1), epoch(663, 2, 0));
        assert_eq!(epoch(663, 1, 5), epoch(663, 1, 5));
        // Two random orders agree at one position on average.
        let same = epoch(5000, 1, 0).iter().zip(epoch(5000, 1, 1)).filter(|(a, b)| **a == *b).count();
        assert!(same < 8, "{same}");
    }

    #[test]
    fn all_orders_of_few_rows_are_about_as_likely() {
        let mut counts = std::collections::BTreeMap::new();
        for seed in 0..2400 {
            *counts.entry(epoch(4, seed, 0)).or_insert(0u32) += 1;
        }
        assert_eq!(counts.len(), 24);
        // Chi square with 23 degrees of freedom: 49.7 is exceeded once in a thousand.
        let chi: f64 = counts.values().map(|count| (f64::from(*count) - 100.0).powi(2) / 100.0).sum();
        assert!(chi < 49.7, "{chi}");
    }

    #[test]
    fn any_row_may_be_anywhere_and_neighbours_part() {
        let (length, seeds) = (50, 2000);
        let mut counts = vec![0u32; length * length];
        let mut followed = 0;
        for seed in 0..seeds {
            let rows = epoch(length, seed, seed % 3);
            rows.iter().enumerate().for_each(|(position, row)| counts[position * length + row] += 1);
            followed += rows.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
        }
        let expected = seeds as f64 / length as f64;
        let chi: f64 = counts.iter().map(|count| (f64::from(*count) - expected).powi(2) / expected).sum();
        // 49 x 49 degrees of freedom: mean 2401, deviation 69.
        assert!((2190.0..2610.0).contains(&chi), "{chi}");
        // A pair of neighbours stays together with probability 1 / length, so about one in each order.
        assert!((1800..2200).contains(&followed), "{followed}");
    }

    #[test]
    fn a_run_resumes_where_it_was() {
        let order = Order::new(10, 42);
        let whole: Vec<usize> = order.rows_from(0).take(35).collect();
        assert_eq!(whole[23..], order.rows_from(23).take(12).collect::<Vec<_>>());
        assert_eq!(order.rows_from(1 << 40).next(), Some(order.at((1 << 40) / 10, (1 << 40) % 10)));
        assert_eq!(Order::new(0, 1).rows_from(0).next(), None);
        assert_eq!(Order::stored(3).rows_from(2).take(3).collect::<Vec<_>>(), [2, 0, 1]);
    }
}

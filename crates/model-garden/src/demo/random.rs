//! Random numbers that depend on a seed alone: the same seed draws the same pictures on every machine.

use garden_random::{SplitMix64, mix};

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Random(SplitMix64);

impl Random {
    /// The stream of a seed; streams of different numbers have nothing in common.
    pub fn new(seed: u64, stream: u64) -> Random {
        Random(SplitMix64(mix(seed) ^ stream.wrapping_mul(0xd1b5_4a32_d192_ed03)))
    }

    /// A whole number below the limit.
    pub fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.0.draw()) * limit as u128) >> 64) as usize
    }

    /// A number from the lower bound up to the upper one.
    pub fn between(&mut self, lower: f32, upper: f32) -> f32 {
        // 24 bits are all that a 32 bit float between 0 and 1 can tell apart.
        lower + (upper - lower) * ((self.0.draw() >> 40) as f32 / (1_u32 << 24) as f32)
    }

    /// One of several.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// Brings a list into any order.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.below(last + 1));
        }
    }
}

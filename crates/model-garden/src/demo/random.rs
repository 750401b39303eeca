//! Random numbers that depend on a seed alone: the same seed draws the same pictures on every machine.
//!
//! SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014). Good enough to draw pictures with.

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The stream of a seed; streams of different numbers have nothing in common.
    pub fn new(seed: u64, stream: u64) -> Random {
        let mut random = Random { state: seed };
        let start = random.next() ^ stream.wrapping_mul(0xd1b5_4a32_d192_ed03);
        Random { state: start }
    }

    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A whole number below the limit.
    pub fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.next()) * limit as u128) >> 64) as usize
    }

    /// A number from the lower bound up to the upper one.
    pub fn between(&mut self, lower: f32, upper: f32) -> f32 {
        // 24 bits are all that a 32 bit float between 0 and 1 can tell apart.
        lower + (upper - lower) * ((self.next() >> 40) as f32 / (1_u32 << 24) as f32)
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

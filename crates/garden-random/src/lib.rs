//! Random numbers that depend on the seed alone: SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014). The state
//! is one number. Checkpoints depend on the exact sequence, so the generator must not change.

/// The state's increment per draw: the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A stream of random numbers, represented by its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitMix64(pub u64);

impl SplitMix64 {
    /// The next 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        spread(self.0)
    }

    /// A uniform number in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// The first number of the stream that starts at this state: each bit of it depends on every bit of the state.
pub fn mix(state: u64) -> u64 {
    SplitMix64(state).draw()
}

/// The finaliser alone, which maps 0 to 0.
pub fn spread(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Matches the authors' program with seed 1234567.
    #[test]
    fn known_numbers() {
        let mut random = SplitMix64(1_234_567);
        let drawn = [0; 3].map(|_| random.draw());
        assert_eq!(drawn, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
        assert_eq!((mix(1_234_567), spread(0)), (drawn[0], 0));
    }
}

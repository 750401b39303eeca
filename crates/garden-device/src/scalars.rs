//! Numbers that change from step to step. They are in a device buffer, so that queued work, or work recorded once and replayed, reads the
//! latest ones.

use crate::buffer::Buffer;

/// Number of groups of parameters.
pub const GROUPS: usize = 2;

/// A group of parameters, as the model numbers them, below [`GROUPS`]: updates of each are counted separately, since not every batch reaches all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParameterGroup(pub u8);

/// The contents of a scalar buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepScalars {
    /// Seed of dropout.
    pub seed: u64,
    /// Factor of losses, for their gradients.
    pub loss_scale: f32,
    /// Factor of gradients before an update.
    pub gradient_scale: f32,
    /// Learning rate.
    pub rate: f32,
    /// Number of updates of each group of parameters, including this one.
    pub updates: [u32; GROUPS],
}

impl StepScalars {
    /// Length in 32-bit words.
    pub const LENGTH: usize = 8;

    /// The words in the order that kernels read: the seed's lower and upper half, loss scale, gradient scale, rate, updates of each group.
    pub fn words(&self) -> [i32; StepScalars::LENGTH] {
        [
            self.seed as i32,
            (self.seed >> 32) as i32,
            self.loss_scale.to_bits() as i32,
            self.gradient_scale.to_bits() as i32,
            self.rate.to_bits() as i32,
            self.updates[0] as i32,
            self.updates[1] as i32,
            0,
        ]
    }

    /// The inverse of [`StepScalars::words`].
    ///
    /// # Panics
    /// If there are not [`StepScalars::LENGTH`] words.
    pub fn of_words(words: &[i32]) -> StepScalars {
        assert_eq!(words.len(), StepScalars::LENGTH, "a buffer of scalars has {} words", StepScalars::LENGTH);
        let real = |place: usize| f32::from_bits(words[place] as u32);
        StepScalars {
            seed: u64::from(words[0] as u32) | u64::from(words[1] as u32) << 32,
            loss_scale: real(2),
            gradient_scale: real(3),
            rate: real(4),
            updates: [5, 6].map(|place| words[place] as u32),
        }
    }

    /// The updates of one group.
    pub fn updates_of(&self, group: ParameterGroup) -> u32 {
        self.updates[usize::from(group.0)]
    }
}

/// Source of a dropout seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed {
    /// The step's scalars.
    pub scalars: Buffer,
    /// A number for each use of the seed, so that each drops other inputs.
    pub number: u64,
}

impl Seed {
    /// The value that distinguishes this seed from others of the step.
    pub(crate) fn choice(self) -> u64 {
        self.number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// The seed, mixed from the step's.
    pub(crate) fn mixed(self, scalars: &StepScalars) -> u64 {
        scalars.seed ^ self.choice()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_back() {
        let scalars = StepScalars {
            seed: 0xfedc_ba98_7654_3210,
            loss_scale: 0.125,
            gradient_scale: -3.5e-8,
            rate: 2e-4,
            updates: [7, u32::MAX],
        };
        assert_eq!(StepScalars::of_words(&scalars.words()), scalars);
    }
}

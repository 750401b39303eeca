//! Numbers that change from step to step. They lie in a buffer of the device, so that work which was queued, or recorded once and repeated, finds the
//! newest ones there.

use crate::buffer::Buffer;

/// Which half of a model: a batch without images does not reach the vision tower, so their updates are counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Vision tower and merger.
    Vision,
    /// Decoder, embedding and head.
    Decoder,
}

/// What a buffer of scalars holds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepScalars {
    /// What dropout is drawn from.
    pub seed: u64,
    /// What losses are multiplied with before gradients are made of them.
    pub loss_scale: f32,
    /// What gradients are multiplied with before an update.
    pub gradient_scale: f32,
    /// Learning rate.
    pub rate: f32,
    /// Updates that the vision tower has had, with this one.
    pub vision_updates: u32,
    /// Updates that the decoder has had, with this one.
    pub decoder_updates: u32,
}

impl StepScalars {
    /// Words of 32 bits that they take.
    pub const LENGTH: usize = 8;

    /// As words, in the order in which kernels read them: the seed's lower and upper half, loss scale, gradient scale, rate, updates of vision and
    /// decoder.
    pub fn words(&self) -> [i32; StepScalars::LENGTH] {
        [
            self.seed as i32,
            (self.seed >> 32) as i32,
            self.loss_scale.to_bits() as i32,
            self.gradient_scale.to_bits() as i32,
            self.rate.to_bits() as i32,
            self.vision_updates as i32,
            self.decoder_updates as i32,
            0,
        ]
    }

    /// The opposite of [`StepScalars::words`].
    ///
    /// # Panics
    /// Where there are not as many words.
    pub fn of_words(words: &[i32]) -> StepScalars {
        assert_eq!(words.len(), StepScalars::LENGTH, "a buffer of scalars has {} words", StepScalars::LENGTH);
        let real = |place: usize| f32::from_bits(words[place] as u32);
        StepScalars {
            seed: u64::from(words[0] as u32) | u64::from(words[1] as u32) << 32,
            loss_scale: real(2),
            gradient_scale: real(3),
            rate: real(4),
            vision_updates: words[5] as u32,
            decoder_updates: words[6] as u32,
        }
    }

    /// The updates of one half.
    pub fn updates(&self, part: Part) -> u32 {
        match part {
            Part::Vision => self.vision_updates,
            Part::Decoder => self.decoder_updates,
        }
    }
}

/// Where dropout gets its seed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed {
    /// The step's scalars.
    pub scalars: Buffer,
    /// Whose inputs are dropped: each number gives another choice.
    pub number: u64,
}

impl Seed {
    /// What makes another seed of the step's.
    pub(crate) fn choice(self) -> u64 {
        self.number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// The seed of one choice.
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
            vision_updates: 7,
            decoder_updates: u32::MAX,
        };
        assert_eq!(StepScalars::of_words(&scalars.words()), scalars);
    }
}

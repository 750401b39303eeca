//! The update after the gradients: clipping by their norm, then AdamW.

pub(crate) mod state;

use garden_device::{AdamW, Buffer, Device};

use crate::network::parameters::Parameter;

/// Settings of AdamW.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Optimizer {
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root.
    pub epsilon: f32,
    /// Weight decay of what is decayed.
    pub decay: f32,
    /// The learning rate of the vision tower, as a multiple of the decoder's.
    pub vision_factor: f32,
    /// That of the merger.
    pub merger_factor: f32,
    /// The largest norm of all gradients together; `None` for no clipping.
    pub clip: Option<f32>,
}

/// Parameters that share a learning rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RateGroup {
    /// Decoder, embedding and head.
    Decoder,
    /// The vision tower.
    Vision,
    /// What is between the two.
    Merger,
}

impl Default for Optimizer {
    fn default() -> Optimizer {
        Optimizer {
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            decay: 0.0,
            vision_factor: 1.0,
            merger_factor: 1.0,
            clip: Some(1.0),
        }
    }
}

impl Optimizer {
    /// The learning rate of a group, as a multiple of the decoder's.
    pub(crate) fn factor(&self, group: RateGroup) -> f32 {
        match group {
            RateGroup::Decoder => 1.0,
            RateGroup::Vision => self.vision_factor,
            RateGroup::Merger => self.merger_factor,
        }
    }

    /// Updates parameters that took part. `squares` [1] has the sum of the squares of all gradients, `scalars` learning rate and numbers of updates of a group.
    pub(crate) fn update<'a>(
        &self,
        device: &mut dyn Device,
        parameters: impl Iterator<Item = &'a Parameter>,
        squares: Buffer,
        scalars: impl Fn(RateGroup) -> Buffer,
    ) {
        for parameter in parameters {
            let update = AdamW {
                value: parameter.value,
                shadow: parameter.shadow,
                gradient: parameter.gradient,
                moments: parameter.moments,
                beta1: self.beta1,
                beta2: self.beta2,
                epsilon: self.epsilon,
                decay: if parameter.is_decayed { self.decay } else { 0.0 },
                scalars: scalars(parameter.rate_group()),
                part: parameter.part,
            };
            device.adamw(&update, self.clip.map(|clip| (squares, clip)));
        }
    }
}

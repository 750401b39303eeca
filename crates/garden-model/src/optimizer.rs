//! The optimizer step: clipping by the gradient norm, then AdamW.

pub(crate) mod state;

use garden_device::{AdamW, Buffer, Device};

use crate::network::parameters::Parameter;
use crate::network::role::Part;

/// AdamW settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Optimizer {
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Epsilon, added to the square root.
    pub epsilon: f32,
    /// Weight decay, for parameters that get it.
    pub decay: f32,
    /// Learning rate of the vision tower, as a multiple of the decoder's.
    pub vision_factor: f32,
    /// Learning rate of the merger, as a multiple of the decoder's.
    pub merger_factor: f32,
    /// Maximum norm of all gradients together; `None` for no clipping.
    pub clip: Option<f32>,
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
    /// The learning rate of a part, as a multiple of the decoder's.
    pub(crate) fn factor(&self, part: Part) -> f32 {
        match part {
            Part::Decoder => 1.0,
            Part::Tower => self.vision_factor,
            Part::Merger => self.merger_factor,
        }
    }

    /// Updates parameters. `squares` `[1]` has the sum of squares of all gradients, `scalars` a part's learning rate and numbers of updates. `updates` is
    /// memory for their list, so that a step on a CPU allocates nothing.
    pub(crate) fn update<'a>(
        &self,
        device: &mut dyn Device,
        parameters: impl Iterator<Item = &'a Parameter>,
        squares: Buffer,
        scalars: impl Fn(Part) -> Buffer,
        updates: &mut Vec<AdamW>,
    ) {
        updates.clear();
        updates.extend(parameters.map(|parameter| AdamW {
            value: parameter.value,
            shadow: parameter.shadow,
            gradient: parameter.gradient,
            moments: parameter.moments,
            beta1: self.beta1,
            beta2: self.beta2,
            epsilon: self.epsilon,
            decay: if parameter.role.is_decayed() { self.decay } else { 0.0 },
            scalars: scalars(parameter.role.part),
            group: parameter.role.group(),
        }));
        device.adamw(updates, self.clip.map(|clip| (squares, clip)));
    }
}

//! The update after the gradients: clipping by their norm, then AdamW.

use garden_device::{AdamW, Buffer, Device};

use crate::parameters::Parameter;

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
    /// The largest norm of all gradients together; `None` for no clipping.
    pub clip: Option<f32>,
}

impl Default for Optimizer {
    fn default() -> Optimizer {
        Optimizer { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, decay: 0.0, clip: Some(1.0) }
    }
}

impl Optimizer {
    /// Updates parameters that took part. `squares` [1] gets the sum of the squares of their gradients.
    pub(crate) fn update<'a>(
        &self,
        device: &mut dyn Device,
        parameters: impl Iterator<Item = &'a mut Parameter>,
        squares: Buffer,
        rate: f32,
    ) {
        let taking_part: Vec<&mut Parameter> = parameters.collect();
        device.zero(squares);
        for parameter in &taking_part {
            device.add_squares(parameter.gradient, squares);
        }
        for parameter in taking_part {
            parameter.steps += 1;
            let update = AdamW {
                value: parameter.value,
                gradient: parameter.gradient,
                moments: parameter.moments,
                rate,
                beta1: self.beta1,
                beta2: self.beta2,
                epsilon: self.epsilon,
                decay: if parameter.is_decayed { self.decay } else { 0.0 },
                step: parameter.steps,
            };
            device.adamw(&update, self.clip.map(|clip| (squares, clip)));
        }
    }
}

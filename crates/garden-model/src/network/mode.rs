//! Training or inference, which decides the buffers of a model.

/// What a model is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Forward pass only: no gradients, no saved activations.
    Inference,
    /// Forward and backward pass.
    Training,
}

impl Mode {
    /// Rows of a buffer used only in the backward pass.
    pub fn back(self, rows: usize) -> usize {
        if self == Mode::Training { rows } else { 0 }
    }
}

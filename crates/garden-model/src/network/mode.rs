//! What a model is built for, which decides what has to be there.

/// What a model is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The forward pass alone: nothing has a gradient, and nothing is saved.
    Inference,
    /// Forward and backward.
    Training,
}

impl Mode {
    /// Rows of a buffer that only the backward pass uses.
    pub fn back(self, rows: usize) -> usize {
        if self == Mode::Training { rows } else { 0 }
    }
}

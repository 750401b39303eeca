//! Which passes there will be, which decides what has to be there for them.

/// The passes that a model is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Only forward: nothing has a gradient, and nothing is kept.
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

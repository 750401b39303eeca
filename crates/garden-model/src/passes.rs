//! Which passes there will be, which decides what has to be there for them.

/// The passes that a model is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passes {
    /// Only forward: nothing has a gradient, and nothing is kept.
    Forward,
    /// Forward and backward.
    Both,
}

impl Passes {
    /// Rows of a buffer that only the backward pass uses.
    pub fn back(self, rows: usize) -> usize {
        if self == Passes::Both { rows } else { 0 }
    }
}

//! Linears that share their inputs, with their LoRA adapters.
//!
//! What an adapter adds is small beside what the frozen weight gives, above all when training begins. So a device sums both in f32 and rounds once: added to a
//! rounded result, a part of it would be lost each time. The CPU multiplies part by part into f32. A device with rounded activations gets
//!
//! ```text
//! M = [ W  s B ]   [outputs + narrow, inputs + narrow]
//!     [ A   0  ]
//! ```
//!
//! with the weights of all parts stacked, B in blocks on a diagonal, and inputs and outputs with room behind each row. Then
//! t = x A^T, y = [x t] [W s B]^T, dt = dy (s B), dx = [dy dt] [W A], each one product; of a part of M, where there is no adapter or none is wanted.

use crate::buffer::{Buffer, Rows, Weight};

/// Linears that share their inputs.
#[derive(Clone, Debug)]
pub struct FusedWeight {
    /// Inputs of each.
    pub inputs: usize,
    /// In order of their outputs.
    pub parts: Vec<FusedPart>,
    /// How they lie together, on a device that joins them ([`crate::Profile::is_joined`]).
    pub joined: Option<JoinedWeight>,
}

/// One of them.
#[derive(Clone, Copy, Debug)]
pub struct FusedPart {
    /// `[outputs, inputs]`.
    pub weight: Weight,
    /// `[outputs]`.
    pub bias: Option<Buffer>,
    /// Its adapter.
    pub adapter: Option<FusedAdapter>,
}

/// The adapter of a linear.
#[derive(Clone, Copy, Debug)]
pub struct FusedAdapter {
    /// A `[rank, inputs]`.
    pub down: Weight,
    /// B `[outputs, rank]`, or s B where it is a rounded copy.
    pub up: Weight,
    /// The factor that B lacks: s, or 1.
    pub scale: f32,
}

/// Where the parts lie together.
#[derive(Clone, Copy, Debug)]
pub struct JoinedWeight {
    /// M, unless a part is packed: then M is put together before each product.
    pub matrix: Option<Buffer>,
    /// All A `[narrow, inputs]`.
    pub down: Option<Weight>,
    /// All s B `[outputs, narrow]`, zero outside of its blocks.
    pub up: Option<Weight>,
    /// All biases `[outputs]`.
    pub bias: Option<Buffer>,
}

impl FusedWeight {
    /// Outputs of all parts.
    pub fn outputs(&self) -> usize {
        self.parts.iter().map(|part| part.weight.rows).sum()
    }

    /// The adapters, in order of their parts.
    pub fn adapters(&self) -> impl Iterator<Item = &FusedAdapter> {
        self.parts.iter().filter_map(|part| part.adapter.as_ref())
    }

    /// The width of all low-rank products side by side.
    pub fn narrow(&self) -> usize {
        self.adapters().map(|adapter| adapter.down.rows).sum()
    }

    /// Distance between the rows of M.
    pub fn stride(&self) -> usize {
        self.inputs + self.narrow()
    }

    /// Values of M.
    pub fn values(&self) -> usize {
        (self.outputs() + self.narrow()).saturating_mul(self.stride())
    }
}

/// All columns of rows that lie side by side, as one.
pub(crate) fn side_by_side<'a>(rows: impl IntoIterator<Item = &'a Rows>) -> Rows {
    let joined = rows.into_iter().copied().reduce(|all, next| {
        assert!(all.is_followed_by(next), "rows side by side are needed: {all:?} and {next:?}");
        Rows { width: all.width + next.width, ..all }
    });
    joined.unwrap_or_else(|| panic!("there are no rows to lie side by side"))
}

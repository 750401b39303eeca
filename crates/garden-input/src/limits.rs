//! The largest batch of a run.

use serde::{Deserialize, Serialize};

use crate::row::Grid;

/// The largest batch of a run; buffers are sized for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Tokens of all rows.
    pub tokens: usize,
    /// Rows.
    pub rows: usize,
    /// Positions that count in the loss.
    pub targets: usize,
    /// Patches of all images.
    pub patches: usize,
    /// Frames of all images.
    pub images: usize,
    /// The longest sequence that attention runs over.
    pub longest: usize,
}

impl Limits {
    /// The limits of a batch with one row and images of these grids, computed without the pixels.
    pub fn of_row(tokens: usize, targets: usize, grids: &[Grid]) -> Limits {
        let mut limits = Limits { tokens, rows: 1, targets, longest: tokens, ..Limits::default() };
        for &[frames, height, width] in grids {
            limits.patches += frames * height * width;
            limits.images += frames;
            limits.longest = limits.longest.max(height * width);
        }
        limits
    }

    /// The limits of the two batches combined.
    pub fn plus(self, other: Limits) -> Limits {
        Limits {
            tokens: self.tokens + other.tokens,
            rows: self.rows + other.rows,
            targets: self.targets + other.targets,
            patches: self.patches + other.patches,
            images: self.images + other.images,
            longest: self.longest.max(other.longest),
        }
    }

    /// The larger of each limit.
    pub fn max(self, other: Limits) -> Limits {
        Limits {
            tokens: self.tokens.max(other.tokens),
            rows: self.rows.max(other.rows),
            targets: self.targets.max(other.targets),
            patches: self.patches.max(other.patches),
            images: self.images.max(other.images),
            longest: self.longest.max(other.longest),
        }
    }
}

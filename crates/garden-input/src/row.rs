//! Rows of tokens and their images, before packing into a batch.

/// The label of a token that does not count in the loss.
pub const IGNORED: i32 = -100;

/// Frames, rows and columns of an image, in patches.
pub type Grid = [usize; 3];

/// One row of a batch: tokens, and for each its label, predicted from the tokens before it ([`IGNORED`] for none).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// The tokens.
    pub tokens: Vec<i32>,
    /// The labels, one per token.
    pub labels: Vec<i32>,
}

/// The images of a batch, in token order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Images {
    /// `[patches, values per patch]`, image by image.
    pub pixels: Vec<f32>,
    /// The size of each image.
    pub grids: Vec<Grid>,
}

/// A conversation to answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prompt {
    /// The tokens, with one image token per merged token of each image.
    pub tokens: Vec<i32>,
    /// The images, in token order.
    pub images: Images,
}

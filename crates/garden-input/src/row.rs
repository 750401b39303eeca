//! Rows of tokens and their images, before they are laid end to end.

/// The label of a token that is not trained on.
pub const IGNORED: i32 = -100;

/// Frames, rows and columns of an image, in patches.
pub type Grid = [usize; 3];

/// One row of a batch: tokens, and for each the label that is to be predicted from the tokens before it ([`IGNORED`] for none).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// The tokens.
    pub tokens: Vec<i32>,
    /// The labels, one for each token.
    pub labels: Vec<i32>,
}

/// The images of a batch, in the order of their tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Images {
    /// `[patches, values of a patch]`, image by image.
    pub pixels: Vec<f32>,
    /// The size of each image.
    pub grids: Vec<Grid>,
}

/// A conversation to be answered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prompt {
    /// Its tokens, with as many image tokens as each image has merged patches.
    pub tokens: Vec<i32>,
    /// Its images, in the order of their tokens.
    pub images: Images,
}

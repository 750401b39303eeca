//! What a model is given: rows of a dataset, tokens, the chat template, pictures as patches.

mod dataset;
mod error;
mod image;
mod processor;
mod record;
mod template;
mod tokenizer;

pub use dataset::{Ahead, Dataset, Order, Prefetch};
pub use error::Error;
pub use image::{Grid, ImageSettings, MAX_PIXELS, Patcher, Picture, picture_size};
pub use processor::{PictureFile, Processor, Prompt};
pub use record::{Record, StoredPicture};
pub use template::{Content, Ending, Message, Part, Template};
pub use tokenizer::{SpecialTokens, Tokenizer};

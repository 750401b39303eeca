//! What a model is given: tokens, the chat template, pictures as patches.

mod error;
mod template;
mod tokenizer;

pub use error::Error;
pub use template::{Content, Ending, Message, Part, Template};
pub use tokenizer::{SpecialTokens, Tokenizer};

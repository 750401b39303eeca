//! What data and model agree on: the configuration of a model, rows of tokens with labels, images as patches, and the largest batch.
//!
//! It computes nothing, so that neither side waits for the other: tokenizer and decoders of pictures compile without the engine.

mod config;
mod error;
mod limits;
mod presets;
mod row;

pub use config::{Config, TextConfig, VisionConfig, read_end_tokens, read_max_positions};
pub use error::Error;
pub use limits::Limits;
pub use presets::{PRESETS, Preset};
pub use row::{Grid, IGNORED, Images, Prompt, Row};

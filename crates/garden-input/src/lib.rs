//! Types shared by data and model: model configuration, rows of tokens with labels, images as patches, and batch limits.
//!
//! Nothing is computed here, so the two sides compile independently: tokenizer and image decoders build without the engine.

mod config;
mod error;
mod generation;
mod limits;
mod presets;
mod row;

pub use config::{
    AttentionSpec, Config, LayerSpec, Mixer, MlpSpec, NormSpec, RotarySpec, TextConfig, VisionConfig, WindowSpec,
    read_end_tokens, read_max_positions,
};
pub use error::{Error, SUPPORTED};
pub use generation::read_other_generation;
pub use limits::Limits;
pub use presets::{PRESETS, Preset};
pub use row::{Grid, IGNORED, Images, Prompt, Row};

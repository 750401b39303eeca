//! Types shared by data and model: model configuration, rows of tokens with labels, images as patches, and batch limits.
//!
//! Nothing is computed here, so the two sides compile independently: tokenizer and image decoders build without the engine.

mod config;
mod error;
mod families;
mod family;
mod fields;
mod generation;
mod limits;
mod presets;
mod row;

pub use config::{
    AttentionSpec, Config, LayerSpec, Mixer, MlpSpec, NormSpec, RotarySpec, TextConfig, VisionConfig, WindowSpec,
    read_end_tokens, read_max_positions,
};
pub use error::Error;
pub use family::{
    BoxRules, CardRules, FAMILIES, Family, ImageRules, LayerNames, TargetRules, TensorNames, TokenRules, TowerNames,
    download_hint, supported,
};
pub use fields::Fields;
pub use generation::read_other_generation;
pub use limits::Limits;
pub use presets::Preset;
pub use row::{Grid, IGNORED, Images, Prompt, Row};

//! The blocks of vision-language models and LoRA adapters, with forward and backward passes side by side: a vision tower and a decoder, built from a `Config`
//! and named as its `Family` says.
//!
//! A [`Model`] is written against the device's operations and allocates all its buffers up front, so built on a planner it is
//! the exact plan of its memory. Batches are packed without padding: rows lie end to end and never attend to each other. A
//! [`Engine`] is the same network for inference only, with a KV cache.

mod batch;
mod checkpoint;
mod engine;
mod error;
mod model;
mod network;
mod optimizer;
mod proof;

pub use batch::Batch;
pub use checkpoint::adapter::{Adapter, read_adapter, write_adapter};
pub use checkpoint::files::unread_weights;
pub use checkpoint::full::saved_dtype;
pub use checkpoint::merge::{Merge, MergeReport, MergeSettings, PackedBase};
pub use checkpoint::nf4_checkpoint::{FourBit, packing_bytes};
pub use checkpoint::quantise::{PackReport, pack_checkpoint};
pub use checkpoint::samples::TensorSample;
pub use checkpoint::{Checkpoint, Tensor};
pub use error::Error;
pub use network::activations::GradientCheckpointing;
// Used in the interfaces of model and engine.
pub use engine::bank::BankLimits;
pub use engine::sampling::Sampling;
pub use engine::{Answer, Engine, EngineLimits, NewToken, Order, Question};
pub use garden_input::{
    Config, FAMILIES, Family, Grid, IGNORED, Images, LayerSpec, Limits, Mixer, Preset, Prompt, Row, TextConfig,
    VisionConfig, WindowSpec,
};
pub use model::{Model, StepResult, Training};
pub use network::lora::{LoraConfig, Names, Targets};
pub use network::parameters::{Parameter, Storage};
pub use network::patches::pixel_bytes;
pub use network::role::{Kind, Part, Role};
pub use optimizer::Optimizer;
pub use proof::{
    AdapterProof, Difference, MergeProof, compare_logits, plan_proof, proof_prompts, prove_adapter, prove_merge,
};

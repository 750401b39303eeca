//! Qwen2.5-VL: vision tower, decoder and low-rank adapters, forward and backward side by side.
//!
//! A [`Model`] is written against the device's operations and holds all its buffers from the start, so built on a planner it is
//! the exact plan of what it needs. Batches are packed without padding: rows lie end to end and never see each other. A
//! [`Generator`] is the same network without anything for training, and with a cache of keys and values.

mod activations;
mod adapter;
mod batch;
mod checkpoint;
mod decoder;
mod drawn;
mod error;
mod full;
mod generator;
mod head;
mod kv_cache;
mod layout;
mod linear;
mod lora;
mod mapped;
mod merge;
mod mode;
mod model;
mod names;
mod network;
mod nf4_checkpoint;
mod optimizer;
mod optimizer_state;
mod parameters;
mod pass;
mod patches;
mod proof;
mod quantise;
mod rotary;
mod safetensors_writer;
mod sampling;
mod shapes;
mod swiglu;
mod vision;
mod windows;

pub use activations::GradientCheckpointing;
pub use adapter::{Adapter, read_adapter, write_adapter};
pub use batch::Batch;
pub use checkpoint::{Checkpoint, Tensor};
pub use error::Error;
pub use full::saved_dtype;
// Its own functions take and return these.
pub use garden_input::{Config, Grid, IGNORED, Images, Limits, PRESETS, Preset, Prompt, Row, TextConfig, VisionConfig};
pub use generator::{Answer, Generator, GeneratorLimits, NewToken};
pub use lora::{LoraConfig, Targets};
pub use merge::{Merge, MergeReport, MergeSettings, PackedBase};
pub use model::{Model, StepResult, Training};
pub use nf4_checkpoint::{FourBit, packing_bytes};
pub use optimizer::Optimizer;
pub use parameters::{Parameter, Storage};
pub use proof::{
    AdapterProof, Difference, MergeProof, compare_logits, plan_proof, proof_prompts, prove_adapter, prove_merge,
};
pub use quantise::{PackReport, pack_checkpoint};
pub use sampling::Sampling;

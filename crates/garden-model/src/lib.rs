//! Qwen2.5-VL: vision tower, decoder and low-rank adapters, forward and backward side by side.
//!
//! A [`Model`] is written against the device's operations and holds all its buffers from the start, so built on a planner it is
//! the exact plan of what it needs. Batches are packed without padding: rows lie end to end and never see each other. A
//! [`Generator`] is the same network without anything for training, and with a cache of keys and values.

#![allow(clippy::too_many_arguments, reason = "an operation names every buffer and size that it uses")]

mod adapter;
mod batch;
mod cache;
mod checkpoint;
mod config;
mod decoder;
mod error;
mod four_bit;
mod full;
mod generator;
mod head;
mod linear;
mod lora;
mod merge;
mod model;
mod names;
mod network;
mod optimizer;
mod packer;
mod parameters;
mod passes;
mod patches;
mod presets;
mod proof;
mod rotary;
mod sampling;
mod shapes;
mod shard;
mod state;
mod swiglu;
mod vision;
mod windows;

pub use adapter::{Adapter, read_adapter, write_adapter};
pub use batch::{Batch, IGNORED, Images, Row};
pub use checkpoint::{Checkpoint, Tensor};
pub use config::{Config, TextConfig, VisionConfig, read_end_tokens};
pub use error::Error;
pub use four_bit::FourBit;
pub use full::saved_kind;
pub use generator::{Answer, Generator, GeneratorLimits, NewToken, Prompt};
pub use lora::{LoraConfig, Targets};
pub use merge::{Merge, MergeReport, MergeSettings, PackedBase};
pub use model::{Limits, Model, Recompute, Training};
pub use optimizer::Optimizer;
pub use packer::{PackReport, pack_checkpoint};
pub use parameters::{Parameter, Storage};
pub use presets::{PRESETS, Preset};
pub use proof::{
    AdapterProof, Difference, MergeProof, compare_logits, plan_proof, proof_prompts, prove_adapter, prove_merge,
};
pub use sampling::Sampling;

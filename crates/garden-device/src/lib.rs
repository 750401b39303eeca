//! The compute device: the small fixed set of operations for training one family of models, each with its backward pass.
//!
//! Buffers are allocated before the first step, by purpose and name, and stay until the end; operations only fill them. So a
//! [`Planner`], which only counts and computes nothing, knows to the byte what a [`Cpu`] will use. Operations run in order and are done when
//! their results are read: nothing returns to the host in between.

#![allow(clippy::too_many_arguments, reason = "an operation names every buffer and size that it uses")]

mod buffer;
pub mod cpu;
pub mod cuda;
mod device;
pub mod dynamic_8bit;
mod fused;
pub mod nf4;
mod plan;
mod planner;
mod profile;
mod scalars;
mod stages;
mod wide;

pub use buffer::{Buffer, Dtype, Nf4Blocks, Nf4Scales, Purpose, Rows, Weight};
pub use cpu::{Cpu, CpuBf16};
pub use cuda::{Card, Cuda, Unavailable};
pub use device::{
    AdamW, Attention, Device, DeviceError, Heads, Moments, OutOfMemory, OwnMemory, Reserve, Shadow, Write,
};
pub use fused::{FusedAdapter, FusedPart, FusedWeight, JoinedWeight};
pub use plan::{Block, Plan, PlannedBuffer};
pub use planner::Planner;
pub use profile::{Profile, Scratch};
pub use scalars::{GROUPS, ParameterGroup, Seed, StepScalars};
pub use stages::{OperationTime, Stage, StageTimes};

//! Reads the memory of process trees, cgroups, the machine and its GPUs into samples. Nothing else parses `/proc`.
//!
//! Everything here is read-only: starting, stopping and signalling processes is left to others.

mod families;
mod files;
mod forks;
mod gpu;
mod groups;
mod host;
mod huge;
mod libraries;
mod machine;
mod process;
mod role;
mod round;
mod sampler;
mod sharing;
mod time_budget;
mod tree;

pub use files::open_for_writing;
pub use gpu::{GpuSample, Gpus};
pub use groups::{MemoryGroup, memory_groups};
pub use host::{GroupLimit, Host, Limits, Owner, Reading, Space, space_at};
pub use machine::{MachineMemory, MachineProbe, memory_limit};
pub use process::{Identity, Memory, OwnMemory, Process, Shares};
pub use role::Role;
pub use sampler::{ProcessSample, Sampler, TreeSample};
pub use tree::{Tree, find_training, started_with};

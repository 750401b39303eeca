//! Reads the memory of process trees, control groups and the machine into samples. Nothing else parses `/proc`.
//!
//! Everything here only looks: starting, stopping and signalling processes is left to others.

mod machine;
mod process;
mod role;
mod sampler;
mod tree;

pub use machine::memory_limit;
pub use process::{Identity, Memory, Process, Shares};
pub use role::Role;
pub use sampler::{ProcessSample, Sampler, TreeSample};
pub use tree::{Tree, find_training};

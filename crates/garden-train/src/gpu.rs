//! A GPU, as `model-garden devices --format json` describes it to the processes that plan and place jobs without opening one themselves.

use serde::{Deserialize, Serialize};

/// What a look for a GPU found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "gpu")]
pub enum GpuLook {
    /// One that can be used.
    Usable(Gpu),
    /// One that cannot, or something of CUDA is missing.
    Unusable {
        /// Why.
        problem: String,
        /// What would help.
        hint: String,
    },
    /// None.
    Absent {
        /// What was looked for.
        problem: String,
        /// What would help.
        hint: String,
    },
}

/// A GPU that can be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// Its name.
    pub name: String,
    /// Compute capability, such as 90.
    pub capability: i32,
    /// The newest version of CUDA that the driver runs, such as 13000.
    pub cuda_version: i32,
    /// The library of matrix products, and where it is.
    pub matrix_library: String,
    /// All of its memory.
    pub total_bytes: u64,
    /// What others leave of it.
    pub free_bytes: u64,
    /// What the driver takes for itself as soon as the GPU is used; unknown without NVIDIA's management library.
    pub driver_bytes: Option<u64>,
    /// Whether batches go through pinned memory.
    pub is_pinned: bool,
}

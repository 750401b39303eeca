//! How the server is.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::constant;

constant!(OkWord = "ok");

/// Whether the server answers.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Health {
    status: OkWord,
    version: &'static str,
}

impl Health {
    pub fn new() -> Health {
        Health { status: OkWord, version: env!("CARGO_PKG_VERSION") }
    }
}

/// How the server is.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct System {
    pub version: &'static str,
    pub uptime_seconds: u64,
    pub memory: ServerMemory,
    /// The GPU that jobs use; null also while it is looked for.
    pub gpu: Option<Gpu>,
    /// Jobs at the same time.
    pub slots: usize,
    /// Jobs by status; those with none are left out.
    pub jobs: BTreeMap<String, u64>,
    pub files: FileSpace,
    pub allows_commands: bool,
}

/// Memory of the machine and the server.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub(crate) struct ServerMemory {
    /// Memory that all jobs together may use.
    pub limit_bytes: Option<u64>,
    /// What is free on the machine.
    pub available_bytes: Option<u64>,
    /// What the server itself holds.
    pub server_bytes: Option<u64>,
}

/// Space of all files.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub(crate) struct FileSpace {
    pub bytes: u64,
    pub quota_bytes: u64,
}

/// A GPU that can be used, as `devices --json` of our own program prints it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Gpu {
    pub gpu: Usable,
    pub name: String,
    pub capability: i32,
    pub cuda_version: i32,
    pub matrix_library: String,
    pub total_bytes: u64,
    pub free_bytes: u64,
    pub driver_bytes: Option<u64>,
    pub is_pinned: bool,
}

/// The only word that makes it a GPU of ours: another one is refused when it is read.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(crate) enum Usable {
    Usable,
}

/// An OpenAPI document.
#[derive(JsonSchema)]
#[schemars(inline)]
pub(crate) struct Document {}

//! How the server is.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::constant;

/// Whether the server does its work.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub(crate) struct Health {
    /// `failing` if one of its parts is not `ok`.
    status: Well,
    version: &'static str,
    database: HealthPart,
    queue: HealthPart,
    disk: HealthPart,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum Well {
    Ok,
    Failing,
}

/// How a part of the server does: it `fails` if it answers with an error, and `hangs` if it does not answer or has not moved for a minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HealthPart {
    Ok,
    Fails,
    Hangs,
    Full,
}

impl Health {
    pub fn of(database: HealthPart, queue: HealthPart, disk: HealthPart) -> Health {
        let is_well = [database, queue, disk].iter().all(|part| *part == HealthPart::Ok);
        let status = if is_well { Well::Ok } else { Well::Failing };
        Health { status, version: env!("CARGO_PKG_VERSION"), database, queue, disk }
    }

    pub fn is_well(&self) -> bool {
        self.status == Well::Ok
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

/// Space on the disk.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub(crate) struct FileSpace {
    /// Files, jobs with their checkpoints, models and the database.
    pub bytes: u64,
    pub quota_bytes: u64,
    /// What is free on the disk.
    pub disk_free_bytes: u64,
}

/// A GPU that can be used.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Gpu {
    gpu: Usable,
    name: String,
    /// Compute capability, such as 90.
    capability: i32,
    /// The newest version of CUDA that the driver runs, such as 13000.
    cuda_version: i32,
    matrix_library: String,
    total_bytes: u64,
    /// What others leave of it.
    free_bytes: u64,
    /// What the driver takes for itself.
    driver_bytes: Option<u64>,
    is_pinned: bool,
}

constant!(Usable = "usable");

impl From<&garden_train::Gpu> for Gpu {
    fn from(gpu: &garden_train::Gpu) -> Gpu {
        let garden_train::Gpu { name, capability, cuda_version, matrix_library, .. } = gpu.clone();
        let garden_train::Gpu { total_bytes, free_bytes, driver_bytes, is_pinned, .. } = *gpu;
        Gpu {
            gpu: Usable,
            name,
            capability,
            cuda_version,
            matrix_library,
            total_bytes,
            free_bytes,
            driver_bytes,
            is_pinned,
        }
    }
}

/// An OpenAPI document.
#[derive(JsonSchema)]
#[schemars(inline)]
pub(crate) struct Document {}

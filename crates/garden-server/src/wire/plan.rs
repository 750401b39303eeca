//! The memory that a run needs, as `plan --format json` of our own program prints it: its text goes out as it is.

#![expect(dead_code, reason = "only their schemas are used; a test compares those with real answers")]

use schemars::JsonSchema;

/// The memory that a run needs, as `plan --format json` prints it (`docs/plan.md`).
#[derive(JsonSchema)]
pub(crate) struct Plan {
    fits: bool,
    needed_bytes: u64,
    available_bytes: Option<u64>,
    available_from: Option<AvailableFrom>,
    gpu: Option<GpuPlan>,
    model: String,
    parameters: u64,
    micro_batch: MicroBatch,
    datasets: Vec<DatasetRows>,
    plan: MemoryPlan,
    advice: Option<PlanAdvice>,
    loader: Vec<LoaderChoice>,
}

/// Where the available memory is known from.
#[derive(JsonSchema)]
#[schemars(rename_all = "kebab-case")]
pub(crate) enum AvailableFrom {
    MemoryLimit,
    Free,
}

/// The same for a GPU.
#[derive(JsonSchema)]
pub(crate) struct GpuPlan {
    fits: bool,
    needed_bytes: u64,
    available_bytes: Option<u64>,
    available_from: Option<GpuAvailableFrom>,
    name: Option<String>,
}

/// Where the GPU's memory is known from: free on the one here, or as asked for.
#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
pub(crate) enum GpuAvailableFrom {
    Free,
    Vram,
}

/// The largest micro-batch.
#[derive(JsonSchema)]
pub(crate) struct MicroBatch {
    rows: u64,
    tokens: u64,
    patches: u64,
    largest_row: Option<String>,
}

/// What a dataset contributes: its stored rows, those drawn of them, those trained on, and those that come in an epoch.
#[derive(JsonSchema)]
pub(crate) struct DatasetRows {
    dataset: String,
    stored: u64,
    rows: u64,
    used: u64,
    per_epoch: u64,
    share: f64,
}

/// Every allocation of a run.
#[derive(JsonSchema)]
pub(crate) struct MemoryPlan {
    device: PlanDevice,
    lines: Vec<PlanLine>,
    device_bytes: u64,
    host_bytes: u64,
    total_bytes: u64,
    anonymous_bytes: u64,
    requirements: Requirements,
}

/// Where the run computes.
#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
pub(crate) enum PlanDevice {
    Cpu,
    Cuda,
}

/// An allocation and its purpose.
#[derive(JsonSchema)]
pub(crate) struct PlanLine {
    place: PlanPlace,
    purpose: String,
    bytes: u64,
    what: String,
    exactness: Exactness,
}

/// The memory that it is in.
#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
pub(crate) enum PlanPlace {
    Device,
    Host,
}

/// Whether a size is known or estimated.
#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
pub(crate) enum Exactness {
    Exact,
    Estimated,
}

/// Memory of machines that could run it.
#[derive(JsonSchema)]
pub(crate) struct Requirements {
    processor: Need,
    gpu: Need,
    gpu_host: Need,
}

/// Changes that save memory.
#[derive(JsonSchema)]
pub(crate) struct PlanAdvice {
    savings: Vec<Saving>,
    combination: Option<Combination>,
}

/// A change and what it saves.
#[derive(JsonSchema)]
pub(crate) struct Saving {
    settings: Vec<Setting>,
    effect: String,
    saves_bytes: u64,
}

/// The fewest changes together that make it fit.
#[derive(JsonSchema)]
pub(crate) struct Combination {
    settings: Vec<Setting>,
    changes: u64,
    total_bytes: u64,
    fits: bool,
}

/// A faster data path and what it costs.
#[derive(JsonSchema)]
pub(crate) struct LoaderChoice {
    setting: Setting,
    costs_bytes: u64,
    gains: String,
}

/// Memory that a machine needs.
#[derive(JsonSchema)]
pub(crate) struct Need {
    minimum_bytes: u64,
    recommended_bytes: u64,
}

/// A setting of the recipe and its value.
#[derive(JsonSchema)]
pub(crate) struct Setting(String, String);

//! The verdict on a trace, as `diagnose --format json` of our own program prints it: its text goes out as it is.

#![expect(dead_code, reason = "only their schemas are used; a test compares those with real answers")]

use schemars::JsonSchema;

/// The verdict on a trace, as `diagnose --format json` prints it (`docs/json.md`).
#[derive(JsonSchema)]
pub(crate) struct Diagnosis {
    #[schemars(flatten)]
    diagnosis: garden_memory::Diagnosis,
    memory: Option<MemorySpan>,
}

/// Memory at both ends of the judged samples.
#[derive(JsonSchema)]
pub(crate) struct MemorySpan {
    from: f64,
    to: f64,
    first_bytes: u64,
    last_bytes: u64,
}

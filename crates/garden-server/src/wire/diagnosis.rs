//! The verdict on a trace, as `diagnose --format json` of our own program prints it: its text goes out as it is.

#![expect(dead_code, reason = "only their schemas are used; a test compares those with real answers")]

use schemars::JsonSchema;

/// The verdict on a trace, as `diagnose --format json` prints it (`docs/json.md`).
#[derive(JsonSchema)]
pub(crate) struct Diagnosis {
    verdict: Verdict,
    mechanism: Mechanism,
    confidence: Option<f64>,
    summary: String,
    likelihood: Option<Likelihood>,
    growth: Growth,
    knee: Option<Knee>,
    memory: Option<MemorySpan>,
    level: Option<MemoryLevel>,
    forecast: Forecast,
    headroom: Option<Headroom>,
    sensitivity: Option<Sensitivity>,
    clock: Clock,
    phases: Vec<Phase>,
    causes: Vec<Cause>,
    ruled_out: Vec<RuledOut>,
    /// The cause that the advice names, by its id: only where a measurement besides the shape points to it.
    suspect: Option<String>,
    /// The command that finds the piece that keeps memory, while a training grows.
    next_command: Option<String>,
    claims: Vec<Claim>,
    evidence: Vec<Evidence>,
    advice: Vec<String>,
    processes: Vec<TracedProcess>,
    parts: Vec<TracePart>,
    series: Vec<TraceSeries>,
    stability: Option<Stability>,
    input: TraceInput,
}

/// Weights of the two explanations.
#[derive(JsonSchema)]
pub(crate) struct Likelihood {
    leak: f64,
    bounded: f64,
}

/// How fast memory grows, with the interval of the estimate.
#[derive(JsonSchema)]
pub(crate) struct Growth {
    bytes_per_step: Option<f64>,
    low: Option<f64>,
    high: Option<f64>,
    bytes_per_second: Option<f64>,
    bytes_per_example: Option<f64>,
}

/// Where growth ended.
#[derive(JsonSchema)]
pub(crate) struct Knee {
    step: Option<f64>,
    low: f64,
    high: f64,
    time_s: Option<f64>,
}

/// Memory at both ends of the judged samples.
#[derive(JsonSchema)]
pub(crate) struct MemorySpan {
    from: f64,
    to: f64,
    first_bytes: u64,
    last_bytes: u64,
}

/// The level that memory has settled at.
#[derive(JsonSchema)]
pub(crate) struct MemoryLevel {
    bytes: u64,
    low: u64,
    high: u64,
}

/// What would follow from each explanation.
#[derive(JsonSchema)]
pub(crate) struct Forecast {
    decided_by_step: Option<f64>,
    if_bounded: Option<BoundedForecast>,
    if_unbounded: Option<UnboundedForecast>,
    limit_bytes: Option<u64>,
}

/// Where memory would settle.
#[derive(JsonSchema)]
pub(crate) struct BoundedForecast {
    step: Option<f64>,
    bytes: u64,
    low: u64,
    high: u64,
}

/// When the limit would be reached.
#[derive(JsonSchema)]
pub(crate) struct UnboundedForecast {
    step: Option<f64>,
    low: f64,
    high: Option<f64>,
    time_s: Option<f64>,
}

/// Memory that is left, compared with the largest spike.
#[derive(JsonSchema)]
pub(crate) struct Headroom {
    left_bytes: i64,
    spike_bytes: u64,
    in_reach: bool,
}

/// The smallest growth that these samples would have shown.
#[derive(JsonSchema)]
pub(crate) struct Sensitivity {
    bytes_per_step: Option<f64>,
    bytes_per_second: Option<f64>,
    over: f64,
}

/// What samples are counted by.
#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
pub(crate) enum Clock {
    Step,
    Time,
    Sample,
}

/// A straight stretch of the trace.
#[derive(JsonSchema)]
pub(crate) struct Phase {
    kind: PhaseKind,
    from: f64,
    to: f64,
    start_bytes: u64,
    end_bytes: u64,
    rate: f64,
    low: f64,
    high: f64,
}

/// Its direction.
#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
pub(crate) enum PhaseKind {
    Growth,
    Plateau,
    Fall,
}

/// A possible cause, with what speaks for and against it.
#[derive(JsonSchema)]
pub(crate) struct Cause {
    id: String,
    title: String,
    score: f64,
    r#for: Vec<String>,
    against: Vec<String>,
    fix: String,
}

/// A cause that the trace rules out.
#[derive(JsonSchema)]
pub(crate) struct RuledOut {
    id: String,
    title: String,
    reason: String,
}

/// A number that the sentences state, with its 95 % interval and the stretch of the clock that it is about.
#[derive(JsonSchema)]
pub(crate) struct Claim {
    quantity: Quantified,
    value: f64,
    low: Option<f64>,
    high: Option<f64>,
    from: f64,
    to: f64,
}

/// What a claim is about.
#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
pub(crate) enum Quantified {
    Level,
    Rate,
    Change,
    End,
    RateAtMost,
    LevelIfBounded,
    LevelIfEndless,
}

/// A measured fact behind the verdict.
#[derive(JsonSchema)]
pub(crate) struct Evidence {
    text: String,
    value: Option<f64>,
    unit: Option<String>,
    from: Option<f64>,
    to: Option<f64>,
}

/// A process of the trace.
#[derive(JsonSchema)]
pub(crate) struct TracedProcess {
    pid: u64,
    parent: u64,
    name: String,
    role: String,
    command: String,
    from_bytes: u64,
    to_bytes: u64,
}

/// A part of the trace that was judged by itself.
#[derive(JsonSchema)]
pub(crate) struct TracePart {
    from: f64,
    to: f64,
    samples: u64,
    verdict: Verdict,
    mechanism: Mechanism,
    summary: String,
    decides: bool,
}

/// A series of the trace that was judged by itself.
#[derive(JsonSchema)]
pub(crate) struct TraceSeries {
    name: String,
    samples: u64,
    verdict: Verdict,
    mechanism: Mechanism,
    summary: String,
    decides: bool,
}

/// The gate that the operator asked for.
#[derive(JsonSchema)]
pub(crate) struct Stability {
    passed: bool,
    after_step: f64,
    until_step: Option<f64>,
    max_variation_bytes: Option<u64>,
    variation_bytes: Option<u64>,
    max_growth_bytes: Option<u64>,
    growth_bytes: Option<u64>,
    text: String,
}

/// How the trace was read.
#[derive(JsonSchema)]
pub(crate) struct TraceInput {
    format: String,
    samples: u64,
    column: Option<String>,
    unit: Option<String>,
    skipped: u64,
    notes: Vec<String>,
}

/// The judge's word about a trace.
#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Flat,
    Sawtooth,
    Settled,
    Growing,
    Leak,
    Insufficient,
}

/// How memory moves.
#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
pub(crate) enum Mechanism {
    None,
    WarmUp,
    EpochFill,
    CappedCache,
    RecordHigh,
    FilePages,
    CopyOnWrite,
    Sawtooth,
    Spikes,
    Staircase,
    Linear,
    LateOnset,
}

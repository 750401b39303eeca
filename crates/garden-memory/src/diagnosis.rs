//! The diagnosis: the stable contract that reports print and scripts read as JSON.
//!
//! Unknown values are `null` in JSON (`None` here), never 0 or a guess. `docs/json.md` describes each field.

use crate::series::JudgedMemory;
use serde::{Deserialize, Serialize};

/// The answer in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// No growth beyond noise after start-up; spikes that return included.
    Flat,
    /// Oscillates on a flat floor.
    Sawtooth,
    /// Grew, then stopped: bounded.
    Settled,
    /// Still growing, and the data cannot yet tell bounded from unbounded.
    Growing,
    /// Unbounded growth of the floor.
    Leak,
    /// Too little data for anything.
    Insufficient,
}

impl Verdict {
    /// The word that JSON and reports use.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Flat => "flat",
            Verdict::Sawtooth => "sawtooth",
            Verdict::Settled => "settled",
            Verdict::Growing => "growing",
            Verdict::Leak => "leak",
            Verdict::Insufficient => "insufficient",
        }
    }
}

/// How the memory moved, as far as the numbers show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Mechanism {
    /// No growth.
    None,
    /// Growth that slows down and ends early.
    WarmUp,
    /// Growth in step with first-seen examples that ends at the epoch boundary.
    EpochFill,
    /// Steady growth to a cap that is not at an epoch boundary, or with an unknown epoch.
    CappedCache,
    /// Jumps at ever rarer new records, as of a buffer that grows to the largest batch so far.
    RecordHigh,
    /// Only pages of mapped files, which the kernel reclaims when it needs memory.
    FilePages,
    /// Shared pages becoming private in forked processes.
    CopyOnWrite,
    /// Climbs and drops on a floor.
    Sawtooth,
    /// Short excursions that return.
    Spikes,
    /// The floor steps up at evaluations or other events.
    Staircase,
    /// Steady growth per step.
    Linear,
    /// Growth that began after a long flat stretch.
    LateOnset,
}

impl Mechanism {
    /// The word that JSON and reports use.
    pub fn name(self) -> &'static str {
        match self {
            Mechanism::None => "none",
            Mechanism::WarmUp => "warm_up",
            Mechanism::EpochFill => "epoch_fill",
            Mechanism::CappedCache => "capped_cache",
            Mechanism::RecordHigh => "record_high",
            Mechanism::FilePages => "file_pages",
            Mechanism::CopyOnWrite => "copy_on_write",
            Mechanism::Sawtooth => "sawtooth",
            Mechanism::Spikes => "spikes",
            Mechanism::Staircase => "staircase",
            Mechanism::Linear => "linear",
            Mechanism::LateOnset => "late_onset",
        }
    }
}

/// What the horizontal axis counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Clock {
    /// Training steps.
    Step,
    /// Seconds.
    Time,
    /// Samples, where neither steps nor times are known.
    Sample,
}

impl Clock {
    /// The unit in a sentence, singular: `step`, `second` or `sample`.
    pub fn unit(self) -> &'static str {
        match self {
            Clock::Step => "step",
            Clock::Time => "second",
            Clock::Sample => "sample",
        }
    }
}

/// The rate of the growth that decides the verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Growth {
    /// Bytes per training step; `None` without steps.
    pub bytes_per_step: Option<f64>,
    /// Lower end of the 95 % interval, in the unit of the rate that is given.
    pub low: Option<f64>,
    /// Upper end of the 95 % interval, in the unit of the rate that is given.
    pub high: Option<f64>,
    /// Bytes per second, if times are known.
    pub bytes_per_second: Option<f64>,
    /// Bytes per example, if the batch is known and the growth follows first-seen examples or every step.
    pub bytes_per_example: Option<f64>,
}

/// A place on the clock with its interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Knee {
    /// The step at which the growth ended; `None` without steps.
    pub step: Option<f64>,
    /// Earliest plausible place, in steps or else seconds.
    pub low: f64,
    /// Latest plausible place, in steps or else seconds.
    pub high: f64,
    /// Seconds since the first sample, if times are known.
    pub time_s: Option<f64>,
}

/// An amount of memory with its interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "MemoryLevel"))]
pub struct Level {
    /// The level.
    pub bytes: u64,
    /// Lower end of the 95 % interval.
    pub low: u64,
    /// Upper end of the 95 % interval.
    pub high: u64,
}

/// The forecast.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Forecast {
    /// The step by which bounded and unbounded growth can be told apart; `None` when already decided or unknowable.
    pub decided_by_step: Option<f64>,
    /// Where the growth ends if it is a bounded fill.
    pub if_bounded: Option<Plateau>,
    /// When the limit is reached if the growth never ends.
    pub if_unbounded: Option<Exhaustion>,
    /// The memory limit the forecast was made for.
    pub limit_bytes: Option<u64>,
}

/// The end of a bounded growth.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "BoundedForecast"))]
pub struct Plateau {
    /// The step of the end; `None` without steps.
    pub step: Option<f64>,
    /// The level from then on.
    pub bytes: u64,
    /// Lower end of the level's 95 % interval.
    pub low: u64,
    /// Upper end of the level's 95 % interval.
    pub high: u64,
}

/// When an unbounded growth reaches the limit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "UnboundedForecast"))]
pub struct Exhaustion {
    /// The step; `None` without steps.
    pub step: Option<f64>,
    /// Earliest plausible moment: the step or, without steps, the distance from the last sample in seconds (or samples).
    pub low: f64,
    /// Latest plausible moment, likewise; `None` if it may never come.
    pub high: Option<f64>,
    /// Seconds from the last sample on, if times are known.
    pub time_s: Option<f64>,
}

/// The room left below the memory limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Headroom {
    /// Bytes from the present level to the limit; negative if the level is above it.
    pub left_bytes: i64,
    /// The largest rise above the level so far, evaluations included.
    pub spike_bytes: u64,
    /// Whether the limit is in reach: no room is left, another such spike would exceed it, or the growth reaches it before it has
    /// lasted as long again.
    pub in_reach: bool,
}

/// The fastest growth that the samples of a reassuring verdict allow.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Sensitivity {
    /// Bytes per training step; `None` without steps.
    pub bytes_per_step: Option<f64>,
    /// Bytes per second, if times are known.
    pub bytes_per_second: Option<f64>,
    /// The length of the stretch that was examined for growth, on the diagnosis's clock.
    pub over: f64,
}

/// What a stretch of the run did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum PhaseKind {
    /// The floor rose.
    Growth,
    /// The floor stayed.
    Plateau,
    /// The floor fell.
    Fall,
}

/// A stretch of growth, plateau or fall.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Phase {
    /// What it did.
    pub kind: PhaseKind,
    /// Where it begins, on the diagnosis's clock.
    pub from: f64,
    /// Where it ends, on the diagnosis's clock.
    pub to: f64,
    /// Floor at the beginning, in bytes.
    pub start_bytes: u64,
    /// Floor at the end, in bytes.
    pub end_bytes: u64,
    /// Slope, in bytes per unit of the clock.
    pub rate: f64,
    /// Lower end of the slope's 95 % interval.
    pub low: f64,
    /// Upper end of the slope's 95 % interval.
    pub high: f64,
}

/// What a claim is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Quantified {
    /// The level of the floor, in bytes.
    Level,
    /// The mean rate at which the floor moved over the stretch, in bytes per unit of the clock.
    Rate,
    /// What the floor gained over the stretch, in bytes; negative if it fell.
    Change,
    /// The place on the clock at which a growth ended.
    End,
    /// The fastest mean growth over the stretch that the samples allow, in bytes per unit of the clock: a bound, so it has no lower end.
    RateAtMost,
    /// The level at the end of the stretch, which lies ahead, if the growth ends with the pass over the data; in bytes.
    LevelIfBounded,
    /// The level at the end of the stretch, which lies ahead, if the growth goes on; in bytes.
    LevelIfEndless,
}

/// A number that the report states, with its 95 % interval and the stretch of the clock that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Claim {
    /// What it is about.
    pub quantity: Quantified,
    /// The estimate.
    pub value: f64,
    /// Lower end of the 95 % interval; `None` where only an upper bound is known.
    pub low: Option<f64>,
    /// Upper end of the 95 % interval, or the bound; `None` where there is none.
    pub high: Option<f64>,
    /// Where the stretch begins, on the diagnosis's clock.
    pub from: f64,
    /// Where it ends.
    pub to: f64,
}

/// A statement, the number behind it, and where in the trace it was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Evidence {
    /// A sentence for people.
    pub text: String,
    /// The number the sentence rests on.
    pub value: Option<f64>,
    /// The number's unit, for example `bytes/step`.
    pub unit: Option<&'static str>,
    /// Where the samples behind it begin, on the diagnosis's clock.
    pub from: Option<f64>,
    /// Where the samples behind it end, on the diagnosis's clock.
    pub to: Option<f64>,
}

impl Evidence {
    /// A statement without a number.
    pub fn words(text: impl Into<String>) -> Self {
        Evidence { text: text.into(), value: None, unit: None, from: None, to: None }
    }

    /// A statement with its number.
    pub fn number(text: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Evidence { value: value.is_finite().then_some(value), unit: Some(unit), ..Evidence::words(text) }
    }

    /// Sets the stretch of the clock that the number comes from.
    pub fn over(mut self, from: f64, to: f64) -> Self {
        (self.from, self.to) = (Some(from), Some(to));
        self
    }
}

/// A possible cause, weighed.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Cause {
    /// A stable name, for example `decoded_images_kept`.
    pub id: &'static str,
    /// What it is, in words.
    pub title: &'static str,
    /// Its posterior probability, 0 to 1; the rest is spread over the other causes and the unknown.
    pub score: f64,
    /// Evidence for it.
    #[serde(rename = "for")]
    pub supporting: Vec<String>,
    /// Evidence against it, or evidence missing to be sure.
    pub against: Vec<String>,
    /// What to do about it.
    pub fix: &'static str,
}

/// A cause that the numbers exclude.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RuledOut {
    /// A stable name.
    pub id: &'static str,
    /// What it is, in words.
    pub title: &'static str,
    /// Why it cannot be.
    pub reason: String,
}

/// How likely each outcome is while the verdict is `growing`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Likelihood {
    /// The growth never ends.
    pub leak: f64,
    /// The growth ends by itself.
    pub bounded: f64,
}

/// One process's stretch of a trace with restarts.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "TracePart"))]
pub struct Part {
    /// First place on the clock.
    pub from: f64,
    /// Last place on the clock.
    pub to: f64,
    /// Samples judged.
    pub samples: usize,
    /// Its verdict.
    pub verdict: Verdict,
    /// Its mechanism.
    pub mechanism: Mechanism,
    /// Its answer in one sentence.
    pub summary: String,
    /// Whether the verdict of the whole run is this one's.
    pub decides: bool,
}

/// The verdict on one of several series in a file.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "TraceSeries"))]
pub struct SeriesVerdict {
    /// Its name, for example `GPU 1` or `rank 3`.
    pub name: String,
    /// Samples read.
    pub samples: usize,
    /// Its verdict.
    pub verdict: Verdict,
    /// Its mechanism.
    pub mechanism: Mechanism,
    /// Its answer in one sentence.
    pub summary: String,
    /// Whether the rest of the diagnosis is about this one.
    pub decides: bool,
}

/// How one process of the tree changed over the deciding growth, or over the whole trace if nothing grew.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "TracedProcess"))]
pub struct ProcessChange {
    /// Process id.
    pub pid: u32,
    /// The parent's process id.
    pub parent: u32,
    /// The short name.
    pub name: String,
    /// Its role in the run, for example `training` or `worker`.
    pub role: String,
    /// The command line.
    pub command: String,
    /// Its memory at the beginning, without pages shared with the process it was forked from; 0 if it started later.
    pub from_bytes: u64,
    /// Its memory at the end.
    pub to_bytes: u64,
}

impl ProcessChange {
    /// The change in bytes; negative if memory was given back.
    pub fn change(&self) -> i64 {
        let change = i128::from(self.to_bytes) - i128::from(self.from_bytes);
        i64::try_from(change).unwrap_or(if change < 0 { i64::MIN } else { i64::MAX })
    }
}

/// The outcome of `--stable-after` or `--stable-between`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Stability"))]
pub struct StabilityCheck {
    /// Whether memory kept within the bounds, and the trace reaches far enough to say so.
    pub passed: bool,
    /// The first step that counts.
    pub after_step: f64,
    /// The last one; `None` for the end of the trace.
    pub until_step: Option<f64>,
    /// The bound on the variation, if there is one.
    pub max_variation_bytes: Option<u64>,
    /// The highest level minus the lowest; `None` if there are too few samples.
    pub variation_bytes: Option<u64>,
    /// The bound on the growth, if there is one.
    pub max_growth_bytes: Option<u64>,
    /// The largest rise from one level to a later one; `None` if there are too few samples.
    pub growth_bytes: Option<u64>,
    /// The outcome in one sentence.
    pub text: String,
}

/// The input that was judged; the reader fills it in.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "TraceInput"))]
pub struct Input {
    /// The recognised format, for example `csv`.
    pub format: String,
    /// Samples read.
    pub samples: usize,
    /// The judged column or columns, by the file's own names.
    pub column: Option<String>,
    /// The memory in those columns.
    #[serde(skip)]
    pub judged: Option<JudgedMemory>,
    /// The unit of the file's memory values.
    pub unit: Option<String>,
    /// Lines or values that could not be used.
    pub skipped: usize,
    /// What was skipped and why, and other notes about the input.
    pub notes: Vec<String>,
}

/// The complete diagnosis.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Diagnosis {
    /// The answer in one word.
    pub verdict: Verdict,
    /// How the memory moved.
    pub mechanism: Mechanism,
    /// How sure the verdict is, 0 to 1; `None` when there is too little data.
    pub confidence: Option<f64>,
    /// The answer in one plain sentence.
    pub summary: String,
    /// While growing: how likely each outcome is.
    pub likelihood: Option<Likelihood>,
    /// The rate of the deciding growth.
    pub growth: Growth,
    /// Where the growth ended.
    pub knee: Option<Knee>,
    /// The present level.
    pub level: Option<Level>,
    /// The forecast.
    pub forecast: Forecast,
    /// The room left below the limit; `None` without a limit.
    pub headroom: Option<Headroom>,
    /// If the verdict reassures: the fastest growth that the samples still allow.
    pub sensitivity: Option<Sensitivity>,
    /// What the horizontal axis counts.
    pub clock: Clock,
    /// The run's stretches of growth, plateau and fall.
    pub phases: Vec<Phase>,
    /// Possible causes, likeliest first.
    pub causes: Vec<Cause>,
    /// Causes that the numbers exclude.
    pub ruled_out: Vec<RuledOut>,
    /// The cause that the advice names, by its id: only where a measurement beside the shape has earned it.
    pub suspect: Option<&'static str>,
    /// The command that finds the piece that keeps memory, where there is one.
    pub next_command: Option<String>,
    /// The numbers that the sentences state, with their intervals: sentences are made of these.
    pub claims: Vec<Claim>,
    /// What the verdict rests on.
    pub evidence: Vec<Evidence>,
    /// The advice, most important first.
    pub advice: Vec<String>,
    /// The processes of the tree, the one that grew most first; empty where only totals were recorded.
    pub processes: Vec<ProcessChange>,
    /// With restarts: the verdict on each process; the last one decides or, once the run has ended, the last with enough samples.
    pub parts: Vec<Part>,
    /// With several series in a file (ranks, GPUs, processes): the verdict on each, in the file's order.
    pub series: Vec<SeriesVerdict>,
    /// The outcome of the stability assertion, if there is one.
    pub stability: Option<StabilityCheck>,
    /// The input that was judged.
    pub input: Input,
}

impl Diagnosis {
    /// Whether the answer is bad news: a leak, a limit in reach, a bounded growth that exceeds it, or a failed assertion.
    pub fn is_bad_news(&self) -> bool {
        let over_limit = match (self.forecast.if_bounded, self.forecast.limit_bytes) {
            (Some(plateau), Some(limit)) => self.mechanism != Mechanism::FilePages && plateau.bytes > limit,
            _ => false,
        };
        self.verdict == Verdict::Leak
            || over_limit
            || self.headroom.is_some_and(|room| room.in_reach)
            || self.stability.as_ref().is_some_and(|check| !check.passed)
    }
}

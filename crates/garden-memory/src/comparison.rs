//! The result of a comparison of runs: the contract that reports print and scripts read as JSON.
//!
//! Unknown values are `null` in JSON (`None` here), never 0 or a guess. `docs/compare.md` describes each field.

use serde::Serialize;

use crate::diagnosis::{Clock, Mechanism, Verdict};

/// A value with its 95 % interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Interval {
    /// The estimate.
    pub value: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Interval {
    /// Whether both ends lie within `margin` of zero.
    pub fn is_within(&self, margin: f64) -> bool {
        -margin <= self.low && self.high <= margin
    }

    /// Whether the interval excludes zero.
    pub fn excludes_zero(&self) -> bool {
        self.low > 0.0 || self.high < 0.0
    }
}

/// What the change does to the growth of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Nothing that matters.
    None,
    /// It ends the growth.
    Ends,
    /// It slows the growth down.
    Less,
    /// It adds growth.
    More,
    /// The data allow both no effect and one that matters.
    Unclear,
    /// Too little data for anything.
    Insufficient,
}

impl Effect {
    /// The word that JSON uses.
    pub fn name(self) -> &'static str {
        match self {
            Effect::None => "none",
            Effect::Ends => "ends",
            Effect::Less => "less",
            Effect::More => "more",
            Effect::Unclear => "unclear",
            Effect::Insufficient => "insufficient",
        }
    }
}

/// What the change does to the time of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TimeEffect {
    /// Nothing that matters.
    None,
    /// Steps take longer.
    Costs,
    /// Steps take less long.
    Saves,
    /// The data allow both no effect and one that matters.
    Unclear,
}

/// Where the intervals come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// From the noise within one run of each kind; the spread between runs is not included.
    Within,
    /// From the differences between runs of the same kind.
    Replicates,
}

/// Growth before and after the change, in bytes per unit of the clock.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GrowthContrast {
    /// The effect in words, such as `no effect on growth (-0.30 to +0.40 MiB per step)`.
    pub text: String,
    /// Before the change.
    pub before: Interval,
    /// After the change.
    pub after: Interval,
    /// After minus before.
    pub difference: Interval,
    /// After divided by before; `None` unless memory surely grew before.
    pub ratio: Option<Interval>,
    /// A difference within this margin is not an effect.
    pub matters: f64,
}

/// Step time before and after the change, in seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimeContrast {
    /// What the change does to the step time.
    pub effect: TimeEffect,
    /// The effect in words, such as `costs 3.1 % of step time (2.5 to 3.7)`.
    pub text: String,
    /// Mean before the change.
    pub before: Interval,
    /// Mean after the change.
    pub after: Interval,
    /// After divided by before.
    pub ratio: Interval,
    /// The typical (median) step before and after, which rare long steps do not move.
    pub typical: (f64, f64),
}

/// A memory level before and after the change, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LevelContrast {
    /// Before the change; the mean of several runs.
    pub before: f64,
    /// After the change.
    pub after: f64,
    /// After minus before.
    pub difference: f64,
    /// Lower end of the difference's 95 % interval; `None` unless each kind has several runs.
    pub low: Option<f64>,
    /// Upper end.
    pub high: Option<f64>,
}

/// A compared run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedRun {
    /// Its name.
    pub name: String,
    /// The judge's verdict on the whole run.
    pub verdict: Verdict,
    /// How its memory moved.
    pub mechanism: Mechanism,
    /// Samples of the compared process.
    pub samples: usize,
    /// Its growth over the compared stretch, in bytes per unit of the clock, with an interval from its own noise.
    pub growth: Option<Interval>,
    /// Its mean seconds per step, with an interval from its own noise.
    pub step_time: Option<Interval>,
    /// Its highest level within the stretch that all runs cover, in bytes.
    pub highest: Option<f64>,
}

/// A run's memory: places on the clock and bytes.
pub type Points = Vec<(f64, f64)>;

/// Whether one run, or kind of run, grows differently from another, and what its steps cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// What the change does to the growth of memory.
    pub effect: Effect,
    /// Whether memory needs more after the change: it grows more, and does not stand lower by more than that adds in as long again; or it
    /// grows as before and stands higher, at its peak and at its end.
    pub needs_more: bool,
    /// The answer in one sentence.
    pub summary: String,
    /// The advice about the change, in a few words.
    pub advice: String,
    /// The clock along which growth is measured.
    pub clock: Clock,
    /// Where the stretch begins over which growth was compared.
    pub from: Option<f64>,
    /// Where it ends.
    pub to: Option<f64>,
    /// Where the intervals come from.
    pub basis: Basis,
    /// Growth before and after the change.
    pub growth: Option<GrowthContrast>,
    /// Step time before and after the change; `None` without steps or times.
    pub step_time: Option<TimeContrast>,
    /// The highest level before and after the change.
    pub highest: Option<LevelContrast>,
    /// The level at the end of the stretch that all runs cover, before and after the change.
    pub last: Option<LevelContrast>,
    /// The runs before the change.
    pub before: Vec<ComparedRun>,
    /// The runs after it.
    pub after: Vec<ComparedRun>,
    /// Notes for the reader on how the runs were compared.
    pub notes: Vec<String>,
    /// The memory of each run before and after the change, aligned, for charts.
    #[serde(skip)]
    pub curves: [Vec<Points>; 2],
}

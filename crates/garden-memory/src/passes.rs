//! What is known about passes over the data, and the second rule for a leak: the one for data without passes.
//!
//! In training data every example comes again, and whether memory grows on examples seen before tells a leak from a cache
//! (`leak.rs`). A server, a stream or a plain service has no passes. There a straight line is a leak once it has lasted long
//! enough, has added a material share of the limit, and shows no sign of slowing down.

use crate::leak::comes_in_few_jumps;
use crate::record_highs::thins_out;
use crate::shape::Shape;
use crate::stats::median;
use crate::sublinear::law_explains;
use crate::trend::{Bend, Trend, line_over_power, line_over_step};

/// What is known about passes over the data.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Passes {
    /// Examples repeat after this many steps.
    Every(f64),
    /// They may repeat, but nobody knows when: a straight line may be the beginning of a longer fill.
    Unknown,
    /// There are none.
    None(Endless),
}

impl Passes {
    /// The length of a pass on the clock.
    pub(crate) fn length(self) -> Option<f64> {
        match self {
            Passes::Every(steps) => Some(steps),
            _ => None,
        }
    }
}

/// What makes growth without passes a leak.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Endless {
    /// It has lasted this long, on the clock.
    pub lasts: f64,
    /// The memory limit in bytes, if one is known.
    pub limit: Option<f64>,
}

/// Growth that adds this share of the limit is material.
const SHARE_OF_LIMIT: f64 = 0.1;
/// Without a limit: this share of the present level.
const SHARE_OF_LEVEL: f64 = 0.25;
/// The growth must have risen in each of this many parts.
const PARTS: usize = 8;
/// One-sided normal quantiles for "it rises" and for "it slows down".
const SURE: f64 = 3.0;
const SLOWS: f64 = 1.64;
/// The rate may not be significantly below this share of its earlier rate.
const UNDIMINISHED: f64 = 0.9;
/// A power of the time that is easily taken for a line, and the log-likelihood ratio by which it may fit better.
const NEARLY_STRAIGHT: (f64, f64) = (0.75, 0.5);

impl Endless {
    /// Whether growth since `start` is a leak.
    pub(crate) fn holds(&self, shape: &Shape, start: f64) -> bool {
        let now = shape.last();
        let floor = shape.floor_between(start, now);
        let (Some(trend), Some(bend)) = (Trend::of(floor), Bend::of(floor)) else { return false };
        let material = self.limit.map_or(SHARE_OF_LEVEL * shape.present_level(), |limit| SHARE_OF_LIMIT * limit);
        now - start >= self.lasts
            && trend.rise() >= material.max(shape.material_leak(start))
            && trend.rises(SURE)
            && bend.may_keep(UNDIMINISHED, SLOWS)
            && rises_in_each_part(shape, start)
            && line_over_step(floor) > 0.0
            && !comes_in_few_jumps(shape, start)
            && !thins_out(shape, start)
            && line_over_power(floor, start, NEARLY_STRAIGHT.0) >= -NEARLY_STRAIGHT.1
            && !law_explains(floor, start)
    }
}

/// Whether each part of the growth stands above the one before.
fn rises_in_each_part(shape: &Shape, start: f64) -> bool {
    let length = (shape.last() - start) / PARTS as f64;
    let level = |part: usize| {
        let from = start + part as f64 * length;
        let values: Vec<f64> = shape.floor_between(from, from + length).iter().map(|low| low.y).collect();
        (!values.is_empty()).then(|| median(&values))
    };
    let levels: Option<Vec<f64>> = (0..PARTS).map(level).collect();
    levels.is_some_and(|levels| levels.windows(2).all(|pair| pair[1] > pair[0]))
}

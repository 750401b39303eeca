//! What is known about passes over the data, and the second rule for a leak: the one for data without passes.
//!
//! In training data every example comes again, and whether memory grows on examples seen before tells a leak from a cache
//! (`leak.rs`). A server, a stream or a plain service has no passes. There a straight line is a leak once it has lasted long
//! enough, has added a material share of the limit, and shows no sign of slowing down.

use crate::leak::{
    EVIDENT, SLOWS, UNDIMINISHED, comes_in_few_jumps, each_above_the_last, is_evident, levels, line_over_a_power,
};
use crate::record_highs::thins_out;
use crate::shape::Shape;
use crate::sublinear::law_explains;
use crate::trend::{Bend, Trend, line_over_step};

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
/// One-sided normal quantile for "it rises": 1 in 740.
const SURE: f64 = 3.0;

impl Endless {
    /// Whether growth since `start` is a leak.
    pub(crate) fn holds(&self, shape: &Shape, start: f64) -> bool {
        let now = shape.last();
        let floor = shape.floor_between(start, now);
        let (Some(trend), Some(bend)) = (Trend::of(floor), Bend::of(floor)) else { return false };
        let material = self.limit.map_or(SHARE_OF_LEVEL * shape.present_level(), |limit| SHARE_OF_LIMIT * limit);
        now - start >= self.lasts
            && trend.rise() >= material.max(shape.least_leak())
            && self.stands_out(shape, &trend, start)
            && trend.rises(SURE)
            && bend.may_keep(UNDIMINISHED, SLOWS)
            && rises_in_each_part(shape, start)
            && line_over_step(floor) > 0.0
            && !comes_in_few_jumps(shape, start)
            && !thins_out(shape, start)
            && !law_explains(floor, start)
    }

    /// Whether the growth stands out from noise; what has lasted long enough counts as much as two passes.
    fn stands_out(&self, shape: &Shape, trend: &Trend, start: f64) -> bool {
        let in_noise = trend.rise() / shape.leak_noise(start);
        let passes = 2.0 * (shape.last() - start) / self.lasts;
        is_evident(in_noise, passes, line_over_a_power(shape, start, start), EVIDENT)
    }
}

/// Whether each part of the growth stands above the one before.
fn rises_in_each_part(shape: &Shape, start: f64) -> bool {
    let length = (shape.last() - start) / PARTS as f64;
    levels(shape, start, length, PARTS).is_some_and(|levels| each_above_the_last(&levels))
}

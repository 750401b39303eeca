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
/// Memory that has doubled is material beside any limit: the machine's may be a hundred times what a service should need.
const DOUBLED: f64 = 0.5;
/// The growth must have risen in each of this many parts.
const PARTS: usize = 8;
/// One-sided normal quantile for "it rises": 1 in 740.
const SURE: f64 = 3.0;

/// What growth without passes lacks to be called a leak.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lacks {
    /// It has to go on until this place on the clock.
    Time(f64),
    /// It has to add this many bytes in all.
    Rise(f64),
    /// It is too uneven, or slows down.
    Evenness,
}

impl Endless {
    /// What growth since `start` lacks, which is no leak so far.
    pub(crate) fn lacks(&self, shape: &Shape, start: f64) -> Lacks {
        match () {
            () if shape.last() - start < self.lasts => Lacks::Time(start + self.lasts),
            () if risen(shape, start) < self.material(shape) => Lacks::Rise(self.material(shape)),
            () => Lacks::Evenness,
        }
    }

    /// Whether growth since `start` is a leak.
    pub(crate) fn holds(&self, shape: &Shape, start: f64) -> bool {
        let now = shape.last();
        let floor = shape.floor_between(start, now);
        let (Some(trend), Some(bend)) = (Trend::of(floor), Bend::of(floor)) else { return false };
        now - start >= self.lasts
            && risen(shape, start) >= self.material(shape)
            && self.stands_out(shape, &trend, start)
            && trend.rises(SURE)
            && bend.may_keep(UNDIMINISHED, SLOWS)
            && rises_in_each_part(shape, start)
            && line_over_step(floor) > 0.0
            && !comes_in_few_jumps(shape, start)
            && !thins_out(shape, start)
            && !law_explains(floor, start)
    }

    /// Whether growth that becomes ever faster is a leak: what is kept makes work that keeps more. No line fits all of it, and its latest
    /// stretch is short; so it has to rise materially in each part of the time that a leak must have lasted, each time by no less than before.
    pub(crate) fn holds_faster(&self, shape: &Shape, start: f64) -> bool {
        let from = (shape.last() - self.lasts).min(start);
        if from < shape.first() || risen(shape, from) < self.material(shape) {
            return false;
        }
        let floor = shape.floor_between(from, shape.last());
        let Some(levels) = levels(shape, from, (shape.last() - from) / PARTS as f64, PARTS) else { return false };
        let rises: Vec<f64> = levels.windows(2).map(|pair| pair[1].y - pair[0].y).collect();
        let noise = shape.leak_noise(from);
        let half = rises.len() / 2;
        let (earlier, later) = (rises[..half].iter().sum::<f64>(), rises[rises.len() - half..].iter().sum::<f64>());
        each_above_the_last(&levels)
            && earlier >= shape.material_without_noise().max(noise)
            && rises.iter().zip(&rises[1..]).all(|(before, after)| *after >= *before - noise)
            && later >= earlier + noise
            && !comes_in_few_jumps(shape, from)
            && line_over_step(floor) > 0.0
    }

    /// The least rise that is a leak.
    pub(crate) fn material(&self, shape: &Shape) -> f64 {
        let level = shape.present_level();
        let share = self.limit.map_or(SHARE_OF_LEVEL * level, |limit| (SHARE_OF_LIMIT * limit).min(DOUBLED * level));
        share.max(shape.least_leak())
    }

    /// Whether the growth stands out from noise; what has lasted long enough counts as much as two passes.
    fn stands_out(&self, shape: &Shape, trend: &Trend, start: f64) -> bool {
        let in_noise = trend.rise() / shape.leak_noise(start);
        let passes = 2.0 * (shape.last() - start) / self.lasts;
        is_evident(in_noise, passes, line_over_a_power(shape, start, start), EVIDENT)
    }
}

/// What the floor has gained since a place: by a line, or between its ends where it is none.
fn risen(shape: &Shape, start: f64) -> f64 {
    let floor = shape.floor_between(start, shape.last());
    let between_ends = floor.first().map_or(0.0, |first| shape.present_level() - first.y);
    Trend::of(floor).map_or(between_ends, |trend| trend.rise().max(between_ends))
}

/// Whether each part of the growth stands above the one before.
fn rises_in_each_part(shape: &Shape, start: f64) -> bool {
    let length = (shape.last() - start) / PARTS as f64;
    levels(shape, start, length, PARTS).is_some_and(|levels| each_above_the_last(&levels))
}

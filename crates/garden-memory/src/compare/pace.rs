//! Step times: their mean, since a cost at every tenth step is a cost, in blocks, since times are correlated.
//!
//! A median or a trimmed mean would leave out exactly the cost of a rare collection or a periodic restart. Other pauses
//! are then noise, which widens the interval. Steps with an evaluation or a checkpoint in them are left out.

use std::ops::Range;

use super::contrast::Estimate;
use crate::comparison::Interval;
use crate::series::Timeline;
use crate::stats::median;
use crate::trace::{Activity, EventKind, Trace};
use crate::trend::noise_of;

/// Blocks of steps.
const BLOCKS: usize = 32;
/// Fewest blocks for an interval.
const FEWEST_BLOCKS: usize = 5;

/// Time per step over one run.
#[derive(Clone, Debug, Default)]
pub(super) struct Pace {
    /// Stretches between samples at different steps: where they begin and end on the clock, and the seconds they took.
    strides: Vec<(f64, f64, f64)>,
}

impl Pace {
    pub(super) fn of(trace: &Trace, part: Range<usize>, timeline: &Timeline) -> Pace {
        let mut strides = Vec::new();
        let mut before: Option<(usize, f64, f64)> = None;
        for index in part {
            let (Some(place), Some(time)) = (timeline.place(index), trace.time_s(index)) else { continue };
            match before {
                // A step lasts from its first sample to the first sample of the next one.
                Some((_, last, _)) if place <= last => continue,
                Some((since, last, began)) if time >= began && is_training(trace, since, index) => {
                    strides.push((last, place, time - began));
                }
                _ => {}
            }
            before = Some((index, place, time));
        }
        Pace { strides }
    }

    pub(super) fn shift(&mut self, by: f64) {
        self.strides.iter_mut().for_each(|stride| (stride.0, stride.1) = (stride.0 + by, stride.1 + by));
    }

    fn within(&self, from: f64, to: f64) -> &[(f64, f64, f64)] {
        let start = self.strides.partition_point(|stride| stride.0 < from);
        let end = self.strides.partition_point(|stride| stride.1 <= to);
        &self.strides[start.min(end)..end]
    }

    /// The logarithm of the mean seconds per step within a stretch, so that a difference of two is a ratio.
    pub(super) fn between(&self, from: f64, to: f64) -> Option<Estimate> {
        let strides = self.within(from, to);
        let blocks = strides.len().min(BLOCKS);
        if blocks < FEWEST_BLOCKS {
            return None;
        }
        let mean = |strides: &[(f64, f64, f64)]| {
            let (steps, seconds) =
                strides.iter().fold((0.0, 0.0), |(steps, seconds), s| (steps + s.1 - s.0, seconds + s.2));
            seconds / steps
        };
        let block = |n: usize| mean(&strides[n * strides.len() / blocks..(n + 1) * strides.len() / blocks]);
        let whole = mean(strides);
        if whole <= 0.0 || !whole.is_finite() {
            return None;
        }
        let residuals: Vec<f64> = (0..blocks).map(|n| block(n) / whole - 1.0).collect();
        let (variance, degrees) = noise_of(&residuals, 1.0);
        Some(Estimate { value: whole.ln(), error: (variance / blocks as f64).sqrt(), degrees })
    }

    /// The median seconds per step within a stretch.
    pub(super) fn typical(&self, from: f64, to: f64) -> Option<f64> {
        let paces: Vec<f64> = self.within(from, to).iter().map(|stride| stride.2 / (stride.1 - stride.0)).collect();
        (!paces.is_empty()).then(|| median(&paces))
    }
}

/// Whether nothing but training happened between two samples.
fn is_training(trace: &Trace, from: usize, to: usize) -> bool {
    let is_pause = |kind| matches!(kind, EventKind::EvalStart | EventKind::EvalEnd | EventKind::Checkpoint);
    let in_samples = (from..=to).all(|index| trace.activity(index) == Activity::Train);
    in_samples
        && !trace.events.iter().any(|event| is_pause(event.kind) && (from + 1..=to).contains(&event.before_sample))
}

/// The estimate of a logarithm, turned back into seconds or a ratio.
pub(super) fn seconds(logarithm: Estimate) -> Interval {
    let Interval { value, low, high } = logarithm.interval();
    Interval { value: value.exp(), low: low.exp(), high: high.exp() }
}

//! Axes: the range of values shown by the rows of a chart, with round numbers at evenly spaced rows.
//!
//! The vertical scale is chosen so that its labels fall exactly on rows: among round steps and a few row distances, the
//! pair that covers the values with the least wasted space.

use garden_memory::{Clock, GIB, KIB, MIB, TIB};

use crate::format::{ClockWords, TimeUnit};

/// Round steps between labels, within a power of ten, and how much wasted space a rounder one is worth.
const ROUND: [(f64, f64); 9] =
    [(1.0, 1.0), (1.25, 1.15), (1.5, 1.1), (2.0, 1.0), (2.5, 1.05), (3.0, 1.1), (4.0, 1.05), (5.0, 1.0), (8.0, 1.05)];
/// Wasted space that labels without decimals are worth.
const WHOLE: f64 = 1.25;
/// More labels than this are a crowd, and the wasted space that fewer are worth.
const CROWD: (usize, f64) = (7, 1.2);
/// Seconds between labels that read well on a clock.
const ROUND_SECONDS: [f64; 17] = [
    1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0, 10800.0, 21600.0,
    43200.0,
];
/// The vertical scale of a chart: values at the centres of its rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    /// The value at the centre of the bottom row.
    pub bottom: f64,
    /// The difference between two rows.
    pub per_row: f64,
    /// Labels, by row from the bottom.
    pub labels: Vec<(usize, String)>,
}

/// The kind of numbers on a vertical axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Bytes, labelled in one binary unit.
    Memory,
    /// Counts.
    Count,
}

impl Scale {
    /// A scale of `rows` rows that shows everything from `low` to `high`.
    pub fn fit(low: f64, high: f64, rows: usize, measure: Measure) -> Scale {
        let (factor, unit) = unit_of(high, measure);
        let least_step = if measure == Measure::Count { 1.0 } else { 0.0 };
        let (low, high) = (low / factor, high / factor);
        let gaps = rows.saturating_sub(1).max(1);
        let (bottom, step, distance) = round_step(low, high, gaps, least_step);
        let digits = decimals(step);
        let label = |n: usize| match bottom + n as f64 * step {
            0.0 => (n * distance, "0".to_string()),
            value => (n * distance, format!("{value:.digits$}{unit}")),
        };
        let per_row = step / distance as f64;
        Scale { bottom: bottom * factor, per_row: per_row * factor, labels: (0..=gaps / distance).map(label).collect() }
    }
}

/// The unit in which an axis up to `high` is labelled.
fn unit_of(high: f64, measure: Measure) -> (f64, &'static str) {
    let binary = [(TIB, " TiB"), (GIB, " GiB"), (MIB, " MiB"), (KIB, " KiB")];
    let decimal = [(1_000_000_000, " G"), (1_000_000, " M")];
    let (units, least): (&[(u64, &str)], _) = match measure {
        Measure::Memory => (&binary, " B"),
        Measure::Count => (&decimal, ""),
    };
    let fitting = units.iter().find(|unit| high >= unit.0 as f64);
    fitting.map_or((1.0, least), |&(factor, name)| (factor as f64, name))
}

/// The bottom value, the step between labels and the rows between them that waste the least of `gaps` rows.
fn round_step(low: f64, high: f64, gaps: usize, least_step: f64) -> (f64, f64, usize) {
    let distances: Vec<usize> = match gaps {
        0..=6 => vec![2, 4],
        7..=17 => vec![3, 4, 2],
        // Labels of a tall chart stand further apart.
        _ => (gaps / 9..=(gaps / 6).max(5)).collect(),
    };
    let magnitude = ((high - low) / gaps as f64).log10().floor() as i32;
    let mut best = (low, (high - low).max(f64::MIN_POSITIVE), gaps);
    let mut best_cost = f64::INFINITY;
    for distance in distances {
        for (step, weight) in (0..3).flat_map(|up| ROUND.map(|(n, weight)| (n * 10f64.powi(magnitude + up), weight))) {
            let bottom = (low / step).floor() * step;
            let span = gaps as f64 / distance as f64 * step;
            let fits = bottom + span >= high - 1e-9 * span && step >= least_step;
            let whole = if (step - step.round()).abs() < 1e-9 * step { 1.0 } else { WHOLE };
            let crowd = if gaps / distance >= CROWD.0 { CROWD.1 } else { 1.0 };
            let cost = span * weight * whole * crowd;
            if fits && cost < best_cost * 0.999 {
                (best, best_cost) = ((bottom, step, distance), cost);
            }
        }
    }
    best
}

/// The decimals that a multiple of `step` needs.
fn decimals(step: f64) -> usize {
    let exact = |digits: &usize| {
        let scaled = step * 10f64.powi(*digits as i32);
        (scaled - scaled.round()).abs() < 1e-6 * scaled
    };
    (0..4).find(exact).unwrap_or(4)
}

/// The labels of a horizontal axis, `most` of them at the most: places on the clock and their texts.
pub fn clock_labels(words: ClockWords, from: f64, to: f64, most: usize) -> Vec<(f64, String)> {
    let least = (to - from) / most.max(1) as f64;
    let step = match words.clock {
        Clock::Time => round_seconds(least),
        _ => round_above(least).max(1.0),
    };
    let first = ((from - words.zero) / step - 1e-9).ceil();
    (0..=most)
        .map(|n| words.zero + (first + n as f64) * step)
        .take_while(|&x| x <= to + 1e-9 * step)
        .map(|x| (x, words.bare(x)))
        .collect()
}

/// The format of the labels of a time axis; `None` on other clocks.
pub(crate) fn time_format(words: ClockWords) -> Option<&'static str> {
    (words.clock == Clock::Time).then_some(match words.unit {
        TimeUnit::Seconds => "seconds",
        TimeUnit::Minutes => "m:ss",
        TimeUnit::Hours => "h:mm",
        TimeUnit::Days => "days",
    })
}

fn round_seconds(least: f64) -> f64 {
    let listed = ROUND_SECONDS.into_iter().find(|&step| step >= least && least > 0.5);
    listed.unwrap_or_else(|| {
        let days = 86400.0;
        if least > 0.5 { round_above(least / days).max(1.0) * days } else { round_above(least) }
    })
}

/// The least of 1, 2 and 5 times a power of ten that is not below `least`.
fn round_above(least: f64) -> f64 {
    if !(least.is_finite() && least > 0.0) {
        return 1.0;
    }
    let power = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|round| round * power).into_iter().find(|&step| step >= least * 0.999).unwrap_or(least)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(low: f64, high: f64, rows: usize, measure: Measure) -> String {
        let scale = Scale::fit(low, high, rows, measure);
        scale.labels.iter().map(|(row, label)| format!("{row}={label}")).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn labels_are_round_and_on_rows() {
        let gib = GIB as f64;
        assert_eq!(labels(0.0, 17.3 * gib, 14, Measure::Memory), "0=0, 3=4 GiB, 6=8 GiB, 9=12 GiB, 12=16 GiB");
        assert_eq!(
            labels(16.9 * gib, 17.0 * gib, 14, Measure::Memory),
            "0=16.88 GiB, 2=16.90 GiB, 4=16.92 GiB, 6=16.94 GiB, 8=16.96 GiB, 10=16.98 GiB, 12=17.00 GiB"
        );
        assert_eq!(labels(6529.0, 7070.0, 5, Measure::Count), "0=6400, 2=6800, 4=7200");
        assert_eq!(labels(0.0, 1.0, 5, Measure::Count), "0=0, 4=1");
    }

    #[test]
    fn times_are_labelled_in_hours_and_minutes() {
        let words = ClockWords { clock: Clock::Time, zero: 1e9, unit: TimeUnit::Hours };
        let labels: Vec<String> = clock_labels(words, 1e9, 1e9 + 9000.0, 9).into_iter().map(|label| label.1).collect();
        assert_eq!(labels.join(" "), "0:00 0:20 0:40 1:00 1:20 1:40 2:00 2:20");
    }
}

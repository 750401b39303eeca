//! The forecast and the phases of a diagnosis as parts of a chart.

use garden_memory::{Clock, PhaseKind};

use crate::Report;
use crate::chart::{Band, Mood, Outlook};
use crate::format::phase_name;
use crate::plot::Plot;

/// Most that is added to the right of the axis to show a growth reaching the limit, as a share of the recorded range.
const MOST_AHEAD: f64 = 2.0;

/// The end of an axis that shows the limit being reached; never before `plot.to`.
pub(crate) fn end_of_axis(report: &Report, plot: &Plot) -> f64 {
    let end = report.diagnosis.forecast.if_unbounded;
    let at = match report.diagnosis.clock {
        Clock::Step => end.and_then(|end| end.step),
        Clock::Time => end.and_then(|end| Some(end.time_s? + plot.last())),
        Clock::Sample => None,
    };
    let last = plot.last();
    let furthest = last + MOST_AHEAD * (last - plot.from);
    at.filter(|&at| at > last && at < furthest && plot.to > last)
        .map_or(plot.to, |at| plot.to.max(at + 0.04 * (at - plot.from)))
}

/// The possible continuations, each with its interval: unbounded, and to a plateau.
pub(crate) fn outlooks(report: &Report, plot: &Plot, end: f64) -> Vec<Outlook> {
    let lines = plot.forecasts(end);
    let zero = plot.words.zero;
    let mut names = ["if it never ends", "if it ends by itself"].into_iter();
    let outlook = |line: &Vec<(f64, f64)>| {
        let name = names.next().unwrap_or_default();
        let is_bounded = line.len() > 2;
        let point = |index: usize, &(x, y): &(f64, f64)| {
            let (low, high) = match (index, is_bounded) {
                (0, _) => (y, y),
                (_, true) => plateau(report).unwrap_or((y, y)),
                (_, false) => growth(report, line[0], x).unwrap_or((y, y)),
            };
            (x - zero, low.min(y), y, high.max(y))
        };
        Outlook { name: name.into(), points: line.iter().enumerate().map(|(index, at)| point(index, at)).collect() }
    };
    lines.iter().map(outlook).collect()
}

fn plateau(report: &Report) -> Option<(f64, f64)> {
    report.diagnosis.forecast.if_bounded.map(|plateau| (plateau.low as f64, plateau.high as f64))
}

/// The range of the growth at a place, given the interval of its rate.
fn growth(report: &Report, start: (f64, f64), x: f64) -> Option<(f64, f64)> {
    let growth = &report.diagnosis.growth;
    // The interval is of the rate per step where there is one.
    let is_of_the_clock = match report.diagnosis.clock {
        Clock::Step => growth.bytes_per_step.is_some(),
        Clock::Time => growth.bytes_per_step.is_none(),
        Clock::Sample => false,
    };
    let (low, high) = growth.low.zip(growth.high).filter(|_| is_of_the_clock)?;
    let at = |rate: f64| start.1 + rate * (x - start.0);
    (low.is_finite() && high.is_finite()).then(|| (at(low).max(0.0), at(high)))
}

/// The stretches of growth, plateau and fall.
pub(crate) fn phases(report: &Report, zero: f64) -> Vec<Band> {
    let band = |phase: &garden_memory::Phase| {
        let mood = match phase.kind {
            PhaseKind::Growth => Mood::Rising,
            PhaseKind::Plateau => Mood::Calm,
            PhaseKind::Fall => Mood::Falling,
        };
        Band { name: phase_name(report.diagnosis, phase).into(), mood, from: phase.from - zero, to: phase.to - zero }
    };
    report.diagnosis.phases.iter().map(band).collect()
}

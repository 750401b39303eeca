//! A sign that several series were mixed into one: each moment has the same number of samples, at levels far apart.
//!
//! Nothing tells which process wrote which sample, so they are not separated; the report says what it looks like.

use std::ops::Range;

use garden_memory::{Quantity, Trace};

/// Moments that must agree.
const FEWEST_MOMENTS: usize = 8;
/// The share of moments that must agree.
const MOST_MOMENTS: f64 = 0.9;
/// How far apart two levels are at least; an evaluation within a step rarely adds as much, again and again.
const APART: f64 = 1.25;

/// The note on a trace whose moments have several samples each, at separate levels.
pub(crate) fn note(trace: &Trace) -> Option<String> {
    // A stamp above several numbers dates the first of them.
    let placed = (0..trace.len()).filter(|&index| trace.step(index).or(trace.time_s(index)).is_some()).count();
    if 2 * placed <= trace.len() {
        let values: Vec<f64> = (0..trace.len()).map(|index| level(trace, index) as f64).collect();
        return turns(&values).map(|count| {
            format!(
                "the samples take turns between {count} levels, as if {count} series were mixed in this file: \
                 pass one of them, or record `pid` and time, too"
            )
        });
    }
    // Nearly all files have a moment for each sample, and nothing is kept of those.
    let total = Moments { trace, from: 0 }.count();
    let middle = Moments { trace, from: 0 }.nth(total / 2)?;
    let count = middle.len();
    if count < 2 {
        return None;
    }
    let order = order(trace, &middle);
    let is_same = |moment: &Range<usize>| moment.len() == count && self::order(trace, moment) == order;
    let alike = Moments { trace, from: 0 }.filter(is_same).filter(|moment| has_levels(trace, moment)).count();
    let is_mixed = alike >= FEWEST_MOMENTS && alike as f64 >= MOST_MOMENTS * total as f64;
    is_mixed.then(|| {
        format!(
            "{count} samples share each step or time stamp, at levels far apart, as if {count} series were mixed in this file: \
             pass one of them, or add a column such as `rank` or `pid`"
        )
    })
}

/// Fewest samples whose turns are told from chance, and most series that are looked for.
const FEWEST_TURNS: usize = 8;
const MOST_TURNS: usize = 4;
/// Series take turns if samples are this much nearer to the one of the turn before than to their neighbours.
const NEARER: f64 = 10.0;

/// How many series take turns in samples without steps or times.
pub(crate) fn turns(values: &[f64]) -> Option<usize> {
    let typical = |lag: usize| {
        let mut steps: Vec<f64> = values.iter().zip(&values[lag..]).map(|(before, now)| (now - before).abs()).collect();
        steps.sort_by(f64::total_cmp);
        steps[steps.len() / 2]
    };
    let take_turns =
        |&count: &usize| values.len() >= FEWEST_TURNS.max(3 * count) && NEARER * typical(count) < typical(1);
    (2..=MOST_TURNS).find(take_turns)
}

/// The samples of each step or time, one after the other.
struct Moments<'t> {
    trace: &'t Trace,
    from: usize,
}

impl Iterator for Moments<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        let moment = |index: usize| self.trace.step(index).or(self.trace.time_s(index));
        let from = self.from;
        if from >= self.trace.len() {
            return None;
        }
        let first = moment(from);
        let same = |index: &usize| first.is_some() && moment(*index) == first;
        self.from += 1 + (from + 1..self.trace.len()).take_while(same).count();
        Some(from..self.from)
    }
}

fn level(trace: &Trace, index: usize) -> u64 {
    trace.value(index, Quantity::Rss).unwrap_or(0)
}

fn has_levels(trace: &Trace, moment: &Range<usize>) -> bool {
    let mut sorted: Vec<u64> = moment.clone().map(|index| level(trace, index)).collect();
    sorted.sort_unstable();
    sorted.windows(2).all(|pair| pair[1] as f64 > APART * pair[0] as f64)
}

/// The places of the values by their size.
fn order(trace: &Trace, moment: &Range<usize>) -> Vec<usize> {
    let mut places: Vec<usize> = (0..moment.len()).collect();
    places.sort_by_key(|&place| level(trace, moment.start + place));
    places
}

//! A sign that several series were mixed into one: each moment has the same number of samples, at levels far apart.
//!
//! Nothing tells which process wrote which sample, so they are not separated; the report says what it looks like.

use garden_memory::{Quantity, Trace};

/// Moments that must agree.
const FEWEST_MOMENTS: usize = 8;
/// The share of moments that must agree.
const MOST_MOMENTS: f64 = 0.9;
/// How far apart two levels are at least; an evaluation within a step rarely adds as much, again and again.
const APART: f64 = 1.25;

/// The note on a trace whose moments have several samples each, at separate levels.
pub(crate) fn note(trace: &Trace) -> Option<String> {
    let moments = moments(trace);
    let count = moments.get(moments.len() / 2)?.len();
    let is_same =
        |moment: &&Vec<u64>| moment.len() == count && has_levels(moment) && order(moment) == order(&moments[0]);
    let alike = moments.iter().filter(is_same).count();
    let is_mixed = count > 1 && alike >= FEWEST_MOMENTS && alike as f64 >= MOST_MOMENTS * moments.len() as f64;
    is_mixed.then(|| {
        format!(
            "{count} samples share each step or time stamp, at levels far apart, as if {count} series were mixed in this file: \
             pass one of them, or add a column such as `rank` or `pid`"
        )
    })
}

/// The judged values, by moment.
fn moments(trace: &Trace) -> Vec<Vec<u64>> {
    let moment = |index: usize| trace.step(index).or(trace.time_s(index));
    let mut moments: Vec<Vec<u64>> = Vec::new();
    for index in 0..trace.len() {
        let Some(value) = trace.value(index, Quantity::Rss) else { continue };
        let is_same = index > 0 && moment(index).is_some() && moment(index) == moment(index - 1);
        match moments.last_mut() {
            Some(last) if is_same => last.push(value),
            _ => moments.push(vec![value]),
        }
    }
    moments
}

fn has_levels(moment: &[u64]) -> bool {
    let mut sorted = moment.to_vec();
    sorted.sort_unstable();
    sorted.windows(2).all(|pair| pair[1] as f64 > APART * pair[0] as f64)
}

/// The places of the values by their size.
fn order(moment: &[u64]) -> Vec<usize> {
    let mut places: Vec<usize> = (0..moment.len()).collect();
    places.sort_by_key(|&place| moment[place]);
    places
}

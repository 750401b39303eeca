//! Where a process ended or began anew, seen in its memory alone.
//!
//! A monitor that outlives the process goes on writing: zeros, or the little that a wrapper takes. Those are not samples
//! of the process. Only values near zero count; a run whose memory merely falls is left alone.

use garden_memory::{Bytes, EventKind, Quantity, Subject};

use crate::series::Series;

/// Below this share of the level before, nothing of the process is left.
const GONE_BELOW: f64 = 0.05;
/// Above this share of the level before, the process is back.
const BACK_ABOVE: f64 = 0.20;
/// At most this share of the samples can lie after the end.
const TAIL_SHARE: f64 = 0.10;
/// A gap is this many times the usual interval.
const GAP_INTERVALS: f64 = 5.0;
/// A gap takes at least as long: less than starting a training takes, and more than a collection of garbage.
const SHORTEST_GAP_S: f64 = 10.0;
/// More pauses than one in so many samples are no restarts; such a column is not a process's memory.
const SAMPLES_PER_PAUSE: usize = 10;
/// Samples within which a restarted process has doubled its memory: loading a model takes minutes.
const CLIMB_WITHIN: usize = 1000;

/// Drops samples from after the end, and marks ends and restarts.
pub(crate) fn settle(series: &mut Series) {
    let levels: Vec<u64> =
        (0..series.trace.len()).map(|at| series.trace.value(at, Quantity::Rss).unwrap_or(0)).collect();
    if levels.iter().all(|&level| level == 0) {
        return;
    }
    let is_process = matches!(series.trace.subject, Subject::Process | Subject::Container);
    let end = end_of(&levels, is_process);
    if end < levels.len() {
        drop_tail(series, &levels[end..], end);
    }
    if is_process {
        let mut levels = levels;
        levels.truncate(end);
        drop_pauses(series, &mut levels);
        mark_restarts_after_gaps(series, &levels);
    }
}

/// The number of samples before the process's end.
fn end_of(levels: &[u64], is_process: bool) -> usize {
    let zeros = levels.iter().rev().take_while(|&&level| level == 0).count();
    let end = levels.len() - zeros;
    if !is_process {
        return end;
    }
    let most = (levels.len() as f64 * TAIL_SHARE) as usize;
    let mut highest_behind = 0;
    let mut first_gone = end;
    for at in (end.saturating_sub(most).max(1)..end).rev() {
        highest_behind = highest_behind.max(levels[at]);
        let before = levels[at - 1] as f64;
        if (levels[at] as f64) < GONE_BELOW * before && highest_behind as f64 <= BACK_ABOVE * before {
            first_gone = at;
        }
    }
    if first_gone < end && has_come_back(&levels[..first_gone]) { end } else { first_gone }
}

/// Whether memory was as good as gone before, and came back: a sawtooth, which may end at its foot.
fn has_come_back(levels: &[u64]) -> bool {
    let Some(&last) = levels.last() else { return false };
    let (gone, back) = (GONE_BELOW * last as f64, BACK_ABOVE * last as f64);
    let climbed = levels.iter().position(|&level| level as f64 > back).unwrap_or(levels.len());
    levels[climbed..].iter().any(|&level| (level as f64) < gone)
}

fn drop_tail(series: &mut Series, tail: &[u64], end: usize) {
    let highest = Bytes(tail.iter().copied().max().unwrap_or(0));
    let zero = highest == Bytes(0);
    let shown = if zero { "0 B".to_string() } else { format!("at most {highest}") };
    series.note(match tail.len() {
        1 => format!("the last sample ({shown}) was taken after the process ended"),
        count => format!("the last {count} samples ({shown}) were taken after the process ended"),
    });
    series.rebuild(|index, _| index < end);
    if series.trace.events.last().is_none_or(|event| event.kind != EventKind::Exit) {
        series.trace.push_event(EventKind::Exit, None, None);
    }
}

/// Drops zeros in the middle, and marks a restart after them unless the steps run on.
fn drop_pauses(series: &mut Series, levels: &mut Vec<u64>) {
    let first = levels.iter().position(|&level| level > 0).unwrap_or(0);
    let pauses = levels.iter().skip(first).filter(|&&level| level == 0).count();
    if pauses == 0 {
        return;
    }
    let ends = (first + 1..levels.len()).filter(|&at| levels[at - 1] == 0 && levels[at] > 0).count();
    if ends * SAMPLES_PER_PAUSE > levels.len() {
        return;
    }
    let (mut restarts, mut kept) = (Vec::new(), first);
    for at in (first..levels.len()).filter(|&at| levels[at] > 0) {
        if at > first && levels[at - 1] == 0 && !continues(series, first, at) {
            restarts.push(kept);
        }
        kept += 1;
    }
    series.rebuild(|index, _| index < first || levels.get(index) != Some(&0));
    let mut index = 0;
    levels.retain(|&level| {
        index += 1;
        index <= first || level > 0
    });
    restarts.into_iter().for_each(|at| series.mark_restart(at));
    let noun = if pauses == 1 { "sample" } else { "samples" };
    series.note(format!("left out: {pauses} {noun} of 0 B, which no running process has"));
}

/// Whether the steps run on from a sample to a later one, as they do within one run.
fn continues(series: &Series, before: usize, after: usize) -> bool {
    let trace = &series.trace;
    let last = (before..after).rev().find_map(|at| trace.step(at));
    trace.step(after).zip(last).is_some_and(|(after, before)| after > before)
}

/// Marks a restart where memory is almost gone after a gap in time, and climbs again.
fn mark_restarts_after_gaps(series: &mut Series, levels: &[u64]) {
    let trace = &series.trace;
    let level = |at: usize| levels[at] as f64;
    let interval = |at: usize| Some(trace.time_s(at)? - trace.time_s(at - 1)?);
    // Most runs never fall that far, so the intervals need not be sorted.
    let falls: Vec<usize> = (1..levels.len()).filter(|&at| level(at) < BACK_ABOVE * level(at - 1)).collect();
    if falls.is_empty() {
        return;
    }
    let mut intervals: Vec<f64> = (1..levels.len()).filter_map(interval).filter(|gap| *gap > 0.0).collect();
    if intervals.is_empty() {
        return;
    }
    let middle = intervals.len() / 2;
    let (_, usual, _) = intervals.select_nth_unstable_by(middle, f64::total_cmp);
    let usual = *usual;
    let climbs = |at: usize| (at + 1..levels.len()).take(CLIMB_WITHIN).any(|later| level(later) > 2.0 * level(at));
    let is_gap = |gap: f64| gap > GAP_INTERVALS * usual && gap >= SHORTEST_GAP_S;
    let is_restart = |&at: &usize| interval(at).is_some_and(is_gap) && !continues(series, at - 1, at) && climbs(at);
    let restarts: Vec<usize> = falls.into_iter().filter(is_restart).collect();
    restarts.into_iter().for_each(|at| series.mark_restart(at));
}

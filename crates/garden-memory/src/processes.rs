//! Which process of the tree grows.

use std::ops::Range;

use crate::bytes::Bytes;
use crate::diagnosis::{Evidence, ProcessChange};
use crate::growth::Stretch;
use crate::phrasing::size;
use crate::series::Timeline;
use crate::trace::{ProcessTrack, Trace};

/// Most processes reported; the ones that grew most come first.
const MOST_PROCESSES: usize = 16;

/// How each process changed over the growth, or over the whole part if there is none, largest growth first.
///
/// The part ends with the last judged sample: while a program ends, its processes exit one by one.
pub(crate) fn changes(
    trace: &Trace,
    part: Range<usize>,
    timeline: &Timeline,
    growth: Option<&Stretch>,
) -> Vec<ProcessChange> {
    let place = |index: &usize| timeline.place(*index).unwrap_or(f64::NAN);
    let first = part.clone().find(|index| growth.is_none_or(|growth| place(index) >= growth.from));
    // The first sample of the last place: later ones may be taken while the program ends.
    let last = growth.and_then(|growth| part.clone().find(|index| place(index) >= growth.to)).or(part.clone().last());
    let (Some(first), Some(last)) = (first, last) else { return Vec::new() };
    let mut changes: Vec<ProcessChange> = Vec::new();
    for track in &trace.processes {
        let (mut from_bytes, to_bytes) = (track.at(first), track.at(last));
        // A shell that called `exec` on a program counts as that program from the beginning.
        let begins = track.levels.first().map(|&(sample, _)| sample);
        let is_before = |earlier: &ProcessTrack| earlier.pid == track.pid && earlier.gone == begins;
        if let Some(earlier) = trace.processes.iter().find(|earlier| is_before(earlier)) {
            changes.retain(|change| change.pid != earlier.pid);
            from_bytes = from_bytes.max(earlier.at(first));
        }
        if from_bytes == 0 && to_bytes == 0 {
            continue;
        }
        changes.push(ProcessChange {
            pid: track.pid,
            parent: track.parent,
            name: track.name.clone(),
            role: track.role.clone(),
            command: track.command.clone(),
            from_bytes,
            to_bytes,
        });
    }
    changes.sort_by_key(|change| std::cmp::Reverse(change.change()));
    changes.truncate(MOST_PROCESSES);
    changes
}

/// The evidence about which process grew, if there are several.
pub(crate) fn process_evidence(changes: &[ProcessChange], growth: &Stretch) -> Option<Evidence> {
    let most = changes.first().filter(|most| changes.len() > 1 && most.change() > 0)?;
    let risen: i64 = changes.iter().map(|change| change.change().max(0)).sum();
    let share = most.change() as f64 / risen as f64;
    let text = format!(
        "Of {} processes `{}` (process {}, {}) grew most: by {}, from {} to {}, {:.0} % of the gain of all processes.",
        changes.len(),
        most.name,
        most.pid,
        most.role,
        size(most.change() as f64),
        Bytes(most.from_bytes),
        Bytes(most.to_bytes),
        100.0 * share
    );
    Some(Evidence::number(text, most.change() as f64, "bytes").over(growth.from, growth.to))
}

//! Which kind of memory of a log is judged: the best one that is not rare, counted over all lines.
//!
//! Every kind is kept as a series until the end, since the lines that show the process's memory may come long after the
//! first that show a GPU's.

use super::labels::Kind;
use crate::reading::Reading;
use crate::series::skips::show_line;

/// A kind that as many samples have is not a stray line.
const ENOUGH: usize = 3;

/// The lines with memory, by the kinds they show.
#[derive(Default)]
pub(super) struct Tally {
    counts: [usize; Kind::ALL.len()],
    /// Lines with the process's memory, by the set of kinds: how many, and the first of them.
    lines: Vec<(u8, usize, String)>,
}

impl Tally {
    /// Counts a line that shows these kinds.
    pub(super) fn count(&mut self, kinds: impl Iterator<Item = Kind>, line: u64, text: &str) {
        let mut set = 0;
        for kind in kinds {
            self.counts[kind as usize] += 1;
            set |= if kind.is_strong() { 1 << kind as u8 } else { 0 };
        }
        match self.lines.iter_mut().find(|(known, ..)| *known == set) {
            Some((_, count, _)) => *count += 1,
            None => self.lines.push((set, 1, format!("line {line}, {}", show_line(text.as_bytes())))),
        }
    }

    /// The kind to judge.
    pub(super) fn best(&self) -> Option<Kind> {
        let most_of = |strong: bool| {
            let counts = Kind::ALL.into_iter().filter(|kind| kind.is_strong() == strong);
            counts.map(|kind| self.counts[kind as usize]).max().unwrap_or(0)
        };
        let (strong, weak) = (most_of(true), most_of(false));
        let judges_process = strong >= ENOUGH || 4 * strong >= weak.max(1);
        let most = if judges_process { strong } else { weak };
        let candidates = Kind::ALL.into_iter().filter(|kind| kind.is_strong() == judges_process);
        candidates.into_iter().find(|&kind| self.counts[kind as usize] > 0 && 4 * self.counts[kind as usize] >= most)
    }

    /// Counts the lines that show another kind of the process's memory than the judged one as skipped.
    pub(super) fn report(self, judged: Kind, reading: &mut Reading) {
        let others = self.lines.into_iter().filter(|(set, ..)| *set != 0 && set >> judged as u8 & 1 == 0);
        let others: Vec<_> = others.collect();
        let count = others.iter().map(|(_, count, _)| count).sum();
        if let Some((.., first)) = others.into_iter().next() {
            reading.skip_lines("a different kind of memory than the one judged", count, first);
        }
    }
}

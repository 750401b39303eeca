//! Queries with `--format=csv,noheader`: rows with commas and no names, in any order of columns.
//!
//! The columns are told by their values in the head of the file: a time stamp, the index that goes round, amounts in MiB,
//! of which the constant and largest one is the total. If more than one other amount is left, the file is refused.

use super::Layout;
use crate::ReadOptions;
use crate::amount::{Comma, parse_amount};
use crate::error::Error;
use crate::lines::HeadLine;
use crate::time::parse_moment;

/// No machine has more GPUs.
const MOST_GPUS: f64 = 64.0;

/// The rows of the head, by column.
struct Cells<'h> {
    columns: Vec<Vec<&'h str>>,
}

/// Whether rows begin with a time stamp that only `nvidia-smi` writes: `2025/03/01 22:00:00.123, 30000`.
pub(super) fn has_stamps(head: &[HeadLine]) -> bool {
    let is_stamp = |line: &HeadLine| {
        let stamp = line.text.split(", ").next().unwrap_or_default();
        stamp.len() == STAMP.len()
            && stamp.bytes().zip(STAMP.bytes()).all(|(byte, form)| match form {
                b'0' => byte.is_ascii_digit(),
                _ => byte == form,
            })
    };
    !head.is_empty() && head.iter().all(is_stamp)
}

/// The form of the stamps of `nvidia-smi`.
const STAMP: &str = "0000/00/00 00:00:00.000";

/// The layout of rows without a header, if they are of `nvidia-smi`.
pub(super) fn recognise(head: &[HeadLine], options: &ReadOptions) -> Option<Result<Layout, Error>> {
    let rows: Vec<Vec<&str>> = head.iter().map(|line| line.text.split(", ").map(str::trim).collect()).collect();
    let count = rows.first()?.len();
    if count < 2 || rows.iter().filter(|row| row.len() == count).count() * 10 < rows.len() * 9 {
        return None;
    }
    let rows = rows.iter().filter(|row| row.len() == count);
    let columns = (0..count).map(|at| rows.clone().map(|row| row[at]).collect()).collect();
    let cells = Cells { columns };
    let has_units = (0..count).any(|at| cells.is_amount(at));
    // Without units only the time stamp, which nobody else writes like this, tells the tool.
    let is_ours = has_units || (0..count).any(|at| cells.is_stamp(at) && cells.columns[at][0].contains('/'));
    is_ours.then(|| Layout::headless(cells.names(has_units), options))
}

const UNCLEAR: Error = Error::NoUsedMemory {
    problem: "rows of `nvidia-smi` without a header: the column of memory in use is unclear",
    advice: "leave out `noheader`, or query `--query-gpu=timestamp,index,memory.used,memory.total`",
};

impl Cells<'_> {
    fn all(&self, column: usize, is_wanted: impl Fn(&str) -> bool) -> bool {
        self.columns[column].iter().all(|cell| is_wanted(cell))
    }

    fn is_amount(&self, column: usize) -> bool {
        self.all(column, |cell| cell.ends_with(" MiB") || cell == "[N/A]")
    }

    fn is_stamp(&self, column: usize) -> bool {
        self.all(column, |cell| cell.contains(':') && parse_moment(cell).is_some())
    }

    fn values(&self, column: usize) -> Option<Vec<f64>> {
        let value = |cell: &&str| parse_amount(cell.as_bytes(), Comma::Thousands).ok().map(|amount| amount.value);
        self.columns[column].iter().map(value).collect()
    }

    fn is_index(&self, column: usize) -> bool {
        let is_small =
            |values: Vec<f64>| values.iter().all(|value| (0.0..MOST_GPUS).contains(value) && value.fract() == 0.0);
        !self.is_amount(column) && self.values(column).is_some_and(is_small)
    }

    /// The columns' names, as a header would have them.
    fn names(&self, has_units: bool) -> Result<Vec<String>, Error> {
        let all = 0..self.columns.len();
        let mut names: Vec<String> = all.clone().map(|at| format!("column {}", at + 1)).collect();
        let stamp = all.clone().find(|&at| self.is_stamp(at));
        let index = all.clone().find(|&at| self.is_index(at));
        let is_level = |at: &usize| match has_units {
            true => self.is_amount(*at),
            false => Some(*at) != stamp && Some(*at) != index && self.values(*at).is_some(),
        };
        let mut levels: Vec<usize> = all.filter(is_level).collect();
        if levels.len() > 1 {
            let total = self.total(&levels).ok_or(UNCLEAR)?;
            levels.retain(|&at| at != total);
            names[total] = "memory.total [MiB]".to_string();
        }
        let [used] = levels[..] else { return Err(UNCLEAR) };
        names[used] = "memory.used [MiB]".to_string();
        stamp.into_iter().for_each(|at| names[at] = "timestamp".to_string());
        index.into_iter().for_each(|at| names[at] = "index".to_string());
        Ok(names)
    }

    /// The column that is never below another one and hardly changes: GPUs of one machine have few different sizes.
    fn total(&self, levels: &[usize]) -> Option<usize> {
        let values: Vec<(usize, Vec<f64>)> = levels.iter().filter_map(|&at| Some((at, self.values(at)?))).collect();
        let is_largest =
            |own: &[f64]| values.iter().all(|(_, other)| own.iter().zip(other).all(|(own, other)| own >= other));
        let few = |own: &[f64]| {
            let mut distinct = own.to_vec();
            distinct.sort_unstable_by(f64::total_cmp);
            distinct.dedup();
            distinct.len() <= 2
        };
        values.iter().find(|(_, own)| is_largest(own) && few(own)).map(|(at, _)| *at)
    }
}

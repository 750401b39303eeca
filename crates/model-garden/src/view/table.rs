//! The processes as a tree: who holds what, and who grows.

use std::collections::BTreeSet;

use garden_memory::{Bytes, MIB, format_change};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::ProcessRow;
use super::palette::Palette;
use super::text::{clean, cut, width};

const PID_COLUMNS: usize = 7;
const ROLE_COLUMNS: usize = 9;
const BYTES_COLUMNS: usize = 9;
const GROWTH_COLUMNS: usize = 11;
/// Tables at least this wide show the resident memory too.
const WITH_RESIDENT: usize = 84;
/// Tables narrower than this have no room for roles.
const WITH_ROLE: usize = 56;
/// Deeper processes are not indented further.
const DEEPEST: usize = 8;
/// The process that grew most is marked from this growth on.
const NOTABLE_GROWTH: i64 = MIB as i64;

/// A column of amounts: its name, its width, and what it says about a process.
type Column = (&'static str, usize, fn(&ProcessRow) -> String);

const OWN: Column = ("own", BYTES_COLUMNS, |process| Bytes(process.own).to_string());
const RESIDENT: Column = ("resident", BYTES_COLUMNS, |process| Bytes(process.rss).to_string());
const GROWTH: Column = ("growth", GROWTH_COLUMNS, |process| match process.growth {
    0 => "-".to_string(),
    growth => format_change(growth as f64),
});
const GPU: Column = ("GPU", BYTES_COLUMNS, |process| process.gpu.map_or("-".to_string(), |gpu| Bytes(gpu).to_string()));

/// Draws the table; the names of its columns go on the border above it.
pub(super) fn draw(buffer: &mut Buffer, area: Rect, processes: &[ProcessRow], palette: Palette) {
    let columns = usize::from(area.width);
    let has_gpu = processes.iter().any(|process| process.gpu.is_some());
    let shown = [Some(OWN), (columns >= WITH_RESIDENT).then_some(RESIDENT), Some(GROWTH), has_gpu.then_some(GPU)];
    let shown: Vec<Column> = shown.into_iter().flatten().collect();
    let table = Table { columns, with_role: columns >= WITH_ROLE, shown, palette };
    if area.is_empty() {
        return;
    }
    table.names(buffer, area);
    let (rows, rest) = choose(processes, area.height.into());
    let grown = fastest(processes);
    let mut places = area.rows();
    for (index, place) in rows.iter().zip(places.by_ref()) {
        table.row(buffer, place, &processes[*index], Some(*index) == grown);
    }
    if let (Some(rest), Some(place)) = (rest, places.next()) {
        table.amounts(buffer, place, &rest, palette.quiet());
        let text = cut(&rest.name, table.room());
        buffer.set_stringn(place.x + 2, place.y, text, columns.saturating_sub(2), palette.quiet());
    }
}

/// The process that grew most, if it grew notably.
fn fastest(processes: &[ProcessRow]) -> Option<usize> {
    let (index, process) = processes.iter().enumerate().max_by_key(|(_, process)| process.growth)?;
    (process.growth >= NOTABLE_GROWTH).then_some(index)
}

/// The rows to show in the order of the tree, and the sum of those that do not fit.
///
/// What grows most, the root and the largest stay: the eighth idle loader worker is no loss.
fn choose(processes: &[ProcessRow], room: usize) -> (Vec<usize>, Option<ProcessRow>) {
    if processes.len() <= room {
        return ((0..processes.len()).collect(), None);
    }
    let mut by_weight: Vec<usize> = (1..processes.len()).collect();
    by_weight.sort_by_key(|&index| std::cmp::Reverse(processes[index].own));
    let first = fastest(processes).into_iter().chain((!processes.is_empty()).then_some(0));
    let mut chosen = BTreeSet::new();
    for index in first.chain(by_weight) {
        if chosen.len() + 1 < room {
            chosen.insert(index);
        }
    }
    let mut rest = ProcessRow { name: format!("… {} more", processes.len() - chosen.len()), ..ProcessRow::default() };
    for (_, process) in processes.iter().enumerate().filter(|(index, _)| !chosen.contains(index)) {
        rest.own = rest.own.saturating_add(process.own);
        rest.rss = rest.rss.saturating_add(process.rss);
        rest.growth = rest.growth.saturating_add(process.growth);
        rest.gpu = rest.gpu.map_or(process.gpu, |sum| Some(sum.saturating_add(process.gpu.unwrap_or(0))));
    }
    (chosen.into_iter().collect(), Some(rest))
}

struct Table {
    columns: usize,
    with_role: bool,
    shown: Vec<Column>,
    palette: Palette,
}

impl Table {
    /// Columns that the amounts leave to the left of them.
    fn room(&self) -> usize {
        self.columns.saturating_sub(self.shown.iter().map(|column| column.1 + 1).sum())
    }

    /// Calls `write` with the column at which each amount ends.
    fn at_ends(&self, mut write: impl FnMut(&Column, usize)) {
        let mut end = self.room();
        for column in &self.shown {
            end += column.1 + 1;
            if end <= self.columns {
                write(column, end);
            }
        }
    }

    fn names(&self, buffer: &mut Buffer, area: Rect) {
        let Some(y) = area.y.checked_sub(1) else { return };
        self.at_ends(|column, end| {
            // A name ends above the unit of its amounts; the border goes on behind the last one.
            let name = format!(" {}{}", column.0, if end < self.columns { " " } else { "" });
            let x = area.x + (end + usize::from(end < self.columns)).saturating_sub(name.len()) as u16;
            buffer.set_stringn(x, y, name, self.columns, self.palette.quiet());
        });
    }

    fn row(&self, buffer: &mut Buffer, area: Rect, process: &ProcessRow, is_fastest: bool) {
        let style = if is_fastest { self.palette.strong() } else { Style::new() };
        let mark = if is_fastest { "▲ " } else { "  " };
        let role = if self.with_role {
            format!("{:<ROLE_COLUMNS$} ", cut(&clean(&process.role), ROLE_COLUMNS))
        } else {
            String::new()
        };
        let (x, _) = buffer.set_stringn(area.x, area.y, mark, self.columns, style);
        let pid = format!("{:>PID_COLUMNS$} ", process.pid);
        let room = |x: u16| self.room().saturating_sub(usize::from(x - area.x));
        let (x, _) = buffer.set_stringn(x, area.y, pid, room(x), self.palette.quiet());
        let (x, _) = buffer.set_stringn(x, area.y, role, room(x), Style::new());
        let command = if process.command.trim().is_empty() { &process.name } else { &process.command };
        let branch = match process.depth.min(DEEPEST) {
            0 => String::new(),
            depth => format!("{}└ ", "  ".repeat(depth - 1)),
        };
        let (x, _) = buffer.set_stringn(x, area.y, &branch, room(x), self.palette.quiet());
        buffer.set_stringn(x, area.y, cut(&clean(command), room(x)), room(x), style);
        self.amounts(buffer, area, process, style);
    }

    fn amounts(&self, buffer: &mut Buffer, area: Rect, process: &ProcessRow, style: Style) {
        self.at_ends(|column, end| {
            let value = (column.2)(process);
            let x = area.x + end.saturating_sub(width(&value)) as u16;
            buffer.set_stringn(x, area.y, value, column.1, style);
        });
    }
}

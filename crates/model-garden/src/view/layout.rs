//! Who gets which rows: the verdict and the chart first, then the processes, then what the program prints.

use ratatui::layout::Rect;

/// Terminals at least this large have boxes around the panes.
const BOXED: (u16, u16) = (100, 34);
/// Terminals at least this large show the chart and the processes side by side.
const SIDE_BY_SIDE: (u16, u16) = (150, 34);
/// Rows of a chart worth looking at: eight, the axis and the heading.
const CHART_ROWS: u16 = 10;
/// With fewer rows than this it is left out.
const LEAST_CHART_ROWS: u16 = 5;
/// Rows of a useful process table: the heading with the names of the columns, and three processes.
const TABLE_ROWS: u16 = 4;
/// Columns beyond which the process table gains nothing.
const MOST_TABLE_COLUMNS: u16 = 96;
/// Rows of a useful output pane: heading and two lines.
const OUTPUT_ROWS: u16 = 3;
/// Beside the chart, with its box: enough to follow a program. With fewer rows to the right of the chart it goes beneath it.
const OUTPUT_BESIDE: u16 = 10;
/// Rows of a reason and an advice that are worth a box.
const REASON_ROWS: u16 = 5;

/// How much there is to show, in rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wants {
    /// Lines of the verdict.
    pub verdict: usize,
    /// Whether the guard says something.
    pub guard: bool,
    /// Lines of numbers, one after the other.
    pub number_lines: usize,
    /// Rows of numbers in two columns.
    pub number_rows: usize,
    /// Processes; `None` if they are hidden.
    pub processes: Option<usize>,
    /// Lines of output; `None` if it is hidden.
    pub output: Option<usize>,
    /// Lines of reasons and advice, as wide as [`beside_columns`] says.
    pub reasons: usize,
}

/// Where everything goes; what has no room is empty.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Areas {
    /// One line.
    pub title: Rect,
    /// The verdict and its sentence.
    pub verdict: Rect,
    /// One line.
    pub guard: Rect,
    /// The chart with its heading.
    pub chart: Rect,
    /// The numbers.
    pub numbers: Rect,
    /// The processes with their heading.
    pub processes: Rect,
    /// The output with its heading.
    pub output: Rect,
    /// Reasons and advice with their heading; only in large terminals.
    pub reasons: Rect,
    /// One line.
    pub keys: Rect,
    /// Whether panes have a box around them.
    pub boxed: bool,
    /// Whether numbers and processes stand to the right of the chart.
    pub side_by_side: bool,
}

impl Areas {
    /// Divides a terminal.
    pub fn plan(area: Rect, wants: &Wants) -> Areas {
        let at_least = |size: (u16, u16)| area.width >= size.0 && area.height >= size.1;
        let side_by_side = at_least(SIDE_BY_SIDE) && wants.processes.is_some();
        let mut areas = Areas { boxed: at_least(BOXED), side_by_side, ..Areas::default() };
        let mut rest = Rows(area);
        areas.title = rest.top(1);
        areas.keys = rest.bottom(u16::from(area.height >= 5));
        let verdict = if area.height >= 10 { wants.verdict as u16 } else { 1 };
        areas.verdict = rest.top(verdict);
        areas.guard = rest.top(u16::from(wants.guard && area.height >= 7));
        if side_by_side {
            areas.beside(rest, wants);
        } else {
            areas.stack(rest, wants);
        }
        areas
    }

    /// The chart on the left; on the right numbers, processes, reasons and what the program prints, each as tall as it has something to show. Where
    /// processes leave no room for the output, it is beneath the chart.
    fn beside(&mut self, rest: Rows, wants: &Wants) {
        let width = rest.0.width - beside_columns(rest.0.width);
        let mut left = Rows(Rect { width, ..rest.0 });
        let mut right = Rows(Rect { x: left.0.right(), width: rest.0.width - width, ..rest.0 });
        self.numbers = right.top(wants.number_rows as u16 + 2);
        let wanted = |rows: usize| u16::try_from(rows).unwrap_or(u16::MAX).saturating_add(2);
        let table = wanted(wants.processes.unwrap_or(0));
        let least_output = if wants.output.is_some() { OUTPUT_BESIDE } else { 0 };
        let spare = right.0.height.saturating_sub(table);
        if spare < least_output {
            let lines = wanted(wants.output.unwrap_or(0));
            self.output = left.bottom(lines.clamp(5, (rest.0.height / 3).max(5)));
        }
        let reasons = wanted(wants.reasons).min(spare.saturating_sub(least_output));
        let has_reasons = wants.reasons > 0 && reasons >= REASON_ROWS;
        let is_last = spare < least_output || (wants.output.is_none() && !has_reasons);
        self.processes = right.top(if is_last { u16::MAX } else { table });
        if has_reasons {
            self.reasons = right.top(if wants.output.is_some() { reasons } else { u16::MAX });
        }
        if wants.output.is_some() && !is_last {
            self.output = right.0;
        }
        self.chart = left.0;
    }

    /// Everything beneath each other.
    fn stack(&mut self, mut rest: Rows, wants: &Wants) {
        let most_numbers = match rest.0.height {
            0..=3 => 0,
            4..=12 => 1,
            _ => 2,
        };
        let numbers = (wants.number_lines as u16).min(most_numbers);
        let edge = u16::from(self.boxed);
        let room = rest.0.height.saturating_sub(numbers);
        // One more than there is to show, for the heading.
        let wanted = |rows: Option<usize>| rows.map_or(0, |rows| (rows as u16).saturating_add(1 + edge));
        let (most_table, most_output) = (wanted(wants.processes), wanted(wants.output));
        let (least_table, least_output) = (most_table.min(TABLE_ROWS + edge), most_output.min(OUTPUT_ROWS + edge));
        let spare = room.saturating_sub(CHART_ROWS + edge + least_table + least_output);
        // A third of what is to spare for each of the lower panes, as long as they have something to show in it.
        let mut table = most_table.min(least_table + spare / 3);
        let mut output = most_output.min(least_output + spare / 3);
        if room < CHART_ROWS + edge + table + output {
            output = 0;
        }
        if room < CHART_ROWS + edge + table - 2.min(table) {
            table = 0;
        }
        self.output = rest.bottom(output);
        self.processes = rest.bottom(table);
        self.numbers = rest.bottom(numbers);
        if rest.0.height >= LEAST_CHART_ROWS {
            self.chart = rest.0;
        }
    }
}

/// Columns to the right of the chart, in a terminal that is wide enough for that.
pub(super) fn beside_columns(width: u16) -> u16 {
    (width * 9 / 20).min(MOST_TABLE_COLUMNS)
}

/// An area from which rows are taken at either end.
struct Rows(Rect);

impl Rows {
    fn top(&mut self, rows: u16) -> Rect {
        let taken = Rect { height: rows.min(self.0.height), ..self.0 };
        self.0.y += taken.height;
        self.0.height -= taken.height;
        taken
    }

    fn bottom(&mut self, rows: u16) -> Rect {
        let height = rows.min(self.0.height);
        self.0.height -= height;
        Rect { y: self.0.bottom(), height, ..self.0 }
    }
}

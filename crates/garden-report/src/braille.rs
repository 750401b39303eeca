//! Charts made of characters: braille dots for lines, box drawing for axes and marks. Values in, lines out.
//!
//! A braille cell holds two by four dots. Where a mark and a line meet, the line wins. Memory and steps are not known
//! here; `plot.rs` decides what to draw.

use crate::scale::Scale;
use crate::wrap::{pad_left, width};

/// Dots of a cell, side by side.
pub const DOTS_ACROSS: usize = 2;
/// Dots of a cell, one above the other.
pub const DOTS_DOWN: usize = 4;
/// Every n-th dot of a dotted line is drawn.
pub const DOT_DISTANCE: usize = 3;
/// The bits of a braille character, by dot from the top, for its left and right half.
const BRAILLE_BITS: [[u8; DOTS_DOWN]; DOTS_ACROSS] = [[0x01, 0x02, 0x04, 0x40], [0x08, 0x10, 0x20, 0x80]];

/// The bit of a dot: its column in the cell, and its row from the top.
pub fn dot(x: usize, y: usize) -> u8 {
    BRAILLE_BITS[x % DOTS_ACROSS][y % DOTS_DOWN]
}

/// The character with these dots.
pub fn braille(dots: u8) -> char {
    char::from_u32(0x2800 + u32::from(dots)).unwrap_or(' ')
}

/// A chart to draw.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    /// Cells across, without the labels on the left.
    pub columns: usize,
    /// Cells down, without the axis.
    pub rows: usize,
    /// Columns for the labels on the left.
    pub gutter: usize,
    /// The horizontal range.
    pub from: f64,
    /// The end of the horizontal range, greater than `from`.
    pub to: f64,
    /// Labels beneath the axis.
    pub labels: Vec<(f64, String)>,
    /// The vertical scale.
    pub scale: Scale,
    /// Lines through points, in the order of the points.
    pub lines: Vec<Vec<(f64, f64)>>,
    /// Dotted lines through points of ascending place.
    pub dotted: Vec<Vec<(f64, f64)>>,
    /// Vertical marks, the more important first.
    pub uprights: Vec<Upright>,
    /// Horizontal marks: a value and its label.
    pub levels: Vec<(f64, String)>,
}

/// A vertical mark.
#[derive(Clone, Debug)]
pub(crate) struct Upright {
    /// Its place.
    pub at: f64,
    /// The character it is made of.
    pub glyph: char,
    /// The label beneath the axis; none if empty.
    pub label: String,
}

/// Draws a chart: its rows, the axis, the axis labels, and the labels of vertical marks where there are any.
pub(crate) fn draw(chart: &Chart) -> Vec<String> {
    let mut canvas = Canvas::new(chart);
    chart.lines.iter().for_each(|line| canvas.line(line));
    chart.dotted.iter().for_each(|line| canvas.dotted(line));
    chart.levels.iter().for_each(|(at, label)| canvas.level(*at, label));
    chart.uprights.iter().rev().for_each(|mark| canvas.upright(mark));
    let mut lines: Vec<String> = (0..chart.rows).map(|row| canvas.row_with_label(row)).collect();
    lines.push(canvas.axis());
    lines.push(canvas.axis_labels());
    lines.extend(canvas.upright_labels());
    lines.iter_mut().for_each(|line| line.truncate(line.trim_end().len()));
    lines
}

struct Canvas<'a> {
    chart: &'a Chart,
    dots: Vec<u8>,
    marks: Vec<char>,
}

impl<'a> Canvas<'a> {
    fn new(chart: &'a Chart) -> Self {
        let cells = chart.columns * chart.rows;
        Canvas { chart, dots: vec![0; cells], marks: vec![' '; cells] }
    }

    /// The dot column of a place; outside the chart it is beyond the last one.
    fn dot_x(&self, x: f64) -> i64 {
        let share = (x - self.chart.from) / (self.chart.to - self.chart.from);
        let last = (self.chart.columns * DOTS_ACROSS).saturating_sub(1);
        (share.clamp(-0.1, 1.1) * last as f64).round() as i64
    }

    /// The dot row of a value, counted from the top. Row centres lie between the middle dots.
    fn dot_y(&self, y: f64) -> i64 {
        let rows_up = (y - self.chart.scale.bottom) / self.chart.scale.per_row;
        let rows_down = (self.chart.rows as f64 - 1.0 - rows_up).clamp(-2.0, self.chart.rows as f64 + 2.0);
        (rows_down * DOTS_DOWN as f64 + 1.5).round() as i64
    }

    fn column(&self, x: f64) -> Option<usize> {
        let column = usize::try_from(self.dot_x(x)).ok()? / DOTS_ACROSS;
        (column < self.chart.columns).then_some(column)
    }

    fn row(&self, y: f64) -> Option<usize> {
        let row = usize::try_from(self.dot_y(y)).ok()? / DOTS_DOWN;
        (row < self.chart.rows).then_some(row)
    }

    fn set(&mut self, x: i64, y: i64) {
        let (Ok(x), Ok(y)) = (usize::try_from(x), usize::try_from(y)) else { return };
        let (column, row) = (x / DOTS_ACROSS, y / DOTS_DOWN);
        if column < self.chart.columns && row < self.chart.rows {
            self.dots[row * self.chart.columns + column] |= dot(x, y);
        }
    }

    fn line(&mut self, points: &[(f64, f64)]) {
        let dots = thin_out(points.iter().map(|&(x, y)| (self.dot_x(x), self.dot_y(y))));
        match dots.as_slice() {
            // A single dot would be overlooked.
            [(x, y)] => [(0, 0), (1, 0), (0, 1), (1, 1)].into_iter().for_each(|(dx, dy)| self.set(x + dx, y + dy)),
            _ => dots.windows(2).for_each(|pair| self.segment(pair[0], pair[1])),
        }
    }

    fn segment(&mut self, from: (i64, i64), to: (i64, i64)) {
        let (across, down) = (to.0 - from.0, to.1 - from.1);
        let steps = across.abs().max(down.abs()).max(1);
        for step in 0..=steps {
            let share = step as f64 / steps as f64;
            let along = |start: i64, length: i64| start + (length as f64 * share).round() as i64;
            self.set(along(from.0, across), along(from.1, down));
        }
    }

    fn dotted(&mut self, points: &[(f64, f64)]) {
        let per_dot = (self.chart.to - self.chart.from) / (self.chart.columns * DOTS_ACROSS).max(2) as f64;
        for dot in (0..self.chart.columns * DOTS_ACROSS).step_by(DOT_DISTANCE) {
            if let Some(y) = interpolate(points, self.chart.from + (dot as f64 + 0.5) * per_dot) {
                let y = self.dot_y(y);
                self.set(dot as i64, y);
            }
        }
    }

    /// Draws a horizontal mark, with its label where no line crosses it (the right end first).
    fn level(&mut self, at: f64, label: &str) {
        let Some(row) = self.row(at) else { return };
        let start = row * self.chart.columns;
        let label: Vec<char> = format!(" {label} ").chars().collect();
        self.marks[start..start + self.chart.columns].fill('┄');
        let dots = &self.dots[start..start + self.chart.columns];
        let free = |at: &usize| dots[*at..*at + label.len()].iter().all(|&dots| dots == 0);
        let last = self.chart.columns.checked_sub(label.len() + 2);
        if let Some(column) = last.and_then(|last| (0..=last).rev().find(free)) {
            self.marks[start + column..start + column + label.len()].copy_from_slice(&label);
        }
    }

    fn upright(&mut self, mark: &Upright) {
        let Some(column) = self.column(mark.at) else { return };
        for row in 0..self.chart.rows {
            let cell = &mut self.marks[row * self.chart.columns + column];
            // The label of a horizontal mark stays readable.
            if matches!(cell, ' ' | '┄') {
                *cell = mark.glyph;
            }
        }
    }

    fn row_with_label(&self, row: usize) -> String {
        let from_bottom = self.chart.rows - 1 - row;
        let label = self.chart.scale.labels.iter().find(|label| label.0 == from_bottom);
        let (label, edge) = label.map_or(("", '│'), |label| (label.1.as_str(), '┤'));
        let cells = row * self.chart.columns..(row + 1) * self.chart.columns;
        let glyph = |cell: usize| match self.dots[cell] {
            0 => self.marks[cell],
            dots => braille(dots),
        };
        format!("{} {edge}{}", pad_left(label, self.chart.gutter), cells.map(glyph).collect::<String>())
    }

    fn axis(&self) -> String {
        let mut line = vec!['─'; self.chart.columns];
        for column in self.chart.labels.iter().filter_map(|label| self.column(label.0)) {
            line[column] = '┬';
        }
        for mark in &self.chart.uprights {
            self.column(mark.at).into_iter().for_each(|column| line[column] = '┴');
        }
        format!("{} └{}", " ".repeat(self.chart.gutter), line.into_iter().collect::<String>())
    }

    fn axis_labels(&self) -> String {
        let mut row = LabelRow::new(self.chart);
        for (at, label) in &self.chart.labels {
            if let Some(column) = self.column(*at) {
                let start = (column + row.indent).saturating_sub(width(label) / 2);
                row.write(label, start.min(row.cells.len().saturating_sub(width(label))));
            }
        }
        row.finish()
    }

    /// The labels of vertical marks: in one row if they fit, else in two; labels that fit in neither are left out.
    fn upright_labels(&self) -> Vec<String> {
        let mut rows = [LabelRow::new(self.chart), LabelRow::new(self.chart)];
        for mark in self.chart.uprights.iter().filter(|mark| !mark.label.is_empty()) {
            let Some(column) = self.column(mark.at) else { continue };
            let _placed = rows.iter_mut().any(|row| row.write_mark(&mark.label, column));
        }
        rows.into_iter().map(LabelRow::finish).filter(|row| !row.trim().is_empty()).collect()
    }
}

/// A row of labels beneath the axis that do not touch each other.
struct LabelRow {
    indent: usize,
    cells: Vec<char>,
}

impl LabelRow {
    fn new(chart: &Chart) -> Self {
        let indent = chart.gutter + 2;
        LabelRow { indent, cells: vec![' '; indent + chart.columns] }
    }

    /// Writes a label if there is room for it and a space on either side.
    fn write(&mut self, label: &str, at: usize) -> bool {
        let end = at + width(label);
        let free = end <= self.cells.len()
            && self.cells[at.saturating_sub(1)..(end + 1).min(self.cells.len())].iter().all(|&cell| cell == ' ');
        if free {
            self.cells.iter_mut().skip(at).zip(label.chars()).for_each(|(cell, c)| *cell = c);
        }
        free
    }

    /// Writes the label of the mark in a column of the chart: to the right of its arrow, or to the left.
    fn write_mark(&mut self, label: &str, column: usize) -> bool {
        let at = column + self.indent;
        let left = format!("{label} ▲");
        self.write(&format!("▲ {label}"), at) || self.write(&left, (at + 1).saturating_sub(width(&left)))
    }

    fn finish(self) -> String {
        self.cells.into_iter().collect()
    }
}

/// Keeps the first, lowest, highest and last of neighbouring points in a dot column, so that no extreme is lost.
fn thin_out(points: impl Iterator<Item = (i64, i64)>) -> Vec<(i64, i64)> {
    let mut kept = Vec::new();
    let mut column: Option<(i64, [i64; 4])> = None;
    for (x, y) in points {
        match &mut column {
            Some((place, [_, low, high, last])) if *place == x => {
                (*low, *high, *last) = ((*low).min(y), (*high).max(y), y);
            }
            _ => keep(&mut kept, column.replace((x, [y; 4]))),
        }
    }
    keep(&mut kept, column);
    kept
}

fn keep(kept: &mut Vec<(i64, i64)>, column: Option<(i64, [i64; 4])>) {
    for (x, y) in column.into_iter().flat_map(|(x, ys)| ys.map(|y| (x, y))) {
        if kept.last() != Some(&(x, y)) {
            kept.push((x, y));
        }
    }
}

/// The value of a line of ascending places at `x`; `None` before its beginning and after its end.
pub fn interpolate(points: &[(f64, f64)], x: f64) -> Option<f64> {
    let pair = points.windows(2).find(|pair| pair[0].0 <= x && x <= pair[1].0)?;
    let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
    let share = if x1 > x0 { (x - x0) / (x1 - x0) } else { 0.0 };
    Some(y0 + share * (y1 - y0)).filter(|y| y.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scale::Measure;
    use expect_test::expect;

    fn chart(columns: usize, line: Vec<(f64, f64)>) -> Chart {
        Chart {
            columns,
            rows: 5,
            gutter: 2,
            from: 0.0,
            to: 100.0,
            labels: vec![(0.0, "0".into()), (50.0, "50".into()), (100.0, "100".into())],
            scale: Scale::fit(0.0, 20.0, 5, Measure::Count),
            lines: vec![line],
            dotted: Vec::new(),
            uprights: Vec::new(),
            levels: Vec::new(),
        }
    }

    #[test]
    fn lines_marks_and_labels() {
        let mut chart = chart(30, vec![(0.0, 0.0), (50.0, 10.0), (60.0, 10.0)]);
        chart.dotted = vec![vec![(60.0, 10.0), (100.0, 14.0)]];
        chart.levels = vec![(20.0, "limit".into())];
        chart.uprights = vec![Upright { at: 50.0, glyph: '┊', label: "knee 50".into() }];
        expect![[r#"
            20 ┤┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┊┄┄┄┄┄ limit ┄┄
               │               ┊         ⢀ ⡀⢀
            10 ┤            ⢀⣀⡠⠤⠤⠤⠂⠐ ⠂⠈ ⠁
               │     ⣀⣀⠤⠔⠒⠊⠉⠁  ┊
             0 ┤⠤⠒⠒⠉⠉          ┊
               └┬──────────────┴─────────────┬
                0             50           100
                               ▲ knee 50"#]]
        .assert_eq(&draw(&chart).join("\n"));
    }

    #[test]
    fn one_spike_among_a_million_points_is_drawn() {
        let mut points: Vec<(f64, f64)> = (0..1_000_000).map(|n| (f64::from(n) / 1e4, 0.0)).collect();
        points[512_345].1 = 20.0;
        let top = draw(&chart(30, points)).remove(0);
        assert!(top.chars().any(|c| ('\u{2801}'..='\u{28ff}').contains(&c)), "{top}");
    }

    #[test]
    fn nothing_and_nonsense_are_drawn_without_harm() {
        for line in [vec![], vec![(f64::NAN, 1.0)], vec![(50.0, f64::INFINITY), (1e300, -1e300)], vec![(5.0, 5.0); 3]] {
            assert_eq!(draw(&chart(10, line)).len(), 7);
        }
    }
}

//! The chart: what the tree held, layer upon layer, the limit above it and the forecast to the right of the present.

use garden_memory::{Bytes, Clock};
use garden_report::terminal::{DOT_DISTANCE, DOTS_ACROSS, DOTS_DOWN, Measure, Scale, clock_labels, interpolate};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::canvas::{Canvas, swatch};
use super::outlook::{Course, Outlook, Present, outlook, words_of};
use super::palette::{Ink, Palette};
use super::text::width;
use super::window::Window;
use super::{Layers, Picture, Point};

/// Above this share of the limit, the limit is on the chart.
const LIMIT_IN_SIGHT: f64 = 1.0 / 3.0;
/// Columns of a label beneath the chart, with the space around it.
const LABEL_COLUMNS: usize = 11;
/// The layers, from the axis upwards: what is at stake first, what can be reclaimed last.
const STACK: [(Ink, &str); 4] =
    [(Ink::Anon, "anon"), (Ink::Shared, "shared"), (Ink::Swap, "swap"), (Ink::File, "file")];

/// The bytes of a point's layers, in the order of the stack.
fn layers_of(point: &Point, layers: Layers) -> [f64; STACK.len()] {
    match layers {
        Layers::Components => [point.anon, point.shmem, point.swap, point.file].map(|bytes| bytes as f64),
        Layers::Total => [point.resident() as f64, 0.0, point.swap as f64, 0.0],
    }
}

/// The heading: what the layers are and how much they hold now.
pub(super) fn legend(picture: &Picture, layers: Layers, window: Window, palette: Palette) -> Line<'static> {
    let mut spans = vec![Span::styled("memory", palette.strong())];
    if let Some(last) = picture.history.last() {
        let shown = STACK.iter().zip(layers_of(last, layers));
        // Swap is mentioned once there is some, and the total has one layer only.
        let shown = shown.filter(|((ink, _), bytes)| {
            let is_usual = *ink == Ink::Anon || (*ink != Ink::Swap && layers == Layers::Components);
            is_usual || *bytes > 0.0
        });
        for ((ink, name), bytes) in shown {
            let name = if *ink == Ink::Anon && layers == Layers::Total { "resident" } else { name };
            spans.push(Span::styled(format!("  {}{}", swatch(*ink), swatch(*ink)), palette.ink(*ink)));
            spans.push(Span::raw(format!(" {name} {}", Bytes::from_f64(bytes))));
        }
    }
    if let Some(name) = window.name() {
        spans.push(Span::styled(format!("  last {name}"), palette.quiet()));
    }
    Line::from(spans)
}

/// Draws the chart into an area: rows of dots, and the axis with its labels beneath them.
pub(super) fn draw(
    buffer: &mut Buffer,
    area: Rect,
    picture: &Picture,
    layers: Layers,
    window: Window,
    palette: Palette,
) {
    let rows = usize::from(area.height).saturating_sub(1);
    if rows < 2 || area.width < 16 {
        return;
    }
    let Some(chart) = Chart::new(picture, layers, window, rows) else {
        let middle = Rect { y: area.y + area.height / 2, height: 1, ..area };
        super::lines(buffer, middle, &[Line::styled("no samples yet", palette.quiet()).centered()]);
        return;
    };
    let gutter = chart.scale.labels.iter().map(|label| width(&label.1)).max().unwrap_or(0).max(7);
    let left = (gutter + 2).min(area.width.into()) as u16;
    let plot = Rect { x: area.x + left, width: area.width - left, height: rows as u16, ..area };
    let columns = usize::from(plot.width);
    let mut canvas = Canvas::new(columns, rows);
    chart.layers(&mut canvas, columns);
    chart.forecast(&mut canvas, columns);
    chart.limit(&mut canvas, columns, palette);
    chart.knee(&mut canvas, columns, palette);
    chart.names(&mut canvas, columns, palette);
    canvas.show(buffer, plot, palette);
    chart.left_labels(buffer, area, gutter, palette);
    let axis = chart.axis_line(columns, palette);
    super::lines(buffer, Rect { x: plot.x, y: plot.bottom(), height: 1, ..plot }, &[axis]);
}

struct Chart<'a> {
    picture: &'a Picture<'a>,
    /// Steps or time.
    axis: Clock,
    /// Places on the axis and the layers there, in the order of the places.
    points: Vec<(f64, [f64; STACK.len()])>,
    from: f64,
    now: f64,
    to: f64,
    courses: Vec<Course>,
    scale: Scale,
    /// The limit and whether it is on the chart.
    limit: Option<(u64, bool)>,
    rows: usize,
}

impl<'a> Chart<'a> {
    fn new(picture: &'a Picture<'a>, layers: Layers, window: Window, rows: usize) -> Option<Chart<'a>> {
        let shown = window.of(picture.history);
        let axis = axis_of(picture, shown);
        let place = |point: &Point| match axis {
            Clock::Step => point.step,
            Clock::Time | Clock::Sample => Some(point.time_s),
        };
        let placed = shown.iter().filter_map(|point| Some((place(point)?, layers_of(point, layers))));
        let points: Vec<(f64, [f64; STACK.len()])> = placed.filter(|point| point.0.is_finite()).collect();
        let (from, now) = (points.first()?.0, points.last()?.0);
        let step = shown.last().and_then(|point| point.step).or(picture.step);
        let ahead = outlook(picture, Present { axis, place: now, step }, now - from);
        let Outlook { courses, to } = ahead.unwrap_or(Outlook { courses: Vec::new(), to: now });
        let highest = points.iter().map(|point| point.1.iter().sum()).fold(0.0, f64::max);
        // A course may leave the chart to the right before it ends.
        let foreseen = courses.iter().filter_map(|course| interpolate(&course.points, to.min(course.points.last()?.0)));
        let foreseen = foreseen.fold(highest, f64::max);
        let limit = picture.limit.map(|limit| {
            let reach = limit as f64 * 0.999;
            (limit, highest >= LIMIT_IN_SIGHT * limit as f64 || foreseen >= reach)
        });
        let top = limit.filter(|limit| limit.1).map_or(foreseen, |limit| foreseen.max(limit.0 as f64));
        let to = if to > from { to } else { from + 1.0 };
        Some(Chart {
            picture,
            axis,
            points,
            from,
            now,
            to,
            courses,
            scale: Scale::fit(0.0, top.max(1.0), rows + 1, Measure::Memory),
            limit,
            rows,
        })
    }

    /// The dot column of a place.
    fn dot_x(&self, place: f64, columns: usize) -> usize {
        let share = ((place - self.from) / (self.to - self.from)).clamp(0.0, 1.0);
        (share * (columns * DOTS_ACROSS).saturating_sub(1) as f64).round() as usize
    }

    /// How many dots a value is high: the axis is half a row below the lowest dots.
    fn dots_high(&self, bytes: f64) -> usize {
        // `as` saturates, which is right for what lies below the lowest dot.
        let dots = ((bytes / self.scale.per_row - 0.5) * DOTS_DOWN as f64).round() as usize;
        // Something is never drawn as nothing.
        dots.max(usize::from(bytes > 0.0))
    }

    /// The row of a value, counted from the lowest.
    fn row(&self, bytes: f64) -> Option<usize> {
        let row = (bytes / self.scale.per_row).round() as usize;
        row.checked_sub(1).filter(|&row| row < self.rows)
    }

    fn layers(&self, canvas: &mut Canvas, columns: usize) {
        let mut before: Option<(usize, [f64; STACK.len()])> = None;
        let peaks = self.points.chunk_by(|a, b| self.dot_x(a.0, columns) == self.dot_x(b.0, columns));
        for same_column in peaks {
            // Of several samples in one column, the highest is shown: no spike is lost.
            let total = |point: &&(f64, [f64; STACK.len()])| point.1.iter().sum::<f64>();
            let Some(&(place, heights)) = same_column.iter().max_by(|a, b| total(a).total_cmp(&total(b))) else {
                continue;
            };
            let x = self.dot_x(place, columns);
            let (start, from) = before.unwrap_or((x, heights));
            for between in (start + 1).min(x)..=x {
                let share = if x > start { (between - start) as f64 / (x - start) as f64 } else { 1.0 };
                self.stack(canvas, between, &std::array::from_fn(|n| from[n] + share * (heights[n] - from[n])));
            }
            before = Some((x, heights));
        }
    }

    fn stack(&self, canvas: &mut Canvas, x: usize, heights: &[f64; STACK.len()]) {
        let (mut sum, mut bottom) = (0.0, 0);
        for ((ink, _), height) in STACK.iter().zip(heights) {
            sum += height;
            let top = self.dots_high(sum);
            canvas.fill(x, bottom, top, *ink);
            bottom = top;
        }
    }

    fn forecast(&self, canvas: &mut Canvas, columns: usize) {
        let per_dot = (self.to - self.from) / (columns * DOTS_ACROSS).max(1) as f64;
        let first = self.dot_x(self.now, columns) + 2;
        for x in (first..columns * DOTS_ACROSS).step_by(DOT_DISTANCE) {
            let place = self.from + (x as f64 + 0.5) * per_dot;
            let heights = self.courses.iter().filter_map(|course| {
                let bytes = interpolate(&course.points, place)?;
                Some((self.dots_high(bytes).saturating_sub(1), course.ink))
            });
            let heights: Vec<(usize, Ink)> = heights.collect();
            match heights.as_slice() {
                // Until the courses part they are one line, in the colour of the memory that it continues.
                [(one, _), (other, _)] if one.abs_diff(*other) <= 1 => canvas.dot(x, *one, Ink::Anon),
                _ => heights.into_iter().for_each(|(y, ink)| canvas.dot(x, y, ink)),
            }
        }
    }

    /// The limit as a dashed line, or an arrow towards it.
    fn limit(&self, canvas: &mut Canvas, columns: usize, palette: Palette) {
        let Some((limit, in_sight)) = self.limit else { return };
        let top = self.rows - 1;
        let name = format!("limit {}", Bytes(limit));
        if !in_sight {
            canvas.write_free((0, columns), top, &format!("↑ {name} above"), palette.alarm());
            return;
        }
        let row = self.row(limit as f64).unwrap_or(top);
        // Gaps of our own: some fonts draw the dashed box characters without any.
        for column in (0..columns).filter(|column| column % 3 < 2) {
            canvas.overlay(column, row, '─', palette.alarm());
        }
        canvas.write(2, row, &format!(" {name} "), palette.alarm());
    }

    /// Where the growth ended, if it did.
    fn knee(&self, canvas: &mut Canvas, columns: usize, palette: Palette) {
        let Some(place) = self.knee_place().filter(|place| (self.from..=self.now).contains(place)) else { return };
        let column = self.dot_x(place, columns) / DOTS_ACROSS;
        for row in 0..self.rows {
            canvas.mark(column, row, '┊', palette.quiet());
        }
        let label = format!("grew until {}", words_of(self.axis, self.to).bare(place));
        let sides = [(column + 2, column + 2 + width(&label)), (0, column.saturating_sub(1))];
        let rows = (0..self.rows).rev();
        let mut places = rows.flat_map(|row| sides.map(|side| (side, row)));
        places.any(|(side, row)| canvas.write_free(side, row, &label, palette.quiet()));
    }

    fn knee_place(&self) -> Option<f64> {
        let diagnosis = self.picture.diagnosis?;
        let knee = diagnosis.knee.filter(|_| self.courses.is_empty())?;
        match self.axis {
            Clock::Step => knee.step,
            Clock::Time | Clock::Sample => Some(knee.time_s? + self.picture.history.first()?.time_s),
        }
    }

    /// Names the courses of the forecast, near their ends.
    fn names(&self, canvas: &mut Canvas, columns: usize, palette: Palette) {
        let first = self.dot_x(self.now, columns) / DOTS_ACROSS + 1;
        for course in &self.courses {
            let end = interpolate(&course.points, self.to).or(course.points.last().map(|point| point.1));
            let row = end.and_then(|end| self.row(end)).unwrap_or(0);
            let mut rows: Vec<usize> = (0..self.rows).filter(|&other| other != row).collect();
            // Beside its own line: what never ends is the upper one.
            let is_far_side = |other: usize| (other < row) == (course.ink == Ink::Unbounded);
            rows.sort_by_key(|&other| (is_far_side(other), other.abs_diff(row)));
            let style = palette.ink(course.ink);
            let right = columns.saturating_sub(width(&course.label)).max(first);
            let places = rows.iter().map(|&row| (right, row)).chain(rows.iter().map(|&row| (first, row)));
            let mut places = places.map(|(from, row)| ((from, columns), row));
            places.any(|(between, row)| canvas.write_free(between, row, &course.label, style));
        }
    }

    fn left_labels(&self, buffer: &mut Buffer, area: Rect, gutter: usize, palette: Palette) {
        for (from_top, place) in area.rows().enumerate() {
            let row = self.rows.checked_sub(from_top);
            let label = self.scale.labels.iter().find(|label| Some(label.0) == row);
            let edge = match (row, label) {
                (Some(0), _) => '└',
                (_, Some(_)) => '┤',
                _ => '│',
            };
            let text = format!("{:>gutter$} {edge}", label.map_or("", |label| &label.1));
            buffer.set_stringn(place.x, place.y, text, place.width.into(), palette.quiet());
        }
    }

    /// The axis with its labels in it; what is still to come is dotted.
    fn axis_line(&self, columns: usize, palette: Palette) -> Line<'static> {
        let now = self.dot_x(self.now, columns) / DOTS_ACROSS;
        let mut cells: Vec<char> = (0..columns).map(|column| if column <= now { '─' } else { '┈' }).collect();
        let words = words_of(self.axis, self.to);
        let labels = clock_labels(words, self.from, self.to, columns / LABEL_COLUMNS);
        let unit = words.axis_unit();
        let mut write = |label: &str, start: usize| {
            let label = format!(" {label} ");
            let end = start + label.chars().count();
            let is_free = end <= columns && cells[start..end].iter().all(|cell| matches!(cell, '─' | '┈'));
            if is_free {
                cells.splice(start..end, label.chars());
            }
        };
        write(unit, columns.saturating_sub(unit.len() + 2));
        if !self.courses.is_empty() {
            write("now", now.saturating_sub(2));
        }
        for (place, label) in labels {
            write(&label, (self.dot_x(place, columns) / DOTS_ACROSS).saturating_sub(label.len().div_ceil(2)));
        }
        Line::styled(cells.into_iter().collect::<String>(), palette.quiet())
    }
}

/// Steps if the diagnosis counts them and the points shown have them in order, else the time.
fn axis_of(picture: &Picture, shown: &[Point]) -> Clock {
    let steps = shown.iter().filter_map(|point| point.step);
    let first = steps.clone().next();
    let moves = first.zip(steps.clone().next_back()).is_some_and(|(first, last)| last > first);
    let counts_steps = picture.diagnosis.is_some_and(|diagnosis| diagnosis.clock == Clock::Step);
    if counts_steps && moves && steps.is_sorted() { Clock::Step } else { Clock::Time }
}

//! A grid of braille cells, two by four dots each, with characters between the dots.
//!
//! Layers differ in the pattern of their dots as well as in their colour, so they can be told apart without any. Nothing
//! is known here about memory or time; `chart.rs` decides what to draw.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use garden_report::terminal::{DOTS_ACROSS, DOTS_DOWN, braille, dot};

use super::palette::{Ink, Palette};
use super::text::width;

#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    dots: u8,
    /// Dots by ink; the cell takes the colour of the most.
    inks: [u8; Ink::COUNT],
    mark: Option<(char, Style)>,
}

/// What is drawn before it reaches the terminal. Columns count from the left, rows and dots upwards from the axis.
#[derive(Debug)]
pub(super) struct Canvas {
    columns: usize,
    rows: usize,
    cells: Vec<Cell>,
}

impl Canvas {
    /// An empty canvas.
    pub fn new(columns: usize, rows: usize) -> Canvas {
        Canvas { columns, rows, cells: vec![Cell::default(); columns * rows] }
    }

    fn cell(&mut self, column: usize, row: usize) -> Option<&mut Cell> {
        (column < self.columns).then(|| self.cells.get_mut(row * self.columns + column)).flatten()
    }

    /// Sets a dot.
    pub fn dot(&mut self, x: usize, y: usize, ink: Ink) {
        if let Some(cell) = self.cell(x / DOTS_ACROSS, y / DOTS_DOWN) {
            cell.dots |= upwards(x, y);
            let count = &mut cell.inks[ink as usize];
            *count = count.saturating_add(1);
        }
    }

    /// Fills one dot column of a layer in its pattern, with a solid edge on top.
    pub fn fill(&mut self, x: usize, from: usize, to: usize, ink: Ink) {
        let to = to.min(self.rows * DOTS_DOWN);
        for y in from..to {
            if y + 1 == to || is_inked(x, y, ink) {
                self.dot(x, y, ink);
            }
        }
    }

    /// Whether nothing is in a cell.
    fn is_free(&self, column: usize, row: usize) -> bool {
        let cell = self.cells.get(row * self.columns + column);
        column < self.columns && cell.is_some_and(|cell| cell.dots == 0 && cell.mark.is_none())
    }

    /// Puts a character where nothing else is.
    pub fn mark(&mut self, column: usize, row: usize, mark: char, style: Style) {
        if self.is_free(column, row) {
            self.overlay(column, row, mark, style);
        }
    }

    /// Puts a character over whatever is there.
    pub fn overlay(&mut self, column: usize, row: usize, mark: char, style: Style) {
        if let Some(cell) = self.cell(column, row) {
            cell.mark = Some((mark, style));
        }
    }

    /// Writes a label over whatever is there. Labels consist of characters that are one column wide.
    pub fn write(&mut self, column: usize, row: usize, label: &str, style: Style) {
        for (index, letter) in label.chars().enumerate() {
            self.overlay(column + index, row, letter, style);
        }
    }

    /// Writes a label where nothing else is, as far right as possible between two columns; false if there is no room.
    pub fn write_free(&mut self, columns: (usize, usize), row: usize, label: &str, style: Style) -> bool {
        let length = width(label);
        let Some(last) = columns.1.min(self.columns).checked_sub(length) else { return false };
        // A free cell on either side keeps the label apart from lines.
        let is_free = |&at: &usize| {
            let around = at.saturating_sub(1)..(at + length + 1).min(self.columns);
            around.clone().all(|column| self.is_free(column, row))
        };
        let found = (columns.0..=last).rev().find(is_free);
        if let Some(at) = found {
            self.write(at, row, label, style);
        }
        found.is_some()
    }

    /// Shows the canvas; its top left cell comes to the area's.
    pub fn show(&self, buffer: &mut Buffer, area: Rect, palette: Palette) {
        for (row, place) in (0..self.rows).rev().zip(area.rows()) {
            for (column, place) in (0..self.columns).zip(place.columns()) {
                let cell = &self.cells[row * self.columns + column];
                let most = (0..Ink::COUNT).max_by_key(|&ink| cell.inks[ink]).unwrap_or(0);
                let (symbol, style) = match (cell.mark, cell.dots) {
                    (Some(mark), _) => mark,
                    (None, 0) => continue,
                    (None, dots) => (braille(dots), palette.ink(Ink::ALL[most])),
                };
                if let Some(shown) = buffer.cell_mut((place.x, place.y)) {
                    shown.set_char(symbol).set_style(style);
                }
            }
        }
    }
}

/// A cell that is full of a layer's pattern, for legends.
pub(super) fn swatch(ink: Ink) -> char {
    let all = (0..DOTS_ACROSS).flat_map(|x| (0..DOTS_DOWN).map(move |y| (x, y)));
    braille(all.filter(|&(x, y)| is_inked(x, y, ink)).fold(0, |dots, (x, y)| dots | upwards(x, y)))
}

/// The bit of a dot whose row counts from the bottom of the cell.
fn upwards(x: usize, y: usize) -> u8 {
    dot(x, DOTS_DOWN - 1 - y % DOTS_DOWN)
}

/// The pattern of a layer: the less a layer's memory is at stake, the sparser.
fn is_inked(x: usize, y: usize, ink: Ink) -> bool {
    match ink {
        Ink::Shared => (x + y).is_multiple_of(2),
        Ink::Swap => y.is_multiple_of(2),
        Ink::File => y % 2 == 1 && x % 2 == y / 2 % 2,
        Ink::Anon | Ink::Bounded | Ink::Unbounded => true,
    }
}

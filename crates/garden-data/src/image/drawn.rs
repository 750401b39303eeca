//! Renders a picture as the model sees it with its boxes drawn, to check a dataset's coordinates by eye.

use super::rgb::Picture;
use crate::dataset::record::StoredPicture;
use crate::error::Error;
use crate::example::boxes::WrittenBox;
use crate::processor::Processor;
use garden_input::Grid;

/// Cycled colours, bright enough for photographs.
const COLOURS: [[u8; 3]; 6] =
    [[255, 40, 40], [40, 220, 40], [60, 120, 255], [255, 200, 0], [255, 60, 255], [0, 220, 220]];
/// Pixels of the shorter side per pixel of line width.
const SIDE_FOR_A_LINE: usize = 250;
/// Minimum line width.
const THINNEST: usize = 2;

/// A PNG of a picture at the size the model sees, with boxes and points drawn.
pub fn drawn_png(
    processor: &Processor,
    stored: &StoredPicture,
    grid: Grid,
    boxes: &[&WrittenBox],
) -> Result<Vec<u8>, Error> {
    let mut picture = Picture::default();
    picture.decode(&stored.name, &stored.data, processor.max_decoded_pixels)?;
    let patch = processor.images.patch;
    let mut picture = picture.resized(grid[2] * patch, grid[1] * patch);
    for (one, colour) in boxes.iter().zip(COLOURS.iter().cycle()) {
        picture.draw(&one.numbers, *colour);
    }
    picture.to_png().map_err(|error| Error::picture(&stored.name, error.to_string()))
}

impl Picture {
    /// Draws the outline of a box, or a cross for a point.
    fn draw(&mut self, numbers: &[i64], colour: [u8; 3]) {
        let thick = (self.width.min(self.height) / SIDE_FOR_A_LINE).max(THINNEST) as i64;
        match *numbers {
            [x1, y1, x2, y2] => {
                self.fill_box([x1, y1, x2, y1 + thick], colour);
                self.fill_box([x1, y2 - thick, x2, y2], colour);
                self.fill_box([x1, y1, x1 + thick, y2], colour);
                self.fill_box([x2 - thick, y1, x2, y2], colour);
            }
            [x, y] => {
                let reach = 4 * thick;
                self.fill_box([x - reach, y - thick / 2, x + reach, y + (thick + 1) / 2], colour);
                self.fill_box([x - thick / 2, y - reach, x + (thick + 1) / 2, y + reach], colour);
            }
            _ => {}
        }
    }

    /// Fills the visible part of a box, excluding its second corner.
    fn fill_box(&mut self, [x1, y1, x2, y2]: [i64; 4], colour: [u8; 3]) {
        let within = |place: i64, side: usize| place.clamp(0, side as i64) as usize;
        let (left, right) = (within(x1, self.width), within(x2, self.width));
        for row in within(y1, self.height)..within(y2, self.height) {
            let from = 3 * (row * self.width + left);
            let until = 3 * (row * self.width + right.max(left));
            self.pixels[from..until].as_chunks_mut::<3>().0.fill(colour);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn outlines_are_where_the_numbers_say() {
        let mut picture = Picture { width: 40, height: 30, pixels: vec![9; 3 * 40 * 30] };
        picture.draw(&[10, 5, 30, 25], COLOURS[0]);
        picture.draw(&[38, 2], COLOURS[1]);
        picture.draw(&[-5, -5, 100, 100], COLOURS[2]);
        let at = |x: usize, y: usize| <[u8; 3]>::try_from(&picture.pixels[3 * (40 * y + x)..][..3]).unwrap();
        for (x, y) in [(10, 5), (29, 24), (20, 6), (11, 15), (28, 15), (20, 23)] {
            assert_eq!(at(x, y), COLOURS[0], "{x} {y}");
        }
        for (x, y) in [(9, 15), (12, 15), (30, 15), (20, 7), (20, 22), (20, 25)] {
            assert_eq!(at(x, y), [9; 3], "{x} {y}");
        }
        assert_eq!((at(38, 2), at(33, 2)), (COLOURS[1], COLOURS[1]));
    }
}

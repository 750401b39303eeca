//! A picture as the model takes it: resized, scaled and cut into patches.
//!
//! Patches come in blocks of a merged token, row by row, and within a block row by row; a patch is [channel, frame, row, column]. Rows of
//! the resized picture are written to their places as they are made, so it never exists as a whole.

use super::resize::Weights;
use super::rgb::Picture;
use super::settings::{Grid, ImageSettings};

/// Turns pictures into patches, and keeps its memory from one to the next.
#[derive(Debug)]
pub struct Patcher {
    settings: ImageSettings,
    levels: Box<[[f32; 256]; 3]>,
    across: Weights,
    down: Weights,
    /// Rows that were resized, by their number modulo the ring's length.
    ring: Vec<u8>,
    sums: Vec<i32>,
    row: Vec<u8>,
}

impl Patcher {
    /// One for these settings.
    pub fn new(settings: ImageSettings) -> Patcher {
        let levels = Box::new(settings.levels());
        Patcher {
            settings,
            levels,
            across: Weights::default(),
            down: Weights::default(),
            ring: Vec::new(),
            sums: Vec::new(),
            row: Vec::new(),
        }
    }

    /// The settings.
    pub fn settings(&self) -> &ImageSettings {
        &self.settings
    }

    /// Writes the patches of a picture, [rows x columns, values of a patch], into a buffer that has just their size.
    pub fn write(&mut self, picture: &Picture, grid: Grid, patches: &mut [f32]) {
        let [_, rows, columns] = grid;
        let (height, width) = (rows * self.settings.patch, columns * self.settings.patch);
        assert_eq!(patches.len(), rows * columns * self.settings.patch_values(), "the buffer is of another size");
        self.row.resize(3 * width, 0);
        self.sums.resize(3 * width, 0);
        let is_wide = picture.width == width;
        if !is_wide {
            self.across.compute(picture.width, width);
        }
        if picture.height == height {
            for row in 0..height {
                let source = picture_row(picture, row);
                if is_wide {
                    self.row.copy_from_slice(source);
                } else {
                    self.across.row(source, &mut self.row);
                }
                self.place(row, columns, patches);
            }
            return;
        }
        self.down.compute(picture.height, height);
        let length = self.down.longest;
        self.ring.resize(length * 3 * width, 0);
        let mut ready = 0;
        for row in 0..height {
            let (first, count) = self.down.spans[row];
            for source in ready.max(first)..first + count {
                let slot = &mut self.ring[source % length * 3 * width..][..3 * width];
                if is_wide {
                    slot.copy_from_slice(picture_row(picture, source));
                } else {
                    self.across.row(picture_row(picture, source), slot);
                }
            }
            ready = ready.max(first + count);
            let ring = &self.ring;
            let resized = |source: usize| &ring[source % length * 3 * width..][..3 * width];
            self.down.column(row, resized, &mut self.sums, &mut self.row);
            self.place(row, columns, patches);
        }
    }

    /// Writes the current row of the resized picture to its places.
    fn place(&self, row: usize, columns: usize, patches: &mut [f32]) {
        let ImageSettings { patch: side, merge, frames, .. } = self.settings;
        let (patch_row, inner) = (row / side, row % side);
        for (patch_column, pixels) in self.row.chunks_exact(3 * side).enumerate() {
            let block = patch_row / merge * (columns / merge) + patch_column / merge;
            let patch = (block * merge + patch_row % merge) * merge + patch_column % merge;
            let values = &mut patches[patch * self.settings.patch_values()..][..self.settings.patch_values()];
            for (channel, planes) in values.chunks_exact_mut(frames * side * side).enumerate() {
                let levels = &self.levels[channel];
                for plane in planes.chunks_exact_mut(side * side) {
                    for (value, pixel) in plane[inner * side..][..side].iter_mut().zip(pixels.chunks_exact(3)) {
                        *value = levels[usize::from(pixel[channel])];
                    }
                }
            }
        }
    }
}

fn picture_row(picture: &Picture, row: usize) -> &[u8] {
    &picture.pixels[row * 3 * picture.width..][..3 * picture.width]
}

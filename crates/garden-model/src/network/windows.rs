//! The order in which a vision tower takes the merged tokens of images, and the segments that its attention runs over: whole frames, and windows of them if
//! the tower has such blocks.

use garden_input::{Grid, VisionConfig};

/// Merged tokens in the tower's order, and the boundaries of attention segments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Windows {
    /// The merged tokens in window order; in input order without windows.
    pub order: Vec<usize>,
    /// Start of each window in patches, and the end of the last; nothing without windows.
    pub cu_window_seqlens: Vec<i32>,
    /// Start of each image frame in patches, and the end of the last.
    pub cu_image_seqlens: Vec<i32>,
    /// Row and column of each patch in its image, in input order.
    pub positions: Vec<[usize; 2]>,
}

impl Windows {
    pub fn of(grids: &[Grid], vision: &VisionConfig) -> Windows {
        let cu_window_seqlens = vision.windows.iter().map(|_| 0).collect();
        let mut windows = Windows { cu_window_seqlens, cu_image_seqlens: vec![0], ..Windows::default() };
        for &[frames, height, width] in grids {
            for _ in 0..frames {
                windows.add_frame(height, width, vision);
            }
        }
        windows
    }

    fn add_frame(&mut self, height: usize, width: usize, vision: &VisionConfig) {
        let merge = vision.merge;
        let (first, rows, columns) = (self.order.len(), height / merge, width / merge);
        match &vision.windows {
            None => self.order.extend(first..first + rows * columns),
            Some(windows) => self.add_windows(rows, columns, windows.side, vision.merged()),
        }
        let last = self.cu_image_seqlens.last().copied().unwrap_or(0);
        self.cu_image_seqlens.push(last + (height * width) as i32);
        for (top, left) in blocks(height, width, merge) {
            self.positions.extend((0..merge).flat_map(|row| (0..merge).map(move |column| [top + row, left + column])));
        }
    }

    /// Adds the windows of a frame of so many merged tokens.
    fn add_windows(&mut self, rows: usize, columns: usize, side: usize, merged: usize) {
        let first = self.order.len();
        for (top, left) in blocks(rows, columns, side) {
            // Windows at the right and lower edge may be smaller.
            for row in top..(top + side).min(rows) {
                self.order.extend((left..(left + side).min(columns)).map(|column| first + row * columns + column));
            }
            self.cu_window_seqlens.push((self.order.len() * merged) as i32);
        }
    }

    /// The patches in the tower's order.
    pub fn patches(&self, merged: usize) -> Vec<usize> {
        self.order.iter().flat_map(|token| (0..merged).map(move |inner| token * merged + inner)).collect()
    }
}

/// The upper left corners of blocks, row by row.
fn blocks(rows: usize, columns: usize, side: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rows).step_by(side).flat_map(move |top| (0..columns).step_by(side).map(move |left| (top, left)))
}

//! Angles of rotary positions, as tables of cosines and sines.

use crate::config::{TextConfig, VISION_THETA, VisionConfig};

/// Cosines and sines, [tokens, half a head] each.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Table {
    pub cosines: Vec<f32>,
    pub sines: Vec<f32>,
}

impl Table {
    fn push(&mut self, angle: f32) {
        self.cosines.push(angle.cos());
        self.sines.push(angle.sin());
    }
}

/// theta^(-i / count).
fn frequencies(count: usize, theta: f32) -> Vec<f32> {
    (0..count).map(|i| 1.0 / theta.powf(i as f32 / count as f32)).collect()
}

/// The decoder's: frequency i turns with time, row or column, as the sections say.
pub(crate) fn of_tokens(positions: &[[i32; 3]], text: &TextConfig) -> Table {
    let frequencies = frequencies(text.head_size() / 2, text.theta);
    let axes: Vec<usize> =
        text.sections.iter().enumerate().flat_map(|(axis, count)| std::iter::repeat_n(axis, *count)).collect();
    let mut table = Table::default();
    for position in positions {
        for (frequency, axis) in frequencies.iter().zip(&axes) {
            table.push(position[*axis] as f32 * frequency);
        }
    }
    table
}

/// The vision tower's: the first half of the frequencies turns with the row, the second with the column.
pub(crate) fn of_patches(positions: impl Iterator<Item = [usize; 2]>, vision: &VisionConfig) -> Table {
    let frequencies = frequencies(vision.head_size() / 4, VISION_THETA);
    let mut table = Table::default();
    for position in positions {
        for axis in position {
            frequencies.iter().for_each(|frequency| table.push(axis as f32 * frequency));
        }
    }
    table
}

//! Tables of cosines and sines for rotary position embeddings.

use std::ops::Range;

use garden_input::{TextConfig, VisionConfig};

/// Base of the vision tower's rotary frequencies; set in the model's code, not in its configuration.
const VISION_THETA: f32 = 1e4;

/// Cosines and sines, `[tokens, half a head]` each.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Table {
    pub cosines: Vec<f32>,
    pub sines: Vec<f32>,
}

impl Table {
    fn with_room(values: usize) -> Table {
        Table { cosines: Vec::with_capacity(values), sines: Vec::with_capacity(values) }
    }

    fn extend(&mut self, from: &Table, values: Range<usize>) {
        self.cosines.extend_from_slice(&from.cosines[values.clone()]);
        self.sines.extend_from_slice(&from.sines[values]);
    }
}

/// Cosines and sines of all frequencies for each distinct position: there are few positions and many tokens.
struct Known {
    table: Table,
    frequencies: Vec<f32>,
    /// The row of each position, counted from 1; 0 for none.
    rows: Vec<u32>,
}

impl Known {
    fn of(positions: impl Iterator<Item = usize>, frequencies: Vec<f32>) -> Known {
        let mut known = Known { table: Table::default(), frequencies, rows: Vec::new() };
        for position in positions {
            if known.rows.len() <= position {
                known.rows.resize(position + 1, 0);
            }
            if known.rows[position] == 0 {
                let angles = known.frequencies.iter().map(|frequency| position as f32 * frequency);
                for angle in angles {
                    known.table.cosines.push(angle.cos());
                    known.table.sines.push(angle.sin());
                }
                known.rows[position] = (known.table.cosines.len() / known.frequencies.len()) as u32;
            }
        }
        known
    }

    /// Appends some frequencies of a position to a table.
    fn add(&self, position: usize, frequencies: Range<usize>, to: &mut Table) {
        let row = (self.rows[position] as usize - 1) * self.frequencies.len();
        to.extend(&self.table, row + frequencies.start..row + frequencies.end);
    }
}

/// theta^(-i / count).
fn frequencies(count: usize, theta: f32) -> Vec<f32> {
    (0..count).map(|i| 1.0 / theta.powf(i as f32 / count as f32)).collect()
}

/// The decoder's table (M-RoPE): each section of frequencies rotates with time, row or column.
pub(crate) fn of_tokens(positions: &[[i32; 3]], text: &TextConfig) -> Table {
    let width = text.head_dim / 2;
    let all = positions.iter().flatten().map(|position| *position as usize);
    let known = Known::of(all, frequencies(width, text.theta));
    let mut table = Table::with_room(positions.len() * width);
    for position in positions {
        let mut first = 0;
        for (axis, count) in position.iter().zip(&text.sections) {
            known.add(*axis as usize, first..first + count, &mut table);
            first += count;
        }
    }
    table
}

/// The vision tower's table: the first half of the frequencies rotates with the row, the second with the column.
pub(crate) fn of_patches(positions: impl Iterator<Item = [usize; 2]> + Clone, vision: &VisionConfig) -> Table {
    let width = vision.head_size() / 4;
    let known = Known::of(positions.clone().flatten(), frequencies(width, VISION_THETA));
    let mut table = Table::with_room(2 * positions.size_hint().0 * width);
    positions.flatten().for_each(|axis| known.add(axis, 0..width, &mut table));
    table
}

//! Tables of cosines and sines for rotary position embeddings.

use std::ops::Range;

use garden_device::{Buffer, Device, Dtype, OutOfMemory, Purpose};
use garden_input::{RotarySpec, TextConfig, VisionConfig};

use crate::model::upload;

/// Cosines and sines, `[tokens, half a head]` each.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Table {
    pub cosines: Vec<f32>,
    pub sines: Vec<f32>,
    /// Half a head.
    width: usize,
}

/// The most rotary embeddings of a decoder that differ.
pub(crate) const MOST: usize = 2;

/// Tables on the device, f32 `[tokens, half a head]` each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Angles {
    pub cosines: Buffer,
    pub sines: Buffer,
}

/// Buffers of the decoder's tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AngleInputs {
    tables: [Angles; MOST],
    count: usize,
}

impl AngleInputs {
    /// Allocates buffers for `tokens` tokens.
    ///
    /// # Panics
    /// If the decoder has more kinds than [`MOST`].
    pub fn build(device: &mut dyn Device, text: &TextConfig, tokens: usize) -> Result<AngleInputs, OutOfMemory> {
        let mut make =
            |what: &str, width: usize| device.buffer(Purpose::Batch, what, Dtype::F32, tokens.saturating_mul(width));
        let mut made = Vec::new();
        for (number, rotary) in text.rotaries().iter().enumerate() {
            let (width, of) = (rotary.width(), if number > 0 { format!(" {number}") } else { String::new() });
            made.push(Angles {
                cosines: make(&format!("cosines{of}"), width)?,
                sines: make(&format!("sines{of}"), width)?,
            });
        }
        assert!((1..=MOST).contains(&made.len()), "a decoder has 1 to {MOST} rotary embeddings");
        let count = made.len();
        Ok(AngleInputs { tables: std::array::from_fn(|index| made[index.min(count - 1)]), count })
    }

    /// Uploads the rows of some tokens; the tables are as many as the decoder has rotary embeddings.
    pub fn put(&self, device: &mut dyn Device, tables: &[Table], tokens: Range<usize>) -> [Angles; MOST] {
        let mut put = self.tables;
        for ((to, table), angles) in put.iter_mut().zip(tables).zip(&self.tables[..self.count]) {
            let values = tokens.start * table.width..tokens.end * table.width;
            to.cosines = upload(device, angles.cosines, &table.cosines[values.clone()]);
            to.sines = upload(device, angles.sines, &table.sines[values]);
        }
        put
    }
}

impl Table {
    fn with_room(rows: usize, width: usize) -> Table {
        let values = rows * width;
        Table { cosines: Vec::with_capacity(values), sines: Vec::with_capacity(values), width }
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

/// The decoder's tables, one for each of its rotary embeddings.
pub(crate) fn of_tokens(positions: &[[i32; 3]], text: &TextConfig) -> Vec<Table> {
    text.rotaries().iter().map(|rotary| table(positions, rotary)).collect()
}

/// M-RoPE: each section of frequencies rotates with time, row or column.
fn table(positions: &[[i32; 3]], rotary: &RotarySpec) -> Table {
    let width = rotary.width();
    let all = positions.iter().flatten().map(|position| *position as usize);
    let known = Known::of(all, frequencies(width, rotary.theta));
    let mut table = Table::with_room(positions.len(), width);
    for position in positions {
        let mut first = 0;
        for (axis, count) in position.iter().zip(&rotary.sections) {
            known.add(*axis as usize, first..first + count, &mut table);
            first += count;
        }
    }
    table
}

/// The vision tower's table: the first half of the frequencies rotates with the row, the second with the column.
pub(crate) fn of_patches(positions: impl Iterator<Item = [usize; 2]> + Clone, vision: &VisionConfig) -> Table {
    let width = vision.head_size() / 4;
    let known = Known::of(positions.clone().flatten(), frequencies(width, vision.rotary_theta));
    let mut table = Table::with_room(positions.size_hint().0, 2 * width);
    positions.flatten().for_each(|axis| known.add(axis, 0..width, &mut table));
    table
}

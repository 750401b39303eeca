//! Collates examples and their pictures into batches.
//!
//! Pictures are decoded one after the other, straight into the batch's patch buffer. Patch buffers are
//! sized for the largest batch and reused: [`Collator::finish`] hands one out, [`Collator::give_back`] takes it back. There are as
//! many as batches in flight, after a million rows as after the first.

use garden_input::{Images, Row};

use crate::dataset::record::StoredPicture;
use crate::error::Error;
use crate::example::Example;
use crate::image::Patcher;
use crate::processor::Processor;

/// Collates examples, reusing its memory from batch to batch.
#[derive(Debug)]
pub struct Collator {
    patcher: Patcher,
    max_decoded_pixels: u64,
    /// Patches of the largest batch.
    room: usize,
    /// May be longer than `used`: memory written once need not be cleared.
    pixels: Vec<f32>,
    used: usize,
    /// Buffers of finished batches.
    spare: Vec<Vec<f32>>,
    grids: Vec<[usize; 3]>,
    rows: Vec<Row>,
}

impl Collator {
    /// A collator for batches of at most `patches` patches.
    pub fn new(processor: &Processor, patches: usize) -> Collator {
        Collator {
            patcher: Patcher::new(processor.images.clone()),
            max_decoded_pixels: processor.max_decoded_pixels,
            room: patches,
            pixels: Vec::with_capacity(patches * processor.images.patch_values()),
            used: 0,
            spare: Vec::new(),
            grids: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// A collator without a buffer; it writes into buffers given back to it.
    pub(crate) fn empty(processor: &Processor, patches: usize) -> Collator {
        Collator { pixels: Vec::new(), ..Collator::new(processor, patches) }
    }

    /// Adds an example with its pictures. After an error the batch is unchanged, so the row may be skipped.
    pub fn add(&mut self, example: Example, pictures: &[StoredPicture]) -> Result<(), Error> {
        let (used, grids) = (self.used, self.grids.len());
        self.fits(&example, pictures)?;
        for (picture, grid) in pictures.iter().zip(&example.grids) {
            if let Err(error) = self.write(picture, *grid) {
                self.used = used;
                self.grids.truncate(grids);
                return Err(error);
            }
        }
        self.rows.push(Row { tokens: example.tokens, labels: example.labels });
        Ok(())
    }

    fn fits(&self, example: &Example, pictures: &[StoredPicture]) -> Result<(), Error> {
        if pictures.len() != example.grids.len() {
            let problem = format!("the example has {} pictures; {} were given", example.grids.len(), pictures.len());
            return Err(Error::row(&example.place, problem));
        }
        let needed = self.patches() + example.patches();
        if needed > self.room {
            let problem = format!(
                "its pictures have {} patches, {needed} in the batch; the buffers hold {}",
                example.patches(),
                self.room
            );
            return Err(Error::row(&example.place, problem));
        }
        Ok(())
    }

    fn write(&mut self, file: &StoredPicture, grid: [usize; 3]) -> Result<(), Error> {
        let end = self.used + grid.iter().product::<usize>() * self.patcher.settings().patch_values();
        if self.pixels.capacity() == 0 {
            // Allocated at full size: a growing buffer would be copied, and end larger than necessary.
            self.pixels = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(self.room_values()));
        }
        if self.pixels.len() < end {
            self.pixels.resize(end, 0.0);
        }
        let to = &mut self.pixels[self.used..end];
        self.patcher.decode(&file.name, &file.data, self.max_decoded_pixels, grid, to)?;
        self.used = end;
        self.grids.push(grid);
        Ok(())
    }

    /// Rows in the current batch.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Tokens in the current batch.
    pub fn tokens(&self) -> usize {
        self.rows.iter().map(|row| row.tokens.len()).sum()
    }

    /// Patches in the current batch.
    pub fn patches(&self) -> usize {
        self.used / self.patcher.settings().patch_values()
    }

    /// Returns the batch: rows, and their images in the same order. The next batch starts empty.
    pub fn finish(&mut self) -> (Vec<Row>, Images) {
        // A batch without images leaves the buffer here.
        let mut pixels = if self.used == 0 { Vec::new() } else { std::mem::take(&mut self.pixels) };
        pixels.truncate(self.used);
        self.used = 0;
        (std::mem::take(&mut self.rows), Images { pixels, grids: std::mem::take(&mut self.grids) })
    }

    /// Takes back the pixel buffer of a finished batch for reuse.
    pub fn give_back(&mut self, pixels: Vec<f32>) {
        // A batch without images has no buffer.
        if pixels.capacity() >= self.room_values().max(1) {
            self.spare.push(pixels);
        }
    }

    /// Hands out the unused buffers.
    pub(crate) fn take_spare(&mut self) -> Vec<Vec<f32>> {
        let own = std::mem::take(&mut self.pixels);
        self.spare.extend((own.capacity() > 0).then_some(own));
        std::mem::take(&mut self.spare)
    }

    fn room_values(&self) -> usize {
        self.room * self.patcher.settings().patch_values()
    }
}

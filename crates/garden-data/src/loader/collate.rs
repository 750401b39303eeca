//! Examples and their pictures become what a batch is made of.
//!
//! Pictures are decoded one after the other into one buffer, and their patches are written where the batch has them. Buffers of patches are
//! made for the largest batch and handed round: [`Collator::finish`] gives one away, [`Collator::give_back`] takes it again. There are as
//! many as batches under way, after a million rows as after the first.

use garden_input::{Images, Row};

use crate::dataset::record::StoredPicture;
use crate::error::Error;
use crate::example::Example;
use crate::image::Patcher;
use crate::processor::Processor;

/// Puts examples together, and keeps its memory from one batch to the next.
#[derive(Debug)]
pub struct Collator {
    patcher: Patcher,
    max_decoded_pixels: u64,
    /// Patches of the largest batch.
    room: usize,
    /// Longer than what is used of it: what was written once need not be cleared.
    pixels: Vec<f32>,
    used: usize,
    /// Buffers of batches that are done with.
    spare: Vec<Vec<f32>>,
    grids: Vec<[usize; 3]>,
    rows: Vec<Row>,
}

impl Collator {
    /// One for batches whose pictures have at most so many patches altogether.
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

    /// One without a buffer of its own: it writes into those that it is given.
    pub(crate) fn empty(processor: &Processor, patches: usize) -> Collator {
        Collator { pixels: Vec::new(), ..Collator::new(processor, patches) }
    }

    /// Adds an example with its pictures. After an error the batch is as it was before, so a row may be skipped.
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
            let problem = format!("the example has {} pictures; {} are given", example.grids.len(), pictures.len());
            return Err(Error::row(&example.place, problem));
        }
        let needed = self.patches() + example.patches();
        if needed > self.room {
            let problem = format!(
                "its pictures have {} patches and would make {needed} of the batch; buffers were made for {}",
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
            // Of the final size at once: a buffer that grows would be copied, and end larger than it has to be.
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

    /// Rows that were added since the last batch.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Patches that were added since the last batch.
    pub fn patches(&self) -> usize {
        self.used / self.patcher.settings().patch_values()
    }

    /// The batch: rows, and their images in the same order. The next one begins empty.
    pub fn finish(&mut self) -> (Vec<Row>, Images) {
        // The buffer stays here for a batch without images.
        let mut pixels = if self.used == 0 { Vec::new() } else { std::mem::take(&mut self.pixels) };
        pixels.truncate(self.used);
        self.used = 0;
        (std::mem::take(&mut self.rows), Images { pixels, grids: std::mem::take(&mut self.grids) })
    }

    /// Takes the pixels of a batch that is done with, to be written again.
    pub fn give_back(&mut self, pixels: Vec<f32>) {
        // A batch without images has none to give.
        if pixels.capacity() >= self.room_values().max(1) {
            self.spare.push(pixels);
        }
    }

    /// Gives away the buffers that it has not used.
    pub(crate) fn take_spare(&mut self) -> Vec<Vec<f32>> {
        let own = std::mem::take(&mut self.pixels);
        self.spare.extend((own.capacity() > 0).then_some(own));
        std::mem::take(&mut self.spare)
    }

    fn room_values(&self) -> usize {
        self.room * self.patcher.settings().patch_values()
    }
}

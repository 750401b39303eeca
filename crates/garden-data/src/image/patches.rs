//! A picture as model input: resized, normalised and cut into patches.
//!
//! Patches are grouped by merged token, row by row, and within a group row by row; a patch is `[channel, frame, row, column]`. Rows are
//! resized as they come, and patches are written once all their rows are there, so neither the resized picture nor, for
//! most JPEG files, the decoded one ever exists as a whole.

use super::resize::Weights;
use super::rgb::{Picture, Rows, separate};
use super::settings::ImageSettings;
use super::source::Source;
use super::wide::widest;
use super::{Format, jpeg};
use crate::error::Error;
use garden_input::Grid;

/// Rows of one channel are padded to a multiple of this, so that vector loops need no tail.
const FILLED: usize = 64;

/// Turns pictures into patches, reusing its buffers.
#[derive(Debug)]
pub struct Patcher {
    settings: ImageSettings,
    /// Mean and standard deviation of each channel, in byte units.
    scales: [(f32, f32); 3],
    across: Weights,
    down: Weights,
    /// Horizontally resized rows, a ring buffer: `[rows, 3, filled]`.
    ring: Vec<u8>,
    sums: Vec<i32>,
    /// Rows of the resized picture that make up a row of patches: `[patch, 3, filled]`.
    strip: Vec<u8>,
    /// One row of an interleaved picture, split by channel.
    planes: [Vec<u8>; 3],
}

impl Patcher {
    /// A patcher with these settings.
    pub fn new(settings: ImageSettings) -> Patcher {
        Patcher {
            scales: settings.scales(),
            settings,
            across: Weights::default(),
            down: Weights::default(),
            ring: Vec::new(),
            sums: Vec::new(),
            strip: Vec::new(),
            planes: Default::default(),
        }
    }

    /// The settings.
    pub fn settings(&self) -> &ImageSettings {
        &self.settings
    }

    /// Decodes a file like [`Picture::decode`] and writes its patches like [`Patcher::write`].
    ///
    /// The rows of upright JPEG files go straight into patches, which is faster than the two steps and needs no picture.
    /// After an error the buffer contents are unspecified.
    pub fn decode(
        &mut self,
        name: &str,
        data: &[u8],
        max_pixels: u64,
        grid: Grid,
        patches: &mut [f32],
    ) -> Result<(), Error> {
        if !self.is_straight(data) {
            // Freed at once: if kept, it would add to whatever the next picture needs.
            let mut picture = Picture::default();
            picture.decode(name, data, max_pixels)?;
            self.write(&picture, grid, patches);
            return Ok(());
        }
        let header = Format::Jpeg.header(&Source::of_bytes(data)).and_then(|header| header.checked(max_pixels));
        header
            .and_then(|_| jpeg::decode(data, &mut Pass::new(self, grid, patches)))
            .map_err(|problem| Error::picture(name, problem))
    }

    /// Whether rows can be used in the order of the file.
    fn is_straight(&self, data: &[u8]) -> bool {
        let is_jpeg = Format::of(data) == Ok(Format::Jpeg);
        is_jpeg && Format::Jpeg.header(&Source::of_bytes(data)).is_ok_and(|header| header.orientation.is_upright())
    }

    /// Writes the patches of a picture, `[rows x columns, values per patch]`, into a buffer of exactly their size.
    pub fn write(&mut self, picture: &Picture, grid: Grid, patches: &mut [f32]) {
        let mut planes = std::mem::take(&mut self.planes);
        planes.iter_mut().for_each(|plane| plane.resize(picture.width, 0));
        let mut pass = Pass::new(self, grid, patches);
        pass.begin(picture.width, picture.height);
        for pixels in picture.pixels.chunks_exact(3 * picture.width.max(1)) {
            separate(pixels, planes.each_mut().map(|plane| &mut plane[..]));
            pass.row(planes.each_ref().map(|plane| &plane[..]));
        }
        self.planes = planes;
    }
}

/// The conversion of one picture into patches.
struct Pass<'a> {
    patcher: &'a mut Patcher,
    patches: &'a mut [f32],
    /// Columns of patches, and the size of the resized picture.
    columns: usize,
    width: usize,
    height: usize,
    /// The original size of the picture.
    from: (usize, usize),
    /// Padded length of a row of one channel in bytes.
    filled: usize,
    /// Rows received, and rows produced.
    taken: usize,
    made: usize,
}

impl<'a> Pass<'a> {
    fn new(patcher: &'a mut Patcher, [_, rows, columns]: Grid, patches: &'a mut [f32]) -> Pass<'a> {
        let settings = &patcher.settings;
        assert_eq!(patches.len(), rows * columns * settings.patch_values(), "the buffer is of another size");
        let (height, width) = (rows * settings.patch, columns * settings.patch);
        let filled = width.next_multiple_of(FILLED);
        Pass { patcher, patches, columns, width, height, from: (0, 0), filled, taken: 0, made: 0 }
    }
}

impl Rows for Pass<'_> {
    fn begin(&mut self, width: usize, height: usize) {
        self.from = (width, height);
        let (patcher, filled) = (&mut *self.patcher, self.filled);
        patcher.strip.resize(patcher.settings.patch * 3 * filled, 0);
        patcher.sums.resize(3 * filled, 0);
        if width != self.width {
            patcher.across.compute(width, self.width);
        }
        if height != self.height {
            patcher.down.compute(height, self.height);
            patcher.ring.resize(patcher.down.longest * 3 * filled, 0);
        }
    }

    fn row(&mut self, planes: [&[u8]; 3]) {
        let patcher = &mut *self.patcher;
        let is_high = self.from.1 == self.height;
        let (rows, number) = match is_high {
            true => (&mut patcher.strip, self.made % patcher.settings.patch),
            false => (&mut patcher.ring, self.taken % patcher.down.longest),
        };
        let slot = &mut rows[number * 3 * self.filled..][..3 * self.filled];
        let (red, others) = slot.split_at_mut(self.filled);
        let (green, blue) = others.split_at_mut(self.filled);
        if self.from.0 == self.width {
            for (plane, same) in planes.into_iter().zip([red, green, blue]) {
                same[..self.width].copy_from_slice(plane);
            }
        } else {
            patcher.across.row(planes, [red, green, blue]);
        }
        self.taken += 1;
        if is_high {
            return self.row_is_made();
        }
        while let Some((first, count)) = self.patcher.down.spans.get(self.made)
            && first + count <= self.taken
        {
            let Patcher { down, ring, sums, strip, settings, .. } = &mut *self.patcher;
            let row = &mut strip[self.made % settings.patch * 3 * self.filled..][..3 * self.filled];
            down.column(self.made, ring, sums, row);
            self.row_is_made();
        }
    }
}

impl Pass<'_> {
    /// Counts a row, and writes the patches that it completes.
    fn row_is_made(&mut self) {
        let Patcher { settings, scales, strip, .. } = &*self.patcher;
        let (patch_row, inner) = (self.made / settings.patch, self.made % settings.patch);
        self.made += 1;
        if inner + 1 < settings.patch {
            return;
        }
        let merge = settings.merge;
        let row_of_blocks = patch_row / merge * (self.columns / merge);
        let values = settings.patch_values();
        for column in 0..self.columns {
            let block = row_of_blocks + column / merge;
            let number = (block * merge + patch_row % merge) * merge + column % merge;
            let patch = &mut self.patches[number * values..][..values];
            write_patch(settings, scales, &strip[column * settings.patch..], self.filled, patch);
        }
    }
}

widest! {
    /// Writes one patch from rows of bytes, `[patch, 3, filled]` starting at the patch's left edge.
    fn write_patch(settings: &ImageSettings, scales: &[(f32, f32); 3], strip: &[u8], filled: usize, patch: &mut [f32]) {
        let side = settings.patch;
        for (channel, frames) in patch.chunks_exact_mut(settings.frames * side * side).enumerate() {
            let (mean, deviation) = scales[channel];
            let (first, others) = frames.split_at_mut(side * side);
            for (row, values) in first.chunks_exact_mut(side).enumerate() {
                let bytes = &strip[(3 * row + channel) * filled..][..side];
                scale(bytes, mean, deviation, values);
            }
            for other in others.chunks_exact_mut(side * side) {
                other.copy_from_slice(first);
            }
        }
    }
}

/// Normalises bytes, eight at a time; the last eight overlap the ones before, which is harmless.
#[inline(always)]
fn scale(bytes: &[u8], mean: f32, deviation: f32, values: &mut [f32]) {
    const EIGHT: usize = 8;
    let value = |byte: u8| (f32::from(byte) - mean) / deviation;
    let Some(last) = values.len().checked_sub(EIGHT) else {
        return values.iter_mut().zip(bytes).for_each(|(to, byte)| *to = value(*byte));
    };
    let mut start = 0;
    loop {
        let (from, to) = (&bytes[start..start + EIGHT], &mut values[start..start + EIGHT]);
        for place in 0..EIGHT {
            to[place] = value(from[place]);
        }
        if start == last {
            return;
        }
        start = (start + EIGHT).min(last);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::path::Path;

    use super::*;
    use crate::image::{MAX_PIXELS, picture_size};
    use garden_input::FAMILIES;

    /// Every kind of picture, enlarged and shrunk.
    #[test]
    fn straight_is_the_same_as_in_steps() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/data/recorded/pictures");
        for max_pixels in [56 * 56, 1_003_520] {
            let settings = ImageSettings { max_pixels, ..ImageSettings::of(&FAMILIES[0].images) };
            let (mut straight, mut in_steps) = (Patcher::new(settings.clone()), Patcher::new(settings.clone()));
            for file in std::fs::read_dir(&folder).unwrap() {
                let path = file.unwrap().path();
                let (name, data) = (path.to_str().unwrap(), std::fs::read(&path).unwrap());
                let (width, height) = picture_size(name, &data, MAX_PIXELS).unwrap();
                let grid = settings.grid(width, height).unwrap();
                let mut expected = vec![0.0; grid[1] * grid[2] * settings.patch_values()];
                let mut found = expected.clone();
                let mut picture = Picture::default();
                picture.decode(name, &data, MAX_PIXELS).unwrap();
                in_steps.write(&picture, grid, &mut expected);
                straight.decode(name, &data, MAX_PIXELS, grid, &mut found).unwrap();
                assert!(expected == found, "{name}");
            }
        }
    }
}

//! A decoded picture, and how other colours become RGB.

/// Pixels of a picture, three bytes each, row by row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Picture {
    /// Pixels of a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// [height, width, 3].
    pub pixels: Vec<u8>,
}

impl Picture {
    /// Takes another size, and gives the pixels to be written; what they hold before is anything.
    pub(super) fn reset(&mut self, width: usize, height: usize) -> &mut [u8] {
        (self.width, self.height) = (width, height);
        self.pixels.resize(3 * width * height, 0);
        &mut self.pixels
    }

    /// Writes pixels from what a decoder gave: so many values each, of which `rgb` makes three.
    pub(super) fn fill<T: Copy>(
        &mut self,
        size: (usize, usize),
        values: &[T],
        channels: usize,
        rgb: impl Fn(&[T]) -> [u8; 3],
    ) -> Result<(), String> {
        let pixels = self.reset(size.0, size.1);
        if values.len() < size.0 * size.1 * channels {
            return Err("the file has fewer pixels than its header says".to_string());
        }
        for (pixel, values) in pixels.chunks_exact_mut(3).zip(values.chunks_exact(channels)) {
            pixel.copy_from_slice(&rgb(values));
        }
        Ok(())
    }
}

/// Inks to light as PIL does it, without any profile.
pub(super) fn from_cmyk([cyan, magenta, yellow, black]: [u8; 4]) -> [u8; 3] {
    let light = 255 - u16::from(black);
    [cyan, magenta, yellow].map(|ink| {
        // A product over 255, rounded.
        let product = u32::from(ink) * u32::from(light) + 128;
        (u32::from(light) - ((product + (product >> 8)) >> 8)) as u8
    })
}

/// 16 bit gray as PIL shows it: cut off, not scaled.
pub(super) fn from_gray_16(gray: u16) -> [u8; 3] {
    [gray.min(255) as u8; 3]
}

/// The upper byte, which is what PIL keeps of 16 bit colours.
pub(super) fn upper(value: u16) -> u8 {
    (value >> 8) as u8
}

/// Samples of 1, 2 or 4 bits of a row, the first in the upper bits.
pub(super) fn unpacked(row: &[u8], bits: u8) -> impl Iterator<Item = u8> {
    let mask = ((1_u16 << bits) - 1) as u8;
    row.iter().flat_map(move |byte| (0..8 / bits).map(move |place| byte >> (8 - bits * (place + 1)) & mask))
}

//! A decoded picture, and conversion of other colour spaces to RGB.

/// Pixels of a picture, three bytes each, row by row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Picture {
    /// Width in pixels.
    pub width: usize,
    /// Height in pixels.
    pub height: usize,
    /// `[height, width, 3]`.
    pub pixels: Vec<u8>,
}

impl Picture {
    /// Resizes the picture and returns its pixels for writing; their contents are unspecified.
    pub(super) fn reset(&mut self, width: usize, height: usize) -> &mut [u8] {
        (self.width, self.height) = (width, height);
        self.pixels.resize(3 * width * height, 0);
        &mut self.pixels
    }

    /// Writes pixels from a decoder's output of `channels` values each, converted by `rgb`.
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

/// A consumer of a picture's rows.
pub(super) trait Rows {
    /// Announces the size, once, before the first row.
    fn begin(&mut self, width: usize, height: usize);

    /// Takes the next row: red, green and blue.
    fn row(&mut self, planes: [&[u8]; 3]);
}

/// Writes rows to a picture.
pub(super) struct PictureRows<'a> {
    pub picture: &'a mut Picture,
    pub next: usize,
}

impl Rows for PictureRows<'_> {
    fn begin(&mut self, width: usize, height: usize) {
        self.picture.reset(width, height);
        self.next = 0;
    }

    fn row(&mut self, planes: [&[u8]; 3]) {
        let width = self.picture.width;
        interleave(planes, &mut self.picture.pixels[3 * self.next * width..][..3 * width]);
        self.next += 1;
    }
}

/// Interleaves three planes into pixels.
fn interleave(planes: [&[u8]; 3], pixels: &mut [u8]) {
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut, reason = "there are no vectors"))]
    let mut start = 0;
    #[cfg(target_arch = "x86_64")]
    if super::wide::has_avx2() {
        // SAFETY: the processor has AVX2.
        start = unsafe { vectors::interleave(planes, pixels) };
    }
    for (place, pixel) in pixels.as_chunks_mut::<3>().0.iter_mut().enumerate().skip(start) {
        *pixel = planes.map(|plane| plane[place]);
    }
}

/// Splits pixels into three planes.
pub(super) fn separate(pixels: &[u8], planes: [&mut [u8]; 3]) {
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut, reason = "there are no vectors"))]
    let mut start = 0;
    let [red, green, blue] = planes;
    #[cfg(target_arch = "x86_64")]
    if super::wide::has_avx2() {
        // SAFETY: the processor has AVX2.
        start = unsafe { vectors::separate(pixels, [red, green, blue]) };
    }
    for (place, pixel) in pixels.as_chunks::<3>().0.iter().enumerate().skip(start) {
        [red[place], green[place], blue[place]] = *pixel;
    }
}

#[cfg(target_arch = "x86_64")]
mod vectors {
    use std::arch::x86_64::*;

    const WIDE: usize = 16;
    /// Shuffle index for a zero byte.
    const NONE: u8 = 0x80;

    /// `[register of pixels, plane]`: the byte of the plane for each byte of the register.
    const TOGETHER: [[[u8; WIDE]; 3]; 3] = {
        let mut patterns = [[[NONE; WIDE]; 3]; 3];
        let mut place = 0;
        while place < 3 * WIDE {
            patterns[place / WIDE][place % 3][place % WIDE] = (place / 3) as u8;
            place += 1;
        }
        patterns
    };

    /// `[plane, register of pixels]`: the byte of the register for each byte of the plane.
    const APART: [[[u8; WIDE]; 3]; 3] = {
        let mut patterns = [[[NONE; WIDE]; 3]; 3];
        let mut place = 0;
        while place < 3 * WIDE {
            patterns[place % 3][place / WIDE][place / 3] = (place % WIDE) as u8;
            place += 1;
        }
        patterns
    };

    #[target_feature(enable = "avx2")]
    fn load(bytes: &[u8; WIDE]) -> __m128i {
        // SAFETY: there are 16 bytes.
        unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
    }

    /// Combines bytes of three registers into one.
    #[target_feature(enable = "avx2")]
    fn pick(from: [__m128i; 3], patterns: &[[u8; WIDE]; 3], to: &mut [u8; WIDE]) {
        let [a, b, c] = [0, 1, 2].map(|which| _mm_shuffle_epi8(from[which], load(&patterns[which])));
        // SAFETY: there are 16 bytes.
        unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), _mm_or_si128(_mm_or_si128(a, b), c)) };
    }

    /// Handles whole vectors, and returns the number of pixels.
    #[target_feature(enable = "avx2")]
    pub(super) fn interleave([red, green, blue]: [&[u8]; 3], pixels: &mut [u8]) -> usize {
        let (pixels, _) = pixels.as_chunks_mut::<{ 3 * WIDE }>();
        let count = pixels.len() * WIDE;
        let planes = [red, green, blue].map(|plane| plane.as_chunks::<WIDE>().0.iter());
        let [red, green, blue] = planes;
        for (((pixels, red), green), blue) in pixels.iter_mut().zip(red).zip(green).zip(blue) {
            let planes = [load(red), load(green), load(blue)];
            for (part, patterns) in pixels.as_chunks_mut::<WIDE>().0.iter_mut().zip(&TOGETHER) {
                pick(planes, patterns, part);
            }
        }
        count
    }

    /// Handles whole vectors, and returns the number of pixels.
    #[target_feature(enable = "avx2")]
    pub(super) fn separate(pixels: &[u8], planes: [&mut [u8]; 3]) -> usize {
        let (pixels, _) = pixels.as_chunks::<{ 3 * WIDE }>();
        let [red, green, blue] = planes.map(|plane| plane.as_chunks_mut::<WIDE>().0.iter_mut());
        for (((pixels, red), green), blue) in pixels.iter().zip(red).zip(green).zip(blue) {
            let parts = pixels.as_chunks::<WIDE>().0;
            let parts = [load(&parts[0]), load(&parts[1]), load(&parts[2])];
            for (plane, patterns) in [red, green, blue].into_iter().zip(&APART) {
                pick(parts, patterns, plane);
            }
        }
        pixels.len() * WIDE
    }
}

/// A colour with alpha on white, rounded as in PIL's `alpha_composite`.
pub(super) fn on_white(colour: [u8; 3], alpha: u8) -> [u8; 3] {
    let alpha = u32::from(alpha) << 7;
    colour.map(|value| {
        let sum = u32::from(value) * alpha + 255 * ((255 << 7) - alpha) + (0x80 << 7);
        (((sum >> 8) + sum) >> 15) as u8
    })
}

/// CMYK to RGB as in PIL, without a colour profile.
pub(super) fn from_cmyk([cyan, magenta, yellow, black]: [u8; 4]) -> [u8; 3] {
    let light = 255 - u16::from(black);
    [cyan, magenta, yellow].map(|ink| {
        // A product over 255, rounded.
        let product = u32::from(ink) * u32::from(light) + 128;
        (u32::from(light) - ((product + (product >> 8)) >> 8)) as u8
    })
}

/// 16-bit gray as PIL converts it: clipped, not scaled.
pub(super) fn from_gray_16(gray: u16) -> [u8; 3] {
    [gray.min(255) as u8; 3]
}

/// The upper byte, which PIL keeps of 16-bit colours.
pub(super) fn upper(value: u16) -> u8 {
    (value >> 8) as u8
}

/// Samples of 1, 2 or 4 bits of a row, starting at the upper bits.
pub(super) fn unpacked(row: &[u8], bits: u8) -> impl Iterator<Item = u8> {
    let mask = ((1_u16 << bits) - 1) as u8;
    row.iter().flat_map(move |byte| (0..8 / bits).map(move |place| byte >> (8 - bits * (place + 1)) & mask))
}

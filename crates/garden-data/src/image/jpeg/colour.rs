//! Samples to RGB: the colour space is guessed as in libjpeg, and CMYK is converted as in PIL.

use super::header::{Frame, Header};
use super::{Component, upsample};
use crate::image::rgb::{Rows, from_cmyk};

#[derive(Clone, Copy, Debug)]
enum Colours {
    Gray,
    Rgb,
    YCbCr,
    /// CMYK.
    Cmyk,
    /// CMYK with three components as luma and chroma.
    Ycck,
}

/// Converts samples to rows of the picture.
pub(super) struct Converter {
    colours: Colours,
    /// The next row.
    next: usize,
    /// A row of each component, upsampled to the picture's width.
    planes: Vec<Vec<u8>>,
    sums: Vec<u16>,
    rgb: [Vec<u8>; 3],
}

impl Converter {
    pub fn new(header: &Header, frame: &Frame, components: &[Component], rows: &mut impl Rows) -> Converter {
        rows.begin(frame.width, frame.height);
        Converter {
            colours: colours(header, components),
            next: 0,
            planes: vec![vec![0; frame.width]; components.len()],
            sums: Vec::new(),
            rgb: std::array::from_fn(|_| vec![0; frame.width]),
        }
    }

    /// Passes on the rows up to `until`.
    pub fn give(
        &mut self,
        frame: &Frame,
        components: &[Component],
        until: usize,
        rows: &mut impl Rows,
    ) -> Result<(), String> {
        for row in self.next..until {
            for (component, plane) in components.iter().zip(&mut self.planes) {
                let (across, down) = (frame.across / component.across, frame.down / component.down);
                upsample::row(component, across, down, row, &mut self.sums, plane);
            }
            rows.row(self.converted()?);
        }
        self.next = self.next.max(until);
        Ok(())
    }

    /// The current row in red, green and blue.
    fn converted(&mut self) -> Result<[&[u8]; 3], String> {
        let [red, green, blue] = &mut self.rgb;
        match (&self.colours, &self.planes[..]) {
            (Colours::YCbCr, [y, cb, cr]) => from_luma([y, cb, cr], [red, green, blue]),
            (Colours::Rgb, [red, green, blue]) => return Ok([red, green, blue]),
            (Colours::Cmyk, [c, m, y, k]) => {
                // Adobe writes them inverted, and PIL assumes that everybody does.
                for place in 0..red.len() {
                    let inks = [c[place], m[place], y[place], k[place]].map(|ink| 255 - ink);
                    [red[place], green[place], blue[place]] = from_cmyk(inks);
                }
            }
            (Colours::Ycck, [y, cb, cr, k]) => {
                from_luma([y, cb, cr], [red, green, blue]);
                for (place, k) in k.iter().enumerate() {
                    // Inverted once by libjpeg and once more by PIL.
                    let inks = [red[place], green[place], blue[place], 255 - k];
                    [red[place], green[place], blue[place]] = from_cmyk(inks);
                }
            }
            (_, [gray, ..]) => return Ok([gray; 3]),
            (_, []) => return Err("there are no components".to_string()),
        }
        Ok([red, green, blue])
    }
}

fn colours(header: &Header, components: &[Component]) -> Colours {
    let ids: Vec<u8> = components.iter().map(|component| component.id).collect();
    match (components.len(), header.adobe) {
        (1, _) => Colours::Gray,
        (4, Some(2)) => Colours::Ycck,
        (4, _) => Colours::Cmyk,
        _ if header.is_jfif => Colours::YCbCr,
        (_, Some(0)) => Colours::Rgb,
        (_, Some(_)) => Colours::YCbCr,
        _ if ids == *b"RGB" => Colours::Rgb,
        _ => Colours::YCbCr,
    }
}

/// YCbCr to RGB in fixed point with 16 fractional bits. All rows have the same length.
fn from_luma([y, cb, cr]: [&[u8]; 3], [red, green, blue]: [&mut [u8]; 3]) {
    let start = from_luma_in_vectors([y, cb, cr], [red, green, blue]);
    for place in start..y.len() {
        [red[place], green[place], blue[place]] = rgb(y[place], cb[place], cr[place]);
    }
}

fn rgb(y: u8, cb: u8, cr: u8) -> [u8; 3] {
    const HALF: i32 = 1 << 15;
    let (y, cb, cr) = (i32::from(y), i32::from(cb) - 128, i32::from(cr) - 128);
    let red = y + ((91_881 * cr + HALF) >> 16);
    let green = y + ((-22_554 * cb - 46_802 * cr + HALF) >> 16);
    let blue = y + ((116_130 * cb + HALF) >> 16);
    [red, green, blue].map(|value| value.clamp(0, 255) as u8)
}

/// Converts whole vectors, and returns the number of pixels.
fn from_luma_in_vectors(from: [&[u8]; 3], to: [&mut [u8]; 3]) -> usize {
    #[cfg(target_arch = "x86_64")]
    if crate::image::wide::has_avx2() {
        // SAFETY: the processor has AVX2.
        return unsafe { from_luma_avx2(from, to) };
    }
    let _ = (from, to);
    0
}

/// The integer parts of the factors are added separately, so that the rest fits 16 bits.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn from_luma_avx2([y, cb, cr]: [&[u8]; 3], [red, green, blue]: [&mut [u8]; 3]) -> usize {
    use std::arch::x86_64::*;

    const WIDE: usize = 16;
    let load = |from: &[u8; WIDE]| {
        // SAFETY: there are 16 bytes.
        _mm256_cvtepu8_epi16(unsafe { _mm_loadu_si128(from.as_ptr().cast()) })
    };
    let store = |values: __m256i, to: &mut [u8; WIDE]| {
        let bytes = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi16(values, values));
        // SAFETY: there are 16 bytes.
        unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), _mm256_castsi256_si128(bytes)) };
    };
    // (value * factor + 2^15) / 2^16, rounded down: twice the upper half of a product with one more bit, halved.
    let scaled = |value: __m256i, factor: i16| {
        let upper = _mm256_mulhi_epi16(_mm256_add_epi16(value, value), _mm256_set1_epi16(factor));
        _mm256_srai_epi16::<1>(_mm256_add_epi16(upper, _mm256_set1_epi16(1)))
    };
    let middle = _mm256_set1_epi16(128);
    let factors = _mm256_set1_epi32((65_536 - 46_802) << 16 | (-22_554 & 0xffff));
    let mixed = |pairs: __m256i| {
        let sum = _mm256_add_epi32(_mm256_madd_epi16(pairs, factors), _mm256_set1_epi32(1 << 15));
        _mm256_srai_epi32::<16>(sum)
    };
    let (y, cb, cr) = (y.as_chunks::<WIDE>().0, cb.as_chunks::<WIDE>().0, cr.as_chunks::<WIDE>().0);
    let red = red.as_chunks_mut::<WIDE>().0.iter_mut();
    let (green, blue) = (green.as_chunks_mut::<WIDE>().0.iter_mut(), blue.as_chunks_mut::<WIDE>().0.iter_mut());
    for (((red, green), blue), ((luma, cb), cr)) in red.zip(green).zip(blue).zip(y.iter().zip(cb).zip(cr)) {
        let luma = load(luma);
        let (cb, cr) = (_mm256_sub_epi16(load(cb), middle), _mm256_sub_epi16(load(cr), middle));
        store(_mm256_add_epi16(_mm256_add_epi16(luma, cr), scaled(cr, (91_881 - 65_536) as i16)), red);
        let twice = _mm256_add_epi16(cb, cb);
        store(_mm256_add_epi16(_mm256_add_epi16(luma, twice), scaled(cb, (116_130 - 131_072) as i16)), blue);
        let both = (_mm256_unpacklo_epi16(cb, cr), _mm256_unpackhi_epi16(cb, cr));
        let less = _mm256_packs_epi32(mixed(both.0), mixed(both.1));
        store(_mm256_add_epi16(_mm256_sub_epi16(luma, cr), less), green);
    }
    y.len() * WIDE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_give_what_plain_code_gives() {
        let all: Vec<u8> = (0..=255).collect();
        for y in [0, 1, 100, 128, 254, 255] {
            for cb in 0..=255 {
                let (mut red, mut green, mut blue) = (vec![0; 256], vec![0; 256], vec![0; 256]);
                from_luma([&[y; 256], &[cb; 256], &all], [&mut red, &mut green, &mut blue]);
                for cr in 0..256 {
                    assert_eq!([red[cr], green[cr], blue[cr]], rgb(y, cb, cr as u8), "{y} {cb} {cr}");
                }
            }
        }
    }
}

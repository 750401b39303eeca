//! Thumbnails of pictures, so that a page with a few of them stays small.

use super::resize::Weights;
use super::rgb::{Picture, separate};
use super::{Format, picture_size};
use crate::error::Error;

/// Rows of one channel are padded to a multiple of this, so that vector loops need no tail.
const FILLED: usize = 64;
/// Files up to this size may be used unchanged.
const SMALL_FILE: usize = 48 << 10;

/// A picture file for browsers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thumbnail {
    /// Its MIME type, such as `image/png`.
    pub kind: &'static str,
    /// The file's bytes.
    pub data: Vec<u8>,
    /// Width and height of the original picture, as displayed.
    pub original: (usize, usize),
}

impl Thumbnail {
    /// A thumbnail with sides of at most `most` pixels; a file that is already small is used unchanged. Pictures with more than `max_pixels` are refused.
    /// `name` is only for errors.
    pub fn of(name: &str, data: &[u8], most: usize, max_pixels: u64) -> Result<Thumbnail, Error> {
        let original = picture_size(name, data, max_pixels)?;
        let shown = match Format::of(data) {
            Ok(Format::Png) => Some("png"),
            Ok(Format::Jpeg) => Some("jpeg"),
            Ok(Format::Webp) => Some("webp"),
            Ok(Format::Gif) => Some("gif"),
            _ => None,
        };
        let is_small = original.0.max(original.1) <= most && data.len() <= SMALL_FILE;
        if let Some(kind) = shown.filter(|_| is_small) {
            return Ok(Thumbnail { kind, data: data.to_vec(), original });
        }
        let mut picture = Picture::default();
        picture.decode(name, data, max_pixels)?;
        let small = picture.shrunk(most);
        let data = small.to_png().map_err(|error| Error::picture(name, error.to_string()))?;
        Ok(Thumbnail { kind: "png", data, original })
    }
}

impl Picture {
    /// The picture with sides of at most `most` pixels, and nearly the same aspect ratio.
    fn shrunk(self, most: usize) -> Picture {
        let longest = self.width.max(self.height);
        if longest <= most || most == 0 {
            return self;
        }
        let side = |pixels: usize| ((pixels * most + longest / 2) / longest).max(1);
        let (width, height) = (side(self.width), side(self.height));
        self.resized(width, height)
    }

    /// The picture resized.
    pub(super) fn resized(self, width: usize, height: usize) -> Picture {
        if (width, height) == (self.width, self.height) {
            return self;
        }
        let filled = width.next_multiple_of(FILLED);
        let (mut across, mut down) = (Weights::default(), Weights::default());
        across.compute(self.width, width);
        down.compute(self.height, height);
        // All rows are kept: they are narrow by then.
        let mut rows = vec![0; self.height * 3 * filled];
        let mut planes = [(); 3].map(|()| vec![0; self.width]);
        for (pixels, row) in self.pixels.chunks_exact(3 * self.width).zip(rows.chunks_exact_mut(3 * filled)) {
            separate(pixels, planes.each_mut().map(|plane| &mut plane[..]));
            let (red, others) = row.split_at_mut(filled);
            let (green, blue) = others.split_at_mut(filled);
            across.row(planes.each_ref().map(|plane| &plane[..]), [red, green, blue]);
        }
        let (mut sums, mut made) = (vec![0; 3 * filled], vec![0; 3 * filled]);
        let mut small = Picture { width, height, pixels: Vec::with_capacity(3 * width * height) };
        for place in 0..height {
            down.column(place, &rows, &mut sums, &mut made);
            small.pixels.extend((0..width).flat_map(|column| [0, 1, 2].map(|colour| made[colour * filled + column])));
        }
        small
    }

    /// The picture as a PNG file.
    pub(super) fn to_png(&self) -> Result<Vec<u8>, png::EncodingError> {
        let mut data = Vec::new();
        let mut encoder = png::Encoder::new(&mut data, self.width as u32, self.height as u32);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        encoder.set_compression(png::Compression::High);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&self.pixels)?;
        writer.finish()?;
        Ok(data)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// Values at the centre of each pixel, so that it is the same picture at any size.
    fn gradient(width: usize, height: usize) -> Picture {
        let shade = |place: usize, length: usize| ((2 * place + 1) * 255 / (2 * length)) as u8;
        let pixel = |place: usize| [shade(place % width, width), shade(place / width, height), 90];
        Picture { width, height, pixels: (0..width * height).flat_map(pixel).collect() }
    }

    #[test]
    fn large_pictures_become_small_ones_of_the_same_look() {
        for (size, expected) in [((640, 400), (160, 100)), ((33, 1000), (5, 160)), ((1000, 2), (160, 1))] {
            let file = gradient(size.0, size.1).to_png().unwrap();
            let made = Thumbnail::of("a", &file, 160, 1 << 30).unwrap();
            assert_eq!((made.kind, made.original), ("png", size));
            let mut small = Picture::default();
            small.decode("b", &made.data, 1 << 30).unwrap();
            assert_eq!((small.width, small.height), expected);
            let direct = gradient(expected.0, expected.1);
            let far = small.pixels.iter().zip(&direct.pixels).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
            assert!(far < 16, "{far}");
        }
    }

    #[test]
    fn small_files_stay_as_they_are() {
        let file = gradient(20, 10).to_png().unwrap();
        assert_eq!(Thumbnail::of("a", &file, 160, 1 << 30).unwrap().data, file);
        assert!(Thumbnail::of("a", &file, 160, 10).is_err());
        assert!(Thumbnail::of("a", b"no picture", 160, 1 << 30).is_err());
    }
}

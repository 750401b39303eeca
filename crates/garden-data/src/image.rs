//! Pictures: files to RGB, to the model's size, to patches.
//!
//! Files are told apart by their first bytes, whatever they are called. Sizes are read from the header first, so that a small file that
//! claims to be huge is refused before memory is taken for it.

mod bmp;
mod drawn;
mod gif;
mod jpeg;
mod orientation;
mod patches;
mod png;
mod resize;
mod rgb;
mod settings;
mod source;
mod thumbnail;
mod tiff;
mod webp;
mod wide;

use serde::Serialize;

use crate::error::Error;
use orientation::Orientation;
use rgb::PictureRows;
pub(crate) use source::Source;

pub use drawn::drawn_png;
pub use patches::Patcher;
pub use rgb::Picture;
pub use settings::{Grid, ImageSettings};
pub use thumbnail::Thumbnail;

/// Pixels of the largest picture that is decoded unless the caller says otherwise: what PIL calls a decompression bomb.
pub const MAX_PIXELS: u64 = 178_956_970;

/// What a picture file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Bmp,
    Gif,
    Jpeg,
    Png,
    Tiff,
    Webp,
}

/// What the header of a file says.
#[derive(Clone, Copy, Debug)]
struct Size {
    width: u64,
    height: u64,
    orientation: Orientation,
    /// Whether it has to be decoded as a whole before the first row of it can be used.
    is_whole: bool,
    decoding: Decoding,
}

/// What is held at most while a picture is decoded, in bytes, besides the file itself and some rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Decoding {
    /// Values of the file: all coefficients of a progressive JPEG file, samples of other formats, or a copy that is turned.
    pub values: u64,
    /// The whole picture in colours, which stays with the thread for the next one; JPEG files that need no turning do without.
    pub rgb: u64,
}

impl Decoding {
    /// What a thread holds at most that decodes one of them after the other.
    pub fn max(self, other: Decoding) -> Decoding {
        Decoding { values: self.values.max(other.values), rgb: self.rgb.max(other.rgb) }
    }

    /// Both.
    pub fn total(self) -> u64 {
        self.values + self.rgb
    }

    /// A picture of a format that is decoded as a whole, whichever it is.
    pub fn of_whole(pixels: u64) -> Decoding {
        Decoding { values: OWN_PIXEL * pixels, rgb: RGB_PIXEL * pixels }
    }
}

/// Bytes of a pixel in colours.
const RGB_PIXEL: u64 = 3;
/// Bytes of a pixel as formats other than JPEG have it: at most 4, and 8 for the few files with 16 bits.
const OWN_PIXEL: u64 = 4;

/// What the header of a picture says to those who only look at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Glance {
    /// As it is shown.
    pub width: usize,
    pub height: usize,
    /// Whether it has to be decoded as a whole: JPEG files that are sequential and upright need not.
    pub is_whole: bool,
    pub decoding: Decoding,
}

/// Width and height of a picture as it is shown, from its header alone. `name` is only for errors.
pub fn picture_size(name: &str, data: &[u8], max_pixels: u64) -> Result<(usize, usize), Error> {
    let glance = glance(name, &Source::of_bytes(data), max_pixels)?;
    Ok((glance.width, glance.height))
}

/// The same of a picture whose bytes are only looked at where the header needs it.
pub(crate) fn glance(name: &str, source: &Source, max_pixels: u64) -> Result<Glance, Error> {
    let size = Format::of(source.beginning()).and_then(|format| format.size(source)?.checked(max_pixels));
    let size = size.map_err(|problem| Error::picture(name, problem))?;
    let (width, height) = (size.width as usize, size.height as usize);
    let (width, height) = if size.orientation.swaps_sides() { (height, width) } else { (width, height) };
    Ok(Glance { width, height, is_whole: size.is_whole, decoding: size.decoding })
}

impl Picture {
    /// Decodes a file, turned as its Exif data says, into the memory that the picture has already.
    ///
    /// Colours are those of transformers' `convert_to_rgb` of an opened image: what is transparent is painted white, 16 bit gray is cut off at 255,
    /// inks are mixed by the simple formula. Pictures with more than `max_pixels` are refused. `name` is only for errors.
    pub fn decode(&mut self, name: &str, data: &[u8], max_pixels: u64) -> Result<(), Error> {
        self.try_decode(data, max_pixels).map_err(|problem| Error::picture(name, problem))
    }

    fn try_decode(&mut self, data: &[u8], max_pixels: u64) -> Result<(), String> {
        let format = Format::of(data)?;
        let size = format.size(&Source::of_bytes(data))?.checked(max_pixels)?;
        match format {
            Format::Bmp => bmp::decode(data, self),
            Format::Gif => gif::decode(data, self),
            Format::Jpeg => jpeg::decode(data, &mut PictureRows { picture: self, next: 0 }),
            Format::Png => png::decode(data, self),
            Format::Tiff => tiff::decode(data, self),
            Format::Webp => webp::decode(data, self),
        }?;
        size.orientation.apply(self);
        Ok(())
    }
}

impl Format {
    fn of(data: &[u8]) -> Result<Format, String> {
        match data {
            [] => Err("the file is empty".to_string()),
            [0xff, 0xd8, 0xff, ..] => Ok(Format::Jpeg),
            [0x89, b'P', b'N', b'G', ..] => Ok(Format::Png),
            [b'G', b'I', b'F', b'8', ..] => Ok(Format::Gif),
            [b'B', b'M', ..] => Ok(Format::Bmp),
            [b'I', b'I', 42 | 43, 0, ..] | [b'M', b'M', 0, 42 | 43, ..] => Ok(Format::Tiff),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Ok(Format::Webp),
            _ => Err("this is no JPEG, PNG, WebP, GIF, BMP or TIFF file".to_string()),
        }
    }

    fn size(self, source: &Source) -> Result<Size, String> {
        // Of a JPEG file the coefficients that are held as a whole: none where rows are given on as they come.
        let mut coefficients = None;
        let (width, height, orientation) = match self {
            Format::Bmp => source.parse(bmp::size)?,
            Format::Gif => source.parse(gif::size)?,
            Format::Jpeg => {
                let header = source.parse(jpeg::header)?;
                let frame = header.frame.ok_or("there is no header of a frame")?;
                coefficients = Some(if frame.is_progressive { frame.coefficient_bytes() } else { 0 });
                (frame.width as u64, frame.height as u64, Orientation::of_exif(&header.exif))
            }
            Format::Png => png::size(source)?,
            Format::Tiff => tiff::size(source)?,
            Format::Webp => webp::size(source)?,
        };
        let rgb = RGB_PIXEL.saturating_mul(width.saturating_mul(height));
        let decoding = match coefficients {
            Some(values) if orientation.is_upright() => Decoding { values, rgb: 0 },
            Some(values) => Decoding { values: values.max(rgb), rgb },
            None => Decoding::of_whole(width.saturating_mul(height).min(u64::MAX / 8)),
        };
        let is_whole = coefficients != Some(0) || !orientation.is_upright();
        Ok(Size { width, height, orientation, is_whole, decoding })
    }
}

impl Size {
    fn checked(self, max_pixels: u64) -> Result<Size, String> {
        let Size { width, height, .. } = self;
        if width == 0 || height == 0 {
            return Err(format!("the picture has {width} x {height} pixels"));
        }
        if width.saturating_mul(height) > max_pixels {
            return Err(format!("the picture has {width} x {height} pixels; at most {max_pixels} are decoded"));
        }
        Ok(self)
    }
}

//! Pictures: from files to RGB, to the model's size, to patches.
//!
//! Formats are recognised by the first bytes, whatever the file name. Sizes are read from the header first, so that a small file that
//! claims to be huge is refused before memory is allocated for it.

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

use crate::error::Error;
use orientation::Orientation;
use rgb::PictureRows;
pub(crate) use source::Source;

pub use drawn::drawn_png;
pub use patches::Patcher;
pub use rgb::Picture;
pub use settings::ImageSettings;
pub use thumbnail::Thumbnail;

/// Default maximum of pixels to decode: PIL's limit for a decompression bomb.
pub const MAX_PIXELS: u64 = 178_956_970;

/// Image format of a file. A new image format is a variant here and a file beside this one: header, then decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Bmp,
    Gif,
    Jpeg,
    Png,
    Tiff,
    Webp,
}

/// Header of a picture file.
#[derive(Clone, Copy, Debug)]
struct Header {
    width: u64,
    height: u64,
    orientation: Orientation,
    /// Bytes that the decoder holds beside file and picture: coefficients, or values not yet converted to RGB.
    values: u64,
    /// Whether rows can be used as they are decoded, without the whole picture in memory.
    is_by_rows: bool,
    used: UsedPart,
}

/// Parts of a file that the picture is made without.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsedPart {
    /// Whether there are further frames or pages: the first is used.
    pub is_first_of_several: bool,
    /// Whether it is gray of 16 bits: values above 255 become white, as in Pillow.
    pub is_clipped_gray: bool,
}

/// Bytes per RGB pixel.
const RGB_PIXEL: u64 = 3;
/// Bytes per RGBA pixel.
const RGBA_PIXEL: u64 = 4;

/// Typical memory for decoding a picture of unknown format: that of a PNG with alpha, which few others exceed.
pub fn usual_decoding_bytes(pixels: u64) -> u64 {
    (RGB_PIXEL + RGBA_PIXEL) * pixels
}

/// Size and decoding cost of a picture, from its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Glance {
    /// As displayed.
    pub width: usize,
    pub height: usize,
    /// Whether it must be decoded whole: sequential, upright JPEG files need not.
    pub is_whole: bool,
    /// Peak bytes while decoding, besides the file itself and some rows.
    pub decoding_bytes: u64,
    pub used: UsedPart,
}

/// Width and height of a picture as displayed, from its header alone. `name` is only for errors.
pub fn picture_size(name: &str, data: &[u8], max_pixels: u64) -> Result<(usize, usize), Error> {
    let glance = glance(name, &Source::of_bytes(data), max_pixels)?;
    Ok((glance.width, glance.height))
}

/// Reads a picture's header, and no more bytes than that needs.
pub(crate) fn glance(name: &str, source: &Source, max_pixels: u64) -> Result<Glance, Error> {
    let header = Format::of(source.beginning()).and_then(|format| format.header(source)?.checked(max_pixels));
    let header = header.map_err(|problem| Error::picture(name, problem))?;
    let (width, height) = (header.width as usize, header.height as usize);
    let (width, height) = if header.orientation.swaps_sides() { (height, width) } else { (width, height) };
    let is_whole = !(header.is_by_rows && header.orientation.is_upright() && header.values == 0);
    Ok(Glance { width, height, is_whole, decoding_bytes: header.decoding_bytes(), used: header.used })
}

/// Whether bytes begin like a picture that is read.
pub(crate) fn is_picture(data: &[u8]) -> bool {
    Format::of(data).is_ok()
}

impl Picture {
    /// Decodes a file, rotated by its Exif orientation, reusing the picture's memory.
    ///
    /// Colours match transformers' `convert_to_rgb` of an opened image: transparency becomes white, 16-bit gray is clipped at 255,
    /// CMYK is converted by the simple formula. Pictures with more than `max_pixels` are refused. `name` is only for errors.
    pub fn decode(&mut self, name: &str, data: &[u8], max_pixels: u64) -> Result<(), Error> {
        self.try_decode(data, max_pixels).map_err(|problem| Error::picture(name, problem))
    }

    fn try_decode(&mut self, data: &[u8], max_pixels: u64) -> Result<(), String> {
        let format = Format::of(data)?;
        let header = format.header(&Source::of_bytes(data))?.checked(max_pixels)?;
        match format {
            Format::Bmp => bmp::decode(data, self),
            Format::Gif => gif::decode(data, self),
            Format::Jpeg => jpeg::decode(data, &mut PictureRows { picture: self, next: 0 }),
            Format::Png => png::decode(data, self),
            Format::Tiff => tiff::decode(data, self),
            Format::Webp => webp::decode(data, self),
        }?;
        header.orientation.apply(self);
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
            _ => Err(not_read(data)),
        }
    }

    fn header(self, source: &Source) -> Result<Header, String> {
        match self {
            Format::Bmp => source.parse(bmp::header),
            Format::Gif => gif::whole_header(source),
            Format::Jpeg => source.parse(jpeg_header),
            Format::Png => png::header(source),
            Format::Tiff => tiff::header(source),
            Format::Webp => webp::header(source),
        }
    }
}

/// Why a file is not read: what it seems to be, and what to do.
fn not_read(data: &[u8]) -> String {
    let brand = data.get(4..12).unwrap_or_default();
    let kind = match data {
        _ if brand.starts_with(b"ftypavi") => "an AVIF picture",
        _ if [&b"ftypheic"[..], b"ftypheix", b"ftypmif1", b"ftyphevc", b"ftypmsf1"].contains(&brand) => {
            "a HEIC picture"
        }
        [0, 0, 0, 12, b'j', b'P', ..] | [0xff, 0x4f, 0xff, 0x51, ..] => "a JPEG 2000 picture",
        [0, 0, 0, 12, b'J', b'X', b'L', ..] | [0xff, 0x0a, ..] => "a JPEG XL picture",
        [b'8', b'B', b'P', b'S', ..] => "a Photoshop file",
        [b'%', b'P', b'D', b'F', ..] => "a PDF file",
        _ if data.starts_with(b"version https://git-lfs") => {
            return "this is a Git LFS pointer and not the picture: fetch it with `git lfs pull`".to_string();
        }
        _ => return not_text(data),
    };
    format!(
        "this is {kind}, which is not read: convert it to PNG or JPEG, as with Pillow's `Image.open(...).save(...)`"
    )
}

/// What a file that is no picture contains.
fn not_text(data: &[u8]) -> String {
    let start = String::from_utf8_lossy(&data[..data.len().min(200)]).trim_start().to_ascii_lowercase();
    if start.starts_with("<!doctype html") || start.starts_with("<html") {
        return "this is a web page and not a picture: download it again".to_string();
    }
    if start.starts_with("<svg") || start.starts_with("<?xml") {
        return "this is an SVG drawing, which is not read: convert it to PNG".to_string();
    }
    "this is not a JPEG, PNG, WebP, GIF, BMP or TIFF file".to_string()
}

fn jpeg_header(data: &[u8]) -> Result<Header, String> {
    let header = jpeg::header(data)?;
    let frame = header.frame.ok_or("there is no frame header")?;
    frame.check()?;
    Ok(Header {
        width: frame.width as u64,
        height: frame.height as u64,
        orientation: Orientation::of_exif(&header.exif),
        values: if frame.is_progressive { frame.coefficient_bytes() } else { 0 },
        is_by_rows: true,
        used: UsedPart::default(),
    })
}

impl Header {
    fn pixels(&self) -> u64 {
        self.width.saturating_mul(self.height)
    }

    /// Values plus picture. Rotating takes a second picture, but the values are freed by then.
    fn decoding_bytes(&self) -> u64 {
        let rgb = RGB_PIXEL.saturating_mul(self.pixels());
        match self.orientation.is_upright() {
            true if self.is_by_rows => self.values,
            true => self.values.saturating_add(rgb),
            false => self.values.max(rgb).saturating_add(rgb),
        }
    }

    fn checked(self, max_pixels: u64) -> Result<Header, String> {
        let Header { width, height, .. } = self;
        if width == 0 || height == 0 {
            return Err(format!("the picture has {width} x {height} pixels"));
        }
        if self.pixels() > max_pixels {
            return Err(format!("the picture has {width} x {height} pixels; at most {max_pixels} are decoded"));
        }
        Ok(self)
    }
}

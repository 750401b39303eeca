//! TIFF, the first picture of the file, by the `tiff` crate. Palettes, JPEG inside TIFF and numbers that are not whole are refused by the header.

use std::io::{Cursor, Read, Seek};

use tiff::ColorType;
use tiff::decoder::{Decoder, DecodingResult, Limits};
use tiff::tags::Tag;

use super::orientation::Orientation;
use super::rgb::{Picture, from_cmyk, from_gray_16, on_white, unpacked, upper};
use super::source::Source;
use super::{Header, UsedPart};

/// Photometric interpretation of gray with black as zero.
const BLACK_IS_ZERO: u64 = 1;
const PALETTE: u64 = 3;
const YCBCR: u64 = 6;
/// Codes of compressions that are read: none, LZW, Deflate with two codes, PackBits, and Group 4 fax.
const COMPRESSIONS: [u64; 6] = [1, 5, 8, 32_946, 32_773, 4];
/// Names of compressions that are not.
const NAMES: [(u64, &str); 8] = [
    (2, "CCITT"),
    (3, "Group 3 fax"),
    (6, "old JPEG"),
    (7, "JPEG"),
    (34_712, "JPEG 2000"),
    (34_925, "LZMA"),
    (50_000, "Zstandard"),
    (50_001, "WebP"),
];
/// Types of an extra sample.
const UNSPECIFIED: u64 = 0;
const ASSOCIATED: u64 = 1;
const UNASSOCIATED: u64 = 2;

fn decoder<R: Read + Seek>(input: R, length: u64) -> Result<Decoder<R>, String> {
    // The number of pixels is checked before reading any.
    let mut limits = Limits::unlimited();
    limits.ifd_value_size = usize::try_from(length).unwrap_or(usize::MAX);
    Ok(Decoder::new(input).map_err(problem)?.with_limits(limits))
}

fn problem(error: impl std::fmt::Display) -> String {
    format!("the TIFF data is broken or not supported: {error}")
}

pub(super) fn header(source: &Source) -> Result<Header, String> {
    let mut decoder = decoder(source.reader(), source.length())?;
    let colours = check(&mut decoder)?;
    let (width, height) = decoder.dimensions().map_err(problem)?;
    let (width, height) = (u64::from(width), u64::from(height));
    let orientation = decoder.find_tag_unsigned::<u64>(Tag::Orientation).ok().flatten().unwrap_or(1);
    let bits = u64::from(colours.bit_depth()) * u64::from(colours.num_samples());
    let row = width.saturating_mul(bits).div_ceil(8);
    // Samples smaller than a byte are expanded to bytes, in addition to the file's.
    let whole = if bits < 8 { width } else { 0 };
    let values = row.saturating_add(whole).saturating_mul(height);
    let used = UsedPart { is_first_of_several: decoder.more_images(), is_clipped_gray: colours == ColorType::Gray(16) };
    Ok(Header { width, height, orientation: Orientation::new(orientation), values, is_by_rows: false, used })
}

/// Refuses what cannot be decoded, by what the directory of the first picture says.
fn check<R: Read + Seek>(decoder: &mut Decoder<R>) -> Result<ColorType, String> {
    let not_supported = |what: &str| Err(format!("a TIFF file {what} is not supported: convert it to PNG"));
    let compression = decoder.find_tag_unsigned::<u64>(Tag::Compression).map_err(problem)?.unwrap_or(1);
    if !COMPRESSIONS.contains(&compression) {
        let name = NAMES.iter().find(|(code, _)| *code == compression);
        return not_supported(
            &name.map_or(format!("with compression {compression}"), |(_, name)| format!("with {name} compression")),
        );
    }
    // The first of the numbers stands for all samples, as they are of one kind in all files that are read.
    let formats = decoder.find_tag_unsigned_vec::<u64>(Tag::SampleFormat).map_err(problem)?.unwrap_or_default();
    match formats.first() {
        None | Some(1 | 4) => {}
        Some(2) => return not_supported("of signed numbers"),
        Some(_) => return not_supported("of floating-point numbers"),
    }
    let photometric = decoder.find_tag_unsigned::<u64>(Tag::PhotometricInterpretation).map_err(problem)?;
    let has_extra = decoder.find_tag_unsigned_vec::<u64>(Tag::ExtraSamples).map_err(problem)?.is_some();
    match photometric {
        Some(PALETTE) => return not_supported("with a palette"),
        Some(YCBCR) => return not_supported("in YCbCr"),
        Some(8..=10) => return not_supported("in L*a*b*"),
        _ => {}
    }
    let colours = decoder.colortype().map_err(problem)?;
    let is_read = match colours {
        ColorType::Gray(1 | 2 | 4 | 8 | 16) | ColorType::RGB(8 | 16) | ColorType::RGBA(8 | 16) | ColorType::CMYK(8) => {
            true
        }
        ColorType::GrayA(8) | ColorType::Multiband { bit_depth: 8, num_samples: 2 } => {
            photometric == Some(BLACK_IS_ZERO) && has_extra
        }
        _ => false,
    };
    if is_read { Ok(colours) } else { not_supported(&format!("of {colours:?}")) }
}

pub(super) fn decode(data: &[u8], picture: &mut Picture) -> Result<(), String> {
    let mut decoder = decoder(Cursor::new(data), data.len() as u64)?;
    let (width, height) = decoder.dimensions().map_err(problem)?;
    let size = (width as usize, height as usize);
    let colours = check(&mut decoder)?;
    let extra = decoder.find_tag_unsigned_vec::<u64>(Tag::ExtraSamples).map_err(problem)?;
    let extra = extra.and_then(|kinds| kinds.first().copied());
    let values = decoder.read_image().map_err(problem)?;
    match (colours, values) {
        (ColorType::Gray(bits @ (1 | 2 | 4)), DecodingResult::U8(values)) => {
            let scale = 255 / ((1_u16 << bits) - 1) as u8;
            let values = whole_bytes(&values, size.0, bits);
            picture.fill(size, &values, 1, |pixel| [pixel[0] * scale; 3])
        }
        (ColorType::Gray(8), DecodingResult::U8(values)) => picture.fill(size, &values, 1, |pixel| [pixel[0]; 3]),
        (ColorType::Gray(16), DecodingResult::U16(values)) => {
            picture.fill(size, &values, 1, |pixel| from_gray_16(pixel[0]))
        }
        // Gray with an extra sample, whose type the file must give; it need not be alpha.
        (ColorType::GrayA(8) | ColorType::Multiband { bit_depth: 8, num_samples: 2 }, DecodingResult::U8(values))
            if extra.is_some() =>
        {
            let is_opacity = extra == Some(UNASSOCIATED);
            picture.fill(size, &values, 2, |pixel| on_white([pixel[0]; 3], if is_opacity { pixel[1] } else { 255 }))
        }
        (ColorType::RGB(8), DecodingResult::U8(values)) => picture.fill(size, &values, 3, rgb),
        (ColorType::RGBA(8), DecodingResult::U8(values)) => {
            picture.fill(size, &values, 4, |pixel| shown(rgb(pixel), pixel[3], extra))
        }
        (ColorType::RGB(16), DecodingResult::U16(values)) => picture.fill(size, &values, 3, rgb_16),
        (ColorType::RGBA(16), DecodingResult::U16(values)) => {
            picture.fill(size, &values, 4, |pixel| shown(rgb_16(pixel), upper(pixel[3]), extra))
        }
        (ColorType::CMYK(8), DecodingResult::U8(values)) => {
            picture.fill(size, &values, 4, |pixel| from_cmyk([pixel[0], pixel[1], pixel[2], pixel[3]]))
        }
        (other, _) => Err(format!("a TIFF file of {other:?} is not supported")),
    }
}

/// A pixel on white. The file gives the type of the fourth sample; by default it is alpha.
fn shown(colour: [u8; 3], alpha: u8, extra: Option<u64>) -> [u8; 3] {
    match (extra, alpha) {
        (Some(UNSPECIFIED), _) => colour,
        (Some(ASSOCIATED), 1..) => {
            let whole = colour.map(|value| (u32::from(value) * 255 / u32::from(alpha)).min(255) as u8);
            on_white(whole, alpha)
        }
        _ => on_white(colour, alpha),
    }
}

fn rgb(pixel: &[u8]) -> [u8; 3] {
    [pixel[0], pixel[1], pixel[2]]
}

fn rgb_16(pixel: &[u16]) -> [u8; 3] {
    [upper(pixel[0]), upper(pixel[1]), upper(pixel[2])]
}

/// Expands each sample to a byte; rows are byte-aligned.
fn whole_bytes(values: &[u8], width: usize, bits: u8) -> Vec<u8> {
    let stride = (width * usize::from(bits)).div_ceil(8).max(1);
    let rows = values.chunks_exact(stride);
    let mut whole = Vec::with_capacity(rows.len() * width);
    rows.for_each(|row| whole.extend(unpacked(row, bits).take(width)));
    whole
}

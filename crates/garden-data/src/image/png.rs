//! PNG, by the `png` crate.

use std::io::Cursor;

use png::{BitDepth, ColorType, Decoder, Reader, Transformations};

use super::orientation::Orientation;
use super::rgb::{Picture, from_gray_16, upper};

/// Memory for what is not pixels: profiles, texts. The pixels are limited by their number.
const LIMIT: usize = 64 << 20;
/// Bytes before the first chunk.
const SIGNATURE: usize = 8;

fn reader(data: &[u8]) -> Result<Reader<Cursor<&[u8]>>, String> {
    let mut decoder = Decoder::new_with_limits(Cursor::new(data), png::Limits { bytes: LIMIT });
    decoder.set_transformations(Transformations::EXPAND);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    decoder.read_info().map_err(problem)
}

fn problem(error: png::DecodingError) -> String {
    match &error {
        png::DecodingError::IoError(inner) if inner.kind() == std::io::ErrorKind::UnexpectedEof => {
            "the file is truncated".to_string()
        }
        _ => format!("the PNG data is broken: {error}"),
    }
}

/// The orientation in the chunk of Exif data, which may stand before the pixels or behind them.
fn orientation(data: &[u8]) -> Orientation {
    let mut rest = data.get(SIGNATURE..).unwrap_or_default();
    while let Some(([a, b, c, d, kind @ ..], after)) = rest.split_first_chunk::<8>() {
        let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
        let Some((contents, after)) = after.split_at_checked(length) else { break };
        if kind == b"eXIf" {
            return Orientation::of_exif(contents);
        }
        // A checksum follows.
        rest = after.get(4..).unwrap_or_default();
    }
    Orientation::default()
}

pub(super) fn size(data: &[u8]) -> Result<(u64, u64, Orientation), String> {
    let reader = reader(data)?;
    let info = reader.info();
    Ok((u64::from(info.width), u64::from(info.height), orientation(data)))
}

pub(super) fn decode(data: &[u8], picture: &mut Picture) -> Result<(), String> {
    let mut reader = reader(data)?;
    let info = reader.info();
    let (width, height, original) = (info.width as usize, info.height as usize, info.color_type);
    let (colours, depth) = reader.output_color_type();
    if (colours, depth) == (ColorType::Rgb, BitDepth::Eight) {
        reader.next_frame(picture.reset(width, height)).map_err(problem)?;
    } else {
        let length = reader.output_buffer_size().ok_or("the picture is too large")?;
        let mut values = vec![0; length];
        reader.next_frame(&mut values).map_err(problem)?;
        let channels = colours.samples();
        if depth == BitDepth::Sixteen {
            let values: Vec<u16> = values.chunks_exact(2).map(|two| u16::from_be_bytes([two[0], two[1]])).collect();
            picture.fill((width, height), &values, channels, |pixel| match (original, pixel) {
                (ColorType::Grayscale, [gray, ..]) => from_gray_16(*gray),
                (_, [red, green, blue, ..]) => [upper(*red), upper(*green), upper(*blue)],
                _ => [upper(pixel[0]); 3],
            })?;
        } else {
            picture.fill((width, height), &values, channels, |pixel| match pixel {
                [red, green, blue, ..] => [*red, *green, *blue],
                _ => [pixel[0]; 3],
            })?;
        }
    }
    Ok(())
}

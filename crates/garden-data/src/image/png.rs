//! PNG, by the `png` crate.

use std::io::{BufRead, Cursor, Seek};

use png::{BitDepth, ColorType, Decoder, Reader, Transformations};

use super::orientation::Orientation;
use super::rgb::{Picture, from_gray_16, upper};
use super::source::Source;

/// Memory for what is not pixels: profiles, texts. The pixels are limited by their number.
const LIMIT: usize = 64 << 20;
/// Bytes before the first chunk.
const SIGNATURE: u64 = 8;

fn reader<R: BufRead + Seek>(input: R) -> Result<Reader<R>, String> {
    let mut decoder = Decoder::new_with_limits(input, png::Limits { bytes: LIMIT });
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

/// The orientation in the chunk of Exif data, which may stand before the pixels or behind them: the walk goes from chunk to chunk.
fn orientation(source: &Source) -> Option<Orientation> {
    let mut place = SIGNATURE;
    let mut head = [0; 8];
    while source.read_at(place, &mut head).ok()? == head.len() {
        let [a, b, c, d, kind @ ..] = head;
        let length = u32::from_be_bytes([a, b, c, d]);
        let contents = place + head.len() as u64;
        if contents + u64::from(length) > source.length() {
            break;
        }
        if &kind == b"eXIf" {
            let mut exif = vec![0; length as usize];
            source.read_at(contents, &mut exif).ok()?;
            return Some(Orientation::of_exif(&exif));
        }
        // A checksum follows.
        place = contents + u64::from(length) + 4;
    }
    None
}

pub(super) fn size(source: &Source) -> Result<(u64, u64, Orientation), String> {
    let reader = reader(source.reader())?;
    let info = reader.info();
    Ok((u64::from(info.width), u64::from(info.height), orientation(source).unwrap_or_default()))
}

pub(super) fn decode(data: &[u8], picture: &mut Picture) -> Result<(), String> {
    let mut reader = reader(Cursor::new(data))?;
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

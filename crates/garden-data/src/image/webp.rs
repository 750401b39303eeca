//! WebP, the first frame, by the `image-webp` crate.

use std::io::{BufRead, Cursor, Seek};

use image_webp::WebPDecoder;

use super::orientation::Orientation;
use super::rgb::{Picture, on_white};
use super::source::Source;
use super::{Header, RGB_PIXEL, RGBA_PIXEL, UsedPart};

/// Bytes of a chunk's name and length, and the offset of the first chunk.
const RIFF_HEADER: u64 = 8;
const FIRST_CHUNK: u64 = 12;

/// Bytes that the decoder keeps per macroblock besides pixels, in a vector that doubles.
const BLOCK_BYTES: u64 = 30;

fn decoder<R: BufRead + Seek>(input: R) -> Result<WebPDecoder<R>, String> {
    WebPDecoder::new(input).map_err(problem)
}

fn problem(error: impl std::fmt::Display) -> String {
    format!("the WebP data is broken: {error}")
}

/// Refuses a truncated file, or one whose chunks are inconsistent, as libwebp does; the decoder accepts them.
fn check_chunks(source: &Source) -> Result<(), String> {
    let mut head = [0; 8];
    let mut read = |place: u64| {
        let count = source.read_at(place, &mut head).map_err(problem)?;
        let [kind @ .., a, b, c, d] = head;
        Ok::<_, String>((count == head.len()).then_some((kind, u64::from(u32::from_le_bytes([a, b, c, d])))))
    };
    let (_, length) = read(0)?.ok_or("the file is truncated")?;
    let end = length + RIFF_HEADER;
    if end > source.length() {
        return Err(format!("the file is truncated: it has {} of {end} bytes", source.length()));
    }
    let mut place = FIRST_CHUNK;
    while place + RIFF_HEADER <= end {
        let (kind, length) = read(place)?.ok_or("the file is truncated")?;
        if place + RIFF_HEADER + length > end {
            return Err(format!("the chunk at byte {place} of the WebP file is longer than the file"));
        }
        // A simple file has one chunk; anything after it is ignored.
        if place == FIRST_CHUNK && &kind != b"VP8X" {
            break;
        }
        place += RIFF_HEADER + length.next_multiple_of(2);
    }
    Ok(())
}

pub(super) fn header(source: &Source) -> Result<Header, String> {
    check_chunks(source)?;
    let mut decoder = decoder(source.reader())?;
    let (width, height) = decoder.dimensions();
    let exif = decoder.exif_metadata().map_err(problem)?;
    let orientation = exif.as_deref().map_or_else(Orientation::default, Orientation::of_exif);
    let (width, height) = (u64::from(width), u64::from(height));
    let values = held(&mut decoder, width, height).saturating_add(source.length());
    let is_first_of_several = decoder.is_animated() && decoder.num_frames() > 1;
    let used = UsedPart { is_first_of_several, ..UsedPart::default() };
    Ok(Header { width, height, orientation, values, is_by_rows: false, used })
}

/// Bytes held beside the picture, according to the decoder's source: planes of whole macroblocks with subsampled chroma and a list of the blocks, or RGBA of
/// each pixel. A lossy file has its alpha as a separate lossless picture; a frame of an animation is drawn on a canvas and
/// read from there. Both are freed once the picture is complete.
fn held<R: BufRead + Seek>(decoder: &mut WebPDecoder<R>, width: u64, height: u64) -> u64 {
    let pixels = width * height;
    let blocks = width.div_ceil(16) * height.div_ceil(16);
    let planes = blocks * (256 * 3 / 2) + BLOCK_BYTES * blocks.next_power_of_two();
    let (rgb, rgba) = (RGB_PIXEL * pixels, RGBA_PIXEL * pixels);
    match (decoder.is_animated(), decoder.is_lossy(), decoder.has_alpha()) {
        (true, _, _) => 3 * rgba - rgb,
        (false, true, false) => planes,
        (false, true, true) => planes + 2 * rgba + pixels - rgb,
        (false, false, _) => rgba,
    }
}

pub(super) fn decode(data: &[u8], picture: &mut Picture) -> Result<(), String> {
    let mut decoder = decoder(Cursor::new(data))?;
    let (width, height) = decoder.dimensions();
    let size = (width as usize, height as usize);
    let length = decoder.output_buffer_size().ok_or("the picture is too large")?;
    if !decoder.has_alpha() && !decoder.is_animated() {
        return decoder.read_image(picture.reset(size.0, size.1)).map_err(problem);
    }
    let mut values = vec![0; length];
    if decoder.is_animated() {
        decoder.read_frame(&mut values).map_err(problem)?;
    } else {
        decoder.read_image(&mut values).map_err(problem)?;
    }
    let channels = length / (size.0 * size.1).max(1);
    picture.fill(size, &values, channels, |pixel| match *pixel {
        [red, green, blue, alpha] => on_white([red, green, blue], alpha),
        _ => [pixel[0], pixel[1], pixel[2]],
    })
}

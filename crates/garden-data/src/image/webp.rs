//! WebP, the first frame, by the `image-webp` crate.

use std::io::{BufRead, Cursor, Seek};

use image_webp::WebPDecoder;

use super::orientation::Orientation;
use super::rgb::{Picture, on_white};
use super::source::Source;

fn decoder<R: BufRead + Seek>(input: R) -> Result<WebPDecoder<R>, String> {
    WebPDecoder::new(input).map_err(problem)
}

fn problem(error: impl std::fmt::Display) -> String {
    format!("the WebP data is broken: {error}")
}

pub(super) fn size(source: &Source) -> Result<(u64, u64, Orientation), String> {
    let mut decoder = decoder(source.reader())?;
    let (width, height) = decoder.dimensions();
    let exif = decoder.exif_metadata().map_err(problem)?;
    let orientation = exif.as_deref().map_or_else(Orientation::default, Orientation::of_exif);
    Ok((u64::from(width), u64::from(height), orientation))
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

//! GIF, the first frame, by the `gif` crate.

use std::io::{BufRead, Read, Seek};
use std::num::NonZeroU64;

use gif::{ColorOutput, DecodeOptions, Decoder, MemoryLimit};

use super::orientation::Orientation;
use super::rgb::Picture;
use super::source::Source;
use super::{Header, UsedPart};

/// A frame has at most 65,535 x 65,535 pixels of one byte; its real size was checked by then.
const LIMIT: u64 = 1 << 32;

/// What begins a frame, and an extension.
const FRAME: u8 = 0x2c;
const EXTENSION: u8 = 0x21;

/// Colour of transparent pixels.
const WHITE: [u8; 3] = [255; 3];

fn decoder(data: &[u8]) -> Result<Decoder<&[u8]>, String> {
    let mut options = DecodeOptions::new();
    options.set_color_output(ColorOutput::Indexed);
    if let Some(limit) = NonZeroU64::new(LIMIT) {
        options.set_memory_limit(MemoryLimit::Bytes(limit));
    }
    options.read_info(data).map_err(problem)
}

fn problem(error: impl std::fmt::Display) -> String {
    format!("the GIF data is broken: {error}")
}

/// The screen size, enlarged if the first frame extends beyond it, as in PIL.
pub(super) fn header(data: &[u8]) -> Result<Header, String> {
    let mut decoder = decoder(data)?;
    let (width, height) = (u64::from(decoder.width()), u64::from(decoder.height()));
    let frame = decoder.next_frame_info().map_err(problem)?.ok_or("there is no frame")?;
    let right = u64::from(frame.left) + u64::from(frame.width);
    let bottom = u64::from(frame.top) + u64::from(frame.height);
    // One palette index per pixel of the frame.
    let values = u64::from(frame.width) * u64::from(frame.height);
    let (width, height) = (width.max(right), height.max(bottom));
    Ok(Header {
        width,
        height,
        orientation: Orientation::default(),
        values,
        is_by_rows: false,
        used: UsedPart::default(),
    })
}

/// The header, and whether further frames follow the first.
pub(super) fn whole_header(source: &Source) -> Result<Header, String> {
    let header = source.parse(header)?;
    let is_first_of_several = count_frames(source.reader(), 2).is_ok_and(|frames| frames > 1);
    Ok(Header { used: UsedPart { is_first_of_several, ..UsedPart::default() }, ..header })
}

/// Counts frames up to a number, skipping their pixels.
fn count_frames(mut input: impl BufRead + Seek, most: usize) -> std::io::Result<usize> {
    let mut head = [0; 13];
    input.read_exact(&mut head)?;
    skip(&mut input, table_bytes(head[10]))?;
    let mut frames = 0;
    while frames < most {
        let mut kind = [0; 1];
        input.read_exact(&mut kind)?;
        match kind[0] {
            FRAME => {
                frames += 1;
                let mut frame = [0; 9];
                input.read_exact(&mut frame)?;
                // After the palette comes the size of codes.
                skip(&mut input, table_bytes(frame[8]) + 1)?;
            }
            EXTENSION => skip(&mut input, 1)?,
            _ => break,
        }
        if frames < most {
            skip_blocks(&mut input)?;
        }
    }
    Ok(frames)
}

/// Bytes of the palette that a flag announces.
fn table_bytes(flags: u8) -> i64 {
    if flags & 0x80 == 0 { 0 } else { 3 << ((flags & 7) + 1) }
}

fn skip(input: &mut impl Seek, bytes: i64) -> std::io::Result<()> {
    input.seek_relative(bytes)
}

/// Skips blocks of data up to the empty one that ends them.
fn skip_blocks(input: &mut (impl Read + Seek)) -> std::io::Result<()> {
    loop {
        let mut length = [0; 1];
        input.read_exact(&mut length)?;
        if length[0] == 0 {
            return Ok(());
        }
        skip(input, length[0].into())?;
    }
}

pub(super) fn decode(data: &[u8], picture: &mut Picture) -> Result<(), String> {
    let Header { width, height, .. } = header(data)?;
    let mut decoder = decoder(data)?;
    let global = decoder.global_palette().map(<[u8]>::to_vec);
    let frame = decoder.read_next_frame().map_err(problem)?.ok_or("there is no frame")?;
    let palette = frame.palette.as_deref().or(global.as_deref());
    let transparent = frame.transparent;
    let colour = |index: u8| match palette {
        _ if transparent == Some(index) => WHITE,
        None => [index; 3],
        Some(palette) => {
            let start = 3 * usize::from(index);
            palette.get(start..start + 3).map_or([0; 3], |one| [one[0], one[1], one[2]])
        }
    };
    // PIL fills the area outside the frame with the transparent colour or the first one, not with the background.
    let ground = colour(transparent.unwrap_or(0));
    let pixels = picture.reset(width as usize, height as usize);
    pixels.chunks_exact_mut(3).for_each(|pixel| pixel.copy_from_slice(&ground));
    let rows = frame.buffer.chunks_exact(usize::from(frame.width).max(1));
    for (row, indices) in rows.enumerate().take(usize::from(frame.height)) {
        let start = 3 * ((usize::from(frame.top) + row) * width as usize + usize::from(frame.left));
        for (pixel, index) in pixels[start..].chunks_exact_mut(3).zip(indices) {
            pixel.copy_from_slice(&colour(*index));
        }
    }
    Ok(())
}

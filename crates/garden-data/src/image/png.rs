//! PNG, by the `png` crate.

use std::io::{BufRead, Cursor, Seek};

use png::{BitDepth, ColorType, DecodeOptions, Decoder, Reader, Transformations};

use super::orientation::Orientation;
use super::rgb::{Picture, from_gray_16, on_white};
use super::source::Source;
use super::{Header, UsedPart};

/// Memory limit for everything but pixels, such as profiles and texts. Pixels have their own limit.
const LIMIT: usize = 64 << 20;
/// Bytes before the first chunk.
const SIGNATURE: u64 = 8;

fn reader<R: BufRead + Seek>(input: R) -> Result<Reader<R>, String> {
    // A damaged chunk is an error, even if it is not needed for display.
    let mut options = DecodeOptions::default();
    options.set_skip_ancillary_crc_failures(false);
    let mut decoder = Decoder::new_with_options(input, options);
    decoder.set_limits(png::Limits { bytes: LIMIT });
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

/// What chunks beside the pixels say.
#[derive(Default)]
struct Beside {
    orientation: Option<Orientation>,
    is_animated: bool,
}

/// Walks all chunks: Exif data may stand before the pixels or after them.
fn beside(source: &Source) -> Beside {
    let (mut found, mut place) = (Beside::default(), SIGNATURE);
    let mut head = [0; 8];
    while source.read_at(place, &mut head).is_ok_and(|count| count == head.len()) {
        let [a, b, c, d, kind @ ..] = head;
        let length = u32::from_be_bytes([a, b, c, d]);
        let contents = place + head.len() as u64;
        if contents + u64::from(length) > source.length() {
            break;
        }
        match &kind {
            b"eXIf" if found.orientation.is_none() => {
                let mut exif = vec![0; length as usize];
                if source.read_at(contents, &mut exif).is_err() {
                    break;
                }
                found.orientation = Some(Orientation::of_exif(&exif));
            }
            b"acTL" => {
                let mut frames = [0; 4];
                found.is_animated = source.read_at(contents, &mut frames).is_ok() && u32::from_be_bytes(frames) > 1;
            }
            _ => {}
        }
        // A checksum follows.
        place = contents + u64::from(length) + 4;
    }
    found
}

pub(super) fn header(source: &Source) -> Result<Header, String> {
    let reader = reader(source.reader())?;
    let info = reader.info();
    let beside = beside(source);
    // RGB values are decoded straight into the picture.
    let values = if is_rgb(&reader) { 0 } else { reader.output_buffer_size().map_or(u64::MAX, |length| length as u64) };
    Ok(Header {
        width: u64::from(info.width),
        height: u64::from(info.height),
        orientation: beside.orientation.unwrap_or_default(),
        values,
        is_by_rows: false,
        used: UsedPart {
            is_first_of_several: beside.is_animated,
            is_clipped_gray: (info.color_type, info.bit_depth) == (ColorType::Grayscale, BitDepth::Sixteen),
        },
    })
}

fn is_rgb<R: BufRead + Seek>(reader: &Reader<R>) -> bool {
    reader.output_color_type() == (ColorType::Rgb, BitDepth::Eight)
}

pub(super) fn decode(data: &[u8], picture: &mut Picture) -> Result<(), String> {
    let mut reader = reader(Cursor::new(data))?;
    let info = reader.info();
    let size @ (width, height) = (info.width as usize, info.height as usize);
    let original = info.color_type;
    let see_through = SeeThrough::of(original, info.trns.as_deref());
    let (colours, depth) = reader.output_color_type();
    if is_rgb(&reader) {
        return reader.next_frame(picture.reset(width, height)).map(drop).map_err(problem);
    }
    let length = reader.output_buffer_size().ok_or("the picture is too large")?;
    let mut values = vec![0; length];
    reader.next_frame(&mut values).map_err(problem)?;
    let channels = colours.samples();
    if depth == BitDepth::Sixteen {
        // The upper byte comes first; PIL keeps only that one, except for gray without alpha.
        let is_gray_alone = original == ColorType::Grayscale;
        let shown = |high: u8, low: u8| match is_gray_alone {
            true => from_gray_16(u16::from_be_bytes([high, low])),
            false => [high; 3],
        };
        return picture.fill(size, &values, 2 * channels, |pixel| match *pixel {
            [gray, low] => shown(gray, low),
            [gray, low, alpha, _] => see_through.on_white(shown(gray, low), alpha),
            [red, _, green, _, blue, _] => [red, green, blue],
            [red, _, green, _, blue, _, alpha, _] => see_through.on_white([red, green, blue], alpha),
            _ => [0; 3],
        });
    }
    picture.fill(size, &values, channels, |pixel| match *pixel {
        [gray] => [gray; 3],
        [gray, alpha] => see_through.on_white([gray; 3], alpha),
        [red, green, blue] => [red, green, blue],
        [red, green, blue, alpha] => see_through.on_white([red, green, blue], alpha),
        _ => [0; 3],
    })
}

/// Transparency: by alpha channel, or by one transparent colour.
struct SeeThrough(Option<[u8; 3]>);

impl SeeThrough {
    /// PIL takes the lower byte of the transparent colour and compares it with the converted values. So in gray of 2 or 4 bits
    /// and in 16 bits it finds other pixels than the file means, or none; models are given what PIL finds.
    fn of(colours: ColorType, marks: Option<&[u8]>) -> SeeThrough {
        SeeThrough(match (colours, marks) {
            (ColorType::Grayscale, Some(&[.., low])) => Some([low; 3]),
            (ColorType::Rgb, Some(&[red, green, blue] | &[_, red, _, green, _, blue])) => Some([red, green, blue]),
            _ => None,
        })
    }

    fn on_white(&self, colour: [u8; 3], alpha: u8) -> [u8; 3] {
        match self.0 {
            Some(transparent) => on_white(colour, if colour == transparent { 0 } else { 255 }),
            None => on_white(colour, alpha),
        }
    }
}

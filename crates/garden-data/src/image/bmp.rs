//! BMP: uncompressed palettes and colours, as written by Windows and OS/2. Run-length encoding is refused.

use super::orientation::Orientation;
use super::rgb::{Picture, on_white, unpacked};
use super::{Header, UsedPart};

/// Bytes of the file header, before the bitmap header.
const FILE_HEADER: usize = 14;
/// Values of the field `compression`.
const RAW: u32 = 0;
const BITFIELDS: u32 = 3;
/// Maximum number of palette colours.
const MOST_COLOURS: usize = 256;

/// Bits per pixel, and masks of red, green, blue and alpha: the combinations that Pillow supports. Others are corrupt files.
const ORDERS: [(u16, [u32; 4]); 11] = [
    (32, [0; 4]),
    (32, [0xff_0000, 0xff00, 0xff, 0]),
    (32, [0xff00_0000, 0xff_0000, 0xff00, 0]),
    (32, [0xff00_0000, 0xff00, 0xff, 0]),
    (32, [0xff00_0000, 0xff_0000, 0xff00, 0xff]),
    (32, [0xff, 0xff00, 0xff_0000, 0xff00_0000]),
    (32, [0xff_0000, 0xff00, 0xff, 0xff00_0000]),
    (32, [0xff00_0000, 0xff00, 0xff, 0xff_0000]),
    (24, [0xff_0000, 0xff00, 0xff, 0]),
    (16, [0xf800, 0x7e0, 0x1f, 0]),
    (16, [0x7c00, 0x3e0, 0x1f, 0]),
];

/// Layout of the pixels.
struct Layout {
    width: usize,
    height: usize,
    is_top_down: bool,
    bits: u16,
    /// Offset of the palette or the colour masks.
    after: usize,
    pixels: usize,
    /// Bytes per palette colour, and their number.
    entry: usize,
    colours: usize,
    masks: [u32; 3],
    /// Mask of alpha; 0 if there is none.
    alpha: u32,
}

fn short(data: &[u8], at: usize) -> Result<u16, String> {
    let bytes = data.get(at..at + 2).and_then(|bytes| bytes.try_into().ok());
    bytes.map(u16::from_le_bytes).ok_or_else(|| "the file is truncated".to_string())
}

fn long(data: &[u8], at: usize) -> Result<u32, String> {
    let bytes = data.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    bytes.map(u32::from_le_bytes).ok_or_else(|| "the file is truncated".to_string())
}

fn layout(data: &[u8]) -> Result<Layout, String> {
    let length = long(data, FILE_HEADER)? as usize;
    let mut header = Layout {
        width: 0,
        height: 0,
        is_top_down: false,
        bits: 0,
        after: FILE_HEADER + length,
        pixels: long(data, 10)? as usize,
        entry: 4,
        colours: 0,
        masks: [0xff_0000, 0xff00, 0xff],
        alpha: 0,
    };
    let mut compression = RAW;
    match length {
        12 => {
            header.width = usize::from(short(data, 18)?);
            header.height = usize::from(short(data, 20)?);
            header.bits = short(data, 24)?;
            header.entry = 3;
        }
        40 | 52 | 56 | 64 | 108 | 124 => {
            header.width = long(data, 18)? as usize;
            let height = long(data, 22)? as i32;
            (header.height, header.is_top_down) = (height.unsigned_abs() as usize, height < 0);
            header.bits = short(data, 28)?;
            compression = long(data, 30)?;
            header.colours = long(data, 46)? as usize;
        }
        _ => return Err(format!("the BMP header has an unknown length of {length} bytes")),
    }
    if header.colours == 0 && header.bits <= 8 {
        header.colours = 1 << header.bits;
    }
    if header.bits <= 8 && header.colours > MOST_COLOURS {
        return Err(format!("the BMP header claims a palette of {} colours", header.colours));
    }
    match (compression, header.bits) {
        (RAW, 16) => header.masks = [0x7c00, 0x3e0, 0x1f],
        (RAW, 1 | 4 | 8 | 24 | 32) => {}
        (BITFIELDS, 16 | 24 | 32) => {
            // Masks are inside longer headers and right after the short one, which is the same offset.
            let masks = [long(data, 54)?, long(data, 58)?, long(data, 62)?];
            if masks != [0; 3] {
                header.masks = masks;
            }
            // Short headers have three masks. If all are zero, the usual order is meant.
            if header.bits == 32 && length >= 56 {
                header.alpha = long(data, 66)?;
            }
            let order = (header.bits, [masks[0], masks[1], masks[2], header.alpha]);
            if !ORDERS.contains(&order) {
                return Err("the BMP header has an unknown order of colour bits".to_string());
            }
            if header.bits == 32 && masks == [0; 3] && header.alpha == 0 {
                header.alpha = 0xff00_0000;
            }
        }
        (RAW | BITFIELDS, bits) => return Err(format!("a BMP file with {bits} bits is not supported")),
        (other, _) => return Err(format!("a BMP file with compression {other} is not supported")),
    }
    Ok(header)
}

pub(super) fn header(data: &[u8]) -> Result<Header, String> {
    let Layout { width, height, .. } = layout(data)?;
    let orientation = Orientation::default();
    Ok(Header {
        width: width as u64,
        height: height as u64,
        orientation,
        values: 0,
        is_by_rows: false,
        used: UsedPart::default(),
    })
}

pub(super) fn decode(data: &[u8], picture: &mut Picture) -> Result<(), String> {
    let header = layout(data)?;
    let Layout { width, height, .. } = header;
    let stride = (width * usize::from(header.bits)).div_ceil(32) * 4;
    // The last row may lack its padding bytes.
    let needed = (stride * (height - 1)).saturating_add((width * usize::from(header.bits)).div_ceil(8));
    let values = data.get(header.pixels..).unwrap_or_default();
    if values.len() < needed {
        return Err(format!("the file is truncated: it has {} of {needed} bytes of pixels", values.len()));
    }
    let palette = palette(data, &header)?;
    for (number, row) in picture.reset(width, height).chunks_exact_mut(3 * width).enumerate() {
        let number = if header.is_top_down { number } else { height - 1 - number };
        let values = &values[stride * number..(stride * (number + 1)).min(values.len())];
        let pixels = row.chunks_exact_mut(3);
        match header.bits {
            1 | 4 | 8 => {
                for (pixel, index) in pixels.zip(unpacked(values, header.bits as u8)) {
                    pixel.copy_from_slice(&palette.get(usize::from(index)).copied().unwrap_or_default());
                }
            }
            bits => {
                for (pixel, bytes) in pixels.zip(values.chunks_exact(usize::from(bits / 8))) {
                    let value = bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
                    let colour = header.masks.map(|mask| masked(value, mask));
                    let alpha = if header.alpha == 0 { 255 } else { masked(value, header.alpha) };
                    pixel.copy_from_slice(&on_white(colour, alpha));
                }
            }
        }
    }
    Ok(())
}

fn palette(data: &[u8], header: &Layout) -> Result<Vec<[u8; 3]>, String> {
    if header.bits > 8 {
        return Ok(Vec::new());
    }
    let entries = header.colours.min(256) * header.entry;
    let bytes = data.get(header.after..header.after + entries).ok_or("the palette is truncated")?;
    Ok(bytes.chunks_exact(header.entry).map(|entry| [entry[2], entry[1], entry[0]]).collect())
}

/// The bits of a mask, scaled to a byte.
fn masked(value: u32, mask: u32) -> u8 {
    let largest = mask >> mask.trailing_zeros().min(31);
    if largest == 0 {
        return 0;
    }
    let part = (value & mask) >> mask.trailing_zeros();
    (u64::from(part) * 255 / u64::from(largest)) as u8
}

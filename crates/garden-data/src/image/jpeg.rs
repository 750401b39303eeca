//! JPEG, decoded to exactly the values of libjpeg-turbo, which PIL and torchvision use.
//!
//! The inverse DCT ([`idct`]), the chroma upsampling ([`upsample`]) and the colour conversion follow its
//! default settings; other decoders are up to 58 levels off at edges of small pictures. Supports Huffman-coded files with 8
//! bits, sequential or progressive. A truncated file or one with invalid codes is an error, where libjpeg
//! would continue with gray.

mod bits;
mod colour;
mod header;
mod idct;
mod scan;
mod upsample;

use super::rgb::Rows;
use bits::Bits;
use colour::Converter;
use header::{Header, Segments};
use scan::Scan;

/// Side of a block in samples.
const SIDE: usize = 8;

/// A colour component and its decoding state.
#[derive(Clone, Debug, Default)]
struct Component {
    id: u8,
    /// Sampling factors.
    across: usize,
    down: usize,
    /// Its quantisation table, in zigzag order, captured when its first scan begins.
    table_index: usize,
    table: Option<[u16; 64]>,
    /// Size in samples, without padding.
    width: usize,
    height: usize,
    /// Size in blocks, including the padding of the last units.
    blocks_across: usize,
    blocks_down: usize,
    /// Rows of blocks in memory: all of them, or the latest.
    blocks_held: usize,
    /// `[blocks_held * 8, blocks_across * 8]`, a ring buffer of rows.
    samples: Vec<u8>,
    /// Coefficients of progressive files: `[blocks, 64]`.
    coefficients: Vec<i16>,
}

/// Reads size and orientation from a file's header.
pub(super) fn header(data: &[u8]) -> Result<Header, String> {
    let mut segments = Segments::new(data)?;
    loop {
        segments.next_marker()?;
        if segments.header.frame.is_some() {
            return Ok(segments.header);
        }
        if segments.is_at_scan() || segments.is_over() {
            return Err("there is no frame header".to_string());
        }
    }
}

/// Decodes a file whose size has been checked. The rows of most files are passed on during decoding.
pub(super) fn decode(data: &[u8], rows: &mut impl Rows) -> Result<(), String> {
    let mut segments = Segments::new(data)?;
    let mut components: Vec<Component> = Vec::new();
    loop {
        segments.next_marker()?;
        if segments.is_over() {
            break;
        }
        if !segments.is_at_scan() {
            continue;
        }
        let frame = segments.header.frame.clone().ok_or("a scan comes before the frame header")?;
        if components.is_empty() {
            components = frame.components()?;
        }
        let scan = Scan::read(&segments, &frame, &mut components)?;
        let mut bits = Bits::new(data, segments.position);
        if frame.is_progressive {
            scan.decode_coefficients(&frame, &segments.tables, &mut components, &mut bits)?;
        } else if scan.is_complete(&components) {
            components.iter_mut().for_each(Component::hold_last);
            let mut converter = Converter::new(&segments.header, &frame, &components, rows);
            return scan.decode_samples(&frame, &segments.tables, &mut components, &mut bits, |until, components| {
                converter.give(&frame, components, until, rows)
            });
        } else {
            components.iter_mut().filter(|component| component.table.is_some()).for_each(Component::hold_all);
            scan.decode_samples(&frame, &segments.tables, &mut components, &mut bits, |_, _| Ok(()))?;
        }
        segments.position = bits.end();
        // Sequential files are complete once each component was seen, with or without an end marker.
        if !frame.is_progressive && components.iter().all(|component| !component.samples.is_empty()) {
            break;
        }
    }
    let frame = segments.header.frame.clone().ok_or("there is no frame header")?;
    if components.is_empty() {
        return Err("there is no scan".to_string());
    }
    if let Some(component) = components.iter().find(|component| component.table.is_none()) {
        return Err(format!("component {} is in no scan", component.id));
    }
    let mut converter = Converter::new(&segments.header, &frame, &components, rows);
    if !frame.is_progressive {
        return converter.give(&frame, &components, frame.height, rows);
    }
    components.iter_mut().for_each(Component::hold_last);
    for unit in 0..frame.units_down() {
        components.iter_mut().for_each(|component| component.transform(unit));
        let until = (unit + 1) * frame.down * SIDE - 1;
        let until = if unit + 1 == frame.units_down() { frame.height } else { until };
        converter.give(&frame, &components, until, rows)?;
    }
    Ok(())
}

impl Component {
    fn hold_all(&mut self) {
        self.hold(self.blocks_down);
    }

    /// Keeps two rows of units: interpolation needs the rows above and below.
    fn hold_last(&mut self) {
        self.hold((2 * self.down).min(self.blocks_down));
    }

    fn hold(&mut self, blocks: usize) {
        self.blocks_held = blocks;
        self.samples.resize(blocks * self.blocks_across * SIDE * SIDE, 0);
    }

    /// Transforms the coefficients of a row of units of a progressive file into samples.
    fn transform(&mut self, unit: usize) {
        let stride = self.blocks_across * SIDE;
        let table = self.table.unwrap_or([0; 64]);
        let first = unit * self.down;
        let rows = &self.coefficients[first * self.blocks_across * 64..][..self.down * self.blocks_across * 64];
        for (number, coefficients) in rows.as_chunks::<64>().0.iter().enumerate() {
            let (row, column) = (first + number / self.blocks_across, number % self.blocks_across);
            let samples = &mut self.samples[row % self.blocks_held * SIDE * stride + column * SIDE..];
            if coefficients[1..].iter().all(|coefficient| *coefficient == 0) {
                idct::even(dequantised(coefficients[0], table[0]), samples, stride);
                continue;
            }
            let mut block = [0; 64];
            for (place, (coefficient, step)) in coefficients.iter().zip(&table).enumerate() {
                block[scan::NATURAL[place]] = dequantised(*coefficient, *step);
            }
            idct::inverse(&block, samples, stride);
        }
    }
}

/// A dequantised coefficient. One that exceeds 16 bits is corrupt; it wraps, as in the registers of libjpeg-turbo.
#[inline(always)]
fn dequantised(coefficient: i16, step: u16) -> i16 {
    coefficient.wrapping_mul(step as i16)
}

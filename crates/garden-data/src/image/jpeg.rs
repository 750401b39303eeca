//! JPEG, decoded to the very values of libjpeg-turbo, which PIL and torchvision use.
//!
//! The inverse transform ([`idct`]), the interpolation of colour planes ([`upsample`]) and the conversion of colours are those of its
//! default settings, written out; other decoders are up to 58 levels off at edges of small pictures. Huffman-coded files with 8
//! bits, sequential or progressive, are read. A file that ends early or has codes that do not exist is an error, where libjpeg
//! would go on with gray.

mod bits;
mod colour;
mod header;
mod idct;
mod scan;
mod upsample;

use super::rgb::Picture;
use bits::Bits;
use header::{Header, Segments};
use scan::Scan;

/// Sides of a block.
const SIDE: usize = 8;

/// A colour component, and what is known of it so far.
#[derive(Clone, Debug, Default)]
struct Component {
    id: u8,
    /// Sampling factors.
    across: usize,
    down: usize,
    /// Its quantisation table, in the order of the file, taken when its first scan begins.
    table_index: usize,
    table: Option<[u16; 64]>,
    /// Samples that belong to the picture.
    width: usize,
    height: usize,
    /// Blocks, with those that only fill up the last units.
    blocks_across: usize,
    blocks_down: usize,
    /// [blocks_down * 8, blocks_across * 8].
    samples: Vec<u8>,
    /// Coefficients of progressive files: [blocks, 64].
    coefficients: Vec<i16>,
}

/// What a file's header says about its size and how it is to be turned.
pub(super) fn header(data: &[u8]) -> Result<Header, String> {
    let mut segments = Segments::new(data)?;
    loop {
        segments.next_marker()?;
        if segments.header.frame.is_some() {
            return Ok(segments.header);
        }
        if segments.is_at_scan() || segments.is_over() {
            return Err("there is no header of a frame".to_string());
        }
    }
}

/// Decodes a file; its size has been checked.
pub(super) fn decode(data: &[u8], picture: &mut Picture) -> Result<(), String> {
    let mut segments = Segments::new(data)?;
    let mut components: Vec<Component> = Vec::new();
    let mut scans = 0;
    loop {
        segments.next_marker()?;
        if segments.is_over() {
            break;
        }
        if !segments.is_at_scan() {
            continue;
        }
        let frame = segments.header.frame.clone().ok_or("a scan comes before the header of a frame")?;
        if components.is_empty() {
            components = frame.components()?;
        }
        let scan = Scan::read(&segments, &frame, &mut components)?;
        let mut bits = Bits::new(data, segments.position);
        scan.decode(&frame, &segments.tables, &mut components, &mut bits)?;
        segments.position = bits.end();
        scans += 1;
        // Sequential files are complete when each component was seen, whether or not the mark of the end is there.
        if !frame.is_progressive && components.iter().all(|component| !component.samples.is_empty()) {
            break;
        }
    }
    let frame = segments.header.frame.clone().ok_or("there is no header of a frame")?;
    if scans == 0 {
        return Err("there is no scan".to_string());
    }
    for component in &mut components {
        component.finish(frame.is_progressive)?;
    }
    colour::convert(&segments.header, &frame, &components, picture)
}

impl Component {
    /// Turns the coefficients of a progressive file into samples.
    fn finish(&mut self, is_progressive: bool) -> Result<(), String> {
        let Some(table) = self.table else {
            return Err(format!("component {} is in no scan", self.id));
        };
        if !is_progressive {
            return Ok(());
        }
        let stride = self.blocks_across * SIDE;
        self.samples.resize(stride * self.blocks_down * SIDE, 0);
        let mut block = [0; 64];
        for (number, coefficients) in self.coefficients.chunks_exact(64).enumerate() {
            let (row, column) = (number / self.blocks_across, number % self.blocks_across);
            for (place, (coefficient, step)) in coefficients.iter().zip(&table).enumerate() {
                block[scan::NATURAL[place]] = dequantised(*coefficient, *step);
            }
            idct::inverse(&mut block, &mut self.samples[row * SIDE * stride + column * SIDE..], stride);
        }
        self.coefficients = Vec::new();
        Ok(())
    }
}

/// A coefficient in its own size. What does not fit 16 bits is no picture's; it is kept from overflowing.
fn dequantised(coefficient: i16, step: u16) -> i32 {
    (i32::from(coefficient) * i32::from(step)).clamp(i32::from(i16::MIN), i32::from(i16::MAX))
}

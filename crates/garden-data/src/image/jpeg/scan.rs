//! A scan: coefficients of some components, all of them at once or, in progressive files, some bits of some frequencies.

use super::bits::{Bits, Broken, Huffman, Places};
use super::header::{Frame, Segments, Tables};
use super::{Component, SIDE, idct};
use crate::image::wide::widest;

/// Zigzag order: the position in the block of each coefficient in the file.
#[rustfmt::skip]
pub(super) const NATURAL: [usize; 64] = [
     0,  1,  8, 16,  9,  2,  3, 10, 17, 24, 32, 25, 18, 11,  4,  5,
    12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13,  6,  7, 14, 21, 28,
    35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
    58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
];

/// The header of a scan.
pub(super) struct Scan {
    /// Components, and their DC and AC tables.
    parts: Vec<(usize, usize, usize)>,
    /// Range of frequencies.
    first: usize,
    last: usize,
    /// Successive approximation: bits known before (0: none), and the bit that this scan adds.
    known: u32,
    bit: u32,
}

impl Scan {
    /// Reads the header, and sets up the components' quantisation tables and memory.
    pub fn read(segments: &Segments, frame: &Frame, components: &mut [Component]) -> Result<Scan, String> {
        let contents = segments.scan.unwrap_or_default();
        let cut_off = || "a scan header is truncated".to_string();
        let (count, rest) = contents.split_first().ok_or_else(cut_off)?;
        let (named, rest) = rest.split_at_checked(2 * usize::from(*count)).ok_or_else(cut_off)?;
        let [first, last, bits, ..] = rest else { return Err(cut_off()) };
        let mut parts: Vec<(usize, usize, usize)> = Vec::new();
        for one in named.chunks_exact(2) {
            let (id, tables) = (one[0], one[1]);
            let index = components.iter().position(|component| component.id == id);
            let index = index.ok_or_else(|| format!("a scan names component {id}, which the frame does not have"))?;
            if tables >> 4 > 3 || tables & 15 > 3 || parts.iter().any(|(other, ..)| *other == index) {
                return Err("a scan header names an invalid table or component".to_string());
            }
            parts.push((index, usize::from(tables >> 4), usize::from(tables & 15)));
            components[index].prepare(&segments.tables, frame.is_progressive)?;
        }
        let mut scan = Scan {
            parts,
            first: usize::from(*first),
            last: usize::from(*last),
            known: u32::from(bits >> 4),
            bit: u32::from(bits & 15),
        };
        if !frame.is_progressive {
            (scan.first, scan.last, scan.known, scan.bit) = (0, 63, 0, 0);
        }
        scan.check(frame.is_progressive)?;
        Ok(scan)
    }

    fn check(&self, is_progressive: bool) -> Result<(), String> {
        let is_mixed = is_progressive && self.first == 0 && self.last != 0;
        let is_wrong = self.parts.is_empty()
            || self.first > self.last
            || self.last > 63
            || self.bit > 13
            || (self.known != 0 && self.known != self.bit + 1)
            || (self.first > 0 && self.parts.len() > 1)
            || is_mixed;
        if is_wrong { Err("a scan header has invalid frequencies or bits".to_string()) } else { Ok(()) }
    }

    /// Whether the scan has all components.
    pub fn is_complete(&self, components: &[Component]) -> bool {
        self.parts.len() == components.len()
    }

    /// Decodes the scan of a sequential file into samples, and reports after each row of units how many picture rows can be made.
    pub fn decode_samples(
        &self,
        frame: &Frame,
        tables: &Tables,
        components: &mut [Component],
        bits: &mut Bits,
        mut after_row: impl FnMut(usize, &[Component]) -> Result<(), String>,
    ) -> Result<(), String> {
        let missing = || "a scan uses an undefined Huffman table".to_string();
        let (across, down) = self.units(frame, components);
        let is_interleaved = self.parts.len() > 1;
        let mut parts = Vec::new();
        for &(index, direct, alternating) in &self.parts {
            let component = &components[index];
            let (wide, high) = if is_interleaved { (component.across, component.down) } else { (1, 1) };
            parts.push(Part {
                index,
                wide,
                high,
                direct: tables.direct[direct].as_ref().ok_or_else(missing)?,
                alternating: tables.alternating[alternating].as_ref().ok_or_else(missing)?,
                places: Places::new(component.table.as_ref().ok_or_else(missing)?),
                prediction: 0,
            });
        }
        let mut unit = Box::new(Unit { blocks: [[0; 64]; MOST_BLOCKS], are_rough: [false; MOST_BLOCKS] });
        let mut row = Row { across, number: 0, restart: tables.restart };
        for number in 0..down {
            row.number = number;
            decode_row(&row, &mut parts, components, &mut unit, bits)?;
            bits.check()?;
            // The last row of a unit may need the next one below.
            let rows = (number + 1) * SIDE * if is_interleaved { frame.down } else { 1 } - 1;
            after_row(if number + 1 == down { frame.height } else { rows.min(frame.height) }, components)?;
        }
        Ok(())
    }

    /// Units across and down. A component alone has blocks only where the picture is; interleaved ones come in units that pad the
    /// edges.
    fn units(&self, frame: &Frame, components: &[Component]) -> (usize, usize) {
        if self.parts.len() > 1 {
            return (frame.units_across(), frame.units_down());
        }
        let only = &components[self.parts[0].0];
        (only.width.div_ceil(SIDE), only.height.div_ceil(SIDE))
    }

    /// Decodes the scan of a progressive file into coefficients.
    pub fn decode_coefficients(
        &self,
        frame: &Frame,
        tables: &Tables,
        components: &mut [Component],
        bits: &mut Bits,
    ) -> Result<(), String> {
        let mut state = State { predictions: [0; 4], run: 0 };
        let is_interleaved = self.parts.len() > 1;
        let (across, down) = self.units(frame, components);
        for unit in 0..across * down {
            if tables.restart > 0 && unit > 0 && unit % tables.restart == 0 {
                bits.restart(((unit / tables.restart - 1) % 8) as u8)?;
                state = State { predictions: [0; 4], run: 0 };
            }
            let (row, column) = (unit / across, unit % across);
            for &(index, direct, alternating) in &self.parts {
                let component = &mut components[index];
                let (wide, high) = if is_interleaved { (component.across, component.down) } else { (1, 1) };
                for inner in 0..wide * high {
                    let place = (row * high + inner / wide, column * wide + inner % wide);
                    let tables = (tables.direct[direct].as_ref(), tables.alternating[alternating].as_ref());
                    self.block(component, index, place, tables, &mut state, bits)?;
                }
            }
            if column + 1 == across {
                bits.check()?;
            }
        }
        bits.check()
    }

    #[allow(clippy::too_many_arguments, reason = "everything that a block depends on")]
    fn block(
        &self,
        component: &mut Component,
        index: usize,
        (row, column): (usize, usize),
        tables: (Option<&Huffman>, Option<&Huffman>),
        state: &mut State,
        bits: &mut Bits,
    ) -> Result<(), String> {
        let missing = || "a scan uses an undefined Huffman table".to_string();
        let start = (row * component.blocks_across + column) * 64;
        let coefficients = &mut component.coefficients[start..start + 64];
        match (self.first, self.known) {
            (0, 0) => {
                let length = bits.symbol(tables.0.ok_or_else(missing)?)?;
                let prediction = &mut state.predictions[index];
                *prediction = prediction.wrapping_add(bits.take_signed(u32::from(length.min(15))));
                coefficients[0] = (*prediction << self.bit) as i16;
                Ok(())
            }
            (0, _) => {
                coefficients[0] |= (bits.take(1) << self.bit) as i16;
                Ok(())
            }
            (_, 0) => self.first_bits(coefficients, tables.1.ok_or_else(missing)?, state, bits),
            _ => self.more_bits(coefficients, tables.1.ok_or_else(missing)?, state, bits),
        }
    }

    /// First pass of successive approximation for a band of frequencies.
    fn first_bits(
        &self,
        coefficients: &mut [i16],
        table: &Huffman,
        state: &mut State,
        bits: &mut Bits,
    ) -> Result<(), String> {
        if state.run > 0 {
            state.run -= 1;
            return Ok(());
        }
        let mut place = self.first;
        while place <= self.last {
            let symbol = bits.symbol(table)?;
            let (zeros, length) = (usize::from(symbol >> 4), u32::from(symbol & 15));
            if length > 0 {
                place += zeros;
                let value = bits.take_signed(length) << self.bit;
                *coefficients.get_mut(place).ok_or("a run of zeros leaves its block")? = value as i16;
                place += 1;
            } else if zeros == 15 {
                place += 16;
            } else {
                state.run = (1 << zeros) - 1 + bits.take(zeros as u32);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Refinement pass: one more bit of the nonzero frequencies, and new ones between them.
    fn more_bits(
        &self,
        coefficients: &mut [i16],
        table: &Huffman,
        state: &mut State,
        bits: &mut Bits,
    ) -> Result<(), String> {
        let one = 1_i16 << self.bit;
        let refine = |coefficient: &mut i16, bits: &mut Bits| {
            if bits.take(1) == 1 && *coefficient & one == 0 {
                *coefficient = coefficient.wrapping_add(if *coefficient > 0 { one } else { -one });
            }
        };
        let mut place = self.first;
        if state.run == 0 {
            while place <= self.last {
                let symbol = bits.symbol(table)?;
                let (mut zeros, length) = (u32::from(symbol >> 4), symbol & 15);
                let mut value = 0;
                if length > 0 {
                    value = if bits.take(1) == 1 { one } else { -one };
                } else if zeros < 15 {
                    state.run = (1 << zeros) + bits.take(zeros);
                    break;
                }
                while place <= self.last {
                    if coefficients[place] != 0 {
                        refine(&mut coefficients[place], bits);
                    } else if zeros == 0 {
                        coefficients[place] = value;
                        place += 1;
                        break;
                    } else {
                        zeros -= 1;
                    }
                    place += 1;
                }
            }
        }
        if state.run > 0 {
            for coefficient in coefficients[place..=self.last].iter_mut().filter(|coefficient| **coefficient != 0) {
                refine(coefficient, bits);
            }
            state.run -= 1;
        }
        Ok(())
    }
}

/// State carried from block to block.
struct State {
    predictions: [i32; 4],
    /// Remaining blocks of an end-of-band run.
    run: u32,
}

/// A component of a sequential scan.
struct Part<'a> {
    index: usize,
    /// Blocks per unit.
    wide: usize,
    high: usize,
    direct: &'a Huffman,
    alternating: &'a Huffman,
    places: Places,
    prediction: i16,
}

/// A row of units.
struct Row {
    across: usize,
    number: usize,
    restart: usize,
}

/// Maximum blocks per unit: four components with four times four.
const MOST_BLOCKS: usize = 64;

/// The coefficients of a unit, and which blocks have AC coefficients.
struct Unit {
    blocks: [[i16; 64]; MOST_BLOCKS],
    are_rough: [bool; MOST_BLOCKS],
}

fn decode_row(
    row: &Row,
    parts: &mut [Part],
    components: &mut [Component],
    unit: &mut Unit,
    bits: &mut Bits,
) -> Result<(), String> {
    for column in 0..row.across {
        let number = row.number * row.across + column;
        if row.restart > 0 && number > 0 && number.is_multiple_of(row.restart) {
            bits.restart(((number / row.restart - 1) % 8) as u8)?;
            parts.iter_mut().for_each(|part| part.prediction = 0);
        }
        read_unit(parts, unit, bits).map_err(|broken| bits.explained(broken))?;
        let mut blocks = unit.blocks.iter().zip(&unit.are_rough);
        for part in parts.iter() {
            let component = &mut components[part.index];
            let stride = component.blocks_across * SIDE;
            let first = row.number * part.high % component.blocks_held;
            for inner in 0..part.high * part.wide {
                let (y, x) = (first + inner / part.wide, column * part.wide + inner % part.wide);
                let samples = &mut component.samples[y * SIDE * stride + x * SIDE..];
                match blocks.next() {
                    Some((block, true)) => idct::inverse(block, samples, stride),
                    Some((block, false)) => idct::even(block[0], samples, stride),
                    None => {}
                }
            }
        }
    }
    Ok(())
}

widest! {
    fn read_unit(parts: &mut [Part], unit: &mut Unit, bits: &mut Bits) -> Result<(), Broken> {
        // A local copy that stays in registers.
        let mut own = *bits;
        let mut blocks = unit.blocks.iter_mut().zip(&mut unit.are_rough);
        for part in parts {
            for (block, is_rough) in blocks.by_ref().take(part.wide * part.high) {
                *block = [0; 64];
                let read = own.block(block, &part.places, &mut part.prediction, part.direct, part.alternating);
                match read {
                    Ok(found) => *is_rough = found,
                    Err(broken) => {
                        *bits = own;
                        return Err(broken);
                    }
                }
            }
        }
        *bits = own;
        Ok(())
    }
}

impl Component {
    fn prepare(&mut self, tables: &Tables, is_progressive: bool) -> Result<(), String> {
        if self.table.is_none() {
            let table = tables.quantisation[self.table_index];
            self.table = Some(table.ok_or_else(|| {
                format!("component {} uses quantisation table {}, which is not defined", self.id, self.table_index)
            })?);
        }
        if is_progressive {
            self.coefficients.resize(self.blocks_across * self.blocks_down * 64, 0);
        }
        Ok(())
    }
}

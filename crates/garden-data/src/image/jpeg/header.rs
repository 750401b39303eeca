//! The segments of a file: sizes, tables, and application data.

use super::bits::Huffman;
use super::{Component, SIDE};

/// Headers before the first scan.
#[derive(Clone, Debug, Default)]
pub(in crate::image) struct Header {
    pub frame: Option<Frame>,
    /// The TIFF structure of Exif data.
    pub exif: Vec<u8>,
    pub(super) is_jfif: bool,
    /// The colour transform in Adobe's segment.
    pub(super) adobe: Option<u8>,
}

/// The header of a frame.
#[derive(Clone, Debug)]
pub(in crate::image) struct Frame {
    pub width: usize,
    pub height: usize,
    pub is_progressive: bool,
    /// Component id, horizontal and vertical sampling, quantisation table.
    pub(super) layout: Vec<[u8; 4]>,
    /// The largest sampling factors.
    pub(super) across: usize,
    pub(super) down: usize,
}

impl Frame {
    /// Units (MCUs) per row.
    pub(super) fn units_across(&self) -> usize {
        self.width.div_ceil(SIDE * self.across)
    }

    /// Rows of units.
    pub(super) fn units_down(&self) -> usize {
        self.height.div_ceil(SIDE * self.down)
    }

    /// Bytes of all coefficients, two each.
    pub fn coefficient_bytes(&self) -> u64 {
        let units = self.units_across() as u64 * self.units_down() as u64;
        let blocks: u64 = self.layout.iter().map(|[_, across, down, _]| u64::from(*across) * u64::from(*down)).sum();
        units * blocks * (SIDE * SIDE * size_of::<i16>()) as u64
    }

    /// Refuses sampling factors that the decoder does not support.
    pub fn check(&self) -> Result<(), String> {
        self.components().map(drop)
    }

    pub(super) fn components(&self) -> Result<Vec<Component>, String> {
        self.layout.iter().map(|layout| self.component(*layout)).collect()
    }

    fn component(&self, [id, across, down, table]: [u8; 4]) -> Result<Component, String> {
        let (across, down) = (usize::from(across), usize::from(down));
        if !self.across.is_multiple_of(across) || !self.down.is_multiple_of(down) {
            return Err(format!(
                "component {id} has {across} x {down} samples where another has {} x {}, which is not supported",
                self.across, self.down
            ));
        }
        Ok(Component {
            id,
            across,
            down,
            table_index: usize::from(table),
            width: (self.width * across).div_ceil(self.across),
            height: (self.height * down).div_ceil(self.down),
            blocks_across: self.units_across() * across,
            blocks_down: self.units_down() * down,
            ..Component::default()
        })
    }
}

/// Tables that scans use.
#[derive(Clone, Debug, Default)]
pub(super) struct Tables {
    pub quantisation: [Option<[u16; 64]>; 4],
    pub direct: [Option<Huffman>; 4],
    pub alternating: [Option<Huffman>; 4],
    /// Units between restart markers, or 0.
    pub restart: usize,
}

/// Iterates over the segments of a file.
pub(super) struct Segments<'a> {
    data: &'a [u8],
    pub position: usize,
    pub header: Header,
    pub tables: Tables,
    /// The header of the scan just reached.
    pub scan: Option<&'a [u8]>,
    is_over: bool,
}

impl<'a> Segments<'a> {
    pub fn new(data: &'a [u8]) -> Result<Segments<'a>, String> {
        if !data.starts_with(&[0xff, 0xd8]) {
            return Err("this is not a JPEG file".to_string());
        }
        let (header, tables) = (Header::default(), Tables::default());
        Ok(Segments { data, position: 2, header, tables, scan: None, is_over: false })
    }

    pub fn is_at_scan(&self) -> bool {
        self.scan.is_some()
    }

    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Reads the next segment.
    pub fn next_marker(&mut self) -> Result<(), String> {
        self.scan = None;
        let marker = self.find_marker()?;
        match marker {
            0xd9 => self.is_over = true,
            // Leftover restart markers, and markers without contents.
            0x01 | 0xd0..=0xd7 => {}
            _ => {
                let contents = self.contents(marker)?;
                self.segment(marker, contents)?;
            }
        }
        Ok(())
    }

    /// Moves past the next marker, skipping other bytes.
    fn find_marker(&mut self) -> Result<u8, String> {
        loop {
            let rest = self.data.get(self.position..).unwrap_or_default();
            match rest {
                [0xff, 0xff, ..] => self.position += 1,
                [0xff, marker, ..] if *marker != 0 => {
                    self.position += 2;
                    return Ok(*marker);
                }
                [_, _, ..] => self.position += 1,
                _ => return Err(self.truncated()),
            }
        }
    }

    fn truncated(&self) -> String {
        format!("the file is truncated: it ends after {} bytes, and more segments are expected", self.data.len())
    }

    fn contents(&mut self, marker: u8) -> Result<&'a [u8], String> {
        let rest = &self.data[self.position..];
        let [high, low, ..] = rest else { return Err(self.truncated()) };
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        if length < 2 {
            return Err(format!("segment {marker:02x} has the length {length}"));
        }
        let contents = rest.get(2..length).ok_or_else(|| self.truncated())?;
        self.position += length;
        Ok(contents)
    }

    fn segment(&mut self, marker: u8, contents: &'a [u8]) -> Result<(), String> {
        match marker {
            0xc0..=0xc2 => self.frame(marker, contents),
            0xc4 => self.huffman(contents),
            0xc3 | 0xc5..=0xc7 | 0xcb | 0xcd..=0xcf => Err(format!(
                "the picture is {}, which is not supported",
                match marker {
                    0xc3 | 0xc7 | 0xcb | 0xcf => "lossless",
                    _ => "hierarchical",
                }
            )),
            0xc9 | 0xca => Err("the picture is arithmetically coded, which is not supported".to_string()),
            0xda => {
                self.scan = Some(contents);
                Ok(())
            }
            0xdb => self.quantisation(contents),
            0xdd => {
                let [high, low, ..] = contents else { return Err("the restart interval is truncated".to_string()) };
                self.tables.restart = usize::from(u16::from_be_bytes([*high, *low]));
                Ok(())
            }
            // Reserved: no program writes them, so the file is corrupt.
            0x02..=0xbf => Err(format!("there is an invalid marker {marker:02x}")),
            0xe0 => {
                self.header.is_jfif |= contents.starts_with(b"JFIF\0");
                Ok(())
            }
            0xe1 => {
                if let Some(exif) = contents.strip_prefix(b"Exif\0\0")
                    && self.header.exif.is_empty()
                {
                    self.header.exif = exif.to_vec();
                }
                Ok(())
            }
            0xee => {
                if contents.starts_with(b"Adobe") && contents.len() >= 12 {
                    self.header.adobe = Some(contents[11]);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn frame(&mut self, marker: u8, contents: &[u8]) -> Result<(), String> {
        let [precision, h1, h0, w1, w0, count, layout @ ..] = contents else {
            return Err("the frame header is truncated".to_string());
        };
        if self.header.frame.is_some() {
            return Err("there are two frames".to_string());
        }
        if *precision != 8 {
            return Err(format!("samples have {precision} bits; only 8 are supported"));
        }
        let (height, width) = (u16::from_be_bytes([*h1, *h0]), u16::from_be_bytes([*w1, *w0]));
        if !matches!(count, 1 | 3 | 4) || layout.len() < 3 * usize::from(*count) {
            return Err(format!("there are {count} components; only 1, 3 and 4 are supported"));
        }
        let layout: Vec<[u8; 4]> = layout
            .chunks_exact(3)
            .take(usize::from(*count))
            .map(|one| [one[0], one[1] >> 4, one[1] & 15, one[2]])
            .collect();
        if layout
            .iter()
            .any(|[_, across, down, table]| !(1..=4).contains(across) || !(1..=4).contains(down) || *table > 3)
        {
            return Err("the frame header has invalid sampling factors or tables".to_string());
        }
        let largest = |which: usize| layout.iter().map(|one| usize::from(one[which])).max().unwrap_or(1);
        self.header.frame = Some(Frame {
            width: usize::from(width),
            height: usize::from(height),
            is_progressive: marker == 0xc2,
            across: largest(1),
            down: largest(2),
            layout,
        });
        Ok(())
    }

    fn quantisation(&mut self, mut contents: &[u8]) -> Result<(), String> {
        while let [kind, rest @ ..] = contents {
            let (size, index) = (1 + usize::from(kind >> 4), usize::from(kind & 15));
            if index > 3 || size > 2 || rest.len() < 64 * size {
                return Err("a quantisation table is truncated or has an invalid number".to_string());
            }
            let (table, after) = rest.split_at(64 * size);
            let steps =
                table.chunks_exact(size).map(|step| step.iter().fold(0, |sum, byte| sum << 8 | u16::from(*byte)));
            let mut values = [0; 64];
            values.iter_mut().zip(steps).for_each(|(value, step)| *value = step);
            self.tables.quantisation[index] = Some(values);
            contents = after;
        }
        Ok(())
    }

    fn huffman(&mut self, mut contents: &[u8]) -> Result<(), String> {
        while let [kind, rest @ ..] = contents {
            let cut_off = || "a Huffman table is truncated or has an invalid number".to_string();
            let (counts, rest) = rest.split_first_chunk::<16>().ok_or_else(cut_off)?;
            let symbols: usize = counts.iter().map(|count| usize::from(*count)).sum();
            let index = usize::from(kind & 15);
            if index > 3 || kind >> 4 > 1 || symbols > 256 || rest.len() < symbols {
                return Err(cut_off());
            }
            // The symbols of these codes are bit counts.
            if kind >> 4 == 0 && rest[..symbols].iter().any(|bits| *bits > 15) {
                return Err("a Huffman table has a length of more than 15 bits".to_string());
            }
            let table = Huffman::new(counts, &rest[..symbols])?;
            let tables = if kind >> 4 == 0 { &mut self.tables.direct } else { &mut self.tables.alternating };
            tables[index] = Some(table);
            contents = &rest[symbols..];
        }
        Ok(())
    }
}

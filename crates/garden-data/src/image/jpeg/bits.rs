//! Bit reader of a scan, and Huffman codes.

use super::dequantised;
use super::scan::NATURAL;

/// Bits per table lookup: for a symbol, and for a symbol together with the number after it.
const LOOK: u32 = 9;
const LOOK_FAR: u32 = 11;
/// Maximum bits of a code and the number after it.
const MOST_BITS: u32 = 31;

/// A Huffman table.
#[derive(Clone, Debug)]
pub(super) struct Huffman {
    /// For the next [`LOOK`] bits: code length and symbol, or 0 if the code is longer.
    short: Box<[u16; 1 << LOOK]>,
    /// For the next [`LOOK_FAR`] bits, if they include the number after the code; otherwise 0.
    with_number: Box<[Step; 1 << LOOK_FAR]>,
    /// For each length: one more than its largest code, left-aligned in 16 bits.
    limits: [u32; 18],
    /// For each length: added to a code to get the index of its symbol.
    offsets: [i32; 17],
    symbols: Vec<u8>,
}

/// A code and the number after it. From the low bits: their length, zeros before the number, and in the upper half the number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Step(u32);

impl Step {
    fn new(bits: u32, symbol: u8, number: i32) -> Step {
        Step(bits | u32::from(symbol >> 4) << 8 | (number as u32) << 16)
    }

    fn bits(self) -> u32 {
        self.0 & 0xff
    }

    fn zeros(self) -> usize {
        (self.0 >> 8 & 15) as usize
    }

    fn number(self) -> i16 {
        (self.0 >> 16) as i16
    }
}

/// Sign-extends a number of this many bits: those that start with 0 are negative, as far below zero as their complement is above.
#[inline(always)]
fn signed(number: u32, bits: u32) -> i32 {
    let number = number as i32;
    if bits > 0 && number >> (bits - 1) == 0 { number - (1 << bits) + 1 } else { number }
}

impl Huffman {
    pub fn new(counts: &[u8; 16], symbols: &[u8]) -> Result<Huffman, String> {
        let mut table = Huffman {
            short: Box::new([0; 1 << LOOK]),
            with_number: Box::new([Step::default(); 1 << LOOK_FAR]),
            limits: [0; 18],
            offsets: [0; 17],
            symbols: symbols.to_vec(),
        };
        let too_many = || "a Huffman table has too many codes".to_string();
        let (mut code, mut place) = (0_u32, 0_usize);
        for length in 1..=16_u32 {
            let count = usize::from(counts[length as usize - 1]);
            table.offsets[length as usize] = place as i32 - code as i32;
            for _ in 0..count {
                if length <= LOOK {
                    let first = (code << (LOOK - length)) as usize;
                    let entry = (length as u16) << 8 | u16::from(symbols[place]);
                    let places = table.short.get_mut(first..first + (1 << (LOOK - length)));
                    places.ok_or_else(too_many)?.fill(entry);
                }
                table.add_numbers(code, length, symbols[place]).ok_or_else(too_many)?;
                (code, place) = (code + 1, place + 1);
            }
            if code > 1 << length {
                return Err(too_many());
            }
            table.limits[length as usize] = code << (16 - length);
            code <<= 1;
        }
        table.limits[17] = u32::MAX;
        Ok(table)
    }

    /// Adds a code with every number that may follow it.
    fn add_numbers(&mut self, code: u32, length: u32, symbol: u8) -> Option<()> {
        let size = u32::from(symbol & 15);
        let bits = length + size;
        if bits > LOOK_FAR {
            return Some(());
        }
        for number in 0..1 << size {
            let first = ((code << size | number) << (LOOK_FAR - bits)) as usize;
            let places = self.with_number.get_mut(first..first + (1 << (LOOK_FAR - bits)))?;
            places.fill(Step::new(bits, symbol, signed(number, size)));
        }
        Some(())
    }

    /// Length and symbol of the code at the start of the next bits.
    fn code(&self, held: u64) -> Option<(u32, u8)> {
        let entry = self.short[(held >> (64 - LOOK)) as usize];
        if entry != 0 {
            return Some((u32::from(entry >> 8), entry as u8));
        }
        let next = (held >> 48) as u32;
        let length = (LOOK + 1..=16).find(|length| next < self.limits[*length as usize])?;
        let place = (next >> (16 - length)) as i32 + self.offsets[length as usize];
        self.symbols.get(place as usize).map(|symbol| (length, *symbol))
    }

    /// The code and number at the start of the next bits, of any length.
    #[inline(never)]
    fn long_step(&self, held: u64) -> Option<Step> {
        let (length, symbol) = self.code(held)?;
        let size = u32::from(symbol & 15);
        let number = (held << length >> 1 >> (63 - size)) as u32;
        Some(Step::new(length + size, symbol, signed(number, size)))
    }
}

/// Positions of a sequential file's coefficients and their quantisation steps, in zigzag order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places([(u8, u16); 64]);

impl Places {
    pub fn new(table: &[u16; 64]) -> Places {
        Places(std::array::from_fn(|place| (NATURAL[place] as u8, table[place])))
    }
}

/// Why a block cannot be decoded.
#[derive(Clone, Copy, Debug)]
pub(super) enum Broken {
    Code,
    Run,
}

/// Bit reader of a scan, up to the next marker.
#[derive(Clone, Copy)]
pub(super) struct Bits<'a> {
    data: &'a [u8],
    /// Offset of the next byte.
    position: usize,
    /// Buffered bits, the next one at the top.
    held: u64,
    count: u32,
    /// Zero bits appended after the end.
    borrowed: u32,
}

impl<'a> Bits<'a> {
    pub fn new(data: &'a [u8], position: usize) -> Bits<'a> {
        Bits { data, position, held: 0, count: 0, borrowed: 0 }
    }

    /// Offset of the end of the scan's data.
    pub fn end(&self) -> usize {
        self.position
    }

    #[inline(always)]
    fn refill(&mut self) {
        // Fast path, taken nearly always: eight bytes without a marker or a stuffed byte.
        if let Some(next) = self.data.get(self.position..).and_then(<[u8]>::first_chunk::<8>) {
            let next = u64::from_be_bytes(*next);
            // 0xff bytes are zero in the complement, and subtracting one sets the highest bit only of zero bytes.
            const ONES: u64 = 0x0101_0101_0101_0101;
            if (!next).wrapping_sub(ONES) & next & (ONES << 7) == 0 {
                let bytes = (64 - self.count) / 8;
                self.held |= next >> self.count;
                self.count += 8 * bytes;
                self.position += bytes as usize;
                // Bits beyond the whole bytes come again with the next refill, which ORs in the same ones.
                return;
            }
        }
        *self = self.refilled_slowly();
    }

    #[cold]
    #[inline(never)]
    fn refilled_slowly(mut self) -> Bits<'a> {
        while self.count <= 56 {
            let byte = match self.data.get(self.position) {
                Some(0xff) if self.data.get(self.position + 1) == Some(&0) => {
                    self.position += 2;
                    0xff
                }
                // A marker or the end of the file: the position stays there, and zeros follow.
                Some(0xff) | None => {
                    self.borrowed += 8;
                    0
                }
                Some(byte) => {
                    self.position += 1;
                    *byte
                }
            };
            self.held |= u64::from(byte) << (56 - self.count);
            self.count += 8;
        }
        self
    }

    /// The next code and its number, which is 0 if it has no bits.
    #[inline(always)]
    fn step(&mut self, table: &Huffman) -> Result<Step, Broken> {
        if self.count < MOST_BITS {
            self.refill();
        }
        let mut step = table.with_number[(self.held >> (64 - LOOK_FAR)) as usize];
        if step == Step::default() {
            step = table.long_step(self.held).ok_or(Broken::Code)?;
        }
        self.skip(step.bits());
        Ok(step)
    }

    /// Reads all dequantised coefficients of a block of a sequential file. The block must be zero before. Returns whether any
    /// AC coefficient is present.
    #[inline(always)]
    pub fn block(
        &mut self,
        block: &mut [i16; 64],
        places: &Places,
        prediction: &mut i16,
        direct: &Huffman,
        alternating: &Huffman,
    ) -> Result<bool, Broken> {
        *prediction = prediction.wrapping_add(self.step(direct)?.number());
        block[0] = dequantised(*prediction, places.0[0].1);
        let mut place = 1;
        while place < 64 {
            let step = self.step(alternating)?;
            place += step.zeros();
            if step.number() == 0 {
                if step.zeros() < 15 {
                    return Ok(place > 1 + step.zeros());
                }
                place += 1;
                continue;
            }
            let Some((natural, size)) = places.0.get(place) else { return Err(Broken::Run) };
            block[usize::from(*natural & 63)] = dequantised(step.number(), *size);
            place += 1;
        }
        Ok(true)
    }

    /// The error message.
    #[cold]
    pub fn explained(&self, broken: Broken) -> String {
        match broken {
            Broken::Code => self.broken("an invalid code"),
            Broken::Run => "a run of zeros leaves its block".to_string(),
        }
    }

    #[inline(always)]
    fn skip(&mut self, bits: u32) {
        self.held <<= bits;
        self.count -= bits;
    }

    /// The next bits as a number.
    pub fn take(&mut self, bits: u32) -> u32 {
        if bits == 0 {
            return 0;
        }
        if self.count < bits {
            self.refill();
        }
        let number = (self.held >> (64 - bits)) as u32;
        self.skip(bits);
        number
    }

    /// A signed number of this many bits, whose first bit is the sign.
    pub fn take_signed(&mut self, bits: u32) -> i32 {
        signed(self.take(bits), bits)
    }

    /// The next symbol.
    pub fn symbol(&mut self, table: &Huffman) -> Result<u8, String> {
        if self.count < 16 {
            self.refill();
        }
        let Some((length, symbol)) = table.code(self.held) else { return Err(self.explained(Broken::Code)) };
        self.skip(length);
        Ok(symbol)
    }

    /// Fails if more bits were taken than there were.
    pub fn check(&self) -> Result<(), String> {
        if self.borrowed > self.count { Err(self.broken("nothing where more is expected")) } else { Ok(()) }
    }

    fn broken(&self, what: &str) -> String {
        if self.borrowed > self.count && self.position >= self.data.len() {
            return format!("the file is truncated: it ends after {} bytes, within the picture", self.data.len());
        }
        format!("the data is broken: at byte {} there is {what}", self.position)
    }

    /// Skips past the next restart marker, which must have this number out of eight.
    pub fn restart(&mut self, number: u8) -> Result<(), String> {
        self.check()?;
        // Fill bytes may precede a marker.
        while self.data.get(self.position) == Some(&0xff) && self.data.get(self.position + 1) == Some(&0xff) {
            self.position += 1;
        }
        let found = self.data.get(self.position..self.position + 2);
        if found != Some(&[0xff, 0xd0 + number]) {
            return Err(self.broken(&format!("no restart marker {number}")));
        }
        *self = Bits::new(self.data, self.position + 2);
        Ok(())
    }
}

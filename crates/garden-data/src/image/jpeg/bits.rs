//! Bits of a scan, and Huffman codes.

/// Bits that are looked up at once.
const LOOK: u32 = 9;

/// A Huffman table.
#[derive(Clone, Debug)]
pub(super) struct Huffman {
    /// For the next [`LOOK`] bits: length of the code and symbol, or 0 where the code is longer.
    short: Vec<u16>,
    /// For each length: one more than its largest code, moved to the left of 16 bits.
    limits: [u32; 18],
    /// For each length: what is added to a code to get the place of its symbol.
    offsets: [i32; 17],
    symbols: Vec<u8>,
}

impl Huffman {
    pub fn new(counts: &[u8; 16], symbols: &[u8]) -> Result<Huffman, String> {
        let mut table =
            Huffman { short: vec![0; 1 << LOOK], limits: [0; 18], offsets: [0; 17], symbols: symbols.to_vec() };
        let (mut code, mut place) = (0_u32, 0_usize);
        for length in 1..=16_u32 {
            let count = usize::from(counts[length as usize - 1]);
            table.offsets[length as usize] = place as i32 - code as i32;
            for _ in 0..count {
                if length <= LOOK {
                    let first = (code << (LOOK - length)) as usize;
                    let entry = (length as u16) << 8 | u16::from(symbols[place]);
                    let Some(places) = table.short.get_mut(first..first + (1 << (LOOK - length))) else {
                        return Err("a Huffman table has too many codes".to_string());
                    };
                    places.fill(entry);
                }
                (code, place) = (code + 1, place + 1);
            }
            if code > 1 << length {
                return Err("a Huffman table has too many codes".to_string());
            }
            table.limits[length as usize] = code << (16 - length);
            code <<= 1;
        }
        table.limits[17] = u32::MAX;
        Ok(table)
    }
}

/// The bits of a scan, up to the next marker.
pub(super) struct Bits<'a> {
    data: &'a [u8],
    /// Where the next byte is.
    position: usize,
    /// Bits that were read, the next one at the top.
    held: u64,
    count: u32,
    /// Zeros that were made up behind the end.
    borrowed: u32,
}

impl<'a> Bits<'a> {
    pub fn new(data: &'a [u8], position: usize) -> Bits<'a> {
        Bits { data, position, held: 0, count: 0, borrowed: 0 }
    }

    /// Where the data of the scan ended.
    pub fn end(&self) -> usize {
        self.position
    }

    fn refill(&mut self) {
        // Eight bytes without a marker or a stuffed byte among them, which is nearly always so.
        if let Some(next) = self.data.get(self.position..).and_then(<[u8]>::first_chunk::<8>)
            && !next.contains(&0xff)
        {
            let bytes = (64 - self.count) / 8;
            self.held |= u64::from_be_bytes(*next) >> self.count;
            self.count += 8 * bytes;
            self.position += bytes as usize;
            // Bits beyond the whole bytes come again with the next refill, which adds the same ones.
            return;
        }
        while self.count <= 56 {
            let byte = match self.data.get(self.position) {
                Some(0xff) if self.data.get(self.position + 1) == Some(&0) => {
                    self.position += 2;
                    0xff
                }
                // A marker, or the end of the file: it stays there, and zeros follow.
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
    }

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

    /// A number of so many bits whose first bit is its sign.
    pub fn take_signed(&mut self, bits: u32) -> i32 {
        if bits == 0 {
            return 0;
        }
        let number = self.take(bits) as i32;
        if number < 1 << (bits - 1) { number - (1 << bits) + 1 } else { number }
    }

    /// The next symbol.
    pub fn symbol(&mut self, table: &Huffman) -> Result<u8, String> {
        if self.count < 16 {
            self.refill();
        }
        let entry = table.short[(self.held >> (64 - LOOK)) as usize];
        if entry != 0 {
            self.skip(u32::from(entry >> 8));
            return Ok(entry as u8);
        }
        let next = (self.held >> 48) as u32;
        let length = (LOOK + 1..=17).find(|length| next < table.limits[*length as usize]).unwrap_or(17);
        if length > 16 {
            return Err(self.broken("a code that does not exist"));
        }
        let place = (next >> (16 - length)) as i32 + table.offsets[length as usize];
        self.skip(length);
        table.symbols.get(place as usize).copied().ok_or_else(|| self.broken("a code that does not exist"))
    }

    /// An error if more bits were taken than there were.
    pub fn check(&self) -> Result<(), String> {
        if self.borrowed > self.count { Err(self.broken("nothing where more is needed")) } else { Ok(()) }
    }

    fn broken(&self, what: &str) -> String {
        if self.borrowed > self.count && self.position >= self.data.len() {
            return format!("the file is truncated: it ends after {} bytes, within the picture", self.data.len());
        }
        format!("the data is broken: at byte {} there is {what}", self.position)
    }

    /// Goes behind the next restart marker, which must be this one of eight.
    pub fn restart(&mut self, number: u8) -> Result<(), String> {
        self.check()?;
        // Fill bytes may stand before a marker.
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

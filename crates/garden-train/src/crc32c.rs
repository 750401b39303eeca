//! CRC-32C (Castagnoli): the checksum of TensorBoard's files, and of ours.

/// Polynomial 0x1edc6f41, bits reversed.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// Tables for eight bytes at a time ("slicing by 8").
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = (byte as u32, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut table = 1;
    while table < 8 {
        byte = 0;
        while byte < 256 {
            let before = tables[table - 1][byte];
            tables[table][byte] = before >> 8 ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        table += 1;
    }
    tables
}

/// A checksum that is being computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crc32c(u32);

impl Default for Crc32c {
    fn default() -> Crc32c {
        Crc32c(u32::MAX)
    }
}

impl Crc32c {
    /// Takes more bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            let low = self.0 ^ u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
            let at = |table: usize, value: u32| TABLES[table][(value & 0xff) as usize];
            self.0 = at(7, low)
                ^ at(6, low >> 8)
                ^ at(5, low >> 16)
                ^ at(4, low >> 24)
                ^ at(3, chunk[4].into())
                ^ at(2, chunk[5].into())
                ^ at(1, chunk[6].into())
                ^ at(0, chunk[7].into());
        }
        for byte in chunks.remainder() {
            self.0 = self.0 >> 8 ^ TABLES[0][((self.0 ^ u32::from(*byte)) & 0xff) as usize];
        }
    }

    /// The checksum of what was taken.
    pub fn value(self) -> u32 {
        !self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_checksums() {
        let of = |bytes: &[u8]| {
            let mut crc = Crc32c::default();
            crc.add(bytes);
            crc.value()
        };
        // RFC 3720, appendix B.4, and the usual check value.
        assert_eq!(of(b"123456789"), 0xe306_9283);
        assert_eq!(of(&[0; 32]), 0x8a91_36aa);
        assert_eq!(of(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(of(&(0..32).collect::<Vec<u8>>()), 0x46dd_794e);
        let mut pieces = Crc32c::default();
        [&b"12"[..], b"34567", b"", b"89"].into_iter().for_each(|piece| pieces.add(piece));
        assert_eq!(pieces.value(), 0xe306_9283);
    }
}

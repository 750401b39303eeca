//! Fingerprints of contents, stored and compared later: 64-bit FNV-1a, fed value by value.
//!
//! The standard library's hashers are stable only within one program, and derived hashes change with the fields of a type. These are
//! stable, so a checkpoint recognises its rows in later versions and on other machines.

/// A fingerprint in progress.
#[derive(Clone, Copy, Debug)]
pub struct Fingerprint(u64);

impl Default for Fingerprint {
    fn default() -> Fingerprint {
        Fingerprint(0xcbf2_9ce4_8422_2325)
    }
}

impl Fingerprint {
    /// The fingerprint of numbers, one after the other.
    pub(crate) fn of_numbers(numbers: &[u64]) -> u64 {
        let mut made = Fingerprint::default();
        numbers.iter().for_each(|number| made.number(*number));
        made.value()
    }

    /// Adds bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    }

    /// Adds a number.
    pub fn number(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }

    /// Adds a text and its length, so that adjacent texts are distinguished.
    pub fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.bytes(text.as_bytes());
    }

    /// The fingerprint.
    pub fn value(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test vectors published with the algorithm: they must never change.
    #[test]
    fn it_is_fnv_1a() {
        let of = |text: &str| {
            let mut made = Fingerprint::default();
            made.bytes(text.as_bytes());
            made.value()
        };
        assert_eq!(of(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(of("a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(of("foobar"), 0x8594_4171_f739_67e8);
    }
}

//! A cache for the meaning of texts.
//!
//! A program prints the same few texts line after line, and only the numbers between them change. Parsing a text takes
//! ten times as long as looking it up.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Caches a function of texts.
pub(super) struct Memo<T> {
    understand: fn(&str) -> T,
    seen: HashMap<Box<str>, T, BuildHasherDefault<EndsHasher>>,
}

/// Longer texts are sentences, which hardly recur.
const LONGEST: usize = 64;
/// A log with more texts than this has something new on every line.
const MOST: usize = 1000;

impl<T: Copy> Memo<T> {
    /// An empty cache of a function.
    pub(super) fn new(understand: fn(&str) -> T) -> Self {
        Memo { understand, seen: HashMap::default() }
    }

    /// The function's value for a text.
    pub(super) fn look_up(&mut self, text: &str) -> T {
        if text.len() > LONGEST {
            return (self.understand)(text);
        }
        if let Some(&known) = self.seen.get(text) {
            return known;
        }
        if self.seen.len() >= MOST {
            self.seen.clear();
        }
        *self.seen.entry(text.into()).or_insert((self.understand)(text))
    }
}

/// Hashes a text by its length and both of its ends, in which short texts hardly ever agree.
///
/// The standard hash resists texts made to collide, which costs more than all else here. The map is small, so even such
/// texts would not slow it down much.
#[derive(Default)]
struct EndsHasher(u64);

impl Hasher for EndsHasher {
    fn write(&mut self, text: &[u8]) {
        let ends = match (text.first_chunk(), text.last_chunk()) {
            (Some(first), Some(last)) => u64::from_le_bytes(*first) ^ u64::from_le_bytes(*last).rotate_left(7),
            _ => text.iter().fold(0, |all, &byte| all << 8 | u64::from(byte)),
        };
        // Multiplicative hashing by the golden ratio (Knuth, TAOCP 6.4); the map takes its bucket from the lowest bits.
        let mixed = (self.0 ^ ends ^ text.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }

    fn write_u8(&mut self, _: u8) {
        // The byte that ends a string says nothing.
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_keeps_its_own_meaning() {
        let mut memo = Memo::new(|text| text.bytes().map(u64::from).sum::<u64>());
        let texts: Vec<String> = (0..3 * MOST).map(|i| format!("label {} of {i}:", "x".repeat(i % 70))).collect();
        for text in texts.iter().chain(texts.iter().rev()) {
            assert_eq!(memo.look_up(text), text.bytes().map(u64::from).sum::<u64>(), "{text}");
            assert!(memo.seen.len() <= MOST);
        }
    }
}

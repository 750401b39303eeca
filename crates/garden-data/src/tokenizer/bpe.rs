//! Byte-pair encoding: of all adjacent pairs in a word, the one with the lowest rank is merged first, the leftmost of equals.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

/// End of the linked list of symbols.
const NONE: u32 = u32::MAX;

/// The result of merging two adjacent tokens.
#[derive(Clone, Copy, Debug)]
struct Merge {
    rank: u32,
    token: u32,
}

/// The BPE merges of a tokenizer.
#[derive(Debug)]
pub(super) struct Merges {
    /// The token of each byte.
    bytes: [u32; 256],
    pairs: HashMap<(u32, u32), Merge, BuildHasherDefault<PairHasher>>,
}

/// Scratch memory, reused from word to word.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Reverse<(u32, u32, u32)>>,
}

/// A token of a word, in a linked list from which merged ones are removed.
#[derive(Clone, Copy, Debug)]
struct Symbol {
    token: u32,
    before: u32,
    after: u32,
}

impl Merges {
    pub fn new(bytes: [u32; 256], capacity: usize) -> Merges {
        Merges { bytes, pairs: HashMap::with_capacity_and_hasher(capacity, BuildHasherDefault::default()) }
    }

    /// Adds a merge; of a duplicate pair the later rank counts, as in the library.
    pub fn insert(&mut self, left: u32, right: u32, rank: u32, token: u32) {
        self.pairs.insert((left, right), Merge { rank, token });
    }

    /// Appends the tokens of a word.
    pub fn encode(&self, word: &[u8], scratch: &mut Scratch, tokens: &mut Vec<i32>) {
        if let [byte] = word {
            tokens.push(self.bytes[*byte as usize] as i32);
            return;
        }
        let Scratch { symbols, queue } = scratch;
        symbols.clear();
        queue.clear();
        symbols.extend((0_u32..).zip(word).map(|(place, byte)| Symbol {
            token: self.bytes[*byte as usize],
            before: place.wrapping_sub(1),
            after: place + 1,
        }));
        if let Some(last) = symbols.last_mut() {
            last.after = NONE;
        }
        for left in 0..symbols.len().saturating_sub(1) {
            self.offer(symbols, queue, left as u32);
        }
        while let Some(Reverse((_, left, token))) = queue.pop() {
            self.merge(symbols, queue, left, token);
        }
        let mut place = if symbols.is_empty() { NONE } else { 0 };
        while place != NONE {
            tokens.push(symbols[place as usize].token as i32);
            place = symbols[place as usize].after;
        }
    }

    /// Queues the pair that starts at a symbol, if it can be merged.
    fn offer(&self, symbols: &[Symbol], queue: &mut BinaryHeap<Reverse<(u32, u32, u32)>>, left: u32) {
        if let Some(merge) = self.pair(symbols, left) {
            queue.push(Reverse((merge.rank, left, merge.token)));
        }
    }

    fn pair(&self, symbols: &[Symbol], left: u32) -> Option<Merge> {
        let first = symbols[left as usize];
        let second = symbols.get(first.after as usize)?;
        self.pairs.get(&(first.token, second.token)).copied()
    }

    fn merge(&self, symbols: &mut [Symbol], queue: &mut BinaryHeap<Reverse<(u32, u32, u32)>>, left: u32, token: u32) {
        // One of the two may have been merged since it was queued.
        let is_current =
            symbols[left as usize].token != NONE && self.pair(symbols, left).is_some_and(|merge| merge.token == token);
        if !is_current {
            return;
        }
        let right = symbols[left as usize].after as usize;
        let after = symbols[right].after;
        symbols[right].token = NONE;
        symbols[left as usize].token = token;
        symbols[left as usize].after = after;
        if let Some(next) = symbols.get_mut(after as usize) {
            next.before = left;
        }
        let before = symbols[left as usize].before;
        if before != NONE {
            self.offer(symbols, queue, before);
        }
        self.offer(symbols, queue, left);
    }
}

/// Keys are small integers from a vocabulary, not from user input, so no protection against chosen keys is needed.
#[derive(Debug, Default)]
struct PairHasher(u64);

impl Hasher for PairHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        // Fibonacci hashing of both numbers; the table uses bits from the top and from the bottom.
        let mixed = (self.0.rotate_left(29) ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

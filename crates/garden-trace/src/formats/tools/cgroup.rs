//! `memory.stat` of a cgroup, written again and again into one file: `anon 4194304000` and the lines below it (version 2), or
//! `cache 104857600` and `rss 4194304000` (version 1).
//!
//! Each dump is one sample, in bytes. `memory.current` alone is one number a line, which `amounts.rs` reads.

use garden_memory::{Quantity, Subject};

use super::{Claim, Family, Listen, Told, Tool};
use crate::time::Stamp;

pub(super) const MEMORY_STAT: Tool = Tool { name: "memory.stat", documented_as: "cgroup", example: "memory.stat" };

/// The tools of this file.
pub(in crate::formats) const FAMILY: Family = Family { tools: &[MEMORY_STAT], listen: |_| Box::new(Cgroup::default()) };

/// The keys of use: memory of no file, all of the page cache, and what of it has no file behind it.
const KEYS: [&str; 5] = ["anon", "rss", "file", "cache", "shmem"];
/// The first line of a dump in either version.
const OPENING: [&str; 2] = ["anon", "cache"];
/// Amounts are whole pages.
const PAGE: u64 = 4096;

/// The dump being read.
#[derive(Default)]
pub(super) struct Cgroup {
    values: Vec<(&'static str, u64)>,
    stamp: Option<Stamp>,
    has_begun: bool,
}

impl Listen for Cgroup {
    fn take(&mut self, line: &str, stamp: Option<Stamp>, told: &mut Vec<Told>) -> Claim {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = words.last().and_then(|word| word.parse::<u64>().ok());
        let (Some(number), &[key, _]) = (number, words.as_slice()) else {
            // `memory.current` in the same loop.
            let is_number = words.len() == 1 && number.is_some();
            return if is_number && self.has_begun { Claim::Yes } else { Claim::No };
        };
        let is_key = key.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
        if OPENING.contains(&key) && number % PAGE == 0 {
            self.finish(told);
            (self.stamp, self.has_begun) = (stamp, true);
        } else if !self.has_begun || !is_key {
            return Claim::No;
        }
        let known = KEYS.into_iter().find(|known| *known == key);
        self.values.extend(known.map(|known| (known, number)));
        Claim::Yes
    }

    fn finish(&mut self, told: &mut Vec<Told>) {
        let values = std::mem::take(&mut self.values);
        let get = |wanted: &[&str]| values.iter().find(|(key, _)| wanted.contains(key)).map(|(_, bytes)| *bytes);
        let Some(anon) = get(&["anon", "rss"]) else { return };
        let cache = get(&["file", "cache"]);
        let column = if cache.is_some() { "anon + file" } else { "anon" };
        let bytes = anon.saturating_add(cache.unwrap_or(0));
        let mut one = Told::new(MEMORY_STAT, Subject::Container, column, bytes, 1);
        one.sample.set(Quantity::Anon, anon);
        let shmem = get(&["shmem"]);
        shmem.iter().for_each(|&shmem| one.sample.set(Quantity::Shmem, shmem));
        // The page cache counts memory that has no file behind it, too.
        cache.iter().for_each(|&cache| one.sample.set(Quantity::File, cache.saturating_sub(shmem.unwrap_or(0))));
        told.push(Told { stamp: self.stamp, ..one });
    }
}

//! Names of things that the server makes: a prefix and letters that nobody can guess.

use rustix::rand::{GetRandomFlags, getrandom};

const LETTERS: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
/// Letters of a name: 24 of 62 are 142 bits.
const LENGTH: usize = 24;

/// A new name.
pub(crate) fn new_id(prefix: &str) -> String {
    let mut id = String::from(prefix);
    while id.len() < prefix.len() + LENGTH {
        let mut bytes = [0_u8; 64];
        let count = getrandom(&mut bytes, GetRandomFlags::empty()).unwrap_or(0);
        // Numbers above the last multiple of 62 would make the first letters likelier.
        let letters = bytes[..count].iter().filter(|byte| **byte < 248).map(|byte| LETTERS[usize::from(*byte) % 62]);
        id.extend(letters.map(char::from).take(prefix.len() + LENGTH - id.len()));
    }
    id
}

/// Whether a name is one that [`new_id`] makes.
pub(crate) fn is_id(name: &str) -> bool {
    let Some(at) = name.len().checked_sub(LENGTH).filter(|at| name.is_char_boundary(*at)) else { return false };
    let (prefix, letters) = name.split_at(at);
    prefix.ends_with(['-', '_']) && letters.bytes().all(|letter| LETTERS.contains(&letter))
}

/// A seed for a job that has none.
pub(crate) fn new_seed() -> u32 {
    let mut bytes = [0_u8; 4];
    // Where the system has no random bytes, which no Linux of ours is, zero is a seed like any other.
    let _ = getrandom(&mut bytes, GetRandomFlags::empty());
    u32::from_le_bytes(bytes) >> 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ_and_have_one_length() {
        let names: std::collections::HashSet<String> = (0..1000).map(|_| new_id("file-")).collect();
        assert_eq!(names.len(), 1000);
        assert!(names.iter().all(|name| name.len() == 29 && name.starts_with("file-") && is_id(name)));
        assert!(
            ["", "rows.jsonl", "file-", "notes-2026", "file-zHGYNKb2JzB2D0nyMO1RD3q."].iter().all(|name| !is_id(name))
        );
    }
}

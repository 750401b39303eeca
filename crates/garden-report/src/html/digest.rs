//! SHA-256 (FIPS 180-4) in base64, as a content security policy names the script and the style that may be used.
//!
//! Two texts of some ten kilobytes are digested per report, so clarity comes before speed. The constants are computed as
//! the standard defines them: fractions of the roots of the first primes.

/// The digest of some bytes, in base64.
pub(super) fn sha256_base64(bytes: &[u8]) -> String {
    base64(&sha256(bytes))
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    let constants = primes().map(|prime| root_fraction(prime, 3));
    let mut state = [0; 8];
    state.iter_mut().zip(primes()).for_each(|(word, prime)| *word = root_fraction(prime, 2));
    let mut message = bytes.to_vec();
    message.push(0x80);
    message.resize((bytes.len() + 9).next_multiple_of(64) - 8, 0);
    message.extend((bytes.len() as u64 * 8).to_be_bytes());
    for block in message.chunks_exact(64) {
        let rounds = rounds(state, &schedule(block), &constants);
        state.iter_mut().zip(rounds).for_each(|(word, add)| *word = word.wrapping_add(add));
    }
    let mut digest = [0; 32];
    digest.chunks_exact_mut(4).zip(state).for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_be_bytes()));
    digest
}

fn schedule(block: &[u8]) -> [u32; 64] {
    let mut words = [0_u32; 64];
    for (word, bytes) in words.iter_mut().zip(block.chunks_exact(4)) {
        *word = bytes.iter().fold(0, |word, &byte| word << 8 | u32::from(byte));
    }
    for t in 16..64 {
        let (early, late) = (words[t - 15], words[t - 2]);
        let first = early.rotate_right(7) ^ early.rotate_right(18) ^ (early >> 3);
        let second = late.rotate_right(17) ^ late.rotate_right(19) ^ (late >> 10);
        words[t] = words[t - 16].wrapping_add(first).wrapping_add(words[t - 7]).wrapping_add(second);
    }
    words
}

fn rounds(state: [u32; 8], words: &[u32; 64], constants: &[u32; 64]) -> [u32; 8] {
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = state;
    for (word, constant) in words.iter().zip(constants) {
        let mixed = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
        let chosen = (e & f) ^ (!e & g);
        let first = h.wrapping_add(mixed).wrapping_add(chosen).wrapping_add(*constant).wrapping_add(*word);
        let turned = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
        let majority = (a & b) ^ (a & c) ^ (b & c);
        (h, g, f, e) = (g, f, e, d.wrapping_add(first));
        (d, c, b, a) = (c, b, a, first.wrapping_add(turned.wrapping_add(majority)));
    }
    [a, b, c, d, e, f, g, h]
}

/// The first 64 primes.
fn primes() -> [u64; 64] {
    let mut primes = [2; 64];
    for index in 1..64 {
        let is_prime = |n: &u64| primes[..index].iter().all(|prime| !n.is_multiple_of(*prime));
        primes[index] = (primes[index - 1] + 1..).find(is_prime).unwrap_or_default();
    }
    primes
}

/// The first 32 bits behind the point of a prime's square or cube root, found bit by bit in whole numbers.
fn root_fraction(prime: u64, degree: u32) -> u32 {
    let scaled = u128::from(prime) << (32 * degree);
    let mut root: u128 = 0;
    for bit in (0..40).rev() {
        let larger = root | 1 << bit;
        if larger.pow(degree) <= scaled {
            root = larger;
        }
    }
    // Only the fraction counts.
    root as u32
}

/// Bytes in base64.
pub(crate) fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let group = (0..3).fold(0_usize, |group, at| group << 8 | usize::from(chunk.get(at).copied().unwrap_or(0)));
        for at in 0..4 {
            let letter = LETTERS[group >> (18 - 6 * at) & 63];
            text.push(if at <= chunk.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_standard() {
        let hex = |text: &str| sha256(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        let two_blocks = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
        assert_eq!(hex(two_blocks), "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    }

    #[test]
    fn base64_pads() {
        assert_eq!([base64(b"M"), base64(b"Ma"), base64(b"Man")], ["TQ==", "TWE=", "TWFu"]);
    }
}

//! SHA-256 in base64, as in a content security policy that names the allowed script and style.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

/// The digest of some bytes, in base64.
pub(super) fn sha256_base64(bytes: &[u8]) -> String {
    base64(&Sha256::digest(bytes))
}

/// Bytes in base64, with padding.
pub(crate) fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_digest() {
        assert_eq!(sha256_base64(b"abc"), "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=");
    }
}

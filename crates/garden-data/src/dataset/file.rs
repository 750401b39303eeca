//! Picture files named by users.

use std::io;
use std::path::Path;

pub(crate) use garden_files::{LARGEST_SETTINGS, fits, open, read};

/// Maximum size of a picture file in bytes: more than an uncompressed picture of [`MAX_PIXELS`](crate::MAX_PIXELS).
pub(crate) const LARGEST_PICTURE: u64 = 768 << 20;

/// Reads a picture file named by a user.
pub fn read_picture(path: &Path) -> io::Result<Vec<u8>> {
    read(path, LARGEST_PICTURE)
}

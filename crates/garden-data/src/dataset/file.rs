//! Picture files that are named from outside.

use std::io;
use std::path::Path;

pub(crate) use garden_files::{LARGEST_SETTINGS, fits, open, read};

/// Bytes of the largest picture file: more than a picture of [`MAX_PIXELS`](crate::MAX_PIXELS) has without compression.
pub(crate) const LARGEST_PICTURE: u64 = 768 << 20;

/// Reads a picture file that a user names.
pub fn read_picture(path: &Path) -> io::Result<Vec<u8>> {
    read(path, LARGEST_PICTURE)
}

//! Files from outside: regular ones, no larger than they may be.
//!
//! A row or a model's folder may name a pipe, which never ends to be opened, or a device that never ends to be read.

use std::fs::{File, FileType};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

/// Bytes of the largest picture file: more than a picture of [`MAX_PIXELS`](crate::MAX_PIXELS) has without compression.
pub(crate) const LARGEST_PICTURE: u64 = 768 << 20;
/// Bytes of the largest file of settings, a tokenizer's. The largest vocabularies have 40 MB.
pub(crate) const LARGEST_SETTINGS: u64 = 256 << 20;

/// Opens a file if it is a regular one.
pub(crate) fn open(path: &Path) -> io::Result<(File, u64)> {
    // Asked before it is opened: opening a pipe waits until somebody writes to it.
    let about = std::fs::metadata(path)?;
    if !about.is_file() {
        return Err(io::Error::new(
            ErrorKind::InvalidInput,
            format!("it is {}, not a regular file", kind(about.file_type())),
        ));
    }
    Ok((File::open(path)?, about.len()))
}

fn kind(given: FileType) -> &'static str {
    match () {
        () if given.is_dir() => "a folder",
        () if given.is_fifo() => "a pipe",
        () if given.is_socket() => "a socket",
        () => "a device",
    }
}

/// Reads a regular file of at most so many bytes.
pub(crate) fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let (file, length) = open(path)?;
    fits(length, most)?;
    let mut bytes = Vec::with_capacity(length as usize);
    // Some files grow while they are read.
    file.take(most + 1).read_to_end(&mut bytes)?;
    fits(bytes.len() as u64, most)?;
    Ok(bytes)
}

/// Refuses what is too large.
pub(crate) fn fits(length: u64, most: u64) -> io::Result<()> {
    match length > most {
        true => {
            Err(io::Error::new(ErrorKind::FileTooLarge, format!("it has {length} bytes or more; {most} are the most")))
        }
        false => Ok(()),
    }
}

/// Reads a picture file that a user names.
pub fn read_picture(path: &Path) -> io::Result<Vec<u8>> {
    read(path, LARGEST_PICTURE)
}

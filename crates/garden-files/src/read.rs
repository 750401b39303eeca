//! Reads untrusted files: regular files only, up to a maximum size.
//!
//! A row, a model folder or a flag may name a pipe, which blocks on opening, or a device without end.

use std::fs::{File, FileType};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;

/// Maximum size of a settings file in bytes. The largest are tokenizer vocabularies, up to 40 MB.
pub const LARGEST_SETTINGS: u64 = 256 << 20;

/// Opens a file if it is a regular file.
pub fn open(path: &Path) -> io::Result<(File, u64)> {
    // Checked before opening: opening a pipe blocks until somebody writes to it.
    let about = std::fs::metadata(path)?;
    if !about.is_file() {
        return Err(io::Error::new(
            ErrorKind::InvalidInput,
            format!("it is {}, not a regular file", kind(about.file_type())),
        ));
    }
    // It may have become one since.
    let file = File::options().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)?;
    Ok((file, about.len()))
}

fn kind(given: FileType) -> &'static str {
    match () {
        () if given.is_dir() => "a folder",
        () if given.is_fifo() => "a pipe",
        () if given.is_socket() => "a socket",
        () => "a device",
    }
}

/// Reads a regular file of at most `most` bytes.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let (file, length) = open(path)?;
    fits(length, most)?;
    let mut bytes = Vec::with_capacity(length as usize);
    // Some files grow while they are read.
    file.take(most + 1).read_to_end(&mut bytes)?;
    fits(bytes.len() as u64, most)?;
    Ok(bytes)
}

/// Whether a file is only a pointer to what Git LFS has not fetched.
pub fn is_lfs_pointer(bytes: &[u8]) -> bool {
    bytes.starts_with(b"version https://git-lfs.github.com/spec/")
}

/// Rejects lengths over the limit.
pub fn fits(length: u64, most: u64) -> io::Result<()> {
    match length > most {
        true => {
            Err(io::Error::new(ErrorKind::FileTooLarge, format!("it has {length} bytes or more; {most} are the most")))
        }
        false => Ok(()),
    }
}

/// Bytes of all files in a folder and the folders in it. What changes meanwhile counts or not.
pub fn folder_bytes(folder: &Path) -> u64 {
    let mut sum = 0;
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(about) = entry.metadata() else { continue };
        sum += if about.is_dir() { folder_bytes(&entry.path()) } else { about.is_file() as u64 * about.len() };
    }
    sum
}

/// Reads a settings file as text: `config.json`, a recipe, a list of prompts.
pub fn read_settings(path: &Path) -> io::Result<String> {
    let bytes = read(path, LARGEST_SETTINGS)?;
    String::from_utf8(bytes).map_err(|_| io::Error::new(ErrorKind::InvalidData, "it is not text (UTF-8)"))
}

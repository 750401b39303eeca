//! Files from outside: regular ones, no larger than they may be.
//!
//! A row, a model's folder or a flag may name a pipe, which never ends to be opened, or a device that never ends to be read.

use std::fs::{File, FileType};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

/// Bytes of the largest file of settings, a tokenizer's. The largest vocabularies have 40 MB.
pub const LARGEST_SETTINGS: u64 = 256 << 20;

/// Opens a file if it is a regular one.
pub fn open(path: &Path) -> io::Result<(File, u64)> {
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
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let (file, length) = open(path)?;
    fits(length, most)?;
    let mut bytes = Vec::with_capacity(length as usize);
    // Some files grow while they are read.
    file.take(most + 1).read_to_end(&mut bytes)?;
    fits(bytes.len() as u64, most)?;
    Ok(bytes)
}

/// Refuses what is too large.
pub fn fits(length: u64, most: u64) -> io::Result<()> {
    match length > most {
        true => {
            Err(io::Error::new(ErrorKind::FileTooLarge, format!("it has {length} bytes or more; {most} are the most")))
        }
        false => Ok(()),
    }
}

/// Reads a text of settings: `config.json`, a recipe, a list of prompts.
pub fn read_settings(path: &Path) -> io::Result<String> {
    let bytes = read(path, LARGEST_SETTINGS)?;
    String::from_utf8(bytes).map_err(|_| io::Error::new(ErrorKind::InvalidData, "it is no text (UTF-8)"))
}

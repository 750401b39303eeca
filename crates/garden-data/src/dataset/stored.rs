//! A dataset file, read in pieces at given offsets.
//!
//! It is opened for each row and not kept open: a dataset may have more shards than a process may have open files. Reads use `pread`, so
//! the pages belong to the page cache, while a mapping would count them as this process's memory.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::dataset::file;
use crate::error::Error;

/// Maximum size of a stored row in bytes, including pictures as base64.
const LONGEST_ROW: u64 = 128 << 20;

/// The position of a row in its file: 16 bytes, the memory cost of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub offset: u64,
    pub length: u32,
    /// The line, from 1, or the row number in an archive.
    pub line: u32,
}

/// A file, and its length when it was indexed.
#[derive(Debug)]
pub(crate) struct Stored {
    pub path: PathBuf,
    pub length: u64,
}

impl Stored {
    pub(crate) fn new(path: &Path) -> Result<Stored, Error> {
        let (_, length) = file::open(path).map_err(|error| Error::file(path, error))?;
        Ok(Stored { path: path.to_path_buf(), length })
    }

    /// Reopens the file. If its length has changed, the index is no longer valid.
    pub(crate) fn open(&self) -> Result<File, Error> {
        let (file, length) = file::open(&self.path).map_err(|error| Error::file(&self.path, error))?;
        if length != self.length {
            let problem = format!("changed while it was in use: {} bytes, now {length}", self.length);
            return Err(Error::dataset(&self.path, problem));
        }
        Ok(file)
    }

    /// The bytes at an offset.
    pub(crate) fn read(&self, file: &File, offset: u64, length: usize) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; length];
        file.read_exact_at(&mut bytes, offset).map_err(|error| Error::file(&self.path, error))?;
        Ok(bytes)
    }
}

/// Up to `length` bytes from the start of a file.
pub(crate) fn beginning(path: &Path, length: u64) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let (file, _) = file::open(path).map_err(|error| Error::file(path, error))?;
    file.take(length).read_to_end(&mut bytes).map_err(|error| Error::file(path, error))?;
    Ok(bytes)
}

/// Rejects rows over the maximum size.
pub(crate) fn fits(place: &str, length: u64) -> Result<(), Error> {
    match length > LONGEST_ROW {
        true => Err(Error::row(place, format!("the row has {length} bytes; the maximum is {LONGEST_ROW}"))
            .with_hint("name picture files instead of embedding the pictures in the row")),
        false => Ok(()),
    }
}

/// A row's index entry.
pub(crate) fn span(path: &Path, offset: u64, length: u64, line: u64) -> Result<Span, Error> {
    let (Ok(length), Ok(line)) = (u32::try_from(length), u32::try_from(line)) else {
        let problem = format!("the row at byte {offset} (line {line}) is longer than 4 GiB, or it is line 2^32");
        return Err(Error::dataset(path, problem));
    };
    Ok(Span { offset, length, line })
}

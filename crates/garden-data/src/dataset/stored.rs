//! A file of a dataset, read in pieces at given places.
//!
//! It is opened for each row and not kept open: a dataset may have more shards than a process may have open files. Reading with `pread`
//! leaves pages to the kernel, where a mapping would count all of them as this process's memory.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::dataset::file;
use crate::error::Error;

/// Bytes of the longest row as it is stored, its pictures as base64 in it.
const LONGEST_ROW: u64 = 128 << 20;

/// Where a row is in its file: 16 bytes, which is what a row costs in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub offset: u64,
    pub length: u32,
    /// The line, counted from 1, or in an archive the number of the row.
    pub line: u32,
}

/// A file and how long it was when its rows were found.
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

    /// Opens it again. One that has another length now has its rows elsewhere.
    pub(crate) fn open(&self) -> Result<File, Error> {
        let (file, length) = file::open(&self.path).map_err(|error| Error::file(&self.path, error))?;
        if length != self.length {
            let problem = format!("has changed while it was in use: {} bytes, now {length}", self.length);
            return Err(Error::dataset(&self.path, problem));
        }
        Ok(file)
    }

    /// The bytes of a place.
    pub(crate) fn read(&self, file: &File, offset: u64, length: usize) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; length];
        file.read_exact_at(&mut bytes, offset).map_err(|error| Error::file(&self.path, error))?;
        Ok(bytes)
    }
}

/// The first bytes of a file, as many as there are.
pub(crate) fn beginning(path: &Path, length: u64) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let (file, _) = file::open(path).map_err(|error| Error::file(path, error))?;
    file.take(length).read_to_end(&mut bytes).map_err(|error| Error::file(path, error))?;
    Ok(bytes)
}

/// Refuses a row that is longer than any could sensibly be.
pub(crate) fn fits(place: &str, length: u64) -> Result<(), Error> {
    match length > LONGEST_ROW {
        true => Err(Error::row(place, format!("the row has {length} bytes; {LONGEST_ROW} are the most"))
            .with_hint("name picture files instead of writing the pictures into the row")),
        false => Ok(()),
    }
}

/// A row's place and length as the index has it.
pub(crate) fn span(path: &Path, offset: u64, length: u64, line: u64) -> Result<Span, Error> {
    let (Ok(length), Ok(line)) = (u32::try_from(length), u32::try_from(line)) else {
        let problem = format!("the row at byte {offset} (line {line}) is longer than 4 GiB, or it is line 2^32");
        return Err(Error::dataset(path, problem));
    };
    Ok(Span { offset, length, line })
}

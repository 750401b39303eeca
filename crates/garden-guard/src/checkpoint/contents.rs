//! Whether a single file is whole, by what its format says about its own length.
//!
//! - safetensors: eight bytes of header length, a JSON header that says where each tensor ends, then the tensors.
//! - zip, which PyTorch writes since 1.6: ends with a record that says where the directory of the archive lies.
//! - JSON: ends when its outermost bracket closes.
//! - pickle: since protocol 4 its first frame states its length. PyTorch's old format is protocol 2 and states nothing.
//!
//! A power cut can also leave a file of the right length full of zeros, so a start of zeros is not accepted either.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::Flaw;
use super::entries::FileEntry;
use super::json;
use super::name::extension;

/// How names of files end in which PyTorch's `save`, or zip or pickle without it, is to be expected.
const TORCH: [&str; 9] = ["pt", "pth", "bin", "ckpt", "pkl", "tar", "zip", "npz", "metadata"];

/// Endings of other formats that hold weights; their length is not checked.
const OTHER_WEIGHTS: [&str; 5] = ["safetensors", "distcp", "msgpack", "h5", "gguf"];

/// The longest header that the safetensors library itself accepts.
const LONGEST_HEADER: u64 = 100_000_000;

/// The last record of a zip file, without its comment.
const END_RECORD: usize = 22;

/// What precedes it in large archives, and in all of PyTorch's: the 64-bit record, and the record that says where that is.
const LARGE_RECORD: usize = 56;
const LOCATOR: usize = 20;

/// The longest comment that a zip file can end with.
const LONGEST_COMMENT: usize = 65_535;

/// Where a zip archive begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Archive {
    /// At the start of the file.
    Whole,
    /// Somewhere in it: `*.distcp` files are archives one after another.
    Last,
}

/// Whether the file's name promises weights, or the state of an optimizer or a random generator.
pub fn has_weights(name: &Path) -> bool {
    let name = name.to_string_lossy().to_ascii_lowercase();
    TORCH.contains(&extension(&name)) || OTHER_WEIGHTS.contains(&extension(&name))
}

/// Whether the file's name promises anything that training could go on from; small programs keep it in JSON.
pub fn holds_state(name: &OsStr) -> bool {
    has_weights(Path::new(name)) || extension(&name.to_string_lossy().to_ascii_lowercase()) == "json"
}

/// Says why a file is not whole; the words follow its name.
pub fn check(file: &FileEntry) -> Result<(), Flaw> {
    let name = file.name.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    // `.metadata` has no extension by the usual rule, but is a pickle.
    let extension = if name == ".metadata" { "metadata" } else { extension(&name) };
    if file.bytes == 0 {
        // Others may be markers whose being there says all.
        let must_hold_something = holds_state(OsStr::new(&name)) || extension == "metadata" || name == "latest";
        return if must_hold_something { Err(Flaw::Damaged("is empty".into())) } else { Ok(()) };
    }
    let checked = match extension {
        "safetensors" => check_safetensors(file),
        "json" => check_json(file),
        "distcp" => check_torch(file, Archive::Last),
        _ if TORCH.contains(&extension) => check_torch(file, Archive::Whole),
        _ => Ok(()),
    };
    checked.map_err(|problem| match problem {
        // It was cut between the look at its size and the read.
        Problem::Unreadable(error) if error.kind() == ErrorKind::UnexpectedEof => {
            Flaw::Unfinished("became shorter".into())
        }
        Problem::Unreadable(error) => Flaw::Unfinished(format!("cannot be read: {error}")),
        Problem::Damaged(why) => Flaw::Damaged(why),
    })
}

/// Why a file was not accepted.
enum Problem {
    Unreadable(io::Error),
    Damaged(String),
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Problem {
        Problem::Unreadable(error)
    }
}

fn damaged<T>(why: impl Into<String>) -> Result<T, Problem> {
    Err(Problem::Damaged(why.into()))
}

fn check_json(file: &FileEntry) -> Result<(), Problem> {
    let Err(error) = json::check(&file.path) else { return Ok(()) };
    let mut first = [0];
    File::open(&file.path)?.read_exact(&mut first)?;
    match error.is_io() {
        true => Err(Problem::Unreadable(error.into())),
        // What ends in the middle was cut, and zeros are no text; anything else is a format of somebody's own.
        false if error.is_eof() || first == [0] => damaged(format!("is not complete JSON: {error}")),
        false => Ok(()),
    }
}

fn check_safetensors(file: &FileEntry) -> Result<(), Problem> {
    let mut reader = BufReader::new(File::open(&file.path)?);
    if file.bytes < 8 {
        return damaged(format!("is truncated: it has {} bytes, and its header length alone takes 8", file.bytes));
    }
    let mut length = [0; 8];
    reader.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length < 2 {
        return damaged(format!("does not begin with a valid header length: {length}"));
    }
    // No cut makes such a beginning: it never was a safetensors file, whatever it is called, and cannot be checked.
    if length > LONGEST_HEADER {
        return Ok(());
    }
    if length > file.bytes - 8 {
        return damaged(format!("is truncated: its header takes {length} bytes, but it has {}", file.bytes));
    }
    let header: Header = match serde_json::from_reader(reader.take(length)) {
        Ok(header) => header,
        Err(error) => return damaged(format!("has a damaged header: {error}")),
    };
    match header.end.checked_add(8 + length) {
        Some(expected) if expected == file.bytes => Ok(()),
        Some(expected) if expected > file.bytes => {
            damaged(format!("is truncated: it has {} of {expected} bytes", file.bytes))
        }
        _ => damaged(format!("is longer than its header says: it has {} bytes", file.bytes)),
    }
}

/// What the header of a safetensors file says about its length.
struct Header {
    /// Where the last tensor ends, counted from the end of the header.
    end: u64,
}

/// What the header says about one tensor, as far as it matters here.
#[derive(serde::Deserialize)]
struct Tensor {
    data_offsets: (u64, u64),
}

impl<'de> Deserialize<'de> for Header {
    /// Keeps only the largest end, so that a header of a million tensors takes no memory.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Header, D::Error> {
        struct Tensors;
        impl<'de> Visitor<'de> for Tensors {
            type Value = Header;

            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut end = 0;
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        end = map.next_value::<Tensor>()?.data_offsets.1.max(end);
                    }
                }
                Ok(Header { end })
            }
        }
        deserializer.deserialize_map(Tensors)
    }
}

fn check_torch(file: &FileEntry, archive: Archive) -> Result<(), Problem> {
    let mut opened = File::open(&file.path)?;
    let mut start = [0; 11];
    let length = file.bytes.min(start.len() as u64) as usize;
    opened.read_exact(&mut start[..length])?;
    if length < 4 {
        return damaged(format!("is truncated: it has {} bytes", file.bytes));
    }
    match start {
        [b'P', b'K', 3, 4, ..] => check_zip(&mut opened, file.bytes, archive),
        // Protocol 4 and later: the opcode of a frame, and how long it is.
        [0x80, 4..=255, 0x95, frame @ ..] if file.bytes < u64::from_le_bytes(frame).saturating_add(11) => {
            damaged("is truncated: it ends inside a pickle")
        }
        [0, 0, 0, 0, ..] => damaged("begins with zeros instead of data"),
        _ => Ok(()),
    }
}

fn check_zip(file: &mut File, bytes: u64, archive: Archive) -> Result<(), Problem> {
    let records = END_RECORD + LOCATOR + LARGE_RECORD;
    // Few archives end with a comment, so the longest possible one is read only if there is no record at the very end.
    for length in [records, records + LONGEST_COMMENT] {
        let tail = read_tail(file, bytes, length)?;
        if let Some(place) = find_end_record(&tail) {
            return check_directory(file, &tail, place, bytes - tail.len() as u64, archive);
        }
    }
    damaged("is truncated: the directory at the end of the zip archive is missing")
}

fn read_tail(file: &mut File, bytes: u64, length: usize) -> io::Result<Vec<u8>> {
    let length = bytes.min(length as u64);
    file.seek(SeekFrom::Start(bytes - length))?;
    let mut tail = vec![0; length as usize];
    file.read_exact(&mut tail)?;
    Ok(tail)
}

/// Where the end record is: its comment must reach to the end of the file, or it is data that happens to look like one.
fn find_end_record(tail: &[u8]) -> Option<usize> {
    (0..=tail.len().checked_sub(END_RECORD)?).rev().find(|&place| {
        tail[place..].starts_with(b"PK\x05\x06")
            && number(tail, place + 20, 2).is_some_and(|comment| place as u64 + 22 + comment == tail.len() as u64)
    })
}

/// Checks that the directory of the archive begins where the records say, and ends where they begin.
fn check_directory(
    file: &mut File,
    tail: &[u8],
    place: usize,
    tail_start: u64,
    archive: Archive,
) -> Result<(), Problem> {
    let wrong = || damaged("has a damaged directory at the end of the zip archive");
    let is_large = place.checked_sub(LOCATOR).is_some_and(|locator| tail[locator..].starts_with(b"PK\x06\x07"));
    let (record, length, offset) = if is_large {
        let Some(record) = place.checked_sub(LOCATOR + LARGE_RECORD) else { return wrong() };
        if !tail[record..].starts_with(b"PK\x06\x06") {
            return wrong();
        }
        (record, number(tail, record + 40, 8), number(tail, record + 48, 8))
    } else {
        (place, number(tail, place + 12, 4), number(tail, place + 16, 4))
    };
    let (Some(length), Some(offset)) = (length, offset) else { return wrong() };
    let Some(start) = (tail_start + record as u64).checked_sub(length) else { return wrong() };
    if archive == Archive::Whole && start != offset {
        return wrong();
    }
    let mut entry = [0; 4];
    file.seek(SeekFrom::Start(start))?;
    file.read_exact(&mut entry)?;
    if entry == *b"PK\x01\x02" { Ok(()) } else { wrong() }
}

/// A little-endian number of up to eight bytes.
fn number(bytes: &[u8], place: usize, length: usize) -> Option<u64> {
    let digits = bytes.get(place..place + length)?;
    Some(digits.iter().rev().fold(0, |number, &digit| (number << 8) | u64::from(digit)))
}

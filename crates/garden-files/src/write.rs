//! Atomic file writes.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// Creates or replaces a file atomically. The data is on disk before the rename: after a power loss the old or the new file is there, and a failed write
/// leaves nothing behind.
pub fn replace(path: &Path, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    let draft = draft_of(path);
    let write = || -> io::Result<()> {
        let mut file = File::create(&draft)?;
        file.write_all(bytes.as_ref())?;
        file.sync_all()?;
        fs::rename(&draft, path)
    };
    // The first error is the one to report.
    write().inspect_err(|_| drop(fs::remove_file(&draft)))
}

/// Opens a file that is added to. A pipe that somebody has put in its place would be waited for without an end: it goes.
pub fn open_log(path: &Path) -> io::Result<File> {
    if fs::symlink_metadata(path).is_ok_and(|about| about.file_type().is_fifo()) {
        fs::remove_file(path)?;
    }
    File::options().append(true).create(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)
}

/// The temporary name of a file while it is written: hidden and unique to this process.
pub fn draft_of(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}.partial", std::process::id()));
    path.with_file_name(name)
}

/// Files that a disk has room for when it is not full.
const LEAST_FILES: u64 = 16;

/// Bytes of a file's or folder's disk that are free for this user.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let found = rustix::fs::statvfs(path)?;
    // A disk without room for one more file is full, too.
    let has_files = found.f_files == 0 || found.f_favail >= LEAST_FILES;
    Ok(if has_files { found.f_bavail.saturating_mul(found.f_frsize) } else { 0 })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_file_is_there_as_a_whole_or_as_it_was() {
        let folder = std::env::temp_dir().join(format!("garden-files-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("a.json");
        replace(&path, "one").unwrap();
        replace(&path, [b'2'; 3]).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"222");
        // A folder cannot be replaced by a file, and a failed attempt leaves nothing behind.
        fs::create_dir(folder.join("b")).unwrap();
        assert!(replace(&folder.join("b"), "x").is_err() && replace(&folder.join("none/c"), "x").is_err());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
        fs::remove_dir_all(&folder).unwrap();
    }
}

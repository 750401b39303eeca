//! The files a process is writing, which would be left half-written if it were stopped now.
//!
//! Files that are only mapped for writing are left out: nothing shows when such a file is complete.

use std::fs;
use std::path::{Path, PathBuf};

/// The regular files that a process has open for writing, in order, without deleted ones.
///
/// Also empty if the process has exited or we may not inspect it.
pub fn open_for_writing(pid: u32) -> Vec<PathBuf> {
    let folder = PathBuf::from(format!("/proc/{pid}"));
    let Ok(entries) = fs::read_dir(folder.join("fd")) else { return Vec::new() };
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut paths: Vec<PathBuf> = numbers.filter_map(|number| written_file(&folder, &number)).collect();
    paths.sort_unstable();
    paths.dedup();
    paths
}

/// The path behind one descriptor, if it is a regular file open for writing.
fn written_file(folder: &Path, number: &str) -> Option<PathBuf> {
    let link = folder.join("fd").join(number);
    let path = fs::read_link(&link).ok()?;
    // Pipes, sockets and the like have names such as `pipe:[4711]`.
    let is_named = path.is_absolute() && !path.to_str().is_some_and(|text| text.ends_with(" (deleted)"));
    // Following the link reaches the open file itself, wherever its name leads in our own mount namespace.
    if !is_named || !fs::metadata(&link).ok()?.is_file() {
        return None;
    }
    let facts = fs::read_to_string(folder.join("fdinfo").join(number)).ok()?;
    opened_for_writing(&facts).then_some(path)
}

/// Reads the octal flags of `/proc/PID/fdinfo/N`; the lowest two bits say 0 for reading, 1 for writing, 2 for both.
fn opened_for_writing(facts: &str) -> bool {
    let flags = facts.lines().find_map(|line| line.strip_prefix("flags:"));
    let bits = flags.and_then(|text| u64::from_str_radix(text.trim(), 8).ok());
    bits.is_some_and(|bits| matches!(bits & 3, 1 | 2))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn only_files_that_are_written_are_named() {
        let folder = std::env::temp_dir().join(format!("garden-probe-files-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let folder = folder.canonicalize().unwrap();
        let [written, read, deleted] = ["written", "read", "deleted"].map(|name| folder.join(name));
        fs::write(&read, "x").unwrap();
        let _open = (File::create(&written).unwrap(), File::open(&read).unwrap(), File::create(&deleted).unwrap());
        fs::remove_file(&deleted).unwrap();
        let found = open_for_writing(std::process::id());
        fs::remove_dir_all(&folder).unwrap();
        let ours: Vec<PathBuf> = found.into_iter().filter(|path| path.starts_with(&folder)).collect();
        assert_eq!(ours, [written]);
    }

    #[test]
    fn flags_are_octal() {
        assert!(opened_for_writing("pos:\t0\nflags:\t0100001\nmnt_id:\t31\n"));
        assert!(opened_for_writing("flags:\t02100002\n"));
        assert!(!opened_for_writing("flags:\t0100000\n") && !opened_for_writing("flags:\t9\n"));
        assert!(!opened_for_writing(""));
    }

    #[test]
    fn a_process_that_is_not_there_writes_nothing() {
        assert!(open_for_writing(u32::MAX).is_empty());
    }
}

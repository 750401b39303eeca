//! Where a trace goes that nobody named a file for: one folder of the user, which keeps the latest.
//!
//! Not the present folder, where they would pile up between the user's files. Without a home that can be written to (containers,
//! services) it is the folder for temporary files, and the present one as the last resort.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use garden_memory::{Bytes, GIB};

use crate::failure::Failure;

/// Traces that are kept, and what they may take up in all. A day at one sample a second takes 20 MB.
const MOST_TRACES: usize = 100;
const MOST_BYTES: u64 = GIB;

/// Makes an empty file for a trace in the first folder that takes it.
pub fn claim() -> Result<PathBuf, Failure> {
    let folders = [kept_folders(|name| std::env::var_os(name)), vec![PathBuf::new()]].concat();
    let mut refusals = Vec::new();
    for folder in folders {
        match claim_in(&folder) {
            Ok(path) => return Ok(path),
            Err(error) => refusals.push(format!("`{}`: {error}", folder.join(".").display())),
        }
    }
    let hint = Some("choose a file in a writable folder with -o".into());
    Err(Failure { what: "no writable folder for the trace".into(), causes: refusals, hint })
}

/// The folders in which traces are kept, best first: of the user's state, else for temporary files.
fn kept_folders(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    // The rule for these folders says that other than whole paths do not count.
    let whole = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = whole("XDG_STATE_HOME").or_else(|| Some(whole("HOME")?.join(".local/state")));
    let state = state.map(|state| state.join("model-garden/traces"));
    let temporary = whole("TMPDIR").unwrap_or_else(|| "/tmp".into());
    state.into_iter().chain([temporary]).collect()
}

/// A new file in a folder, which is made if it is not there. Command lines are nobody else's business.
fn claim_in(folder: &Path) -> io::Result<PathBuf> {
    if !folder.as_os_str().is_empty() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    // Another container may have the same process ids.
    for seconds in seconds.. {
        let path = folder.join(format!("model-garden-{seconds}-{}.jsonl", std::process::id()));
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => return other.map(|_| path),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Whether a file has a name that `claim` gives.
fn is_claimed_name(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let numbers = name.and_then(|name| name.strip_prefix("model-garden-")?.strip_suffix(".jsonl"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    numbers.and_then(|numbers| numbers.split_once('-')).is_some_and(|(time, pid)| is_number(time) && is_number(pid))
}

/// Removes the oldest traces of the folder in which a new one was claimed, and gives what is to be said about it.
///
/// The one that is new, those that are being written and all other files stay.
pub fn tidy(new: &Path) -> Option<String> {
    let folder = new.parent()?;
    let is_kept = kept_folders(|name| std::env::var_os(name)).iter().any(|kept| kept == folder);
    if !is_kept || !is_claimed_name(new) {
        return None;
    }
    let owner = fs::metadata(new).ok()?.uid();
    let traces = fs::read_dir(folder).ok()?.filter_map(|entry| {
        let path = entry.ok()?.path();
        let facts = fs::symlink_metadata(&path).ok()?;
        (is_claimed_name(&path) && facts.is_file() && facts.uid() == owner).then_some((path, facts))
    });
    let removed = surplus(traces.collect()).into_iter().filter(|path| path != new && remove_unused(path)).count();
    let them = if removed == 1 { "trace was".into() } else { format!("{removed} traces were") };
    (removed > 0).then(|| {
        format!(
            "the oldest {them} removed from {}, which keeps the last {MOST_TRACES} and {} (use -o to keep one elsewhere)",
            folder.display(),
            Bytes(MOST_BYTES)
        )
    })
}

/// Those that are too many, oldest last.
fn surplus(mut traces: Vec<(PathBuf, Metadata)>) -> Vec<PathBuf> {
    traces.sort_by_key(|(_, facts)| std::cmp::Reverse(facts.modified().unwrap_or(UNIX_EPOCH)));
    let mut bytes = 0;
    let fits = |(number, (_, facts)): &(usize, &(PathBuf, Metadata))| {
        bytes += facts.len();
        *number < MOST_TRACES && bytes <= MOST_BYTES
    };
    let kept = traces.iter().enumerate().take_while(fits).count();
    traces.drain(kept..).map(|(path, _)| path).collect()
}

/// Removes a trace, unless somebody is writing it.
fn remove_unused(path: &Path) -> bool {
    let is_free = |file: File| !matches!(file.try_lock(), Err(TryLockError::WouldBlock));
    File::open(path).is_ok_and(is_free) && fs::remove_file(path).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_come_from_the_environment_and_relative_ones_do_not_count() {
        let of = |given: &[(&str, &str)]| {
            let variable = |name: &str| Some(given.iter().find(|(known, _)| *known == name)?.1.into());
            let folders = kept_folders(variable).into_iter().map(|folder| folder.display().to_string());
            folders.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of(&[("XDG_STATE_HOME", "/s"), ("HOME", "/h")]), "/s/model-garden/traces /tmp");
        assert_eq!(of(&[("XDG_STATE_HOME", "s"), ("HOME", "/h")]), "/h/.local/state/model-garden/traces /tmp");
        assert_eq!(of(&[("HOME", ""), ("TMPDIR", "/t")]), "/t");
    }

    #[test]
    fn only_our_own_names_are_ever_removed() {
        let is = |name: &str| is_claimed_name(Path::new(name));
        assert!(is("/a/model-garden-1760000000-4711.jsonl"));
        let others =
            ["model-garden-1760000000.jsonl", "model-garden-best-run.jsonl", "run.jsonl", "model-garden-1-2.csv"];
        assert!(!others.into_iter().any(is));
    }
}

//! A folder in which a supervisor tells what it does, so that another process can find it, follow it, or ask it to stop.
//!
//! ```text
//! lock          held by the supervisor for as long as it lives: process ids can be used again, locks cannot
//! pid           its process id
//! state.json    what it is doing, replaced as a whole at each sample
//! trace.jsonl   the trace, one across all attempts
//! output.log    what the program prints
//! exit.json     how it ended; not there before
//! ```

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::Serialize;

/// What a supervisor tells in `state.json`.
#[derive(Serialize)]
pub(crate) struct State<'a> {
    pub pid: u32,
    pub state: &'static str,
    pub guard: &'a str,
    pub attempt: u32,
    pub program_pid: u32,
    pub step: Option<f64>,
    pub total_steps: Option<u64>,
    pub held_bytes: u64,
    pub limit_bytes: Option<u64>,
    pub verdict: Option<&'static str>,
    pub summary: Option<&'a str>,
    pub checkpoint: Option<&'a Path>,
    pub trace: &'a Path,
    pub command: Vec<String>,
}

/// The folder of a supervisor that is alive: ours.
#[derive(Debug)]
pub struct StateFolder {
    folder: PathBuf,
    /// Unlocked by the system when we end, however we end.
    _lock: File,
}

impl StateFolder {
    /// Takes possession of a folder; an error of kind `AddrInUse` means that another supervisor has it.
    pub fn take(folder: &Path) -> io::Result<StateFolder> {
        fs::create_dir_all(folder)?;
        let lock = File::options().write(true).create(true).truncate(false).open(folder.join("lock"))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Err(io::ErrorKind::AddrInUse.into()),
            locked => locked?,
        }
        for old in ["exit.json", "state.json"] {
            match fs::remove_file(folder.join(old)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        let state = StateFolder { folder: folder.to_path_buf(), _lock: lock };
        replace(&state.path("pid"), format!("{}\n", std::process::id()).as_bytes())?;
        Ok(state)
    }

    /// A file of the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Replaces a file as a whole, so that nobody reads half of it.
    pub fn write(&self, name: &str, value: &impl Serialize) -> io::Result<()> {
        let mut text = serde_json::to_vec_pretty(value)?;
        text.push(b'\n');
        replace(&self.path(name), &text)
    }
}

/// The process id of the supervisor that has this folder, if one is alive.
pub fn supervisor_of(folder: &Path) -> io::Result<Option<u32>> {
    let lock = File::open(folder.join("lock"))?;
    match flock(&lock, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(None),
        Err(Errno::WOULDBLOCK) => {
            let text = fs::read_to_string(folder.join("pid"))?;
            text.trim().parse().map(Some).map_err(|_| io::ErrorKind::InvalidData.into())
        }
        Err(error) => Err(error.into()),
    }
}

fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let draft = path.with_extension("tmp");
    File::create(&draft)?.write_all(text)?;
    fs::rename(draft, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_one_supervisor_at_a_time() {
        let folder = std::env::temp_dir().join(format!("garden-state-{}", std::process::id()));
        let state = StateFolder::take(&folder).unwrap();
        assert_eq!(StateFolder::take(&folder).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(supervisor_of(&folder).unwrap(), Some(std::process::id()));
        state.write("state.json", &"running").unwrap();
        assert_eq!(fs::read_to_string(state.path("state.json")).unwrap(), "\"running\"\n");
        drop(state);
        assert_eq!(supervisor_of(&folder).unwrap(), None);
        fs::remove_dir_all(&folder).unwrap();
    }
}

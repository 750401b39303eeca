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
use std::time::Duration;

use garden_probe::{Identity, started_with};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// The environment variable by which a program is known to be of this folder's supervisor.
pub(crate) const FOLDER: &str = "MODEL_GARDEN_STATE";
/// How often the lock is tried, and how long apart.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(10);

/// What a supervisor tells in `state.json`.
#[derive(Serialize)]
pub(crate) struct State<'a> {
    pub pid: u32,
    pub state: &'static str,
    pub guard: &'a str,
    pub attempt: u32,
    pub program_pid: u32,
    pub program_started: u64,
    /// This folder: a copy of it is about no program that runs.
    pub folder: Option<PathBuf>,
    pub step: Option<f64>,
    pub total_steps: Option<u64>,
    pub held_bytes: u64,
    /// Where the memory of a forked tree is known by bounds only: then the other is the lower one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_at_most_bytes: Option<u64>,
    pub limit_bytes: Option<u64>,
    pub verdict: Option<&'static str>,
    pub summary: Option<&'a str>,
    pub checkpoint: Option<&'a Path>,
    pub trace: &'a Path,
    pub command: Vec<String>,
}

/// What another process can know of a run from its `state.json`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Told {
    /// The last step that the program told.
    pub step: Option<f64>,
    /// How many there will be.
    pub total_steps: Option<u64>,
    /// Memory that it holds.
    pub held_bytes: u64,
    /// The judge's verdict so far.
    pub verdict: Option<String>,
    /// The same in a sentence.
    pub summary: Option<String>,
}

/// What the supervisor of a folder has told last.
pub fn read_state(folder: &Path) -> Option<Told> {
    serde_json::from_str(&garden_files::read_settings(&folder.join("state.json")).ok()?).ok()
}

/// The folder of a supervisor that is alive: ours.
#[derive(Debug)]
pub struct StateFolder {
    folder: PathBuf,
    /// Unlocked by the system when we end, however we end.
    _lock: File,
}

impl StateFolder {
    /// Takes possession of a folder; an error of kind `AddrInUse` means that another supervisor has it, `ResourceBusy` that the
    /// program of one that was killed is still running.
    pub fn take(folder: &Path) -> io::Result<StateFolder> {
        fs::create_dir_all(folder)?;
        let lock = File::options().write(true).create(true).truncate(false).open(folder.join("lock"))?;
        // Somebody who looks whether it is held holds it for a moment.
        let mut tries = 0;
        while let Err(error) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            tries += 1;
            match error {
                Errno::WOULDBLOCK if tries < TRIES => std::thread::sleep(PAUSE),
                Errno::WOULDBLOCK => return Err(io::ErrorKind::AddrInUse.into()),
                _ => return Err(error.into()),
            }
        }
        if unguarded(folder).is_some() {
            return Err(io::ErrorKind::ResourceBusy.into());
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

/// The program of a supervisor that was killed, if it is still running.
pub fn unguarded(folder: &Path) -> Option<u32> {
    #[derive(Deserialize)]
    struct Known {
        program_pid: u32,
        program_started: u64,
        folder: Option<PathBuf>,
    }
    if folder.join("exit.json").exists() {
        return None;
    }
    let text = garden_files::read_settings(&folder.join("state.json")).ok();
    let Some(known) = text.and_then(|text| serde_json::from_str::<Known>(&text).ok()) else {
        return unnoted(folder);
    };
    // A folder that was copied or restored tells of a program of the other one.
    if known.folder.is_some_and(|known| fs::canonicalize(folder).ok() != Some(known)) {
        return None;
    }
    let found = Identity::of(known.program_pid).filter(|found| found.started == known.program_started);
    // A zombie has no command line any more.
    found.filter(|found| !found.command.is_empty()).map(|found| found.pid)
}

/// The same where no file tells of the program: a disk that was full had no room for that, or the program has removed it.
fn unnoted(folder: &Path) -> Option<u32> {
    // Nobody has ever guarded anything here.
    if !folder.join("pid").exists() {
        return None;
    }
    let folder = fs::canonicalize(folder).ok()?;
    // A zombie has no environment any more.
    started_with(FOLDER, folder.as_os_str()).first().map(|found| found.pid)
}

/// Whether a process was stopped by a signal or a debugger: it exists, and does nothing.
pub fn is_stopped(pid: u32) -> bool {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name before it may hold anything, also brackets.
    let state = text.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    matches!(state, Some('T' | 't'))
}

/// The process id of the supervisor that has this folder, if one is alive.
pub fn supervisor_of(folder: &Path) -> io::Result<Option<u32>> {
    // Whoever works there may have put a pipe in its place.
    let (lock, _) = garden_files::open(&folder.join("lock"))?;
    match flock(&lock, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(None),
        Err(Errno::WOULDBLOCK) => {
            let text = garden_files::read_settings(&folder.join("pid"))?;
            text.trim().parse().map(Some).map_err(|_| io::ErrorKind::InvalidData.into())
        }
        Err(error) => Err(error.into()),
    }
}

/// Replaces a file without waiting for the disk: it is written with every sample, and tells of a process that no power loss leaves alive.
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

//! Watches a folder for checkpoints: when one is being written, when it is complete, and what saving it cost.
//!
//! A checkpoint is complete when its files say so and no process of the tree has one of them open for writing. Where the
//! layout has a file that is written last, that is enough; where it has none, its files must also have stopped changing.
//! The kernel tells when a file is made or closed (inotify), so that completion is noticed within milliseconds; the folder is
//! looked at now and then all the same, for file systems that do not tell.

use std::collections::{BTreeMap, VecDeque};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::SyncSender;
use std::{ffi::OsStr, io, thread};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};

use crate::checkpoint::{Checkpoint, State, find};
use crate::launch::Notice;

/// Files that have not changed for this long are taken as final where the layout does not tell, in seconds.
const STILL_S: f64 = 1.0;

/// Samples before the first file among which the lowest is what was held before.
const SAMPLES_BEFORE: usize = 3;

/// A checkpoint that was saved, and what that cost.
#[derive(Clone, Debug)]
pub struct Saved {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// Seconds from its first file to its last change.
    pub seconds: f64,
    /// Most memory held meanwhile, beyond what was held before.
    pub bytes: u64,
}

#[derive(Debug)]
struct Known {
    fingerprint: u64,
    writing: Option<Writing>,
}

/// A checkpoint that is being written: since when, last change, memory before and the most meanwhile.
#[derive(Clone, Copy, Debug)]
struct Writing {
    since: f64,
    changed: f64,
    held_before: u64,
    held_most: u64,
}

/// A folder of checkpoints under watch.
#[derive(Debug)]
pub struct Saves {
    folder: PathBuf,
    known: BTreeMap<PathBuf, Known>,
    /// What was held at the last samples: memory for a save is taken a little before its first file is there.
    held: VecDeque<u64>,
    notices: SyncSender<Notice>,
    is_listening: bool,
}

impl Saves {
    /// Begins to watch; what is there already is not news. Changes are told to `notices`.
    pub fn of(folder: &Path, notices: SyncSender<Notice>) -> Saves {
        let known = find(folder).unwrap_or_default().into_iter().map(|checkpoint| {
            let fingerprint = checkpoint.fingerprint();
            (checkpoint.path, Known { fingerprint, writing: None })
        });
        let folder = folder.to_path_buf();
        Saves { folder, known: known.collect(), held: VecDeque::new(), notices, is_listening: false }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether a checkpoint is being written.
    pub fn is_saving(&self) -> bool {
        self.known.values().any(|known| known.writing.is_some())
    }

    /// The program has ended: what it was writing, it writes no more.
    pub fn forget_unfinished(&mut self) {
        self.known.values_mut().for_each(|known| known.writing = None);
    }

    /// Takes in what is held now.
    pub fn holds(&mut self, held: u64) {
        if self.held.len() == SAMPLES_BEFORE {
            self.held.pop_front();
        }
        self.held.push_back(held);
        for writing in self.known.values_mut().filter_map(|known| known.writing.as_mut()) {
            writing.held_most = writing.held_most.max(held);
        }
    }

    /// Looks at the folder and says which checkpoints have become complete; `writers` lists the files that the tree has open
    /// for writing, and is only asked when it matters.
    pub fn look(&mut self, time_s: f64, writers: impl Fn() -> Vec<PathBuf>) -> Vec<Saved> {
        if !self.is_listening {
            // The folder may not be there yet.
            self.is_listening = listen(&self.folder, self.notices.clone()).is_ok();
        }
        let found = find(&self.folder).unwrap_or_default();
        self.known.retain(|path, _| found.iter().any(|checkpoint| checkpoint.path == *path));
        let mut saved = Vec::new();
        for checkpoint in found {
            let fingerprint = checkpoint.fingerprint();
            let known = self.known.entry(checkpoint.path.clone()).or_insert(Known { fingerprint: 0, writing: None });
            if known.fingerprint != fingerprint {
                known.fingerprint = fingerprint;
                let held_before = self.held.iter().copied().min().unwrap_or(0);
                let held_most = self.held.back().copied().unwrap_or(0);
                let beginning = Writing { since: time_s, changed: time_s, held_before, held_most };
                known.writing.get_or_insert(beginning).changed = time_s;
            }
            let Some(writing) = known.writing else { continue };
            let is_final = checkpoint.has_last_file() || time_s - writing.changed >= STILL_S;
            let is_open = || writers().iter().any(|file| file.starts_with(&checkpoint.path));
            if is_final && checkpoint.state() == State::Complete && !is_open() {
                known.writing = None;
                // As it was when it was found complete: its last file may have come since the folder was read.
                known.fingerprint = checkpoint.fingerprint();
                let bytes = writing.held_most.saturating_sub(writing.held_before);
                saved.push(Saved { checkpoint, seconds: writing.changed - writing.since, bytes });
            }
        }
        saved
    }
}

/// Sends a notice whenever a file in the folder, or in a checkpoint of it, is made or closed, until nobody reads them.
fn listen(folder: &Path, notices: SyncSender<Notice>) -> io::Result<()> {
    let listener = inotify::init(CreateFlags::CLOEXEC)?;
    let changes = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::CLOSE_WRITE;
    let top = inotify::add_watch(&listener, folder, changes)?;
    // A checkpoint that is being written already is of interest too.
    for checkpoint in find(folder).unwrap_or_default() {
        // One that cannot be listened to is still looked at now and then.
        let _ = inotify::add_watch(&listener, &checkpoint.path, changes);
    }
    let folder = folder.to_path_buf();
    thread::spawn(move || {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&listener, &mut buffer);
        while let Ok(event) = events.next() {
            if event.wd() == top
                && event.events().contains(ReadFlags::ISDIR)
                && let Some(name) = event.file_name()
            {
                let _ = inotify::add_watch(&listener, folder.join(OsStr::from_bytes(name.to_bytes())), changes);
            }
            if notices.send(Notice::Woken).is_err() {
                return;
            }
        }
    });
    Ok(())
}

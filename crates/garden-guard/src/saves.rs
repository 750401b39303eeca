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

use crate::checkpoint::{Checkpoint, Newest, State, find};
use crate::launch::Notice;

/// Files that have not changed for this long are taken as final where the layout does not tell, in seconds.
const STILL_S: f64 = 1.0;

/// Samples of what was held that are kept to tell what a save took.
const SAMPLES_KEPT: usize = 256;

/// A checkpoint that was saved, and what that cost.
#[derive(Clone, Debug)]
pub struct Saved {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// When its first file was seen, on the watch's clock.
    pub began_s: f64,
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

/// A checkpoint that is being written: since when, its last change, and whether it is written anew.
#[derive(Clone, Copy, Debug)]
struct Writing {
    since: f64,
    changed: f64,
    is_new: bool,
}

/// A folder of checkpoints under watch.
#[derive(Debug)]
pub struct Saves {
    folder: PathBuf,
    known: BTreeMap<PathBuf, Known>,
    /// What was there at the beginning, by fingerprint: checkpoints of another run.
    before: BTreeMap<PathBuf, u64>,
    /// What was held at the last samples, by time.
    held: VecDeque<(f64, u64)>,
    notices: SyncSender<Notice>,
    is_listening: bool,
}

impl Saves {
    /// Begins to watch; what is there already is not news. Changes are told to `notices`.
    pub fn of(folder: &Path, notices: SyncSender<Notice>) -> Saves {
        let there = find(folder).unwrap_or_default().into_iter();
        let before: BTreeMap<PathBuf, u64> = there.map(|found| (found.path.clone(), found.fingerprint())).collect();
        let known =
            |(path, fingerprint): (&PathBuf, &u64)| (path.clone(), Known { fingerprint: *fingerprint, writing: None });
        let known = before.iter().map(known).collect();
        let folder = folder.to_path_buf();
        Saves { folder, known, before, held: VecDeque::new(), notices, is_listening: false }
    }

    /// This checkpoint is not of an earlier run, although it was there at the beginning: it will be news.
    pub fn claim(&mut self, checkpoint: &Path) {
        self.before.remove(checkpoint);
        self.known.remove(checkpoint);
    }

    /// Checkpoints that were there at the beginning.
    pub fn older(&self) -> usize {
        self.before.len()
    }

    /// The newest checkpoint that was written since the beginning and is complete, and newer ones that are torn.
    pub fn newest(&self) -> Newest {
        let is_ours = |found: &Checkpoint| self.before.get(&found.path) != Some(&found.fingerprint());
        let mut ours: Vec<Checkpoint> = find(&self.folder).unwrap_or_default().into_iter().filter(is_ours).collect();
        ours.sort_by_cached_key(|found| std::cmp::Reverse((found.written().map(|(_, last)| last), found.step)));
        Newest::of(ours)
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
    pub fn holds(&mut self, time_s: f64, held: u64) {
        if self.held.len() == SAMPLES_KEPT {
            self.held.pop_front();
        }
        self.held.push_back((time_s, held));
    }

    fn account(&self, checkpoint: Checkpoint, writing: Writing) -> Saved {
        // A draft that was renamed was written before it was seen; one that is written over says nothing of that kind.
        let written = checkpoint.written().filter(|_| writing.is_new);
        let written = written.and_then(|(first, last)| last.duration_since(first).ok()).map(|time| time.as_secs_f64());
        let seconds = (writing.changed - writing.since).max(written.unwrap_or(0.0));
        let writing = Writing { since: writing.since.min(writing.changed - seconds), ..writing };
        Saved { checkpoint, began_s: writing.since, seconds, bytes: self.taken(writing) }
    }

    /// What a save took on top of what was held before its first file; memory is taken a little before that.
    fn taken(&self, writing: Writing) -> u64 {
        let before =
            self.held.iter().rev().filter(|(time, _)| *time <= writing.since).take(2).map(|(_, held)| *held).min();
        let during = self.held.iter().filter(|(time, _)| (writing.since..=writing.changed).contains(time));
        let most = during.map(|(_, held)| *held).max();
        before.zip(most).map_or(0, |(before, most)| most.saturating_sub(before))
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
            let is_new = !self.known.contains_key(&checkpoint.path);
            let known = self.known.entry(checkpoint.path.clone()).or_insert(Known { fingerprint: 0, writing: None });
            if known.fingerprint != fingerprint {
                known.fingerprint = fingerprint;
                known.writing.get_or_insert(Writing { since: time_s, changed: time_s, is_new }).changed = time_s;
            }
            let Some(writing) = known.writing else { continue };
            let is_final = checkpoint.has_last_file() || time_s - writing.changed >= STILL_S;
            let is_open = || writers().iter().any(|file| file.starts_with(&checkpoint.path));
            if is_final && checkpoint.state() == State::Complete && !is_open() {
                known.writing = None;
                // As it was when it was found complete: its last file may have come since the folder was read.
                known.fingerprint = checkpoint.fingerprint();
                saved.push((checkpoint, writing));
            }
        }
        saved.into_iter().map(|(checkpoint, writing)| self.account(checkpoint, writing)).collect()
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

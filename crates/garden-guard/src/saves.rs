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

use crate::checkpoint::{Checkpoint, Listing, Newest, State, find};
use crate::launch::Notice;
use crate::policy::Cost;

/// Files that have not changed for this long are taken as final where the layout does not tell, in seconds.
const STILL_S: f64 = 1.0;
/// That long where memory is used up: the program is about to be ended, and what looks complete must do.
const STILL_AT_LAST_S: f64 = 0.1;

/// Samples of what was held that are kept to tell what a save took.
const SAMPLES_KEPT: usize = 256;

/// How far the step in a checkpoint's name may be from the steps that were told while it was written: what is told comes a
/// little before or after the files are seen.
const STEP_SLACK: f64 = 2.0;

/// A checkpoint that was saved, and what that cost.
#[derive(Clone, Debug)]
pub struct Saved {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// When its first file was seen, on the watch's clock.
    pub began_s: f64,
    /// What saving it cost.
    pub cost: Cost,
}

/// When, and at which step, the folder is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// On the watch's clock.
    pub time_s: f64,
    /// The step that was told last.
    pub step: Option<f64>,
    /// Whether memory is used up, so that there is no time to wait.
    pub is_urgent: bool,
    /// Whether the program has ended: nothing is written any more.
    pub is_last: bool,
}

#[derive(Debug, Default)]
struct Known {
    listing: Listing,
    writing: Option<Writing>,
    /// Whether its files are being removed, as programs do that keep only the last few.
    is_going: bool,
    /// The step that was told last when its first file was seen.
    step: Option<f64>,
}

/// A checkpoint that is being written: since when and which step, its last change, and whether it is written anew.
#[derive(Clone, Copy, Debug)]
struct Writing {
    since: f64,
    step: Option<f64>,
    changed: f64,
    is_new: bool,
}

/// A folder of checkpoints under watch.
#[derive(Debug)]
pub struct Saves {
    folder: PathBuf,
    known: BTreeMap<PathBuf, Known>,
    /// What was there at the beginning: checkpoints of another run.
    before: BTreeMap<PathBuf, Listing>,
    /// Those that the program could not go on from.
    failed: BTreeMap<PathBuf, Listing>,
    /// What was held at the last samples, by time.
    held: VecDeque<(f64, u64)>,
    notices: SyncSender<Notice>,
    is_listening: bool,
}

impl Saves {
    /// Begins to watch; what is there already is not news. Changes are told to `notices`.
    pub fn of(folder: &Path, notices: SyncSender<Notice>) -> Saves {
        let there = find(folder).unwrap_or_default().into_iter();
        let before: BTreeMap<PathBuf, Listing> = there.map(|found| (found.path.clone(), found.listing())).collect();
        let known = |(path, listing): (&PathBuf, &Listing)| {
            (path.clone(), Known { listing: listing.clone(), ..Known::default() })
        };
        let known = before.iter().map(known).collect();
        let folder = folder.to_path_buf();
        Saves { folder, known, before, failed: BTreeMap::new(), held: VecDeque::new(), notices, is_listening: false }
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

    /// The newest checkpoint that was written since the beginning and can be gone on from, and newer ones that are flawed.
    pub fn newest(&self) -> Newest {
        let is_ours = |found: &Checkpoint| {
            let listing = found.listing();
            let is_going = self.known.get(&found.path).is_some_and(|known| known.is_going && known.listing == listing);
            let is_in = |list: &BTreeMap<PathBuf, Listing>| list.get(&found.path) == Some(&listing);
            !is_in(&self.before) && !is_in(&self.failed) && !is_going
        };
        let mut ours: Vec<Checkpoint> = find(&self.folder).unwrap_or_default().into_iter().filter(is_ours).collect();
        ours.sort_by_cached_key(|found| std::cmp::Reverse((found.written().map(|(_, last)| last), found.step)));
        Newest::of(ours)
    }

    /// The program could not go on from this checkpoint: it is not offered again as it is.
    pub fn distrust(&mut self, path: &Path) {
        let found = find(&self.folder).unwrap_or_default().into_iter().find(|found| found.path == path);
        self.failed.extend(found.map(|found| (found.path.clone(), found.listing())));
    }

    /// The last step that a checkpoint holds, where `last` was told last: the one in its name if that fits what was told since its
    /// first file was seen, for a name may also count epochs; else what was told then.
    pub fn step_of(&self, checkpoint: &Checkpoint, last: f64) -> Option<f64> {
        let named = checkpoint.step.map(|step| step as f64);
        let Some(told) = self.known.get(&checkpoint.path).and_then(|known| known.step) else { return named };
        named.filter(|named| (told - STEP_SLACK..=last + STEP_SLACK).contains(named)).or(Some(told))
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether a checkpoint is being written.
    pub fn is_saving(&self) -> bool {
        self.known.values().any(|known| known.writing.is_some())
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
        let began_s = writing.since.min(writing.changed - seconds);
        let (rise, rise_s) = self.rise_during(began_s, writing.changed);
        Saved { checkpoint, began_s, cost: Cost { seconds, rise, rise_s } }
    }

    /// How far memory rose during a save, and in which time, from what was held before its first file; memory is taken a little
    /// before that.
    fn rise_during(&self, since: f64, until: f64) -> (u64, f64) {
        let before = self.held.iter().rev().filter(|(time, _)| *time <= since).take(2).min_by_key(|(_, held)| *held);
        let during = self.held.iter().filter(|(time, _)| (since..=until).contains(time));
        let most = during.max_by_key(|(_, held)| *held);
        before.zip(most).map_or((0, 0.0), |(before, most)| (most.1.saturating_sub(before.1), most.0 - before.0))
    }

    /// Looks at the folder and says which checkpoints have become complete; `writers` lists the files that the tree has open
    /// for writing, and is only asked when it matters.
    pub fn look(&mut self, now: Look, writers: impl Fn() -> Vec<PathBuf>) -> Vec<Saved> {
        if !self.is_listening {
            // The folder may not be there yet.
            self.is_listening = listen(&self.folder, self.notices.clone()).is_ok();
        }
        let found = find(&self.folder).unwrap_or_default();
        self.known.retain(|path, _| found.iter().any(|checkpoint| checkpoint.path == *path));
        let mut saved = Vec::new();
        let still_s = if now.is_urgent { STILL_AT_LAST_S } else { STILL_S };
        // The newest one is told last.
        for checkpoint in found.into_iter().rev() {
            let is_new = !self.known.contains_key(&checkpoint.path);
            let known = self.known.entry(checkpoint.path.clone()).or_default();
            known.take_in(checkpoint.listing(), is_new, now);
            let Some(writing) = known.writing else { continue };
            let is_final = now.is_last || checkpoint.has_last_file() || now.time_s - writing.changed >= still_s;
            let is_open = || !now.is_last && writers().iter().any(|file| file.starts_with(&checkpoint.path));
            if is_final && checkpoint.state() == State::Complete && !is_open() {
                known.writing = None;
                // As it was when it was found complete: its last file may have come since the folder was read.
                known.listing = checkpoint.listing();
                known.step = writing.step;
                saved.push((checkpoint, writing));
            } else if now.is_last {
                known.writing = None;
            }
        }
        saved.into_iter().map(|(checkpoint, writing)| self.account(checkpoint, writing)).collect()
    }
}

impl Known {
    /// Takes in what its files are now.
    fn take_in(&mut self, listing: Listing, is_new: bool, now: Look) {
        if self.listing == listing && !is_new {
            return;
        }
        self.is_going = !is_new && listing.is_rest_of(&self.listing);
        self.listing = listing;
        if self.is_going {
            self.writing = None;
        } else {
            let begun = Writing { since: now.time_s, step: now.step, changed: now.time_s, is_new };
            self.writing.get_or_insert(begun).changed = now.time_s;
        }
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

//! Watches a folder for checkpoints: when one is begun, when it is complete, and what saving it cost.
//!
//! A checkpoint is complete when its files say so, they have stopped changing, and no process of the tree has one of them open
//! for writing. Saving costs a few milliseconds of looking, so a folder is looked at a few times a second at most.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::checkpoint::{Checkpoint, State, find};

/// Time between two looks, in seconds.
const PAUSE_S: f64 = 0.1;
/// Files that have not changed for this long are taken as final, in seconds.
const STILL_S: f64 = 0.3;

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
    /// Being written: since when, last change, memory before and the most meanwhile.
    writing: Option<Writing>,
}

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
    looked_at: f64,
    held: u64,
}

impl Saves {
    /// Begins to watch; what is there already is not news.
    pub fn of(folder: &Path) -> Saves {
        let known = find(folder).unwrap_or_default().into_iter().map(|checkpoint| {
            let fingerprint = checkpoint.fingerprint();
            (checkpoint.path, Known { fingerprint, writing: None })
        });
        Saves { folder: folder.to_path_buf(), known: known.collect(), looked_at: f64::NEG_INFINITY, held: 0 }
    }

    /// Whether a checkpoint is being written.
    pub fn is_saving(&self) -> bool {
        self.known.values().any(|known| known.writing.is_some())
    }

    /// Looks at the folder and says which checkpoints have become complete; `writers` lists the files that the tree has open for writing, and is only asked when it matters.
    pub fn look(&mut self, time_s: f64, held: u64, writers: impl Fn() -> Vec<PathBuf>) -> Vec<Saved> {
        for writing in self.known.values_mut().filter_map(|known| known.writing.as_mut()) {
            writing.held_most = writing.held_most.max(held);
        }
        if time_s - self.looked_at < PAUSE_S {
            return Vec::new();
        }
        self.looked_at = time_s;
        // The folder may not be there yet.
        let found = find(&self.folder).unwrap_or_default();
        self.known.retain(|path, _| found.iter().any(|checkpoint| checkpoint.path == *path));
        let held_before = std::mem::replace(&mut self.held, held);
        let mut saved = Vec::new();
        for checkpoint in found {
            let fingerprint = checkpoint.fingerprint();
            let is_new = !self.known.contains_key(&checkpoint.path);
            let known = self.known.entry(checkpoint.path.clone()).or_insert(Known { fingerprint, writing: None });
            if is_new || known.fingerprint != fingerprint {
                known.fingerprint = fingerprint;
                match &mut known.writing {
                    Some(writing) => writing.changed = time_s,
                    None => {
                        let held_most = held;
                        known.writing = Some(Writing { since: time_s, changed: time_s, held_before, held_most });
                    }
                }
                continue;
            }
            let Some(writing) = known.writing else { continue };
            let is_open = || writers().iter().any(|file| file.starts_with(&checkpoint.path));
            if time_s - writing.changed >= STILL_S && checkpoint.state() == State::Complete && !is_open() {
                known.writing = None;
                saved.push(Saved {
                    checkpoint,
                    seconds: writing.changed - writing.since + PAUSE_S,
                    bytes: writing.held_most.saturating_sub(writing.held_before),
                });
            }
        }
        saved
    }
}

//! Tells from the file system alone which training checkpoints of a folder are complete.
//!
//! The layout of Hugging Face's `Trainer` is known best: `checkpoint-N/`, where N is the optimizer step. Most of its versions
//! write straight into that folder: first the weights, then optimizer, scheduler and random states, and
//! `trainer_state.json` last, also with `save_only_model`; so a program that is killed while it saves leaves a folder that
//! has the right name and lacks files. Other folders and files are recognised by a number beside `checkpoint`, `ckpt`, `step`
//! or `epoch` in their name, and are judged by the same checks as far as these apply.
//!
//! The idea: nearly every format says how long it is, either at its start (safetensors) or at its end (zip, which PyTorch
//! writes; JSON). So what is missing shows without reading the weights: a file of weights costs a few kilobytes of reads, plus
//! its header if it is a safetensors file (about 100 bytes for each tensor), and only JSON files are read whole, as a stream.
//!
//! Only what is proven counts as damage: a file that ends too soon, an index that names what is not there. A file that a known
//! writer would still write makes a checkpoint unfinished. Every other layout is somebody's own and is taken as it is: whether
//! it can be resumed from only its program knows.
//!
//! Left out: whether somebody still writes (compare two listings), whether the numbers inside are right, and whether a
//! pickle or any other format that does not state its length was cut.

mod contents;
mod entries;
mod json;
mod layout;
mod name;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use entries::Entries;
use name::Kind;

/// A checkpoint found on disk: a folder, or one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Where it is.
    pub path: PathBuf,
    /// The step in its name; the epoch, if the name only says that.
    pub step: Option<u64>,
    /// When the folder or file itself was last changed.
    pub modified: SystemTime,
}

/// Whether a checkpoint can be resumed from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing that can be seen is missing.
    Complete,
    /// It cannot be used, for this reason.
    Flawed(Flaw),
}

/// What is wrong with a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Its writer is known and would still write something, or it cannot be read.
    Unfinished(String),
    /// A file of it was cut, or an index names what is not there: nobody can use it.
    Damaged(String),
}

impl Flaw {
    /// What it is, in words; it names the file.
    pub fn words(&self) -> &str {
        match self {
            Flaw::Unfinished(why) | Flaw::Damaged(why) => why,
        }
    }
}

/// All checkpoints of a folder, newest first: by step, then by modification time; those without a step come last.
///
/// Drafts, which become a checkpoint by being renamed (`tmp-checkpoint-N`, `.checkpoint-N.tmp`), are left out.
pub fn find(folder: &Path) -> io::Result<Vec<Checkpoint>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        // A link that points nowhere is still called a checkpoint, a torn one; what has just been deleted is not.
        let Ok(metadata) = fs::metadata(&path).or_else(|_| fs::symlink_metadata(&path)) else { continue };
        let kind = if metadata.is_file() { Kind::File } else { Kind::Folder };
        if let Some(step) = path.file_name().and_then(|name| name::recognise(name, kind)) {
            let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            found.push(Checkpoint { path, step: step.number(), modified });
        }
    }
    found.sort_by(|a, b| Reverse((a.step, a.modified, &a.path)).cmp(&Reverse((b.step, b.modified, &b.path))));
    Ok(found)
}

/// What to resume from, and what was passed over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Newest {
    /// The newest checkpoint that is complete.
    pub complete: Option<Checkpoint>,
    /// Those that are newer and cannot be used, newest first.
    pub flawed: Vec<(Checkpoint, Flaw)>,
}

impl Newest {
    /// Looks at checkpoints in this order, up to the first complete one.
    pub fn of(checkpoints: impl IntoIterator<Item = Checkpoint>) -> Newest {
        let mut flawed = Vec::new();
        for checkpoint in checkpoints {
            match checkpoint.state() {
                State::Complete => return Newest { complete: Some(checkpoint), flawed },
                State::Flawed(flaw) => flawed.push((checkpoint, flaw)),
            }
        }
        Newest { complete: None, flawed }
    }
}

impl Checkpoint {
    /// Looks at its files now; whether anybody still writes is not known here.
    pub fn state(&self) -> State {
        layout::check(&self.path, &Entries::of(&self.path)).map_or_else(State::Flawed, |()| State::Complete)
    }

    /// Whether nothing more is to come once its files are whole: the file is there that its writer writes last, or it is a
    /// single file of a format that says where it ends.
    pub fn has_last_file(&self) -> bool {
        if self.path.is_dir() {
            return self.path.join(layout::TRAINER_STATE).is_file();
        }
        let is_safetensors = self.path.extension().is_some_and(|extension| extension == "safetensors");
        let mut start = [0; 2];
        let read = fs::File::open(&self.path).and_then(|mut file| io::Read::read_exact(&mut file, &mut start));
        is_safetensors || (read.is_ok() && start == *b"PK")
    }

    /// When its first file was made and its last one written, as far as the file system knows.
    pub fn written(&self) -> Option<(SystemTime, SystemTime)> {
        let files = Entries::of(&self.path).files;
        let first = files.iter().filter_map(|file| file.created.or(file.modified)).min()?;
        let last = files.iter().filter_map(|file| file.modified).max()?;
        Some((first.min(last), last))
    }

    /// Its files as they are now, to see whether they still change.
    pub fn listing(&self) -> Listing {
        let entries = Entries::of(&self.path);
        let files = entries.files.into_iter().map(|file| (file.name, (file.bytes, file.modified))).collect();
        let failures = entries.failures.into_iter().map(|failure| failure.name);
        Listing { files, others: entries.folders.into_iter().chain(failures).collect() }
    }

    /// The size of all its files, in bytes.
    pub fn size(&self) -> u64 {
        Entries::of(&self.path).files.iter().map(|file| file.bytes).sum()
    }
}

/// The files of a checkpoint at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Size and time of each file.
    files: BTreeMap<PathBuf, (u64, Option<SystemTime>)>,
    /// Folders, and what cannot be looked at.
    others: BTreeSet<PathBuf>,
}

impl Listing {
    /// Whether it is what is left of an earlier one after files were removed; drafts come and go.
    pub fn is_rest_of(&self, earlier: &Listing) -> bool {
        let has_lost = |name: &PathBuf| !self.files.contains_key(name) && !layout::has_draft_name(name);
        self.files.iter().all(|(name, file)| earlier.files.get(name) == Some(file))
            && earlier.files.keys().any(has_lost)
    }
}

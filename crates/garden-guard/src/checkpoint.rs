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
//! Left out: whether somebody still writes (compare two fingerprints), whether the numbers inside are right, and whether a
//! pickle or any other format that does not state its length was cut.

mod contents;
mod entries;
mod json;
mod layout;
mod name;

use std::cmp::Reverse;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
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
    /// Something is missing or was cut.
    Torn {
        /// What, in words; it names the file.
        why: String,
    },
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
    /// Those that are newer and torn, newest first, each with the reason in words.
    pub torn: Vec<(Checkpoint, String)>,
}

impl Newest {
    /// Looks at checkpoints in this order, up to the first complete one.
    pub fn of(checkpoints: impl IntoIterator<Item = Checkpoint>) -> Newest {
        let mut torn = Vec::new();
        for checkpoint in checkpoints {
            match checkpoint.state() {
                State::Complete => return Newest { complete: Some(checkpoint), torn },
                State::Torn { why } => torn.push((checkpoint, why)),
            }
        }
        Newest { complete: None, torn }
    }
}

impl Checkpoint {
    /// Looks at its files now; whether anybody still writes is not known here.
    ///
    /// What may not be read is torn as well: a program could not resume from it either.
    pub fn state(&self) -> State {
        match layout::check(&self.path, &Entries::of(&self.path)) {
            Ok(()) => State::Complete,
            Err(why) => State::Torn { why },
        }
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

    /// A fingerprint of names, sizes and modification times, to see whether it still changes.
    ///
    /// It means something only beside another one from the same run of this program.
    pub fn fingerprint(&self) -> u64 {
        let entries = Entries::of(&self.path);
        let mut hasher = DefaultHasher::new();
        for file in &entries.files {
            (&file.name, file.bytes, file.modified).hash(&mut hasher);
        }
        entries.folders.hash(&mut hasher);
        for failure in &entries.failures {
            failure.name.hash(&mut hasher);
        }
        hasher.finish()
    }

    /// The size of all its files, in bytes.
    pub fn size(&self) -> u64 {
        Entries::of(&self.path).files.iter().map(|file| file.bytes).sum()
    }
}

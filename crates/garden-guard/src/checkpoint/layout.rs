//! Whether a checkpoint has all the files that belong together.
//!
//! Each rule follows from the order in which a known program writes, or from what a format needs to be read. What belongs
//! together in a layout that is not known here, only its program can tell.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;

use super::Flaw;
use super::contents;
use super::entries::{Entries, FileEntry};
use super::json;
use super::name::{extension, is_draft, trainer_step};

/// Hugging Face's `Trainer` writes this file last, whatever else it writes.
pub const TRAINER_STATE: &str = "trainer_state.json";

/// The `Trainer` writes this file just after the weights, and nobody else has a reason to.
const TRAINING_ARGUMENTS: &str = "training_args.bin";

/// What files and folders are called that hold something other than weights, by the start of their names.
const NO_WEIGHTS: [&str; 7] =
    ["optimizer", "scheduler", "scaler", "rng_state", "random_states", "sampler", "training_args"];

/// Longest text that DeepSpeed's `latest`, which holds the name of a folder, is read to.
const LONGEST_NAME: u64 = 4096;

/// What is wrong with a checkpoint; damage before anything else.
pub fn check(checkpoint: &Path, entries: &Entries) -> Result<(), Flaw> {
    let mut unreadable = None;
    for file in entries.files.iter().filter(|file| !has_draft_name(&file.name)) {
        match contents::check(file) {
            Err(Flaw::Unfinished(why)) => unreadable = unreadable.or(Some((file.name.as_path(), why))),
            Err(Flaw::Damaged(why)) => return Err(Flaw::Damaged(format!("`{}` {why}", file.name.display()))),
            Ok(()) => {}
        }
    }
    let folders: Vec<Folder> = entries.folders.iter().map(|name| Folder::of(checkpoint, entries, name)).collect();
    folders.iter().try_for_each(Folder::check_names).map_err(Flaw::Damaged)?;
    let unread =
        entries.failures.iter().map(|failure| (failure.name.as_path(), format!("cannot be read: {}", failure.error)));
    if let Some((name, why)) = unread.chain(unreadable).next() {
        return Err(Flaw::Unfinished(match name.as_os_str().is_empty() {
            true => format!("the folder {why}"),
            false => format!("`{}` {why}", name.display()),
        }));
    }
    check_finished(checkpoint, entries, &folders).map_err(Flaw::Unfinished)
}

/// Whether nothing more is to come, as far as the writer is known.
fn check_finished(checkpoint: &Path, entries: &Entries, folders: &[Folder]) -> Result<(), String> {
    if entries.files.is_empty() {
        return Err("it contains no files".into());
    }
    check_drafts(entries)?;
    folders.iter().try_for_each(Folder::check_finished)?;
    if folders.is_empty() { Ok(()) } else { check_whole(checkpoint, entries) }
}

/// Nothing may be half written. A program that is killed leaves its drafts behind, though, and saves into the same folder when
/// it comes to that step again: what is older than the file that is written last does not count.
fn check_drafts(entries: &Entries) -> Result<(), String> {
    let last = entries.files.iter().find(|file| file.name == Path::new(TRAINER_STATE)).and_then(|file| file.modified);
    let is_left_over = |file: &FileEntry| last.is_some() && file.modified <= last;
    let files = entries.files.iter().filter(|file| !is_left_over(file)).map(|file| &file.name);
    match entries.folders.iter().chain(files).find(|name| has_draft_name(name)) {
        Some(name) => Err(format!("`{}` is a draft that is still being written", name.display())),
        None => Ok(()),
    }
}

/// Whether a file's name says that it is not finished.
pub fn has_draft_name(path: &Path) -> bool {
    path.file_name().is_some_and(|name| is_draft(&name.to_string_lossy()))
}

/// The rules for the checkpoint as a whole.
fn check_whole(checkpoint: &Path, entries: &Entries) -> Result<(), String> {
    let holds_state = |file: &FileEntry| file.name.file_name().is_some_and(contents::holds_state);
    if !entries.files.iter().any(holds_state) {
        return Err("it contains no weights or state".into());
    }
    // The rules that follow are those of the trainer itself; others who write some of its files have their own.
    let top = Folder::of(checkpoint, entries, Path::new(""));
    let Some(step) = checkpoint.file_name().and_then(trainer_step).filter(|_| top.has(TRAINING_ARGUMENTS)) else {
        return Ok(());
    };
    top.need(TRAINER_STATE, top.has(TRAINER_STATE), "which the trainer writes last")?;
    check_step(&checkpoint.join(TRAINER_STATE), step)?;
    let is_other = |name: &str| NO_WEIGHTS.iter().any(|start| name.starts_with(start));
    let has_weights = |file: &FileEntry| contents::has_weights(&file.name) && !is_other(&file.name.to_string_lossy());
    if !entries.files.iter().any(has_weights) {
        return Err("it contains no weights".into());
    }
    // The trainer starts with a fresh optimizer, without a word, if one of the two is missing. DeepSpeed and FSDP have other
    // names for them.
    let saved = top.has("scheduler.pt") || top.any("rng_state");
    let optimizer = top.any("optimizer") || top.any("global_step") || top.any("rank");
    top.need("optimizer.pt", !saved || optimizer, "although the training state was saved")?;
    top.need("scheduler.pt", !top.has("optimizer.pt") || top.has("scheduler.pt"), "although `optimizer.pt` was saved")
}

/// Compares the step in the trainer's state with that in the folder's name.
fn check_step(path: &Path, step: u64) -> Result<(), String> {
    #[derive(Deserialize)]
    struct TrainerState {
        global_step: u64,
    }
    match json::read::<TrainerState>(path) {
        Some(state) if state.global_step != step => {
            Err(format!("`{TRAINER_STATE}` is from step {}, not {step}", state.global_step))
        }
        _ => Ok(()),
    }
}

/// One folder of a checkpoint; names that are not UTF-8 are shown with replacement characters.
struct Folder<'a> {
    /// Its path below the checkpoint.
    name: &'a Path,
    /// Where the checkpoint is.
    checkpoint: &'a Path,
    files: BTreeSet<String>,
    folders: BTreeSet<String>,
}

impl<'a> Folder<'a> {
    fn of(checkpoint: &'a Path, entries: &Entries, name: &'a Path) -> Folder<'a> {
        let here = |path: &&Path| path.parent() == Some(name);
        let last = |path: &Path| path.file_name().map(OsStr::to_string_lossy).unwrap_or_default().into_owned();
        let files = entries.files.iter().map(|file| file.name.as_path()).filter(here).map(last).collect();
        let folders = entries.folders.iter().map(|folder| folder.as_path()).filter(here).map(last).collect();
        Folder { name, checkpoint, files, folders }
    }

    fn has(&self, file: &str) -> bool {
        self.files.contains(file)
    }

    /// Whether anything here has a name that begins like this.
    fn any(&self, start: &str) -> bool {
        self.files.iter().chain(&self.folders).any(|name| name.starts_with(start))
    }

    fn any_ending(&self, end: &str) -> bool {
        self.files.iter().any(|name| extension(name) == end)
    }

    fn need(&self, file: &str, is_there: bool, remark: &str) -> Result<(), String> {
        if is_there { Ok(()) } else { Err(format!("`{}` is missing, {remark}", self.name.join(file).display())) }
    }

    /// Whether all is there that an index or a numbered name says must be there.
    fn check_names(&self) -> Result<(), String> {
        self.check_indexes()?;
        self.check_shards()?;
        let is_named = self.has(".metadata");
        self.need("__0_0.distcp", self.any_ending("distcp") || !is_named, "although `.metadata` exists")?;
        self.check_latest()
    }

    /// Whether the files are there that are written after others.
    fn check_finished(&self) -> Result<(), String> {
        // PyTorch's distributed checkpoints: each process writes its share, then one writes what lies where.
        let is_named = self.has(".metadata") || !self.any_ending("distcp");
        self.need(".metadata", is_named, "which is written after the `*.distcp` files")?;
        self.need("latest", self.has("latest") || !self.is_deepspeed(), "which DeepSpeed writes last")
    }

    fn is_deepspeed(&self) -> bool {
        self.folders.iter().any(|name| name.starts_with("global_step"))
    }

    /// Every shard that an index names must be there.
    fn check_indexes(&self) -> Result<(), String> {
        #[derive(Deserialize)]
        struct Index {
            weight_map: BTreeMap<String, String>,
        }
        for index in self.files.iter().filter(|name| name.ends_with(".index.json")) {
            let path = self.checkpoint.join(self.name).join(index);
            for shard in json::read::<Index>(&path).into_iter().flat_map(|index| index.weight_map.into_values()) {
                self.need(&shard, self.has(&shard), &format!("although `{index}` names it"))?;
            }
        }
        Ok(())
    }

    /// Of `model-00001-of-00003.safetensors` there must be three; some programs count from zero.
    fn check_shards(&self) -> Result<(), String> {
        let mut sets: BTreeMap<(&str, &str, &str), BTreeSet<u64>> = BTreeMap::new();
        for shard in self.files.iter().filter_map(|name| Shard::parse(name)) {
            sets.entry((shard.stem, shard.count, shard.ending)).or_default().insert(shard.number);
        }
        for ((stem, count, ending), numbers) in sets {
            let first = u64::from(!numbers.contains(&0));
            let Ok(shards) = count.parse::<u64>() else { continue };
            if let Some(missing) = (first..first.saturating_add(shards)).find(|number| !numbers.contains(number)) {
                let name = format!("{stem}-{missing:0width$}-of-{count}{ending}", width = count.len());
                self.need(&name, false, "although other shards exist")?;
            }
        }
        Ok(())
    }

    /// DeepSpeed saves into a folder for the step, and writes that folder's name into `latest` when all processes are done.
    fn check_latest(&self) -> Result<(), String> {
        if !self.is_deepspeed() || !self.has("latest") {
            return Ok(());
        }
        let mut text = String::new();
        let path = self.checkpoint.join(self.name).join("latest");
        let read = File::open(path).and_then(|file| file.take(LONGEST_NAME).read_to_string(&mut text));
        // What cannot be read was told already.
        let is_there = read.is_err() || self.folders.contains(text.trim());
        self.need(text.trim(), is_there, "although `latest` names it")
    }
}

/// The parts of `model-00001-of-00003.safetensors`.
struct Shard<'a> {
    stem: &'a str,
    number: u64,
    count: &'a str,
    ending: &'a str,
}

impl Shard<'_> {
    fn parse(name: &str) -> Option<Shard<'_>> {
        let (before, after) = name.rsplit_once("-of-")?;
        let (stem, number) = before.rsplit_once('-')?;
        let digits = after.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(after.len());
        let (count, ending) = after.split_at(digits);
        // Five digits each; `epoch-3-of-10.pt` is not the third shard of ten.
        let is_shard = count.len() >= 5 && number.len() == count.len();
        is_shard.then_some(Shard { stem, number: number.parse().ok()?, count, ending })
    }
}

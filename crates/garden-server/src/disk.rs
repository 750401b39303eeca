//! The server's folder.
//!
//! ```text
//! garden-server.json   says that the folder is ours, and of which format
//! garden.db            what is known (see store.rs)
//! numbers.json         how many changes the database had seen last: an older one in its place has seen fewer
//! allowance            bytes that jobs may still write (see garden_files::Allowance)
//! lock                 held by the server that uses the folder
//! incoming/            files that are not there yet; ours are removed at the start
//! files/               files of clients and results, by their names here
//! parts/               parts of uploads
//! jobs/                a folder for each job (see job.rs)
//! unknown/             what nobody knew of, moved aside on request
//! reserve              some bytes that are given up where the disk is full and something is to be deleted
//! ```
//!
//! A file becomes visible by a rename, and known after that. So a kill leaves at most a file that nobody knows of. Such a file is named at the next start and left, because
//! it looks like one whose record was lost with the database. A folder that is not ours is not touched at all.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use garden_files::folder_bytes;
use garden_run::GUARD;
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use serde::{Deserialize, Serialize};

use crate::id::{is_id, new_id};
use crate::job::JobFolder;
use crate::store::{FileRecord, Store, StoreError};

/// How long the folder's lock is waited for, and how often it is tried.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(20);
/// How names of files may end on our disk: what the reader of datasets knows, and what results are.
const EXTENSIONS: [&str; 6] = ["jsonl", "json", "parquet", "tar", "csv", "bin"];

/// Our own folders in it.
const FOLDERS: [&str; 4] = ["incoming", "files", "parts", "jobs"];
/// How folders of jobs that are being deleted begin, before the jobs' names.
const GONE: &str = "gone-";
/// How folders of rows that are looked at on request begin.
pub(crate) const LOOK: &str = "check-";
/// The file that says that a folder is ours.
pub(crate) const MARKER: &str = "garden-server.json";
/// The file that says how many changes the database has seen.
const NUMBERS: &str = "numbers.json";
/// The format of the folder.
const FORMAT: u32 = 1;
/// A file whose space is given up where a full disk would not even let things be deleted, and its length.
const RESERVE: &str = "reserve";
const RESERVE_BYTES: u64 = 2 << 20;
/// What is given up of it at once.
const SLICE: u64 = 128 << 10;
/// Free bytes under which nothing is taken any more: what is left is for what makes room.
pub(crate) const LEAST_FREE: u64 = 1 << 20;
/// How folders of backups that are under way begin.
pub(crate) const BACKUP: &str = "backup-";
/// What file systems put into a folder that is empty.
const OF_THE_SYSTEM: &str = "lost+found";

/// What the marker says.
#[derive(Debug, Serialize, Deserialize)]
struct Marker {
    what: String,
    format: u32,
}

/// What is said of the database outside of it.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Numbers {
    changes: u64,
}

/// Why a folder cannot be taken.
#[derive(Debug)]
pub enum FolderError {
    /// The system says so.
    Io(io::Error),
    /// Another server has it.
    InUse,
    /// Its file system, or those of the folders in it, cannot give a file a second name.
    NoLinks(io::Error),
    /// Nothing is in it.
    Empty,
    /// It holds something, and nothing says that it is a server's: some of what it holds.
    Foreign(Vec<String>),
    /// It has our folders and no marker, as those of 0.1.0, and no database of ours beside them.
    NoDatabase,
    /// A newer version of this program wrote it, of this format.
    Newer(u32),
    /// Its database knows less than the folder holds: an older or an empty one is in its place.
    KnowsLess {
        /// What it does not know.
        unknown: Vec<String>,
        /// Changes that were made after it was written, as far as that is known.
        later: u64,
    },
}

impl From<io::Error> for FolderError {
    fn from(error: io::Error) -> FolderError {
        FolderError::Io(error)
    }
}

/// What a folder is before it is taken.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// A server's, or nothing, and nothing says so yet.
    Unmarked,
    /// A server's.
    Marked,
}

/// The folder, which is ours for as long as this lives.
#[derive(Debug)]
pub(crate) struct Disk {
    root: PathBuf,
    _lock: File,
}

impl Disk {
    /// Takes a folder that is ours, or empty. Of any other nothing is changed.
    pub fn take(root: &Path) -> Result<Disk, FolderError> {
        let found = look(root)?;
        fs::create_dir_all(root)?;
        // First of all, so that a start that fails half-way leaves a folder that is ours.
        if found == Found::Unmarked {
            mark(root)?;
        }
        for folder in FOLDERS {
            fs::create_dir_all(root.join(folder))?;
        }
        // Rows, results and the database are nobody else's business.
        fs::set_permissions(root, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
        let lock = File::options().write(true).create(true).truncate(false).open(root.join("lock"))?;
        // A server that was killed while it started a process may live on in that for a moment.
        let deadline = Instant::now() + PATIENCE;
        while flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            if Instant::now() >= deadline {
                return Err(FolderError::InUse);
            }
            std::thread::sleep(PAUSE);
        }
        let disk = Disk { root: root.canonicalize()?, _lock: lock };
        disk.check_links().map_err(FolderError::NoLinks)?;
        Ok(disk)
    }

    /// Whether a file can have a name in each of our folders: rows of jobs are second names of files, and what comes in is renamed. A folder that leads to another disk, and
    /// file systems without hard links, would refuse every job.
    fn check_links(&self) -> io::Result<()> {
        let lock = self.root.join("lock");
        // By names that are removed at a start.
        let second = [self.incoming(&new_id("link-")), self.job(&new_id(LOOK)).0];
        for path in second {
            match fs::hard_link(&lock, &path) {
                Ok(()) => fs::remove_file(path)?,
                // A disk that is full takes no name now.
                Err(error) if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {}
                Err(error) => return Err(error),
            }
        }
        let device = fs::metadata(&lock)?.dev();
        let is_elsewhere = |name: &&str| fs::metadata(self.root.join(name)).map_or(true, |found| found.dev() != device);
        match FOLDERS.iter().any(is_elsewhere) {
            true => Err(ErrorKind::CrossesDevices.into()),
            false => Ok(()),
        }
    }

    /// Removes what a killed server was about to take or to throw away, and rows that it looked at. Nobody was told that they are there.
    pub fn clear(&self) -> io::Result<()> {
        let (incoming, jobs) = (self.root.join("incoming"), self.root.join("jobs"));
        // What cannot be removed now is no reason not to start.
        for name in names(&incoming)?.iter().filter(|name| is_id(text_of(name))) {
            remove_any(&incoming.join(name));
        }
        for name in names(&jobs)?.iter().filter(|name| is_look(text_of(name)) || gone(text_of(name)).is_some()) {
            remove_any(&jobs.join(name));
        }
        self.clear_backups();
        self.keep_reserve();
        Ok(())
    }

    /// Names of files and of jobs that were being deleted when the server was killed.
    pub fn half_deleted(&self) -> io::Result<(Vec<String>, Vec<String>)> {
        let files = names(&self.root.join("incoming"))?;
        let jobs = names(&self.root.join("jobs"))?;
        let files = files.iter().map(|name| text_of(name)).filter(|name| is_id(name)).map(str::to_string).collect();
        Ok((files, jobs.iter().filter_map(|name| gone(text_of(name))).map(str::to_string).collect()))
    }

    /// Removes what backups that were interrupted have left: second names of everything.
    pub fn clear_backups(&self) {
        let all = names(&self.root).unwrap_or_default();
        let backups = all.iter().map(|name| text_of(name)).filter(|name| name.starts_with(BACKUP) && is_id(name));
        for folder in backups.map(|name| self.root.join(name)) {
            let is_held = File::open(&folder)
                .is_ok_and(|folder| flock(&folder, FlockOperation::NonBlockingLockExclusive).is_err());
            if !is_held {
                drop(fs::remove_dir_all(folder));
            }
        }
    }

    /// Puts a file out of sight, where the next start removes it; where it is then.
    pub fn put_away(&self, file: &FileRecord) -> Option<PathBuf> {
        let away = self.incoming(&file.id);
        fs::rename(self.file(file), &away).ok().map(|()| away)
    }

    /// Puts it back.
    pub fn put_back(&self, file: &FileRecord, away: Option<&Path>) {
        if let Some(away) = away {
            drop(fs::rename(away, self.file(file)));
        }
    }

    /// Puts a job's folder out of sight, where the next start finds it and goes on with deleting the job; where it is then.
    pub fn put_job_away(&self, id: &str) -> Option<PathBuf> {
        let jobs = self.root.join("jobs");
        let away = jobs.join(format!("{GONE}{id}"));
        fs::rename(self.job(id).0, &away).ok()?;
        // Before the record goes: after a power cut the folder would otherwise be there again, and nobody would know it.
        drop(File::open(jobs).and_then(|jobs| jobs.sync_all()));
        Some(away)
    }

    /// Puts it back.
    pub fn put_job_back(&self, id: &str, away: Option<&Path>) {
        if let Some(away) = away {
            drop(fs::rename(away, self.job(id).0));
        }
    }

    /// Removes what was put away; what cannot be removed now is at the next start. Its space is there for the reserve.
    pub fn remove(&self, away: Option<&Path>) {
        if let Some(away) = away {
            remove_any(away);
        }
        self.keep_reserve();
    }

    /// Removes all of a job but its model and what describes that.
    pub fn trim_job(&self, id: &str) {
        let folder = self.job(id);
        drop(fs::remove_file(folder.log()));
        for name in names(&folder.output()).unwrap_or_default() {
            let (path, name) = (folder.output().join(&name), text_of(&name));
            if name.starts_with("checkpoint-") || name.starts_with("abandoned-") || name == GUARD {
                drop(fs::remove_dir_all(path));
            } else if name.starts_with("trace") || name.starts_with("events.out") || name == garden_train::LOG {
                drop(fs::remove_file(path));
            }
        }
    }

    // Space.

    /// Bytes of the disk that are free for us.
    pub fn free_bytes(&self) -> u64 {
        garden_files::free_bytes(&self.root).unwrap_or(u64::MAX)
    }

    /// Bytes that a job's folder takes by itself: a second name of a file that also has another place counts there.
    pub fn job_bytes(&self, id: &str) -> u64 {
        let folder = self.job(id);
        let linked = [folder.all_rows(), folder.adapter()];
        let shared: u64 = linked.iter().map(|folder| folder_bytes(folder) - own_bytes(folder)).sum();
        folder_bytes(&folder.0).saturating_sub(shared)
    }

    /// Bytes that a job needs before long: one checkpoint more, and one that is being written.
    pub fn checkpoint_bytes(&self, id: &str) -> u64 {
        let output = self.job(id).output();
        crate::follow::newest_step(&output)
            .map_or(0, |step| 2 * folder_bytes(&output.join(format!("checkpoint-{step}"))))
    }

    /// Takes the reserve again, if there is space for it.
    pub fn keep_reserve(&self) {
        let path = self.root.join(RESERVE);
        let length = fs::metadata(&path).map_or(0, |found| found.len());
        if length >= RESERVE_BYTES || self.free_bytes() < 4 * RESERVE_BYTES {
            return;
        }
        let file = File::options().create(true).write(true).truncate(false).open(&path);
        // A file system that cannot set space aside has none to give up, either.
        if !file.is_ok_and(|file| fallocate(&file, FallocateFlags::empty(), 0, RESERVE_BYTES).is_ok()) {
            drop(fs::remove_file(path));
        }
    }

    /// Does what a full disk must not be in the way of: the reserve is given up for it, piece by piece.
    pub fn even_if_full<T>(&self, mut work: impl FnMut() -> Result<T, StoreError>) -> Result<T, StoreError> {
        loop {
            match work() {
                Err(error) if error.is_disk_full() && self.give_reserve() => {}
                done => return done,
            }
        }
    }

    /// Gives a piece of the reserve up; whether there was one.
    pub fn give_reserve(&self) -> bool {
        let Ok(file) = File::options().write(true).open(self.root.join(RESERVE)) else { return false };
        let length = file.metadata().map_or(0, |found| found.len());
        length > 0 && file.set_len(length.saturating_sub(SLICE)).is_ok()
    }

    /// Says how many changes the database has seen. They have to be sure by then: a healthy database that had seen fewer would be refused.
    pub fn note_changes(&self, changes: u64) -> io::Result<()> {
        let text = serde_json::to_string(&Numbers { changes }).map_err(io::Error::other)? + "\n";
        garden_files::replace(&self.root.join(NUMBERS), text)
    }

    /// How many changes the database had seen last; none in a folder of an earlier version, and in one that was restored.
    pub fn changes(&self) -> u64 {
        let text = garden_files::read_settings(&self.root.join(NUMBERS)).ok();
        let numbers: Numbers = text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        numbers.changes
    }

    /// What jobs may still write.
    pub fn allowance(&self) -> PathBuf {
        self.root.join("allowance")
    }

    pub fn database(&self) -> PathBuf {
        self.root.join("garden.db")
    }

    /// A new file that nobody sees yet. Names here are ours, so they are names of files and nothing else.
    pub fn incoming(&self, id: &str) -> PathBuf {
        self.root.join("incoming").join(id)
    }

    pub fn file(&self, file: &FileRecord) -> PathBuf {
        self.root.join("files").join(format!("{}.{}", file.id, file.extension))
    }

    pub fn part(&self, id: &str) -> PathBuf {
        self.root.join("parts").join(id)
    }

    pub fn job(&self, id: &str) -> JobFolder {
        JobFolder(self.root.join("jobs").join(id))
    }

    /// Removes what a job that is over does not need any more. What cannot be removed now is when the server starts next.
    pub fn forget_rows(&self, id: &str) {
        let folder = self.job(id);
        drop(fs::remove_dir_all(folder.all_rows()));
        drop(fs::remove_dir_all(folder.adapter()));
    }

    /// Makes a file that has come visible under its name, and sure.
    pub fn keep(&self, incoming: &Path, to: &Path) -> io::Result<()> {
        fs::rename(incoming, to)?;
        File::open(to.parent().unwrap_or(&self.root))?.sync_all()
    }

    /// What the folder holds and nobody knows of.
    pub fn unknown(&self, known: impl Fn(Kind, &str) -> bool) -> io::Result<Vec<Unknown>> {
        let mut unknown: Vec<Unknown> = Vec::new();
        for (kind, folder) in [(Kind::File, "files"), (Kind::Part, "parts"), (Kind::Job, "jobs")] {
            let names = names(&self.root.join(folder))?.into_iter();
            let is_passing = |name: &str| is_look(name) || gone(name).is_some();
            let is_known = |name: &str| known(kind, name.split('.').next().unwrap_or_default());
            let of_kind = names.filter(|name| !is_passing(text_of(name)) && !is_known(text_of(name)));
            unknown.extend(of_kind.map(|name| Unknown { kind, place: Path::new(folder).join(name) }));
        }
        unknown.sort_by(|a, b| a.place.cmp(&b.place));
        Ok(unknown)
    }

    /// Whether a job that nobody knows of has worked, which it does only once it is known: its record is lost.
    pub fn has_worked(&self, unknown: &Unknown) -> bool {
        let folder = self.root.join(&unknown.place);
        let has_results = names(&folder.join("out")).is_ok_and(|names| !names.is_empty());
        unknown.kind == Kind::Job && (has_results || folder.join("outcome.json").exists())
    }

    /// Moves what nobody knows of aside; returns the folder where it is then.
    pub fn set_aside(&self, unknown: &[Unknown]) -> io::Result<PathBuf> {
        let seconds = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
        let aside = self.root.join("unknown").join(seconds.to_string());
        for thing in unknown {
            let to = aside.join(&thing.place);
            fs::create_dir_all(to.parent().unwrap_or(&aside))?;
            fs::rename(self.root.join(&thing.place), to)?;
        }
        Ok(aside)
    }
}

/// Whether a folder is a server's; what it is instead is an error. Nothing is changed.
pub(crate) fn check_ours(root: &Path) -> Result<(), FolderError> {
    match look(root)? {
        Found::Marked => Ok(()),
        Found::Unmarked if root.join("garden.db").is_file() => Ok(()),
        Found::Unmarked => Err(FolderError::Empty),
    }
}

/// Says that a folder is a server's.
pub(crate) fn mark(root: &Path) -> io::Result<()> {
    garden_files::replace(&root.join(MARKER), marker()?)
}

/// What the marker of this version says.
pub(crate) fn marker() -> io::Result<String> {
    let marker = Marker { what: "data of model-garden serve".into(), format: FORMAT };
    Ok(serde_json::to_string(&marker).map_err(io::Error::other)? + "\n")
}

/// Whether what a marker says is of this version or an earlier one.
pub(crate) fn check_marker(text: &[u8]) -> Result<(), FolderError> {
    let marker: Marker = serde_json::from_slice(text)
        .map_err(|error| io::Error::new(ErrorKind::InvalidData, format!("its `{MARKER}` cannot be read: {error}")))?;
    if marker.format > FORMAT { Err(FolderError::Newer(marker.format)) } else { Ok(()) }
}

/// What a folder is, without changing anything.
fn look(root: &Path) -> Result<Found, FolderError> {
    let held = match names(root) {
        Err(error) if error.kind() == ErrorKind::NotFound && fs::symlink_metadata(root).is_ok() => {
            return Err(io::Error::new(ErrorKind::NotFound, "it is a link to nothing").into());
        }
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Found::Unmarked),
        held => held?,
    };
    match fs::read(root.join(MARKER)) {
        Ok(text) => {
            return check_marker(&text).map(|()| Found::Marked);
        }
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
        Err(_) => {}
    }
    // Versions before 0.2 left no marker, but always a database.
    if Store::is_at(&root.join("garden.db")) {
        return Ok(Found::Unmarked);
    }
    // One of 0.1.0 was copied without its database, or without the journal in which that may be still.
    if ["lock"].iter().chain(&FOLDERS).all(|name| held.iter().any(|held| held == name)) {
        return Err(FolderError::NoDatabase);
    }
    let foreign: Vec<String> =
        held.iter().filter(|name| *name != OF_THE_SYSTEM).map(|name| shown(Path::new(name))).collect();
    if foreign.is_empty() { Ok(Found::Unmarked) } else { Err(FolderError::Foreign(foreign)) }
}

/// Bytes of files in a folder that have no other name. What changes while it is looked at counts or not.
fn own_bytes(folder: &Path) -> u64 {
    let mut sum = 0;
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(found) = entry.metadata() else { continue };
        if found.is_dir() {
            sum += own_bytes(&entry.path());
        } else if found.is_file() && found.nlink() == 1 {
            sum += found.len();
        }
    }
    sum
}

/// Whether a folder under `jobs/` is of rows that were looked at on request, not of a job.
fn is_look(name: &str) -> bool {
    name.starts_with(LOOK) && is_id(name)
}

/// The job that a folder under `jobs/` was of, if it is being deleted.
fn gone(name: &str) -> Option<&str> {
    name.strip_prefix(GONE).filter(|id| is_id(id))
}

/// The names in a folder, in order.
fn names(folder: &Path) -> io::Result<Vec<OsString>> {
    let mut names = fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

/// A name as a text; nothing if it is none, which no name of ours is.
fn text_of(name: &OsStr) -> &str {
    name.to_str().unwrap_or_default()
}

/// A path for somebody to read: whoever made it may have put anything into its names, also what a terminal obeys.
fn shown(path: &Path) -> String {
    let letters = path.display().to_string();
    letters.chars().map(|letter| if letter.is_control() { char::REPLACEMENT_CHARACTER } else { letter }).collect()
}

/// Removes whatever has this name.
fn remove_any(path: &Path) {
    let is_folder = fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
    drop(if is_folder { fs::remove_dir_all(path) } else { fs::remove_file(path) });
}

/// Something in the folder that nobody knows of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unknown {
    kind: Kind,
    /// From the folder on, such as `jobs/ftjob-1`.
    place: PathBuf,
}

impl Unknown {
    /// Where it is, for somebody to read.
    pub fn shown(&self) -> String {
        shown(&self.place)
    }
}

/// What a file of ours is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Part,
    Job,
}

/// How a file's name ends on our disk. Rows without a name that says more are lines of JSON.
pub(crate) fn extension_of(filename: &str, purpose: &str) -> String {
    let given = filename.rsplit_once('.').map(|(_, end)| end.to_ascii_lowercase());
    let known = given.and_then(|given| EXTENSIONS.iter().find(|known| **known == given));
    let usual = if purpose == "fine-tune" { "jsonl" } else { "bin" };
    known.map_or(usual, |known| *known).to_string()
}

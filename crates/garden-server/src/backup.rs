//! A backup of a server's folder as one tar file, made while the server and its jobs run, and the way back.
//!
//! The database is copied first, as it is at one moment. What it knows then gets second names in a folder beside it, within milliseconds; those are read into the
//! archive while jobs go on, save checkpoints and delete old ones. A file that grows meanwhile is taken as far as it went. So each job's folder is at least as far as
//! its record, which is what the queue brings together at every start. What is of this machine is left out.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use tar::{Archive, Builder, EntryType, Header};

use crate::disk::{BACKUP, FolderError, MARKER, check_marker, check_ours, mark, marker};
use crate::id::new_id;
use crate::job::{DATASETS, MODELS};
use crate::store::{Contents, Store, StoreError};

/// The database in the folder and in the archive.
const DATABASE: &str = "garden.db";
/// Its name until everything else was put back.
const DRAFT: &str = "garden.db.restored";
/// Bytes of the marker that are read at most.
const LONGEST_MARKER: u64 = 4096;
/// What of a job's folder is of this machine: locks, which process holds them, and links to models and datasets.
const OF_THIS_MACHINE: [&str; 8] = [
    "supervisor/lock",
    "supervisor/pid",
    "out/.guard/lock",
    "out/.guard/pid",
    "out/.guard/state.json",
    "out/.lock",
    MODELS,
    DATASETS,
];

/// How often a folder is looked at that changes meanwhile.
const LOOKS: usize = 20;

/// Why a backup cannot be made or put back.
#[derive(Debug)]
pub enum BackupError {
    /// The folder is not a server's, or holds something already.
    Folder(PathBuf, FolderError),
    /// The database cannot be read.
    Database(StoreError),
    /// A file cannot be read or written.
    File(PathBuf, io::Error),
    /// A file became shorter while it was read.
    Changed(PathBuf),
    /// A newer version of this program has made it.
    Newer(u32),
    /// The archive is not one of ours.
    NotABackup(String),
}

impl fmt::Display for BackupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BackupError::Folder(path, error) => {
                let path = path.display();
                match error {
                    FolderError::Foreign(_) => write!(f, "`{path}` holds something already"),
                    FolderError::NoDatabase => write!(f, "`{path}` has no database `garden.db`"),
                    FolderError::Empty => write!(f, "`{path}` is empty: no server has used it"),
                    FolderError::Newer(format) => {
                        write!(f, "`{path}` is of a newer version of model-garden (format {format})")
                    }
                    FolderError::Io(error) => write!(f, "cannot use the folder `{path}`: {error}"),
                    FolderError::InUse | FolderError::NoLinks(_) | FolderError::KnowsLess { .. } => {
                        write!(f, "cannot use the folder `{path}`")
                    }
                }
            }
            BackupError::Database(error) => write!(f, "cannot copy the database: {error}"),
            // Of a reader of archives the last one knows what happened.
            BackupError::File(path, error) => write!(f, "`{}`: {}", path.display(), innermost(error)),
            BackupError::Changed(path) => write!(f, "`{}` became shorter while it was read", path.display()),
            BackupError::Newer(format) => {
                write!(f, "this backup was made by a newer version of model-garden (format {format})")
            }
            BackupError::NotABackup(problem) => write!(f, "this is not a backup of a server: {problem}"),
        }
    }
}

impl std::error::Error for BackupError {}

fn innermost(error: &io::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// How archives begin that were compressed, and what reads them.
const COMPRESSED: [(&[u8], &str); 3] =
    [(b"\x1f\x8b", "zcat"), (b"\x28\xb5\x2f\xfd", "zstdcat"), (b"\xfd7zXZ", "xzcat")];

/// What a backup has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackedUp {
    /// Jobs.
    pub jobs: usize,
    /// Files that clients have sent, and tables of results.
    pub files: usize,
    /// Bytes of all of it.
    pub bytes: u64,
    /// Files that were deleted between the copy of the database and theirs.
    pub missing: usize,
}

/// A folder that goes when this goes.
struct Passing(PathBuf);

impl Drop for Passing {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

fn of_file(path: &Path) -> impl Fn(io::Error) -> BackupError {
    let path = path.to_path_buf();
    move |error| BackupError::File(path.clone(), error)
}

/// Writes a backup of a server's folder.
pub fn backup(root: &Path, out: impl Write) -> Result<BackedUp, BackupError> {
    check_ours(root).map_err(|error| BackupError::Folder(root.to_path_buf(), error))?;
    let passing = Passing(root.join(new_id(BACKUP)));
    fs::create_dir(&passing.0).map_err(of_file(&passing.0))?;
    // Held to our end, whatever ends us: a server removes what nobody holds.
    let held = File::open(&passing.0).map_err(of_file(&passing.0))?;
    flock(&held, FlockOperation::NonBlockingLockShared)
        .map_err(|error| BackupError::File(passing.0.clone(), error.into()))?;
    let contents = Store::copy(&root.join(DATABASE), &passing.0.join(DATABASE)).map_err(BackupError::Database)?;
    let missing = link_all(root, &passing.0, &contents)?;
    let mut backed = BackedUp { jobs: contents.jobs.len(), files: contents.files.len(), bytes: 0, missing };
    let mut archive = Builder::new(out);
    let told = marker().map_err(of_file(Path::new("the archive")))?;
    let mut header = Header::new_gnu();
    header.set_mode(0o600);
    header.set_size(told.len() as u64);
    archive.append_data(&mut header, MARKER, told.as_bytes()).map_err(of_file(Path::new("the archive")))?;
    append_all(&mut archive, &passing.0, Path::new(""), &mut Written { backed: &mut backed, names: HashMap::new() })?;
    let finished = archive.into_inner().and_then(|mut out| out.flush());
    finished.map_err(of_file(Path::new("the archive")))?;
    Ok(backed)
}

/// Gives everything that a database knows a second name; how much of it is gone by now.
fn link_all(root: &Path, to: &Path, contents: &Contents) -> Result<usize, BackupError> {
    let mut missing = 0;
    for (folder, names) in [("files", &contents.files), ("parts", &contents.parts), ("jobs", &contents.jobs)] {
        let (from, to) = (root.join(folder), to.join(folder));
        fs::create_dir_all(&to).map_err(of_file(&to))?;
        for name in names {
            missing += link(&from.join(name), &to.join(name), Path::new(""))?;
        }
    }
    Ok(missing)
}

/// Second names of a file, or of all files of a folder; how many of those are gone.
fn link(from: &Path, to: &Path, within: &Path) -> Result<usize, BackupError> {
    let found = match fs::symlink_metadata(from) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(1),
        found => found.map_err(of_file(from))?,
    };
    if !found.is_dir() {
        let linked = if found.is_file() || found.is_symlink() { fs::hard_link(from, to) } else { return Ok(0) };
        return match linked {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(1),
            linked => linked.map(|()| 0).map_err(of_file(from)),
        };
    }
    fs::create_dir_all(to).map_err(of_file(to))?;
    // Until a look shows nothing new: a checkpoint may have come, and the one before it gone, since the look before.
    let (mut missing, mut seen) = (0, HashSet::new());
    for _ in 0..LOOKS {
        let new: Vec<OsString> = match fs::read_dir(from) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(missing + 1),
            entries => entries
                .and_then(|all| all.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>())
                .map_err(of_file(from))?
                .into_iter()
                .filter(|name| seen.insert(name.clone()))
                .collect(),
        };
        if new.is_empty() {
            break;
        }
        for name in new {
            let within = within.join(&name);
            if !OF_THIS_MACHINE.iter().any(|known| within == Path::new(known)) {
                missing += link(&from.join(&name), &to.join(&name), &within)?;
            }
        }
    }
    Ok(missing)
}

/// What is in the archive.
struct Written<'a> {
    backed: &'a mut BackedUp,
    /// Names of files that have others, by their numbers: rows and adapters of jobs are second names of files and results, and stay that.
    names: HashMap<(u64, u64), PathBuf>,
}

/// Names that a file of one name has here: that one, and the second name that it was given for the archive.
const OWN_NAMES: u64 = 2;

/// Writes all files of a folder to the archive, in the order of their names.
fn append_all(
    archive: &mut Builder<impl Write>,
    root: &Path,
    within: &Path,
    written: &mut Written<'_>,
) -> Result<(), BackupError> {
    let folder = root.join(within);
    let entries = fs::read_dir(&folder).map_err(of_file(&folder))?;
    let names = entries.map(|entry| entry.map(|entry| entry.file_name()));
    let mut names: Vec<_> = names.collect::<io::Result<_>>().map_err(of_file(&folder))?;
    names.sort_unstable();
    for name in names {
        let (path, within) = (folder.join(&name), within.join(&name));
        let found = fs::symlink_metadata(&path).map_err(of_file(&path))?;
        let mut header = Header::new_gnu();
        header.set_metadata(&found);
        if found.is_dir() {
            archive.append_data(&mut header, &within, io::empty()).map_err(of_file(&path))?;
            append_all(archive, root, &within, written)?;
        } else if found.is_symlink() {
            let target = fs::read_link(&path).map_err(of_file(&path))?;
            archive.append_link(&mut header, &within, target).map_err(of_file(&path))?;
        } else if let Some(known) = written.names.get(&(found.dev(), found.ino())) {
            header.set_entry_type(EntryType::Link);
            header.set_size(0);
            archive.append_link(&mut header, &within, known).map_err(of_file(&path))?;
        } else {
            append_file(archive, &path, &within, &mut header)?;
            written.backed.bytes += header.size().unwrap_or(0);
            if found.nlink() > OWN_NAMES {
                written.names.insert((found.dev(), found.ino()), within);
            }
        }
    }
    Ok(())
}

/// Writes a file as far as it goes now: it may grow while it is read.
fn append_file(
    archive: &mut Builder<impl Write>,
    path: &Path,
    within: &Path,
    header: &mut Header,
) -> Result<(), BackupError> {
    let file = File::open(path).map_err(of_file(path))?;
    let length = file.metadata().map_err(of_file(path))?.len();
    header.set_size(length);
    let mut counted = Counted { file: file.take(length), count: 0 };
    archive.append_data(header, within, &mut counted).map_err(of_file(path))?;
    match counted.count == length {
        true => Ok(()),
        false => Err(BackupError::Changed(path.to_path_buf())),
    }
}

/// Counts what is read of a file.
struct Counted {
    file: io::Take<File>,
    count: u64,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.count += count as u64;
        Ok(count)
    }
}

/// The first bytes of an archive, and all of it.
fn begin(mut archive: impl Read) -> io::Result<(Vec<u8>, impl Read)> {
    let mut begin = Vec::new();
    archive.by_ref().take(8).read_to_end(&mut begin)?;
    Ok((begin.clone(), io::Cursor::new(begin).chain(archive)))
}

/// Puts a backup into a new or empty folder.
pub fn restore(archive: impl Read, root: &Path) -> Result<BackedUp, BackupError> {
    match check_ours(root) {
        Err(FolderError::Empty) => {}
        Ok(()) => return Err(BackupError::Folder(root.to_path_buf(), FolderError::Foreign(Vec::new()))),
        Err(error) => return Err(BackupError::Folder(root.to_path_buf(), error)),
    }
    fs::create_dir_all(root).map_err(of_file(root))?;
    fs::set_permissions(root, std::os::unix::fs::PermissionsExt::from_mode(0o700)).map_err(of_file(root))?;
    let mut restored = BackedUp::default();
    let (begin, archive) = begin(archive).map_err(of_file(Path::new("the archive")))?;
    if let Some((_, program)) = COMPRESSED.iter().find(|(kind, _)| begin.starts_with(kind)) {
        let problem = format!("it is compressed; `{program} FILE | model-garden serve restore -` reads it");
        return Err(BackupError::NotABackup(problem));
    }
    let mut archive = Archive::new(archive);
    archive.set_preserve_permissions(true);
    let broken = |error: io::Error| BackupError::NotABackup(error.to_string());
    for entry in archive.entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        let name = entry.path().map_err(broken)?.into_owned();
        if name == Path::new(MARKER) {
            let mut text = Vec::new();
            entry.by_ref().take(LONGEST_MARKER).read_to_end(&mut text).map_err(broken)?;
            check_marker(&text).map_err(|error| match error {
                FolderError::Newer(format) => BackupError::Newer(format),
                _ => BackupError::NotABackup(format!("its `{MARKER}` cannot be read")),
            })?;
            continue;
        }
        let first = name.components().next().map(|part| part.as_os_str().to_string_lossy().into_owned());
        let is_ours = first.is_some_and(|first| [DATABASE, "files", "parts", "jobs"].contains(&first.as_str()));
        let kind = entry.header().entry_type();
        let is_kind = matches!(kind, EntryType::Regular | EntryType::Directory | EntryType::Symlink | EntryType::Link);
        if !is_ours || !is_kind {
            return Err(BackupError::NotABackup(format!("it holds `{}`", name.display())));
        }
        restored.bytes += entry.size();
        if name == Path::new(DATABASE) {
            let draft = root.join(DRAFT);
            entry.unpack(&draft).map_err(of_file(&draft))?;
            continue;
        }
        // Never outside of the folder, also not through a link that came before.
        if !entry.unpack_in(root).map_err(of_file(&root.join(&name)))? {
            return Err(BackupError::NotABackup(format!("it holds `{}`", name.display())));
        }
        let parts: Vec<_> = name.components().collect();
        if parts.len() == 2 && !name.starts_with("parts") {
            let count = if name.starts_with("jobs") { &mut restored.jobs } else { &mut restored.files };
            *count += 1;
        }
    }
    if !Store::is_at(&root.join(DRAFT)) {
        return Err(BackupError::NotABackup(format!("it has no `{DATABASE}`")));
    }
    let finish = || -> io::Result<()> {
        let folder = File::open(root)?;
        rustix::fs::syncfs(&folder)?;
        // Last of all, once everything else is sure: without these a folder is not taken for a server's.
        fs::rename(root.join(DRAFT), root.join(DATABASE))?;
        mark(root)?;
        folder.sync_all()
    };
    finish().map_err(of_file(root))?;
    Ok(restored)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    /// A job that keeps one checkpoint saves the next ones while its folder is linked.
    #[test]
    fn a_checkpoint_is_in_a_backup_at_any_moment() {
        use std::sync::atomic::{AtomicBool, Ordering};
        const FILES: [&str; 3] = ["a", "b", "c"];
        let place = std::env::temp_dir().join(format!("garden-link-{}", std::process::id()));
        let (out, is_over) = (place.join("out"), AtomicBool::new(false));
        let save = |step: usize| {
            let draft = out.join("draft");
            fs::create_dir_all(&draft).unwrap();
            FILES.iter().for_each(|name| fs::write(draft.join(name), name).unwrap());
            fs::rename(draft, out.join(format!("checkpoint-{step}"))).unwrap();
            drop(fs::remove_dir_all(out.join(format!("checkpoint-{}", step.wrapping_sub(1)))));
        };
        save(0);
        let whole = |copy: &Path| {
            let checkpoints = fs::read_dir(copy).unwrap().flatten().filter(|entry| entry.file_name() != "draft");
            { checkpoints }.any(|entry| FILES.iter().all(|name| entry.path().join(name).exists()))
        };
        std::thread::scope(|threads| {
            threads.spawn(|| {
                for step in (1..).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                    save(step);
                    // Far more often than any job saves, and far less often than a small folder can be listed.
                    std::thread::sleep(std::time::Duration::from_millis(2));
                }
            });
            let copies = (0..500).map(|number| {
                let copy = place.join(number.to_string());
                link(&out, &copy, Path::new("out")).unwrap();
                whole(&copy)
            });
            let lacking = copies.filter(|is_whole| !is_whole).count();
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(lacking, 0, "backups of 500 have no checkpoint");
        });
        fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn what_is_no_backup_of_this_version_is_named() {
        let folder = std::env::temp_dir().join(format!("garden-restore-{}", std::process::id()));
        let refused = |bytes: &[u8]| {
            let refused = restore(bytes, &folder).unwrap_err().to_string();
            drop(fs::remove_dir_all(&folder));
            refused
        };
        let archive = |name: &str, text: &str| {
            let mut archive = Builder::new(Vec::new());
            let mut header = Header::new_gnu();
            header.set_size(text.len() as u64);
            archive.append_data(&mut header, name, text.as_bytes()).unwrap();
            archive.into_inner().unwrap()
        };
        let newer = refused(&archive(MARKER, "{\"what\": \"a folder\", \"format\": 7}"));
        assert_eq!(newer, "this backup was made by a newer version of model-garden (format 7)");
        assert!(refused(&archive(MARKER, &marker().unwrap())).contains("it has no `garden.db`"));
        assert!(refused(&archive("etc/passwd", "x")).contains("it holds `etc/passwd`"));
        assert!(refused(b"\x1f\x8b\x08\x00 and so on").contains("zcat FILE"));
        let cut = archive("files/a", &"x".repeat(5000));
        assert!(refused(&cut[..2000]).contains("files/a"));
    }
}

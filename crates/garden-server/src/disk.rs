//! The server's folder.
//!
//! ```text
//! garden.db        what is known (see store.rs)
//! lock             held by the server that uses the folder
//! incoming/        files that are not there yet; emptied at the start
//! files/           files of clients and results, by their names here
//! parts/           parts of uploads
//! jobs/            a folder for each job (see job.rs)
//! ```
//!
//! A file becomes visible by a rename, and known after that. So a kill leaves at most a file that nobody knows of, which the next start removes.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use crate::job::JobFolder;
use crate::store::FileRecord;

/// How long the folder's lock is waited for, and how often it is tried.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(20);
/// How names of files may end on our disk: what the reader of datasets knows, and what results are.
const EXTENSIONS: [&str; 6] = ["jsonl", "json", "parquet", "tar", "csv", "bin"];

/// The folder, which is ours for as long as this lives.
#[derive(Debug)]
pub(crate) struct Disk {
    root: PathBuf,
    _lock: File,
}

impl Disk {
    /// Takes a folder; an error of kind `AddrInUse` means that another server has it.
    pub fn take(root: &Path) -> io::Result<Disk> {
        for folder in ["incoming", "files", "parts", "jobs"] {
            fs::create_dir_all(root.join(folder))?;
        }
        // Rows, results and the database are nobody else's business.
        fs::set_permissions(root, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
        let lock = File::options().write(true).create(true).truncate(false).open(root.join("lock"))?;
        // A server that was killed while it started a process may live on in that for a moment.
        let deadline = Instant::now() + PATIENCE;
        while flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            if Instant::now() >= deadline {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            std::thread::sleep(PAUSE);
        }
        let root = root.canonicalize()?;
        let disk = Disk { root, _lock: lock };
        disk.clear(&disk.root.join("incoming"), |_| false)?;
        Ok(disk)
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

    /// Removes what a server that was killed has left: files, parts and jobs that nobody knows of.
    pub fn tidy(&self, known: impl Fn(Kind, &str) -> bool) -> io::Result<()> {
        for (kind, folder) in [(Kind::File, "files"), (Kind::Part, "parts"), (Kind::Job, "jobs")] {
            self.clear(&self.root.join(folder), |name| {
                let id = name.split('.').next().unwrap_or_default();
                known(kind, id)
            })?;
        }
        Ok(())
    }

    fn clear(&self, folder: &Path, keep: impl Fn(&str) -> bool) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if keep(&entry.file_name().to_string_lossy()) {
                continue;
            }
            if entry.file_type()?.is_dir() {
                fs::remove_dir_all(entry.path())?;
            } else {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
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

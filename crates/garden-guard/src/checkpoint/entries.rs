//! What lies in a checkpoint: a list of its files, without opening any.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// How many levels of folders below the checkpoint are looked into. Known layouts need one (DeepSpeed, FSDP) or two.
const DEEPEST: usize = 3;

/// A file of a checkpoint.
#[derive(Debug)]
pub struct FileEntry {
    /// Its path below the checkpoint; the file's name, if it is the checkpoint itself.
    pub name: PathBuf,
    /// Where it is.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// When it was made, if the file system knows; a draft that was renamed was made before.
    pub created: Option<SystemTime>,
    /// When it was last written, if the file system knows.
    pub modified: Option<SystemTime>,
}

/// Something that could not be looked at.
#[derive(Debug)]
pub struct Failure {
    /// Its path below the checkpoint.
    pub name: PathBuf,
    /// Why not.
    pub error: io::Error,
}

/// All that lies in a checkpoint, in the order of names.
#[derive(Debug, Default)]
pub struct Entries {
    /// Regular files. Pipes and sockets are left out: opening one could wait for ever.
    pub files: Vec<FileEntry>,
    /// Folders, as paths below the checkpoint; the checkpoint itself is the empty path.
    pub folders: Vec<PathBuf>,
    /// What could not be looked at.
    pub failures: Vec<Failure>,
}

impl Entries {
    /// Lists a checkpoint. Links are followed, but no folder is entered twice, so loops end.
    pub fn of(checkpoint: &Path) -> Entries {
        let mut entries = Entries::default();
        let name = checkpoint.file_name().map(PathBuf::from).unwrap_or_default();
        match fs::metadata(checkpoint) {
            Ok(metadata) if metadata.is_dir() => {
                let mut entered = HashSet::from([(metadata.dev(), metadata.ino())]);
                entries.enter(checkpoint, PathBuf::new(), DEEPEST, &mut entered);
            }
            Ok(metadata) => entries.add_file(name, checkpoint.to_path_buf(), &metadata),
            Err(error) => entries.failures.push(Failure { name, error }),
        }
        entries.files.sort_by(|a, b| a.name.cmp(&b.name));
        entries.folders.sort();
        entries
    }

    fn enter(&mut self, path: &Path, name: PathBuf, levels_left: usize, entered: &mut HashSet<(u64, u64)>) {
        let children = match fs::read_dir(path).and_then(|children| children.collect::<io::Result<Vec<_>>>()) {
            Ok(children) => children,
            Err(error) => return self.failures.push(Failure { name, error }),
        };
        for child in children {
            let (path, name) = (child.path(), name.join(child.file_name()));
            match fs::metadata(&path) {
                Ok(metadata) if !metadata.is_dir() => self.add_file(name, path, &metadata),
                Ok(metadata) => {
                    if levels_left > 0 && entered.insert((metadata.dev(), metadata.ino())) {
                        self.enter(&path, name, levels_left - 1, entered);
                    }
                }
                Err(error) => self.failures.push(Failure { name, error }),
            }
        }
        self.folders.push(name);
    }

    fn add_file(&mut self, name: PathBuf, path: PathBuf, metadata: &fs::Metadata) {
        if metadata.is_file() {
            self.files.push(FileEntry {
                name,
                path,
                bytes: metadata.len(),
                created: metadata.created().ok(),
                modified: metadata.modified().ok(),
            });
        }
    }
}

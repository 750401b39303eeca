//! One run folder, one trainer: a lock that the system takes away when its owner ends, however it ends.

use std::fs::{File, TryLockError};
use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::Error;

/// The file that is locked; it has the process id of whoever took it last.
const LOCK: &str = ".lock";
/// How often a lock is tried.
const PAUSE: Duration = Duration::from_millis(50);

/// A run folder that is ours for as long as this value, and this process, live.
#[derive(Debug)]
pub struct RunLock {
    _file: File,
}

impl RunLock {
    /// Takes a folder; `Error::Busy` if another process still has it after `patience`. `told` is called once a second with the id of that process.
    pub fn take(folder: &Path, patience: Duration, told: &mut dyn FnMut(u32)) -> Result<RunLock, Error> {
        let path = folder.join(LOCK);
        let failed = |error| Error::file(&path, error);
        let options = || File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = options().map_err(failed)?;
        let (begin, mut next) = (Instant::now(), Duration::ZERO);
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::Error(error)) => return Err(failed(error)),
                Err(TryLockError::WouldBlock) => {}
            }
            let pid = owner(&mut file);
            if begin.elapsed() >= patience {
                return Err(Error::Busy { folder: folder.to_path_buf(), pid });
            }
            if begin.elapsed() >= next {
                next += Duration::from_secs(1);
                told(pid);
            }
            std::thread::sleep(PAUSE);
        }
        // Only for whoever is refused: the lock is what counts, so a full disk is no reason to give up.
        drop(file.set_len(0).and_then(|()| write!(file, "{}", std::process::id())));
        Ok(RunLock { _file: file })
    }
}

/// Who wrote the file last; 0 if that cannot be told.
fn owner(file: &mut File) -> u32 {
    use std::io::Seek;
    let mut text = String::new();
    let read = file.rewind().and_then(|()| file.read_to_string(&mut text));
    drop(file.rewind());
    read.ok().and_then(|_| text.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_folder_has_one_owner() {
        let folder = std::env::temp_dir().join(format!("garden-lock-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let lock = RunLock::take(&folder, Duration::ZERO, &mut |_| {}).unwrap();
        let mut told = Vec::new();
        let refused = RunLock::take(&folder, Duration::from_millis(10), &mut |pid| told.push(pid));
        assert!(matches!(refused, Err(Error::Busy { pid, .. }) if pid == std::process::id()));
        assert_eq!(told, [std::process::id()]);
        drop(lock);
        RunLock::take(&folder, Duration::ZERO, &mut |_| {}).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

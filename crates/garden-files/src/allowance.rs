//! Bytes that several processes may still write together, as a number in a file that they share.
//!
//! One process measures what is really there and sets the number, again and again; the others take from it before or after they write. What they take between a
//! measurement and its number is forgotten then, and counted by the next one. So together they pass their bound by what they write in that time, and no more.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

/// How often the file's lock is tried, and how long after each other.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(1);

/// The file with the number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowance(PathBuf);

impl Allowance {
    /// The environment variable by which a process is told of it.
    pub const VARIABLE: &str = "MODEL_GARDEN_ALLOWANCE";

    /// The one at this place.
    pub fn at(path: &Path) -> Allowance {
        Allowance(path.to_path_buf())
    }

    /// The one that this process was told of.
    pub fn given() -> Option<Allowance> {
        std::env::var_os(Self::VARIABLE).map(|path| Allowance(path.into()))
    }

    /// Says how much may be written.
    pub fn set(&self, bytes: u64) -> io::Result<()> {
        let mut file = File::options().read(true).write(true).create(true).truncate(false).open(&self.0)?;
        lock(&file)?;
        write(&mut file, bytes)
    }

    /// Takes a part of it; without enough nothing is taken, and what is left is the answer. Where nobody has set anything, everything may be written.
    pub fn take(&self, bytes: u64) -> Result<(), u64> {
        let take = || -> io::Result<Result<(), u64>> {
            let mut file = File::options().read(true).write(true).open(&self.0)?;
            lock(&file)?;
            let mut text = String::new();
            file.read_to_string(&mut text)?;
            let left: u64 = text.trim().parse().map_err(|_| io::Error::from(ErrorKind::InvalidData))?;
            match left.checked_sub(bytes) {
                Some(rest) => write(&mut file, rest).map(Ok),
                None => Ok(Err(left)),
            }
        };
        take().unwrap_or(Ok(()))
    }
}

/// Locks it for as long as it is open. Whoever holds it may have been stopped, so it is not waited for without an end.
fn lock(file: &File) -> io::Result<()> {
    let mut locked = flock(file, FlockOperation::NonBlockingLockExclusive);
    for _ in 0..TRIES {
        if locked.is_ok() {
            break;
        }
        std::thread::sleep(PAUSE);
        locked = flock(file, FlockOperation::NonBlockingLockExclusive);
    }
    Ok(locked?)
}

/// In place, and always as long: a full disk has room for it.
fn write(file: &mut File, bytes: u64) -> io::Result<()> {
    file.rewind()?;
    file.write_all(format!("{bytes:20}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn what_is_taken_together_is_no_more_than_there_is() {
        let path = std::env::temp_dir().join(format!("garden-allowance-{}", std::process::id()));
        let allowance = Allowance::at(&path);
        assert_eq!(allowance.take(u64::MAX), Ok(()), "nobody has set anything");
        allowance.set(1000).unwrap();
        let taken = || (0..100).filter(|_| allowance.take(7).is_ok()).count();
        let taken: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(taken)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!((taken, allowance.take(7), allowance.take(6)), (142, Err(6), Ok(())));
        allowance.set(u64::MAX).unwrap();
        assert_eq!(allowance.take(1), Ok(()));
        std::fs::remove_file(&path).unwrap();
    }
}

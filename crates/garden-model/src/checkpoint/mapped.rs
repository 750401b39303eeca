//! Files that are read where they lie, and what happens when another program cuts one off meanwhile.
//!
//! Reading a page that a file does not have any more is SIGBUS, which ends a program without a word. A handler says which file it was and ends the program as
//! any other error does; for a SIGBUS of another origin it does what would happen without it. It runs in the middle of anything, so it takes no lock, allocates
//! nothing, and finds files in a list of fixed length that only grows.

use std::fs::File;
use std::os::fd::{AsRawFd as _, BorrowedFd, RawFd};
use std::path::Path;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Files that are watched at most. The largest checkpoints have some dozens; whatever is beyond is not told by name.
const MOST: usize = 1024;
/// The exit code of a program that failed.
const FAILED: i32 = 2;

/// A file that is mapped. It is never freed, as the handler may look at it at any time: a few bytes for each file that a program opens.
struct Mapped {
    file: RawFd,
    length: u64,
    /// What is said if it was cut off.
    words: String,
}

static COUNT: AtomicUsize = AtomicUsize::new(0);
static FILES: [AtomicPtr<Mapped>; MOST] = [const { AtomicPtr::new(std::ptr::null_mut()) }; MOST];
static INSTALL: Once = Once::new();

/// Watches a file that is mapped, as long as what is returned is kept.
pub(crate) fn watch(path: &Path, file: &File, length: u64) -> Watched {
    INSTALL.call_once(|| {
        // SAFETY: the handler only reads atomics, asks for lengths of files, writes to standard error and ends the program.
        let installed = unsafe { signal_hook::low_level::register(signal_hook::consts::SIGBUS, tell) };
        // Without a handler it is as it was.
        drop(installed);
    });
    let words = format!(
        "error: `{}` was cut off while it was in use\n\nhint: another program wrote to it; begin again when the file is whole\n",
        path.display()
    );
    let mapped = Box::leak(Box::new(Mapped { file: file.as_raw_fd(), length, words }));
    let place = COUNT.fetch_add(1, Ordering::Relaxed) % MOST;
    FILES[place].store(mapped, Ordering::Release);
    Watched { place, mapped }
}

/// A file that is watched.
#[derive(Debug)]
pub(crate) struct Watched {
    place: usize,
    mapped: *mut Mapped,
}

// SAFETY: the pointer is only compared.
unsafe impl Send for Watched {}
// SAFETY: as above.
unsafe impl Sync for Watched {}

impl std::fmt::Debug for Mapped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.words)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // Another file may have its place by now.
        let _ =
            FILES[self.place].compare_exchange(self.mapped, std::ptr::null_mut(), Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// The handler.
fn tell() {
    for place in &FILES {
        let mapped = place.load(Ordering::Acquire);
        // SAFETY: what is in the list was leaked, so it lives as long as the program.
        let Some(mapped) = (unsafe { mapped.as_ref() }) else { continue };
        // SAFETY: the file is open while it is in the list.
        let file = unsafe { BorrowedFd::borrow_raw(mapped.file) };
        let is_cut = rustix::fs::fstat(file).is_ok_and(|about| (about.st_size as u64) < mapped.length);
        if is_cut {
            let _ = rustix::io::write(rustix::stdio::stderr(), mapped.words.as_bytes());
            signal_hook::low_level::exit(FAILED);
        }
    }
    let _ = signal_hook::low_level::emulate_default_handler(signal_hook::consts::SIGBUS);
}

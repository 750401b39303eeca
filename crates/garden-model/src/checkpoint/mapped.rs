//! Handles truncation of memory-mapped files by other programs.
//!
//! Reading a missing page of a truncated file raises SIGBUS, which ends a program silently. The handler names the file and exits as
//! for any other error; for a SIGBUS of another origin it runs the default action. It may interrupt anything, so it takes no lock, allocates
//! nothing, and finds files in a list of fixed size.

use std::fs::File;
use std::os::fd::{AsRawFd as _, BorrowedFd, RawFd};
use std::path::Path;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Maximum number of watched files. The largest checkpoints have a few dozen; with more, not all are reported by name.
const MOST: usize = 1024;
/// The exit code for failure.
const FAILED: i32 = 2;

/// A mapped file. Never freed, as the handler may read it at any time: a few bytes per opened file.
struct Mapped {
    file: RawFd,
    length: u64,
    /// The error message if it was truncated.
    words: String,
}

static COUNT: AtomicUsize = AtomicUsize::new(0);
static FILES: [AtomicPtr<Mapped>; MOST] = [const { AtomicPtr::new(std::ptr::null_mut()) }; MOST];
static INSTALL: Once = Once::new();

/// Watches a mapped file as long as the returned guard lives.
pub(crate) fn watch(path: &Path, file: &File, length: u64) -> Watched {
    INSTALL.call_once(|| {
        // SAFETY: the handler only reads atomics, asks for lengths of files, writes to standard error and ends the program.
        let installed = unsafe { signal_hook::low_level::register(signal_hook::consts::SIGBUS, tell) };
        // Without a handler the default action remains.
        drop(installed);
    });
    let words = format!(
        "error: `{}` was truncated while it was in use\n\nhint: another program wrote to it; start again once the file is complete\n",
        path.display()
    );
    let mapped = Box::leak(Box::new(Mapped { file: file.as_raw_fd(), length, words }));
    let place = COUNT.fetch_add(1, Ordering::Relaxed) % MOST;
    FILES[place].store(mapped, Ordering::Release);
    Watched { place, mapped }
}

/// Guard of a watched file.
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
        // Another file may have taken its slot by now.
        let _ =
            FILES[self.place].compare_exchange(self.mapped, std::ptr::null_mut(), Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// The SIGBUS handler.
fn tell() {
    for place in &FILES {
        let mapped = place.load(Ordering::Acquire);
        // SAFETY: entries of the list were leaked, so they live as long as the program.
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

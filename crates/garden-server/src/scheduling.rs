//! What the system's scheduler is told about threads of ours, so that an answer that takes a millisecond does not wait for work that takes seconds.

use rustix::process::setpriority_process;

/// The niceness of threads that do long work: a third of the usual share beside others, so that lists are answered beside a job that takes all processors, too.
const LOW: i32 = 5;
/// What a thread that answers asks to have at a time, in nanoseconds: the least that Linux grants.
const SHORT_SLICE: u64 = 100_000;
/// Threads and processes that it starts have slices as usual: what reads a client's files for seconds is not to come before others.
const RESET_ON_FORK: u64 = 1;

/// What the kernel is told about a thread, as the first version of its `struct sched_attr` has it.
#[repr(C)]
#[derive(Debug, Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// The calling thread takes the processor time that nobody else wants. Without a right to that it is as quick as the others.
pub(crate) fn comes_last() {
    let _ = setpriority_process(None, LOW);
}

/// The calling thread runs as soon as it has something to do, and for a moment only: with a slice shorter than others' it need not wait until theirs end.
/// Its share of the processor stays the same. Linux before 6.12 takes no notice.
pub(crate) fn comes_soon() {
    let Ok(nice) = rustix::process::getpriority_process(None) else { return };
    let size = size_of::<Attributes>() as u32;
    let attributes = Attributes { size, flags: RESET_ON_FORK, nice, runtime: SHORT_SLICE, ..Attributes::default() };
    // SAFETY: the call reads `size` bytes of `attributes`, which lives until it returns, and changes nothing of ours in memory.
    // What it refuses, in a container say, leaves the thread as it was.
    let _ = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The slice of the calling thread; 0 where the kernel has none of its own for a thread.
    fn slice() -> u64 {
        let mut found = Attributes::default();
        let size = size_of::<Attributes>();
        // SAFETY: the call writes `size` bytes at most into `found`.
        let done = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut found, size, 0) };
        if done == 0 { found.runtime } else { 0 }
    }

    #[test]
    fn short_slices_are_not_inherited() {
        let [before, own, child] = std::thread::spawn(|| {
            let before = slice();
            comes_soon();
            let child = std::thread::spawn(slice).join().unwrap_or(0);
            [before, slice(), child]
        })
        .join()
        .unwrap_or_default();
        if own != SHORT_SLICE {
            garden_testing::skip("this kernel has no slices of threads, or does not let us ask for one");
            return;
        }
        assert_eq!(child, before);
        assert_ne!(child, own);
    }
}

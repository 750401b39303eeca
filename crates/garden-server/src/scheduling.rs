//! What the system's scheduler is told about threads of ours, so that an answer that takes a millisecond does not wait for work that takes seconds.

use rustix::process::setpriority_process;

/// The niceness of threads that do long work: a third of the usual share beside others, so that lists are answered beside a job that takes all processors, too.
const LOW: i32 = 5;
/// What a thread that answers asks to have at a time, in nanoseconds: the least that Linux grants.
const SHORT_SLICE: u64 = 100_000;

/// The calling thread takes the processor time that nobody else wants. Without a right to that it is as quick as the others.
pub(crate) fn comes_last() {
    let _ = setpriority_process(None, LOW);
}

/// The calling thread runs as soon as it has something to do, and for a moment only: with a slice shorter than others' it need not wait until theirs end,
/// which is 3 to 4 ms later. Its share of the processor stays the same. Linux before 6.12 takes no notice.
pub(crate) fn comes_soon() {
    #[cfg(target_os = "linux")]
    {
        // As <linux/sched/types.h> has it, in its first version.
        #[repr(C)]
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
        let Ok(nice) = rustix::process::getpriority_process(None) else { return };
        let attributes = Attributes {
            size: size_of::<Attributes>() as u32,
            policy: libc::SCHED_OTHER as u32,
            flags: 0,
            nice,
            priority: 0,
            runtime: SHORT_SLICE,
            deadline: 0,
            period: 0,
        };
        // SAFETY: the call reads `size` bytes of `attributes`, which lives until it returns, and changes nothing of ours in memory.
        // What it refuses, in a container say, leaves the thread as it was.
        let _ = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    }
}

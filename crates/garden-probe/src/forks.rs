//! Threads that may be in the middle of a fork whose child nobody can see yet.
//!
//! A fork copies the page tables first, and from then on each page counts as shared by one process more. Only at its end can the
//! child be found. On a busy machine a thread may wait in between for a quarter of a second, and shares read meanwhile are too
//! small. A thread that sleeps is in no fork: one that is shows as running or in an uninterruptible sleep. A thread that always
//! runs, such as one that computes, has left the fork once it has used more CPU time than the end of a fork takes; the
//! copying itself is not part of that, since it holds a lock that reading the process's memory waits for.

use std::fs::{self, File};
use std::io::Read;

use crate::process::Stat;

/// CPU time by which the end of a fork is over, in clock ticks of 10 ms: it takes less than one, and the first may be a rest.
const END_TAKES: u64 = 2;

/// Threads that may still be in a fork that they were in when this began.
#[derive(Clone, Debug, Default)]
pub struct Forks(Vec<Suspect>);

#[derive(Clone, Debug)]
struct Suspect {
    pid: u32,
    thread: u32,
    /// Its CPU time after the page tables were copied, in clock ticks.
    ticks: u64,
}

impl Forks {
    /// Those that may be under way in these processes.
    pub fn under_way(processes: impl Iterator<Item = u32>) -> Forks {
        Forks(processes.flat_map(suspects).collect())
    }

    /// Forgets those that are over. Their children are found by whoever lists the processes after this.
    pub fn look(&mut self) {
        self.0.retain(|suspect| {
            ticks_if_suspect(suspect.pid, suspect.thread).is_some_and(|now| now < suspect.ticks + END_TAKES)
        });
    }

    /// Whether all are over.
    pub fn are_over(&self) -> bool {
        self.0.is_empty()
    }
}

/// The threads of a process that may be in a fork.
fn suspects(pid: u32) -> Vec<Suspect> {
    let threads = || {
        let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
    };
    if !threads().any(|thread| ticks_if_suspect(pid, thread).is_some()) {
        return Vec::new();
    }
    wait_for_copying(pid);
    threads().filter_map(|thread| Some(Suspect { pid, thread, ticks: ticks_if_suspect(pid, thread)? })).collect()
}

/// CPU time of a thread that may be in a fork; `None` if it cannot or has ended.
fn ticks_if_suspect(pid: u32, thread: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{thread}/stat")).ok()?;
    let stat = Stat::parse(&text)?;
    stat.may_fork().then(|| stat.ticks())?
}

/// Waits until no thread of a process copies page tables: the first byte of its command line lies in its memory.
fn wait_for_copying(pid: u32) {
    // A process that has ended has nothing to wait for.
    let _read = File::open(format!("/proc/{pid}/cmdline")).and_then(|mut line| line.read(&mut [0]));
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;

    /// Ends a process when the test ends.
    struct Ended(std::process::Child);

    impl Drop for Ended {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn wait_until(mut is_so: impl FnMut() -> bool) {
        let patience = Instant::now() + Duration::from_secs(30);
        while !is_so() {
            assert!(Instant::now() < patience);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_process_that_sleeps_is_in_no_fork() {
        let sleeper = Ended(Command::new("sleep").arg("60").spawn().unwrap());
        wait_until(|| Forks::under_way([sleeper.0.id()].into_iter()).are_over());
    }

    #[test]
    fn a_process_that_computes_has_left_the_fork_it_may_have_been_in() {
        let busy = Ended(Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap());
        wait_until(|| !Forks::under_way([busy.0.id()].into_iter()).are_over());
        let mut forks = Forks::under_way([busy.0.id()].into_iter());
        assert!(!forks.are_over());
        wait_until(|| {
            forks.look();
            forks.are_over()
        });
        drop(busy);
    }

    #[test]
    fn a_process_that_has_ended_is_in_no_fork() {
        let mut busy = Ended(Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap());
        let mut forks = Forks::under_way([busy.0.id()].into_iter());
        busy.0.kill().unwrap();
        busy.0.wait().unwrap();
        forks.look();
        assert!(forks.are_over());
    }
}

//! A thread pool whose helpers spin for a moment after each task before they sleep; the caller works with them.
//!
//! A training step is a thousand short operations in a row. Waking a sleeping pool for each costs as much as many of them take,
//! so the helpers poll for the next one for a while before they sleep.

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::thread::{self, JoinHandle, Thread};

/// Polls before a thread sleeps: about a tenth of a millisecond.
const LOOKS: usize = 2000;

/// The round that ends the pool.
const LAST: usize = usize::MAX;

/// The work of all threads, called with each thread's number.
type Work<'a> = &'a (dyn Fn(usize) + Sync + 'a);

/// The caller's pool of helper threads.
pub(super) struct SpinPool {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
    /// Held while the pool is at work.
    at_work: Mutex<()>,
}

struct Shared {
    /// The work of this round and the caller who waits for it; written before the round's number, and not touched until all are done.
    work: UnsafeCell<Option<(Work<'static>, Thread)>>,
    round: AtomicUsize,
    /// Helpers that are not done yet.
    busy: AtomicUsize,
    has_panicked: AtomicBool,
}

// SAFETY: `work` is written by the caller alone while no helper is busy, and only read while some are.
unsafe impl Sync for Shared {}
// SAFETY: its contents may go to other threads.
unsafe impl Send for Shared {}

impl std::fmt::Debug for SpinPool {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "SpinPool of {}", self.number())
    }
}

impl SpinPool {
    /// A pool of `number` threads, including the caller's; fewer if the system provides fewer.
    pub fn new(number: usize) -> SpinPool {
        let shared = Arc::new(Shared {
            work: UnsafeCell::new(None),
            round: AtomicUsize::new(0),
            busy: AtomicUsize::new(0),
            has_panicked: AtomicBool::new(false),
        });
        let mut helpers = Vec::new();
        for number in 1..number.max(1) {
            let shared = Arc::clone(&shared);
            let started = thread::Builder::new().name(format!("garden-{number}")).spawn(move || shared.help(number));
            let Ok(helper) = started else { break };
            helpers.push(helper);
        }
        SpinPool { shared, helpers, at_work: Mutex::new(()) }
    }

    /// Number of threads, including the caller's.
    pub fn number(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Runs some work on every thread, each with its own number, and waits for all.
    ///
    /// # Panics
    /// If one of them does, or if it is called from inside such work.
    pub fn all(&self, work: impl Fn(usize) + Sync) {
        if self.helpers.is_empty() {
            return work(0);
        }
        let _held = match self.at_work.try_lock() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(held)) => held.into_inner(),
            Err(TryLockError::WouldBlock) => panic!("the team is at work already"),
        };
        let shared = &*self.shared;
        let work: Work<'_> = &work;
        // SAFETY: helpers use it only until they are done, which is waited for below even if our own part panics.
        let lasting: Work<'static> = unsafe { std::mem::transmute(work) };
        // SAFETY: nobody reads it: all helpers are done with the round before.
        unsafe { *shared.work.get() = Some((lasting, thread::current())) };
        shared.busy.store(self.helpers.len(), Ordering::Relaxed);
        // Round numbers wrap around before the last one.
        let next = (shared.round.load(Ordering::Relaxed) + 1) % LAST;
        shared.round.store(next, Ordering::Release);
        self.helpers.iter().for_each(|helper| helper.thread().unpark());
        let own = catch_unwind(AssertUnwindSafe(|| work(0)));
        look_out(|| shared.busy.load(Ordering::Acquire) == 0);
        let has_panicked = shared.has_panicked.swap(false, Ordering::Relaxed);
        if let Err(panic) = own {
            resume_unwind(panic);
        }
        assert!(!has_panicked, "a thread of the team has panicked");
    }

    /// Runs work for each number below `count`, on whichever thread is free: (the thread's number, the number).
    pub fn each(&self, count: usize, work: impl Fn(usize, usize) + Sync) {
        if self.helpers.is_empty() || count <= 1 {
            return (0..count).for_each(|number| work(0, number));
        }
        let next = AtomicUsize::new(0);
        self.all(|thread| {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return;
                }
                work(thread, number);
            }
        });
    }
}

impl Shared {
    fn help(&self, number: usize) {
        let mut seen = 0;
        loop {
            look_out(|| self.round.load(Ordering::Acquire) != seen);
            seen = self.round.load(Ordering::Acquire);
            if seen == LAST {
                return;
            }
            // SAFETY: it was written before the round's number and stays until this helper is done.
            let Some((work, caller)) = (unsafe { &*self.work.get() }) else { continue };
            let caller = caller.clone();
            if catch_unwind(AssertUnwindSafe(|| work(number))).is_err() {
                self.has_panicked.store(true, Ordering::Relaxed);
            }
            if self.busy.fetch_sub(1, Ordering::AcqRel) == 1 {
                caller.unpark();
            }
        }
    }
}

/// Waits for a condition: spinning at first, then asleep until unparked.
fn look_out(is_so: impl Fn() -> bool) {
    for _ in 0..LOOKS {
        if is_so() {
            return;
        }
        std::hint::spin_loop();
    }
    while !is_so() {
        thread::park();
    }
}

impl Drop for SpinPool {
    fn drop(&mut self) {
        self.shared.round.store(LAST, Ordering::Release);
        for helper in self.helpers.drain(..) {
            helper.thread().unpark();
            // A helper catches panics of its work, so it ends normally.
            let _ended = helper.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_works_on_every_piece_once() {
        for threads in [1, 2, 3, 7] {
            let team = SpinPool::new(threads);
            assert_eq!(team.number(), threads);
            for count in [0, 1, 2, 100] {
                let done: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
                team.each(count, |thread, number| {
                    assert!(thread < threads);
                    done[number].fetch_add(1, Ordering::Relaxed);
                });
                assert!(done.iter().all(|done| done.load(Ordering::Relaxed) == 1));
            }
            let seen: Vec<AtomicUsize> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
            // Longer than they spin.
            thread::sleep(std::time::Duration::from_millis(20));
            team.all(|thread| {
                seen[thread].fetch_add(1, Ordering::Relaxed);
            });
            assert!(seen.iter().all(|seen| seen.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_goes_on() {
        let team = SpinPool::new(3);
        for culprit in [0, 2] {
            let outcome = catch_unwind(AssertUnwindSafe(|| team.all(|thread| assert_ne!(thread, culprit))));
            assert!(outcome.is_err());
            team.all(|_| ());
        }
        assert!(catch_unwind(AssertUnwindSafe(|| team.all(|_| team.all(|_| ())))).is_err());
    }

    #[test]
    fn many_short_rounds() {
        let team = SpinPool::new(2);
        let sum = AtomicUsize::new(0);
        for _ in 0..10_000 {
            team.all(|thread| {
                sum.fetch_add(thread + 1, Ordering::Relaxed);
            });
        }
        assert_eq!(sum.into_inner(), 30_000);
    }
}

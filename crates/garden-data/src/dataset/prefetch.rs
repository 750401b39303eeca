//! Reads ahead on several threads, bounded in bytes, and returns items in order.
//!
//! The size of an item is known only once it is read. So the size of the largest item so far is reserved before reading; at first that
//! is the whole budget. An item that turns out larger and does not fit is dropped and read again when it does: rare, since
//! the largest grows each time. Only the item that is needed next is always admitted. Memory therefore stays below the bound,
//! or is the bound plus that one item.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// How far to read ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// Reader threads.
    pub threads: usize,
    /// Bytes of items that are waiting or being read.
    pub bytes: usize,
}

/// An iterator whose items are produced ahead of time, in order.
#[derive(Debug)]
pub struct Prefetch<T> {
    shared: Arc<Shared<T>>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    /// Something was admitted, made, taken or ended.
    changed: Condvar,
    bound: usize,
}

struct State<T> {
    indices: Box<dyn Iterator<Item = usize> + Send>,
    /// The position of the next index to read.
    next_in: u64,
    /// The position to return next.
    next_out: u64,
    /// The number of items, once known.
    end: Option<u64>,
    /// Jobs waiting for memory, by position: index, and size in bytes if it was read before.
    waiting: BTreeMap<u64, (usize, Option<usize>)>,
    ready: BTreeMap<u64, (Outcome<T>, usize)>,
    /// Bytes of finished items and reservations for items being read.
    held: usize,
    /// The largest item so far. Before the first one, an item reserves the whole budget.
    largest: Option<usize>,
    stopped: bool,
}

/// An item, or the panic of the thread that was making it.
type Outcome<T> = Result<T, Box<dyn Any + Send>>;

/// One item to make.
struct Job {
    position: u64,
    index: usize,
    room: usize,
}

impl<T: Send + 'static> Prefetch<T> {
    /// Runs `make(index)` for each index; `size` returns the bytes held by an item.
    pub fn new(
        ahead: Ahead,
        indices: impl Iterator<Item = usize> + Send + 'static,
        make: impl Fn(usize) -> T + Send + Sync + 'static,
        size: impl Fn(&T) -> usize + Send + Sync + 'static,
    ) -> Prefetch<T> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State::new(Box::new(indices))),
            changed: Condvar::new(),
            bound: ahead.bytes,
        });
        let tools = Arc::new((make, size));
        let start = |_| {
            let (shared, tools) = (shared.clone(), tools.clone());
            std::thread::spawn(move || shared.work(&tools.0, &tools.1))
        };
        Prefetch { threads: (0..ahead.threads.max(1)).map(start).collect(), shared }
    }

    /// The next item, if it is ready.
    pub fn next_if_ready(&mut self) -> Option<T> {
        let position = self.shared.lock().next_out;
        let is_ready = self.shared.lock().ready.contains_key(&position);
        // Nobody else takes items.
        is_ready.then(|| self.next()).flatten()
    }

    /// Bytes held now, including reservations for items being read.
    pub fn held_bytes(&self) -> usize {
        self.shared.lock().held
    }
}

impl<T> Iterator for Prefetch<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        let mut state = self.shared.lock();
        loop {
            let position = state.next_out;
            if let Some((outcome, size)) = state.ready.remove(&position) {
                state.next_out += 1;
                state.held -= size;
                self.shared.changed.notify_all();
                drop(state);
                return Some(outcome.unwrap_or_else(|panic| resume_unwind(panic)));
            }
            if state.end == Some(position) {
                return None;
            }
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<T> Drop for Prefetch<T> {
    fn drop(&mut self) {
        self.shared.lock().stopped = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // Panics were caught and returned as items, so there is nothing else to report here.
            let _ = thread.join();
        }
    }
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A worker thread's main loop.
    fn work(&self, make: &impl Fn(usize) -> T, size: &impl Fn(&T) -> usize) {
        while let Some(job) = self.next_job() {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                let item = make(job.index);
                // Items of size zero would never fill the bound.
                let bytes = size(&item).max(size_of::<T>()).max(1);
                (item, bytes)
            }));
            let (outcome, bytes) = match outcome {
                Ok((item, bytes)) => (Ok(item), bytes),
                Err(panic) => (Err(panic), 1),
            };
            let refused = self.lock().finish(job, outcome, bytes, self.bound);
            self.changed.notify_all();
            drop(refused);
        }
    }

    /// Waits for a job that fits.
    fn next_job(&self) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if state.stopped {
                return None;
            }
            if let Some(job) = state.admit(self.bound) {
                return Some(job);
            }
            if state.end.is_some() && state.waiting.is_empty() {
                // The consumer may be waiting for an item that will never come. A thread whose item is refused later notices this itself.
                self.changed.notify_all();
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<T> State<T> {
    fn new(indices: Box<dyn Iterator<Item = usize> + Send>) -> State<T> {
        State {
            indices,
            next_in: 0,
            next_out: 0,
            end: None,
            waiting: BTreeMap::new(),
            ready: BTreeMap::new(),
            held: 0,
            largest: None,
            stopped: false,
        }
    }

    /// The next job in order, if it fits.
    fn admit(&mut self, bound: usize) -> Option<Job> {
        if self.waiting.is_empty() && self.end.is_none() {
            match self.indices.next() {
                Some(index) => {
                    self.waiting.insert(self.next_in, (index, None));
                    self.next_in += 1;
                }
                None => self.end = Some(self.next_in),
            }
        }
        let (position, (index, known)) = self.waiting.first_key_value().map(|(position, job)| (*position, *job))?;
        let room = known.or(self.largest).unwrap_or(bound);
        if self.held > 0 && self.held.saturating_add(room) > bound && position != self.next_out {
            return None;
        }
        self.waiting.remove(&position);
        self.held += room;
        Some(Job { position, index, room })
    }

    /// Stores a finished item, or returns it because it does not fit.
    fn finish(&mut self, job: Job, outcome: Outcome<T>, bytes: usize, bound: usize) -> Option<Outcome<T>> {
        self.held -= job.room;
        self.largest = self.largest.max(Some(bytes));
        let fits = self.held == 0 || self.held.saturating_add(bytes) <= bound;
        if !fits && job.position != self.next_out {
            self.waiting.insert(job.position, (job.index, Some(bytes)));
            return Some(outcome);
        }
        self.held += bytes;
        self.ready.insert(job.position, (outcome, bytes));
        None
    }
}

impl<T> std::fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("bound", &self.bound).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::{Ahead, Prefetch};

    /// Bytes alive, and their maximum.
    #[derive(Default)]
    struct Ledger {
        now: AtomicUsize,
        most: AtomicUsize,
    }

    struct Item {
        index: usize,
        size: usize,
        ledger: Arc<Ledger>,
    }

    impl Item {
        fn new(index: usize, size: usize, ledger: &Arc<Ledger>) -> Item {
            let now = ledger.now.fetch_add(size, Ordering::SeqCst) + size;
            ledger.most.fetch_max(now, Ordering::SeqCst);
            std::thread::sleep(Duration::from_micros((index % 7) as u64 * 50));
            Item { index, size, ledger: ledger.clone() }
        }
    }

    impl Drop for Item {
        fn drop(&mut self) {
            self.ledger.now.fetch_sub(self.size, Ordering::SeqCst);
        }
    }

    fn prefetch(threads: usize, bytes: usize, count: usize, size: fn(usize) -> usize) -> (Prefetch<Item>, Arc<Ledger>) {
        let ledger = Arc::new(Ledger::default());
        let make = {
            let ledger = ledger.clone();
            move |index| Item::new(index, size(index), &ledger)
        };
        (Prefetch::new(Ahead { threads, bytes }, 0..count, make, |item| item.size), ledger)
    }

    #[test]
    fn order_is_kept_and_bytes_are_bounded() {
        for threads in [1, 2, 5] {
            let (items, ledger) = prefetch(threads, 1000, 500, |_| 90);
            for (expected, item) in items.enumerate() {
                assert_eq!(item.index, expected);
            }
            // This loop holds one more.
            assert!(ledger.most.load(Ordering::SeqCst) <= 1000 + 90);
            assert_eq!(ledger.now.load(Ordering::SeqCst), 0);
        }
    }

    #[test]
    fn one_larger_than_the_bound_passes_alone() {
        let (mut items, _) = prefetch(4, 1000, 100, |index| if index % 10 == 9 { 5000 } else { 100 });
        let mut count = 0;
        while let Some(item) = items.next() {
            assert_eq!(item.index, count);
            assert!(items.held_bytes() <= 1000 + 5000, "{}", items.held_bytes());
            count += 1;
        }
        assert_eq!(count, 100);
    }

    #[test]
    fn growing_items_arrive_all_the_same() {
        let (items, ledger) = prefetch(4, 1000, 200, |index| index * 5);
        assert!(items.map(|item| item.index).eq(0..200));
        assert_eq!(ledger.now.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn it_stops_when_it_is_dropped() {
        let (mut items, ledger) = prefetch(3, 1000, usize::MAX, |_| 100);
        assert_eq!(items.nth(10).unwrap().index, 10);
        drop(items);
        assert_eq!(ledger.now.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn errors_come_in_their_place_and_do_not_end_it() {
        let make = |index: usize| if index % 3 == 1 { Err(index) } else { Ok(index) };
        let items: Vec<_> = Prefetch::new(Ahead { threads: 3, bytes: 10 }, 0..7, make, |_| 4).collect();
        assert_eq!(items, [Ok(0), Err(1), Ok(2), Ok(3), Err(4), Ok(5), Ok(6)]);
        assert_eq!(Prefetch::new(Ahead { threads: 2, bytes: 1 }, 0..0, make, |_| 4).count(), 0);
    }

    #[test]
    fn a_panic_is_passed_on() {
        let make = |index: usize| if index == 2 { panic!("row 2") } else { index };
        let mut items = Prefetch::new(Ahead { threads: 2, bytes: 100 }, 0..5, make, |_| 1);
        assert_eq!((items.next(), items.next()), (Some(0), Some(1)));
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| items.next())).unwrap_err();
        assert_eq!(*panic.downcast_ref::<&str>().unwrap(), "row 2");
        assert_eq!(items.next(), Some(3));
    }
}

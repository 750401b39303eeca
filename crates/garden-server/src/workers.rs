//! Threads that read and write for requests. Clients take turns on them, one piece of work each, and nobody has all threads: a busy client waits for itself.
//!
//! Quick work (a row, a change) and long work (a piece of a list, of a run's files) have threads of their own. Those of long work have a lower priority with the system, so
//! that they take only the processor time that nobody else wants.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::error::ApiError;
use crate::scheduling::{comes_last, comes_soon};

tokio::task_local! {
    /// The client whose request this task answers.
    static OWNER: String;
}

/// Answers a request of a client.
pub(crate) async fn on_behalf_of<T>(owner: String, answer: impl Future<Output = T>) -> T {
    OWNER.scope(owner, answer).await
}

/// The client whose request is being answered; for work that goes on behind the answer.
pub(crate) fn owner() -> String {
    OWNER.try_with(Clone::clone).unwrap_or_default()
}

type Piece = Box<dyn FnOnce() + Send>;

/// What threads do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A row, a change.
    Quick,
    /// Pieces of lists and of a run's files, which change nothing.
    Long,
}

impl Kind {
    /// Threads, and how many of them may work for one client. Long work is the processor's: one client has one processor of ours at most.
    fn threads(self) -> (usize, usize) {
        match self {
            Kind::Quick => (3, 2),
            Kind::Long => (2, 1),
        }
    }
}

/// Threads of one kind.
#[derive(Debug)]
pub(crate) struct Workers {
    kind: Kind,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    lines: Mutex<Lines<Piece>>,
    wake: Condvar,
}

/// What waits, by client: the one whose turn is next in front.
struct Lines<T> {
    /// Threads that may work for one client.
    of_one: usize,
    waiting: VecDeque<(String, VecDeque<T>)>,
    running: Vec<String>,
    is_over: bool,
}

impl<T> std::fmt::Debug for Lines<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lines").field("running", &self.running).finish_non_exhaustive()
    }
}

impl<T> Lines<T> {
    fn new(of_one: usize) -> Lines<T> {
        Lines { of_one, waiting: VecDeque::new(), running: Vec::new(), is_over: false }
    }

    fn add(&mut self, owner: &str, piece: T) {
        match self.waiting.iter_mut().find(|(known, _)| known == owner) {
            Some((_, pieces)) => pieces.push_back(piece),
            None => self.waiting.push_back((owner.to_string(), VecDeque::from([piece]))),
        }
    }

    /// The next piece of work: of the client that has waited longest since its last turn and has not all that one may have.
    fn take(&mut self) -> Option<(String, T)> {
        let of = |owner: &str| self.running.iter().filter(|known| *known == owner).count();
        let index = self.waiting.iter().position(|(owner, _)| of(owner) < self.of_one)?;
        let (owner, mut pieces) = self.waiting.remove(index)?;
        let piece = pieces.pop_front()?;
        if !pieces.is_empty() {
            self.waiting.push_back((owner.clone(), pieces));
        }
        self.running.push(owner.clone());
        Some((owner, piece))
    }

    fn end(&mut self, owner: &str) {
        if let Some(index) = self.running.iter().position(|known| known == owner) {
            self.running.swap_remove(index);
        }
    }
}

impl Workers {
    /// Starts threads.
    pub fn start(kind: Kind) -> std::io::Result<Workers> {
        let (threads, of_one) = kind.threads();
        let shared = Arc::new(Shared { lines: Mutex::new(Lines::new(of_one)), wake: Condvar::new() });
        for _ in 0..threads {
            let shared = Arc::clone(&shared);
            let name = if kind == Kind::Quick { "quick" } else { "long" };
            std::thread::Builder::new().name(name.into()).spawn(move || {
                match kind {
                    Kind::Quick => comes_soon(),
                    Kind::Long => comes_last(),
                }
                shared.work();
            })?;
        }
        Ok(Workers { kind, shared })
    }

    /// Does a piece of work for a client, when it is its turn.
    pub async fn run<T: Send + 'static>(
        &self,
        owner: &str,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let (tell, told) = oneshot::channel();
        let skips_gone = self.kind == Kind::Long;
        let piece = Box::new(move || {
            // Nobody wants a piece of a list any more whose client is gone.
            if !(skips_gone && tell.is_closed()) {
                drop(tell.send(work()));
            }
        });
        self.shared.lock().add(owner, piece);
        self.shared.wake.notify_one();
        match told.await {
            Ok(done) => done,
            Err(error) => Err(ApiError::internal("the request could not be worked on", &error)),
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.wake.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Lines<Piece>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut lines = self.lock();
        loop {
            if let Some((owner, piece)) = lines.take() {
                drop(lines);
                // One that panics tells nobody, which is an answer, too.
                drop(catch_unwind(AssertUnwindSafe(piece)));
                lines = self.lock();
                lines.end(&owner);
                // There may be more of a client that had all that one may have.
                if !lines.waiting.is_empty() {
                    self.wake.notify_one();
                }
            } else if lines.is_over {
                return;
            } else {
                lines = self.wake.wait(lines).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_take_turns_and_nobody_has_all_threads() {
        let mut lines = Lines::new(2);
        ["a1", "a2", "a3", "a4"].iter().for_each(|piece| lines.add("a", *piece));
        lines.add("b", "b1");
        lines.add("b", "b2");
        let mut taken = Vec::new();
        while let Some((owner, piece)) = lines.take() {
            taken.push((owner, piece));
        }
        let pieces: Vec<&str> = taken.iter().map(|(_, piece)| *piece).collect();
        assert_eq!(pieces, ["a1", "b1", "a2", "b2"], "in turn, and two of each at once");
        lines.add("c", "c1");
        assert_eq!(lines.take().unwrap().1, "c1", "who is new does not wait for what others may not have yet");
        lines.end("a");
        assert_eq!(lines.take().unwrap().1, "a3");
        assert_eq!(lines.take(), None);
        lines.end("a");
        lines.end("a");
        assert_eq!((lines.take().unwrap().1, lines.take()), ("a4", None));
    }
}

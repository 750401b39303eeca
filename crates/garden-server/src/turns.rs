//! Whose turn it is, where only a few may work at the same time: looks at the files of jobs, and answers of our own program.
//!
//! Work that takes long gives its place to others but goes on, and one client cannot have all places. So neither two large datasets nor one busy client keep the
//! others waiting; what is left is the deadline that each piece of work has.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::error::ApiError;

/// Pieces of work at the same time that have not taken long yet.
pub(crate) const QUICK: usize = 2;
/// All pieces of work at the same time.
pub(crate) const MOST: usize = 8;
/// Those of one client.
pub(crate) const OF_ONE: usize = 5;

/// A piece of work that is being done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    /// The client.
    pub owner: String,
    /// For how long.
    pub age: Duration,
}

/// Which of those that wait may begin now, in the order of their turns: of the client with the fewest first, then by age. `waiting` has the oldest first; work of the age
/// `slow` gives its place away.
pub(crate) fn grant(running: &[Turn], waiting: &[&str], slow: Duration) -> Vec<usize> {
    let quick = running.iter().filter(|turn| turn.age < slow).count();
    let places = QUICK.saturating_sub(quick).min(MOST.saturating_sub(running.len()));
    let mut owners: Vec<&str> = running.iter().map(|turn| turn.owner.as_str()).collect();
    let mut granted: Vec<usize> = Vec::new();
    for _ in 0..places {
        let of = |owner: &str| owners.iter().filter(|known| **known == owner).count();
        let open = (0..waiting.len()).filter(|index| !granted.contains(index) && of(waiting[*index]) < OF_ONE);
        let Some(next) = open.min_by_key(|index| (of(waiting[*index]), *index)) else { break };
        owners.push(waiting[next]);
        granted.push(next);
    }
    granted
}

/// How many times as long as what makes it slow a piece of work has its place in any case.
const GUARANTEED: u32 = 15;

/// Which piece of work is stopped before its end, since others wait for whom no place will come free: one that has had its time, the oldest of the client that has most. A client
/// that has all of its own places only makes way for itself.
pub(crate) fn give_way(running: &[Turn], waiting: &[&str], slow: Duration) -> Option<usize> {
    let is_moving = running.iter().filter(|turn| turn.age < slow).count() >= QUICK;
    if is_moving || waiting.is_empty() || !grant(running, waiting, slow).is_empty() {
        return None;
    }
    let count = |owner: &str| running.iter().filter(|turn| turn.owner == owner).count();
    let is_full_for_others = waiting.iter().any(|owner| count(owner) < OF_ONE);
    let may_go =
        |turn: &Turn| turn.age >= slow * GUARANTEED && (is_full_for_others || waiting.contains(&turn.owner.as_str()));
    let old = running.iter().enumerate().filter(|(_, turn)| may_go(turn));
    old.max_by_key(|(_, turn)| (count(&turn.owner), turn.age)).map(|(index, _)| index)
}

/// Requests that may wait for their turns, and for how long.
const MOST_WAITING: usize = 256;
const LONGEST_WAIT: Duration = Duration::from_secs(120);
/// How often those that wait look whether something has become slow meanwhile.
const LOOK: Duration = Duration::from_secs(1);

/// Turns of requests.
#[derive(Clone, Debug)]
pub(crate) struct Turns {
    lists: Arc<Mutex<Lists>>,
    slow: Duration,
}

#[derive(Debug, Default)]
struct Lists {
    next: u64,
    running: Vec<(u64, String, Instant)>,
    waiting: VecDeque<(String, oneshot::Sender<Taken>)>,
}

/// A turn, until this is gone.
#[derive(Debug)]
pub(crate) struct Taken {
    turns: Turns,
    number: u64,
}

impl Drop for Taken {
    fn drop(&mut self) {
        let number = self.number;
        self.turns.lock().running.retain(|(known, _, _)| *known != number);
        self.turns.give();
    }
}

impl Turns {
    pub fn new(slow: Duration) -> Turns {
        Turns { lists: Arc::default(), slow }
    }

    /// Waits for a turn, for a while.
    pub async fn take(&self, owner: &str) -> Result<Taken, ApiError> {
        let (give, mut given) = oneshot::channel();
        {
            let mut lists = self.lock();
            if lists.waiting.len() >= MOST_WAITING {
                return Err(ApiError::busy());
            }
            lists.waiting.push_back((owner.to_string(), give));
        }
        let deadline = Instant::now() + LONGEST_WAIT;
        loop {
            self.give();
            match tokio::time::timeout(LOOK, &mut given).await {
                Ok(Ok(taken)) => return Ok(taken),
                Ok(Err(_)) => return Err(ApiError::busy()),
                Err(_) if Instant::now() >= deadline => return Err(ApiError::busy()),
                Err(_) => {}
            }
        }
    }

    /// Gives turns to those whose it is.
    fn give(&self) {
        let mut given = Vec::new();
        {
            let mut lists = self.lock();
            // Those who are gone do not wait.
            lists.waiting.retain(|(_, give)| !give.is_closed());
            let running: Vec<Turn> = lists
                .running
                .iter()
                .map(|(_, owner, since)| Turn { owner: owner.clone(), age: since.elapsed() })
                .collect();
            let owners: Vec<&str> = lists.waiting.iter().map(|(owner, _)| owner.as_str()).collect();
            let mut granted = grant(&running, &owners, self.slow);
            granted.sort_unstable();
            for index in granted.into_iter().rev() {
                let Some((owner, give)) = lists.waiting.remove(index) else { continue };
                let number = lists.next;
                lists.next += 1;
                lists.running.push((number, owner, Instant::now()));
                given.push((give, Taken { turns: self.clone(), number }));
            }
        }
        // One that is gone gives its turn back, which asks for the lists again.
        for (give, taken) in given {
            drop(give.send(taken));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(all: &[(&str, u64)]) -> Vec<Turn> {
        all.iter().map(|(owner, age)| Turn { owner: (*owner).into(), age: Duration::from_secs(*age) }).collect()
    }

    #[test]
    fn slow_work_and_busy_clients_do_not_keep_others_waiting() {
        type Row<'a> = (&'a [(&'a str, u64)], &'a [&'a str], &'a [usize]);
        let table: &[Row<'_>] = &[
            // Nobody works: the first two.
            (&[], &["a", "a", "a"], &[0, 1]),
            // The other client comes before the second of the first.
            (&[], &["a", "a", "b"], &[0, 2]),
            (&[("a", 1)], &["a", "b"], &[1]),
            // Two quick ones: nobody.
            (&[("a", 1), ("b", 2)], &["c"], &[]),
            // Slow ones have given their places away.
            (&[("a", 60), ("a", 60)], &["a", "b"], &[1, 0]),
            // One client has had its share; the other has not.
            (&[("a", 60), ("a", 60), ("a", 60), ("a", 60), ("a", 60)], &["a", "b"], &[1]),
            // There is an end to all of it.
            (&[("a", 60), ("a", 60), ("a", 60), ("b", 60), ("b", 60), ("b", 60), ("c", 60), ("c", 60)], &["d"], &[]),
        ];
        for (running, waiting, expected) in table {
            assert_eq!(grant(&turns(running), waiting, Duration::from_secs(20)), *expected, "{running:?}, {waiting:?}");
        }
    }

    #[test]
    fn what_hangs_makes_way_for_those_that_wait() {
        type Row<'a> = (&'a str, &'a [(&'a str, u64)], &'a [&'a str], Option<usize>);
        let five = [("a", 400), ("a", 500), ("a", 301), ("a", 302), ("a", 303)];
        let young = [("a", 299), ("a", 299), ("a", 299), ("a", 299), ("a", 299)];
        let eight = [&five[..], &[("b", 900), ("b", 800), ("b", 700)]].concat();
        let all_young = [&young[..], &[("b", 90), ("b", 80), ("b", 70)]].concat();
        let of_both = [&young[..], &[("b", 900), ("b", 800), ("b", 700)]].concat();
        let two_quick = [&five[..], &[("b", 1), ("c", 2)]].concat();
        let table: &[Row<'_>] = &[
            ("nobody waits", &five, &[], None),
            ("its sixth waits: the oldest goes", &five, &["a"], Some(1)),
            ("there is a place for the other one", &five, &["a", "b"], None),
            ("all places: of the client that has most", &eight, &["c"], Some(1)),
            ("all places, and its sixth", &eight, &["a"], Some(1)),
            ("its own have not had their time", &young, &["a"], None),
            ("none has had its time", &all_young, &["c"], None),
            ("only another client's have", &of_both, &["c"], Some(5)),
            ("those are not its own", &of_both, &["a"], None),
            ("a place comes free", &two_quick, &["d"], None),
        ];
        for (name, running, waiting, expected) in table {
            assert_eq!(give_way(&turns(running), waiting, Duration::from_secs(20)), *expected, "{name}");
        }
    }
}

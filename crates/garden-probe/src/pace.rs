//! How often something costly may be done: so seldom that it takes no more than a given share of the time.

use std::time::{Duration, Instant};

/// Says when a piece of work is due again, given what it cost last time.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    share: f64,
    pause: Duration,
    due: Instant,
}

impl Pace {
    /// Work that may take `share` of the time and is done at most once per `pause`; the first time is at once.
    pub fn new(share: f64, pause: Duration) -> Pace {
        Pace { share, pause, due: Instant::now() }
    }

    /// Whether the work may be done now.
    pub fn is_due(&self) -> bool {
        Instant::now() >= self.due
    }

    /// Notes that the work was done, beginning at a moment and ending now.
    pub fn done(&mut self, begin: Instant) {
        self.due = begin + self.pause.max(begin.elapsed().div_f64(self.share));
    }

    /// Makes the work due at a moment, whatever it cost.
    #[cfg(test)]
    pub fn set_due(&mut self, due: Instant) {
        self.due = due;
    }
}

//! How often something costly may be done: so seldom that it takes no more than a given share of the time.

use std::time::{Duration, Instant};

/// Says when a piece of work is due again, given what it cost last time.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    share: f64,
    pause: Duration,
    /// What may be spent beyond the share, so that short runs too are seen more than once.
    credit: Duration,
    due: Instant,
}

impl Pace {
    /// Work that may take `share` of the time and is done at most once per `pause`; the first time is at once.
    pub fn new(share: f64, pause: Duration) -> Pace {
        Pace { share, pause, credit: Duration::ZERO, due: Instant::now() }
    }

    /// Allows some time to be spent beyond the share.
    pub fn with_credit(self, credit: Duration) -> Pace {
        Pace { credit, ..self }
    }

    /// Whether the work may be done now.
    pub fn is_due(&self) -> bool {
        Instant::now() >= self.due
    }

    /// Notes that the work was done, beginning at a moment and ending now.
    pub fn done(&mut self, begin: Instant) {
        self.spent(begin, begin.elapsed());
    }

    fn spent(&mut self, begin: Instant, cost: Duration) {
        let owed = cost.saturating_sub(self.credit);
        self.credit = self.credit.saturating_sub(cost);
        self.due = begin + self.pause.max(owed.div_f64(self.share));
    }

    /// Makes the work due at a moment, whatever it cost.
    #[cfg(test)]
    pub fn set_due(&mut self, due: Instant) {
        self.due = due;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_is_spent_before_the_share() {
        let second = Duration::from_secs(1);
        let mut pace = Pace::new(0.001, second).with_credit(Duration::from_millis(10));
        let begin = Instant::now();
        pace.spent(begin, Duration::from_millis(8));
        assert_eq!(pace.due, begin + second);
        pace.spent(begin, Duration::from_millis(8));
        assert_eq!(pace.due, begin + 6 * second);
        pace.spent(begin, Duration::from_millis(8));
        assert_eq!(pace.due, begin + 8 * second);
    }
}

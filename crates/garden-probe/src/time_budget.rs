//! Limits costly work to a given share of the time.

use std::time::{Duration, Instant};

/// Decides when a piece of work is due again, given its cost so far.
///
/// Unspent time is saved up, to a limit; time spent beyond the savings is a debt that must be paid off first.
#[derive(Clone, Copy, Debug)]
pub struct TimeBudget {
    share: f64,
    /// Share of the time that may be spent while there are savings.
    burst: f64,
    /// The limit of the savings, in seconds.
    most: f64,
    saved: f64,
    /// When the savings were last updated.
    at: Instant,
    due: Instant,
}

impl TimeBudget {
    /// A budget of `share` of the time; the work is due at once.
    pub fn new(share: f64) -> TimeBudget {
        let now = Instant::now();
        TimeBudget { share, burst: share, most: 0.0, saved: 0.0, at: now, due: now }
    }

    /// Begins with `savings`, which may be spent as `burst` of the time and are saved up again.
    pub fn with_savings(self, savings: Duration, burst: f64) -> TimeBudget {
        TimeBudget { most: savings.as_secs_f64(), saved: savings.as_secs_f64(), burst, ..self }
    }

    /// Whether the work may be done now.
    pub fn is_due(&self) -> bool {
        Instant::now() >= self.due
    }

    /// Whether the work may be done now with at least half of the savings left for better times.
    pub fn is_affordable(&self) -> bool {
        let earned = self.at.elapsed().as_secs_f64() * self.share;
        self.is_due() && self.saved + earned >= self.most / 2.0
    }

    /// Records work done from `begin` until now.
    pub fn done(&mut self, begin: Instant) {
        self.spent(begin, begin.elapsed());
    }

    /// Records work done since `begin` by its CPU time: on a busy machine it waits as well.
    pub fn computed(&mut self, begin: &Stopwatch) {
        self.spent(begin.at, processor_time().saturating_sub(begin.processor));
    }

    fn spent(&mut self, begin: Instant, cost: Duration) {
        let earned = begin.saturating_duration_since(self.at).as_secs_f64() * self.share;
        self.saved = (self.saved + earned).min(self.most) - cost.as_secs_f64();
        self.at = begin;
        let pause = cost.div_f64(self.burst);
        let debt = Duration::from_secs_f64((-self.saved).max(0.0)).div_f64(self.share);
        self.due = begin + pause.max(debt);
    }

    /// Makes the work due at a moment, whatever it cost.
    #[cfg(test)]
    pub fn set_due(&mut self, due: Instant) {
        self.due = due;
    }
}

/// A moment, and this thread's CPU time then.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch {
    at: Instant,
    processor: Duration,
}

impl Stopwatch {
    pub fn start() -> Stopwatch {
        Stopwatch { at: Instant::now(), processor: processor_time() }
    }
}

/// The CPU time of this thread.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_up_is_spent_before_the_share_and_comes_back() {
        let (second, cost) = (Duration::from_secs(1), Duration::from_millis(8));
        let mut pace = TimeBudget::new(0.001).with_savings(Duration::from_millis(10), 0.1);
        let begin = pace.at;
        let near = |found: Instant, expected: Duration| {
            let distance = found.duration_since(begin).abs_diff(expected);
            assert!(distance < Duration::from_millis(1), "{:?}", found.duration_since(begin));
        };
        pace.spent(begin, cost);
        near(pace.due, 10 * cost);
        pace.spent(begin, cost);
        near(pace.due, 6 * second);
        pace.spent(begin + 6 * second, cost);
        near(pace.due, 14 * second);
        // Ten seconds save ten milliseconds, which is the limit of the savings.
        pace.spent(begin + 3600 * second, cost);
        near(pace.due, 3600 * second + 10 * cost);
        pace.spent(begin + 3600 * second, cost);
        near(pace.due, 3606 * second);
    }

    #[test]
    fn waiting_costs_nothing() {
        let mut pace = TimeBudget::new(0.0001);
        let begin = Stopwatch::start();
        std::thread::sleep(Duration::from_millis(20));
        pace.computed(&begin);
        assert!(pace.due.duration_since(pace.at) < Duration::from_secs(100), "{pace:?}");
    }

    #[test]
    fn without_savings_the_share_is_kept_each_time() {
        let mut pace = TimeBudget::new(0.001);
        let begin = pace.at;
        pace.spent(begin, Duration::from_millis(8));
        assert!(pace.due.duration_since(begin).abs_diff(Duration::from_secs(8)) < Duration::from_millis(1));
    }
}

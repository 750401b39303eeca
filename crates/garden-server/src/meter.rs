//! What `/metrics` tells about requests: how many, how they ended, and how long they took.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::http::StatusCode;

/// Upper bounds of the time of requests, in milliseconds.
const BOUNDS: [u64; 11] = [1, 2, 5, 10, 25, 50, 100, 250, 1000, 5000, 30_000];
/// The same of jobs that wait for their turn, in seconds.
const WAITS: [u64; 8] = [1, 10, 60, 300, 1800, 7200, 43_200, 172_800];

/// A histogram in Prometheus' sense.
#[derive(Debug)]
struct Histogram<const N: usize> {
    bounds: [u64; N],
    counts: [AtomicU64; N],
    count: AtomicU64,
    sum: AtomicU64,
}

impl<const N: usize> Histogram<N> {
    fn new(bounds: [u64; N]) -> Histogram<N> {
        let counts = std::array::from_fn(|_| AtomicU64::new(0));
        Histogram { bounds, counts, count: AtomicU64::new(0), sum: AtomicU64::new(0) }
    }

    fn note(&self, value: u64) {
        if let Some(index) = self.bounds.iter().position(|bound| value <= *bound) {
            self.counts[index].fetch_add(1, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    /// In Prometheus' words; `scale` brings a bound to seconds.
    fn text(&self, name: &str, help: &str, scale: f64) -> String {
        let name = format!("model_garden_{name}");
        let mut text = format!("# HELP {name} {help}\n# TYPE {name} histogram\n");
        let mut below = 0;
        for (bound, count) in self.bounds.iter().zip(&self.counts) {
            below += count.load(Ordering::Relaxed);
            text.push_str(&format!("{name}_bucket{{le=\"{}\"}} {below}\n", *bound as f64 * scale));
        }
        let count = self.count.load(Ordering::Relaxed).max(below);
        let sum = self.sum.load(Ordering::Relaxed) as f64 * scale;
        text.push_str(&format!("{name}_bucket{{le=\"+Inf\"}} {count}\n{name}_sum {sum}\n{name}_count {count}\n"));
        text
    }
}

/// All that is counted.
#[derive(Debug)]
pub(crate) struct Meter {
    /// By the first digit of the status.
    by_class: [AtomicU64; 6],
    times: Histogram<{ BOUNDS.len() }>,
    waits: Histogram<{ WAITS.len() }>,
}

impl Default for Meter {
    fn default() -> Meter {
        Meter {
            by_class: std::array::from_fn(|_| AtomicU64::new(0)),
            times: Histogram::new(BOUNDS),
            waits: Histogram::new(WAITS),
        }
    }
}

impl Meter {
    /// Counts a request when its answer begins.
    pub fn count(&self, status: StatusCode, time: Duration) {
        self.by_class[usize::from(status.as_u16() / 100).min(5)].fetch_add(1, Ordering::Relaxed);
        self.times.note(time.as_millis() as u64);
    }

    /// Counts a job that starts after so many seconds in the queue.
    pub fn count_wait(&self, seconds: u64) {
        self.waits.note(seconds);
    }

    /// Requests so far.
    pub fn requests(&self) -> u64 {
        self.by_class.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// In Prometheus' words.
    pub fn text(&self) -> String {
        let mut text = String::from(
            "# HELP model_garden_responses_total Responses by class of their status.\n# TYPE model_garden_responses_total counter\n",
        );
        for (class, count) in self.by_class.iter().enumerate().skip(2) {
            let count = count.load(Ordering::Relaxed);
            text.push_str(&format!("model_garden_responses_total{{class=\"{class}xx\"}} {count}\n"));
        }
        text.push_str(&self.times.text("request_seconds", "Time until an answer begins.", 1e-3));
        text.push_str(&self.waits.text(
            "queue_wait_seconds",
            "Time of jobs in the queue before their first start.",
            1.0,
        ));
        text
    }
}

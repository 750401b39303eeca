//! What was sampled so far, in bounded memory: enough for a picture and a verdict while the run goes on.
//!
//! Every sample is kept until there are [`MOST_SAMPLES`]; then every other one is dropped, and from then on only every second
//! one is taken in, and so on. The whole trace is on disk.

use garden_memory::{Diagnosis, EventKind, Libraries, Question, RunFacts, Sample, Trace, diagnose};

/// Samples that are kept: judging them takes two to three milliseconds.
const MOST_SAMPLES: usize = 1024;
/// Events that are kept.
const MOST_EVENTS: usize = 512;

/// A thinned record of a run.
#[derive(Debug)]
pub struct History {
    trace: Trace,
    /// Only every so many-th sample is taken in.
    stride: u64,
    seen: u64,
}

impl Default for History {
    fn default() -> History {
        History { trace: Trace::default(), stride: 1, seen: 0 }
    }
}

impl History {
    /// Takes in a sample.
    pub fn push(&mut self, sample: &Sample) {
        if self.seen.is_multiple_of(self.stride) {
            self.trace.push(sample);
        }
        self.seen += 1;
        if self.trace.len() >= MOST_SAMPLES {
            self.thin_out();
        }
    }

    /// Takes in an event.
    pub fn event(&mut self, kind: EventKind, step: Option<f64>, time_s: f64) {
        if self.trace.events.len() >= MOST_EVENTS {
            self.trace.events.drain(..MOST_EVENTS / 2);
        }
        self.trace.push_event(kind, step, Some(time_s));
    }

    /// Takes in what processes have loaded.
    pub fn know_libraries(&mut self, libraries: &Libraries) {
        if self.trace.libraries != *libraries {
            self.trace.libraries = libraries.clone();
        }
    }

    /// The samples that are kept.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// The verdict so far.
    pub fn judge(&self, facts: &RunFacts) -> Diagnosis {
        diagnose(&self.trace, &Question { facts: facts.clone(), ..Question::default() })
    }

    fn thin_out(&mut self) {
        let whole = std::mem::take(&mut self.trace);
        for index in (0..whole.len()).step_by(2) {
            self.trace.push(&whole.sample(index));
        }
        (self.trace.events, self.trace.libraries) = (whole.events, whole.libraries);
        for event in &mut self.trace.events {
            event.before_sample = event.before_sample.div_ceil(2);
        }
        self.stride *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use garden_memory::{Quantity, Verdict};

    #[test]
    fn a_day_of_samples_is_judged_from_a_thousand() {
        let mut history = History::default();
        for second in 0..86_400_u64 {
            let mut sample = Sample::default();
            (sample.step, sample.time_s) = (Some((second / 2) as f64), Some(second as f64));
            sample.set(Quantity::Anon, 4_000_000_000 + 10_000 * second + 3_000_000 * (second * 7919 % 11));
            history.push(&sample);
        }
        assert!(history.trace().len() <= MOST_SAMPLES, "{}", history.trace().len());
        let facts = RunFacts { steps_per_epoch: Some(1000), ..RunFacts::default() };
        let found = history.judge(&facts);
        assert_eq!(found.verdict, Verdict::Leak);
        let rate = found.growth.bytes_per_step.unwrap();
        assert!((19_000.0..21_000.0).contains(&rate), "{rate}");
    }
}

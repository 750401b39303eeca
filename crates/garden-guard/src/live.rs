//! The beat of watching: one happening after the other, and a sample when one is due.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::channel::Message;
use crate::launch::{Ending, Notice};
use crate::signals::Stop;
use crate::watch::Watch;

/// What happened.
#[derive(Debug)]
pub enum Happening {
    /// A sample was taken.
    Sampled,
    /// No process is left.
    Gone,
    /// The program printed this; the watch has heard it already.
    Printed(Vec<u8>),
    /// The program sent this over the event channel; the watch has heard it already.
    Told(Box<Message>),
    /// The program ended.
    Ended(Ending),
    /// We were asked to end.
    Asked(Stop),
    /// Somebody else has something for us: a key, for example.
    Woken,
}

/// A watch with its beat.
pub struct Live {
    /// What is watched.
    pub watch: Watch,
    notices: Receiver<Notice>,
    interval: Duration,
    due: Instant,
    late: u64,
}

impl Live {
    /// Takes a sample at each interval, the first one at once.
    pub fn new(watch: Watch, notices: Receiver<Notice>, interval: Duration) -> Live {
        Live { watch, notices, interval, due: Instant::now(), late: 0 }
    }

    /// Samples that were taken more than half an interval late.
    pub fn late(&self) -> u64 {
        self.late
    }

    /// Takes the next sample sooner than the interval says: something is about to happen.
    pub fn hurry(&mut self, pause: Duration) {
        self.due = self.due.min(Instant::now() + pause);
    }

    /// Waits for the next thing to happen, at most until `until`; `None` then.
    pub fn next(&mut self, until: Option<Instant>) -> io::Result<Option<Happening>> {
        let now = Instant::now();
        if until.is_some_and(|until| now >= until) {
            return Ok(None);
        }
        // A sample that is due comes first: a program that prints without pause must not hide its memory.
        if now >= self.due {
            return self.sample(now).map(Some);
        }
        let wake = until.map_or(self.due, |until| until.min(self.due));
        Ok(Some(match self.notices.recv_timeout(wake.saturating_duration_since(now)) {
            Ok(Notice::Output(output)) => {
                self.watch.hear_output(&output)?;
                Happening::Printed(output)
            }
            Ok(Notice::Message(message)) => {
                self.watch.hear_message(&message)?;
                if message.sample {
                    self.due = Instant::now();
                }
                Happening::Told(message)
            }
            Ok(Notice::Ended(ending)) => Happening::Ended(ending),
            Ok(Notice::Asked(stop)) => Happening::Asked(stop),
            Ok(Notice::Woken) => Happening::Woken,
            Err(RecvTimeoutError::Timeout) => return self.next(until),
            Err(RecvTimeoutError::Disconnected) => Happening::Gone,
        }))
    }

    /// Waits between two starts of a program, and says how somebody asked for the end meanwhile. What the last one said is dropped.
    pub fn asked_within(&mut self, pause: Duration) -> Option<Stop> {
        let until = Instant::now() + pause;
        loop {
            match self.notices.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Notice::Asked(stop)) if stop != Stop::HungUp => return Some(stop),
                Ok(_) => {}
                Err(_) => return None,
            }
        }
    }

    /// Waits for the next notice without sampling; `None` when there can be none any more.
    pub fn wait(&mut self) -> Option<Notice> {
        self.notices.recv().ok()
    }

    fn sample(&mut self, now: Instant) -> io::Result<Happening> {
        let lateness = now.saturating_duration_since(self.due);
        self.late += u64::from(lateness > self.interval / 2);
        // On the beat, and never in the past.
        self.due = (self.due + self.interval).max(now);
        Ok(if self.watch.sample()? { Happening::Sampled } else { Happening::Gone })
    }
}

//! The events of a run as marks of a chart: epochs, evaluations, checkpoints, collections, the end.

use garden_memory::{Activity, Clock, Event, EventKind, Trace};

use crate::chart::{Mark, Shape};
use crate::format::ClockWords;

/// Most marks of one kind in a chart; more cannot be told apart.
const MOST_OF_A_KIND: usize = 300;

/// The marks of a trace's events, along samples given as index and place.
pub(crate) fn events(trace: &Trace, samples: &[(usize, f64)], words: ClockWords) -> Vec<Mark> {
    let walk = Walk { trace, samples, words };
    let mut kinds = vec![walk.evaluations()];
    let single = [
        (EventKind::EpochEnd, "epoch", Shape::Line),
        (EventKind::Checkpoint, "checkpoint", Shape::Diamond),
        (EventKind::Gc, "collection", Shape::Dot),
        (EventKind::Exit, "end", Shape::Dot),
    ];
    kinds.extend(single.map(|(kind, name, shape)| walk.moments(kind, name, shape)));
    kinds.push(walk.activities(Activity::Checkpoint, "saving"));
    kinds.into_iter().flat_map(few).collect()
}

/// At most as many marks as can be told apart, evenly chosen.
fn few(marks: Vec<Mark>) -> Vec<Mark> {
    let every = marks.len().div_ceil(MOST_OF_A_KIND).max(1);
    marks.into_iter().step_by(every).collect()
}

struct Walk<'a> {
    trace: &'a Trace,
    samples: &'a [(usize, f64)],
    words: ClockWords,
}

impl Walk<'_> {
    /// The place of an event: as stated if that fits between its neighbours, else at the sample before it, or after it if there is none.
    fn place(&self, event: &Event) -> Option<f64> {
        // Late samples are out of order by a place or two, which does no harm here.
        let next = self.samples.partition_point(|sample| sample.0 < event.before_sample);
        let after = self.samples.get(next).map(|sample| sample.1);
        let before = next.checked_sub(1).map(|at| self.samples[at].1);
        let stated = match self.words.clock {
            Clock::Step => event.step,
            Clock::Time => event.time_s.map(|time| time - self.words.zero),
            Clock::Sample => None,
        };
        let fits = |at: &f64| before.is_none_or(|before| *at >= before) && after.is_none_or(|after| *at <= after);
        stated.filter(fits).or(before).or(after)
    }

    fn moments(&self, kind: EventKind, name: &str, shape: Shape) -> Vec<Mark> {
        let places = self.trace.events.iter().filter(|event| event.kind == kind).filter_map(|event| self.place(event));
        let mark = |(index, at): (usize, f64)| Mark {
            name: name.into(),
            label: if kind == EventKind::EpochEnd { format!("epoch {} ends", index + 1) } else { String::new() },
            at,
            stretch: None,
            shape,
        };
        places.enumerate().map(mark).collect()
    }

    /// Evaluations, from their events or else from the samples' activities.
    fn evaluations(&self) -> Vec<Mark> {
        let mut marks = Vec::new();
        let mut begun = None;
        for event in &self.trace.events {
            match event.kind {
                EventKind::EvalStart => begun = self.place(event),
                EventKind::EvalEnd => {
                    let ended = self.place(event);
                    marks.extend(begun.take().or(ended).zip(ended).map(|(from, to)| bar("evaluation", from, to)));
                }
                _ => {}
            }
        }
        marks.extend(begun.map(|from| bar("evaluation", from, self.samples.last().map_or(from, |last| last.1))));
        if marks.is_empty() { self.activities(Activity::Eval, "evaluation") } else { marks }
    }

    /// Runs of samples that were taken during an activity.
    fn activities(&self, activity: Activity, name: &str) -> Vec<Mark> {
        let is_it = |sample: &(usize, f64)| self.trace.activity(sample.0) == activity;
        let runs = self.samples.chunk_by(|a, b| is_it(a) == is_it(b)).filter(|run| is_it(&run[0]));
        runs.map(|run| bar(name, run[0].1, run[run.len() - 1].1)).collect()
    }
}

fn bar(name: &str, from: f64, to: f64) -> Mark {
    let (from, to) = (from.min(to), from.max(to));
    Mark { name: name.into(), label: String::new(), at: from, stretch: Some((from, to)), shape: Shape::Bar }
}

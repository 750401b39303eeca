//! Watching one process tree: samples and what the program says go into the trace, and into a verdict that keeps up.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use garden_memory::{Diagnosis, EventKind, RunFacts, Sample};
use garden_probe::{Sampler, TreeSample};
use garden_trace::Listener;
use regex_lite::Regex;

use crate::channel::Message;
use crate::history::History;
use crate::recorder::Recorder;
use crate::steps::StepPattern;

/// Share of the time that may be spent on judging while the run goes on: one in two thousand.
const JUDGING_BUDGET: f64 = 0.0005;
/// Whoever prints this trains.
const LOSS: &[u8] = b"loss";
/// Events of a program that are noted between two samples.
const MOST_EVENTS: u32 = 64;
/// The verdict is not made anew more often than this.
const JUDGING_PAUSE: Duration = Duration::from_secs(3);

/// A process tree under watch.
pub struct Watch {
    sampler: Sampler,
    recorder: Recorder,
    history: History,
    listener: Listener,
    pattern: Option<StepPattern>,
    begin: Instant,
    verdict: Option<Diagnosis>,
    verdict_due: Instant,
    first_seen: BTreeMap<(u32, u64), u64>,
    tree: TreeSample,
    last: Sample,
    /// Events that nobody has been told of yet.
    news: Vec<EventKind>,
    /// Events that the program told since the last sample.
    told_events: u32,
    has_told_training: bool,
    /// Whether steps come over the event channel: then what is printed may mention steps, but does not tell them.
    has_channel_steps: bool,
}

impl Watch {
    /// Begins to watch a process and to write what is seen.
    pub fn new(sampler: Sampler, recorder: Recorder, pattern: Option<Regex>) -> Watch {
        let now = Instant::now();
        Watch {
            sampler,
            recorder,
            history: History::default(),
            listener: Listener::new(),
            pattern: pattern.map(StepPattern::new),
            begin: now,
            verdict: None,
            verdict_due: now,
            first_seen: BTreeMap::new(),
            tree: TreeSample::default(),
            last: Sample::default(),
            news: Vec::new(),
            told_events: 0,
            has_told_training: false,
            has_channel_steps: false,
        }
    }

    /// Goes on with another process in the same trace: the program was started again.
    pub fn restarted(&mut self, sampler: Sampler) -> io::Result<()> {
        self.event(EventKind::Restart)?;
        self.sampler = sampler;
        self.listener = Listener::new();
        self.first_seen.clear();
        self.verdict = None;
        self.has_told_training = false;
        self.has_channel_steps = false;
        Ok(())
    }

    /// Time since the watching began.
    pub fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }

    /// Moves the clock on as if so much time had passed: to go on where an earlier part of the run ended.
    pub fn pass_time(&mut self, time: Duration) {
        self.begin -= time;
    }

    /// The trace's file and what went into it.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// The samples so far, thinned out.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// What the last sample saw.
    pub fn tree(&self) -> &TreeSample {
        &self.tree
    }

    /// The last sample as it was written.
    pub fn last(&self) -> &Sample {
        &self.last
    }

    /// The sampler.
    pub fn sampler(&self) -> &Sampler {
        &self.sampler
    }

    /// What a process held when it was first seen.
    pub fn first_seen(&self, pid: u32, started: u64) -> Option<u64> {
        self.first_seen.get(&(pid, started)).copied()
    }

    /// Whether the program has told that it trains: a step, or a loss.
    pub fn has_told_training(&self) -> bool {
        self.has_told_training || self.recorder.step().is_some()
    }

    /// Takes in what the program printed.
    pub fn hear_output(&mut self, output: &[u8]) -> io::Result<()> {
        self.has_told_training |= output.windows(LOSS.len()).any(|window| window.eq_ignore_ascii_case(LOSS));
        let heard = self.listener.hear(output);
        let step = match &mut self.pattern {
            Some(pattern) => pattern.hear(output),
            None => heard.step.filter(|_| !self.has_channel_steps),
        };
        if let Some(step) = step {
            self.recorder.at_step(step);
        }
        if let Some(facts) = heard.facts {
            self.recorder.learn(facts)?;
        }
        heard.events.into_iter().try_for_each(|kind| self.tell(kind))
    }

    /// Takes in what the program sent over the event channel.
    pub fn hear_message(&mut self, message: &Message) -> io::Result<()> {
        self.has_channel_steps |= message.step.is_some();
        self.recorder.hear(message)?;
        message.event.map_or(Ok(()), |kind| self.tell(kind))
    }

    /// Notes an event that the program told; of a flood only the first ones, so that neither the trace nor we grow with it.
    fn tell(&mut self, kind: EventKind) -> io::Result<()> {
        self.told_events += 1;
        if self.told_events > MOST_EVENTS {
            self.recorder.follow(kind);
            return Ok(());
        }
        self.event(kind)
    }

    /// Events since this was last asked.
    pub fn take_news(&mut self) -> Vec<EventKind> {
        std::mem::take(&mut self.news)
    }

    /// Notes an event.
    pub fn event(&mut self, kind: EventKind) -> io::Result<()> {
        let time_s = self.elapsed().as_secs_f64();
        self.history.event(kind, self.recorder.step(), time_s);
        self.news.push(kind);
        self.recorder.event(kind, time_s)
    }

    /// Takes one sample; false once no process is left.
    pub fn sample(&mut self) -> io::Result<bool> {
        let Some(tree) = self.sampler.sample() else { return Ok(false) };
        self.take(tree)?;
        Ok(true)
    }

    /// Takes one more sample at once if the last one knows bounds only, since a decision hangs on it: shares of memory are read
    /// unless that was done too much of late.
    pub fn measure(&mut self) -> io::Result<()> {
        match self.sampler.measure() {
            Some(tree) => self.take(tree),
            None => Ok(()),
        }
    }

    fn take(&mut self, tree: TreeSample) -> io::Result<()> {
        let time_s = self.elapsed().as_secs_f64();
        self.told_events = 0;
        self.last = self.recorder.sample(&tree, time_s)?;
        self.history.push(&self.last);
        self.history.know_libraries(self.recorder.libraries());
        let key = |identity: &garden_probe::Identity| (identity.pid, identity.started);
        // Those that have gone are forgotten now and then: comparing all with all at each sample would cost more.
        if self.first_seen.len() > 2 * tree.processes.len() + 16 {
            self.first_seen.retain(|known, _| tree.processes.iter().any(|process| key(&process.identity) == *known));
        }
        for process in &tree.processes {
            self.first_seen.entry(key(&process.identity)).or_insert(process.own);
        }
        self.tree = tree;
        Ok(())
    }

    /// The verdict so far, at most a little old: it is made anew as often as a budget allows.
    pub fn verdict(&mut self, facts: &RunFacts) -> Option<&Diagnosis> {
        if Instant::now() >= self.verdict_due {
            self.judge_now(facts);
        }
        self.verdict.as_ref()
    }

    /// The verdict that was made last, however old.
    pub fn latest_verdict(&self) -> Option<&Diagnosis> {
        self.verdict.as_ref()
    }

    /// The verdict as of this moment, for a decision that hangs on it.
    pub fn judge_now(&mut self, facts: &RunFacts) -> &Diagnosis {
        let begin = Instant::now();
        let facts = facts.clone().or(self.recorder.facts().clone());
        let verdict = self.history.judge(&facts);
        self.verdict_due = begin + JUDGING_PAUSE.max(begin.elapsed().div_f64(JUDGING_BUDGET));
        self.verdict.insert(verdict)
    }

    /// Where the trace is.
    pub fn path(&self) -> &Path {
        self.recorder.path()
    }
}

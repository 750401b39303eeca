//! `model-garden monitor`: watch a process tree, record it, judge it at the end.
//!
//! The trace on disk is the only record: the verdict at the end is `diagnose` of that file, so the two cannot differ, and the
//! monitor's own memory does not grow with the time it watches.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use garden_guard::{Channel, Ending, Message, Notice, Stage, Stop, launch, listen_for_stops, pass_stop_on};
use garden_memory::{Activity, Bytes, EventKind, Quantity, Question, RunFacts, Sample, format_change};
use garden_probe::{Sampler, TreeSample, find_training};
use garden_report::Style;
use garden_trace::{Listener, ReadOptions, Writer, read_path};

use super::Outcome;
use super::diagnose::{Judged, title};
use crate::cli::{self, Format};
use crate::failure::Failure;
use crate::printer::Printer;

/// Runs the command.
pub fn run(arguments: &cli::Monitor, printer: &Printer) -> Result<Outcome, Failure> {
    let (sender, notices) = mpsc::channel();
    listen_for_stops(sender.clone()).map_err(|error| Failure::new("cannot listen for signals", &error, None))?;
    let target = Target::find(arguments, &sender)?;
    let path = arguments.output.clone().unwrap_or_else(default_path);
    let facts = RunFacts::from(&arguments.facts);
    let sampler = Sampler::of(target.pid).map_err(|error| cannot_watch(target.pid, &error))?;
    let origin = vec![
        ("command".to_string(), sampler.root().command.clone()),
        ("process".to_string(), target.pid.to_string()),
        ("interval".to_string(), format!("{:?}", arguments.interval)),
    ];
    let record = Record::create(&path, facts, &origin)?;
    printer.say(&format!("watching {} ({}), trace: {}", target.pid, sampler.root().name, path.display()));
    let mut watch =
        Watch { sampler, record, printer, listener: Listener::new(), growth: BTreeMap::new(), late: 0, last: None };
    let ending = watch.follow(&target, &notices, arguments)?;
    watch.finish(&path, ending, arguments)
}

/// What is watched.
struct Target {
    pid: u32,
    /// Whether we started it, and so hear what it prints and how it ends.
    is_ours: bool,
    /// Kept open for as long as we watch.
    _channel: Option<Channel>,
}

impl Target {
    fn find(arguments: &cli::Monitor, notices: &Sender<Notice>) -> Result<Target, Failure> {
        if !arguments.command.is_empty() {
            return Target::start(&arguments.command, notices);
        }
        let pid = match arguments.pid {
            Some(pid) => pid,
            None => find_training().first().map(|(identity, _)| identity.pid).ok_or_else(|| Failure {
                what: "no training process found".into(),
                causes: vec!["no Python process of this machine can be looked at".into()],
                hint: Some("start it with `model-garden monitor -- COMMAND`, or name it with --pid".into()),
            })?,
        };
        Ok(Target { pid, is_ours: false, _channel: None })
    }

    fn start(command: &[OsString], notices: &Sender<Notice>) -> Result<Target, Failure> {
        let channel = Channel::open(notices.clone()).ok();
        let variable =
            channel.as_ref().map(|channel| (garden_guard::ENVIRONMENT, channel.path().as_os_str().to_owned()));
        let environment: Vec<(&str, OsString)> = variable.into_iter().collect();
        let stage =
            if io::stdout().is_terminal() && io::stdin().is_terminal() { Stage::Terminal } else { Stage::Pipes };
        let pid = launch(command, &environment, stage, notices).map_err(|error| {
            let name = command.first().map_or_else(String::new, |word| word.to_string_lossy().into_owned());
            Failure::new(format!("cannot start `{name}`"), &error, Some("check the command behind `--`".into()))
        })?;
        Ok(Target { pid, is_ours: true, _channel: channel })
    }
}

fn cannot_watch(pid: u32, error: &io::Error) -> Failure {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => "run as the same user, or in a container add `--cap-add SYS_PTRACE`",
        _ => "check the process id; the process may have ended",
    };
    Failure::new(format!("cannot watch process `{pid}`"), error, Some(hint.into()))
}

fn default_path() -> PathBuf {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    PathBuf::from(format!("model-garden-{seconds}.jsonl"))
}

/// The trace being written, and what the program said last.
struct Record {
    path: PathBuf,
    writer: Writer<File>,
    facts: RunFacts,
    begin: Instant,
    step: Option<f64>,
    activity: Activity,
    counts: [(Quantity, Option<u64>); 4],
}

impl Record {
    fn create(path: &Path, facts: RunFacts, origin: &[(String, String)]) -> Result<Record, Failure> {
        let failed =
            |error: io::Error| Failure::new(format!("cannot write the trace `{}`", path.display()), &error, None);
        let mut writer = Writer::new(File::create(path).map_err(failed)?);
        writer.header(&facts, origin).map_err(failed)?;
        let counts =
            [Quantity::Tensors, Quantity::TensorsCpu, Quantity::TensorsGpu, Quantity::Objects].map(|q| (q, None));
        let path = path.to_path_buf();
        Ok(Record { path, writer, facts, begin: Instant::now(), step: None, activity: Activity::Train, counts })
    }

    fn time(&self) -> f64 {
        // Milliseconds are enough, and keep the lines short.
        (self.begin.elapsed().as_secs_f64() * 1000.0).round() / 1000.0
    }

    fn written(&self, result: io::Result<()>) -> Result<(), Failure> {
        let hint = "the samples so far are in the file; free some space and attach again with --pid";
        result.map_err(|error| {
            Failure::new(format!("cannot write on in the trace `{}`", self.path.display()), &error, Some(hint.into()))
        })
    }

    fn sample(&mut self, tree: &TreeSample) -> Result<Sample, Failure> {
        let mut sample = tree.total.clone();
        sample.step = self.step;
        sample.time_s = Some(self.time());
        sample.activity = self.activity;
        for (quantity, count) in self.counts {
            if let Some(count) = count {
                sample.set(quantity, count);
            }
        }
        let result = self.writer.sample(&sample);
        self.written(result).map(|()| sample)
    }

    fn event(&mut self, kind: EventKind) -> Result<(), Failure> {
        self.activity = match kind {
            EventKind::EvalStart => Activity::Eval,
            EventKind::EvalEnd => Activity::Train,
            _ => self.activity,
        };
        let time = self.time();
        let result = self.writer.event(kind, self.step, Some(time));
        self.written(result)
    }

    /// Takes in facts that the program told; those given by flags stay.
    fn learn(&mut self, told: RunFacts) -> Result<(), Failure> {
        let facts = self.facts.clone().or(told);
        if facts == self.facts {
            return Ok(());
        }
        self.facts = facts;
        let result = self.writer.facts(&self.facts);
        self.written(result)
    }

    fn hear(&mut self, message: Message) -> Result<(), Failure> {
        self.step = message.step.or(self.step);
        let told = [message.tensors, message.tensors_cpu, message.tensors_gpu, message.objects];
        for ((_, known), told) in self.counts.iter_mut().zip(told) {
            *known = told.or(*known);
        }
        if let Some(facts) = message.facts {
            self.learn(facts)?;
        }
        message.event.map_or(Ok(()), |kind| self.event(kind))
    }
}

/// A process's memory when it was first seen, and the most that it had; a process that ends gives its memory back.
struct Seen {
    label: String,
    first: u64,
    highest: u64,
}

/// The watching itself.
struct Watch<'a> {
    sampler: Sampler,
    record: Record,
    printer: &'a Printer,
    listener: Listener,
    growth: BTreeMap<(u32, u64), Seen>,
    /// Samples that were taken more than half an interval late.
    late: u64,
    last: Option<Sample>,
}

impl Watch<'_> {
    /// Samples until the tree has gone, the time is over, or we are asked to stop.
    fn follow(
        &mut self,
        target: &Target,
        notices: &Receiver<Notice>,
        arguments: &cli::Monitor,
    ) -> Result<Option<Ending>, Failure> {
        let end = arguments.duration.map(|duration| Instant::now() + duration);
        let mut due = Instant::now();
        loop {
            if end.is_some_and(|end| Instant::now() >= end) {
                return Ok(None);
            }
            match notices.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(Notice::Output(output)) => self.hear(&output)?,
                Ok(Notice::Message(message)) => self.record.hear(message)?,
                Ok(Notice::Ended(ending)) => {
                    self.record.event(EventKind::Exit)?;
                    return Ok(Some(ending));
                }
                // A program of ours is asked to end and watched until it has; another one is left alone.
                Ok(Notice::Asked(stop)) if target.is_ours => pass_stop_on(target.pid, stop),
                Ok(Notice::Asked(Stop::Interrupt | Stop::Terminate)) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {
                    let lateness = Instant::now().saturating_duration_since(due);
                    self.late += u64::from(lateness > arguments.interval / 2);
                    if !self.sample()? && !target.is_ours {
                        return Ok(None);
                    }
                    due = next_due(due, arguments.interval);
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
            }
        }
    }

    fn hear(&mut self, output: &[u8]) -> Result<(), Failure> {
        let heard = self.listener.hear(output);
        self.record.step = heard.step.or(self.record.step);
        if let Some(facts) = heard.facts {
            self.record.learn(facts)?;
        }
        heard.events.into_iter().try_for_each(|kind| self.record.event(kind))
    }

    /// Takes one sample; false once no process is left.
    fn sample(&mut self) -> Result<bool, Failure> {
        let Some(tree) = self.sampler.sample() else { return Ok(false) };
        for process in &tree.processes {
            let identity = &process.identity;
            let seen = self.growth.entry((identity.pid, identity.started)).or_insert_with(|| Seen {
                label: format!("{} (process {}, {})", identity.name, identity.pid, process.role),
                first: process.memory.rss,
                highest: 0,
            });
            seen.highest = seen.highest.max(process.memory.rss);
            if !seen.label.starts_with(&identity.name) {
                seen.label = format!("{} (process {}, {})", identity.name, identity.pid, process.role);
            }
        }
        let sample = self.record.sample(&tree)?;
        self.printer.say(&self.line(&sample, tree.processes.len()));
        self.last = Some(sample);
        Ok(true)
    }

    fn line(&self, sample: &Sample, processes: usize) -> String {
        let bytes = |quantity| sample.get(quantity).unwrap_or(0);
        let change = self
            .last
            .as_ref()
            .and_then(|last| last.get(Quantity::Rss))
            .map_or(0.0, |last| bytes(Quantity::Rss) as f64 - last as f64);
        let step = sample.step.map_or(String::new(), |step| format!("step {step:.0}  "));
        format!(
            "[{:>7.1} s]  {step}{} ({})  anon {}, file {}, shared {}  {processes} {}",
            sample.time_s.unwrap_or(0.0),
            Bytes(bytes(Quantity::Rss)),
            format_change(change),
            Bytes(bytes(Quantity::Anon)),
            Bytes(bytes(Quantity::File)),
            Bytes(bytes(Quantity::Shmem)),
            if processes == 1 { "process" } else { "processes" },
        )
    }

    /// Judges the trace that was written, and says what happened.
    fn finish(self, path: &Path, ending: Option<Ending>, arguments: &cli::Monitor) -> Result<Outcome, Failure> {
        let (failed, late, grew) = (self.sampler.failed(), self.late, self.most_grown());
        // The file is complete before it is read.
        drop(self.record);
        let read = read_path(path, &ReadOptions::default()).map_err(|error| {
            Failure::new(format!("cannot judge the trace `{}`", path.display()), &error, error.hint())
        })?;
        let judged = Judged::of(read, Question::default());
        let style = if self.printer.has_colour() { Style::Colour } else { Style::Plain };
        self.printer.out(&judged.report(&title(path), Format::Text, style))?;
        if let Some(ending) = ending {
            self.printer.say(&match ending {
                Ending::Code(code) => format!("the command ended with code {code}"),
                Ending::Signal(signal) => format!("the command was ended by signal {signal}"),
            });
        }
        if let Some(grew) = grew {
            self.printer.say(&format!("grew most: {grew}"));
        }
        if failed + late > 0 {
            self.printer.say(&format!("{failed} readings failed, {late} samples were late"));
        }
        self.printer.say(&format!("trace: {}", path.display()));
        match ending {
            Some(ending) if arguments.passthrough => Ok(Outcome::Program(ending.code())),
            _ => Ok(judged.outcome()),
        }
    }

    fn most_grown(&self) -> Option<String> {
        let grown = |seen: &&Seen| seen.highest.saturating_sub(seen.first);
        let most = self.growth.values().max_by_key(grown).filter(|seen| grown(seen) > 0)?;
        Some(format!("{}: {} to {}", most.label, Bytes(most.first), Bytes(most.highest)))
    }
}

/// The next moment to sample: on the beat, and never in the past.
fn next_due(due: Instant, interval: Duration) -> Instant {
    (due + interval).max(Instant::now())
}

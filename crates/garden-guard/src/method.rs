//! How a program can be made to stop with a checkpoint, and doing it.
//!
//! In this order: it is connected to the event channel and is asked there; it catches SIGTERM and gets one, the training
//! process itself and never its group, since that would kill the loader workers and with them the checkpoint; it saves
//! every now and then and is ended just after that. A plain HF Trainer does not catch SIGTERM: it would simply die.

use garden_probe::{Identity, Process, ProcessSample, Role};
use rustix::process::{Pid, Signal, kill_process};

use crate::channel::Channel;
use crate::signals::Warning;

/// The number of SIGTERM.
const SIGTERM: i32 = 15;

/// The best way to stop a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Method {
    /// Ask over the event channel.
    Channel,
    /// SIGTERM to these processes, which catch it.
    Signal(Vec<Who>),
    /// End it just after its next periodic checkpoint.
    AfterCheckpoint,
    /// Nothing is known that would save anything.
    None,
}

impl Method {
    /// Finds the best way; `saves` tells whether a folder of checkpoints is watched.
    pub fn find(channel: Option<&Channel>, processes: &[ProcessSample], saves: bool) -> Method {
        if channel.is_some_and(Channel::is_connected) {
            return Method::Channel;
        }
        let catches = |who: &Who| open(*who).is_some_and(|process| process.catches(SIGTERM));
        let catching: Vec<Who> = training(processes).into_iter().filter(catches).collect();
        match (catching.is_empty(), saves) {
            (false, _) => Method::Signal(catching),
            (true, true) => Method::AfterCheckpoint,
            (true, false) => Method::None,
        }
    }

    /// Whether the program can be asked to save.
    pub fn saves_on_request(&self) -> bool {
        matches!(self, Method::Channel | Method::Signal(_))
    }

    /// What will be done, and what can be lost, in a sentence.
    pub fn words(&self) -> String {
        match self {
            Method::Channel => {
                "will ask for a checkpoint over the event channel before memory runs out; nothing is lost if the \
                program complies"
                    .into()
            }
            Method::Signal(processes) => {
                let names: Vec<String> = processes.iter().map(|(pid, _)| pid.to_string()).collect();
                let (noun, verb) = if names.len() == 1 { ("process", "catches") } else { ("processes", "catch") };
                format!(
                    "will send SIGTERM to {noun} {}, which {verb} it, before memory runs out; nothing is lost if it saves then",
                    names.join(" and ")
                )
            }
            Method::AfterCheckpoint => {
                "the program does not catch SIGTERM (which would kill it), so it will be ended just after \
                the last periodic checkpoint that fits; later steps are lost"
                    .into()
            }
            Method::None => "the program does not catch SIGTERM and no checkpoint folder is known: if memory runs out \
                everything is lost (pass the folder with --checkpoint-dir, or save in a SIGTERM handler)"
                .into(),
        }
    }
}

/// A process, told from a later one of the same id by its start time.
pub type Who = (u32, u64);

/// The processes of a tree that training can be stopped at: each rank's own, else the largest that is no wrapper or helper, else
/// the first. A worker that holds more than the program that spawned it is a rank.
fn training(processes: &[ProcessSample]) -> Vec<Who> {
    let who = |process: &ProcessSample| (process.identity.pid, process.identity.started);
    let parent = |process: &ProcessSample| processes.iter().find(|other| other.identity.pid == process.identity.parent);
    let is_rank = |process: &&ProcessSample| match process.role {
        Role::Training => true,
        Role::Worker => parent(process).is_some_and(|parent| process.own > parent.own),
        _ => false,
    };
    let ranks: Vec<Who> = processes.iter().filter(is_rank).map(who).collect();
    if !ranks.is_empty() {
        return ranks;
    }
    let others = processes.iter().filter(|process| process.role == Role::Other);
    others.max_by_key(|process| process.own).or(processes.first()).map(who).into_iter().collect()
}

/// Looks at a process, if it is still the one that is meant.
fn open((pid, started): Who) -> Option<Process> {
    Identity::of(pid).filter(|identity| identity.started == started).and_then(|identity| Process::open(identity).ok())
}

/// Sends SIGTERM to processes, and SIGKILL to those that would leave that alone.
pub fn terminate(processes: &[Who]) {
    for &who in processes {
        let is_deaf = open(who).is_some_and(|process| process.ignores(SIGTERM));
        signal(who, if is_deaf { Signal::KILL } else { Signal::TERM });
    }
}

/// Leaves a scheduler's warning to a program that catches it: training processes that save then, or else the command itself (`first`), as a script with a
/// trap. Those get it, others would die of it. Returns who they are, nobody if the program has ended by now; `None` if it would die of it.
pub fn forward_warning(processes: &[ProcessSample], first: u32, warning: Warning) -> Option<Vec<u32>> {
    let number = warning.number();
    let catches = |who: &Who| open(*who).is_some_and(|process| process.catches(number));
    // One that had the signal from the scheduler, too, may be ending, and has no handlers any more.
    let sample = |who: &Who| processes.iter().find(|process| (process.identity.pid, process.identity.started) == *who);
    let knows = |who: &Who| catches(who) || sample(who).is_some_and(|sample| sample.caught(number));
    let mut heard: Vec<Who> = training(processes).into_iter().filter(knows).collect();
    if heard.is_empty() {
        let command = processes.iter().find(|process| process.identity.pid == first);
        heard.extend(command.map(|process| (first, process.identity.started)).filter(knows));
    }
    heard.iter().filter(|who| catches(who)).for_each(|&who| signal(who, warning.signal()));
    let has_ended = !processes.is_empty() && !processes.iter().any(is_alive);
    (has_ended || !heard.is_empty()).then(|| heard.into_iter().map(|(pid, _)| pid).collect())
}

/// Whether a process still runs; one that has ended has no memory.
fn is_alive(process: &ProcessSample) -> bool {
    open((process.identity.pid, process.identity.started)).is_some_and(|mut now| matches!(now.memory(), Ok(Some(_))))
}

/// Sends SIGKILL to processes.
pub fn kill(processes: &[Who]) {
    processes.iter().for_each(|&who| signal(who, Signal::KILL));
}

fn signal(who: Who, signal: Signal) {
    if let Some(pid) = open(who).and_then(|_| i32::try_from(who.0).ok().and_then(Pid::from_raw)) {
        // It may have ended meanwhile.
        let _ = kill_process(pid, signal);
    }
}

//! How a program can be made to stop with a checkpoint, and doing it.
//!
//! In this order: it is connected to the event channel and is asked there; it catches SIGTERM and gets one, the training
//! process itself and never its group, since that would kill the loader workers and with them the checkpoint; it saves
//! every now and then and is ended just after that. A plain HF Trainer does not catch SIGTERM: it would simply die.

use garden_probe::{Identity, Process, ProcessSample, Role};
use rustix::process::{Pid, Signal, kill_process};

use crate::channel::Channel;

/// The number of SIGTERM.
const SIGTERM: i32 = 15;

/// The best way to stop a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Method {
    /// Ask over the event channel.
    Channel,
    /// SIGTERM to these processes, which catch it.
    Signal(Vec<u32>),
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
        let catching: Vec<u32> = training(processes).into_iter().filter(|&pid| catches(pid)).collect();
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
                "will ask for a checkpoint over the event channel before memory runs out; nothing is lost".into()
            }
            Method::Signal(pids) => {
                let who: Vec<String> = pids.iter().map(u32::to_string).collect();
                format!(
                    "will send SIGTERM to process {}, which catches it, before memory runs out; nothing is lost if it saves then",
                    who.join(" and ")
                )
            }
            Method::AfterCheckpoint => {
                "the program does not catch SIGTERM (it would die of it), so it will be ended just after \
                the last periodic checkpoint that fits; the steps since then are lost"
                    .into()
            }
            Method::None => {
                "the program does not catch SIGTERM and no folder of checkpoints is known: if memory runs out \
                everything is lost (name the folder with --checkpoint-dir, or save in a SIGTERM handler)"
                    .into()
            }
        }
    }
}

/// The training processes of a tree: each rank's own, else the largest that is no wrapper or helper, else the first.
pub fn training(processes: &[ProcessSample]) -> Vec<u32> {
    let with_role = |role: Role| processes.iter().filter(move |process| process.role == role);
    let leaders: Vec<u32> = with_role(Role::Training).map(|process| process.identity.pid).collect();
    if !leaders.is_empty() {
        return leaders;
    }
    let largest = with_role(Role::Other).max_by_key(|process| process.own).or(processes.first());
    largest.map(|process| process.identity.pid).into_iter().collect()
}

fn open(pid: u32) -> Option<Process> {
    Identity::of(pid).and_then(|identity| Process::open(identity).ok())
}

fn catches(pid: u32) -> bool {
    open(pid).is_some_and(|process| process.catches(SIGTERM))
}

/// Sends SIGTERM to processes, and SIGKILL to those that would leave that alone.
pub fn terminate(pids: &[u32]) {
    let is_deaf = |pid: &u32| open(*pid).is_some_and(|process| process.ignores(SIGTERM));
    let (deaf, others): (Vec<u32>, Vec<u32>) = pids.iter().partition(|pid| is_deaf(pid));
    signal(&others, Signal::TERM);
    signal(&deaf, Signal::KILL);
}

/// Sends SIGKILL to processes.
pub fn kill(pids: &[u32]) {
    signal(pids, Signal::KILL);
}

fn signal(pids: &[u32], signal: Signal) {
    for pid in pids.iter().filter_map(|&pid| i32::try_from(pid).ok().and_then(Pid::from_raw)) {
        // It may have ended meanwhile.
        let _ = kill_process(pid, signal);
    }
}

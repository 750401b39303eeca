//! A process and its descendants, followed over time.
//!
//! Listing `/proc` costs little; identifying each process costs more. So each look reads only new processes. A process
//! belongs to the tree if its parent does, or if it is in the root's session (its parent may have exited before we saw
//! it); once in, it stays in until it exits, whichever process adopts it.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};
use std::{fs, io};

use crate::process::{Identity, Process};
use crate::role::Role;

/// Looks after which strangers are identified again: a process id may have been reused.
const FORGET_STRANGERS_AFTER: u32 = 60;
/// The longest time between a process id being given out and the process being listed.
const FORK_TAKES: Duration = Duration::from_secs(2);

/// A process tree under watch.
#[derive(Debug)]
pub struct Tree {
    root: Identity,
    members: BTreeMap<u32, Member>,
    /// Process ids known not to belong to the tree.
    strangers: HashSet<u32>,
    looks: u32,
    /// The process that adopts the tree's orphans; its children belong to the tree too.
    guardian: Option<u32>,
    /// The newest process id at the last look, and when it changed.
    newest: Option<u32>,
    changed: Instant,
}

/// A process of the tree.
#[derive(Debug)]
pub struct Member {
    /// The process.
    pub process: Process,
    origin: Option<u32>,
    /// The last known role, with the number of `exec` calls and whether it was a fork.
    role: Option<((u32, bool), Role)>,
}

impl Member {
    /// The process of the tree that it was forked from, unless it has called `exec` since.
    pub fn origin(&self) -> Option<u32> {
        self.origin.filter(|_| self.process.execs() == 0)
    }

    /// Its role; after `exec`, the role of the new program.
    pub fn role(&mut self) -> Role {
        let (execs, is_fork) = (self.process.execs(), self.origin().is_some());
        match self.role {
            Some((known, role)) if known == (execs, is_fork) => role,
            _ => {
                let role = Role::of(&self.process.identity.command, is_fork);
                self.role = Some(((execs, is_fork), role));
                role
            }
        }
    }
}

impl Tree {
    /// Begins to follow a process and its descendants.
    pub fn of(pid: u32) -> io::Result<Tree> {
        let root = Identity::of(pid).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let process = Process::open(root.clone())?;
        let members = BTreeMap::from([(pid, Member { process, origin: None, role: None })]);
        let changed = Instant::now();
        let mut tree =
            Tree { root, members, strangers: HashSet::new(), looks: 0, guardian: None, newest: None, changed };
        tree.look();
        Ok(tree)
    }

    /// The root process of the tree.
    pub fn root(&self) -> &Identity {
        &self.root
    }

    /// Makes the children of this process part of the tree: it adopts orphans, even those that left the session.
    pub fn set_guardian(&mut self, pid: u32) {
        self.newest = None;
        self.guardian = Some(pid);
    }

    /// The processes of the tree, by process id.
    pub fn members(&mut self) -> impl Iterator<Item = &mut Member> {
        self.members.values_mut()
    }

    /// Whether no process is left.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Removes a process that has exited.
    pub fn remove(&mut self, pid: u32) {
        self.members.remove(&pid);
        self.strangers.remove(&pid);
    }

    /// Finds processes that are new since the last look.
    pub fn look(&mut self) {
        self.looks += 1;
        if self.looks.is_multiple_of(FORGET_STRANGERS_AFTER) {
            self.strangers.clear();
        }
        // Without a newer process id there is no new process since the last look, but one whose id was given out then may not have
        // been listed yet: on a busy machine a fork takes its time.
        let newest = newest_process();
        if newest != self.newest {
            (self.newest, self.changed) = (newest, Instant::now());
        }
        let is_settled = newest.is_some() && self.changed.elapsed() > FORK_TAKES;
        if is_settled && !self.looks.is_multiple_of(FORGET_STRANGERS_AFTER) {
            return;
        }
        self.list();
    }

    /// Finds new processes even if their ids were given out long ago.
    pub fn list(&mut self) {
        let alive = process_ids();
        self.strangers.retain(|pid| alive.binary_search(pid).is_ok());
        // A watcher started by the tree it watches is not part of it: it would wait for itself to end.
        let me = std::process::id();
        let mut unknown: Vec<Identity> = alive
            .iter()
            .filter(|&&pid| pid != me && !self.members.contains_key(&pid) && !self.strangers.contains(&pid))
            .filter_map(|&pid| Identity::of(pid))
            .collect();
        // A child may be listed before its parent: go on until no new process belongs to the tree.
        loop {
            let (ours, rest): (Vec<_>, Vec<_>) = unknown.into_iter().partition(|identity| self.is_ours(identity));
            unknown = rest;
            if ours.is_empty() {
                break;
            }
            for identity in ours {
                self.add(identity);
            }
        }
        self.strangers.extend(unknown.iter().map(|identity| identity.pid));
    }

    fn is_ours(&self, identity: &Identity) -> bool {
        // Only if the root leads its session can orphans be told from other programs on the same terminal.
        let leads_session = self.root.session == self.root.pid;
        self.members.contains_key(&identity.parent)
            || (leads_session && identity.session == self.root.session)
            || self.guardian == Some(identity.parent)
    }

    fn add(&mut self, identity: Identity) {
        // The parent may have called `exec` since it was read, and the child is a fork of the new program.
        if let Some(parent) = self.members.get_mut(&identity.parent) {
            parent.process.ask_again();
        }
        let origin = self.origin_of(&identity);
        let pid = identity.pid;
        // It may have exited since it was listed.
        if let Ok(process) = Process::open(identity) {
            self.members.insert(pid, Member { process, origin, role: None });
        }
    }

    /// The process that a new one was forked from: its parent, or one of the same family if the parent has exited or called `exec`.
    fn origin_of(&self, identity: &Identity) -> Option<u32> {
        let is_origin = |member: &&Member| identity.is_fork_of(&member.process.identity);
        let parent = self.members.get(&identity.parent);
        let family = || self.members.values().filter(|_| identity.image != 0).find(is_origin);
        parent.filter(is_origin).or_else(family).map(|member| member.process.identity.pid)
    }
}

/// The training programs on this machine that we may inspect, with their resident memory, largest first.
pub fn find_training() -> Vec<(Identity, u64)> {
    let me = std::process::id();
    let others = process_ids().into_iter().filter(|&pid| pid != me).filter_map(Identity::of);
    let is_fork =
        |identity: &Identity| Identity::of(identity.parent).is_some_and(|parent| identity.is_fork_of(&parent));
    let mut found: Vec<(Identity, u64)> = others
        .filter(|identity| Role::of(&identity.command, is_fork(identity)) == Role::Training)
        .filter_map(|identity| {
            let memory = Process::open(identity.clone()).ok()?.memory().ok()??;
            Some((identity, memory.rss))
        })
        .collect();
    found.sort_by_key(|(_, rss)| std::cmp::Reverse(*rss));
    found
}

/// Processes that were started with this in their environment, in the order of their starts. Those whose environment we may not read are not found.
pub fn started_with(name: &str, value: &OsStr) -> Vec<Identity> {
    let wanted = [name.as_bytes(), b"=", value.as_bytes()].concat();
    let has = |pid: &u32| {
        let all = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        all.split(|byte| *byte == 0).any(|one| one == wanted)
    };
    let mut found: Vec<Identity> = process_ids().into_iter().filter(has).filter_map(Identity::of).collect();
    found.sort_by_key(|process| (process.started, process.pid));
    found
}

/// The newest process id, which shows within a few microseconds whether a process is new; listing `/proc` takes longer with
/// each process of the machine.
fn newest_process() -> Option<u32> {
    let load = fs::read_to_string("/proc/loadavg").ok()?;
    load.split_whitespace().last()?.parse().ok()
}

/// The ids of all processes, in order.
fn process_ids() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let mut ids: Vec<u32> = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    ids.sort_unstable();
    ids
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;

    /// A shell calls `exec` and the new program forks, all between two looks: the child is still known to be that program's fork.
    #[test]
    fn a_fork_of_what_a_wrapper_became() {
        let line = "sleep 0.3; exec bash -c '(sleep 20; true) & wait'";
        let mut shell = Command::new("sh").args(["-c", line]).spawn().unwrap();
        let mut tree = Tree::of(shell.id()).unwrap();
        let patience = Instant::now() + Duration::from_secs(20);
        let mut origin = None;
        while origin.is_none() && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(700));
            tree.look();
            origin = tree.members().find_map(|member| member.origin());
        }
        let pids: Vec<u32> = tree.members().map(|member| member.process.identity.pid).collect();
        for pid in &pids {
            let _ended = Command::new("kill").arg(pid.to_string()).status();
        }
        shell.wait().unwrap();
        assert_eq!(origin, Some(shell.id()), "{pids:?}");
    }
}

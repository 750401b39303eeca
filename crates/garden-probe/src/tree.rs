//! A process and everything that descends from it, followed over time.
//!
//! Listing `/proc` costs little; reading who each process is costs more. So each look reads only what is new since the look
//! before. A process belongs to the tree if its parent does, or if it is in the root's session (its parent may have gone
//! before we saw it); once in, it stays in until it ends, whoever adopts it.

use std::collections::{BTreeMap, HashSet};
use std::{fs, io};

use crate::process::{Identity, Process};
use crate::role::Role;

/// Looks after which strangers are asked again who they are: a process id may have been given to somebody new.
const FORGET_STRANGERS_AFTER: u32 = 60;

/// A process tree under watch.
#[derive(Debug)]
pub struct Tree {
    root: Identity,
    members: BTreeMap<u32, Member>,
    /// Process ids that are known not to belong here.
    strangers: HashSet<u32>,
    looks: u32,
    /// Whoever adopts the tree's orphans; its children belong here too.
    guardian: Option<u32>,
    /// The last process id that had been given out at the last look.
    newest: Option<u32>,
}

/// A process of the tree.
#[derive(Debug)]
pub struct Member {
    /// The process.
    pub process: Process,
    origin: Option<u32>,
    /// As it was found out last: after how many programs, and whether it was a fork.
    role: Option<((u32, bool), Role)>,
}

impl Member {
    /// The process of the tree that it was forked from, if it still is the same program.
    pub fn origin(&self) -> Option<u32> {
        self.origin.filter(|_| self.process.execs() == 0)
    }

    /// What it is for; a process that became another program plays that one's part.
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
        let mut tree = Tree { root, members, strangers: HashSet::new(), looks: 0, guardian: None, newest: None };
        tree.look();
        Ok(tree)
    }

    /// The process that the tree began with.
    pub fn root(&self) -> &Identity {
        &self.root
    }

    /// From now on the children of this process belong to the tree: it adopts orphans, also those that left the session.
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

    /// Takes a process out that has gone.
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
        // Whoever is new since the last look has a later id than the last one given out then.
        let newest = newest_process();
        if newest.is_some() && newest == self.newest && !self.looks.is_multiple_of(FORGET_STRANGERS_AFTER) {
            return;
        }
        self.newest = newest;
        let alive = process_ids();
        self.strangers.retain(|pid| alive.binary_search(pid).is_ok());
        // A watcher that was started by what it watches is no part of it: it would wait for itself to end.
        let me = std::process::id();
        let mut unknown: Vec<Identity> = alive
            .iter()
            .filter(|&&pid| pid != me && !self.members.contains_key(&pid) && !self.strangers.contains(&pid))
            .filter_map(|&pid| Identity::of(pid))
            .collect();
        // A child may be listed before its parent: go on until nobody new belongs here.
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
        // Only a session of the root's own tells its orphans from other programs of the same terminal.
        let leads_session = self.root.session == self.root.pid;
        self.members.contains_key(&identity.parent)
            || (leads_session && identity.session == self.root.session)
            || self.guardian == Some(identity.parent)
    }

    fn add(&mut self, identity: Identity) {
        // The parent may have become another program since it was asked, and the child is a fork of that one.
        if let Some(parent) = self.members.get_mut(&identity.parent) {
            parent.process.ask_again();
        }
        let origin = self.origin_of(&identity);
        let pid = identity.pid;
        // It may have gone since it was listed.
        if let Ok(process) = Process::open(identity) {
            self.members.insert(pid, Member { process, origin, role: None });
        }
    }

    /// Who a new process was forked from: its parent, or one of the same family if the parent has gone or become another program.
    fn origin_of(&self, identity: &Identity) -> Option<u32> {
        let is_origin = |member: &&Member| identity.is_fork_of(&member.process.identity);
        let parent = self.members.get(&identity.parent);
        let family = || self.members.values().filter(|_| identity.image != 0).find(is_origin);
        parent.filter(is_origin).or_else(family).map(|member| member.process.identity.pid)
    }
}

/// The training programs of this machine that we may look at, with their resident memory, the largest first.
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

/// The process id that was given out last, which tells for a few microseconds whether anybody is new; listing `/proc` takes
/// longer with each process of the machine.
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

    /// A shell becomes another program, which forks, all between two looks: the child is still known to be that program's fork.
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

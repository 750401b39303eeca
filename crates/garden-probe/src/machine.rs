//! How much memory this machine, or the container we are in, may use, and how much of it is in use.
//!
//! Inside a container `/proc/meminfo` shows the host, so the limit is the smaller of the host's and the control group's,
//! walked up to the root (version 2, or the memory controller of version 1).

use std::fs;
use std::path::{Path, PathBuf};

use garden_memory::{Bytes, KIB};

/// The state of the machine and of our control group at one moment; what is not offered here is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Machine {
    /// Memory that could be handed out without swapping, in bytes.
    pub available: Option<u64>,
    /// The control group's usage less what it can drop at once (inactive file pages), in bytes.
    pub group_usage: Option<u64>,
    /// Share of the last ten seconds in which some task of the control group waited for memory, in per cent.
    pub pressure: Option<f64>,
    /// Bytes in use in `/dev/shm`.
    pub shared_files: Option<u64>,
}

impl Machine {
    /// Looks at the machine.
    pub fn look() -> Machine {
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let group = group_folders(&groups).into_iter().find(|(folder, _)| folder.exists());
        Machine {
            available: kib_of(&meminfo, "MemAvailable:"),
            group_usage: group.as_ref().and_then(|(folder, file)| group_usage(folder, file)),
            pressure: group.as_ref().and_then(|(folder, _)| pressure(folder)),
            shared_files: shared_files(),
        }
    }
}

fn group_usage(folder: &Path, limit_file: &str) -> Option<u64> {
    let (usage_file, inactive) = match limit_file {
        "memory.max" => ("memory.current", "inactive_file "),
        _ => ("memory.usage_in_bytes", "total_inactive_file "),
    };
    let usage: u64 = fs::read_to_string(folder.join(usage_file)).ok()?.trim().parse().ok()?;
    let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let droppable = stat.lines().find_map(|line| line.strip_prefix(inactive)?.trim().parse::<u64>().ok());
    Some(usage.saturating_sub(droppable.unwrap_or(0)))
}

fn pressure(folder: &Path) -> Option<f64> {
    let text = fs::read_to_string(folder.join("memory.pressure")).ok()?;
    let some = text.lines().find(|line| line.starts_with("some "))?;
    some.split(' ').find_map(|field| field.strip_prefix("avg10=")?.parse().ok())
}

fn shared_files() -> Option<u64> {
    let found = rustix::fs::statvfs("/dev/shm").ok()?;
    Some(found.f_blocks.saturating_sub(found.f_bfree).saturating_mul(found.f_frsize))
}

/// The smallest limit that holds here; `None` where nothing says so.
pub fn memory_limit() -> Option<Bytes> {
    let total = fs::read_to_string("/proc/meminfo").ok().and_then(|text| kib_of(&text, "MemTotal:"));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = group_folders(&groups).into_iter().filter_map(|(folder, file)| group_limit(&folder, file));
    limits.chain(total).min().map(Bytes)
}

fn kib_of(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * KIB)
}

/// The folders of our control groups and the name of the limit's file in them.
fn group_folders(groups: &str) -> Vec<(PathBuf, &'static str)> {
    let entry = |line: &str| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?.trim_start_matches('/'));
        match controllers {
            "" => Some((Path::new("/sys/fs/cgroup").join(path), "memory.max")),
            names if names.split(',').any(|name| name == "memory") => {
                Some((Path::new("/sys/fs/cgroup/memory").join(path), "memory.limit_in_bytes"))
            }
            _ => None,
        }
    };
    groups.lines().filter_map(entry).collect()
}

/// The smallest limit from a control group up to its root; `max` is no number and no limit.
fn group_limit(folder: &Path, file: &str) -> Option<u64> {
    let inside = |folder: &&Path| folder.starts_with("/sys/fs/cgroup");
    let limits = folder
        .ancestors()
        .take_while(inside)
        .filter_map(|folder| fs::read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok());
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_read_from_meminfo() {
        assert_eq!(kib_of("MemTotal:       24605476 kB\nMemFree: 1 kB\n", "MemTotal:"), Some(24605476 * 1024));
        assert_eq!(kib_of("nothing", "MemTotal:"), None);
    }

    #[test]
    fn looking_at_this_machine_finds_memory() {
        let machine = Machine::look();
        assert!(machine.available.is_some_and(|bytes| bytes > 0), "{machine:?}");
        assert!(memory_limit().is_some_and(|limit| limit.0 > 0));
    }

    #[test]
    fn both_versions_of_control_groups_are_found() {
        let found = group_folders("12:cpu,memory:/a/b\n3:cpu:/c\n0::/user.slice\n");
        let expected = [
            (PathBuf::from("/sys/fs/cgroup/memory/a/b"), "memory.limit_in_bytes"),
            (PathBuf::from("/sys/fs/cgroup/user.slice"), "memory.max"),
        ];
        assert_eq!(found, expected);
    }
}

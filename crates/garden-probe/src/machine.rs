//! How much memory this machine, or the container we are in, may use.
//!
//! Inside a container `/proc/meminfo` shows the host, so the limit is the smaller of the host's and the control group's,
//! walked up to the root (version 2, or the memory controller of version 1).

use std::fs;
use std::path::{Path, PathBuf};

use garden_memory::{Bytes, KIB};

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
    fn this_machine_has_a_limit() {
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

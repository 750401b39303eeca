//! Finds the cgroups of a process.
//!
//! `/proc/PID/cgroup` names the cgroups, `/proc/self/mountinfo` where they are mounted here. A machine may have version
//! 1, version 2, or both with the memory controller on either side; a container may see its own cgroup as `/`, or under
//! a path that only the host has.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// The cgroup version, which decides the names of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    One,
    Two,
}

impl Version {
    pub fn usage_file(self) -> &'static str {
        match self {
            Version::One => "memory.usage_in_bytes",
            Version::Two => "memory.current",
        }
    }

    pub fn limit_file(self) -> &'static str {
        match self {
            Version::One => "memory.limit_in_bytes",
            Version::Two => "memory.max",
        }
    }

    /// Names in `memory.stat` of memory that the kernel reclaims before it kills.
    pub fn reclaimable(self) -> &'static [&'static str] {
        match self {
            // The names without `total_` leave out child groups.
            Version::One => &["total_active_file", "total_inactive_file"],
            Version::Two => &["active_file", "inactive_file", "slab_reclaimable"],
        }
    }
}

/// Where a cgroup is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub version: Version,
    /// Where the hierarchy is mounted.
    mount: PathBuf,
    /// The group's folder, in or at the mount.
    folder: PathBuf,
}

impl Place {
    /// Where the hierarchy is mounted.
    pub fn mount(&self) -> &Path {
        &self.mount
    }

    /// The existing folders from the group's own up to the root of the mount.
    pub fn folders(&self) -> impl Iterator<Item = &Path> {
        self.folder.ancestors().take_while(|folder| folder.starts_with(&self.mount)).filter(|folder| folder.is_dir())
    }
}

/// The cgroups of a process, or our own if it cannot be read; memory controllers come first.
pub fn find(pid: u32) -> Vec<Place> {
    let own = || fs::read_to_string("/proc/self/cgroup");
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).or_else(|_| own()).unwrap_or_default();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    locate(&groups, &mounts)
}

/// A cgroup of ours with a memory controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryGroup {
    /// Its folder.
    pub folder: PathBuf,
    /// Whether it is of version 2, which allows no child groups below a group with processes.
    pub is_version_2: bool,
}

/// Our own cgroups with a memory controller.
pub fn memory_groups() -> Vec<MemoryGroup> {
    let places = find(std::process::id()).into_iter();
    let groups = places.map(|place| MemoryGroup { is_version_2: place.version == Version::Two, folder: place.folder });
    groups.filter(|group| group.folder.join("memory.stat").exists()).collect()
}

fn locate(groups: &str, mounts: &str) -> Vec<Place> {
    let mounts: Vec<Mount> = mounts.lines().filter_map(Mount::parse).collect();
    let place = |line: &str| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, Path::new(fields.next()?));
        let version = match controllers {
            "" => Version::Two,
            names if names.split(',').any(|name| name == "memory") => Version::One,
            _ => return None,
        };
        let seen = || mounts.iter().filter(|mount| mount.version == version);
        // The same hierarchy may be mounted several times, and some mounts may show only other groups.
        let fitting = seen().find_map(|mount| Some((mount, mount.folder_of(path)?)));
        // A group outside our view is at least inside the mount.
        let (mount, folder) = fitting.or_else(|| seen().next().map(|mount| (mount, mount.point.clone())))?;
        Some(Place { version, mount: mount.point.clone(), folder })
    };
    let mut places: Vec<Place> = groups.lines().filter_map(place).collect();
    places.sort_by_key(|place| place.version == Version::Two);
    places
}

/// A mounted cgroup hierarchy.
struct Mount {
    version: Version,
    /// The group at the mount point.
    root: PathBuf,
    point: PathBuf,
}

impl Mount {
    /// Parses a line of `mountinfo`: `id parent device root point options [more ...] - type source options`.
    fn parse(line: &str) -> Option<Mount> {
        let (before, after) = line.split_once(" - ")?;
        let mut kind = after.split(' ');
        let version = match (kind.next()?, kind.nth(1)?) {
            ("cgroup2", _) => Version::Two,
            ("cgroup", options) if options.split(',').any(|name| name == "memory") => Version::One,
            _ => return None,
        };
        let mut fields = before.split(' ').skip(3).map(|field| PathBuf::from(field.replace("\\040", " ")));
        Some(Mount { version, root: fields.next()?, point: fields.next()? })
    }

    fn folder_of(&self, group: &Path) -> Option<PathBuf> {
        let rest = group.strip_prefix(&self.root).ok()?;
        // `..` leads out of a container's own view.
        let is_inside = rest.components().all(|part| matches!(part, Component::Normal(_)));
        is_inside.then(|| self.point.components().chain(rest.components()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(groups: &str, mounts: &str, expected: &[(Version, &str)]) {
        let places = locate(groups, mounts);
        let found: Vec<(Version, &str)> =
            places.iter().map(|place| (place.version, place.folder.to_str().unwrap())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn version_2_alone() {
        let mount = "32 23 0:28 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate";
        check("0::/user.slice/a\n", mount, &[(Version::Two, "/sys/fs/cgroup/user.slice/a")]);
        // A container with its own cgroup namespace.
        check("0::/\n", mount, &[(Version::Two, "/sys/fs/cgroup")]);
        // A process outside that namespace.
        check("0::/../../other\n", mount, &[(Version::Two, "/sys/fs/cgroup")]);
        check("0::/\n", "", &[]);
    }

    #[test]
    fn both_versions_side_by_side() {
        let mounts = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
                      32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n\
                      35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n";
        let expected = [(Version::One, "/sys/fs/cgroup/memory/a/b"), (Version::Two, "/sys/fs/cgroup/unified")];
        check("0::/\n4:memory:/a/b\n1:cpu:/c\n", mounts, &expected);
    }

    #[test]
    fn a_container_that_sees_the_hosts_names() {
        let mount = "35 31 0:32 /docker/4711 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory";
        check("4:cpu,memory:/docker/4711\n", mount, &[(Version::One, "/sys/fs/cgroup/memory")]);
        check("4:memory:/docker/4711/sub\n", mount, &[(Version::One, "/sys/fs/cgroup/memory/sub")]);
        check("4:memory:/docker/4712\n", mount, &[(Version::One, "/sys/fs/cgroup/memory")]);
    }

    #[test]
    fn folders_go_up_to_the_mount_and_no_further() {
        let place = Place { version: Version::Two, mount: "/proc".into(), folder: "/proc/self/fd/none".into() };
        assert_eq!(place.folders().collect::<Vec<_>>(), ["/proc/self/fd", "/proc/self", "/proc"].map(Path::new));
    }
}

//! What this machine has and what limits us on it, read once: for somebody who asks why something does not work here.
//!
//! What changes from moment to moment while a program is watched is in `machine.rs`.

use std::fs;
use std::path::{Path, PathBuf};

use garden_memory::KIB;

use crate::groups::{self, Version};

/// A file system type: memory.
const TMPFS: u64 = 0x0102_1994;
/// Version 1 writes "no limit" as a number near 2^63.
const NO_LIMIT: u64 = 1 << 60;
/// The bit of CAP_SYS_PTRACE in a set of capabilities.
const SYS_PTRACE: u32 = 19;

/// This machine, as this process sees it; what is not known is absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Host {
    /// The processor's name.
    pub cpu_model: Option<String>,
    /// Processors that are online.
    pub cpus: Option<u64>,
    /// Processors' worth of time that the control group gets, where that is limited.
    pub cpu_quota: Option<f64>,
    /// Memory of the machine, in bytes.
    pub memory: Option<u64>,
    /// Swap space, in bytes.
    pub swap: Option<u64>,
    /// The smallest limit of our control groups.
    pub group: Option<GroupLimit>,
    /// Size of `/dev/shm` in bytes, where it is in memory.
    pub shared_memory: Option<u64>,
    /// Whether the kernel refuses what it could not back by memory (`vm.overcommit_memory` is 2).
    pub is_strict: bool,
    /// Limits of this process; `None` is no limit.
    pub limits: Limits,
    /// Whether processes of our own user can be read, and those of others.
    pub reading: Reading,
    /// Version of the NVIDIA kernel driver.
    pub nvidia_driver: Option<String>,
}

/// A control group with a memory limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupLimit {
    /// Its name in the hierarchy.
    pub name: PathBuf,
    /// How much memory it may use, in bytes.
    pub bytes: u64,
    /// Who made the group, as far as its name tells.
    pub owner: Owner,
}

/// Who makes control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Docker, containerd or Podman.
    Container,
    /// Kubernetes.
    Kubernetes,
    /// Slurm.
    Slurm,
    /// systemd: a service, a scope or a user's slice.
    Systemd,
    /// Somebody else, or the name is hidden from us.
    Unknown,
}

impl Owner {
    fn of(name: &str) -> Owner {
        let has = |words: &[&str]| words.iter().any(|word| name.contains(word));
        if has(&["kubepods", "kubelet"]) {
            Owner::Kubernetes
        } else if has(&["docker", "libpod", "containerd", "crio", "lxc"]) {
            Owner::Container
        } else if has(&["slurm"]) {
            Owner::Slurm
        } else if has(&[".service", ".scope", ".slice"]) {
            Owner::Systemd
        } else if Path::new("/.dockerenv").exists() || Path::new("/run/.containerenv").exists() {
            Owner::Container
        } else {
            Owner::Unknown
        }
    }
}

/// Limits of a process (`ulimit`); `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Address space, in bytes.
    pub address_space: Option<u64>,
    /// Data segment, in bytes.
    pub data: Option<u64>,
    /// Open files.
    pub open_files: Option<u64>,
    /// Processes and threads of the user.
    pub processes: Option<u64>,
    /// Size of a written file, in bytes.
    pub file_size: Option<u64>,
}

/// Which processes' memory can be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// That of the same user, tried on the process that started us; `None` if that is somebody else's.
    pub own: Option<bool>,
    /// That of every user: we are root or have CAP_SYS_PTRACE, and not locked into a user namespace of our own.
    pub others: bool,
}

/// Space of a file system, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// What we may still write.
    pub free: u64,
    /// Its size.
    pub total: u64,
}

impl Host {
    /// Looks at everything.
    pub fn look() -> Host {
        let cpuinfo = text("/proc/cpuinfo");
        let meminfo = text("/proc/meminfo");
        Host {
            cpu_model: cpuinfo.lines().find_map(|line| value(line, "model name")).map(str::to_string),
            cpus: Some(cpuinfo.lines().filter(|line| value(line, "processor").is_some()).count() as u64)
                .filter(|count| *count > 0),
            cpu_quota: cpu_quota(),
            memory: kib(&meminfo, "MemTotal:"),
            swap: kib(&meminfo, "SwapTotal:"),
            group: smallest_limit(),
            shared_memory: shared_memory(),
            is_strict: text("/proc/sys/vm/overcommit_memory").trim() == "2",
            limits: Limits::parse(&text("/proc/self/limits")),
            reading: reading(),
            nvidia_driver: Some(text("/sys/module/nvidia/version").trim().to_string()).filter(|text| !text.is_empty()),
        }
    }
}

/// The space where a path is, or will be once its folders are made.
pub fn space_at(path: &Path) -> Option<Space> {
    let there = path.ancestors().find(|folder| folder.exists());
    let status =
        rustix::fs::statvfs(there.filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(status.f_frsize);
    Some(Space { free: bytes(status.f_bavail), total: bytes(status.f_blocks) })
}

fn text(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The value of a line `name : value`.
fn value<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.strip_prefix(name)?.trim_start().strip_prefix(':').map(str::trim)
}

fn kib(meminfo: &str, name: &str) -> Option<u64> {
    let number = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    number.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(KIB)
}

fn smallest_limit() -> Option<GroupLimit> {
    let places = groups::find(std::process::id());
    let limits = places.iter().flat_map(|place| {
        place.folders().filter_map(|folder| {
            let bytes = text(folder.join(place.version.limit_file()).to_str()?).trim().parse().ok()?;
            let name = folder.strip_prefix(place.mount()).unwrap_or(folder);
            let name = Path::new("/").join(name);
            let owner = Owner::of(&name.to_string_lossy());
            (bytes < NO_LIMIT).then_some(GroupLimit { name, bytes, owner })
        })
    });
    limits.min_by_key(|limit| limit.bytes)
}

/// The smallest quota of processor time from our own control group up; version 1 keeps it in a hierarchy of its own.
fn cpu_quota() -> Option<f64> {
    let unified = groups::find(std::process::id()).into_iter().filter(|place| place.version == Version::Two);
    let unified: Vec<f64> = unified
        .flat_map(|place| place.folders().map(|folder| folder.join("cpu.max")).collect::<Vec<_>>())
        .filter_map(|file| quota(fs::read_to_string(file).ok()?.split_whitespace()))
        .collect();
    let group = text("/proc/self/cgroup");
    let own = group.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let is_cpu = fields.next()?.split(',').any(|name| name == "cpu");
        is_cpu.then_some(fields.next()?.trim_start_matches('/').to_string())
    });
    let older = own.and_then(|own| {
        let mounts = ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"].map(Path::new);
        let folder = mounts.into_iter().map(|mount| mount.join(&own)).find(|folder| folder.is_dir())?;
        let file = |name: &str| fs::read_to_string(folder.join(name)).ok();
        quota([file("cpu.cfs_quota_us")?, file("cpu.cfs_period_us")?].iter().map(|text| text.trim()))
    });
    unified.into_iter().chain(older).min_by(f64::total_cmp)
}

/// `max 100000`, `-1 100000` or `150000 100000`.
fn quota<'a>(mut words: impl Iterator<Item = &'a str>) -> Option<f64> {
    let quota: f64 = words.next()?.parse().ok()?;
    let period: f64 = words.next()?.parse().ok()?;
    (quota > 0.0 && period > 0.0).then_some(quota / period)
}

fn shared_memory() -> Option<u64> {
    let status = rustix::fs::statfs("/dev/shm").ok()?;
    let block = u64::try_from(status.f_bsize).ok()?;
    let is_in_memory = u64::try_from(status.f_type).is_ok_and(|kind| kind == TMPFS);
    is_in_memory.then(|| status.f_blocks.saturating_mul(block))
}

fn reading() -> Reading {
    let status = text("/proc/self/status");
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let has_ptrace = field("CapEff:")
        .and_then(|set| u64::from_str_radix(set, 16).ok())
        .is_some_and(|set| set & (1 << SYS_PTRACE) != 0);
    let is_of_the_machine = text("/proc/self/uid_map").split_whitespace().eq(["0", "0", "4294967295"]);
    let own_user = field("Uid:").and_then(|ids| ids.split_whitespace().next());
    let parent = field("PPid:").filter(|pid| *pid != "0");
    let own = parent.and_then(|pid| {
        let theirs = text(&format!("/proc/{pid}/status"));
        let user = theirs.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().next()?.to_string();
        (own_user == Some(user.as_str())).then(|| fs::read(format!("/proc/{pid}/smaps_rollup")).is_ok())
    });
    Reading { own, others: has_ptrace && is_of_the_machine }
}

impl Limits {
    /// Parses `/proc/PID/limits`: a name, the soft limit, the hard limit and a unit in columns.
    fn parse(text: &str) -> Limits {
        let soft = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse().ok()
        };
        Limits {
            address_space: soft("Max address space"),
            data: soft("Max data size"),
            open_files: soft("Max open files"),
            processes: soft("Max processes"),
            file_size: soft("Max file size"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_name_their_makers() {
        let check = |name: &str, expected: Owner| assert_eq!(Owner::of(name), expected, "{name}");
        check("/kubepods.slice/kubepods-burstable.slice/cri-containerd-4711.scope", Owner::Kubernetes);
        check("/system.slice/docker-0a1b.scope", Owner::Container);
        check("/docker/0a1b", Owner::Container);
        check("/slurm/uid_1000/job_7/step_0", Owner::Slurm);
        check("/user.slice/user-1000.slice/session-3.scope", Owner::Systemd);
    }

    #[test]
    fn quotas_are_shares_of_their_period() {
        let check = |text: &str, expected: Option<f64>| assert_eq!(quota(text.split_whitespace()), expected, "{text}");
        check("max 100000", None);
        check("-1 100000", None);
        check("150000 100000", Some(1.5));
        check("", None);
    }

    #[test]
    fn limits_are_the_soft_ones() {
        let text = "Limit                     Soft Limit           Hard Limit           Units     \n\
                    Max address space         2147483648           unlimited            bytes     \n\
                    Max open files            256                  20000                files     \n\
                    Max data size             unlimited            unlimited            bytes     \n";
        let found = Limits::parse(text);
        assert_eq!((found.address_space, found.open_files, found.data), (Some(2 << 30), Some(256), None));
    }

    #[test]
    fn this_machine_has_memory_and_processors() {
        let host = Host::look();
        assert!(host.memory.is_some_and(|bytes| bytes > 64 << 20), "{host:?}");
        assert!(host.cpus.is_some_and(|count| count > 0), "{host:?}");
        let space = space_at(Path::new("/no/such/folder/at/all"));
        assert!(space.is_some_and(|space| space.free <= space.total && space.total > 0), "{space:?}");
    }
}

//! The surroundings of a process: free memory of the machine and of the cgroups, and memory pressure.
//!
//! Inside a container `/proc/meminfo` shows the host, so the headroom is the minimum over the machine and each cgroup up
//! to the root. Memory that the kernel can reclaim without killing anything (file pages) counts as free. Files are kept
//! open and read again from their start.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use garden_memory::{Bytes, KIB};

use crate::groups::{self, Place, Version};
use crate::time_budget::TimeBudget;

/// Version 1 writes "no limit" as a number near 2^63.
const NO_LIMIT: u64 = 1 << 60;
/// Share of the time that may be spent on `memory.stat`, for which the kernel gathers counts from all processors.
const STAT_BUDGET: f64 = 0.0005;
/// Once this fraction (one in ten) of a group's headroom has been used since `memory.stat` was read, it is read again at any cost.
const ROOM_TAKEN: u64 = 10;
/// The file system type of tmpfs. Where `/dev/shm` is an ordinary folder, its file system's size says nothing.
const TMPFS: u64 = 0x0102_1994;

/// The surroundings of a process at one moment; unknown values are absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineMemory {
    /// Memory available on the machine without swapping, in bytes.
    pub available: Option<u64>,
    /// Use of the cgroup with the smallest limit, or of the process's own if none has a limit, in bytes.
    pub group_used: Option<u64>,
    /// The smallest limit of its cgroups, in bytes.
    pub group_limit: Option<u64>,
    /// Share of the last ten seconds in which some process waited for memory, in hundredths of a percent.
    pub pressure: Option<u64>,
    /// Size of the files in `/dev/shm`, in bytes.
    pub dev_shm: Option<u64>,
    /// How much more can be allocated before the machine or a cgroup kills something, in bytes.
    pub headroom: Option<u64>,
}

/// Reads the surroundings of a process.
#[derive(Debug)]
pub struct MachineProbe {
    meminfo: Option<File>,
    pressure: Option<File>,
    /// From the process's own group up to the root.
    groups: Vec<Group>,
    pace: TimeBudget,
    /// Reused for each reading: the largest of these files has about 2 KB.
    buffer: Vec<u8>,
}

/// A cgroup and its last reading.
#[derive(Debug)]
struct Group {
    version: Version,
    usage: File,
    limit: File,
    stat: File,
    limit_bytes: Option<u64>,
    used: Option<u64>,
    /// Used and reclaimable bytes when `memory.stat` was last read.
    known: Option<(u64, u64)>,
}

impl MachineProbe {
    /// Finds the surroundings of a process.
    pub fn of(pid: u32) -> MachineProbe {
        let places = groups::find(pid);
        let unified = places.iter().find(|place| place.version == Version::Two);
        let own_pressure = unified.and_then(|place| File::open(place.folders().next()?.join("memory.pressure")).ok());
        // Where PSI is disabled the file may exist, but cannot be read.
        let is_readable = |file: &File| file.read_at(&mut [0; 16], 0).is_ok();
        let pressure = own_pressure.filter(is_readable).or_else(|| File::open("/proc/pressure/memory").ok());
        MachineProbe {
            meminfo: File::open("/proc/meminfo").ok(),
            pressure,
            groups: places.iter().map(Group::all_of).find(|groups| !groups.is_empty()).unwrap_or_default(),
            pace: TimeBudget::new(STAT_BUDGET),
            buffer: vec![0; 8192],
        }
    }

    /// Reads all of it now.
    pub fn look(&mut self) -> MachineMemory {
        let buffer = &mut self.buffer;
        let meminfo = self.meminfo.as_ref().and_then(|file| read(file, buffer));
        let available = meminfo.and_then(|text| kib_of(text, "MemAvailable:"));
        let swap = meminfo.and_then(|text| kib_of(text, "SwapFree:")).unwrap_or(0);
        let pressure = self.pressure.as_ref().and_then(|file| pressure_of(read(file, buffer)?));
        let (begin, is_due) = (Instant::now(), self.pace.is_due());
        for (level, group) in self.groups.iter_mut().enumerate() {
            group.look(level == 0, is_due, buffer);
        }
        if is_due {
            self.pace.done(begin);
        }
        let binding =
            self.groups.iter().filter(|group| group.limit_bytes.is_some()).min_by_key(|group| group.limit_bytes);
        let rooms = self.groups.iter().filter_map(Group::room);
        MachineMemory {
            available,
            group_used: binding.or(self.groups.first()).and_then(|group| group.used),
            group_limit: binding.and_then(|group| group.limit_bytes),
            pressure,
            dev_shm: shared_memory_used(),
            headroom: rooms.chain(available.map(|bytes| bytes + swap)).min(),
        }
    }
}

impl Group {
    /// The groups with a memory controller, from a process's own up to the root.
    fn all_of(place: &Place) -> Vec<Group> {
        place.folders().filter_map(|folder| Group::open(place.version, folder)).collect()
    }

    fn open(version: Version, folder: &Path) -> Option<Group> {
        let open = |name: &str| File::open(folder.join(name)).ok();
        Some(Group {
            version,
            usage: open(version.usage_file())?,
            limit: open(version.limit_file())?,
            stat: open("memory.stat")?,
            limit_bytes: None,
            used: None,
            known: None,
        })
    }

    /// Reads the group as far as needed: groups above the process's own matter only if they have a limit.
    fn look(&mut self, is_own: bool, is_due: bool, buffer: &mut [u8]) {
        if is_due {
            self.limit_bytes = read(&self.limit, buffer).and_then(limit_of);
        }
        if !is_own && self.limit_bytes.is_none() {
            return;
        }
        self.used = read(&self.usage, buffer).and_then(|text| text.trim().parse().ok());
        let (Some(used), Some(limit)) = (self.used, self.limit_bytes) else { return };
        let has_taken_much = self.known.is_none_or(|(before, reclaimable)| {
            let room = limit.saturating_sub(before.saturating_sub(reclaimable));
            used.saturating_sub(before) > room / ROOM_TAKEN
        });
        if is_due || has_taken_much {
            let names = self.version.reclaimable();
            let sum = |text: &str| names.iter().filter_map(|name| number_of(text, name)).sum();
            self.known = read(&self.stat, buffer).map(|text| (used, sum(text)));
        }
    }

    /// The headroom of the group.
    ///
    /// Used and reclaimable bytes must be of the same moment: file pages come by the gigabyte when a program reads its data.
    fn room(&self) -> Option<u64> {
        let (used, reclaimable) = self.known?;
        Some(self.limit_bytes?.saturating_sub(used.saturating_sub(reclaimable)))
    }
}

/// The smallest memory limit that applies to us; `None` if unknown.
pub fn memory_limit() -> Option<Bytes> {
    let mut buffer = vec![0; 8192];
    let total = File::open("/proc/meminfo").ok().and_then(|file| kib_of(read(&file, &mut buffer)?, "MemTotal:"));
    let groups = groups::find(std::process::id()).iter().flat_map(Group::all_of).collect::<Vec<_>>();
    let limits = groups.iter().filter_map(|group| limit_of(read(&group.limit, &mut buffer)?));
    limits.chain(total).min().map(Bytes)
}

/// Reads a small kernel file from its start.
fn read<'a>(file: &File, buffer: &'a mut [u8]) -> Option<&'a str> {
    let length = file.read_at(buffer, 0).ok()?;
    std::str::from_utf8(&buffer[..length]).ok()
}

fn kib_of(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(KIB)
}

/// A number of `memory.stat`.
fn number_of(stat: &str, name: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// A limit; `max` means none.
fn limit_of(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|&limit| limit < NO_LIMIT)
}

/// Parses `some avg10=1.25 avg60=...` into hundredths of a percent.
fn pressure_of(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let percent: f64 = line.split(' ').find_map(|word| word.strip_prefix("avg10="))?.parse().ok()?;
    Some((percent * 100.0).round() as u64)
}

fn shared_memory_used() -> Option<u64> {
    let status = rustix::fs::statfs("/dev/shm").ok()?;
    let block = u64::try_from(status.f_bsize).ok()?;
    let is_in_memory = u64::try_from(status.f_type).is_ok_and(|kind| kind == TMPFS);
    is_in_memory.then(|| status.f_blocks.saturating_sub(status.f_bfree).saturating_mul(block))
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;

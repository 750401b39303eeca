//! Files of `/proc`, written again and again into one file: `status` and `smaps_rollup` of a process, and `meminfo`.
//!
//! Each dump is one sample with all its quantities. A dump ends where a key comes again, so `grep VmRSS` works too, and `grep -H`
//! of several processes.

use std::collections::BTreeMap;

use garden_memory::{KIB, Quantity, Subject};

use super::{Claim, Family, Listen, Told, Tool};
use crate::series::identity::Identity;
use crate::time::Stamp;

pub(super) const STATUS: Tool = Tool { name: "/proc/PID/status", documented_as: "`/proc`", example: "status.txt" };
pub(super) const MEMINFO: Tool = Tool { name: "/proc/meminfo", documented_as: "`/proc`", example: "meminfo.txt" };
pub(super) const ROLLUP: Tool =
    Tool { name: "/proc/PID/smaps_rollup", documented_as: "`/proc`", example: "smaps_rollup.txt" };

/// The tools of this file.
pub(in crate::formats) const FAMILY: Family =
    Family { tools: &[STATUS, MEMINFO, ROLLUP], listen: |_| Box::new(Kernel::default()) };

/// The dump being read.
#[derive(Default)]
pub(super) struct Kernel {
    values: BTreeMap<&'static str, u64>,
    pid: Option<String>,
    name: Option<String>,
    stamp: Option<Stamp>,
    /// Whether a `status` has been seen, whose other lines are known too.
    in_status: bool,
}

/// The keys of use, without their colon.
const KEYS: [&str; 23] = [
    "VmRSS",
    "VmHWM",
    "VmSwap",
    "RssAnon",
    "RssFile",
    "RssShmem",
    "MemTotal",
    "MemFree",
    "MemAvailable",
    "Buffers",
    "Cached",
    "Rss",
    "Pss",
    "Anonymous",
    "Private_Clean",
    "Private_Dirty",
    "Shared_Clean",
    "Shared_Dirty",
    "Swap",
    "VmSize",
    "VmPeak",
    "SwapTotal",
    "SwapFree",
];

impl Listen for Kernel {
    fn take(&mut self, line: &str, stamp: Option<Stamp>, told: &mut Vec<Told>) -> Claim {
        if line.ends_with("[rollup]") || line.starts_with("HugePages_") {
            return Claim::Yes;
        }
        let (pid, line) = grepped(line).map_or((None, line), |(pid, line)| (Some(pid), line));
        if let Some(pid) = pid {
            if self.pid.as_deref() != Some(pid) {
                self.finish(told);
            }
            self.pid = Some(pid.to_string());
        }
        let Some((key, value)) = line.split_once(':') else { return Claim::No };
        let mut words = value.split_whitespace();
        let (first, second, third) = (words.next(), words.next(), words.next());
        // The lines of `status` have a tab, which no log has there.
        let is_status = value.starts_with('\t');
        if let ("Name" | "Pid", Some(first), true) = (key, first, is_status) {
            return self.take_name(key, first, stamp, told);
        }
        let Some(known) = KEYS.into_iter().find(|known| *known == key) else {
            let is_amount = second == Some("kB") && third.is_none();
            return if is_amount || (is_status && self.in_status) { Claim::Yes } else { Claim::No };
        };
        let (Some(kib), Some("kB"), None) = (first.and_then(|word| word.parse::<u64>().ok()), second, third) else {
            return Claim::No;
        };
        if self.values.contains_key(known) {
            self.finish(told);
            self.pid = pid.map(str::to_string);
        }
        if self.values.is_empty() {
            self.stamp = stamp;
        }
        self.values.insert(known, kib.saturating_mul(KIB));
        Claim::Yes
    }

    fn finish(&mut self, told: &mut Vec<Told>) {
        let values = std::mem::take(&mut self.values);
        let (pid, name) = (self.pid.take(), self.name.take());
        if let Some(one) = sample_of(&values) {
            let identity = match (&one.subject, pid) {
                (Subject::Machine, _) => Some(Identity::machine()),
                (_, Some(pid)) => Some(Identity::process(&pid, name.as_deref())),
                _ => None,
            };
            told.push(Told { identity, stamp: self.stamp, ..one });
        }
    }
}

impl Kernel {
    /// A process's name opens its `status`, before any amount.
    fn take_name(&mut self, key: &str, value: &str, stamp: Option<Stamp>, told: &mut Vec<Told>) -> Claim {
        if !self.values.is_empty() {
            self.finish(told);
        }
        self.stamp = stamp;
        self.in_status = true;
        *(if key == "Name" { &mut self.name } else { &mut self.pid }) = Some(value.to_string());
        Claim::Yes
    }
}

/// The process and the rest of a line such as `/proc/4711/status:VmRSS: 5000 kB`, which `grep` of several files prints.
fn grepped(line: &str) -> Option<(&str, &str)> {
    let (pid, rest) = line.strip_prefix("/proc/")?.split_once('/')?;
    let rest = rest.strip_prefix("status:").or_else(|| rest.strip_prefix("smaps_rollup:"))?;
    pid.bytes().all(|byte| byte.is_ascii_digit()).then_some((pid, rest))
}

fn sample_of(values: &BTreeMap<&'static str, u64>) -> Option<Told> {
    let get = |key: &str| values.get(key).copied();
    let sum = |keys: &[&str]| keys.iter().filter_map(|key| get(key)).reduce(u64::saturating_add);
    // The kernel's three kinds of resident pages add up to it.
    let parts = sum(&["RssAnon", "RssFile", "RssShmem"]).filter(|_| get("RssAnon").is_some());
    let column = match (get("VmRSS"), get("RssFile"), get("RssShmem")) {
        (Some(_), ..) => "VmRSS",
        (None, Some(_), Some(_)) => "RssAnon + RssFile + RssShmem",
        _ => "RssAnon",
    };
    let (mut told, others) =
        if let Some(rss) = get("VmRSS").or(parts.filter(|_| column != "RssAnon")).or(get("RssAnon")) {
            let others = [
                (Quantity::Anon, get("RssAnon")),
                (Quantity::File, get("RssFile")),
                (Quantity::Shmem, get("RssShmem")),
                (Quantity::Swap, get("VmSwap")),
                (Quantity::Peak, get("VmHWM")),
            ];
            (Told::new(STATUS, Subject::Process, column, rss, KIB), others)
        } else if let Some(total) = get("MemTotal") {
            let caches = || Some(get("MemFree")?.saturating_add(sum(&["Buffers", "Cached"])?));
            let unused = get("MemAvailable").or_else(caches)?;
            let used = total.saturating_sub(unused);
            let mut told = Told::new(MEMINFO, Subject::Machine, "MemTotal - MemAvailable", used, KIB);
            told.limit = Some(total);
            let none = (Quantity::Available, None);
            (told, [(Quantity::Available, get("MemAvailable")), none, none, none, none])
        } else {
            let rss = get("Rss")?;
            let others = [
                (Quantity::Pss, get("Pss")),
                (Quantity::Anon, get("Anonymous")),
                (Quantity::Private, sum(&["Private_Clean", "Private_Dirty"])),
                (Quantity::Shared, sum(&["Shared_Clean", "Shared_Dirty"])),
                (Quantity::Swap, get("Swap")),
            ];
            (Told::new(ROLLUP, Subject::Process, "Rss", rss, KIB), others)
        };
    for (quantity, value) in others {
        value.into_iter().for_each(|value| told.sample.set(quantity, value));
    }
    Some(told)
}

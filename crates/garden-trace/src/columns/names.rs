//! The meaning of a column, judged by its name: `rss_mb`, `Process RAM (MB)`, `system.proc.memory.rssMB`.
//!
//! A name is cut into words, units are taken out, and the words decide. Names with a memory word that mean something else
//! (available, total, peak, percent, virtual) are left alone: they are not the process's present memory.

use garden_memory::{GIB, KIB, MIB, Quantity, TIB};

use crate::unit::PAGE;

/// The meaning of a column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Meaning {
    /// The training step.
    Step,
    /// A time, with the seconds per unit.
    Time(f64),
    /// The epoch, perhaps with a fraction.
    Epoch,
    /// The process's activity.
    Activity,
    /// A quantity stated exactly by the name.
    Quantity(Quantity),
    /// The process's memory, without the kind of measurement.
    Memory,
    /// Something else.
    Unknown,
}

/// A column's name, understood.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Name {
    pub(crate) meaning: Meaning,
    /// Bytes per unit, where the name states a unit.
    pub(crate) factor: Option<u64>,
}

/// Understands a column's name.
pub(crate) fn understand(name: &str) -> Name {
    let mut words = words(name);
    let factor = take_unit(&mut words);
    let words = Words(&words);
    let amount = || {
        let other = name.contains('%') || words.0.iter().any(|word| is_other_amount(word));
        if other { None } else { words.count(factor).or_else(|| words.memory(factor)) }
    };
    // DCGM counts the memory of GPUs, its frame buffer, in MiB: `DCGM_FI_DEV_FB_USED`.
    if words.0.ends_with(&["fb".to_string(), "used".to_string()]) {
        return Name { meaning: Meaning::Quantity(Quantity::Gpu), factor: factor.or(Some(MIB)) };
    }
    // psrecord's CSV calls resident memory `mem_real`, and writes MiB.
    if words.joined() == "memreal" {
        return Name { meaning: Meaning::Quantity(Quantity::Rss), factor: factor.or(Some(MIB)) };
    }
    Name { meaning: words.axis().or_else(amount).unwrap_or(Meaning::Unknown), factor }
}

/// Whether a name is the kernel's, whose numbers are KiB: `VmRSS`, `RssAnon`, `ru_maxrss`.
pub(crate) fn is_of_kernel(name: &str) -> bool {
    let joined = words(name).concat();
    ["vmrss", "vmhwm", "vmswap", "rssanon", "rssfile", "rssshmem", "maxrss"].iter().any(|known| joined.contains(known))
}

/// Whether a name means the highest memory so far: `peak_rss_mb`, `ru_maxrss`, `max memory`.
pub(crate) fn understand_peak(name: &str) -> bool {
    const PEAKS: [&str; 6] = ["peak", "max", "maximum", "hwm", "highest", "ru"];
    let mut words = words(name);
    if ["maxrss", "vmhwm"].iter().any(|known| words.concat().contains(known)) {
        return true;
    }
    let count = words.len();
    words.retain(|word| !PEAKS.contains(&word.as_str()));
    let meaning = understand(&words.join("_")).meaning;
    words.len() < count && matches!(meaning, Meaning::Memory | Meaning::Quantity(Quantity::Rss | Quantity::Pss))
}

/// Cuts a name at punctuation and before inner capitals: `rssMiB` gives `rss` and `mib`.
pub(crate) fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut previous = ' ';
    for c in name.chars() {
        let starts = !previous.is_alphanumeric() || (previous.is_lowercase() && c.is_uppercase());
        if c.is_alphanumeric() {
            match words.last_mut() {
                Some(last) if !starts || (c == 'B' && previous.is_alphanumeric() && awaits_byte(last)) => {
                    last.extend(c.to_lowercase());
                }
                _ => words.push(c.to_lowercase().collect()),
            }
        }
        previous = c;
    }
    words.into_iter().flat_map(unglue).collect()
}

/// The words of a name, except its unit.
pub(crate) fn words_without_unit(name: &str) -> Vec<String> {
    let mut words = words(name);
    take_unit(&mut words);
    words
}

/// Whether a capital B that follows ends a unit, as in `kB`, `MiB` and `rsskB`, rather than beginning a word.
fn awaits_byte(word: &str) -> bool {
    const PREFIXES: [&str; 8] = ["ki", "mi", "gi", "ti", "k", "m", "g", "t"];
    let stem = PREFIXES.iter().find_map(|prefix| word.strip_suffix(prefix));
    stem.is_some_and(|stem| stem.is_empty() || BEFORE_UNITS.contains(&stem))
}

/// Words to which people glue a unit.
const BEFORE_UNITS: [&str; 13] =
    ["rss", "maxrss", "mem", "memory", "ram", "pss", "uss", "vram", "swap", "anon", "file", "shmem", "gpu"];

/// Separates a unit from the word it is glued to, as in `rssmb`.
fn unglue(word: String) -> Vec<String> {
    let glued = ["mib", "kib", "gib", "mb", "kb", "gb"]
        .into_iter()
        .find_map(|unit| word.strip_suffix(unit).filter(|stem| BEFORE_UNITS.contains(stem)).map(|stem| (stem, unit)));
    match glued {
        Some((stem, unit)) => vec![stem.to_string(), unit.to_string()],
        None => vec![word],
    }
}

/// Takes out the unit; single letters count only at the end, as in `rss_b` and `mem_g`.
fn take_unit(words: &mut Vec<String>) -> Option<u64> {
    let last = words.len().checked_sub(1)?;
    let (at, factor) = words.iter().enumerate().find_map(|(at, word)| {
        let factor = match word.as_str() {
            "bytes" | "byte" => 1,
            "kb" | "kib" | "kbyte" | "kbytes" | "kilobyte" | "kilobytes" | "kibibytes" => KIB,
            "mb" | "mib" | "mbyte" | "mbytes" | "megabyte" | "megabytes" | "mebibytes" => MIB,
            "gb" | "gib" | "gbyte" | "gbytes" | "gigabyte" | "gigabytes" | "gibibytes" => GIB,
            "tb" | "tib" => TIB,
            "b" if at == last && at > 0 => 1,
            "k" if at == last && at > 0 => KIB,
            "m" if at == last && at > 0 => MIB,
            "g" if at == last && at > 0 => GIB,
            // What `/proc/PID/statm` counts.
            "pages" if at == last && at > 0 && words[..at].iter().any(|word| word == "rss" || word == "resident") => {
                PAGE
            }
            _ => return None,
        };
        Some((at, factor))
    })?;
    let unit = words.remove(at);
    // The plural of `KByte(s)` stands apart.
    if unit.ends_with("byte") && words.get(at).is_some_and(|word| word == "s") {
        words.remove(at);
    }
    Some(factor)
}

/// Whether a word turns an amount of memory into something else.
pub(crate) fn is_other_amount(word: &str) -> bool {
    const HIGHEST: [&str; 9] = ["peak", "peaked", "max", "maximum", "maxrss", "hwm", "vmhwm", "vmpeak", "limit"];
    const CHANGES: [&str; 9] =
        ["delta", "change", "diff", "difference", "growth", "grew", "increase", "increased", "rate"];
    const THE_MACHINE: [&str; 9] =
        ["available", "avail", "free", "unused", "remaining", "left", "capacity", "installed", "threshold"];
    const NOT_RESIDENT: [&str; 5] = ["virtual", "vms", "vsz", "virt", "vmsize"];
    const NOT_MEMORY: [&str; 7] = ["temp", "temperature", "power", "bandwidth", "fragmentation", "min", "minimum"];
    const RATES: [&str; 3] = ["load", "per", "speed"];
    let lists: [&[&str]; 7] = [&HIGHEST, &CHANGES, &SHARES, &RATES, &THE_MACHINE, &NOT_RESIDENT, &NOT_MEMORY];
    lists.iter().any(|list| list.contains(&word))
}

/// Words for shares of something.
const SHARES: [&str; 12] = [
    "percent",
    "percents",
    "pct",
    "perc",
    "percentage",
    "util",
    "utilization",
    "utilisation",
    "ratio",
    "fraction",
    "frac",
    "share",
];

/// Whether a name says that its numbers are shares of something: `mem_percent`, `%MEM`.
pub(crate) fn is_share(name: &str) -> bool {
    name.contains('%') || words(name).iter().any(|word| is_share_word(word))
}

/// Whether a word means a share, perhaps glued to another one: `mempercent`.
pub(crate) fn is_share_word(word: &str) -> bool {
    SHARES.contains(&word) || ["percent", "percentage", "pct"].iter().any(|share| word.ends_with(share))
}

/// Whether a plain memory column may have this word besides `memory`, `mem` or `ram`.
fn is_plain_word(word: &str) -> bool {
    const WHOSE: [&str; 10] =
        ["process", "proc", "python", "self", "cpu", "host", "main", "trainer", "training", "train"];
    const FILLERS: [&str; 12] =
        ["usage", "used", "use", "in", "of", "current", "now", "size", "value", "info", "footprint", "stats"];
    WHOSE.contains(&word) || FILLERS.contains(&word) || matches!(word, "memory" | "mem" | "ram")
}

struct Words<'a>(&'a [String]);

impl Words<'_> {
    fn any(&self, wanted: &[&str]) -> bool {
        self.0.iter().any(|word| wanted.contains(&word.as_str()))
    }

    fn joined(&self) -> String {
        self.0.concat()
    }

    /// Steps, times, epochs and activities.
    fn axis(&self) -> Option<Meaning> {
        let joined = self.joined();
        Some(match joined.as_str() {
            "step" | "steps" | "globalstep" | "globalsteps" | "trainstep" | "trainingstep" | "trainglobalstep"
            | "trainerglobalstep" | "currentstep" | "stepidx" | "stepnum" | "iteration" | "iterations" | "iter"
            | "iters" => Meaning::Step,
            "epoch" | "epochs" | "trainepoch" | "currentepoch" => Meaning::Epoch,
            "phase" | "label" | "activity" | "stage" | "mode" | "split" => Meaning::Activity,
            _ => return self.time(),
        })
    }

    fn time(&self) -> Option<Meaning> {
        let seconds = match self.0.last().map(String::as_str) {
            Some("s" | "sec" | "secs" | "second" | "seconds") => Some(1.0),
            Some("ms" | "msec" | "millis" | "milliseconds") => Some(1e-3),
            Some("us" | "usec" | "micros" | "microseconds") => Some(1e-6),
            Some("ns" | "nanos" | "nanoseconds") => Some(1e-9),
            Some("min" | "mins" | "minutes") => Some(60.0),
            Some("h" | "hr" | "hours") => Some(3600.0),
            _ => None,
        };
        let stem = Words(&self.0[..self.0.len() - usize::from(seconds.is_some())]).joined();
        let is_time = match stem.as_str() {
            "" => self.any(&["seconds", "secs", "milliseconds", "minutes", "hours"]),
            "time"
            | "times"
            | "elapsed"
            | "elapsedtime"
            | "timeelapsed"
            | "timestamp"
            | "timestamps"
            | "datetime"
            | "date"
            | "walltime"
            | "wallclock"
            | "wallclocktime"
            | "wall"
            | "runtime"
            | "uptime"
            | "relativetime"
            | "relativetimewall"
            | "relativetimeprocess"
            | "sincestart"
            | "timesincestart"
            | "ts"
            | "t" => true,
            _ => false,
        };
        is_time.then_some(Meaning::Time(seconds.unwrap_or(1.0)))
    }

    /// Counts rather than bytes.
    fn count(&self, factor: Option<u64>) -> Option<Meaning> {
        let quantity = if self.any(&["tensors", "tensor", "ntensors"]) {
            match () {
                _ if self.any(&["gpu", "cuda"]) => Quantity::TensorsGpu,
                _ if self.any(&["cpu", "host"]) => Quantity::TensorsCpu,
                _ => Quantity::Tensors,
            }
        } else if self.any(&["objects", "pyobjects", "nobjects"]) {
            Quantity::Objects
        } else {
            return None;
        };
        // "tensors_mb" is an amount, of an unknown kind of memory.
        Some(if factor.is_some() { Meaning::Unknown } else { Meaning::Quantity(quantity) })
    }

    fn memory(&self, factor: Option<u64>) -> Option<Meaning> {
        if self.is_share_of_gpu(factor) {
            return None;
        }
        if self.is_gpu() {
            let states_memory =
                factor.is_some() || !self.any(&["usage", "id", "name", "count", "index", "num", "load", "fan"]);
            let is_memory = states_memory || self.any(&["mem", "memory", "vram"]);
            return (is_memory && !self.any(&["total"])).then_some(Meaning::Quantity(Quantity::Gpu));
        }
        let exact: &[(&[&str], Quantity)] = &[
            (&["shmem", "shm", "rssshmem"], Quantity::Shmem),
            (&["anon", "anonymous", "rssanon"], Quantity::Anon),
            (&["file", "rssfile", "filepages"], Quantity::File),
            (&["pss"], Quantity::Pss),
            (&["swap", "swapped", "vmswap"], Quantity::Swap),
            (&["private", "uss"], Quantity::Private),
            (&["shared", "shr"], Quantity::Shared),
            (&["rss", "vmrss", "resident", "workingset"], Quantity::Rss),
        ];
        let found = exact.iter().find(|(words, _)| self.any(words)).map(|(_, quantity)| *quantity);
        match found {
            Some(Quantity::File) if self.any(&["name", "path", "open", "line", "id", "size"]) => None,
            // Visitors without a name are no memory.
            Some(Quantity::Anon) if self.any(&["user", "users", "count", "sessions", "requests"]) => None,
            Some(Quantity::Swap) if self.any(&["total"]) => None,
            Some(quantity) => Some(Meaning::Quantity(quantity)),
            // What `top` calls resident memory; without a unit it may be a resolution or a result.
            None if factor.is_some() && self.joined() == "res" => Some(Meaning::Quantity(Quantity::Rss)),
            None => self.is_plain_memory().then_some(Meaning::Memory),
        }
    }

    /// What W&B calls `system.gpu.0.memory` and `system.gpu.0.memoryAllocated` are percentages; the amounts are in bytes.
    fn is_share_of_gpu(&self, factor: Option<u64>) -> bool {
        let gpu = self.0.windows(2).position(|pair| pair[0] == "system" && pair[1] == "gpu");
        let behind = gpu.map_or(&[][..], |at| &self.0[at + 2..]);
        let is_number = |word: &String| word.bytes().all(|byte| byte.is_ascii_digit());
        factor.is_none() && behind.first().is_some_and(is_number) && behind.get(1).is_some_and(|word| word == "memory")
    }

    fn is_gpu(&self) -> bool {
        let names_gpu = |word: &String| ["gpu", "cuda", "vram"].iter().any(|start| word.starts_with(start));
        let torch_words = self.any(&["allocated", "reserved"]) && !self.any(&["ram", "rss", "cpu", "host"]);
        self.0.iter().any(names_gpu) || torch_words
    }

    fn is_plain_memory(&self) -> bool {
        self.any(&["memory", "mem", "ram"]) && self.0.iter().all(|word| is_plain_word(word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_as_people_choose_them() {
        use Quantity::*;
        let known = |q| Meaning::Quantity(q);
        for (name, meaning, factor) in [
            ("step", Meaning::Step, None),
            ("Global Step", Meaning::Step, None),
            ("train/global_step", Meaning::Step, None),
            ("_step", Meaning::Step, None),
            ("time_s", Meaning::Time(1.0), None),
            ("elapsed_ms", Meaning::Time(1e-3), None),
            ("Wall time", Meaning::Time(1.0), None),
            ("rss_mb", known(Rss), Some(MIB)),
            ("RSS (MB)", known(Rss), Some(MIB)),
            ("rss", known(Rss), None),
            ("rss_b", known(Rss), Some(1)),
            ("rssmb", known(Rss), Some(MIB)),
            ("system.proc.memory.rssMB", known(Rss), Some(MIB)),
            ("RSS [kB]", known(Rss), Some(KIB)),
            ("rss_kB", known(Rss), Some(KIB)),
            ("RSS/kB", known(Rss), Some(KIB)),
            ("RSS in kB", known(Rss), Some(KIB)),
            ("rsskB", known(Rss), Some(KIB)),
            ("rss_kiB", known(Rss), Some(KIB)),
            ("rss_mB", known(Rss), Some(MIB)),
            ("RES_kB", known(Rss), Some(KIB)),
            ("rssB", known(Rss), Some(1)),
            ("memB", Meaning::Memory, Some(1)),
            ("Memory_KByte(s)", Meaning::Memory, Some(KIB)),
            ("memory (kByte)", Meaning::Memory, Some(KIB)),
            ("Memory MByte", Meaning::Memory, Some(MIB)),
            ("VmRSS", known(Rss), None),
            ("RssAnon", known(Anon), None),
            ("anon_kib", known(Anon), Some(KIB)),
            ("mem_real", known(Rss), Some(MIB)),
            ("Process RAM [GiB]", Meaning::Memory, Some(GIB)),
            ("memory_usage_mb", Meaning::Memory, Some(MIB)),
            ("memory.rss", known(Rss), None),
            ("uss", known(Private), None),
            ("DCGM_FI_DEV_FB_USED", known(Gpu), Some(MIB)),
            ("gpu_mem_mb", known(Gpu), Some(MIB)),
            ("vram", known(Gpu), None),
            ("allocated_gb", known(Gpu), Some(GIB)),
            ("tensors_cpu", known(TensorsCpu), None),
            ("gpu_tensors", known(TensorsGpu), None),
            ("tensors", known(Tensors), None),
            ("py_objects", known(Objects), None),
        ] {
            assert_eq!(understand(name), Name { meaning, factor }, "{name}");
        }
    }

    #[test]
    fn names_of_other_things_are_left_alone() {
        for name in [
            "mem_virtual",
            "ram_available_mb",
            "memory_percent",
            "mem %",
            "peak_rss_mb",
            "total_ram_gb",
            "gpu_util",
            "gpu_usage",
            "file_name",
            "loss",
            "learning_rate",
            "memory_delta_mb",
            "system_memory",
            "steps_per_epoch",
            "",
            "gpu_id",
            "res",
            "anonymous_users",
            "grad_norm",
            "time_per_step",
        ] {
            assert_eq!(understand(name).meaning, Meaning::Unknown, "{name}");
        }
    }
}

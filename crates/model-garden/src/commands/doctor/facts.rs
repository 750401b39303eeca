//! What the machine has, in words.

use std::fmt::Write as _;

use garden_data::hub_cache;
use garden_memory::Bytes;
use garden_probe::{Owner, space_at};

use super::python::PACKAGES;
use super::{Finding, Level, Look, Machine, rounded};

/// Columns of a fact's name.
const NAME: usize = 11;
/// Width of the text.
const COLUMNS: usize = 100;

/// Something that the machine has.
pub struct Fact {
    pub name: &'static str,
    pub words: String,
}

impl Machine {
    /// What there is, in the order in which it is asked for most.
    pub fn facts(&self) -> Vec<Fact> {
        let fact = |name: &'static str, words: String| Fact { name, words };
        let mut facts = vec![
            fact("CPU", self.cpu()),
            fact("memory", self.memory()),
            fact("limit", self.limit()),
            fact("GPU", self.gpu_words()),
            fact("/dev/shm", self.host.shared_memory.map_or_else(|| "not in memory".to_string(), rounded)),
            fact("ulimits", self.ulimits()),
            fact("processes", self.reading()),
            fact("disk", self.disk()),
            fact("Python", self.python_words()),
        ];
        let timed = self.step_time.as_ref().zip(self.largest.as_ref());
        facts.extend(timed.map(|(time, model)| fact("step", format!("{}: {}", model.name, time.sentence()))));
        facts
    }

    fn cpu(&self) -> String {
        let model = self.host.cpu_model.as_deref().unwrap_or("unknown model");
        let cores = match self.host.cpus {
            Some(all) if all as usize != self.threads => format!("{} of {all} cores usable", self.threads),
            _ => format!("{} cores", self.threads),
        };
        let quota = self.host.cpu_quota.map_or_else(String::new, |quota| format!(", {quota:.1} CPUs' worth of time"));
        let used = match self.instructions {
            Some(name) => format!("training uses {name}"),
            None => "no vector instructions that help".to_string(),
        };
        format!("{model}, {cores}{quota}; {used}")
    }

    fn memory(&self) -> String {
        let total = self.host.memory.map_or_else(|| "unknown".to_string(), rounded);
        let free = self.free.map_or_else(String::new, |free| format!(", {} free for us", rounded(free)));
        let swap = match self.host.swap {
            None | Some(0) => "no swap".to_string(),
            Some(bytes) => format!("{} of swap, which plans do not count", rounded(bytes)),
        };
        format!("{total}{free}; {swap}")
    }

    fn limit(&self) -> String {
        let Some(group) = &self.host.group else { return "none below the machine's memory".to_string() };
        let owner = match group.owner {
            Owner::Container => ", set by the container's runtime",
            Owner::Kubernetes => ", set by Kubernetes",
            Owner::Slurm => ", set by Slurm",
            Owner::Systemd => ", set by systemd",
            Owner::Unknown => "",
        };
        format!("{} by the control group {}{owner}", Bytes(group.bytes), group.name.display())
    }

    fn gpu_words(&self) -> String {
        let driver = self.host.nvidia_driver.as_ref();
        let driver = driver.map_or_else(String::new, |version| format!(", driver {version}"));
        match &self.gpu {
            Ok(Look::Usable(gpu)) => format!(
                "{}, {} free of {}{driver} for CUDA {}.{}; {}",
                gpu.name,
                rounded(gpu.free_bytes),
                rounded(gpu.total_bytes),
                gpu.cuda_version / 1000,
                gpu.cuda_version % 1000 / 10,
                gpu.matrix_library
            ),
            Ok(Look::Unusable { problem, .. }) => format!("cannot be used: {problem}{driver}"),
            Ok(Look::Absent { problem, .. }) => format!("none: {problem}"),
            Err(problem) => format!("unknown: {problem}"),
        }
    }

    fn ulimits(&self) -> String {
        let limits = self.host.limits;
        let count = |limit: Option<u64>| limit.map_or_else(|| "unlimited".to_string(), |limit| limit.to_string());
        let size = |limit: Option<u64>| limit.map_or_else(|| "unlimited".to_string(), rounded);
        format!(
            "address space {}, open files {}, processes {}",
            size(limits.address_space),
            count(limits.open_files),
            count(limits.processes)
        )
    }

    fn reading(&self) -> String {
        let own = match self.host.reading.own {
            Some(true) => "your own can be watched",
            Some(false) => "your own cannot be watched",
            None => "your own were not tried",
        };
        let others = match self.host.reading.others {
            true => "those of other users too",
            false => "those of other users need root, or CAP_SYS_PTRACE in a container",
        };
        format!("{own}, {others}")
    }

    fn disk(&self) -> String {
        let free =
            |path: &std::path::Path| space_at(path).map_or_else(|| "unknown".to_string(), |space| rounded(space.free));
        let here = std::env::current_dir().unwrap_or_else(|_| ".".into());
        let cache = hub_cache().map_or_else(
            || "no Hugging Face cache, as HOME is not set".to_string(),
            |cache| {
                let is_there = if cache.is_dir() { "" } else { ", which does not exist yet" };
                format!("{} in the Hugging Face cache {}{is_there}", free(&cache), cache.display())
            },
        );
        format!("{} free here, {cache}", free(&here))
    }

    fn python_words(&self) -> String {
        let python = match &self.python {
            Ok(python) => python,
            Err(problem) => return format!("none: {problem}"),
        };
        let version = |name: &str| python.packages.get(name).cloned().flatten();
        let there: Vec<String> =
            PACKAGES.iter().filter_map(|name| Some(format!("{name} {}", version(name)?))).collect();
        let missing: Vec<&str> = PACKAGES.into_iter().filter(|name| version(name).is_none()).collect();
        let there = if there.is_empty() { String::new() } else { format!("; {}", there.join(", ")) };
        let missing = if missing.is_empty() { String::new() } else { format!("; without {}", missing.join(", ")) };
        format!("{} ({}){there}{missing}", python.version, python.executable)
    }
}

/// The whole answer.
pub fn text(headline: &str, facts: &[Fact], findings: &[Finding]) -> String {
    let mut text = wrapped(&format!("{headline}."), 0, 0) + "\n";
    for fact in facts {
        let _ = writeln!(text, "  {:<NAME$}{}", fact.name, wrapped(&fact.words, NAME + 2, NAME + 2).trim_start());
    }
    for (level, title) in [(Level::Problem, "Would not work"), (Level::Note, "Notes")] {
        let mut of_level = findings.iter().filter(|finding| finding.level == level).peekable();
        if of_level.peek().is_some() {
            let _ = writeln!(text, "\n{title}");
        }
        for finding in of_level {
            let what = format!("{}: {}", finding.what, finding.consequence);
            let _ = writeln!(text, "  - {}", wrapped(&what, 4, 4).trim_start());
            let _ = writeln!(text, "    fix: {}", wrapped(&finding.fix, 9, 9).trim_start());
        }
    }
    text
}

/// Words in lines that begin with so many spaces, the first one after `used` columns.
fn wrapped(words: &str, used: usize, indent: usize) -> String {
    let mut text = String::new();
    let mut column = used;
    for word in words.split_whitespace() {
        let length = word.chars().count();
        if column > indent && column + 1 + length > COLUMNS {
            text += &format!("\n{}", " ".repeat(indent));
            column = indent;
        } else if column > indent {
            text.push(' ');
            column += 1;
        }
        text += word;
        column += length;
    }
    text + if indent == 0 { "\n" } else { "" }
}

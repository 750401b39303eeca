//! `nvidia-smi` as a drawn table, and `nvidia-smi dmon -s m` and `pmon -s m`: memory in use of each GPU, or of each
//! process on it.
//!
//! The forms with `--query-gpu` are tables with commas, which `table.rs` and `headless.rs` read.

use garden_memory::{MIB, Subject};

use super::{Claim, Figure, Told, Tool};
use crate::identity::{Identity, Part, Who};

/// Reads the lines of GPUs.
#[derive(Default)]
pub(super) struct Gpus {
    /// Whether the frame of the drawn table has been seen.
    is_drawn: bool,
    /// The GPU of the first of its lines in the drawn table.
    drawn: Option<String>,
    monitor: Option<Monitor>,
}

/// The header of `dmon` or `pmon`, by position.
struct Monitor {
    gpu: usize,
    pid: Option<usize>,
    memory: usize,
    command: Option<usize>,
}

impl Gpus {
    pub(super) fn take(&mut self, line: &str, told: &mut Vec<Told>) -> Claim {
        if line.starts_with(['|', '+']) {
            return self.take_drawn(line, told);
        }
        if let Some(header) = line.strip_prefix('#') {
            let words: Vec<&str> = header.split_whitespace().filter(|word| *word != "Time").collect();
            let find = |name: &str| words.iter().position(|word| *word == name);
            if let (Some(gpu), Some(memory)) = (find("gpu"), find("fb")) {
                self.monitor = Some(Monitor { gpu, memory, pid: find("pid"), command: find("command") });
            }
            return if self.monitor.is_some() { Claim::Yes } else { Claim::No };
        }
        match &self.monitor {
            Some(monitor) => monitor.take(line, told),
            None => Claim::No,
        }
    }

    /// Two lines tell of each GPU: `|   0  NVIDIA A100 .. | 00000000:07:00.0 Off |` and `| .. | 1234MiB / 81920MiB | .. |`.
    fn take_drawn(&mut self, line: &str, told: &mut Vec<Told>) -> Claim {
        self.is_drawn |= line.contains("NVIDIA-SMI") || line.contains("Memory-Usage");
        let cells: Vec<&str> = line.trim_matches('|').split('|').collect();
        let first = cells.first().and_then(|cell| cell.split_whitespace().next());
        let is_bus = |word: &str| word.matches(':').count() == 2 && word.contains('.');
        if let Some(index) = first.filter(|index| index.parse::<u32>().is_ok())
            && cells.get(1).and_then(|cell| cell.split_whitespace().next()).is_some_and(is_bus)
        {
            self.drawn = Some(index.to_string());
            return Claim::Yes;
        }
        let usage = cells.iter().find_map(|cell| {
            let (used, total) = cell.split_once(" / ")?;
            let figure = |text: &str| Figure::parse(text.trim()).filter(|_| text.trim().ends_with("iB"));
            Some((figure(used)?, figure(total)?))
        });
        if let Some((used, total)) = usage
            && let Some(bytes) = used.bytes(1)
        {
            let mut one =
                Told::new(Tool::NvidiaSmi, Subject::Device, "Memory-Usage", bytes, used.factor.unwrap_or(MIB));
            one.limit = total.bytes(1);
            let index = self.drawn.take().unwrap_or_else(|| "0".to_string());
            told.push(one.of(Identity::of(Who::Gpu, index)));
            return Claim::Yes;
        }
        if self.is_drawn { Claim::Yes } else { Claim::No }
    }
}

impl Monitor {
    fn take(&self, line: &str, told: &mut Vec<Told>) -> Claim {
        let words: Vec<&str> = line.split_whitespace().collect();
        let whole = |at: usize| words.get(at).filter(|word| word.parse::<u32>().is_ok());
        let Some(gpu) = whole(self.gpu) else { return Claim::No };
        let Some(memory) = words.get(self.memory) else { return Claim::No };
        let mut parts = vec![Part { who: Who::Gpu, value: (*gpu).to_string() }];
        let mut detail = None;
        if let Some(at) = self.pid {
            // A GPU without processes has a row of dashes.
            let Some(pid) = whole(at) else { return Claim::Yes };
            parts.push(Part { who: Who::Pid, value: (*pid).to_string() });
            detail = self.command.and_then(|at| words.get(at..)).map(|words| words.join(" "));
        }
        if let Some(bytes) = Figure::parse(memory).and_then(|figure| figure.bytes(MIB)) {
            let one = Told::new(Tool::NvidiaSmi, Subject::Device, "fb", bytes, MIB);
            told.push(one.of(Identity { parts, detail: detail.filter(|detail| !detail.is_empty()) }));
        }
        Claim::Yes
    }
}

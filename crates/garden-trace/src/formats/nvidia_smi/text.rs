//! `nvidia-smi` as a drawn table (with its MIG devices), as a list (`-q`), and as `dmon -s m` and `pmon -s m`: memory in use of each
//! GPU, or of each process on it.

use garden_memory::{MIB, Subject};

use crate::formats::tools::{Claim, Family, Figure, Listen, Told, Tool};
use crate::series::identity::{Identity, Part, Who};
use crate::time::Stamp;

const NVIDIA_SMI: Tool = Tool { name: "nvidia-smi", documented_as: "nvidia-smi", example: "nvidia-smi.txt" };

/// The tool, for the table of tools.
pub(in crate::formats) const FAMILY: Family = Family { tools: &[NVIDIA_SMI], listen: |_| Box::new(Gpus::default()) };

/// Reads the lines of GPUs.
#[derive(Default)]
struct Gpus {
    /// Whether the frame of the drawn table has been seen.
    is_drawn: bool,
    /// The GPU of the first of its lines in the drawn table.
    drawn: Option<String>,
    /// Whether the rows are those of MIG devices.
    in_mig: bool,
    monitor: Option<Monitor>,
    listed: Option<Listed>,
}

/// The GPU that `nvidia-smi -q` lists at present.
struct Listed {
    gpu: String,
    /// Whether the figures are those of its own memory, and not of the window that the host sees.
    in_memory: bool,
    total: Option<u64>,
}

/// The header of `dmon` or `pmon`, by position.
struct Monitor {
    gpu: usize,
    pid: Option<usize>,
    memory: usize,
    command: Option<usize>,
}

impl Listen for Gpus {
    fn take(&mut self, line: &str, _: Option<Stamp>, told: &mut Vec<Told>) -> Claim {
        if line.starts_with(['|', '+']) {
            return self.take_drawn(line, told);
        }
        if let Some(header) = line.strip_prefix('#') {
            let words: Vec<&str> = header.split_whitespace().filter(|word| !["Date", "Time"].contains(word)).collect();
            let find = |name: &str| words.iter().position(|word| *word == name);
            if let (Some(gpu), Some(memory)) = (find("gpu"), find("fb")) {
                self.monitor = Some(Monitor { gpu, memory, pid: find("pid"), command: find("command") });
            }
            return if self.monitor.is_some() { Claim::Yes } else { Claim::No };
        }
        if self.take_listed(line, told) == Claim::Yes {
            return Claim::Yes;
        }
        match &self.monitor {
            Some(monitor) => monitor.take(line, told),
            None => Claim::No,
        }
    }
}

impl Gpus {
    /// The lines of `nvidia-smi -q`: `GPU 00000000:07:00.0`, then `FB Memory Usage` with `Used : 30000 MiB` below it.
    fn take_listed(&mut self, line: &str, told: &mut Vec<Told>) -> Claim {
        if let Some(bus) = line.strip_prefix("GPU ").map(str::trim).filter(|bus| is_bus(bus)) {
            self.listed = Some(Listed { gpu: bus.to_string(), in_memory: false, total: None });
            return Claim::Yes;
        }
        if line.trim_matches('=') == "NVSMI LOG" || is_listed_fact(line) {
            return Claim::Yes;
        }
        let Some(listed) = &mut self.listed else { return Claim::No };
        let Some((key, value)) = line.split_once(" : ") else {
            // A heading; what else has neither a colon nor a digit is none of ours.
            listed.in_memory = line == "FB Memory Usage";
            return if line.contains([':', '=']) { Claim::No } else { Claim::Yes };
        };
        let (key, amount) = (key.trim(), value.trim().strip_suffix(" MiB").and_then(Figure::parse));
        match (key, amount.and_then(|figure| figure.bytes(MIB))) {
            ("Total", Some(bytes)) if listed.in_memory => listed.total = Some(bytes),
            ("Used", Some(bytes)) if listed.in_memory => {
                let mut one = Told::new(NVIDIA_SMI, Subject::Device, "FB Memory Usage: Used", bytes, MIB);
                one.limit = listed.total;
                told.push(one.of(Identity::of(Who::Gpu, listed.gpu.clone())));
            }
            _ => {}
        }
        Claim::Yes
    }

    /// Two lines tell of each GPU: `|   0  NVIDIA A100 .. | 00000000:07:00.0 Off |` and `| .. | 1234MiB / 81920MiB | .. |`.
    fn take_drawn(&mut self, line: &str, told: &mut Vec<Told>) -> Claim {
        self.is_drawn |= line.contains("NVIDIA-SMI") || line.contains("Memory-Usage");
        self.in_mig = match () {
            _ if line.contains("MIG devices:") => true,
            _ if line.contains("NVIDIA-SMI") || line.contains("Processes:") => false,
            _ => self.in_mig,
        };
        let cells: Vec<&str> = line.trim_matches('|').split('|').collect();
        let first = cells.first().and_then(|cell| cell.split_whitespace().next());
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
            let mut one = Told::new(NVIDIA_SMI, Subject::Device, "Memory-Usage", bytes, used.factor.unwrap_or(MIB));
            one.limit = total.bytes(1);
            let identity = match self.in_mig {
                true => mig_device(cells.first().copied().unwrap_or_default()),
                false => Some(Identity::of(Who::Gpu, self.drawn.take().unwrap_or_else(|| "0".to_string()))),
            };
            // The second row of a MIG device is the window that the host sees of it.
            told.extend(identity.map(|identity| one.of(identity)));
            return Claim::Yes;
        }
        if self.is_drawn { Claim::Yes } else { Claim::No }
    }
}

fn is_bus(word: &str) -> bool {
    word.matches(':').count() == 2 && word.contains('.') && !word.contains(' ')
}

/// Whether a line is one of those above the first GPU of `nvidia-smi -q`.
fn is_listed_fact(line: &str) -> bool {
    let key = line.split_once(" : ").map(|(key, _)| key.trim());
    matches!(key, Some("Driver Version" | "CUDA Version" | "Attached GPUs" | "Timestamp"))
}

/// The MIG device of a row that begins with GPU, GPU instance, compute instance and device.
fn mig_device(cell: &str) -> Option<Identity> {
    let numbers: Option<Vec<u32>> = cell.split_whitespace().map(|word| word.parse().ok()).collect();
    let [gpu, _, _, device] = numbers?[..] else { return None };
    let part = |who, value: String| Part { who, value };
    Some(Identity {
        parts: vec![part(Who::Gpu, gpu.to_string()), part(Who::Device, format!("MIG {device}"))],
        detail: None,
    })
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
            let one = Told::new(NVIDIA_SMI, Subject::Device, "fb", bytes, MIB);
            told.push(one.of(Identity { parts, detail: detail.filter(|detail| !detail.is_empty()) }));
        }
        Claim::Yes
    }
}

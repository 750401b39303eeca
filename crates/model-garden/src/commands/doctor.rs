//! `model-garden doctor`: what this machine has, what would not work on it, and the fix. Looks only.

mod ask;
mod facts;
mod python;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use garden_data::hub_cache;
use garden_memory::{Bytes, GIB, MIB};
use garden_probe::{Host, MachineProbe};
use serde::Serialize;
use serde_json::json;

use super::Outcome;
use super::devices::{Chosen, Look};
use super::plan::{self, USUAL_ROW, Usual};
use super::python::{default_python, ourselves};
use super::step_time::StepTime;
use crate::cli::{self, Purpose};
use crate::failure::Failure;
use crate::printer::Printer;
use python::Python;

/// What must work where nobody says.
const USUAL: [Purpose; 2] = [Purpose::Train, Purpose::Monitor];
/// PyTorch's loader workers hand batches over in shared memory. A convention: below it, a few batches of images may fill it (Docker gives 64 MB).
const LEAST_SHARED: u64 = GIB;
/// A watched tree takes some open files for each of its processes.
const LEAST_FILES: u64 = 1024;
/// Three checkpoints of the usual adapter for the 3B model: 29.9 million parameters with their optimizer, 12 bytes each.
const LEAST_DISK: u64 = GIB;

/// A driver may take seconds to start, and our kernels are compiled the first time. One that takes longer than this hangs.
const GPU_PATIENCE: Duration = Duration::from_secs(60);

/// Something that is not as it could be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Finding {
    /// Whether it keeps something that was asked for from working.
    level: Level,
    what: String,
    /// What does not work, or works less well, because of it.
    consequence: String,
    fix: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum Level {
    Problem,
    Note,
}

/// Everything that was looked at.
struct Machine {
    host: Host,
    /// What is free for us, in bytes.
    free: Option<u64>,
    threads: usize,
    instructions: Option<&'static str>,
    gpu: Result<Look, String>,
    python: Result<Python, String>,
    /// The largest model that can be trained.
    largest: Option<Usual>,
    /// How long a step of it takes, where somebody asks.
    step_time: Option<StepTime>,
}

/// Runs the command.
pub fn run(arguments: &cli::Doctor, printer: &Printer) -> Result<Outcome, Failure> {
    let purposes = if arguments.purposes.is_empty() { &USUAL[..] } else { &arguments.purposes };
    let machine = Machine::look(arguments, printer)?;
    let mut findings = machine.findings(purposes);
    findings.sort_by_key(|finding| finding.level);
    let is_well = findings.iter().all(|finding| finding.level == Level::Note);
    let headline = machine.headline(&findings);
    let facts = machine.facts();
    printer.out(&match arguments.printed.is_json() {
        true => {
            let facts: serde_json::Map<String, serde_json::Value> =
                facts.iter().map(|fact| (fact.name.to_string(), json!(fact.words))).collect();
            let told = json!({
                "ok": is_well, "summary": headline, "findings": findings, "facts": facts, "machine": machine.told(),
            });
            format!("{told:#}\n")
        }
        false => facts::text(&headline, &facts, &findings),
    })?;
    Ok(if is_well { Outcome::Fine } else { Outcome::BadNews })
}

impl Machine {
    fn look(arguments: &cli::Doctor, printer: &Printer) -> Result<Machine, Failure> {
        let ourselves = ourselves()?;
        let program = arguments.python.clone().unwrap_or_else(|| default_python(&ourselves));
        let (gpu, python) = std::thread::scope(|scope| {
            let asked = scope.spawn(|| Python::ask(&program));
            let gpu = look_for_gpu(&ourselves);
            (gpu, asked.join().unwrap_or_else(|_| Err("the look for Python failed".into())))
        });
        let chosen = match &gpu {
            Ok(Look::Usable(gpu)) => Chosen::Cuda(gpu.clone()),
            _ => Chosen::Cpu,
        };
        let around = MachineProbe::of(std::process::id()).look();
        let largest = plan::largest(&chosen, printer)?;
        let step_time = match largest.as_ref().filter(|model| arguments.step_time && model.fits) {
            Some(model) => plan::usual_step_time(model, &chosen, printer)?,
            None => None,
        };
        Ok(Machine {
            host: Host::look(),
            free: around.headroom.into_iter().chain(around.available).min(),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            instructions: garden_device::cpu::vector_instructions(),
            largest,
            step_time,
            gpu,
            python,
        })
    }

    /// The answer in a sentence: what can be trained, or the first thing that is wrong.
    fn headline(&self, findings: &[Finding]) -> String {
        if let Some(problem) = findings.first().filter(|finding| finding.level == Level::Problem) {
            return format!("{}: {}", problem.what, problem.consequence);
        }
        let place = match &self.gpu {
            Ok(Look::Usable(gpu)) => format!("its GPU ({})", gpu.name),
            _ => "its CPU".to_string(),
        };
        match &self.largest {
            Some(model) if model.fits => format!(
                "This machine can train models up to {} on {place}: LoRA on {}-bit weights takes {} of the {} that are free \
                 (two rows at a time, images of {}x{})",
                model.name,
                if model.is_4bit { 4 } else { 16 },
                Bytes(model.needed),
                Bytes(model.available),
                USUAL_ROW.0.0,
                USUAL_ROW.0.1,
            ),
            // Only where training was not asked for.
            _ => "What was asked for works on this machine, but it has too little memory to train a released model"
                .into(),
        }
    }

    /// Everything that is not as it could be.
    fn findings(&self, purposes: &[Purpose]) -> Vec<Finding> {
        let asks = |wanted: &[Purpose]| match wanted.iter().any(|purpose| purposes.contains(purpose)) {
            true => Level::Problem,
            false => Level::Note,
        };
        let train = asks(&[Purpose::Train, Purpose::Gpu]);
        let mut findings = Vec::new();
        let mut found = |level: Level, what: String, consequence: &str, fix: String| {
            findings.push(Finding { level, what, consequence: consequence.to_string(), fix });
        };
        match &self.gpu {
            Ok(Look::Unusable { problem, hint }) => found(
                train,
                format!("The GPU cannot be used: {problem}"),
                "train-vision, generate and bench stop unless they are given --device cpu",
                hint.clone(),
            ),
            Ok(Look::Absent { problem, hint }) if purposes.contains(&Purpose::Gpu) => {
                found(Level::Problem, format!("There is no GPU: {problem}"), "training uses the CPU", hint.clone());
            }
            Err(problem) => found(
                train,
                format!("The check for a GPU failed: {problem}"),
                "train-vision, generate and bench stop unless they are given --device cpu",
                "run `model-garden devices` for details".into(),
            ),
            _ => {}
        }
        if let Some(model) = self.largest.as_ref().filter(|model| !model.fits) {
            let fix = self.more_memory();
            found(
                train,
                format!(
                    "Too little memory: {} is free, and even {} with LoRA on 4-bit weights takes {}",
                    Bytes(model.available),
                    model.name,
                    Bytes(model.needed)
                ),
                "a released model cannot be trained with the usual settings; the demo and tiny models can",
                fix,
            );
        }
        self.limits(train, &mut found);
        if self.host.reading.own == Some(false) {
            found(
                asks(&[Purpose::Monitor]),
                "Processes of the same user cannot be read".into(),
                "monitor, run and train-vision cannot tell how much memory a program holds",
                "mount /proc without hidepid, or in a container add `--cap-add SYS_PTRACE`".into(),
            );
        }
        self.python_findings(asks(&[Purpose::Python]), &mut found);
        for (what, path) in self.places() {
            if let Some(space) = garden_probe::space_at(&path).filter(|space| space.free < LEAST_DISK) {
                found(
                    train,
                    format!("Only {} is free in {}", Bytes(space.free), path.display()),
                    "checkpoints and traces may not fit",
                    format!("make room there, or use another folder ({what})"),
                );
            }
        }
        findings
    }

    /// What limits of the machine and of the process mean.
    fn limits(&self, train: Level, found: &mut impl FnMut(Level, String, &str, String)) {
        let (host, limits) = (&self.host, self.host.limits);
        for (name, flag, limit) in [("address space", "-v", limits.address_space), ("data segment", "-d", limits.data)]
        {
            if let Some(bytes) = limit.filter(|bytes| host.memory.is_none_or(|memory| *bytes < memory)) {
                found(
                    train,
                    format!("The {name} of a process is limited to {} (ulimit {flag})", Bytes(bytes)),
                    "larger allocations fail, whatever memory is free; plans do not know of this limit",
                    format!(
                        "`ulimit {flag} unlimited` in the shell that starts the program, or ask who set it (/etc/security/limits.conf)"
                    ),
                );
            }
        }
        if let Some(bytes) = limits.file_size {
            found(
                train,
                format!("Files can have at most {} (ulimit -f)", Bytes(bytes)),
                "checkpoints and traces that are larger cannot be written",
                "`ulimit -f unlimited` in the shell that starts the program".into(),
            );
        }
        if let Some(files) = limits.open_files.filter(|files| *files < LEAST_FILES) {
            found(
                Level::Note,
                format!("A process can open only {files} files (ulimit -n)"),
                "watching a tree of many processes, or serve with many clients, may fail",
                format!("`ulimit -n {LEAST_FILES}` in the shell that starts the program"),
            );
        }
        if let Some(bytes) = host.shared_memory.filter(|bytes| *bytes < LEAST_SHARED) {
            found(
                Level::Note,
                format!("/dev/shm has only {}", Bytes(bytes)),
                "loader workers of PyTorch die with a bus error when it is full; train-vision does not use it",
                "in a container: `docker run --shm-size 8g`, in Kubernetes an emptyDir of medium Memory; or num_workers=0".into(),
            );
        }
        if host.is_strict {
            found(
                Level::Note,
                "The kernel gives out no more memory than it could back (vm.overcommit_memory is 2)".into(),
                "programs that reserve much and use little of it, such as PyTorch with CUDA, may fail",
                "`sysctl vm.overcommit_memory=0`, if the machine is yours".into(),
            );
        }
        if self.instructions.is_none() {
            found(
                Level::Note,
                "The CPU has neither AVX2 nor AVX-512, or they are hidden from this virtual machine".into(),
                "training on the CPU is much slower than on others",
                "use a GPU or another machine; in a virtual machine, pass the host's CPU through".into(),
            );
        }
        if let Some(quota) = host.cpu_quota.filter(|quota| *quota < self.threads as f64) {
            found(
                Level::Note,
                format!("The control group gets {quota:.1} CPUs' worth of time, but {} can be used", self.threads),
                "threads are stopped in between, so that all wait for the slowest",
                format!("--threads {}", (quota.floor() as usize).max(1)),
            );
        }
    }

    fn python_findings(&self, level: Level, found: &mut impl FnMut(Level, String, &str, String)) {
        match &self.python {
            Err(problem) => found(
                level,
                format!("No Python: {problem}"),
                "bisect, audit and the Trainer callback need one; nothing else does",
                "install Python 3, activate its environment, or name it with --python".into(),
            ),
            Ok(python) if python.packages.get("model-garden").is_none_or(Option::is_none) => found(
                level,
                format!("{} does not have the package `model-garden`", python.executable),
                "bisect, audit and the Trainer callback need it; nothing else does",
                "pip install the wheel (`make wheel`) there, or name another Python with --python".into(),
            ),
            Ok(_) => {}
        }
    }

    /// How somebody gets more memory here.
    fn more_memory(&self) -> String {
        use garden_probe::Owner;
        let binding = self.host.group.as_ref().filter(|group| self.host.memory.is_none_or(|all| group.bytes < all));
        let raise = match binding.map(|group| group.owner) {
            Some(Owner::Container) => "start the container with a larger --memory",
            Some(Owner::Kubernetes) => "raise resources.limits.memory of the container",
            Some(Owner::Slurm) => "ask for more with --mem",
            Some(Owner::Systemd) => "raise MemoryMax of the unit (`systemctl set-property`)",
            Some(Owner::Unknown) => "raise the limit of the control group",
            None => "end other programs, or use a machine with more memory",
        };
        format!("{raise}; `model-garden plan` shows what smaller images and batches would save")
    }

    /// Folders that we write to, and what each is for.
    fn places(&self) -> Vec<(&'static str, std::path::PathBuf)> {
        let here = std::env::current_dir().unwrap_or_else(|_| ".".into());
        vec![("--output-dir", here), ("$TMPDIR", std::env::temp_dir())]
    }

    /// Everything that was measured, for programs.
    fn told(&self) -> serde_json::Value {
        let host = &self.host;
        let limits = host.limits;
        let largest = self.largest.as_ref().map(|model| {
            json!({
                "name": model.name, "load_in_4bit": model.is_4bit, "fits": model.fits,
                "needed_bytes": model.needed, "available_bytes": model.available,
            })
        });
        let python = self.python.as_ref();
        json!({
            "cpu": {
                "model": host.cpu_model, "count": host.cpus, "usable": self.threads, "quota": host.cpu_quota,
                "vector_instructions": self.instructions,
            },
            "memory": {
                "total_bytes": host.memory, "free_bytes": self.free, "swap_bytes": host.swap,
                "group_limit_bytes": host.group.as_ref().map(|group| group.bytes),
                "group": host.group.as_ref().map(|group| &group.name),
                "dev_shm_bytes": host.shared_memory,
            },
            "ulimits": {
                "address_space_bytes": limits.address_space, "data_bytes": limits.data, "file_size_bytes": limits.file_size,
                "open_files": limits.open_files, "processes": limits.processes,
            },
            "reads_own_processes": host.reading.own,
            "reads_other_users": host.reading.others,
            "gpu": self.gpu.as_ref().ok(),
            "nvidia_driver": host.nvidia_driver,
            "python": python.ok(),
            "python_problem": python.err(),
            "hub_cache": hub_cache(),
            "largest_model": largest,
            "step_time": self.step_time,
        })
    }
}

/// The look of `model-garden devices`, in a process that ends after it.
fn look_for_gpu(ourselves: &Path) -> Result<Look, String> {
    let mut command = Command::new(ourselves);
    command.args(["devices", "--format", "json"]).stdin(Stdio::null());
    ask::answer(&mut command, GPU_PATIENCE)?.ok_or_else(|| "it ended without an answer".to_string())
}

/// A size that nobody wants to the last byte.
fn rounded(bytes: u64) -> String {
    Bytes(bytes / MIB * MIB).to_string()
}

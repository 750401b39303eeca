//! `model-garden devices`: where training would compute, and why not on a GPU. Other commands ask it in a process of its own, since whoever opens a GPU
//! holds some hundred megabytes of it and of host memory until its end, and a process that only watches should not.

use std::process::Stdio;

use garden_device::{Cpu, CpuBf16, Cuda, Device, Unavailable};
use garden_memory::Bytes;
use garden_train::{DRIVER_BYTES, DeviceChoice, DeviceKind};
pub use garden_train::{Gpu, GpuLook as Look};

use super::Outcome;
use crate::cli;
use crate::failure::Failure;
use crate::printer::Printer;

/// What a driver may take for itself, in bytes.
const PLAUSIBLE: std::ops::Range<u64> = 64 << 20..2 << 30;

/// Where a run computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chosen {
    Cpu,
    CpuBf16,
    Cuda(Gpu),
}

impl Chosen {
    pub fn kind(&self) -> DeviceKind {
        match self {
            Chosen::Cpu => DeviceKind::Cpu,
            Chosen::Cuda(_) => DeviceKind::Cuda,
            Chosen::CpuBf16 => DeviceKind::CpuBf16,
        }
    }

    pub fn gpu(&self) -> Option<&Gpu> {
        match self {
            Chosen::Cpu | Chosen::CpuBf16 => None,
            Chosen::Cuda(gpu) => Some(gpu),
        }
    }
}

/// Runs the command.
pub fn run(arguments: &cli::Devices, printer: &Printer) -> Result<Outcome, Failure> {
    let look = look(printer);
    printer.out(&match arguments.printed.is_json() {
        true => format!("{}\n", serde_json::to_string(&look).unwrap_or_default()),
        false => text(&look),
    })?;
    Ok(Outcome::Fine)
}

fn text(look: &Look) -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    match look {
        Look::Usable(gpu) => {
            let [free, total] = [gpu.free_bytes, gpu.total_bytes].map(Bytes);
            let driver = gpu.driver_bytes.map_or_else(|| "not measured".to_string(), |bytes| Bytes(bytes).to_string());
            let (major, minor) = (gpu.cuda_version / 1000, gpu.cuda_version % 1000 / 10);
            let pinned = match gpu.is_pinned {
                true => "",
                false => "\n  no pinned memory available: the GPU waits while batches are copied",
            };
            format!(
                "training uses the GPU: {}, {free} free of {total}\n  driver for CUDA {major}.{minor} (memory: {driver}); compute capability {}.{}\n  \
                 matrix products by {}{pinned}\n  --device cpu would use {cores} cores\n",
                gpu.name,
                gpu.capability / 10,
                gpu.capability % 10,
                gpu.matrix_library,
            )
        }
        Look::Unusable { problem, hint } => {
            format!(
                "training would fail: the GPU cannot be used\n  {problem}\n  hint: {hint}\n  --device cpu would use {cores} cores\n"
            )
        }
        Look::Absent { problem, .. } => format!("training uses the CPU, {cores} cores: {problem}\n"),
    }
}

/// Opens the GPU and looks.
fn look(printer: &Printer) -> Look {
    let all = garden_probe::Gpus::open();
    let look = || all.as_ref().map(garden_probe::Gpus::look);
    let before = look();
    match Cuda::open_telling(0, &|line| printer.say(line)) {
        Err(Unavailable { problem, hint, is_absent: true }) => Look::Absent { problem, hint },
        Err(Unavailable { problem, hint, is_absent: false }) => Look::Unusable { problem, hint },
        Ok(cuda) => {
            let (free, total) = cuda.memory().unwrap_or_default();
            let driver_bytes = before.zip(look()).and_then(|(before, after)| {
                // What this process has; where processes cannot be told apart, what is used more than before, unless that is others' doing.
                let own = after.by_process.iter().find(|(pid, _)| *pid == std::process::id());
                let more = after.used.saturating_sub(before.used);
                own.map(|(_, bytes)| *bytes).or_else(|| PLAUSIBLE.contains(&more).then_some(more))
            });
            let (path, version) = cuda.matrix_library();
            Look::Usable(Gpu {
                name: cuda.card().name.clone(),
                capability: cuda.card().capability,
                cuda_version: cuda.card().driver_version,
                matrix_library: format!("cuBLASLt {version} of {}", path.display()),
                total_bytes: total as u64,
                // A plan has what the driver takes, so what it has taken here counts as free.
                free_bytes: free as u64 + driver_bytes.unwrap_or(DRIVER_BYTES),
                driver_bytes,
                is_pinned: cuda.is_pinned(),
            })
        }
    }
}

/// Chooses, without using a GPU in this process.
pub fn choose(choice: DeviceChoice, printer: &Printer) -> Result<Chosen, Failure> {
    match choice {
        DeviceChoice::Cpu => return Ok(Chosen::Cpu),
        DeviceChoice::CpuBf16 => return Ok(Chosen::CpuBf16),
        DeviceChoice::Auto | DeviceChoice::Cuda => {}
    }
    match (look_elsewhere()?, choice) {
        (Look::Usable(gpu), _) => Ok(Chosen::Cuda(gpu)),
        (Look::Absent { .. }, DeviceChoice::Auto) => Ok(Chosen::Cpu),
        (Look::Unusable { problem, hint }, DeviceChoice::Auto) => Err(Failure {
            what: "the GPU cannot be used".into(),
            causes: vec![problem],
            hint: Some(format!("{hint}; or train on the CPU with `--device cpu`")),
        }),
        (Look::Unusable { problem, hint } | Look::Absent { problem, hint }, _) => {
            Err(Failure { what: "no usable GPU".into(), causes: vec![problem], hint: Some(hint) })
        }
    }
    .inspect(|chosen| {
        if let Chosen::Cuda(gpu) = chosen {
            printer.say(&format!("computing on {}", gpu.name));
            if !gpu.is_pinned {
                printer.say("note: no pinned memory available, so the GPU waits while batches are copied");
            }
        }
    })
}

/// A look by a process that ends after it.
fn look_elsewhere() -> Result<Look, Failure> {
    let program = garden_guard::own_program()
        .map_err(|error| Failure::new("cannot find this program's executable", &error, None))?;
    let looked = garden_guard::command_of(program.as_os_str())
        .args(["devices", "--format", "json"])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output();
    let looked = looked.map_err(|error| Failure::new("cannot check for a GPU", &error, None))?;
    serde_json::from_slice(&looked.stdout).map_err(|_| Failure {
        what: "the check for a GPU ended without an answer".into(),
        causes: vec![looked.status.to_string()],
        hint: Some("run `model-garden devices` for details, or train on the CPU with `--device cpu`".into()),
    })
}

/// Opens what a command computes with that nobody watches.
pub fn open_here(choice: DeviceChoice, threads: usize, printer: &Printer) -> Result<Box<dyn Device>, Failure> {
    match choice {
        DeviceChoice::Cpu => open(DeviceKind::Cpu, threads, printer),
        DeviceChoice::Cuda => open(DeviceKind::Cuda, threads, printer),
        DeviceChoice::CpuBf16 => open(DeviceKind::CpuBf16, threads, printer),
        DeviceChoice::Auto => match Cuda::open_telling(0, &|line| printer.say(line)) {
            Ok(cuda) => Ok(Box::new(cuda)),
            Err(unavailable) if unavailable.is_absent => open(DeviceKind::Cpu, threads, printer),
            Err(Unavailable { problem, hint, .. }) => Err(Failure {
                what: "the GPU cannot be used".into(),
                causes: vec![problem],
                hint: Some(format!("{hint}; or use the CPU with `--device cpu`")),
            }),
        },
    }
}

/// Opens what was chosen.
pub fn open(kind: DeviceKind, threads: usize, printer: &Printer) -> Result<Box<dyn Device>, Failure> {
    match kind {
        DeviceKind::Cpu => Ok(Box::new(Cpu::new(threads))),
        DeviceKind::CpuBf16 => Ok(Box::new(CpuBf16::new(threads))),
        DeviceKind::Cuda => match Cuda::open_telling(0, &|line| printer.say(line)) {
            Ok(cuda) => Ok(Box::new(cuda)),
            Err(Unavailable { problem, hint, .. }) => {
                Err(Failure { what: "the GPU cannot be used".into(), causes: vec![problem], hint: Some(hint) })
            }
        },
    }
}

//! `model-garden bench`: what does a training step cost on this machine?
//!
//! A model of a released shape gets random weights and trains on one batch, as training does it: micro-steps, an update, one wait. The device times the
//! stages by its own clock; the wall clock says whether they add up.

mod peak;
mod report;
pub(super) mod work;

use std::time::Instant;

use garden_device::{Cpu, Cuda, Device, OperationTime, Plan, Planner, Purpose, Stage, StageTimes};
use garden_memory::Bytes;
use garden_model::{
    Checkpoint, Config, FourBit, GradientCheckpointing, LoraConfig, Model, Optimizer, Storage, Targets, Training,
};
use garden_probe::{GpuSample, Gpus, Identity, Memory, Process};
use garden_train::{DeviceChoice, Recompute};

use super::Outcome;
use crate::cli;
use crate::failure::Failure;
use crate::printer::Printer;
use work::Work;

/// Steps before those that count: kernels and products are chosen in the first one, and the second finds everything in place.
const WARM_UP: usize = 2;
/// Of the adapters, as most people train them.
const RANK: usize = 16;
/// Weights are the same in every run.
pub(super) const SEED: u64 = 1;
/// The stages may differ from the wall clock by this share before it is said.
const APART: f64 = 0.02;
/// The slowest step may take so many times as long as the fastest before it is said.
const UNEVEN: f64 = 1.25;

/// Everything that was found out.
struct Measured<'a> {
    arguments: &'a cli::Bench,
    work: Work,
    device: Opened,
    planned: Plan,
    /// Measured steps.
    steps: Vec<Step>,
    losses: Vec<f32>,
    /// From the start of the command until the weights were there, and until the first step was done.
    loaded_seconds: f64,
    first_step_seconds: f64,
    gpu: Option<GpuMemory>,
    host: Memory,
    /// What each kind of operation took in a step of one micro-step.
    operations: Vec<OperationTime>,
    warnings: Vec<String>,
}

/// A step.
#[derive(Clone, Copy)]
struct Step {
    seconds: f64,
    stages: StageTimes,
}

/// Memory of a GPU that this process took.
#[derive(Clone, Copy)]
struct GpuMemory {
    /// After its context was made.
    own_bytes: u64,
    /// With what the driver took for the context, where the driver tells.
    with_driver_bytes: Option<u64>,
}

/// The device that computes.
pub(super) enum Opened {
    Cpu(Box<Cpu>),
    Cuda(Box<Cuda>),
}

/// Runs the command.
pub fn run(arguments: &cli::Bench, printer: &Printer) -> Result<Outcome, Failure> {
    let begin = Instant::now();
    let work = Work {
        config: config(arguments),
        rows: arguments.batch_size as usize,
        image_tokens: arguments.image_tokens.unwrap_or(arguments.shape.tokens.0) as usize,
        text_tokens: arguments.text_tokens.unwrap_or(arguments.shape.tokens.1) as usize,
    };
    let gpus = if arguments.device == DeviceChoice::Cpu { None } else { Gpus::open() };
    let before = gpus.as_ref().map(Gpus::look);
    let mut opened = open(arguments.device, arguments.threads, printer)?;
    let free = opened.free()?;
    let mut planner = Planner::like(opened.device().profile());
    let shapes = Checkpoint::of_shapes(&work.config, garden_device::Dtype::Bf16).map_err(|error| failed(&error))?;
    build(arguments, &work, &mut planner, &shapes)?;
    let planned = planner.plan().clone();
    if let Some(refusal) = refusal(&work, &opened, &planned, free) {
        printer.failure(&refusal);
        return Ok(Outcome::BadNews);
    }

    let device = opened.device();
    let lacking = |error: &dyn std::error::Error| Failure::new("cannot allocate the planned memory", error, None);
    device.prepare(planned.total()).map_err(|error| lacking(&error))?;
    let checkpoint = Checkpoint::random(&work.config, SEED).map_err(|error| failed(&error))?;
    let mut model = build(arguments, &work, device, &checkpoint)?;
    drop(checkpoint);
    fill_adapters(device, &model);
    device.finish().map_err(|error| failed(&error))?;
    let loaded_seconds = begin.elapsed().as_secs_f64();

    let rows = work.make_rows();
    let mut batch = work.batch(&rows, work.make_pixels()).map_err(|error| failed(&error))?;
    let (mut steps, mut losses, mut first_step_seconds) = (Vec::new(), Vec::new(), 0.0);
    device.time_stages();
    for number in 0..WARM_UP + arguments.steps as usize {
        let start = Instant::now();
        model.begin_step(device);
        let scale = 1.0 / arguments.gradient_accumulation as f32;
        for micro_step in 1..=arguments.gradient_accumulation {
            model.learn(device, &batch, 1.0 / batch.targets() as f32, 0).map_err(|error| failed(&error))?;
            if micro_step == arguments.gradient_accumulation {
                model.update(device, &Optimizer::default(), 1e-4, scale, work.image_tokens > 0);
            }
            // As in training: the next one is made and brought to the device while this one is computed with.
            device.mark(Stage::Batch);
            batch = work.batch(&rows, batch.into_pixels()).map_err(|error| failed(&error))?;
            model.place(device, &batch).map_err(|error| failed(&error))?;
        }
        // The one place of a step that waits for the device.
        let result = model.step_result(device).map_err(|error| failed(&error))?;
        let seconds = start.elapsed().as_secs_f64();
        let loss = result.loss * scale;
        if !loss.is_finite() || !result.gradient_norm.is_finite() {
            let why = format!("the loss is {loss}, the gradient norm {}", result.gradient_norm);
            return Err(Failure { what: "the results are not finite".into(), causes: vec![why], hint: None });
        }
        losses.push(loss);
        let stages = device.stage_times().map_err(|error| failed(&error))?;
        if number == 0 {
            first_step_seconds = begin.elapsed().as_secs_f64();
        }
        if number >= WARM_UP {
            steps.push(Step { seconds, stages });
        }
    }

    let mut operations = Vec::new();
    if arguments.kernels {
        device.time_operations();
        model.begin_step(device);
        model.learn(device, &batch, 1.0 / batch.targets() as f32, 0).map_err(|error| failed(&error))?;
        model.update(device, &Optimizer::default(), 1e-4, 1.0, work.image_tokens > 0);
        operations = device.operation_times().map_err(|error| failed(&error))?;
    }
    let gpu = opened.gpu_memory(free, before.as_ref(), gpus.as_ref())?;
    let host = host_memory();
    let warnings = Vec::new();
    let mut measured = Measured {
        arguments,
        work,
        device: opened,
        planned,
        steps,
        losses,
        loaded_seconds,
        first_step_seconds,
        gpu,
        host,
        operations,
        warnings,
    };
    measured.warnings = warnings_of(&measured, before.as_ref());
    printer.out(&match arguments.printed.is_json() {
        true => format!("{:#}\n", report::json(&measured)),
        false => report::text(&measured),
    })?;
    Ok(Outcome::Fine)
}

pub(super) fn failed(error: &dyn std::error::Error) -> Failure {
    Failure::new("cannot measure", error, None)
}

/// The shape that was asked for, or its first layers.
fn config(arguments: &cli::Bench) -> Config {
    let mut config = arguments.shape.config.clone();
    if let Some(layers) = arguments.layers {
        config.text.layers.truncate(layers as usize);
        config.vision.depth = config.vision.depth.min(layers as usize);
    }
    config
}

/// The GPU if there is one or it is asked for, else the processor.
pub(super) fn open(choice: DeviceChoice, threads: usize, printer: &Printer) -> Result<Opened, Failure> {
    if choice == DeviceChoice::Cpu {
        return Ok(Opened::Cpu(Box::new(Cpu::new(threads))));
    }
    match Cuda::open_telling(0, &|line| printer.say(line)) {
        Ok(cuda) => Ok(Opened::Cuda(Box::new(cuda))),
        Err(unavailable) if choice == DeviceChoice::Auto && unavailable.is_absent => {
            printer.say(&format!("model-garden: using the CPU: {unavailable}"));
            Ok(Opened::Cpu(Box::new(Cpu::new(threads))))
        }
        Err(unavailable) => Err(Failure {
            what: "no usable GPU to measure".into(),
            causes: vec![unavailable.to_string()],
            hint: Some(unavailable.hint),
        }),
    }
}

impl Opened {
    pub(super) fn device(&mut self) -> &mut dyn Device {
        match self {
            Opened::Cpu(cpu) => &mut **cpu,
            Opened::Cuda(cuda) => &mut **cuda,
        }
    }

    /// What it holds.
    fn plan(&self) -> &Plan {
        match self {
            Opened::Cpu(cpu) => cpu.plan(),
            Opened::Cuda(cuda) => cuda.plan(),
        }
    }

    /// Memory that may still be taken where it computes; nothing where nobody knows.
    pub(super) fn free(&self) -> Result<Option<u64>, Failure> {
        match self {
            Opened::Cpu(_) => Ok(super::headroom()),
            Opened::Cuda(cuda) => Ok(Some(cuda.memory().map_err(|error| failed(&error))?.0 as u64)),
        }
    }

    /// What was taken since it was opened, when so much was free.
    fn gpu_memory(
        &self,
        free: Option<u64>,
        before: Option<&GpuSample>,
        gpus: Option<&Gpus>,
    ) -> Result<Option<GpuMemory>, Failure> {
        if let Opened::Cpu(_) = self {
            return Ok(None);
        }
        let own_bytes = free.unwrap_or(0).saturating_sub(self.free()?.unwrap_or(0));
        let with_driver_bytes = before.zip(gpus).map(|(before, gpus)| gpus.look().used.saturating_sub(before.used));
        Ok(Some(GpuMemory { own_bytes, with_driver_bytes }))
    }
}

/// Puts the model on a device, with everything that this work needs.
fn build(
    arguments: &cli::Bench,
    work: &Work,
    device: &mut dyn Device,
    checkpoint: &Checkpoint,
) -> Result<Model, Failure> {
    let family = work.config.family;
    let targets = if arguments.vision { Targets::all(family) } else { Targets::decoder(family) };
    let lora = LoraConfig { rank: RANK, alpha: 2.0 * RANK as f32, targets, ..LoraConfig::default() };
    let checkpointing = match arguments.recompute {
        Recompute::Layer => GradientCheckpointing::PerLayer,
        Recompute::None => GradientCheckpointing::Off,
    };
    let four_bit = arguments.load_in_4bit.then(FourBit::default);
    let storage = Storage { four_bit, has_8bit_moments: false };
    let training = Training::Lora(lora);
    Model::build(device, &work.config, checkpoint, &training, checkpointing, &storage, work.limits())
        .map_err(|error| failed(&error))
}

/// Why it would not fit, if it would not.
pub(super) fn refusal(work: &Work, opened: &Opened, planned: &Plan, free: Option<u64>) -> Option<Failure> {
    // A processor has the pixels of the batch in the same memory.
    let (besides, place) = match opened {
        Opened::Cpu(_) => (work.pixel_bytes(), "host memory"),
        Opened::Cuda(_) => (0, "GPU memory"),
    };
    let (needed, free) = (planned.total() as u64 + besides, free?);
    if needed <= free {
        return None;
    }
    let largest = Purpose::ALL.iter().map(|purpose| (planned.bytes(*purpose), purpose.name())).max()?;
    Some(Failure {
        what: format!("needs {} of {place}, but only {} is free", Bytes(needed), Bytes(free)),
        causes: vec![format!("most of it is {}: {}", largest.1, Bytes(largest.0 as u64))],
        hint: Some("try --load-in-4bit, --recompute layer, a smaller --batch-size, or fewer --layers".into()),
    })
}

/// Fills both halves of every adapter with small numbers, so that no gradient is zero.
pub(super) fn fill_adapters(device: &mut dyn Device, model: &Model) {
    for (index, parameter) in model.parameters().iter().enumerate() {
        let values: Vec<f32> = (0..parameter.shape.iter().product::<usize>())
            .map(|place| 0.01 * ((place * 7919 + index * 104_729) as f32 * 0.618_034).sin())
            .collect();
        model.set(device, parameter, &values);
    }
}

/// What the process holds, as its counters say.
fn host_memory() -> Memory {
    let process = Identity::of(std::process::id()).and_then(|identity| Process::open(identity).ok());
    process.and_then(|mut process| process.memory().ok().flatten()).unwrap_or_default()
}

/// What makes the numbers doubtful.
fn warnings_of(measured: &Measured, before: Option<&GpuSample>) -> Vec<String> {
    let mut warnings = Vec::new();
    let (median, (fastest, slowest)) = (measured.median(), measured.extremes());
    let stages = median.stages.total();
    if (stages / median.seconds - 1.0).abs() > APART {
        warnings.push(format!(
            "stages add up to {:.1} ms of a step of {:.1} ms: the device waited for the host, or something else kept it busy",
            1e3 * stages,
            1e3 * median.seconds
        ));
    }
    if slowest > UNEVEN * fastest {
        let (fastest, slowest) = (1e3 * fastest, 1e3 * slowest);
        warnings.push(format!(
            "steps took {fastest:.1} to {slowest:.1} ms: another program may be running; measure again when the machine is idle"
        ));
    }
    let others = before.map_or(0, |before| before.by_process.len());
    if others > 0 && matches!(measured.device, Opened::Cuda(_)) {
        let processes = if others == 1 { "another process uses" } else { "other processes use" };
        warnings.push(format!("{processes} the GPUs of this machine: times may be too long"));
    }
    warnings
}

impl Measured<'_> {
    /// The step in the middle when all are sorted by time: its stages are those that are told, so that they add up.
    fn median(&self) -> Step {
        let mut steps = self.steps.clone();
        steps.sort_by(|one, other| one.seconds.total_cmp(&other.seconds));
        steps[(steps.len() - 1) / 2]
    }

    /// Seconds of the fastest step and of the slowest.
    fn extremes(&self) -> (f64, f64) {
        let seconds = self.steps.iter().map(|step| step.seconds);
        (seconds.clone().fold(f64::INFINITY, f64::min), seconds.fold(0.0, f64::max))
    }

    /// Micro-steps of a step.
    fn micro_steps(&self) -> f64 {
        f64::from(self.arguments.gradient_accumulation)
    }

    /// Seconds of a micro-step, with its part of the update.
    fn micro_step_seconds(&self) -> f64 {
        self.median().seconds / self.micro_steps()
    }

    /// Operations of a second, without those that are made again.
    fn flop_per_second(&self) -> f64 {
        self.work.flop(self.arguments.vision).needed / self.micro_step_seconds()
    }

    /// What the card can do at best, where that is known.
    fn peak(&self) -> Option<f64> {
        match &self.device {
            Opened::Cpu(_) => None,
            Opened::Cuda(cuda) => peak::peak(&cuda.card().name),
        }
    }
}

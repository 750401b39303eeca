//! The memory plan of a run, before step 1: what will be held, where, and for what.
//!
//! What the device holds is exact: the model is built on a planner that counts every buffer. What the host holds besides is exact where it follows
//! from settings (the loader's buffers, the index) and else an estimate from what was measured ([`host`]); each line says which.

mod disk;
mod host;
mod rows;
mod savings;

use std::path::Path;

use garden_data::{ImageSettings, LoaderBuffers};
use garden_device::{Device, Dtype, Plan, Planner, Profile, Purpose};
use garden_memory::Bytes;
use garden_model::{Checkpoint, Config, Engine, EngineLimits, Limits, Model, Training};
use serde::{Serialize, Serializer};

pub use disk::DiskPlan;
pub(crate) use disk::{check_free, checkpoint_bytes};
pub use host::saving_bytes;
pub use rows::RowShape;
pub use savings::{Advice, Combination, LoaderChange, Saving, advise, loader_changes};

use crate::error::Error;
use crate::job::Job;
use crate::prepare::Prepared;
use crate::recipe::{DeviceKind, Recipe};
use crate::result::processor_bytes;
use crate::trainer::with_answers;

/// Where something is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// Where it is computed: memory of the GPU, or on a processor host memory too.
    Device,
    /// In host memory, whatever computes.
    Host,
}

/// How well an amount is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Exactness {
    /// It follows from what will be asked for, to the byte.
    Exact,
    /// It rests on measurements of something alike.
    Estimated,
}

/// What a line of a plan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanItem {
    /// Buffers of the model.
    Buffers(Purpose),
    /// The driver's own memory on a GPU.
    Driver,
    /// Large buffers rounded up to whole pages.
    PageEnds,
    /// Code and data of this program.
    Program,
    /// The same with the GPU's driver and libraries.
    ProgramAndCuda,
    /// Buffers between host and GPU.
    Staging,
    /// The loader's buffers of pixels.
    Loader,
    /// Threads that read and decode.
    Decoding,
    /// Positions of rows in their files.
    Index,
    /// A batch before it goes to the device.
    HostBatch,
    /// The tokenizer and the chat template.
    Tokenizer,
    /// Saving a checkpoint, or evaluating.
    Saving,
    /// Stacks.
    Threads,
    /// What loading needs beyond what steps need.
    Loading,
}

impl PlanItem {
    /// Buffers that the end of a run has under this name.
    pub fn of_buffers(name: &str) -> Option<PlanItem> {
        Purpose::named(name).map(PlanItem::Buffers)
    }

    /// The displayed name.
    pub fn name(self) -> &'static str {
        match self {
            PlanItem::Buffers(purpose) => purpose.name(),
            PlanItem::Driver => "driver",
            PlanItem::PageEnds => "page ends",
            PlanItem::Program => "program",
            PlanItem::ProgramAndCuda => "program and CUDA",
            PlanItem::Staging => "staging",
            PlanItem::Loader => "loader",
            PlanItem::Decoding => "decoding",
            PlanItem::Index => "index",
            PlanItem::HostBatch => "batch on the host",
            PlanItem::Tokenizer => "tokenizer",
            PlanItem::Saving => "saving, evaluating",
            PlanItem::Threads => "threads",
            PlanItem::Loading => "loading",
        }
    }
}

impl Serialize for PlanItem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// One line of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlanLine {
    /// Where it is held.
    pub place: Place,
    /// What for.
    pub purpose: PlanItem,
    /// How much.
    pub bytes: u64,
    /// What it is, in a few words.
    pub what: String,
    /// How well it is known.
    pub exactness: Exactness,
}

/// Everything that a plan follows from.
#[derive(Clone, Copy, Debug)]
pub struct PlanInput<'a> {
    /// What is trained and how.
    pub recipe: &'a Recipe,
    /// The model.
    pub config: &'a Config,
    /// Its weights; those of shapes alone do.
    pub checkpoint: &'a Checkpoint,
    /// Where it computes.
    pub device: DeviceKind,
    /// What the driver takes of the GPU's memory for itself, where that was measured.
    pub driver_bytes: Option<u64>,
    /// The largest micro-batch, of training and of evaluation.
    pub limits: Limits,
    /// The largest prompts that evaluations answer, if they do.
    pub answers: Option<EngineLimits>,
    /// The loader's buffers.
    pub loader: LoaderBuffers,
    /// Bytes of tokenizer.json, where it is known.
    pub tokenizer_bytes: Option<u64>,
    /// The index of rows.
    pub index_bytes: u64,
    /// Whether rows are evaluated.
    pub evaluates: bool,
    /// What a thread holds at most that reads rows and decodes their pictures.
    pub reading_bytes: u64,
    /// Bytes of the files that rows are read from, where they are known.
    pub dataset_bytes: u64,
    /// Bytes of the processor's files, which the result gets copies of, where they are known.
    pub processor_bytes: Option<u64>,
    /// How often a checkpoint is written, at most, where it is known.
    pub saves: Option<usize>,
}

impl<'a> PlanInput<'a> {
    /// What a prepared job gives. `images` are the model's own settings; bounds on pixels change nothing of what is asked for here.
    pub fn of_job(
        prepared: &'a Prepared,
        checkpoint: &'a Checkpoint,
        images: &ImageSettings,
        driver_bytes: Option<u64>,
    ) -> PlanInput<'a> {
        let (job, surveys) = (&prepared.job, || std::iter::once(&prepared.train).chain(&prepared.eval));
        let datasets = job.recipe.datasets.iter().chain(&job.recipe.eval_dataset);
        PlanInput {
            recipe: &job.recipe,
            config: &prepared.config,
            checkpoint,
            device: job.device,
            driver_bytes,
            limits: job.limits,
            answers: job.answers,
            loader: LoaderBuffers::of_settings(images, (job.limits.patches, job.limits.tokens), job.recipe.ahead()),
            tokenizer_bytes: std::fs::metadata(job.base.join("tokenizer.json")).ok().map(|file| file.len()),
            index_bytes: prepared.index_bytes as u64,
            evaluates: job.eval.is_some(),
            reading_bytes: surveys().map(|survey| survey.reading_bytes).max().unwrap_or(0),
            dataset_bytes: datasets.map(|path| files_bytes(path)).sum(),
            processor_bytes: Some(processor_bytes(&job.base)),
            saves: Some(job.saves()),
        }
    }

    /// Threads that compute.
    fn threads(&self) -> usize {
        match (self.device, self.recipe.threads) {
            // One that keeps the GPU busy.
            (DeviceKind::Cuda, _) => 1,
            (_, 0) => host::cores(),
            (_, threads) => threads,
        }
    }

    fn profile(&self) -> Profile {
        match self.device {
            DeviceKind::Cpu => Profile::cpu(self.threads()),
            DeviceKind::Cuda => Profile::cuda(),
            DeviceKind::CpuBf16 => Profile::cpu_bf16(self.threads()),
        }
    }
}

/// Bytes of a file, or of all files of a folder.
fn files_bytes(path: &Path) -> u64 {
    let Ok(found) = std::fs::metadata(path) else { return 0 };
    if !found.is_dir() {
        return found.len();
    }
    let inside = std::fs::read_dir(path).into_iter().flatten().flatten();
    inside.map(|entry| files_bytes(&entry.path())).sum()
}

/// What a run will hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryPlan {
    /// Where it computes.
    pub device: DeviceKind,
    /// By place and purpose; lines of 0 bytes are left out.
    pub lines: Vec<PlanLine>,
    /// All that is where it is computed.
    pub device_bytes: u64,
    /// All that is in host memory whatever computes.
    pub host_bytes: u64,
    /// What the run needs of the host's memory at its peak: both with a processor that computes, else the host's part.
    pub total_bytes: u64,
    /// That part of it that is no file's: what a measurement of anonymous memory is to be compared with, after the weights are there.
    pub anonymous_bytes: u64,
    /// What a machine needs.
    pub requirements: Requirements,
    /// What is written into the output folder.
    pub disk: DiskPlan,
}

/// What a machine needs: at least, and to be comfortable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Requirements {
    /// Host memory where a processor computes.
    pub processor: Need,
    /// Host memory where a GPU computes.
    pub gpu_host: Need,
    /// Memory of the GPU.
    pub gpu: Need,
}

/// An amount of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Need {
    /// The plan and nothing else.
    pub minimum_bytes: u64,
    /// With room for what no plan knows; docs/plan.md has the rule.
    pub recommended_bytes: u64,
}

/// Rows that were read once stay in the page cache while memory is free: more than this gains little, as an epoch goes through all of them.
const MOST_FILE_CACHE: u64 = 4 << 30;
/// What the driver takes of a GPU's memory for itself, where it was not measured: what an H200 with our kernels loaded had, with CUDA 13.0.
pub const DRIVER_BYTES: u64 = 533 << 20;

impl Need {
    /// A tenth more, and so much besides, in whole GiB.
    fn of(minimum: u64, besides: u64) -> Need {
        let recommended = minimum + minimum / 10 + besides;
        Need { minimum_bytes: minimum, recommended_bytes: recommended.next_multiple_of(1 << 30) }
    }
}

/// Whether a plan fits into what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Fit {
    /// What is there.
    pub available_bytes: u64,
    /// What is needed.
    pub needed_bytes: u64,
    /// Whether that is enough.
    pub fits: bool,
}

impl Fit {
    /// The share of what is there that is needed, in percent, rounded up.
    pub fn percent(&self) -> u64 {
        (100 * self.needed_bytes).div_ceil(self.available_bytes.max(1))
    }
}

/// The memory that there is for a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AvailableMemory {
    /// The host's.
    pub host: Bytes,
    /// The GPU's, where one computes.
    pub gpu: Bytes,
}

/// Whether a plan fits everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Fits {
    /// Into host memory.
    pub host: Fit,
    /// Into the GPU's, where one computes.
    pub gpu: Option<Fit>,
}

impl Fits {
    /// Whether it fits everywhere.
    pub fn all(&self) -> bool {
        self.host.fits && self.gpu.is_none_or(|gpu| gpu.fits)
    }
}

/// The plan of a run on one device.
struct Layout {
    lines: Vec<PlanLine>,
    device_bytes: u64,
    host_bytes: u64,
    anonymous_bytes: u64,
    disk: DiskPlan,
}

impl Layout {
    fn of(input: &PlanInput) -> Result<Layout, Error> {
        let plan = model_plan(input)?;
        let mut lines: Vec<PlanLine> = Purpose::ALL.iter().map(|purpose| device_line(input, &plan, *purpose)).collect();
        lines.extend((input.device == DeviceKind::Cuda).then(|| driver_line(input.driver_bytes)));
        lines.extend(host::lines(input, &plan));
        lines.retain(|line| line.bytes > 0);
        let sum = |place: Place| lines.iter().filter(|line| line.place == place).map(|line| line.bytes).sum::<u64>();
        let (device_bytes, steady) = (sum(Place::Device), sum(Place::Host));
        let on_host = if input.device.is_host() { device_bytes } else { 0 };
        // The tokenizer and then the weights come first, when there is nothing else but the program, so only what goes beyond what steps need counts.
        let (loading, program) = (host::loading(input, &plan), host::program(input.device));
        let at_first = program.at_first + host::tokenizer(input.config.text.vocabulary as u64);
        let beyond = (at_first + loading.max(host::reading_tokenizer(input))).saturating_sub(on_host + steady);
        lines.extend(host::loading_line(beyond));
        let anonymous_bytes = on_host + steady - program.files;
        let disk = DiskPlan::of(input, &plan);
        Ok(Layout { lines, device_bytes, host_bytes: steady + beyond, anonymous_bytes, disk })
    }
}

impl MemoryPlan {
    /// Plans a run.
    pub fn of(input: &PlanInput) -> Result<MemoryPlan, Error> {
        let on_cpu = Layout::of(&PlanInput { device: DeviceKind::Cpu, ..*input })?;
        let on_gpu = Layout::of(&PlanInput { device: DeviceKind::Cuda, ..*input })?;
        let cache = input.dataset_bytes.min(MOST_FILE_CACHE);
        let requirements = Requirements {
            processor: Need::of(on_cpu.device_bytes + on_cpu.host_bytes, cache),
            gpu_host: Need::of(on_gpu.host_bytes, cache),
            gpu: Need::of(on_gpu.device_bytes, 0),
        };
        let (device, layout) = match input.device {
            DeviceKind::Cpu => (DeviceKind::Cpu, on_cpu),
            DeviceKind::Cuda => (DeviceKind::Cuda, on_gpu),
            DeviceKind::CpuBf16 => (DeviceKind::CpuBf16, Layout::of(input)?),
        };
        let Layout { lines, device_bytes, host_bytes, anonymous_bytes, disk } = layout;
        let total_bytes = host_bytes + if device.is_host() { device_bytes } else { 0 };
        Ok(MemoryPlan { device, lines, device_bytes, host_bytes, total_bytes, anonymous_bytes, requirements, disk })
    }

    /// Whether it fits.
    pub fn fits(&self, available: AvailableMemory) -> Fits {
        let fit = |needed_bytes: u64, available: Bytes| Fit {
            available_bytes: available.0,
            needed_bytes,
            fits: needed_bytes <= available.0,
        };
        let gpu = (self.device == DeviceKind::Cuda).then(|| fit(self.device_bytes, available.gpu));
        Fits { host: fit(self.total_bytes, available.host), gpu }
    }

    /// The bytes of one item.
    pub fn bytes(&self, purpose: PlanItem) -> u64 {
        self.lines.iter().filter(|line| line.purpose == purpose).map(|line| line.bytes).sum()
    }
}

/// Everything that a run will ask a device for, in order.
fn model_plan(input: &PlanInput) -> Result<Plan, Error> {
    build(input.recipe, input.config, input.checkpoint, input.limits, input.answers, &input.profile())
}

/// What a job will ask a device for.
pub(crate) fn device_plan(
    job: &Job,
    config: &Config,
    checkpoint: &Checkpoint,
    profile: &Profile,
) -> Result<Plan, Error> {
    build(&job.recipe, config, checkpoint, job.limits, job.answers, profile)
}

fn build(
    recipe: &Recipe,
    config: &Config,
    checkpoint: &Checkpoint,
    limits: Limits,
    answers: Option<EngineLimits>,
    profile: &Profile,
) -> Result<Plan, Error> {
    let limits = with_answers(limits, answers);
    let mut planner = Planner::like(profile);
    let (training, storage) = (recipe.training(config.family), recipe.storage());
    let model = Model::build(&mut planner, config, checkpoint, &training, recipe.recomputed(), &storage, limits)?;
    if let Some(answers) = answers {
        Engine::beside(&mut planner, &model, answers)?;
    }
    Ok(planner.plan().clone())
}

fn driver_line(measured: Option<u64>) -> PlanLine {
    let (what, exactness) = match measured {
        Some(_) => ("the driver's own memory, as measured", Exactness::Exact),
        None => ("the driver's own memory, as on an H200", Exactness::Estimated),
    };
    let bytes = measured.unwrap_or(DRIVER_BYTES);
    PlanLine { place: Place::Device, purpose: PlanItem::Driver, bytes, what: what.to_string(), exactness }
}

fn device_line(input: &PlanInput, plan: &Plan, purpose: Purpose) -> PlanLine {
    let limits = input.limits;
    let what = match purpose {
        Purpose::Weights => weights_words(input, plan),
        Purpose::Adapters => format!("rank {}", input.recipe.rank_words()),
        Purpose::Gradients => "of the trainable parameters, f32".to_string(),
        Purpose::Optimizer => match input.recipe.storage().has_8bit_moments {
            true => "two 8-bit moments".to_string(),
            false => "two f32 moments".to_string(),
        },
        Purpose::Activations => format!("from forward to backward pass, {} tokens", limits.tokens),
        Purpose::RecomputedActivations => "of one layer, recomputed in the backward pass".to_string(),
        Purpose::KvCache => match input.answers {
            Some(answers) => {
                format!("{} evaluation answers at once, {} tokens each", answers.rows, answers.context)
            }
            None => "keys and values".to_string(),
        },
        Purpose::Batch => {
            format!("{} rows, {} tokens, {} image patches", limits.rows, limits.tokens, limits.patches)
        }
        Purpose::Workspace => "temporary within a layer; shared by decoder and frozen vision tower".to_string(),
    };
    let bytes = plan.bytes(purpose) as u64;
    PlanLine { place: Place::Device, purpose: PlanItem::Buffers(purpose), bytes, what, exactness: Exactness::Exact }
}

fn weights_words(input: &PlanInput, plan: &Plan) -> String {
    let weights = plan.buffers.iter().filter(|buffer| buffer.purpose == Purpose::Weights);
    let most = |dtype: Dtype| weights.clone().filter(|buffer| buffer.dtype == dtype).map(|buffer| buffer.bytes).sum();
    let kinds: [(usize, &str); 4] = [
        (most(Dtype::F32), "f32"),
        (most(Dtype::Bf16), "bf16"),
        (most(Dtype::F16), "f16"),
        (most(Dtype::U8), "4 bits in the decoder's linear layers"),
    ];
    let most_bytes = kinds.iter().map(|kind| kind.0).max().unwrap_or(0);
    // Biases and norms are f32 in any case, and not worth a word.
    let kinds = kinds.iter().filter(|kind| kind.0 * 50 > most_bytes).map(|kind| kind.1);
    let kinds = kinds.collect::<Vec<_>>().join(", ");
    match input.recipe.training(input.config.family) {
        Training::Full => format!("all trained, {kinds}"),
        Training::Lora(lora) if !lora.modules_to_save.is_empty() => {
            format!("frozen except `{}`, {kinds}", lora.modules_to_save.join("`, `"))
        }
        Training::Lora(_) => format!("frozen, {kinds}"),
    }
}

//! The memory plan of a run, before step 1: what will be held, where, and for what.
//!
//! What the device holds is exact: the model is built on a planner that counts every buffer. What the host holds besides is exact where it follows
//! from settings (the loader's buffers, the index) and else an estimate from what was measured ([`host`]); each line says which.

mod host;
mod rows;
mod savings;

use garden_data::LoaderRoom;
use garden_device::{Device, Kind, Plan, Planner, Purpose};
use garden_memory::Bytes;
use garden_model::{Checkpoint, Config, Error, Generator, GeneratorLimits, Limits, Model, Training};
use serde::Serialize;

pub use rows::{LargestRows, RowShape, RowShapes};
pub use savings::{Advice, Combination, LoaderChange, Saving, advise, loader_changes};

use crate::Recipe;

/// Where something is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// Where it is computed: on a processor this is host memory too.
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

/// One line of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlanLine {
    /// Where it is held.
    pub place: Place,
    /// What for, such as `weights`.
    pub purpose: &'static str,
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
    /// Threads that compute; 0 for all cores.
    pub threads: usize,
    /// The largest micro-batch, of training and of evaluation.
    pub limits: Limits,
    /// The largest prompts that evaluations answer, if they do.
    pub answers: Option<GeneratorLimits>,
    /// The loader's buffers.
    pub loader: LoaderRoom,
    /// Bytes of tokenizer.json, where it is known.
    pub tokenizer_bytes: Option<u64>,
    /// Rows of all datasets.
    pub rows: u64,
    /// The largest row as it is stored, pictures compressed.
    pub largest_row_bytes: u64,
    /// Pixels of the largest picture before it is resized.
    pub largest_picture_pixels: u64,
    /// Bytes of the files that rows are read from, where they are known.
    pub dataset_bytes: u64,
}

/// What a run will hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryPlan {
    /// By place and purpose; lines of 0 bytes are left out.
    pub lines: Vec<PlanLine>,
    /// All that is where it is computed.
    pub device_bytes: u64,
    /// All that is in host memory whatever computes.
    pub host_bytes: u64,
    /// Both: what the run needs of the host's memory at its peak, with a processor that computes.
    pub total_bytes: u64,
    /// What a machine needs.
    pub requirements: Requirements,
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
    /// With room for what no plan knows; [`Need::of`] has the rule.
    pub recommended_bytes: u64,
}

/// Rows that were read once are kept by the system while there is room: more than this gains little, as an epoch goes through all of them.
const MOST_FILE_CACHE: u64 = 4 << 30;
/// What a GPU's driver and libraries may take for themselves. Nothing of that was measured here.
const GPU_CONTEXT: u64 = 1 << 30;

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

impl MemoryPlan {
    /// Plans a run.
    pub fn of(input: &PlanInput) -> Result<MemoryPlan, Error> {
        let threads = if input.threads == 0 { host::cores() } else { input.threads };
        let plan = model_plan(input, threads)?;
        let mut lines: Vec<PlanLine> = Purpose::ALL.iter().map(|purpose| device_line(input, &plan, *purpose)).collect();
        if let Some(answers) = input.answers {
            lines.push(answers_line(input, threads, answers)?);
        }
        lines.extend(host::lines(input, &plan, threads));
        lines.retain(|line| line.bytes > 0);
        let sum = |place: Place| lines.iter().filter(|line| line.place == place).map(|line| line.bytes).sum::<u64>();
        let (device_bytes, steady) = (sum(Place::Device), sum(Place::Host));
        let loading = host::Loading::of(input, &plan);
        // Where a processor computes, loading ends before the room for steps is taken, so only what goes beyond that counts.
        let beyond = (loading.peak + steady).saturating_sub(device_bytes + steady);
        lines.extend(host::loading_line(beyond));
        let total_bytes = device_bytes + steady + beyond;
        let cache = input.dataset_bytes.min(MOST_FILE_CACHE);
        let requirements = Requirements {
            processor: Need::of(total_bytes, cache),
            // A GPU gets tensor by tensor, and each passes through the host.
            gpu_host: Need::of(steady + loading.largest_tensor, cache),
            gpu: Need::of(device_bytes, GPU_CONTEXT),
        };
        Ok(MemoryPlan { lines, device_bytes, host_bytes: steady + beyond, total_bytes, requirements })
    }

    /// Whether it fits into so much host memory.
    pub fn fits(&self, available: Bytes) -> Fit {
        let (needed_bytes, available_bytes) = (self.total_bytes, available.0);
        Fit { available_bytes, needed_bytes, fits: needed_bytes <= available_bytes }
    }

    /// The bytes of one purpose.
    pub fn bytes(&self, purpose: &str) -> u64 {
        self.lines.iter().filter(|line| line.purpose == purpose).map(|line| line.bytes).sum()
    }
}

/// Everything that the model will ask a device for, in order.
fn model_plan(input: &PlanInput, threads: usize) -> Result<Plan, Error> {
    let recipe = input.recipe;
    let mut planner = Planner::for_cpu(threads);
    let (training, storage) = (recipe.training(), recipe.storage());
    Model::build(&mut planner, input.config, input.checkpoint, &training, recipe.kept(), &storage, input.limits)?;
    Ok(planner.plan().clone())
}

fn device_line(input: &PlanInput, plan: &Plan, purpose: Purpose) -> PlanLine {
    let limits = input.limits;
    let what = match purpose {
        Purpose::Weights => weights_words(input, plan),
        Purpose::Adapters => format!("rank {}", input.recipe.lora_r),
        Purpose::Gradients => "of what is trained, f32".to_string(),
        Purpose::Optimizer => match input.recipe.storage().has_narrow_moments {
            true => "two moments of 8 bits".to_string(),
            false => "two moments of f32".to_string(),
        },
        Purpose::Kept => format!("from forward to backward pass, {} tokens", limits.tokens),
        Purpose::Recomputed => "of one layer, made again in the backward pass".to_string(),
        Purpose::Cache => "keys and values".to_string(),
        Purpose::Batch => {
            format!("{} rows, {} tokens, {} patches of pictures", limits.rows, limits.tokens, limits.patches)
        }
        Purpose::Workspace => "used and forgotten within a layer".to_string(),
    };
    let bytes = plan.bytes(purpose) as u64;
    PlanLine { place: Place::Device, purpose: purpose.name(), bytes, what, exactness: Exactness::Exact }
}

fn weights_words(input: &PlanInput, plan: &Plan) -> String {
    let weights = plan.buffers.iter().filter(|buffer| buffer.purpose == Purpose::Weights);
    let most = |kind: Kind| weights.clone().filter(|buffer| buffer.kind == kind).map(|buffer| buffer.bytes).sum();
    let kinds: [(usize, &str); 4] = [
        (most(Kind::F32), "f32"),
        (most(Kind::Bf16), "bf16"),
        (most(Kind::F16), "f16"),
        (most(Kind::U8), "4 bits in the decoder's linears"),
    ];
    let most_bytes = kinds.iter().map(|kind| kind.0).max().unwrap_or(0);
    // Biases and norms are f32 in any case, and not worth a word.
    let kinds = kinds.iter().filter(|kind| kind.0 * 50 > most_bytes).map(|kind| kind.1);
    let kinds = kinds.collect::<Vec<_>>().join(", ");
    match input.recipe.training() {
        Training::Full => format!("all trained, {kinds}"),
        Training::Lora(_) => format!("frozen, {kinds}"),
    }
}

/// What answers of evaluations need besides the model: a cache of keys and values, and the room of steps.
///
/// A generator that shares the model's weights has the same buffers as one of its own but for these, so that is what is planned.
fn answers_line(input: &PlanInput, threads: usize, limits: GeneratorLimits) -> Result<PlanLine, Error> {
    let mut planner = Planner::for_cpu(threads);
    let storage = input.recipe.storage();
    Generator::build(&mut planner, input.config, input.checkpoint, None, storage.four_bit.as_ref(), limits)?;
    let plan = planner.plan();
    let room = [Purpose::Cache, Purpose::Batch, Purpose::Workspace].map(|purpose| plan.bytes(purpose) as u64);
    Ok(PlanLine {
        place: Place::Device,
        purpose: "answers of evaluations",
        bytes: room.iter().sum(),
        what: format!("{} at once, {} tokens each at most", limits.rows, limits.context),
        exactness: Exactness::Estimated,
    })
}

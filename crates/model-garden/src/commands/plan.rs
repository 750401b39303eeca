//! `model-garden plan`: how much memory will a run need, and does it fit?

mod text;

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use garden_data::{BatchSize, ImageSettings, LoaderBuffers, Processor, model_folder, usual_decoding_bytes};
use garden_device::Dtype;
use garden_memory::Bytes;
use garden_model::{Checkpoint, Config, Preset};
use garden_probe::MachineProbe;
use garden_train::{
    Advice, AvailableMemory, DatasetRows, DeviceChoice, DeviceKind, Fits, LoaderChange, MemoryPlan, PlanInput,
    PlanItem, Prepared, Recipe, RowShape, advise, loader_changes,
};
use serde_json::{Value, json};

use super::Outcome;
use super::devices::{self, Chosen, Gpu};
use super::step_time::{self, StepTime};
use crate::cli::{self, Picture};
use crate::failure::{Advised, Failure};
use crate::printer::Printer;

/// Tokens that are trained, where nobody says: one in so many of a row's text.
const TEXT_FOR_AN_ANSWER: usize = 4;
/// A stored picture is taken to have a byte for each pixel, which is much for a photograph, and a token four.
const TOKEN_BYTES: u64 = 4;
/// How often somebody who waits for a look at all rows is told how far it is.
const WORD: Duration = Duration::from_secs(5);

/// A plan with everything that is said about it.
struct Answer<'a> {
    subject: &'a Subject,
    recipe: &'a Recipe,
    rows: RowsFound,
    /// The usual micro-batch, and steps of an epoch where there is a dataset.
    usual: (step_time::Usual, Option<usize>),
    plan: MemoryPlan,
    fits: Fits,
    /// Where the memory that is there comes from.
    available: Available,
    /// The same of the GPU's, where one computes.
    gpu: GpuMemory,
    advice: Option<Advice>,
    loader: Vec<LoaderChange>,
    /// How long a step takes, where somebody asks.
    step_time: Option<StepTime>,
}

/// The GPU that is planned for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum GpuMemory {
    /// One that is here.
    Here(Gpu),
    /// One that somebody thinks of, with so much free memory.
    Imagined(Bytes),
    /// One that nothing is known of.
    Unknown,
}

/// The memory that there is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Available {
    /// `memory-limit` says so.
    Limit(Bytes),
    /// So much is free.
    Free(Bytes),
    /// Nobody knows.
    Unknown,
}

/// The model and what is known of it.
struct Subject {
    name: String,
    config: Config,
    checkpoint: Checkpoint,
    /// The model's own, without a recipe's bounds.
    images: ImageSettings,
    tokenizer_bytes: Option<u64>,
    /// Each row, where there is no dataset.
    row: RowShape,
    has_dataset: bool,
}

/// The largest micro-batch, in numbers.
struct RowsFound {
    /// What each dataset contributes; none where there are only shapes of rows.
    datasets: Vec<DatasetRows>,
    tokens: usize,
    rows: usize,
    patches: usize,
    /// The row that has most, where there is a dataset.
    largest: Option<String>,
}

/// The plan of a job that is about to run: the plan, whether it fits, and both in words.
pub struct Planned {
    pub plan: MemoryPlan,
    pub fits: bool,
    /// The answer, and of which run.
    pub headline: String,
    pub text: String,
    /// Everything as JSON.
    pub told: Value,
}

/// Which part of a GPU's memory a plan may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuShare {
    /// What is free now.
    Free,
    /// All of it, for a job that waits for its turn.
    All,
}

/// Plans a job.
pub fn of_job(prepared: &Prepared, chosen: Chosen, share: GpuShare, printer: &Printer) -> Result<Planned, Failure> {
    let recipe = &prepared.job.recipe;
    let subject = Subject::of_folder(recipe, RowShape::default(), true)?;
    let surveys = HashMap::from([(key(recipe), prepared.clone())]);
    let device = chosen.kind();
    let gpu = chosen.gpu().cloned().map_or(GpuMemory::Unknown, |gpu| match share {
        GpuShare::Free => GpuMemory::Here(gpu),
        GpuShare::All => GpuMemory::Here(Gpu { free_bytes: gpu.total_bytes, ..gpu }),
    });
    let answer = answer(recipe, Planning { subject: &subject, printer, surveys, device, gpu })?;
    let (headline, text, told) = (text::headline(&answer), text::write(&answer), told(&answer));
    Ok(Planned { headline, text, told, fits: answer.fits.all(), plan: answer.plan })
}

/// Runs the command.
pub fn run(arguments: &cli::Plan, printer: &Printer) -> Result<Outcome, Failure> {
    let recipe = recipe(arguments)?;
    let subject = Subject::of(arguments, &recipe)?;
    if arguments.image.is_empty() && !subject.has_dataset {
        return Err(Failure {
            what: "no image size to plan for".into(),
            causes: vec!["how much memory a step needs depends on the images of its rows".into()],
            hint: Some(
                "pass their size with --image 1024x1024 (again for each image of a row), or --image none for rows of text \
                 alone; with --model, --dataset takes the sizes from your rows"
                    .into(),
            ),
        });
    }
    let (device, gpu) = device(arguments.vram, recipe.device, printer)?;
    let mut answer = answer(&recipe, Planning { subject: &subject, printer, surveys: HashMap::new(), device, gpu })?;
    if arguments.step_time {
        let (usual, steps) = answer.usual;
        let device = answer.plan.device;
        answer.step_time = StepTime::try_measure(&subject.config, &recipe, device, usual, steps, printer);
    }
    printer.out(&match arguments.printed.is_json() {
        true => format!("{:#}\n", told(&answer)),
        false => text::write(&answer),
    })?;
    Ok(if answer.fits.all() { Outcome::Fine } else { Outcome::BadNews })
}

/// A released model as somebody would train it who changes nothing: LoRA, two rows at a time, each with an image of this size and this much text.
pub struct Usual {
    pub name: &'static str,
    pub is_4bit: bool,
    pub fits: bool,
    /// What it needs and what there is where it computes, in bytes.
    pub needed: u64,
    pub available: u64,
}

/// Size of the image of each row, and tokens of its text.
pub const USUAL_ROW: ((usize, usize), usize) = ((1024, 1024), 256);

/// The largest released model that can be trained here; if none can, the smallest in 4 bits.
pub fn largest(chosen: &Chosen, printer: &Printer) -> Result<Option<Usual>, Failure> {
    let mut best: Option<Usual> = None;
    for preset in Preset::all() {
        for is_4bit in [false, true] {
            let found = usual(preset, is_4bit, chosen, printer)?;
            let (fits, is_first) = (found.fits, best.is_none());
            if fits || (is_first && is_4bit) {
                best = Some(found);
            }
            if fits {
                break;
            }
            // A larger model needs more.
            if is_4bit {
                return Ok(best);
            }
        }
    }
    Ok(best)
}

/// How long a step of it takes, if that can be measured.
pub fn usual_step_time(usual: &Usual, chosen: &Chosen, printer: &Printer) -> Result<Option<StepTime>, Failure> {
    let Some(preset) = Preset::find(usual.name) else { return Ok(None) };
    let (recipe, subject) = usual_run(preset, usual.is_4bit)?;
    let (device, gpu) = (chosen.kind(), GpuMemory::Unknown);
    let mut planning = Planning { subject: &subject, printer, surveys: HashMap::new(), device, gpu };
    let (batch, steps) = planning.usual(&recipe)?;
    Ok(StepTime::try_measure(&subject.config, &recipe, device, batch, steps, printer))
}

/// The settings and the rows of somebody who changes nothing.
fn usual_run(preset: Preset, is_4bit: bool) -> Result<(Recipe, Subject), Failure> {
    let settings = [
        ("model", preset.hub_name.to_string()),
        ("dataset", "none".to_string()),
        ("output-dir", "none".to_string()),
        ("load-in-4bit", is_4bit.to_string()),
    ];
    let settings = settings.map(|(name, value)| (name.to_string(), Value::String(value)));
    let recipe = Recipe::from_values(settings).map_err(super::wrong_setting)?;
    let (picture, text_tokens) = USUAL_ROW;
    let row = RowShape { text_tokens, trained: text_tokens / TEXT_FOR_AN_ANSWER, pictures: vec![picture] };
    Ok((recipe, Subject::of_shape(preset, row)?))
}

fn usual(preset: Preset, is_4bit: bool, chosen: &Chosen, printer: &Printer) -> Result<Usual, Failure> {
    let (recipe, subject) = usual_run(preset, is_4bit)?;
    let gpu = chosen.gpu().cloned().map_or(GpuMemory::Unknown, GpuMemory::Here);
    let mut planning =
        Planning { subject: &subject, printer, surveys: HashMap::new(), device: chosen.kind(), gpu: gpu.clone() };
    let plan = planning.plan(&recipe)?;
    let available = AvailableMemory { host: available(&recipe).bytes(), gpu: gpu.bytes() };
    let fits = plan.fits(available);
    let host = (fits.host.needed_bytes, available.host.0);
    let (needed, available) = match fits.gpu {
        // Where both are short, the GPU's is what somebody looks for first.
        Some(on_gpu) if !on_gpu.fits || fits.host.fits => (on_gpu.needed_bytes, available.gpu.0),
        _ => host,
    };
    Ok(Usual { name: preset.name, is_4bit, fits: fits.all(), needed, available })
}

/// Where the run that is planned would compute. A GPU need not be here to be planned for.
fn device(vram: Option<Bytes>, choice: DeviceChoice, printer: &Printer) -> Result<(DeviceKind, GpuMemory), Failure> {
    match vram {
        Some(_) if matches!(choice, DeviceChoice::Cpu | DeviceChoice::CpuBf16) => {
            let hint = "omit one of the two".to_string();
            let what = "--vram is for a GPU, but --device cpu uses the CPU".to_string();
            return Err(Failure { what, causes: Vec::new(), hint: Some(hint) });
        }
        Some(free) => return Ok((DeviceKind::Cuda, GpuMemory::Imagined(free))),
        None => {}
    }
    match devices::choose(choice, printer) {
        Ok(Chosen::Cpu) => Ok((DeviceKind::Cpu, GpuMemory::Unknown)),
        Ok(Chosen::CpuBf16) => Ok((DeviceKind::CpuBf16, GpuMemory::Unknown)),
        Ok(Chosen::Cuda(gpu)) => Ok((DeviceKind::Cuda, GpuMemory::Here(gpu))),
        // One that cannot be used now, or is not here, can be planned for.
        Err(failure) => {
            failure.causes.iter().for_each(|cause| printer.say(&format!("note: {cause}")));
            Ok((DeviceKind::Cuda, GpuMemory::Unknown))
        }
    }
}

fn answer<'a>(recipe: &'a Recipe, mut planning: Planning<'a>) -> Result<Answer<'a>, Failure> {
    let plan = planning.plan(recipe)?;
    let available = available(recipe);
    let both = AvailableMemory { host: available.bytes(), gpu: planning.gpu.bytes() };
    let fits = plan.fits(both);
    let advice = match fits.all() {
        true => None,
        false => {
            let picture = planning.largest_picture(recipe)?;
            Some(advise(recipe, picture, both, |recipe| planning.plan(recipe))?)
        }
    };
    let loader = match plan.bytes(PlanItem::Loader) {
        0 => Vec::new(),
        _ => loader_changes(recipe, |recipe| planning.plan(recipe))?,
    };
    let (rows, usual) = (planning.rows(recipe)?, planning.usual(recipe)?);
    let Planning { subject, gpu, .. } = planning;
    Ok(Answer { subject, recipe, rows, usual, plan, fits, available, gpu, advice, loader, step_time: None })
}

/// What of a recipe decides the sizes of rows.
fn key(recipe: &Recipe) -> (BatchSize, Option<u64>) {
    (recipe.batch(), recipe.max_pixels)
}

/// The recipe of the flags; what only training needs has stand-ins.
fn recipe(arguments: &cli::Plan) -> Result<Recipe, Failure> {
    let named = |name: &str| arguments.settings.0.iter().any(|(given, _)| given == name);
    if arguments.shape.is_none() && !named("model") {
        let released = Preset::all().next().map_or(String::new(), |preset| format!(" such as {}", preset.name));
        return Err(Failure {
            what: "no model to plan for".into(),
            causes: Vec::new(),
            hint: Some(format!("pass a folder with --model, or a released model{released} with --shape")),
        });
    }
    let shape = arguments.shape.map_or("none", |preset| preset.hub_name);
    let stand_ins = [("model", shape), ("dataset", "none"), ("output-dir", "none")];
    let stand_ins = stand_ins.map(|(name, value)| (name.to_string(), Value::String(value.to_string())));
    Recipe::from_values(stand_ins.into_iter().chain(arguments.settings.0.clone())).map_err(super::wrong_setting)
}

fn unusable(folder: &str, error: &dyn std::fmt::Display, hint: Option<String>) -> Failure {
    Failure { what: format!("cannot use `{folder}`"), causes: vec![error.to_string()], hint }
}

/// What `memory-limit` allows, else what is free. Swap does not count: a step that waits for a disk never ends.
fn available(recipe: &Recipe) -> Available {
    if let Some(limit) = recipe.memory_limit {
        return Available::Limit(limit);
    }
    let around = MachineProbe::of(std::process::id()).look();
    let free = around.headroom.into_iter().chain(around.available).min();
    free.map_or(Available::Unknown, |bytes| Available::Free(Bytes(bytes)))
}

impl GpuMemory {
    fn bytes(&self) -> Bytes {
        match self {
            GpuMemory::Here(gpu) => Bytes(gpu.free_bytes),
            GpuMemory::Imagined(free) => *free,
            GpuMemory::Unknown => Bytes(u64::MAX),
        }
    }
}

impl Available {
    fn bytes(self) -> Bytes {
        match self {
            Available::Limit(bytes) | Available::Free(bytes) => bytes,
            Available::Unknown => Bytes(u64::MAX),
        }
    }
}

impl Subject {
    fn of(arguments: &cli::Plan, recipe: &Recipe) -> Result<Subject, Failure> {
        let text_tokens = arguments.text_tokens as usize;
        let trained = arguments.answer_tokens.unwrap_or(text_tokens / TEXT_FOR_AN_ANSWER).min(text_tokens);
        let size = |picture: &Picture| match picture {
            Picture::None => None,
            Picture::Size(width, height) => Some((*width, *height)),
        };
        let row = RowShape { text_tokens, trained, pictures: arguments.image.iter().filter_map(size).collect() };
        let has_dataset = arguments.settings.0.iter().any(|(name, _)| name == "dataset");
        if let Some(preset) = arguments.shape {
            return Subject::of_shape(preset, row);
        }
        Subject::of_folder(recipe, row, has_dataset)
    }

    fn of_shape(preset: Preset, row: RowShape) -> Result<Subject, Failure> {
        let config = preset.config();
        let checkpoint = Checkpoint::of_shapes(&config, Dtype::Bf16);
        let checkpoint =
            checkpoint.map_err(|error| Failure::of(format!("cannot plan for `{}`", preset.name), &error))?;
        let rules = &config.family.images;
        let images = ImageSettings { max_pixels: rules.released_max_pixels, ..ImageSettings::of(rules) };
        let name = preset.name.to_string();
        Ok(Subject { name, config, checkpoint, images, tokenizer_bytes: None, row, has_dataset: false })
    }

    fn of_folder(recipe: &Recipe, row: RowShape, has_dataset: bool) -> Result<Subject, Failure> {
        let base = &recipe.base_model;
        let folder: PathBuf =
            model_folder(base).map_err(|error| unusable(base, &error, error.hint().map(str::to_string)))?;
        let failed = |error: &dyn Advised| Failure::of(format!("cannot use `{base}`"), error);
        Ok(Subject {
            name: base.clone(),
            config: Config::read(&folder.join("config.json")).map_err(|error| failed(&error))?,
            checkpoint: Checkpoint::open(&folder).map_err(|error| failed(&error))?,
            images: Processor::open(&folder).map_err(|error| failed(&error))?.images,
            tokenizer_bytes: std::fs::metadata(folder.join("tokenizer.json")).ok().map(|file| file.len()),
            row,
            has_dataset,
        })
    }
}

/// Plans one recipe after the other for the same model and rows.
struct Planning<'a> {
    subject: &'a Subject,
    printer: &'a Printer,
    /// Looks at the dataset, by what decides them.
    surveys: HashMap<(BatchSize, Option<u64>), Prepared>,
    device: DeviceKind,
    gpu: GpuMemory,
}

impl Planning<'_> {
    /// What the driver takes for itself, where that was measured.
    fn driver_bytes(&self) -> Option<u64> {
        match &self.gpu {
            GpuMemory::Here(gpu) => gpu.driver_bytes,
            GpuMemory::Imagined(_) | GpuMemory::Unknown => None,
        }
    }

    fn plan(&mut self, recipe: &Recipe) -> Result<MemoryPlan, Failure> {
        let subject = self.subject;
        let planned = match self.subject.has_dataset {
            true => {
                let driver_bytes = self.driver_bytes();
                let prepared = self.prepared(recipe)?;
                let input = PlanInput::of_job(prepared, &subject.checkpoint, &subject.images, driver_bytes);
                let loader = LoaderBuffers::of_settings(
                    &subject.images,
                    (input.limits.patches, input.limits.tokens),
                    recipe.ahead(),
                );
                MemoryPlan::of(&PlanInput { recipe, loader, ..input })
            }
            false => {
                let limits = subject.row.limits(recipe, &subject.images).map_err(|problem| Failure {
                    what: "such rows are not possible".into(),
                    causes: vec![problem],
                    hint: None,
                })?;
                // A file has about a byte for each pixel.
                let files: u64 = subject.row.pictures.iter().map(|(width, height)| (width * height) as u64).sum();
                let text = subject.row.text_tokens as u64 * TOKEN_BYTES;
                MemoryPlan::of(&PlanInput {
                    recipe,
                    config: &subject.config,
                    checkpoint: &subject.checkpoint,
                    device: self.device,
                    driver_bytes: self.driver_bytes(),
                    limits,
                    answers: None,
                    loader: LoaderBuffers::of_settings(
                        &subject.images,
                        (limits.patches, limits.tokens),
                        recipe.ahead(),
                    ),
                    tokenizer_bytes: subject.tokenizer_bytes,
                    index_bytes: 0,
                    evaluates: false,
                    reading_bytes: files + text + usual_decoding_bytes(subject.row.stored_pixels()),
                    dataset_bytes: 0,
                    processor_bytes: None,
                    saves: None,
                })
            }
        };
        planned.map_err(|error| unusable(&subject.name, &error, error.hint()))
    }

    /// A look at all rows with what of a recipe decides their sizes.
    fn prepared(&mut self, recipe: &Recipe) -> Result<&Prepared, Failure> {
        let key = key(recipe);
        if !self.surveys.contains_key(&key) {
            let mut last = Instant::now();
            let mut tell = |done: usize, rows: usize| {
                if last.elapsed() >= WORD && done < rows {
                    last = Instant::now();
                    self.printer.say(&format!("model-garden: {done} of {rows} rows"));
                }
            };
            let dataset = recipe.dataset_words();
            let prepared = Prepared::of(recipe.clone(), self.device, &mut tell)
                .map_err(|error| unusable(&dataset, &error, error.hint()))?;
            self.surveys.insert(key, prepared);
        }
        Ok(&self.surveys[&key])
    }

    /// Pixels of the largest picture, where pictures are most of the longest row.
    fn largest_picture(&mut self, recipe: &Recipe) -> Result<Option<u64>, Failure> {
        let (images, row) = (&self.subject.images, &self.subject.row);
        let row = match self.subject.has_dataset {
            false => row.clone(),
            true => {
                let Some(largest) = self.prepared(recipe)?.train.largest.clone() else { return Ok(None) };
                let pictures = largest.pictures.iter().map(|[width, height]| (*width, *height)).collect();
                RowShape { text_tokens: largest.tokens - largest.image_tokens, trained: 0, pictures }
            }
        };
        let grids = row.grids(recipe, images).unwrap_or_default();
        let tokens: usize = grids.iter().map(|grid| images.tokens(*grid)).sum();
        let pixels = |grid: &[usize; 3]| (grid[1] * grid[2] * images.patch * images.patch) as u64;
        Ok(grids.iter().map(pixels).max().filter(|_| tokens >= row.text_tokens))
    }

    /// The usual micro-batch, and steps of an epoch where there is a dataset.
    fn usual(&mut self, recipe: &Recipe) -> Result<(step_time::Usual, Option<usize>), Failure> {
        if self.subject.has_dataset {
            let prepared = self.prepared(recipe)?;
            let usual = step_time::Usual::of_survey(&prepared.train, recipe.batch());
            return Ok((usual, Some(prepared.job.steps_per_epoch())));
        }
        let (row, images) = (&self.subject.row, &self.subject.images);
        let grids = row.grids(recipe, images).unwrap_or_default();
        let image_tokens = grids.iter().map(|grid| images.tokens(*grid)).sum();
        Ok((step_time::Usual::of_rows(recipe.batch_size, grids.len(), image_tokens, row.text_tokens), None))
    }

    fn rows(&mut self, recipe: &Recipe) -> Result<RowsFound, Failure> {
        let subject = self.subject;
        let (limits, largest, datasets) = match self.subject.has_dataset {
            true => {
                let prepared = self.prepared(recipe)?;
                let largest = prepared.train.largest.as_ref();
                let largest = largest.map(|row| format!("{} has {} tokens", row.place, row.tokens));
                (prepared.job.limits, largest, prepared.job.datasets())
            }
            false => (subject.row.limits(recipe, &subject.images).unwrap_or_default(), None, Vec::new()),
        };
        Ok(RowsFound { datasets, tokens: limits.tokens, rows: limits.rows, patches: limits.patches, largest })
    }
}

/// Everything as JSON.
fn told(answer: &Answer) -> Value {
    let available = match answer.available {
        Available::Unknown => None,
        known => Some(known.bytes()),
    };
    let source = match answer.available {
        Available::Limit(_) => Some("memory-limit"),
        Available::Free(_) => Some("free"),
        Available::Unknown => None,
    };
    let gpu = answer.fits.gpu.map(|fit| {
        let (available, source, name) = match &answer.gpu {
            GpuMemory::Here(gpu) => (Some(gpu.free_bytes), Some("free"), Some(gpu.name.as_str())),
            GpuMemory::Imagined(free) => (Some(free.0), Some("vram"), None),
            GpuMemory::Unknown => (None, None, None),
        };
        json!({
            "fits": fit.fits,
            "needed_bytes": fit.needed_bytes,
            "available_bytes": available,
            "available_from": source,
            "name": name,
        })
    });
    let mut told = json!({
        "fits": answer.fits.all(),
        "needed_bytes": answer.fits.host.needed_bytes,
        "available_bytes": available,
        "available_from": source,
        "gpu": gpu,
        "model": answer.subject.name,
        "parameters": answer.subject.checkpoint.parameters(),
        "micro_batch": {
            "rows": answer.rows.rows,
            "tokens": answer.rows.tokens,
            "patches": answer.rows.patches,
            "largest_row": answer.rows.largest,
        },
        "datasets": answer.rows.datasets,
        "plan": answer.plan,
        "advice": answer.advice,
        "loader": answer.loader,
    });
    // Only where somebody asked, which nobody does for a job.
    if let Some(time) = &answer.step_time {
        told["step_time"] = json!(time);
    }
    told
}

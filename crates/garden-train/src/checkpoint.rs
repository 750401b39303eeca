//! Checkpoints: `checkpoint-N/` with everything that is needed to go on exactly.
//!
//! A checkpoint is written under another name (`.checkpoint-N.partial`), brought to the disk, and then renamed, so that one with its name is whole. One
//! that goes, or is replaced, is renamed first as well (`.checkpoint-N.old`): whenever a run is killed, one of the three is whole, and [`recover`] finds it.
//! `garden_state.json` has the length and a checksum of every other file: what the disk has damaged is recognised and skipped.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use garden_device::{Device, Dtype};
use garden_memory::Bytes;
use garden_model::{LoraConfig, Model, Training, read_adapter, write_adapter};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::datasets::{self, RowsOf};
use crate::error::Error;
use crate::job::Job;
use crate::log::Log;
use crate::observer::StepReport;
use crate::plan::{check_free, checkpoint_bytes};
use crate::recipe::{DeviceKind, FIELDS, Field, OnResume, Recipe};

const STATE: &str = "garden_state.json";
const OPTIMIZER: &str = "optimizer.safetensors";
const TRAINER_STATE: &str = "trainer_state.json";
const NAME: &str = "checkpoint-";
/// How names end that a checkpoint has while it is written, and before it goes.
const DRAFT: &str = ".partial";
const OLD: &str = ".old";

/// How far a run is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Steps that are done.
    pub step: usize,
    /// Tokens that were read.
    pub tokens: u64,
    /// Rows that could not be used and were left out.
    pub skipped: usize,
    /// What was wrong with the first of them, each once.
    #[serde(default)]
    pub skipped_rows: Vec<String>,
    /// Rows that were too long and were left out.
    pub dropped: usize,
    /// Losses and hits since the last line of the log.
    pub window: LossWindow,
    /// The evaluation before the first step, which later ones are compared with.
    #[serde(default)]
    pub start: Option<Best>,
    /// The best evaluation after a step so far: its checkpoint becomes the result.
    pub best: Option<Best>,
    /// Evaluations since the best one.
    pub worse: usize,
    /// The step of the last evaluation.
    pub evaluated: Option<usize>,
    /// Seconds of all steps, evaluations and checkpoints so far, whichever start they were of.
    #[serde(default)]
    pub seconds: f64,
}

/// Rows that are named in a run's progress: more are counted, and the log has all of them.
const MOST_NAMED: usize = 20;

impl Progress {
    /// Counts a row that was left out.
    pub(crate) fn skip(&mut self, problem: String) {
        self.skipped += 1;
        if self.skipped_rows.len() < MOST_NAMED && !self.skipped_rows.contains(&problem) {
            self.skipped_rows.push(problem);
        }
    }
}

/// Losses that the next line of the log averages, and hits of which it gives the share. Checkpoints of earlier versions have no hits: their share is then of
/// the steps since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "WrittenWindow")]
pub struct LossWindow {
    /// The sum of the losses.
    pub sum: f64,
    /// The number of steps.
    pub steps: usize,
    /// Trained tokens whose logit no other one exceeded.
    pub hits: u64,
    /// All trained tokens.
    pub trained: u64,
}

impl LossWindow {
    /// Adds a step.
    pub(crate) fn add(&mut self, report: &StepReport) {
        // All its rows were left out: it has no loss.
        if report.trained == 0 {
            return;
        }
        self.sum += report.loss;
        self.steps += 1;
        self.hits += report.hits as u64;
        self.trained += report.trained as u64;
    }

    /// The mean loss of the steps.
    pub(crate) fn loss(&self) -> f64 {
        self.sum / self.steps as f64
    }

    /// The share of hits; every token counts alike, whatever the loss is divided by.
    pub(crate) fn accuracy(&self) -> Option<f64> {
        (self.trained > 0).then(|| self.hits as f64 / self.trained as f64)
    }
}

/// An evaluation that was better than those before it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "WrittenBest")]
pub struct Best {
    /// The step it followed.
    pub step: usize,
    /// The metric that decided.
    pub metric: f64,
    /// The loss, which decides between equal metrics. Checkpoints of earlier versions have none: an equal metric is not better then.
    pub loss: Option<f64>,
}

/// Rows of the training dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "WrittenRows")]
pub(crate) struct RowCounts {
    pub all: usize,
    pub left_out: usize,
}

// Checkpoints of earlier versions have these as lists without names.
#[derive(Deserialize)]
#[serde(untagged)]
enum WrittenWindow {
    Named {
        sum: f64,
        steps: usize,
        #[serde(default)]
        hits: u64,
        #[serde(default)]
        trained: u64,
    },
    List(f64, usize),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum WrittenBest {
    Named { step: usize, metric: f64, loss: Option<f64> },
    List(usize, f64),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum WrittenRows {
    Named { all: usize, left_out: usize },
    List(usize, usize),
}

impl From<WrittenWindow> for LossWindow {
    fn from(written: WrittenWindow) -> LossWindow {
        match written {
            WrittenWindow::Named { sum, steps, hits, trained } => LossWindow { sum, steps, hits, trained },
            WrittenWindow::List(sum, steps) => LossWindow { sum, steps, ..LossWindow::default() },
        }
    }
}

impl From<WrittenBest> for Best {
    fn from(written: WrittenBest) -> Best {
        match written {
            WrittenBest::Named { step, metric, loss } => Best { step, metric, loss },
            WrittenBest::List(step, metric) => Best { step, metric, loss: None },
        }
    }
}

impl From<WrittenRows> for RowCounts {
    fn from(written: WrittenRows) -> RowCounts {
        let (WrittenRows::Named { all, left_out } | WrittenRows::List(all, left_out)) = written;
        RowCounts { all, left_out }
    }
}

/// What a checkpoint says about itself.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct State {
    pub progress: Progress,
    pub recipe: Recipe,
    /// Rows of the training dataset.
    pub rows: RowCounts,
    /// What the rows say and show, in one number. Checkpoints of earlier versions have none that could be compared.
    #[serde(default)]
    pub contents: Option<u64>,
    /// What the base model is, in one number. Checkpoints of earlier versions have none.
    #[serde(default)]
    pub base: Option<u64>,
    /// Rows of each dataset. Checkpoints of earlier versions have none: they were made with one dataset.
    #[serde(default)]
    pub portions: Vec<RowsOf>,
    /// Where it was computed.
    #[serde(default)]
    pub device: DeviceKind,
    files: BTreeMap<String, Stamp>,
}

/// What a file has to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Stamp {
    bytes: u64,
    crc32c: u32,
}

impl Stamp {
    fn of(path: &Path) -> std::io::Result<Stamp> {
        let (mut file, mut crc) = (File::open(path)?, 0);
        let (mut bytes, mut piece) = (0, vec![0; 1 << 20]);
        loop {
            let read = file.read(&mut piece)?;
            if read == 0 {
                return Ok(Stamp { bytes, crc32c: crc });
            }
            bytes += read as u64;
            crc = crc32c::crc32c_append(crc, &piece[..read]);
        }
    }
}

/// Writes the checkpoint of a step; returns where it is.
pub(crate) fn save(
    job: &Job,
    progress: &Progress,
    log: &Log,
    model: &Model,
    device: &mut dyn Device,
) -> Result<PathBuf, Error> {
    let folder = job.recipe.output_dir.as_path();
    let path = of_step(folder, progress.step);
    // A start that went on from an older checkpoint comes to the same step with the same values: what is whole stays.
    if open(&path).is_ok_and(|state| state.progress == *progress && state.recipe == job.recipe) {
        return Ok(path);
    }
    let (draft, old) = (hidden(&path, DRAFT), hidden(&path, OLD));
    delete(&draft)?;
    let needed = checkpoint_bytes(device.plan());
    check_free(folder, needed, || format!("checkpoint-{} needs {} of disk", progress.step, Bytes(needed)))?;
    fs::create_dir_all(&draft).map_err(|error| Error::file(&draft, error))?;
    let written = write(job, progress, log, model, device, &draft);
    let renamed = written.and_then(|()| {
        // One that is torn, of other settings, or from before the evaluation of its step.
        put_away(&path, &old)?;
        // Here the checkpoint becomes visible.
        fs::rename(&draft, &path).map_err(|error| Error::file(&path, error))?;
        sync_folder(folder)
    });
    match renamed {
        Ok(()) => {
            delete(&old)?;
            Ok(path)
        }
        Err(error) => {
            // Half a checkpoint is of no use, and on a full disk in the way.
            drop(fs::remove_dir_all(&draft));
            Err(error)
        }
    }
}

fn write(
    job: &Job,
    progress: &Progress,
    log: &Log,
    model: &Model,
    device: &mut dyn Device,
    draft: &Path,
) -> Result<(), Error> {
    write_trained(job, model, device, draft)?;
    model.write_optimizer(device, &draft.join(OPTIMIZER))?;
    let path = draft.join(TRAINER_STATE);
    write_trainer_state(job, progress, log, &path).map_err(|error| Error::file(&path, error))?;
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(draft).map_err(|error| Error::file(draft, error))? {
        let path = entry.map_err(|error| Error::file(draft, error))?.path();
        let stamp = File::open(&path).and_then(|file| file.sync_all()).and_then(|()| Stamp::of(&path));
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        files.insert(name, stamp.map_err(|error| Error::file(&path, error))?);
    }
    let rows = RowCounts { all: job.train.rows, left_out: job.train.left_out.len() };
    let (contents, base) = (Some(job.train.fingerprint), job.base_fingerprint);
    let (progress, recipe, device) = (progress.clone(), job.recipe.clone(), job.device);
    let portions = job.train.portions.clone();
    let state = State { progress, recipe, rows, contents, base, portions, device, files };
    let path = draft.join(STATE);
    let text = serde_json::to_vec_pretty(&state).unwrap_or_default();
    let written = File::create(&path).and_then(|mut file| file.write_all(&text).and_then(|()| file.sync_all()));
    written.map_err(|error| Error::file(&path, error))?;
    sync_folder(draft)
}

/// Writes what is trained into a folder, with all its digits: an adapter in PEFT's layout, or all weights.
pub(crate) fn write_trained(job: &Job, model: &Model, device: &mut dyn Device, folder: &Path) -> Result<(), Error> {
    match job.recipe.training(model.family()) {
        Training::Lora(lora) => write_adapter(device, model, &lora, Some(&job.recipe.base_model), folder)?,
        Training::Full => model.write_checkpoint(device, &job.base, Dtype::F32, folder)?,
    }
    Ok(())
}

/// Reads what is trained from a folder.
pub(crate) fn read_trained(job: &Job, model: &Model, device: &mut dyn Device, folder: &Path) -> Result<(), Error> {
    match job.recipe.full {
        false => read_adapter(folder, model.family())?.put(device, model)?,
        true => model.read_checkpoint(device, folder)?,
    }
    Ok(())
}

/// What Hugging Face's trainer keeps of a run, by its names.
fn write_trainer_state(job: &Job, progress: &Progress, log: &Log, path: &Path) -> std::io::Result<()> {
    let recipe = &job.recipe;
    let best = progress.best;
    let fields = json!({
        "best_global_step": best.map(|best| best.step),
        "best_metric": best.map(|best| best.metric),
        "best_model_checkpoint": best.map(|best| recipe.output_dir.join(format!("{NAME}{}", best.step))),
        "epoch": progress.step as f64 / job.steps_per_epoch() as f64,
        "eval_steps": job.eval_steps(),
        "global_step": progress.step,
        "is_hyper_param_search": false,
        "is_local_process_zero": true,
        "is_world_process_zero": true,
        "logging_steps": recipe.logging_steps,
        "max_steps": job.steps(),
        "num_input_tokens_seen": progress.tokens,
        "num_train_epochs": (job.steps() as f64 / job.steps_per_epoch() as f64).ceil() as usize,
        "save_steps": recipe.save_steps,
        "stateful_callbacks": {},
        "train_batch_size": if recipe.batch_tokens.is_some() { job.limits.rows } else { recipe.batch_size },
        "trial_name": null,
        "trial_params": null,
    });
    let mut file = BufWriter::new(File::create(path)?);
    file.write_all(b"{\n")?;
    for (name, value) in fields.as_object().into_iter().flatten() {
        writeln!(file, "  \"{name}\": {value},")?;
    }
    file.write_all(b"  \"log_history\": ")?;
    log.copy_as_list(&mut file)?;
    file.write_all(b"\n}\n")?;
    file.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()
}

/// Reads a checkpoint's state after all its files were found whole.
pub(crate) fn open(path: &Path) -> Result<State, Error> {
    let state_path = path.join(STATE);
    let text = garden_files::read_settings(&state_path)
        .map_err(|error| Error::checkpoint(path, format!("`{STATE}` cannot be read: {error}")))?;
    let state: State = serde_json::from_str(&text)
        .map_err(|error| Error::checkpoint(path, format!("`{STATE}` is broken: {error}")))?;
    for (name, stamp) in &state.files {
        let found = Stamp::of(&path.join(name))
            .map_err(|error| Error::checkpoint(path, format!("`{name}` cannot be read: {error}")))?;
        if found.bytes != stamp.bytes {
            let problem = format!("`{name}` has {} bytes instead of {}", found.bytes, stamp.bytes);
            return Err(Error::checkpoint(path, problem));
        }
        if found != *stamp {
            return Err(Error::checkpoint(path, format!("`{name}` is damaged: its checksum does not match")));
        }
    }
    Ok(state)
}

/// The newest whole checkpoint of a folder, and what is wrong with newer ones.
pub fn newest(folder: &Path) -> (Option<PathBuf>, Vec<Error>) {
    let mut torn = Vec::new();
    for (_, path) in all(folder).into_iter().rev() {
        match open(&path) {
            Ok(_) => return (Some(path), torn),
            Err(error) => torn.push(error),
        }
    }
    (None, torn)
}

/// The checkpoints of a folder by their steps, ascending.
fn all(folder: &Path) -> BTreeMap<usize, PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let step = |name: &str| name.strip_prefix(NAME)?.parse().ok();
    entries.filter_map(|entry| Some((step(entry.file_name().to_str()?)?, entry.path()))).collect()
}

/// Whether there is any checkpoint in a folder.
pub fn has_checkpoints(folder: &Path) -> bool {
    !all(folder).is_empty()
}

/// Removes the oldest checkpoints beyond a number; the best one stays.
pub(crate) fn rotate(folder: &Path, keep: usize, best: Option<usize>) -> Result<(), Error> {
    let mut found = all(folder);
    let newest: Vec<usize> = found.keys().rev().take(keep).copied().collect();
    found.retain(|step, _| !newest.contains(step) && Some(*step) != best);
    for path in found.values() {
        // Under another name first: nobody shall take for a checkpoint what is half gone.
        let old = hidden(path, OLD);
        put_away(path, &old)?;
        delete(&old)?;
    }
    Ok(())
}

/// Puts in order what a start that was killed left behind: a whole checkpoint that was about to be replaced gets its name back, halves of others go.
/// Only for whoever has the folder to itself.
pub fn recover(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (hidden, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let Some(name) = name.strip_prefix('.').filter(|name| name.starts_with(NAME)) else { continue };
        // What cannot be renamed or removed now is not in the way either.
        if let Some(name) = name.strip_suffix(OLD) {
            let path = folder.join(name);
            let is_needed = !path.exists() && open(&hidden).is_ok();
            drop(if is_needed { fs::rename(&hidden, &path) } else { fs::remove_dir_all(&hidden) });
        } else if name.ends_with(DRAFT) {
            drop(fs::remove_dir_all(&hidden));
        }
    }
}

/// Checkpoints that a run does not go on from, and that come after where it is, are those of another run now: they get other names. Returns these.
pub(crate) fn set_aside(folder: &Path, step: Option<usize>) -> Result<Vec<PathBuf>, Error> {
    let later = all(folder).into_iter().filter(|(found, _)| step.is_none_or(|step| *found > step));
    later
        .map(|(found, path)| {
            let free =
                (1..).map(|number| folder.join(format!("abandoned-{found}-{number}"))).find(|path| !path.exists());
            let aside = free.unwrap_or_else(|| folder.join("abandoned"));
            fs::rename(&path, &aside).map_err(|error| Error::file(&path, error))?;
            Ok(aside)
        })
        .collect()
}

/// The checkpoint of a step.
pub(crate) fn of_step(folder: &Path, step: usize) -> PathBuf {
    folder.join(format!("{NAME}{step}"))
}

/// Reads optimizer and values of a checkpoint into a model.
pub(crate) fn restore(job: &Job, model: &mut Model, device: &mut dyn Device, path: &Path) -> Result<(), Error> {
    read_trained(job, model, device, path)?;
    Ok(model.read_optimizer(device, &path.join(OPTIMIZER))?)
}

/// Whether a run can go on from a checkpoint; what has changed since, in words.
pub fn check_resume(job: &Job, path: &Path) -> Result<Vec<String>, Error> {
    compare(path, &open(path)?, job)
}

/// The configuration of the adapter that a run began with, from the checkpoint that it resumes.
pub(crate) fn first_adapter(recipe: &Recipe) -> Option<LoraConfig> {
    let path = match recipe.resume.as_deref()? {
        "auto" => newest(&recipe.output_dir).0?,
        path => PathBuf::from(path),
    };
    open(&path).ok()?.recipe.first
}

/// What differs from the recipe that a checkpoint was made with, in words; an error where that would be wrong.
pub(crate) fn compare(path: &Path, state: &State, job: &Job) -> Result<Vec<String>, Error> {
    let (before, now) = (state.recipe.values(), job.recipe.values());
    let mut changed = Vec::new();
    for Field { name, on_resume, .. } in FIELDS.iter().filter(|field| field.on_resume != OnResume::Free) {
        let [old, value] = [&before, &now].map(|values| values.get(*name).unwrap_or(&Value::Null));
        if old == value || is_same_place(old, value) {
            continue;
        }
        // Rows and the base model are known by their contents, which are compared below; an adapter by what its folder holds.
        let has_moved = match *name {
            "dataset" => state.contents.is_some() && datasets::is_same_division(&state.portions, job),
            "model" if state.base.is_some() => true,
            "model" | "adapter" => is_moved(old, value),
            _ => false,
        };
        if *on_resume == OnResume::Fixed && !has_moved {
            return Err(Error::Checkpoint {
                path: path.to_path_buf(),
                problem: format!("it was made with `{name}` {}, not {}", shown(old), shown(value)),
                hint: Some(format!("resume with the old `{name}`, or start over in another `output-dir`")),
            });
        }
        changed.push(format!("`{name}` from {} to {}", shown(old), shown(value)));
    }
    if state.device != job.device {
        let name = |device| match device {
            DeviceKind::Cpu => "a CPU",
            DeviceKind::Cuda => "a GPU",
            DeviceKind::CpuBf16 => "a CPU with 16-bit activations",
        };
        let (before, now) = (name(state.device), name(job.device));
        changed.push(format!("the device from {before} to {now}, which rounds differently"));
    }
    compare_base(path, state, job, &mut changed)?;
    if state.progress.step > job.steps() {
        return Err(Error::Checkpoint {
            path: path.to_path_buf(),
            problem: format!("it is at step {}, but the run ends at step {}", state.progress.step, job.steps()),
            hint: Some("raise `epochs` or `max-steps` to continue from there".into()),
        });
    }
    let rows = RowCounts { all: job.train.rows, left_out: job.train.left_out.len() };
    if state.rows != rows {
        return Err(Error::Checkpoint {
            path: path.to_path_buf(),
            problem: format!(
                "its dataset had {} rows, {} of them unused; now it has {}, {} unused{}",
                state.rows.all,
                state.rows.left_out,
                rows.all,
                rows.left_out,
                datasets::changed(&state.recipe, &state.portions, job)
            ),
            hint: Some("resume with the same rows, or start over in another `output-dir`".into()),
        });
    }
    match state.contents {
        Some(contents) if contents != job.train.fingerprint => Err(Error::Checkpoint {
            path: path.to_path_buf(),
            problem: format!(
                "its dataset had different rows, or another order{}",
                datasets::changed(&state.recipe, &state.portions, job)
            ),
            hint: Some("resume with the same rows, or start over in another `output-dir`".into()),
        }),
        Some(_) => Ok(changed),
        None => {
            changed.push("an earlier version made the checkpoint: its rows are assumed to be the same".to_string());
            Ok(changed)
        }
    }
}

/// Refuses another base model than that of a checkpoint; where that cannot be told, it is said.
fn compare_base(path: &Path, state: &State, job: &Job, changed: &mut Vec<String>) -> Result<(), Error> {
    match (state.base, job.base_fingerprint) {
        (Some(before), Some(now)) if before != now => Err(Error::Checkpoint {
            path: path.to_path_buf(),
            problem: format!("the run began with another base model than `{}` holds now", job.base.display()),
            hint: Some("resume with the model that the run began with, or start over in another `output-dir`".into()),
        }),
        (None, Some(_)) => {
            changed
                .push("an earlier version made the checkpoint: its base model is assumed to be the same".to_string());
            Ok(())
        }
        _ => Ok(()),
    }
}

/// A value of a setting in words.
fn shown(value: &Value) -> String {
    if value.is_null() { "none".to_string() } else { value.to_string() }
}

/// A name beside that of a checkpoint that is never taken for one.
fn hidden(path: &Path, ending: &str) -> PathBuf {
    path.with_file_name(format!(".{}{ending}", path.file_name().unwrap_or_default().to_string_lossy()))
}

/// Gives a checkpoint another name, if it is there.
fn put_away(path: &Path, to: &Path) -> Result<(), Error> {
    delete(to)?;
    match fs::rename(path, to) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::file(path, error)),
        _ => Ok(()),
    }
}

/// Deletes a folder, if it is there.
fn delete(path: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::file(path, error)),
        _ => Ok(()),
    }
}

/// Whether two texts are paths of the same file or folder.
fn is_same_place(one: &Value, other: &Value) -> bool {
    let place = |value: &Value| fs::canonicalize(value.as_str()?).ok();
    place(one).is_some_and(|one| Some(one) == place(other))
}

/// Whether a folder of a model or an adapter is another one of the same: it has the same name, and the old place is gone or holds the same.
fn is_moved(one: &Value, other: &Value) -> bool {
    let (Some(one), Some(other)) = (one.as_str().map(Path::new), other.as_str().map(Path::new)) else { return false };
    one.file_name() == other.file_name() && (!one.exists() || held(one) == held(other))
}

/// What tells folders of models apart without reading their weights.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    settings: Vec<Vec<u8>>,
    /// Files of weights with their lengths.
    weights: Vec<(String, u64)>,
}

fn held(folder: &Path) -> Option<Held> {
    let settings = ["config.json", "adapter_config.json"].iter().filter_map(|name| fs::read(folder.join(name)).ok());
    let mut weights = Vec::new();
    for entry in fs::read_dir(folder).ok()?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".safetensors") {
            weights.push((name, entry.metadata().ok()?.len()));
        }
    }
    weights.sort_unstable();
    Some(Held { settings: settings.collect(), weights })
}

/// Whether evaluations before and after a change of settings can be compared.
pub(crate) fn has_same_evaluation(before: &Recipe, now: &Recipe) -> bool {
    let what = |recipe: &Recipe| {
        let Recipe { labels, max_pixels, min_pixels, on_long_row, eval_dataset, box_format, bbox_2d, .. } =
            recipe.clone();
        let best_by = recipe.best_by();
        (labels, max_pixels, min_pixels, on_long_row, eval_dataset, box_format, bbox_2d, best_by)
    };
    what(before) == what(now)
}

/// A renamed folder is there after a power cut only if the folder that it is in was brought to the disk.
fn sync_folder(folder: &Path) -> Result<(), Error> {
    File::open(folder).and_then(|file| file.sync_all()).map_err(|error| Error::file(folder, error))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    /// A checkpoint that is whole, or one that lacks a file.
    fn write_state(path: &Path, lacks: &[&str]) {
        fs::create_dir_all(path).unwrap();
        let values = [("base-model", "a"), ("dataset", "b"), ("output-dir", "c")];
        let values = values.map(|(name, value)| (name.to_string(), Value::from(value)));
        let recipe = Recipe::from_values(values.to_vec()).unwrap();
        let files = lacks.iter().map(|name| (name.to_string(), Stamp { bytes: 1, crc32c: 0 })).collect();
        let state = State {
            progress: Progress::default(),
            recipe,
            rows: RowCounts { all: 1, left_out: 0 },
            contents: None,
            base: None,
            portions: Vec::new(),
            device: DeviceKind::Cpu,
            files,
        };
        fs::write(path.join(STATE), serde_json::to_vec(&state).unwrap()).unwrap();
    }

    #[test]
    fn a_window_without_hits_has_no_accuracy() {
        for written in ["[3.0, 2]", r#"{"sum": 3.0, "steps": 2}"#] {
            let window: LossWindow = serde_json::from_str(written).unwrap();
            assert_eq!((window.loss(), window.accuracy()), (1.5, None), "{written}");
        }
        let window = LossWindow { sum: 3.0, steps: 2, hits: 3, trained: 4 };
        let again: LossWindow = serde_json::from_str(&serde_json::to_string(&window).unwrap()).unwrap();
        assert_eq!((again, again.accuracy()), (window, Some(0.75)));
    }

    /// A run may be killed between any two steps of a replacement.
    #[test]
    fn what_is_replaced_comes_back_unless_its_successor_is_there() {
        let folder = std::env::temp_dir().join(format!("garden-recover-{}", std::process::id()));
        let place = |name: &str| folder.join(name);
        // Killed before the new one got its name; after; while the old one was deleted; while the new one was written.
        write_state(&place(".checkpoint-4.old"), &[]);
        write_state(&place(".checkpoint-4.partial"), &[]);
        write_state(&place(".checkpoint-5.old"), &[]);
        write_state(&place("checkpoint-5"), &[]);
        write_state(&place(".checkpoint-6.old"), &["optimizer.safetensors"]);
        fs::create_dir_all(place(".checkpoint-7.partial")).unwrap();
        fs::create_dir_all(place(".guard")).unwrap();
        recover(&folder);
        let mut left: Vec<String> = fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        left.sort();
        assert_eq!(left, [".guard", "checkpoint-4", "checkpoint-5"]);
        assert!(newest(&folder).0.is_some_and(|path| path.ends_with("checkpoint-5")));
        fs::remove_dir_all(&folder).unwrap();
    }
}

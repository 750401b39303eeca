//! The models that can be fine-tuned or used: folders that the operator has named, and results of jobs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use crate::Server;
use crate::error::ApiError;
use crate::job::{JobRecord, Work};
use crate::store::StoreError;

/// A base model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Base {
    pub name: String,
    pub folder: PathBuf,
    pub created: i64,
}

/// A model that a job starts from.
#[derive(Clone, Debug)]
pub(crate) enum Found {
    Base(Base),
    Result(Tuned),
}

/// What a job has made: its result, or one of its checkpoints.
#[derive(Clone, Debug)]
pub(crate) struct Tuned {
    pub job: Box<JobRecord>,
    /// Its files.
    pub folder: PathBuf,
    /// The step, where it is a checkpoint.
    pub step: Option<u64>,
}

/// Letters of a job's name that the name of its result ends with.
const NAME_END: usize = 8;
/// How names of checkpoints end, before their step.
const CHECKPOINT: &str = ":ckpt-step-";

/// All base models: folders with a `config.json`, among those that were named and in them. Names from outside are compared with these, never opened.
pub(crate) fn bases(folders: &[PathBuf]) -> Vec<Base> {
    let mut bases: Vec<Base> = Vec::new();
    for folder in folders {
        let inside = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        for folder in std::iter::once(folder.clone()).chain(inside) {
            let Some(base) = base_of(&folder) else { continue };
            // A folder that was named twice, or by itself and in another one.
            if bases.iter().all(|known| known.name != base.name || !is_same(&known.folder, &base.folder)) {
                bases.push(base);
            }
        }
    }
    bases.sort_by(|one, other| one.name.cmp(&other.name));
    bases
}

/// What is wrong with the models that an operator has named: two of one name, or an alias of nothing.
pub(crate) fn check_models(folders: &[PathBuf], aliases: &BTreeMap<String, String>) -> Result<(), String> {
    let bases = bases(folders);
    if let Some(pair) = bases.windows(2).find(|pair| pair[0].name == pair[1].name) {
        let (one, other) = (pair[0].folder.display(), pair[1].folder.display());
        return Err(format!("two models have the name `{}`: `{one}` and `{other}`", pair[0].name));
    }
    for (alias, model) in aliases {
        if bases.iter().all(|base| base.name != *model) {
            let names: Vec<&str> = bases.iter().map(|base| base.name.as_str()).collect();
            let known =
                if names.is_empty() { "there are none".to_string() } else { format!("there are {}", names.join(", ")) };
            return Err(format!("the alias `{alias}` is of `{model}`, which is not a base model here: {known}"));
        }
        if bases.iter().any(|base| base.name == *alias) {
            return Err(format!("the alias `{alias}` is also the name of a base model"));
        }
    }
    Ok(())
}

fn is_same(one: &Path, other: &Path) -> bool {
    one.canonicalize().ok().is_some_and(|one| Some(one) == other.canonicalize().ok())
}

/// A folder as a model: a link keeps its own name, which is the one that the operator gave it.
fn base_of(folder: &Path) -> Option<Base> {
    let changed = fs::metadata(folder.join("config.json")).ok()?.modified().ok()?;
    let folder = std::path::absolute(folder).ok()?;
    // `models/.` and `..` have no name of their own.
    let named = if folder.file_name().is_some() { folder } else { folder.canonicalize().ok()? };
    let name = named.file_name()?.to_str()?.to_string();
    let created = changed.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
    Some(Base { name, folder: named, created })
}

/// Finds a model by its name, an alias, or the name of a result.
pub(crate) fn find(server: &Server, name: &str) -> Result<Found, ApiError> {
    if name.starts_with("ft:") {
        // Its base is asked for where a job starts from it: a result is there without that, too.
        let (job, folder, step) = find_tuned(server, name)?.ok_or_else(|| no_model(server, name))?;
        return Ok(Found::Result(Tuned { job: Box::new(job), folder, step }));
    }
    Ok(Found::Base(find_base(server, name)?))
}

fn find_tuned(server: &Server, name: &str) -> Result<Option<(JobRecord, PathBuf, Option<u64>)>, ApiError> {
    let Some((of, step)) = name.split_once(CHECKPOINT) else {
        let job = match server.store.job_of_result(name) {
            // The result is there all the same.
            Err(StoreError::Unreadable(broken)) => Some(crate::jobs::unreadable(&broken)),
            found => found?,
        };
        return Ok(job.map(|job| {
            let folder = server.disk.job(job.id()).output();
            (job, folder, None)
        }));
    };
    // A job that is not over has checkpoints, too; a result that was deleted has none.
    let end = of.rsplit(':').next().filter(|end| end.len() == NAME_END);
    let Some((end, step)) = end.zip(step.parse::<u64>().ok()) else { return Ok(None) };
    let job = server.store.jobs_ending(end)?.into_iter().find(|job| !job.is_result_deleted && result_name(job) == of);
    Ok(job.and_then(|job| {
        let folder = server.disk.job(job.id()).output().join(format!("checkpoint-{step}"));
        folder.is_dir().then_some((job, folder, Some(step)))
    }))
}

/// The name of a job's checkpoint as a model.
pub(crate) fn checkpoint_name(job: &JobRecord, step: u64) -> String {
    format!("{}{CHECKPOINT}{step}", result_name(job))
}

pub(crate) fn find_base(server: &Server, name: &str) -> Result<Base, ApiError> {
    let name = server.settings.aliases.get(name).map_or(name, String::as_str);
    let bases = bases(&server.settings.models);
    let by_name = bases.iter().find(|base| base.name == name);
    // Version 0.1.0 knew links by the names of what they lead to.
    let by_target = || {
        let target = |base: &&Base| base.folder.canonicalize().ok()?.file_name()?.to_str().map(|found| found == name);
        bases.iter().find(|base| target(base) == Some(true))
    };
    by_name.or_else(by_target).cloned().ok_or_else(|| no_model(server, name))
}

fn no_model(server: &Server, name: &str) -> ApiError {
    let names: Vec<String> = bases(&server.settings.models).into_iter().map(|base| base.name).collect();
    let aliases: Vec<&str> = server.settings.aliases.keys().map(String::as_str).collect();
    let known = match (names.is_empty(), aliases.is_empty()) {
        (true, _) => "this server has no base models".to_string(),
        (false, true) => format!("base models here: {}", names.join(", ")),
        (false, false) => format!("base models here: {}; aliases: {}", names.join(", "), aliases.join(", ")),
    };
    let missing = ApiError::missing("model", name);
    let message = format!("{}; {known}", missing.message);
    ApiError { message, param: Some("model".into()), ..missing }.with_code("model_not_found")
}

/// The name of a job's result.
pub(crate) fn result_name(job: &JobRecord) -> String {
    let suffix = job.suffix.as_deref().unwrap_or_default();
    let id = job.id();
    format!("ft:{}::{suffix}:{}", job.base, &id[id.len().saturating_sub(NAME_END)..])
}

/// Whether a job trains a model.
pub(crate) fn trains(job: &JobRecord) -> bool {
    matches!(job.order.work, Work::Training { .. })
}

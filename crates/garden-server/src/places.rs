//! Where the things of a job are: told in its record by names and from its own folder on, and found anew for each start. So a data folder can be moved, restored
//! elsewhere, and used with models in another place.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::{fs, io};

use garden_train::Recipe;

use crate::Server;
use crate::catalogue::find_base;
use crate::error::ApiError;
use crate::job::{ADAPTER, DATASETS, JobFolder, JobOrder, JobRecord, MODELS, OUTPUT, ROWS, Work};

/// How rows of the operator's folders are named.
const DATASET: &str = "dataset:";
/// The parameters that name rows.
pub(crate) const TRAINING: &str = "training_file";
pub(crate) const VALIDATION: &str = "validation_file";

/// The order of a job with the places of this moment, from its folder on: models and datasets are elsewhere, and get links there.
pub(crate) fn placed_order(server: &Server, job: &JobRecord) -> Result<JobOrder, ApiError> {
    let mut order = job.order.clone();
    order.memory = server.memory().map(|bytes| bytes.0);
    order.fetch.clone_from(&server.settings.fetch);
    if let Work::Training { recipe } = &mut order.work {
        let folder = server.disk.job(job.id());
        let base = find_base(server, &job.base)?;
        recipe.base_model = link(&folder, &Path::new(MODELS).join(base.name), &base.folder)?.display().to_string();
        recipe.datasets = vec![rows(server, &folder, &job.training_file, TRAINING)?];
        let validation = job.validation_file.as_deref();
        recipe.eval_dataset = validation.map(|name| rows(server, &folder, name, VALIDATION)).transpose()?;
        recipe.output_dir = OUTPUT.into();
        recipe.adapter = recipe.adapter.as_ref().map(|_| ADAPTER.into());
    }
    Ok(order)
}

/// Makes a place in a job's folder lead to another folder; that place.
fn link(folder: &JobFolder, place: &Path, to: &Path) -> Result<PathBuf, ApiError> {
    let at = folder.0.join(place);
    let make = || -> io::Result<()> {
        let to = std::path::absolute(to)?;
        if fs::read_link(&at).is_ok_and(|known| known == to) {
            return Ok(());
        }
        fs::create_dir_all(at.parent().unwrap_or(&folder.0))?;
        match fs::remove_file(&at) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => symlink(to, &at),
        }
    };
    make().map_err(|error| ApiError::of_disk("a link to a model or a dataset cannot be made", &error))?;
    Ok(place.to_path_buf())
}

/// A recipe without the places of one machine, for the store.
pub(crate) fn without_places(mut recipe: Recipe, folder: &JobFolder) -> Recipe {
    let within = |path: &Path| path.strip_prefix(&folder.0).map_or_else(|_| PathBuf::new(), Path::to_path_buf);
    recipe.base_model =
        Path::new(&recipe.base_model).file_name().map(|name| name.display().to_string()).unwrap_or_default();
    recipe.datasets = recipe.datasets.iter().map(|path| within(path)).collect();
    recipe.eval_dataset = recipe.eval_dataset.as_deref().map(within);
    recipe.output_dir = within(&recipe.output_dir);
    recipe.adapter = recipe.adapter.as_deref().map(within);
    recipe
}

/// The rows that a parameter names, from the job's folder on.
fn rows(server: &Server, folder: &JobFolder, name: &str, param: &str) -> Result<PathBuf, ApiError> {
    if name.starts_with(DATASET) {
        let dataset = dataset(server, name, param)?;
        // All of its folder: rows name pictures from there on.
        let within = dataset.parent().unwrap_or(Path::new("/"));
        let linked = link(folder, &Path::new(DATASETS).join(param), within)?;
        return Ok(linked.join(dataset.file_name().unwrap_or_default()));
    }
    // Their second name, which ends as the file's did.
    let beginning = format!("{param}.");
    let mut entries = fs::read_dir(folder.all_rows()).into_iter().flatten().flatten();
    let found = entries.find(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with(&beginning)));
    found.map(|entry| Path::new(ROWS).join(entry.file_name())).ok_or_else(|| {
        let missing = ApiError::missing("file", name);
        ApiError { param: Some(param.into()), message: format!("the rows of `{name}` are gone"), ..missing }
    })
}

/// Rows in the operator's folders.
fn dataset(server: &Server, name: &str, param: &str) -> Result<PathBuf, ApiError> {
    let dataset = name.strip_prefix(DATASET).unwrap_or(name);
    let entries = server.settings.datasets.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    // Compared with what is there, never opened as it is.
    let mut entries = entries.filter(|entry| entry.file_name().to_str() == Some(dataset));
    let missing = || ApiError { param: Some(param.into()), ..ApiError::missing("dataset", dataset) };
    entries.next().map(|entry| entry.path()).ok_or_else(missing)
}

/// Rows by the name of a file that was sent, or of one in the operator's folders. What was sent gets a second name in the job's folder.
pub(crate) fn link_rows(server: &Server, name: &str, param: &str, folder: &JobFolder) -> Result<PathBuf, ApiError> {
    if name.starts_with(DATASET) {
        return dataset(server, name, param);
    }
    let missing = || ApiError { param: Some(param.into()), ..ApiError::missing("file", name) };
    let now = server.now();
    let file = server.store.file(name)?.filter(|file| file.expires_at.is_none_or(|at| at > now)).ok_or_else(missing)?;
    if file.purpose != "fine-tune" {
        let problem = format!("the file's purpose is `{}`; rows have the purpose `fine-tune`", file.purpose);
        return Err(ApiError::field(param, problem));
    }
    let rows = folder.rows(param, &file.extension);
    match fs::hard_link(server.disk.file(&file), &rows) {
        Ok(()) => Ok(rows),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(missing()),
        Err(error) => Err(ApiError::of_disk("the rows cannot be linked", &error)),
    }
}

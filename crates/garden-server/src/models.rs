//! `/v1/models`, and the files of a result.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::extract::State;

use crate::Server;
use crate::answer::{Answer, Query, UrlPath, json_answer};
use crate::catalogue::{Found, Tuned, bases, find};
use crate::error::ApiError;
use crate::files::send_file;
use crate::job::JobRecord;
use crate::wire::{All, DeletedModel, Model, ModelFile};

/// `GET /v1/models`.
pub(crate) async fn all(State(server): State<Arc<Server>>, _: Query) -> Answer {
    let kept = Arc::clone(&server);
    let models = server
        .blocking(move || {
            let bases = bases(&kept.settings.models);
            let mut models: Vec<Model> = bases.iter().map(|base| Model::base(base, base.name.clone())).collect();
            for alias in kept.settings.aliases.keys() {
                if let Ok(Found::Base(base)) = find(&kept, alias) {
                    models.push(Model::alias(&base, alias.clone()));
                }
            }
            let results = kept.store.results()?;
            models.extend(results.iter().filter_map(|job| Some(Model::result(job, job.result_model.clone()?))));
            Ok(models)
        })
        .await?;
    json_answer(&All::from(models))
}

/// `GET /v1/models/{id}`, and `GET /v1/models/{id}/files…` behind it: names of models may hold anything but a `/`.
pub(crate) async fn one(State(server): State<Arc<Server>>, UrlPath(id): UrlPath<String>) -> Answer {
    let kept = Arc::clone(&server);
    let model = server
        .blocking(move || match find(&kept, &id)? {
            Found::Result(Tuned { job, .. }) => Ok(Model::result(&job, id)),
            Found::Base(base) => Ok(Model::base(&base, id)),
        })
        .await?;
    json_answer(&model)
}

/// `DELETE /v1/models/{id}`: the weights of a result and its checkpoints; the job, its log and its trace stay.
pub(crate) async fn delete(State(server): State<Arc<Server>>, UrlPath(id): UrlPath<String>) -> Answer {
    let kept = Arc::clone(&server);
    let deleted = server
        .blocking(move || {
            let problem = match find(&kept, &id)? {
                Found::Result(Tuned { job, step: None, .. }) => return forget(&kept, &job, id),
                Found::Result(Tuned { .. }) => "a checkpoint: those are deleted with the result",
                Found::Base(_) => "a base model: those are the operator's, only results can be deleted",
            };
            Err(ApiError::forbidden(format!("`{id}` is {problem}")))
        })
        .await?;
    json_answer(&DeletedModel::of(deleted))
}

fn forget(server: &Server, job: &JobRecord, id: String) -> Result<String, ApiError> {
    // Forgotten first: what is left of it on the disk then is nobody's.
    server.store.change_job(job.id(), server.now(), |job| {
        job.is_result_deleted = true;
        Some(Vec::new())
    })?;
    remove_weights(&server.disk.job(job.id()).output());
    Ok(id)
}

fn remove_weights(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if name.ends_with(".safetensors") {
            drop(fs::remove_file(path));
        } else if name.starts_with("checkpoint-") || name.starts_with("abandoned-") {
            drop(fs::remove_dir_all(path));
        }
    }
}

/// Files of a result, by name and path: what a folder of it shows, without what is only ours and without folders.
fn result_files(folder: &Path) -> Result<Vec<(String, PathBuf, u64)>, ApiError> {
    let failed = |error: std::io::Error| ApiError::internal("the result cannot be read", &error);
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let found = entry.metadata().map_err(failed)?;
        if found.is_file() && !name.starts_with('.') {
            files.push((name, entry.path(), found.len()));
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// `GET /api/models/{id}/files`.
pub(crate) async fn files(State(server): State<Arc<Server>>, UrlPath(id): UrlPath<String>) -> Answer {
    let kept = Arc::clone(&server);
    let found = server.blocking(move || files_of(&kept, &id)).await?;
    let files: Vec<ModelFile> = found.into_iter().map(|(name, _, bytes)| ModelFile { name, bytes }).collect();
    json_answer(&All::from(files))
}

/// `GET /api/models/{id}/files/{name}`.
pub(crate) async fn file(State(server): State<Arc<Server>>, UrlPath((id, name)): UrlPath<(String, String)>) -> Answer {
    let kept = Arc::clone(&server);
    let found = server.blocking(move || files_of(&kept, &id)).await?;
    // Only a name that is in the list is ever opened.
    let file = found.into_iter().find(|(known, _, _)| *known == name);
    let (_, path, _) = file.ok_or_else(|| ApiError::missing("file", &name))?;
    send_file(&path, "application/octet-stream").await
}

fn files_of(server: &Server, id: &str) -> Result<Vec<(String, PathBuf, u64)>, ApiError> {
    match find(server, id)? {
        Found::Result(Tuned { folder, .. }) => result_files(&folder),
        Found::Base(_) => Err(ApiError::forbidden("files of base models are not given out")),
    }
}

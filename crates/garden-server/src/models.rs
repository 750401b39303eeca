//! `/v1/models`, and the files of a result.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;

use crate::Server;
use crate::answer::{Answer, Query, UrlPath, json_answer};
use crate::catalogue::{Found, Tuned, bases, find};
use crate::error::ApiError;
use crate::job::JobRecord;
use crate::send::{Member, send_archive, send_file};
use crate::store::{Listed, Page};
use crate::stream::{End, Shown, send_list};
use crate::wire::{All, DeletedModel, Model, ModelFile};

/// Results of a list that are read at first.
const ROWS: usize = 40;

/// `GET /v1/models`: base models, aliases, and results, the newest first.
pub(crate) async fn all(State(server): State<Arc<Server>>, _: Query) -> Answer {
    let page = Page { limit: usize::MAX, ..Page::default() };
    send_list(&server, page, ROWS, End::All, |server, page| {
        let results = server.store.results(page)?;
        let (has_more, last) = (results.has_more, results.last);
        let mut models = if page.behind.is_none() { base_models(server) } else { Vec::new() };
        models.extend(results.rows.into_iter().map(Model::from));
        Shown::all(Listed { rows: models, has_more, last }, |model| model)
    })
    .await
}

/// Base models and their aliases.
fn base_models(server: &Server) -> Vec<Model> {
    let bases = bases(&server.settings.models);
    let mut models: Vec<Model> = bases.iter().map(|base| Model::base(base, base.name.clone())).collect();
    for alias in server.settings.aliases.keys() {
        if let Ok(Found::Base(base)) = find(server, alias) {
            models.push(Model::alias(&base, alias.clone()));
        }
    }
    models
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
    server.change_even_if_full(|store| {
        store.change_job(job.id(), server.now(), |job| {
            job.is_result_deleted = true;
            Some(Vec::new())
        })
    })?;
    remove_weights(&server.disk.job(job.id()).output());
    server.disk.keep_reserve();
    // It is measured anew.
    drop(server.store.note_disk(job.id(), None));
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
fn result_files(folder: &Path) -> Result<Vec<Member>, ApiError> {
    let failed = |error: std::io::Error| ApiError::internal("the result cannot be read", &error);
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let found = entry.metadata().map_err(failed)?;
        if found.is_file() && !name.starts_with('.') {
            files.push(Member { name, path: entry.path(), bytes: found.len() });
        }
    }
    files.sort_unstable_by(|one: &Member, other| one.name.cmp(&other.name));
    Ok(files)
}

/// `GET /api/models/{id}/files`.
pub(crate) async fn files(State(server): State<Arc<Server>>, UrlPath(id): UrlPath<String>) -> Answer {
    let kept = Arc::clone(&server);
    let found = server.blocking(move || files_of(&kept, &id)).await?;
    let files: Vec<ModelFile> = found.into_iter().map(|Member { name, bytes, .. }| ModelFile { name, bytes }).collect();
    json_answer(&All::from(files))
}

/// `GET /api/models/{id}/files/{name}`.
pub(crate) async fn file(
    State(server): State<Arc<Server>>,
    UrlPath((id, name)): UrlPath<(String, String)>,
    headers: HeaderMap,
) -> Answer {
    let kept = Arc::clone(&server);
    let found = server.blocking(move || files_of(&kept, &id)).await?;
    // Only a name that is in the list is ever opened.
    let file = found.into_iter().find(|known| known.name == name);
    let path = file.ok_or_else(|| ApiError::missing("file", &name))?.path;
    send_file(&path, "application/octet-stream", &headers).await
}

/// `GET /api/models/{id}/archive`: all files of a result as one.
pub(crate) async fn archive(State(server): State<Arc<Server>>, UrlPath(id): UrlPath<String>) -> Answer {
    let kept = Arc::clone(&server);
    send_archive(server.blocking(move || files_of(&kept, &id)).await?)
}

fn files_of(server: &Server, id: &str) -> Result<Vec<Member>, ApiError> {
    match find(server, id)? {
        Found::Result(Tuned { folder, .. }) => result_files(&folder),
        Found::Base(_) => Err(ApiError::forbidden("files of base models are not given out")),
    }
}

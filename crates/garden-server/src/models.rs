//! `/v1/models`, and the files of a result.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use serde_json::{Value, json};

use crate::Server;
use crate::answer::{Answer, Query, UrlPath, json_answer};
use crate::catalogue::{Found, Tuned, bases, find, result_json};
use crate::error::ApiError;
use crate::job::JobRecord;
use crate::send::{Member, send_archive, send_file};

/// `GET /v1/models`.
pub(crate) async fn all(State(server): State<Arc<Server>>, query: Query) -> Answer {
    query.only(&[])?;
    let kept = Arc::clone(&server);
    let data: Vec<Value> = server
        .blocking(move || {
            let mut data: Vec<Value> = bases(&kept.settings.models).iter().map(|base| base.json()).collect();
            for alias in kept.settings.aliases.keys() {
                if let Ok(Found::Base(base)) = find(&kept, alias) {
                    let mut value = base.json();
                    value["id"] = json!(alias);
                    value["model_garden"] = json!({"base_model": base.name});
                    data.push(value);
                }
            }
            let page = crate::store::Page { limit: 10_000, ..crate::store::Page::default() };
            data.extend(kept.store.results(&page)?.rows.iter().flatten().map(|job| result_json(job)));
            Ok(data)
        })
        .await?;
    json_answer(&json!({"object": "list", "data": data}))
}

/// `GET /v1/models/{id}`, and `GET /v1/models/{id}/files…` behind it: names of models may hold anything but a `/`.
pub(crate) async fn one(State(server): State<Arc<Server>>, UrlPath(id): UrlPath<String>) -> Answer {
    let kept = Arc::clone(&server);
    let value = server
        .blocking(move || match find(&kept, &id)? {
            Found::Result(Tuned { job, .. }) => {
                let mut value = result_json(&job);
                value["id"] = json!(id);
                Ok(value)
            }
            Found::Base(base) => {
                let mut value = base.json();
                value["id"] = json!(id);
                Ok(value)
            }
        })
        .await?;
    json_answer(&value)
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
    json_answer(&json!({"id": deleted, "object": "model", "deleted": true}))
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
    let data: Vec<Value> = found.iter().map(|file| json!({"name": file.name, "bytes": file.bytes})).collect();
    json_answer(&json!({"object": "list", "data": data}))
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

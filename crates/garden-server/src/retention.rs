//! Deleting jobs: on request, and when their time is over.

use std::sync::Arc;

use axum::extract::State;
use garden_guard::supervisor_of;

use crate::Server;
use crate::answer::{Answer, UrlPath, json_answer};
use crate::error::ApiError;
use crate::job::JobRecord;
use crate::wire::DeletedJob;

/// `DELETE /api/jobs/{id}`: the job, its events, log, trace, checkpoints and model.
pub(crate) async fn delete_job(State(server): State<Arc<Server>>, UrlPath(id): UrlPath<String>) -> Answer {
    let kept = Arc::clone(&server);
    let id = server
        .blocking(move || {
            match kept.store.job(&id) {
                Ok(Some(job)) if job.status.is_final() => delete(&kept, &job)?,
                Ok(Some(job)) => {
                    let problem = format!("this job is {}: cancel it first", job.status.name());
                    return Err(ApiError::wrong_state(problem));
                }
                Ok(None) => return Err(ApiError::missing("fine-tuning job", &id)),
                // A record that cannot be read is what somebody wants to get rid of.
                Err(crate::store::StoreError::Unreadable(_)) => {
                    if supervisor_of(&kept.disk.job(&id).supervisor()).is_ok_and(|pid| pid.is_some()) {
                        return Err(ApiError::wrong_state("a process still works on this job: it ends first"));
                    }
                    forget(&kept, &id)?;
                }
                Err(error) => return Err(error.into()),
            }
            kept.changed();
            Ok(id)
        })
        .await?;
    json_answer(&DeletedJob::of(id))
}

/// Deletes a job that is over, with everything that came of it.
pub(crate) fn delete(server: &Server, job: &JobRecord) -> Result<(), ApiError> {
    discard(server, job.id(), job.result_file.as_deref())
}

/// Deletes a job that has no result.
pub(crate) fn forget(server: &Server, id: &str) -> Result<(), ApiError> {
    discard(server, id, None)
}

/// The folder goes out of sight first: a server that is killed after that goes on with deleting the job when it is started again.
fn discard(server: &Server, id: &str, result_file: Option<&str>) -> Result<(), ApiError> {
    let away = server.disk.put_job_away(id);
    let discard = || -> Result<(), ApiError> {
        if let Some(file) = result_file.map(|id| server.store.file(id)).transpose()?.flatten() {
            crate::files::remove(server, &file)?;
        }
        server.change_even_if_full(|store| store.delete_job(id))?;
        Ok(())
    };
    discard().inspect_err(|_| server.disk.put_job_back(id, away.as_deref()))?;
    server.disk.remove(away.as_deref());
    Ok(())
}

/// Deletes what a model was made of: events, log, trace, checkpoints. The model and its job stay.
pub(crate) fn trim(server: &Server, job: &JobRecord) -> Result<(), ApiError> {
    if job.is_trimmed {
        return Ok(());
    }
    // Files first: where the disk is full, their space is needed for what is noted.
    server.disk.trim_job(job.id());
    server.change_even_if_full(|store| {
        store.delete_events(job.id())?;
        store.note_disk(job.id(), None)?;
        store.change_job(job.id(), server.now(), |job| {
            job.is_trimmed = true;
            Some(Vec::new())
        })
    })?;
    Ok(())
}

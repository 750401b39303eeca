//! Every path of the server. `openapi.json` describes the same ones; a test compares the two.

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, delete, get, post};

use crate::{Server, files, gate, jobs, live, models, ours, retention};

/// A path, its methods, and who answers.
type Route = (&'static str, &'static [&'static str], MethodRouter<Arc<Server>>);

/// All paths.
pub(crate) fn table() -> Vec<Route> {
    vec![
        ("/v1/files", &["get", "post"], get(files::all).post(files::create)),
        ("/v1/files/{file_id}", &["delete", "get"], get(files::one).delete(files::delete)),
        ("/v1/files/{file_id}/content", &["get"], get(files::content)),
        ("/v1/uploads", &["post"], post(files::begin_upload)),
        ("/v1/uploads/{upload_id}/parts", &["post"], post(files::add_part)),
        ("/v1/uploads/{upload_id}/complete", &["post"], post(files::complete_upload)),
        ("/v1/uploads/{upload_id}/cancel", &["post"], post(files::cancel_upload)),
        ("/v1/fine_tuning/jobs", &["get", "post"], get(jobs::all).post(jobs::create)),
        ("/v1/fine_tuning/jobs/{job_id}", &["get"], get(jobs::one)),
        ("/v1/fine_tuning/jobs/{job_id}/cancel", &["post"], post(jobs::cancel)),
        ("/v1/fine_tuning/jobs/{job_id}/pause", &["post"], post(jobs::pause)),
        ("/v1/fine_tuning/jobs/{job_id}/resume", &["post"], post(jobs::resume)),
        ("/v1/fine_tuning/jobs/{job_id}/events", &["get"], get(jobs::events)),
        ("/v1/fine_tuning/jobs/{job_id}/checkpoints", &["get"], get(jobs::all_checkpoints)),
        ("/v1/models", &["get"], get(models::all)),
        ("/v1/models/{model}", &["delete", "get"], get(models::one).delete(models::delete)),
        ("/api/models/{model}/files", &["get"], get(models::files)),
        ("/api/models/{model}/archive", &["get"], get(models::archive)),
        ("/api/models/{model}/files/{name}", &["get"], get(models::file)),
        ("/api/jobs", &["post"], post(ours::command)),
        ("/api/jobs/{job_id}", &["delete"], delete(retention::delete_job)),
        ("/api/jobs/{job_id}/finish", &["post"], post(jobs::finish)),
        ("/api/jobs/{job_id}/trace", &["get"], get(ours::trace)),
        ("/api/jobs/{job_id}/diagnosis", &["get"], get(ours::diagnosis)),
        ("/api/jobs/{job_id}/plan", &["get"], get(ours::plan)),
        ("/api/jobs/{job_id}/log", &["get"], get(ours::log)),
        ("/api/jobs/{job_id}/report.html", &["get"], get(ours::report)),
        ("/api/jobs/{job_id}/live", &["get"], get(live::live)),
        ("/api/diagnose", &["post"], post(ours::diagnose)),
        ("/api/check", &["post"], post(ours::check)),
        ("/api/plan", &["post"], post(ours::plan_for)),
        ("/api/system", &["get"], get(ours::system)),
        ("/metrics", &["get"], get(ours::metrics)),
        ("/health", &["get"], get(ours::health)),
        ("/openapi.json", &["get"], get(ours::openapi)),
    ]
}

/// All of them behind the gate.
pub(crate) fn router(server: Arc<Server>) -> Router {
    let mut router = Router::new();
    for (path, _, answers) in table() {
        router = router.route(path, answers.fallback(ours::wrong_method));
    }
    router
        .fallback(ours::nothing)
        // Each body has its own.
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(Arc::clone(&server), gate::pass))
        .with_state(server)
}

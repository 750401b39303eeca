//! What OpenAI's API has no room for: traces, verdicts, plans and logs of jobs, any command as a job, and how the server is.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse as _;
use garden_memory::Bytes;
use garden_probe::{Identity, MachineProbe, Process};
use tokio::io::AsyncWriteExt as _;

use futures_util::StreamExt as _;

use crate::Server;
use crate::answer::{Answer, Query, UrlPath, json_answer, text_answer};
use crate::asked::{Asked, PRIORITIES, metadata_of};
use crate::body::{Fields, LARGEST_REQUEST, Pace, read, read_fields};
use crate::catalogue::{Found, Tuned, find, find_base};
use crate::error::ApiError;
use crate::files::Reserved;
use crate::gate::Client;
use crate::id::new_id;
use crate::job::{JobOrder, JobRecord, Status, Work};
use crate::jobs::{Abandoned, add, answer_with, made_before, refuse_unless_commands, request_key, submission};
use crate::places::{TRAINING, link_rows, placed_order};
use crate::send::send_file;
use crate::tools::{Input, NO_EPOCHS, Said, TRACE_FACTS, ToolRefusal};
use crate::wire::{FileSpace, Gpu, Health, HealthPart, NewCheck, NewCommand, NewJob, PlanAnswer, ServerMemory, System};

/// The largest trace that is judged for somebody.
const LARGEST_TRACE: u64 = 256 << 20;

/// How long the database may take to say that it is there.
const DATABASE_TIMEOUT: Duration = Duration::from_secs(5);

/// `GET /health`: whether database, queue and disk do their work. 503 if one does not.
pub(crate) async fn health(State(server): State<Arc<Server>>) -> Answer {
    let asked = tokio::time::timeout(DATABASE_TIMEOUT, server.with_store(crate::store::Store::check)).await;
    let database = match asked {
        Ok(Ok(())) => HealthPart::Ok,
        Ok(Err(_)) => HealthPart::Fails,
        Err(_) => HealthPart::Hangs,
    };
    let queue = if server.since_beat() < server.settings.patience * crate::queue::HANGS {
        HealthPart::Ok
    } else {
        HealthPart::Hangs
    };
    let disk = if server.check_space().is_ok() { HealthPart::Ok } else { HealthPart::Full };
    let health = Health::of(database, queue, disk);
    let mut answer = json_answer(&health)?;
    if !health.is_well() {
        *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    Ok(answer)
}

/// `GET /api/jobs/{id}/trace`.
pub(crate) async fn trace(
    State(server): State<Arc<Server>>,
    UrlPath(id): UrlPath<String>,
    headers: HeaderMap,
) -> Answer {
    let job = server.job(id).await?;
    send_file(&trace_of(&server, &job)?, "application/x-ndjson", &headers).await
}

/// `GET /api/jobs/{id}/log`.
pub(crate) async fn log(State(server): State<Arc<Server>>, UrlPath(id): UrlPath<String>, headers: HeaderMap) -> Answer {
    let job = server.job(id).await?;
    let path = server.disk.job(job.id()).work_log();
    if !path.is_file() {
        return Err(ApiError::wrong_state("this job has no log yet"));
    }
    send_file(&path, "text/plain; charset=utf-8", &headers).await
}

/// `GET /api/jobs/{id}/plan`.
pub(crate) async fn plan(State(server): State<Arc<Server>>, UrlPath(id): UrlPath<String>) -> Answer {
    let job = server.job(id).await?;
    let kept = Arc::clone(&server);
    let findings = server.blocking(move || Ok(kept.disk.job(job.id()).read_findings())).await?;
    match findings.and_then(|found| found.plan) {
        Some(plan) => json_answer(&plan.told),
        None => Err(ApiError::wrong_state("there is no plan for this job yet")),
    }
}

/// `GET /api/jobs/{id}/diagnosis`.
pub(crate) async fn diagnosis(
    State(server): State<Arc<Server>>,
    Extension(client): Extension<Client>,
    UrlPath(id): UrlPath<String>,
) -> Answer {
    let job = server.job(id).await?;
    let trace = Input::File(trace_of(&server, &job)?);
    let said = server.tool(&client.turns(), &["serve-tool", "diagnose", "-", "--format", "json"], trace).await?;
    judged(said, "application/json")
}

/// `GET /api/jobs/{id}/report.html`: the run's own page at its end, that of its memory before.
pub(crate) async fn report(
    State(server): State<Arc<Server>>,
    Extension(client): Extension<Client>,
    UrlPath(id): UrlPath<String>,
) -> Answer {
    let job = server.job(id).await?;
    let folder = server.disk.job(job.id());
    let page = folder.output().join(garden_run::REPORT);
    if job.status.is_final() && page.is_file() {
        let text = server.blocking_for_long(move || Ok(garden_files::read_settings(&page))).await?;
        let text = text.map_err(|error| ApiError::internal("the report cannot be read", &error))?;
        return text_answer("text/html; charset=utf-8", text);
    }
    let trace = Input::File(trace_of(&server, &job)?);
    let said = server.tool(&client.turns(), &["serve-tool", "diagnose", "-", "--format", "html"], trace).await?;
    judged(said, "text/html; charset=utf-8")
}

fn trace_of(server: &Server, job: &JobRecord) -> Result<PathBuf, ApiError> {
    let path = server.disk.job(job.id()).trace();
    match path.is_file() {
        true => Ok(path),
        false => {
            Err(ApiError::wrong_state("there is no trace of this job's memory: it has not run yet, or not for long"))
        }
    }
}

/// What the judge says. Its exit code tells bad news apart from good, which the answer does, too; 2 is an error in what it was given.
fn judged(said: Said, kind: &'static str) -> Answer {
    match said.code {
        Some(0 | 1 | 3) => text_answer(kind, said.output),
        Some(2) => Err(refused(&said)),
        _ => Err(ApiError::internal("the judge did not answer", &said.error.trim())),
    }
}

fn refused(said: &Said) -> ApiError {
    let last = said.error.trim().lines().next_back().unwrap_or_default();
    match serde_json::from_str(last) {
        Ok(ToolRefusal { param: Some(param), message }) => ApiError::field(&param, message),
        Ok(ToolRefusal { param: None, message }) => ApiError::invalid(message),
        Err(_) => ApiError::internal("the judge did not say what is wrong", &said.error.trim()),
    }
}

/// `POST /api/diagnose`: a trace in, a verdict out.
pub(crate) async fn diagnose(
    State(server): State<Arc<Server>>,
    Extension(client): Extension<Client>,
    query: Query,
    body: Body,
) -> Answer {
    let mut words: Vec<String> = ["serve-tool", "diagnose", "-", "--format", "json"].map(str::to_string).to_vec();
    for (name, _) in TRACE_FACTS {
        if let Some(value) = query.get(name) {
            // As one word: what begins with a dash is a value all the same.
            words.push(format!("--{}={value}", name.replace('_', "-")));
        }
    }
    match query.get(NO_EPOCHS) {
        None | Some("false") => {}
        Some("true") => words.push("--no-epochs".into()),
        Some(_) => return Err(ApiError::field(NO_EPOCHS, format!("`{NO_EPOCHS}` has to be `true` or `false`"))),
    }
    let path = server.disk.incoming(&new_id("trace-"));
    let gone = Gone(path.clone());
    server.check_space()?;
    let failed = |error: std::io::Error| ApiError::of_disk("the trace cannot be kept", &error);
    let mut file = tokio::fs::File::create(&path).await.map_err(failed)?;
    // It takes its part of the quota until it was judged, as a file does.
    let stored = server.with_store(|store| store.bytes()).await?;
    let mut reserved = Reserved::new(&server);
    let (mut pace, mut stream) = (Pace::new(), body.into_data_stream());
    while let Some(piece) = pace.wait(stream.next()).await? {
        let piece = piece.map_err(|error| ApiError::invalid(format!("the body cannot be read: {error}")))?;
        pace.count(piece.len(), LARGEST_TRACE)?;
        reserved.grow(piece.len() as u64, stored)?;
        file.write_all(&piece).await.map_err(failed)?;
    }
    file.flush().await.map_err(failed)?;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let said = server.tool(&client.turns(), &words, Input::File(path)).await?;
    drop(gone);
    judged(said, "application/json")
}

/// A file that is removed when it is not needed any more.
struct Gone(PathBuf);

impl Drop for Gone {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.0));
    }
}

/// `POST /api/check`: are these rows fit for training this model?
pub(crate) async fn check(
    State(server): State<Arc<Server>>,
    Extension(client): Extension<Client>,
    body: Body,
) -> Answer {
    let mut fields = read_fields::<NewCheck>(body).await?;
    let (model, file) = (fields.needed_text("model")?, fields.needed_text("training_file")?);
    fields.end()?;
    let kept = Arc::clone(&server);
    let (folder, rows, base) = server
        .blocking(move || {
            let folder = kept.disk.job(&new_id(crate::disk::LOOK));
            let made = fs::create_dir_all(folder.all_rows());
            made.map_err(|error| ApiError::of_disk("a folder cannot be made", &error))?;
            let abandoned = Abandoned(Some(folder.0.clone()));
            let rows = link_rows(&kept, &file, TRAINING, &folder)?;
            let base = match find(&kept, &model)? {
                Found::Base(base) => base,
                Found::Result(Tuned { job, .. }) => find_base(&kept, &job.base)?,
            };
            let base = base.folder;
            Ok((abandoned, rows, base))
        })
        .await?;
    let words =
        ["serve-tool".into(), "check".into(), rows.display().to_string(), format!("--base-model={}", base.display())];
    let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
    words.extend(["--format", "json", "--image-paths", "inside"]);
    let said = server.tool(&client.turns(), &words, Input::None).await?;
    drop(folder);
    judged(said, "application/json")
}

/// `POST /api/plan`: what would this job need, and does it fit? The body is that of a job; nothing is queued.
pub(crate) async fn plan_for(
    State(server): State<Arc<Server>>,
    Extension(client): Extension<Client>,
    body: Body,
) -> Answer {
    let asked = Asked::read(read_fields::<NewJob>(body).await?)?;
    let kept = Arc::clone(&server);
    let (job, folder) = server
        .blocking(move || {
            let (job, abandoned) = submission(&kept, asked, crate::disk::LOOK)?;
            let written = kept.disk.job(job.id()).write_order(&placed_order(&kept, &job)?);
            written.map_err(|error| ApiError::of_disk("the order cannot be written", &error))?;
            Ok((job, abandoned))
        })
        .await?;
    let at = server.disk.job(job.id());
    let path = at.0.display().to_string();
    let said = server.tool(&client.turns(), &["serve-job", &path, "--look"], Input::None).await?;
    let findings = at.read_findings();
    drop(folder);
    match findings {
        Some(findings) => json_answer(&PlanAnswer::from(findings)),
        None => Err(ApiError::internal("the plan was not made", &said.error.trim())),
    }
}

/// `POST /api/jobs`: any command as a job.
pub(crate) async fn command(
    State(server): State<Arc<Server>>,
    Extension(client): Extension<Client>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    refuse_unless_commands(&server)?;
    let text = read(body, LARGEST_REQUEST).await?;
    let request = request_key(&headers, &client, &text)?;
    let mut fields = Fields::parse::<NewCommand>(&text)?;
    let command = fields.texts("command")?.filter(|words| !words.is_empty());
    let command = command.ok_or_else(|| fields.wrong("command", "is missing"))?;
    let memory_limit = match fields.text("memory_limit")? {
        None => None,
        Some(text) => {
            let parsed: Result<Bytes, _> = text.parse();
            Some(parsed.map_err(|_| fields.wrong("memory_limit", "has to be a size such as `16GiB`"))?.0)
        }
    };
    let checkpoint_dir = fields.text("checkpoint_dir")?.map(PathBuf::from);
    let priority = fields.whole("priority", PRIORITIES.0, PRIORITIES.1)?.unwrap_or(0);
    let metadata = metadata_of(&mut fields)?;
    fields.end()?;
    let name = command.first().map(|word| word.rsplit('/').next().unwrap_or(word).to_string()).unwrap_or_default();
    let work = Work::Command { command, memory_limit, checkpoint_dir };
    let order = JobOrder { id: new_id("ftjob-"), work, memory: None, fetch: None };
    let job = JobRecord {
        priority,
        metadata,
        owner: client.turns(),
        ..JobRecord::new(order, server.now(), Status::Queued, format!("command:{name}"))
    };
    let kept = Arc::clone(&server);
    let job = server
        .blocking(move || {
            if let Some(known) = made_before(&kept, request.as_ref())? {
                return Ok(known);
            }
            let folder = kept.disk.job(job.id());
            let made = fs::create_dir_all(folder.output());
            made.map_err(|error| ApiError::of_disk("the job's folder cannot be made", &error))?;
            add(&kept, job, Abandoned(Some(folder.0)), request.as_ref())
        })
        .await?;
    answer_with(&server, job).await
}

/// `GET /api/system`.
pub(crate) async fn system(State(server): State<Arc<Server>>) -> Answer {
    let kept = Arc::clone(&server);
    let system = server
        .blocking(move || {
            let around = MachineProbe::of(std::process::id()).look();
            Ok(System {
                version: env!("CARGO_PKG_VERSION"),
                uptime_seconds: kept.uptime().as_secs(),
                memory: ServerMemory {
                    limit_bytes: kept.memory().map(|bytes| bytes.0),
                    available_bytes: around.available,
                    server_bytes: own_memory(),
                },
                gpu: kept.gpu().map(Gpu::from),
                slots: kept.settings.slots,
                jobs: kept.store.job_counts()?,
                files: FileSpace {
                    bytes: kept.store.bytes()?,
                    quota_bytes: kept.settings.quota_bytes,
                    disk_free_bytes: kept.disk.free_bytes(),
                },
                allows_commands: kept.settings.allow_commands,
            })
        })
        .await?;
    json_answer(&system)
}

/// What the server itself holds.
fn own_memory() -> Option<u64> {
    let mut own = Process::open(Identity::of(std::process::id())?).ok()?;
    Some(own.memory().ok()??.rss)
}

/// `GET /metrics`, for Prometheus.
pub(crate) async fn metrics(State(server): State<Arc<Server>>) -> Answer {
    let kept = Arc::clone(&server);
    let text = server
        .reading(move || {
            let mut text = String::new();
            let mut gauge = |name: &str, help: &str, kind: &str, rows: Vec<(String, f64)>| {
                text.push_str(&format!("# HELP model_garden_{name} {help}\n# TYPE model_garden_{name} {kind}\n"));
                for (labels, value) in rows {
                    text.push_str(&format!("model_garden_{name}{labels} {value}\n"));
                }
            };
            let counts = kept.store.job_counts()?;
            let by_status = Status::ALL.iter().map(|status| {
                let count = counts.get(status.name()).copied().unwrap_or(0);
                (format!("{{status=\"{}\"}}", status.name()), count as f64)
            });
            gauge("jobs", "Jobs by status.", "gauge", by_status.collect());
            gauge("requests_total", "Requests so far.", "counter", vec![(String::new(), kept.meter.requests() as f64)]);
            let bytes = |bytes: u64| vec![(String::new(), bytes as f64)];
            gauge("files_bytes", "Bytes of files, jobs, models and the database.", "gauge", bytes(kept.store.bytes()?));
            gauge("quota_bytes", "Bytes that they may take.", "gauge", bytes(kept.settings.quota_bytes));
            gauge("disk_free_bytes", "Free bytes of the disk.", "gauge", bytes(kept.disk.free_bytes()));
            gauge("connections", "Open connections.", "gauge", bytes(kept.connections.count() as u64));
            let own = own_memory().map(|bytes| (String::new(), bytes as f64));
            gauge("server_resident_bytes", "Memory of the server itself.", "gauge", own.into_iter().collect());
            let running = kept.store.jobs_with(Status::Running, crate::queue::RUNNING)?;
            let now: Vec<(String, crate::follow::Progress)> = running
                .iter()
                .flatten()
                .map(|job| (format!("{{job=\"{}\"}}", job.id()), crate::follow::progress(&kept, job)))
                .collect();
            let rows = |value: &dyn Fn(&crate::follow::Progress) -> Option<u64>| {
                now.iter().filter_map(|(labels, now)| Some((labels.clone(), value(now)? as f64))).collect::<Vec<_>>()
            };
            gauge("job_step", "The step of each running job.", "gauge", rows(&|now| now.step));
            gauge("job_memory_bytes", "Host memory of each running job.", "gauge", rows(&|now| now.memory_bytes));
            text.push_str(&kept.meter.text());
            Ok(text)
        })
        .await?;
    text_answer("text/plain; version=0.0.4; charset=utf-8", text)
}

/// `GET /openapi.json`.
pub(crate) async fn openapi() -> Answer {
    Ok(([(header::CONTENT_TYPE, "application/json")], crate::openapi::text()).into_response())
}

/// Anything else.
pub(crate) async fn nothing() -> ApiError {
    let missing = ApiError::missing("such path", "of this name");
    ApiError { message: "there is no such path here; GET /openapi.json lists all of them".into(), ..missing }
}

/// A method that a path does not have.
pub(crate) async fn wrong_method() -> ApiError {
    ApiError::method()
}

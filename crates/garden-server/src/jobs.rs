//! `/v1/fine_tuning/jobs`: from a request to a job, and what clients want of it then.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use garden_train::{FIELDS, Owner, Recipe, find_field};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::time::{Instant, timeout_at};

use crate::Server;
use crate::answer::{Answer, Query, UrlPath, json_answer, json_text, text_answer};
use crate::asked::Asked;
use crate::body::{EMPTY, Fields, LARGEST_REQUEST, read};
use crate::catalogue::{Found, Tuned, find, find_base};
use crate::error::ApiError;
use crate::follow::{checkpoints, progress};
use crate::gate::Client;
use crate::id::new_id;
use crate::job::{JobError, JobOrder, JobRecord, Status, Wish, Work};
use crate::places::{TRAINING, VALIDATION, link_rows, without_places};
use crate::store::{Added, Entry, Listed, NewEvent, Page, RequestKey, Unreadable};
use crate::stream::{End, Shown, send_list};
use crate::wire::{self, ErrorExtension, Nothing};

/// Jobs and events of a list that are read at first; small ones more at once after that.
const ROWS: usize = 2;
const EVENT_ROWS: usize = 10;
/// Letters of a key that makes the same request, sent twice, one job.
pub(crate) const LONGEST_KEY: usize = 255;
/// What is wrong with a job that needs more memory than there is.
pub(crate) const DOES_NOT_FIT: &str = "does_not_fit";

/// `POST /v1/fine_tuning/jobs`.
pub(crate) async fn create(
    State(server): State<Arc<Server>>,
    Extension(client): Extension<Client>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let text = read(body, LARGEST_REQUEST).await?;
    let request = request_key(&headers, &client, &text)?;
    let asked = Asked::read(Fields::parse::<wire::NewJob>(&text)?)?;
    let kept = Arc::clone(&server);
    let submit = move || {
        // Before anything else: what it named then may be gone by now.
        if let Some(known) = made_before(&kept, request.as_ref())? {
            return Ok(known);
        }
        let (job, folder) = submission(&kept, asked, "ftjob-")?;
        add(&kept, JobRecord { owner: client.turns(), ..job }, folder, request.as_ref())
    };
    let job = server.blocking(submit).await?;
    let job = wait_for_findings(&server, job).await?;
    // A job that can never run here is no job.
    if job.error.as_ref().is_some_and(|error| error.code == DOES_NOT_FIT) {
        let kept = Arc::clone(&server);
        return server.blocking(move || Err(refuse(&kept, &job)?)).await;
    }
    answer_with(&server, job).await
}

/// What makes a request that a client sends twice, since it did not hear the answer, one request.
pub(crate) fn request_key(headers: &HeaderMap, client: &Client, body: &[u8]) -> Result<Option<RequestKey>, ApiError> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    let is_plain =
        |text: &&str| (1..=LONGEST_KEY).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    let problem = || {
        let problem =
            format!("the header `Idempotency-Key` has to have 1 to {LONGEST_KEY} letters of ASCII without spaces");
        ApiError::invalid(problem)
    };
    let key = value.to_str().ok().filter(is_plain).ok_or_else(problem)?.to_string();
    let digest = Sha256::digest(body).iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(Some(RequestKey { owner: client.key.clone().unwrap_or_default(), key, digest }))
}

/// Forgets a job that does not fit, and says why, with the plan and the changes that would help.
fn refuse(server: &Server, job: &JobRecord) -> Result<ApiError, ApiError> {
    let plan = server.disk.job(job.id()).read_findings().and_then(|found| found.plan);
    let message = job.error.as_ref().map(|error| error.message.clone()).unwrap_or_default();
    crate::retention::forget(server, job.id())?;
    let details = ErrorExtension { plan: plan.map(|plan| plan.told) };
    Ok(ApiError::field("model", message).with_code(DOES_NOT_FIT).with_details(details))
}

async fn wait_for_findings(server: &Arc<Server>, job: JobRecord) -> Result<JobRecord, ApiError> {
    // Most are looked at within that, and a client that is told at once what is wrong need not ask again.
    let deadline = Instant::now() + server.settings.patience / 2;
    let mut changes = server.changes.subscribe();
    let id = job.id().to_string();
    loop {
        let asked = id.clone();
        let found = server.with_store(move |store| store.job(&asked)).await?;
        let found = found.ok_or_else(|| ApiError::missing("fine-tuning job", &id))?;
        let is_known = found.status != Status::ValidatingFiles;
        if is_known || timeout_at(deadline, changes.changed()).await.is_err() {
            return Ok(found);
        }
    }
}

/// Makes a job of a request, and its folder, which is gone unless it is kept.
pub(crate) fn submission(server: &Server, asked: Asked, prefix: &str) -> Result<(JobRecord, Abandoned), ApiError> {
    let Asked {
        model,
        training_file,
        validation_file,
        suffix,
        seed,
        metadata,
        hyperparameters: asked,
        priority,
        settings,
    } = asked;
    let found = find(server, &model)?;
    let id = new_id(prefix);
    let folder = server.disk.job(&id);
    let failed = |error: std::io::Error| ApiError::of_disk("the job's folder cannot be made", &error);
    fs::create_dir_all(folder.all_rows()).map_err(failed)?;
    // Until the job is known the folder is nobody's, and goes with an error.
    let abandoned = Abandoned(Some(folder.0.clone()));
    let mut values: Vec<(String, Value)> = Vec::new();
    let mut set = |name: &str, value: Value| values.push((name.to_string(), value));
    let base = match &found {
        Found::Base(base) => base.clone(),
        Found::Result(Tuned { job: parent, folder: tuned, .. }) => {
            let base = find_base(server, &parent.base)?;
            link_adapter(tuned, &folder.adapter())?;
            set("adapter", json!(folder.adapter()));
            // All else the adapter says itself.
            if parent.recipe().is_some_and(|recipe| recipe.load_in_4bit) {
                set("load-in-4bit", json!(true));
            }
            base
        }
    };
    set("model", json!(base.folder));
    set("output-dir", json!(folder.output()));
    set("image-paths", json!("inside"));
    set("seed", json!(seed));
    set("logging-steps", json!(1));
    set("dataset", json!(link_rows(server, &training_file, TRAINING, &folder)?));
    if let Some(file) = &validation_file {
        set("eval-dataset", json!(link_rows(server, file, VALIDATION, &folder)?));
    }
    if let Some(epochs) = asked.n_epochs {
        set("epochs", json!(epochs));
    }
    if let Some(rows) = asked.batch_size {
        // As many rows at once as by default, where that is possible.
        let at_once = if rows % 2 == 0 { 2 } else { 1 };
        set("batch-size", json!(at_once));
        set("gradient-accumulation", json!(rows / at_once));
    }
    if let Some(times) = asked.learning_rate_multiplier {
        set("learning-rate", json!(times * Recipe::default().learning_rate));
    }
    set("device", json!(server.settings.device));
    for (name, value) in settings {
        let param = format!("model_garden.recipe.{name}");
        match find_field(&name) {
            Some(field) if field.owner == Owner::Server => {
                return Err(ApiError::field(&param, format!("`{name}` is the server's own to decide")));
            }
            // Another `save-steps` than ours counts.
            _ => set(&name, value),
        }
    }
    let recipe = Recipe::from_values(values).map_err(|error| {
        let hint = error.hint.as_ref().map_or_else(String::new, |hint| format!("; {hint}"));
        let param = format!("model_garden.recipe.{}", error.name.replace('-', "_"));
        ApiError::field(&param, names_of_api(&format!("{error}{hint}")))
    })?;
    check_bounds(&recipe)?;
    let recipe = Box::new(without_places(recipe, &folder));
    let order = JobOrder { id, work: Work::Training { recipe }, memory: None, fetch: None };
    let job = JobRecord {
        priority,
        base: base.name,
        suffix,
        seed,
        asked,
        training_file,
        validation_file,
        metadata,
        ..JobRecord::new(order, server.now(), Status::ValidatingFiles, model)
    };
    Ok((job, abandoned))
}

/// Second names of the files of an adapter, so that deleting the result does not take it from a job that starts from it.
fn link_adapter(from: &Path, to: &Path) -> Result<(), ApiError> {
    let failed = |error: std::io::Error| ApiError::of_disk("the model cannot be linked", &error);
    fs::create_dir_all(to).map_err(failed)?;
    let mut count = 0;
    for entry in fs::read_dir(from).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let is_ours = name.to_str().is_some_and(|name| name.starts_with("adapter_"));
        if is_ours && entry.file_type().map_err(failed)?.is_file() {
            fs::hard_link(entry.path(), to.join(name)).map_err(failed)?;
            count += 1;
        }
    }
    match count {
        0 => {
            Err(ApiError::field("model", "this model was trained as a whole (`full`): it has no adapter to go on from"))
        }
        _ => Ok(()),
    }
}

/// The job that the same request has made before.
pub(crate) fn made_before(server: &Server, request: Option<&RequestKey>) -> Result<Option<JobRecord>, ApiError> {
    match request.map(|request| server.store.earlier(request)).transpose()?.flatten() {
        Some(Added::Known(known)) => Ok(Some(*known)),
        Some(Added::OtherBody) => Err(ApiError::other_body()),
        Some(Added::New) | None => Ok(None),
    }
}

/// Makes a job known, and wakes the queue. Where the same request has made a job before, that one is given and this one is gone.
pub(crate) fn add(
    server: &Server,
    job: JobRecord,
    folder: Abandoned,
    request: Option<&RequestKey>,
) -> Result<JobRecord, ApiError> {
    server.check_space()?;
    if server.store.bytes()? >= server.settings.quota_bytes {
        return Err(crate::files::no_quota(server));
    }
    let created = NewEvent::of("created", format!("Created fine-tuning job: {}", job.id()));
    match server.store.add_job(&job, &[created], request)? {
        Added::New => {}
        Added::Known(known) => return Ok(*known),
        Added::OtherBody => return Err(ApiError::other_body()),
    }
    folder.keep();
    server.wake();
    Ok(job)
}

/// A text with the names that settings have in requests.
fn names_of_api(text: &str) -> String {
    let parts = text.split('`').enumerate();
    // Every second part stands between quotes, perhaps with a value behind the name.
    let named = parts.map(|(index, part)| {
        let (name, value) = part.split_once(' ').map_or((part, None), |(name, value)| (name, Some(value)));
        let name = name.trim_start_matches("--");
        match index % 2 == 1 && find_field(name).is_some() {
            true => [Some(name.replace('-', "_").as_str()), value].into_iter().flatten().collect::<Vec<_>>().join(" "),
            false => part.to_string(),
        }
    });
    named.collect::<Vec<_>>().join("`")
}

fn check_bounds(recipe: &Recipe) -> Result<(), ApiError> {
    for field in FIELDS {
        let Some(most) = field.most_of_client else { continue };
        if recipe.setting(field.name).parse::<f64>().is_ok_and(|value| value > most) {
            let name = field.name.replace('-', "_");
            return Err(ApiError::field(
                &format!("model_garden.recipe.{name}"),
                format!("`{name}` is {most} at most here"),
            ));
        }
    }
    Ok(())
}

/// Commands are jobs only where the operator wants that: whoever may send one may do anything that the server's user may.
pub(crate) fn refuse_unless_commands(server: &Server) -> Result<(), ApiError> {
    match server.settings.allow_commands {
        true => Ok(()),
        false => Err(ApiError::forbidden("commands are not allowed on this server")),
    }
}

/// A folder that is removed unless it is kept.
pub(crate) struct Abandoned(pub Option<PathBuf>);

impl Abandoned {
    pub fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Abandoned {
    fn drop(&mut self) {
        if let Some(folder) = &self.0 {
            drop(fs::remove_dir_all(folder));
        }
    }
}

/// `GET /v1/fine_tuning/jobs`.
pub(crate) async fn all(State(server): State<Arc<Server>>, query: Query) -> Answer {
    let page = Page { is_ascending: false, ..query.page()? };
    let filter = query.metadata()?;
    send_list(&server, page, ROWS, End::Page, move |server, page| {
        Shown::all(server.store.jobs(page, &filter)?, |entry| shown_entry(server, &entry))
    })
    .await
}

/// `GET /v1/fine_tuning/jobs/{id}`.
pub(crate) async fn one(State(server): State<Arc<Server>>, UrlPath(id): UrlPath<String>) -> Answer {
    let kept = Arc::clone(&server);
    let text = server.blocking(move || {
        let mut job = kept.find_job(&id)?;
        // All problems of its rows: lists have the first.
        if let Some(found) = job.findings.as_mut().filter(|found| !found.problems.is_empty()) {
            let all = kept.disk.job(&id).read_findings();
            found.problems = all.map_or_else(|| std::mem::take(&mut found.problems), |all| all.problems);
        }
        json_text(&shown(&kept, &job))
    });
    text_answer("application/json", text.await?)
}

/// `POST /v1/fine_tuning/jobs/{id}/cancel`.
pub(crate) async fn cancel(State(server): State<Arc<Server>>, UrlPath(id): UrlPath<String>, body: Body) -> Answer {
    wish(server, id, body, Wish::Cancel).await
}

/// `POST /v1/fine_tuning/jobs/{id}/pause`.
pub(crate) async fn pause(State(server): State<Arc<Server>>, UrlPath(id): UrlPath<String>, body: Body) -> Answer {
    wish(server, id, body, Wish::Pause).await
}

/// `POST /v1/fine_tuning/jobs/{id}/resume`.
pub(crate) async fn resume(State(server): State<Arc<Server>>, UrlPath(id): UrlPath<String>, body: Body) -> Answer {
    wish(server, id, body, Wish::GoOn).await
}

/// `POST /api/jobs/{id}/finish`: it ends where it is, and what it has learnt is the result.
pub(crate) async fn finish(State(server): State<Arc<Server>>, UrlPath(id): UrlPath<String>, body: Body) -> Answer {
    wish(server, id, body, Wish::Finish).await
}

async fn wish(server: Arc<Server>, id: String, body: Body, wish: Wish) -> Answer {
    Fields::parse_optional::<Nothing>(&read(body, EMPTY).await?)?.end()?;
    let kept = Arc::clone(&server);
    let job = server.blocking(move || change_wish(&kept, &id, wish)).await?;
    server.wake();
    answer_with(&server, job).await
}

/// Notes what somebody wants; what nothing works on changes at once.
fn change_wish(server: &Server, id: &str, wish: Wish) -> Result<JobRecord, ApiError> {
    let mut refused = None;
    let now = server.now();
    let mut decide = |job: &mut JobRecord| {
        let is_worked_on = matches!(job.status, Status::Running | Status::ValidatingFiles) && job.starts > 0;
        refused = refusal(job, wish);
        if refused.is_some() {
            return None;
        }
        // Whoever asks twice does not want to wait.
        job.is_forced = wish == Wish::Cancel && job.wish == Wish::Cancel;
        job.wish = wish;
        let words = match wish {
            Wish::Cancel if !is_worked_on => {
                (job.status, job.finished_at, job.wish) = (Status::Cancelled, Some(now), Wish::GoOn);
                Some("The job has been cancelled.")
            }
            Wish::Pause if !is_worked_on => {
                (job.status, job.wish) = (Status::Paused, Wish::GoOn);
                Some("The job has been paused.")
            }
            Wish::GoOn if job.status == Status::Paused => {
                (job.status, job.not_before, job.starts, job.hold) = (Status::Queued, 0, 0, None);
                Some("Job resumed and queued.")
            }
            Wish::Finish if job.status == Status::Paused => {
                (job.status, job.not_before, job.starts, job.hold) = (Status::Queued, 0, 0, None);
                Some("The job will be finished with what it has learnt.")
            }
            _ => None,
        };
        Some(words.iter().map(|words| NewEvent::of(new_id("wish-"), *words)).collect())
    };
    // Who cancels a job makes room.
    let changed = server.change_even_if_full(|store| store.change_job(id, now, &mut decide))?;
    let job = changed.ok_or_else(|| ApiError::missing("fine-tuning job", id))?;
    if let Some(problem) = refused {
        return Err(ApiError::wrong_state(problem));
    }
    if job.status.is_final() {
        server.disk.forget_rows(id);
    }
    server.changed();
    Ok(job)
}

/// Why a wish cannot be granted.
fn refusal(job: &JobRecord, wish: Wish) -> Option<String> {
    match (wish, job.status) {
        (_, status) if status.is_final() => Some(format!("this job is {}: nothing can be changed", status.name())),
        (Wish::Cancel, _) => None,
        _ if job.wish == Wish::Cancel => Some("this job is being cancelled".into()),
        (Wish::Pause, Status::Paused) => Some("this job is paused already".into()),
        (Wish::Pause, Status::ValidatingFiles) => Some("this job cannot be paused before its files are checked".into()),
        (Wish::Pause, _) if job.wish == Wish::Finish => Some("this job is being finished".into()),
        (Wish::GoOn, Status::Queued | Status::ValidatingFiles) => Some("this job is not paused".into()),
        (Wish::GoOn, Status::Running) if job.wish != Wish::Pause => Some("this job is not paused".into()),
        (Wish::Finish, Status::ValidatingFiles | Status::Queued) if job.newest_step.is_none() => {
            Some("no training step of this job has completed yet".into())
        }
        (Wish::Finish, _) if job.recipe().is_none() => Some("only a fine-tuning job has something to keep".into()),
        _ => None,
    }
}

/// `GET /v1/fine_tuning/jobs/{id}/events`, the newest first.
pub(crate) async fn events(State(server): State<Arc<Server>>, UrlPath(id): UrlPath<String>, query: Query) -> Answer {
    let page = query.page()?;
    let after = page.after.as_deref().map(|after| {
        let number = after.strip_prefix(wire::EVENT).and_then(|number| number.parse::<i64>().ok());
        number
            .map(|number| number.to_string())
            .ok_or_else(|| ApiError::field("after", "`after` is not the id of an event"))
    });
    let page = Page { after: after.transpose()?, ..page };
    server.job(id.clone()).await?;
    send_list(&server, page, EVENT_ROWS, End::Page, move |server, page| {
        Shown::all(server.store.events(&id, page)?, |event| wire::Event::from(&event))
    })
    .await
}

/// `GET /v1/fine_tuning/jobs/{id}/checkpoints`, the newest first.
pub(crate) async fn all_checkpoints(
    State(server): State<Arc<Server>>,
    UrlPath(id): UrlPath<String>,
    query: Query,
) -> Answer {
    let page = query.page()?;
    let job = server.job(id).await?;
    let kept = Arc::clone(&server);
    let found = server.reading(move || checkpoints(&kept, &job)).await?;
    let start = match &page.after {
        None => 0,
        Some(after) => found.iter().position(|one| one.id == *after).map_or(found.len(), |index| index + 1),
    };
    let rest: Vec<wire::Checkpoint> = found.into_iter().skip(start).collect();
    let has_more = rest.len() > page.limit;
    let rows = rest.into_iter().take(page.limit).collect();
    json_answer(&wire::Page::of(&Listed { rows, has_more, last: None }, wire::Checkpoint::clone))
}

/// A job as clients see it, now.
fn shown(server: &Server, job: &JobRecord) -> wire::Job {
    wire::Job::of(job, progress(server, job))
}

/// A job of a list. One whose record cannot be read is shown as such.
fn shown_entry(server: &Server, entry: &Entry) -> wire::Job {
    match entry {
        Ok(job) => shown(server, job),
        Err(broken) => shown(server, &unreadable(broken)),
    }
}

/// What is left of a job whose record cannot be read.
pub(crate) fn unreadable(broken: &Unreadable) -> JobRecord {
    let work = Work::Command { command: Vec::new(), memory_limit: None, checkpoint_dir: None };
    let order = JobOrder { id: broken.id.clone(), work, memory: None, fetch: None };
    let message =
        format!("the server's record of this job cannot be read ({}); nothing of it was deleted", broken.problem);
    let error = Some(JobError { code: "unreadable_record".into(), message, param: None });
    let base = broken.base.clone();
    let failed = JobRecord::new(order, broken.created_at, Status::Failed, base.clone());
    JobRecord { error, base, finished_at: broken.finished_at, ..failed }
}

/// Answers with a job.
pub(crate) async fn answer_with(server: &Arc<Server>, job: JobRecord) -> Answer {
    let kept = Arc::clone(server);
    json_answer(&server.blocking(move || Ok(shown(&kept, &job))).await?)
}

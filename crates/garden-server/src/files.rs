//! `/v1/files` and `/v1/uploads`: rows come in, results go out. Nothing of them is ever held in memory as a whole.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use md5::{Digest as _, Md5};
use tokio::fs::File;
use tokio::io::AsyncWriteExt as _;

use crate::Server;
use crate::answer::{Answer, Query, UrlPath, json_answer};
use crate::body::{EMPTY, Fields, read, read_fields};
use crate::disk::extension_of;
use crate::error::ApiError;
use crate::form::{self, Form, FormField};
use crate::id::new_id;
use crate::send::send_file;
use crate::store::{FileRecord, PartAdded, PartRecord, UploadRecord};
use crate::stream::{End, Shown, send_list};
use crate::wire::{self, NewFile, NewPart, NewUpload, Nothing, UploadEnd};

/// What files may be for. Only `fine-tune` is of use here; the others are kept for clients that bring them.
pub(crate) const PURPOSES: [&str; 6] = ["fine-tune", "vision", "user_data", "batch", "assistants", "evals"];
/// What results are.
pub(crate) const RESULTS: &str = "fine-tune-results";
/// Rows of a list that are read at first.
const ROWS: usize = 40;
/// Letters of a file's name at most.
pub(crate) const LONGEST_NAME: usize = 255;
/// The largest part of an upload, as OpenAI has it.
const LARGEST_PART: u64 = 64 << 20;
/// How long an upload may take, in seconds.
const UPLOAD_TIME: i64 = 3600;
/// Files may expire after an hour to 30 days.
pub(crate) const EXPIRES: (i64, i64) = (3600, 2_592_000);
/// Parts of an upload at most.
const MOST_PARTS: usize = 1024;
/// Bytes that are read from or written to the disk at once.
const PIECE: usize = 64 << 10;

/// `POST /v1/files`.
pub(crate) async fn create(State(server): State<Arc<Server>>, request: Request) -> Answer {
    let mut form = Form::of::<NewFile>(request, &server).await?;
    let (mut purpose, mut seconds, mut anchor) = (None, None, None);
    let mut received: Option<(Incoming, String)> = None;
    while let Some((mut field, name)) = form.next().await? {
        match name.as_str() {
            "purpose" => purpose = Some(field.text().await?),
            "expires_after[seconds]" => seconds = Some(field.text().await?),
            "expires_after[anchor]" => anchor = Some(field.text().await?),
            "file" if received.is_some() => return Err(ApiError::field("file", "one file at a time")),
            "file" => {
                let filename = file_name(field.file_name().unwrap_or("upload.jsonl"))?;
                let incoming = receive(&server, field, server.settings.max_file_bytes).await?;
                received = Some((incoming, filename));
            }
            other => return Err(form::unknown(other)),
        }
    }
    let Some((incoming, filename)) = received else {
        return Err(ApiError::field("file", "`file` is missing").with_code("missing_required_parameter"));
    };
    let purpose = purpose
        .ok_or_else(|| ApiError::field("purpose", "`purpose` is missing").with_code("missing_required_parameter"))?;
    check_purpose(&purpose)?;
    let now = server.now();
    let expires_at = match (seconds, anchor) {
        (None, None) => None,
        (seconds, anchor) => Some(now + expiry(seconds.and_then(|text| text.parse().ok()), anchor.as_deref())?),
    };
    let id = new_id("file-");
    let extension = extension_of(&filename, &purpose);
    let file = FileRecord { id, bytes: incoming.bytes, created_at: now, filename, purpose, extension, expires_at };
    let record = file.clone();
    let kept = Arc::clone(&server);
    server
        .blocking(move || {
            keep(&kept, &incoming, &record)?;
            let problem = match kept.store.add_file(&record, kept.settings.quota_bytes) {
                Ok(true) => return Ok(()),
                Ok(false) => no_quota(&kept),
                Err(error) => error.into(),
            };
            drop(std::fs::remove_file(kept.disk.file(&record)));
            Err(problem)
        })
        .await?;
    json_answer(&wire::File::from(&file))
}

/// `GET /v1/files`.
pub(crate) async fn all(State(server): State<Arc<Server>>, query: Query) -> Answer {
    let page = query.page()?;
    let purpose = query.get("purpose").map(str::to_string);
    send_list(&server, page, ROWS, End::Page, move |server, page| {
        Shown::all(server.store.files(page, purpose.as_deref(), server.now())?, |file| wire::File::from(&file))
    })
    .await
}

/// `GET /v1/files/{id}`.
pub(crate) async fn one(State(server): State<Arc<Server>>, UrlPath(id): UrlPath<String>) -> Answer {
    json_answer(&wire::File::from(&find(&server, id).await?))
}

/// `DELETE /v1/files/{id}`. Jobs that use it have their own name for it.
pub(crate) async fn delete(State(server): State<Arc<Server>>, UrlPath(id): UrlPath<String>) -> Answer {
    let file = find(&server, id).await?;
    let kept = Arc::clone(&server);
    let id = file.id.clone();
    server.blocking(move || remove(&kept, &file)).await?;
    json_answer(&wire::DeletedFile::of(id))
}

/// Puts a file away, forgets it, and removes it.
pub(crate) fn remove(server: &Server, file: &FileRecord) -> Result<(), ApiError> {
    let away = server.disk.put_away(file);
    if let Err(error) = server.change_even_if_full(|store| store.delete_file(&file.id)) {
        server.disk.put_back(file, away.as_deref());
        return Err(error.into());
    }
    server.disk.remove(away.as_deref());
    Ok(())
}

/// `GET /v1/files/{id}/content`.
pub(crate) async fn content(
    State(server): State<Arc<Server>>,
    UrlPath(id): UrlPath<String>,
    headers: HeaderMap,
) -> Answer {
    let file = find(&server, id).await?;
    // Whether rows are what their name says is not known before they are read.
    let kind = if file.extension == "csv" { "text/csv" } else { "application/octet-stream" };
    send_file(&server.disk.file(&file), kind, &headers).await
}

/// A file that is here and whose time is not over.
pub(crate) async fn find(server: &Arc<Server>, id: String) -> Result<FileRecord, ApiError> {
    let asked = id.clone();
    let found = server.with_store(move |store| store.file(&asked)).await?;
    let now = server.now();
    found.filter(|file| file.expires_at.is_none_or(|at| at > now)).ok_or_else(|| ApiError::missing("file", &id))
}

/// `POST /v1/uploads`.
pub(crate) async fn begin_upload(State(server): State<Arc<Server>>, body: Body) -> Answer {
    let mut fields = read_fields::<NewUpload>(body).await?;
    let most = i64::try_from(server.settings.max_file_bytes).unwrap_or(i64::MAX);
    let filename = file_name(&fields.needed_text("filename")?)?;
    let purpose = fields.needed_text("purpose")?;
    check_purpose(&purpose)?;
    let bytes = fields.whole("bytes", 1, most)?.ok_or_else(|| fields.wrong("bytes", "is missing"))?;
    // What the bytes are is seen when they are read.
    let _ = fields.needed_text("mime_type")?;
    let file_expires_after = match fields.object("expires_after")? {
        None => None,
        Some(mut expires) => {
            let (seconds, anchor) = (expires.whole("seconds", EXPIRES.0, EXPIRES.1)?, expires.text("anchor")?);
            expires.end()?;
            Some(expiry(seconds, anchor.as_deref())?)
        }
    };
    fields.end()?;
    server.check_space()?;
    if server.with_store(|store| store.bytes()).await? >= server.settings.quota_bytes {
        return Err(no_quota(&server));
    }
    let now = server.now();
    let upload = UploadRecord {
        id: new_id("upload_"),
        bytes: bytes.unsigned_abs(),
        created_at: now,
        filename,
        purpose,
        expires_at: now + UPLOAD_TIME,
        status: "pending".into(),
        file: None,
        file_expires_after,
    };
    let record = upload.clone();
    server.with_store(move |store| store.add_upload(&record)).await?;
    json_answer(&wire::Upload::of(&upload, None))
}

/// `POST /v1/uploads/{id}/parts`.
pub(crate) async fn add_part(
    State(server): State<Arc<Server>>,
    UrlPath(id): UrlPath<String>,
    request: Request,
) -> Answer {
    let upload = pending(&server, id).await?;
    let mut form = Form::of::<NewPart>(request, &server).await?;
    let mut received = None;
    while let Some((field, name)) = form.next().await? {
        match name.as_str() {
            "data" if received.is_none() => received = Some(receive(&server, field, LARGEST_PART).await?),
            other => return Err(form::unknown(other)),
        }
    }
    let incoming =
        received.ok_or_else(|| ApiError::field("data", "`data` is missing").with_code("missing_required_parameter"))?;
    let part = PartRecord { id: new_id("part_"), upload: upload.id, bytes: incoming.bytes, created_at: server.now() };
    let (record, kept) = (part.clone(), Arc::clone(&server));
    server
        .blocking(move || {
            let known = kept.store.parts(&record.upload)?;
            let sum: u64 = known.iter().map(|part| part.bytes).sum();
            if known.len() >= MOST_PARTS || sum + record.bytes > kept.settings.max_file_bytes {
                return Err(ApiError::too_large("the parts of this upload are too many, or too large together"));
            }
            kept.disk.keep(&incoming.path, &kept.disk.part(&record.id)).map_err(|error| no_disk(&error))?;
            let problem = match kept.store.add_part(&record, kept.settings.quota_bytes) {
                Ok(PartAdded::Yes) => return Ok(()),
                Ok(PartAdded::NotPending) => ApiError::wrong_state("this upload is not pending any more"),
                Ok(PartAdded::NoSpace) => no_quota(&kept),
                Err(error) => error.into(),
            };
            drop(std::fs::remove_file(kept.disk.part(&record.id)));
            Err(problem)
        })
        .await?;
    json_answer(&wire::Part::from(&part))
}

/// `POST /v1/uploads/{id}/complete`.
pub(crate) async fn complete_upload(
    State(server): State<Arc<Server>>,
    UrlPath(id): UrlPath<String>,
    body: Body,
) -> Answer {
    let mut fields = read_fields::<UploadEnd>(body).await?;
    let order = fields.texts("part_ids")?.ok_or_else(|| fields.wrong("part_ids", "is missing"))?;
    let digest = fields.text("md5")?;
    fields.end()?;
    let upload = pending(&server, id).await?;
    let kept = Arc::clone(&server);
    // One at a time: each may have to copy as much as a file may have.
    let turn = server.joining.clone().acquire_owned().await;
    let turn = turn.map_err(|error| ApiError::internal("the server ends", &error))?;
    let work = move || {
        let completed = complete(&kept, upload, &order, digest.as_deref());
        drop(turn);
        completed
    };
    let (upload, file) = server.blocking_for_long(work).await?;
    json_answer(&wire::Upload::of(&upload, Some(&file)))
}

/// Puts the parts together, in the order that the client says.
fn complete(
    server: &Arc<Server>,
    upload: UploadRecord,
    order: &[String],
    digest: Option<&str>,
) -> Result<(UploadRecord, FileRecord), ApiError> {
    let parts = server.store.parts(&upload.id)?;
    let mut bytes = 0;
    for (index, id) in order.iter().enumerate() {
        let Some(part) = parts.iter().find(|part| part.id == *id) else {
            return Err(ApiError::field("part_ids", "a part of `part_ids` is not one of this upload"));
        };
        if order[..index].contains(id) {
            return Err(ApiError::field("part_ids", "a part is named twice in `part_ids`"));
        }
        bytes += part.bytes;
    }
    if bytes != upload.bytes {
        let problem = format!("the parts have {bytes} bytes, the upload was to have {}", upload.bytes);
        return Err(ApiError::field("part_ids", problem));
    }
    let path = server.disk.incoming(&new_id("upload-"));
    // Until the parts are gone there is all of it twice.
    let mut reserved = Reserved::new(server);
    reserved.grow(bytes, server.store.bytes()?)?;
    let incoming = Incoming { path, bytes, reserved: Some(reserved) };
    let join = || -> std::io::Result<String> {
        let mut all = std::fs::File::create(&incoming.path)?;
        let mut sum = Md5::new();
        let mut piece = vec![0; PIECE];
        for id in order {
            let mut part = std::fs::File::open(server.disk.part(id))?;
            loop {
                let count = std::io::Read::read(&mut part, &mut piece)?;
                if count == 0 {
                    break;
                }
                sum.update(&piece[..count]);
                std::io::Write::write_all(&mut all, &piece[..count])?;
            }
        }
        all.sync_all()?;
        Ok(sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    };
    let found = join().map_err(|error| no_disk(&error))?;
    if digest.is_some_and(|digest| !digest.eq_ignore_ascii_case(&found)) {
        return Err(ApiError::field("md5", format!("the bytes that came have the MD5 digest {found}")));
    }
    let now = server.now();
    let (filename, purpose) = (upload.filename.clone(), upload.purpose.clone());
    let extension = extension_of(&filename, &purpose);
    let expires_at = upload.file_expires_after.map(|seconds| now + seconds);
    let file = FileRecord { id: new_id("file-"), bytes, created_at: now, filename, purpose, extension, expires_at };
    keep(server, &incoming, &file)?;
    let ended = server.store.end_upload(&upload.id, "completed", Some(&file));
    if !matches!(ended, Ok(true)) {
        drop(std::fs::remove_file(server.disk.file(&file)));
        ended?;
        return Err(ApiError::wrong_state("this upload is not pending any more"));
    }
    parts.iter().for_each(|part| drop(std::fs::remove_file(server.disk.part(&part.id))));
    Ok((UploadRecord { status: "completed".into(), file: Some(file.id.clone()), ..upload }, file))
}

/// `POST /v1/uploads/{id}/cancel`.
pub(crate) async fn cancel_upload(
    State(server): State<Arc<Server>>,
    UrlPath(id): UrlPath<String>,
    body: Body,
) -> Answer {
    Fields::parse_optional::<Nothing>(&read(body, EMPTY).await?)?.end()?;
    let upload = pending(&server, id).await?;
    let kept = Arc::clone(&server);
    let upload = server.blocking(move || end(&kept, upload, "cancelled")).await?;
    json_answer(&wire::Upload::of(&upload, None))
}

/// Ends an upload without a file.
pub(crate) fn end(server: &Server, upload: UploadRecord, status: &str) -> Result<UploadRecord, ApiError> {
    let parts = server.store.parts(&upload.id)?;
    if !server.change_even_if_full(|store| store.end_upload(&upload.id, status, None))? {
        return Err(ApiError::wrong_state("this upload is not pending any more"));
    }
    parts.iter().for_each(|part| drop(std::fs::remove_file(server.disk.part(&part.id))));
    Ok(UploadRecord { status: status.into(), ..upload })
}

async fn pending(server: &Arc<Server>, id: String) -> Result<UploadRecord, ApiError> {
    let asked = id.clone();
    let found = server.with_store(move |store| store.upload(&asked)).await?;
    let upload = found.ok_or_else(|| ApiError::missing("upload", &id))?;
    match upload.status.as_str() {
        "pending" if upload.expires_at > server.now() => Ok(upload),
        "pending" => Err(ApiError::wrong_state("this upload has expired")),
        status => Err(ApiError::wrong_state(format!("this upload is {status}"))),
    }
}

/// A file that has come and that nobody sees yet; it is gone with this.
#[derive(Debug)]
struct Incoming {
    path: PathBuf,
    bytes: u64,
    /// What of the quota it takes until it is known.
    reserved: Option<Reserved>,
}

impl Drop for Incoming {
    fn drop(&mut self) {
        // Nothing is there any more if it was kept.
        drop(std::fs::remove_file(&self.path));
    }
}

/// Bytes that are coming, which the store does not know of yet.
#[derive(Debug)]
pub(crate) struct Reserved {
    server: Arc<Server>,
    bytes: u64,
}

impl Reserved {
    pub fn new(server: &Arc<Server>) -> Reserved {
        Reserved { server: Arc::clone(server), bytes: 0 }
    }

    pub fn grow(&mut self, bytes: u64, stored: u64) -> Result<(), ApiError> {
        self.bytes += bytes;
        let coming = self.server.coming.fetch_add(bytes, Ordering::Relaxed) + bytes;
        match stored + coming > self.server.settings.quota_bytes {
            true => Err(no_quota(&self.server)),
            false => Ok(()),
        }
    }
}

pub(crate) fn no_quota(server: &Server) -> ApiError {
    let quota = server.settings.quota_bytes;
    let message =
        format!("files, jobs and models here may take {quota} bytes together: delete some that are not needed");
    ApiError::no_space(message)
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.server.coming.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Writes what comes to the disk.
async fn receive(server: &Arc<Server>, mut field: FormField<'_>, limit: u64) -> Result<Incoming, ApiError> {
    server.check_space()?;
    let stored = server.with_store(|store| store.bytes()).await?;
    let path = server.disk.incoming(&new_id("file-"));
    let mut file = File::create(&path).await.map_err(|error| no_disk(&error))?;
    let mut reserved = Reserved::new(server);
    let mut incoming = Incoming { path, bytes: 0, reserved: None };
    while let Some(piece) = field.piece(limit).await? {
        reserved.grow(piece.len() as u64, stored)?;
        incoming.bytes += piece.len() as u64;
        file.write_all(&piece).await.map_err(|error| no_disk(&error))?;
    }
    file.flush().await.map_err(|error| no_disk(&error))?;
    file.sync_all().await.map_err(|error| no_disk(&error))?;
    incoming.reserved = Some(reserved);
    Ok(incoming)
}

fn keep(server: &Server, incoming: &Incoming, file: &FileRecord) -> Result<(), ApiError> {
    server.disk.keep(&incoming.path, &server.disk.file(file)).map_err(|error| no_disk(&error))
}

fn check_purpose(purpose: &str) -> Result<(), ApiError> {
    match PURPOSES.contains(&purpose) {
        true => Ok(()),
        false => Err(ApiError::field("purpose", format!("`purpose` has to be one of {}", PURPOSES.join(", ")))),
    }
}

/// The last part of a name, which is only ever shown.
fn file_name(given: &str) -> Result<String, ApiError> {
    let name = given.rsplit(['/', '\\']).next().unwrap_or_default();
    match name.is_empty() || name.len() > LONGEST_NAME || name.chars().any(char::is_control) {
        true => Err(ApiError::field("filename", "the file needs a name of 1 to 255 bytes")),
        false => Ok(name.to_string()),
    }
}

/// Seconds after which a file is deleted, where somebody wants that.
fn expiry(seconds: Option<i64>, anchor: Option<&str>) -> Result<i64, ApiError> {
    let (least, most) = EXPIRES;
    let seconds = seconds.filter(|seconds| (least..=most).contains(seconds));
    let problem = format!("`expires_after` needs `anchor` \"created_at\" and `seconds` from {least} to {most}");
    seconds.filter(|_| anchor == Some("created_at")).ok_or_else(|| ApiError::field("expires_after", problem))
}

fn no_disk(error: &std::io::Error) -> ApiError {
    ApiError::of_disk("the server's folder cannot be written", error)
}

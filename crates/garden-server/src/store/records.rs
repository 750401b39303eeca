//! What the store takes and gives.

use std::collections::BTreeMap;

use serde_json::Value;

/// Why the database cannot be used.
#[derive(Debug)]
pub enum StoreError {
    /// The database says so.
    Database(rusqlite::Error),
    /// A record cannot be written.
    Record(serde_json::Error),
    /// A record cannot be read.
    Unreadable(Unreadable),
    /// A page is to begin behind something that is not known.
    NoSuchPlace,
    /// It is of a newer version of this program.
    Newer(i64),
    /// It is not whole: what is wrong with it first.
    Damaged(String),
}

impl std::fmt::Display for StoreError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StoreError::Database(error) => error.fmt(f),
            StoreError::Record(error) => write!(f, "a record cannot be written: {error}"),
            StoreError::Unreadable(one) => {
                write!(f, "the record of `{}` cannot be read: {}; nothing of it was changed", one.id, one.problem)
            }
            StoreError::NoSuchPlace => f.write_str("nothing of that name is known"),
            StoreError::Newer(version) => {
                write!(f, "it was written by a newer version of model-garden (tables of version {version})")
            }
            StoreError::Damaged(problem) => write!(f, "it is damaged: {problem}"),
        }
    }
}

impl std::error::Error for StoreError {}

impl StoreError {
    /// Whether the disk has no space left for a change.
    pub fn is_disk_full(&self) -> bool {
        let StoreError::Database(rusqlite::Error::SqliteFailure(failure, _)) = self else { return false };
        // Where the write-ahead log's index cannot grow either, SQLite says that it cannot write.
        matches!(failure.code, rusqlite::ErrorCode::DiskFull | rusqlite::ErrorCode::SystemIoFailure)
    }
}

/// A job whose record cannot be read. Its folder and its events are untouched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The job's name.
    pub id: String,
    /// When it was made.
    pub created_at: i64,
    /// When it ended, as far as that was noted beside the record.
    pub finished_at: Option<i64>,
    /// The base model, as far as that was noted there.
    pub base: String,
    /// What is wrong with the record.
    pub problem: String,
}

/// A job of a list.
pub type Entry = Result<Box<crate::job::JobRecord>, Unreadable>;

/// What makes a request that is sent twice one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestKey {
    /// The API key that it belongs to; empty where none is needed.
    pub owner: String,
    /// The key that the client chose.
    pub key: String,
    /// A digest of the request's body.
    pub digest: String,
}

/// A model that a job has made, as lists show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultRecord {
    /// Its name.
    pub model: String,
    /// The job that made it.
    pub job: String,
    /// The base model.
    pub base: String,
    /// When it was made.
    pub created_at: i64,
}

/// Names of what a database knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Files, as they are named on the disk.
    pub files: Vec<String>,
    /// Parts of uploads.
    pub parts: Vec<String>,
    /// Jobs.
    pub jobs: Vec<String>,
}

/// What became of a job that was to be noted.
#[derive(Clone, Debug)]
pub enum Added {
    /// It is noted.
    New,
    /// The same request has made this one before.
    Known(Box<crate::job::JobRecord>),
    /// A request with the same key and another body came before.
    OtherBody,
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> StoreError {
        StoreError::Database(error)
    }
}

impl From<serde_json::Error> for StoreError {
    fn from(error: serde_json::Error) -> StoreError {
        StoreError::Record(error)
    }
}

/// A file that a client has sent, or that is the result of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRecord {
    /// Its name here.
    pub id: String,
    /// Its length.
    pub bytes: u64,
    /// When it was sent.
    pub created_at: i64,
    /// Its name at the client, which is only ever shown.
    pub filename: String,
    /// What it is for.
    pub purpose: String,
    /// How its name ends on our disk: one of a few.
    pub extension: String,
    /// When it is deleted.
    pub expires_at: Option<i64>,
}

/// A file that is sent in parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadRecord {
    /// Its name.
    pub id: String,
    /// The length that it shall have.
    pub bytes: u64,
    /// When it was begun.
    pub created_at: i64,
    /// The name of the file.
    pub filename: String,
    /// What the file is for.
    pub purpose: String,
    /// When it is given up.
    pub expires_at: i64,
    /// `pending`, `completed`, `cancelled` or `expired`.
    pub status: String,
    /// The file that came of it.
    pub file: Option<String>,
    /// Seconds after which that file is deleted.
    pub file_expires_after: Option<i64>,
}

/// A part of an upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartRecord {
    /// Its name.
    pub id: String,
    /// Its upload.
    pub upload: String,
    /// Its length.
    pub bytes: u64,
    /// When it was sent.
    pub created_at: i64,
}

/// What became of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartAdded {
    /// It is noted.
    Yes,
    /// Its upload is not pending any more.
    NotPending,
    /// There would be more bytes than there may be.
    NoSpace,
}

/// Something that happened to a job.
#[derive(Clone, Debug, PartialEq)]
pub struct EventRecord {
    /// The order of all events.
    pub seq: i64,
    /// When it was noted.
    pub created_at: i64,
    /// How bad it is.
    pub level: Level,
    /// What happened.
    pub message: String,
    /// Numbers, where it is about these.
    pub data: Option<Value>,
}

/// How bad an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Not at all.
    Info,
    /// Somebody should look.
    Warn,
    /// It is the end.
    Error,
}

impl Level {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Level::Info => "info",
            Level::Warn => "warn",
            Level::Error => "error",
        }
    }
}

/// An event that is to be noted. A second one of the same name is not: who follows a job may look twice.
#[derive(Clone, Debug)]
pub struct NewEvent {
    /// What makes it one of a kind in its job.
    pub name: String,
    /// How bad it is.
    pub level: Level,
    /// What happened.
    pub message: String,
    /// Numbers, where it is about these.
    pub data: Option<Value>,
}

impl NewEvent {
    /// An event in words.
    pub fn of(name: impl Into<String>, message: impl Into<String>) -> NewEvent {
        NewEvent { name: name.into(), level: Level::Info, message: message.into(), data: None }
    }

    /// The same, bad.
    pub fn bad(name: impl Into<String>, message: impl Into<String>) -> NewEvent {
        NewEvent { level: Level::Error, ..NewEvent::of(name, message) }
    }

    /// The same, not quite as bad.
    pub fn warning(name: impl Into<String>, message: impl Into<String>) -> NewEvent {
        NewEvent { level: Level::Warn, ..NewEvent::of(name, message) }
    }
}

/// Which rows of a list are asked for: the newest first, or the oldest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The last one of the page before.
    pub after: Option<String>,
    /// The same by its number, which also counts if that one is gone.
    pub behind: Option<i64>,
    /// Rows at most.
    pub limit: usize,
    /// Whether the oldest come first.
    pub is_ascending: bool,
}

/// Rows, and whether there are more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed<T> {
    /// The rows.
    pub rows: Vec<T>,
    /// Whether there are more behind them.
    pub has_more: bool,
    /// The number of the last one.
    pub last: Option<i64>,
}

/// Which jobs are asked for by what clients have attached to them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MetadataFilter {
    /// All.
    #[default]
    All,
    /// Those with nothing attached.
    None,
    /// Those with all of these.
    With(BTreeMap<String, String>),
}

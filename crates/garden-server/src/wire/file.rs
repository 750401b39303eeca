//! Files.

use schemars::JsonSchema;
use serde::Serialize;

use super::{Time, True, constant};
use crate::files::{PURPOSES, RESULTS};
use crate::store::FileRecord;

constant!(FileObject = "file");
constant!(Processed = "processed");

/// A file that a client has sent, or a result of a job.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct File {
    pub id: String,
    pub object: FileObject,
    pub bytes: u64,
    pub created_at: Time,
    /// Its name at the client.
    pub filename: String,
    #[schemars(with = "FilePurpose")]
    pub purpose: String,
    pub status: Processed,
    /// When it is deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Time")]
    pub expires_at: Option<Time>,
}

impl From<&FileRecord> for File {
    fn from(file: &FileRecord) -> File {
        File {
            id: file.id.clone(),
            object: FileObject,
            bytes: file.bytes,
            created_at: Time(file.created_at),
            filename: file.filename.clone(),
            purpose: file.purpose.clone(),
            status: Processed,
            expires_at: file.expires_at.map(Time),
        }
    }
}

/// A file that is deleted.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct DeletedFile {
    id: String,
    object: FileObject,
    deleted: True,
}

impl DeletedFile {
    pub fn of(id: String) -> DeletedFile {
        DeletedFile { id, object: FileObject, deleted: True }
    }
}

/// What a file is for: what clients may say, or that it is a result.
#[expect(dead_code, reason = "records have the text; this describes what it may be")]
#[derive(JsonSchema)]
#[schemars(inline, extend("enum" = purposes()))]
struct FilePurpose(String);

fn purposes() -> Vec<&'static str> {
    PURPOSES.into_iter().chain([RESULTS]).collect()
}

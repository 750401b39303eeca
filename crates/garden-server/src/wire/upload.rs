//! Files that come in parts.

use schemars::JsonSchema;
use serde::Serialize;

use super::{File, Purpose, Time, constant};
use crate::store::{FileRecord, PartRecord, UploadRecord};

constant!(UploadObject = "upload");
constant!(PartObject = "upload.part");

/// A file that comes in parts.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Upload {
    pub id: String,
    pub object: UploadObject,
    /// The length that the file will have.
    pub bytes: u64,
    pub created_at: Time,
    pub filename: String,
    #[schemars(with = "Purpose")]
    pub purpose: String,
    #[schemars(with = "UploadStatus")]
    pub status: String,
    /// When the upload is given up.
    pub expires_at: Time,
    /// The file, once the upload is completed.
    pub file: Option<File>,
}

#[expect(dead_code, reason = "records have the name; this describes which there are")]
#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case", inline)]
enum UploadStatus {
    Pending,
    Completed,
    Cancelled,
}

impl Upload {
    pub fn of(upload: &UploadRecord, file: Option<&FileRecord>) -> Upload {
        Upload {
            id: upload.id.clone(),
            object: UploadObject,
            bytes: upload.bytes,
            created_at: Time(upload.created_at),
            filename: upload.filename.clone(),
            purpose: upload.purpose.clone(),
            status: upload.status.clone(),
            expires_at: Time(upload.expires_at),
            file: file.map(File::from),
        }
    }
}

/// A part of an upload.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Part {
    pub id: String,
    pub object: PartObject,
    pub created_at: Time,
    pub upload_id: String,
}

impl From<&PartRecord> for Part {
    fn from(part: &PartRecord) -> Part {
        Part {
            id: part.id.clone(),
            object: PartObject,
            created_at: Time(part.created_at),
            upload_id: part.upload.clone(),
        }
    }
}

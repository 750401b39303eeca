//! Files, and uploads that come in parts.

use rusqlite::{Connection, OptionalExtension, Row, TransactionBehavior, params};

use super::{
    COUNT, FileRecord, Listed, Page, PartAdded, PartRecord, Store, StoreError, UploadRecord, kept_bytes, note_gone,
    signed,
};

impl Store {
    /// Notes a file that is there; `false` if all of them together would then have more than `quota` bytes.
    pub fn add_file(&self, file: &FileRecord, quota: u64) -> Result<bool, StoreError> {
        let mut connection = self.write();
        let change = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        if kept_bytes(&change)?.saturating_add(file.bytes) > quota {
            return Ok(false);
        }
        insert_file(&change, file)?;
        change.commit()?;
        Ok(true)
    }

    /// A file.
    pub fn file(&self, id: &str) -> Result<Option<FileRecord>, StoreError> {
        let connection = self.read();
        let mut statement = connection.prepare_cached(&format!("SELECT {FILE} FROM files WHERE id = ?"))?;
        Ok(statement.query_row([id], file_of).optional()?)
    }

    /// Files whose time is not over at a moment, perhaps of one purpose.
    pub fn files(&self, page: &Page, purpose: Option<&str>, now: i64) -> Result<Listed<FileRecord>, StoreError> {
        // Those whose time is over are there until they are deleted.
        let mut condition = format!("(expires_at IS NULL OR expires_at > {now})");
        if purpose.is_some() {
            condition += " AND purpose = ?";
        }
        let of = purpose.map(str::to_string).into_iter().collect();
        self.list("files", FILE, page, Some((&condition, of)), file_of)
    }

    /// Forgets a file; whether it was known.
    pub fn delete_file(&self, id: &str) -> Result<bool, StoreError> {
        let mut connection = self.write();
        let write = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        note_gone(&write, "files", id)?;
        let count = write.execute("DELETE FROM files WHERE id = ?", [id])?;
        write.commit()?;
        Ok(count > 0)
    }

    /// Files that have had their time, by the server's count.
    pub fn expired_files(&self) -> Result<Vec<FileRecord>, StoreError> {
        let connection = self.read();
        let sql = format!("SELECT {FILE} FROM files WHERE kept_until <= {COUNT}");
        let mut statement = connection.prepare_cached(&sql)?;
        Ok(statement.query_map([], file_of)?.collect::<Result<_, _>>()?)
    }

    /// Bytes that clients take of the disk: files, parts, folders of jobs, and the database.
    pub fn bytes(&self) -> Result<u64, StoreError> {
        kept_bytes(&self.read())
    }

    /// Notes an upload.
    pub fn add_upload(&self, upload: &UploadRecord) -> Result<(), StoreError> {
        let connection = self.write();
        let mut statement = connection.prepare_cached(
            &format!("INSERT INTO uploads (id, bytes, created_at, filename, purpose, expires_at, status, file, file_expires_after, kept_until)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, {COUNT} + ?)"),
        )?;
        let UploadRecord { id, created_at, filename, purpose, expires_at, status, file, file_expires_after, .. } =
            upload;
        let bytes = signed(upload.bytes);
        statement.execute(params![
            id,
            bytes,
            created_at,
            filename,
            purpose,
            expires_at,
            status,
            file,
            file_expires_after,
            expires_at - created_at
        ])?;
        Ok(())
    }

    /// An upload.
    pub fn upload(&self, id: &str) -> Result<Option<UploadRecord>, StoreError> {
        let connection = self.read();
        let mut statement = connection.prepare_cached(&format!("SELECT {UPLOAD} FROM uploads WHERE id = ?"))?;
        Ok(statement.query_row([id], upload_of).optional()?)
    }

    /// Uploads that nobody has ended in time, by the server's count.
    pub fn expired_uploads(&self) -> Result<Vec<UploadRecord>, StoreError> {
        let connection = self.read();
        let sql = format!("SELECT {UPLOAD} FROM uploads WHERE status = 'pending' AND kept_until <= {COUNT}");
        let mut statement = connection.prepare_cached(&sql)?;
        Ok(statement.query_map([], upload_of)?.collect::<Result<_, _>>()?)
    }

    /// Ends an upload that is pending, and forgets its parts; `false` if it was ended before.
    pub fn end_upload(&self, id: &str, status: &str, file: Option<&FileRecord>) -> Result<bool, StoreError> {
        let mut connection = self.write();
        let change = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let name = file.map(|file| &file.id);
        let sql = "UPDATE uploads SET status = ?, file = ? WHERE id = ? AND status = 'pending'";
        if change.execute(sql, params![status, name, id])? == 0 {
            return Ok(false);
        }
        if let Some(file) = file {
            insert_file(&change, file)?;
        }
        change.execute("DELETE FROM parts WHERE upload = ?", [id])?;
        change.commit()?;
        Ok(true)
    }

    /// Notes a part of an upload.
    pub fn add_part(&self, part: &PartRecord, quota: u64) -> Result<PartAdded, StoreError> {
        let mut connection = self.write();
        let change = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        if kept_bytes(&change)?.saturating_add(part.bytes) > quota {
            return Ok(PartAdded::NoSpace);
        }
        let sql = "INSERT INTO parts (id, upload, bytes, created_at)
                   SELECT ?, id, ?, ? FROM uploads WHERE id = ? AND status = 'pending'";
        if change.execute(sql, params![part.id, signed(part.bytes), part.created_at, part.upload])? == 0 {
            return Ok(PartAdded::NotPending);
        }
        change.commit()?;
        Ok(PartAdded::Yes)
    }

    /// The parts of an upload, in any order.
    pub fn parts(&self, upload: &str) -> Result<Vec<PartRecord>, StoreError> {
        let connection = self.read();
        let mut statement =
            connection.prepare_cached("SELECT id, upload, bytes, created_at FROM parts WHERE upload = ?")?;
        let part = |row: &Row<'_>| {
            let bytes: i64 = row.get(2)?;
            Ok(PartRecord {
                id: row.get(0)?,
                upload: row.get(1)?,
                bytes: bytes.unsigned_abs(),
                created_at: row.get(3)?,
            })
        };
        Ok(statement.query_map([upload], part)?.collect::<Result<_, _>>()?)
    }

    /// Whether a part is known.
    pub fn has_part(&self, id: &str) -> Result<bool, StoreError> {
        Ok(self.read().prepare_cached("SELECT 1 FROM parts WHERE id = ?")?.exists([id])?)
    }
}

const FILE: &str = "id, bytes, created_at, filename, purpose, extension, expires_at";
const UPLOAD: &str = "id, bytes, created_at, filename, purpose, expires_at, status, file, file_expires_after";

fn file_of(row: &Row<'_>) -> rusqlite::Result<FileRecord> {
    Ok(FileRecord {
        id: row.get(0)?,
        bytes: row.get::<_, i64>(1)?.unsigned_abs(),
        created_at: row.get(2)?,
        filename: row.get(3)?,
        purpose: row.get(4)?,
        extension: row.get(5)?,
        expires_at: row.get(6)?,
    })
}

fn upload_of(row: &Row<'_>) -> rusqlite::Result<UploadRecord> {
    Ok(UploadRecord {
        id: row.get(0)?,
        bytes: row.get::<_, i64>(1)?.unsigned_abs(),
        created_at: row.get(2)?,
        filename: row.get(3)?,
        purpose: row.get(4)?,
        expires_at: row.get(5)?,
        status: row.get(6)?,
        file: row.get(7)?,
        file_expires_after: row.get(8)?,
    })
}

fn insert_file(connection: &Connection, file: &FileRecord) -> Result<(), StoreError> {
    let mut statement = connection.prepare_cached(&format!(
        "INSERT INTO files (id, bytes, created_at, filename, purpose, extension, expires_at, kept_until) VALUES (?, ?, ?, ?, ?, ?, ?, {COUNT} + ?)",
    ))?;
    let FileRecord { id, created_at, filename, purpose, extension, expires_at, .. } = file;
    // Nothing without an end: a sum with NULL is NULL.
    let time = expires_at.map(|at| at - created_at);
    statement.execute(params![id, signed(file.bytes), created_at, filename, purpose, extension, expires_at, time])?;
    Ok(())
}

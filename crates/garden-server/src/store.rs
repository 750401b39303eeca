//! Everything that the server has to know after a restart, behind one small interface: files, uploads, jobs and their events.
//!
//! SQLite keeps it. Nothing outside this file knows that, so another database can take its place. Contents of files and traces of memory are files, not rows.

mod records;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::{
    Connection, OpenFlags, OptionalExtension, Params, Row, ToSql, TransactionBehavior, params, params_from_iter,
};
use serde_json::Value;

pub use records::{
    EventRecord, FileRecord, Level, Listed, MetadataFilter, NewEvent, Page, PartAdded, PartRecord, StoreError,
    UploadRecord,
};

use crate::job::{JobRecord, Status};

/// How long a second process with the same database is waited for.
const PATIENCE: Duration = Duration::from_secs(10);
/// The version of the tables.
const VERSION: i64 = 1;

const SCHEMA: &str = "
CREATE TABLE files (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, bytes INTEGER NOT NULL, created_at INTEGER NOT NULL,
    filename TEXT NOT NULL, purpose TEXT NOT NULL, extension TEXT NOT NULL, expires_at INTEGER
);
CREATE TABLE uploads (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, bytes INTEGER NOT NULL, created_at INTEGER NOT NULL,
    filename TEXT NOT NULL, purpose TEXT NOT NULL, expires_at INTEGER NOT NULL, status TEXT NOT NULL, file TEXT,
    file_expires_after INTEGER
);
CREATE TABLE parts (id TEXT PRIMARY KEY, upload TEXT NOT NULL, bytes INTEGER NOT NULL, created_at INTEGER NOT NULL);
CREATE INDEX parts_of_upload ON parts (upload);
CREATE TABLE jobs (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, status TEXT NOT NULL, priority INTEGER NOT NULL,
    result TEXT, record TEXT NOT NULL
);
CREATE INDEX jobs_by_status ON jobs (status, priority DESC, seq);
CREATE UNIQUE INDEX jobs_by_result ON jobs (result) WHERE result IS NOT NULL;
CREATE TABLE metadata (job INTEGER NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (job, name)) WITHOUT ROWID;
CREATE INDEX metadata_by_value ON metadata (name, value, job);
CREATE TABLE events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, job INTEGER NOT NULL, name TEXT NOT NULL, created_at INTEGER NOT NULL,
    level TEXT NOT NULL, message TEXT NOT NULL, data TEXT, UNIQUE (job, name)
);
CREATE INDEX events_of_job ON events (job, seq);
";

/// The database.
#[derive(Debug)]
pub struct Store {
    connection: Mutex<Connection>,
}

impl Store {
    /// Opens the database, or makes it.
    pub fn open(path: &Path) -> Result<Store, StoreError> {
        let mut connection = Connection::open(path)?;
        connection.busy_timeout(PATIENCE)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        // What a client was told is there after a power cut, too.
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "cache_size", -4096)?;
        connection.set_prepared_statement_cache_capacity(64);
        let found: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        match found {
            0 => {
                let making = connection.transaction_with_behavior(TransactionBehavior::Exclusive)?;
                making.execute_batch(SCHEMA)?;
                making.pragma_update(None, "user_version", VERSION)?;
                making.commit()?;
            }
            VERSION => {}
            newer => return Err(StoreError::Newer(newer)),
        }
        Ok(Store { connection: Mutex::new(connection) })
    }

    /// Whether there is a database of ours, whatever its version. Nothing is changed.
    pub fn is_at(path: &Path) -> bool {
        let look = || -> Result<bool, rusqlite::Error> {
            // A connection that writes would recover and close the journal of somebody else's database.
            let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
            connection.busy_timeout(PATIENCE)?;
            let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
            let tables = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name IN ('files', 'uploads', 'parts', 'jobs', 'events')";
            let tables: i64 = connection.query_row(tables, [], |row| row.get(0))?;
            Ok(version > 0 && tables == 5)
        };
        path.is_file() && look().unwrap_or(false)
    }

    /// Whether it knows nothing at all.
    pub fn is_empty(&self) -> Result<bool, StoreError> {
        let any = "SELECT EXISTS (SELECT 1 FROM files) OR EXISTS (SELECT 1 FROM parts) OR EXISTS (SELECT 1 FROM jobs)";
        let any: bool = self.lock().query_row(any, [], |row| row.get(0))?;
        Ok(!any)
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        // Whoever panicked left a transaction that was rolled back.
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // Files.

    /// Notes a file that is there; `false` if all of them together would then have more than `quota` bytes.
    pub fn add_file(&self, file: &FileRecord, quota: u64) -> Result<bool, StoreError> {
        let mut connection = self.lock();
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
        let connection = self.lock();
        let mut statement = connection.prepare_cached(&format!("SELECT {FILE} FROM files WHERE id = ?"))?;
        Ok(statement.query_row([id], file_of).optional()?)
    }

    /// Files, perhaps of one purpose.
    pub fn files(&self, page: &Page, purpose: Option<&str>) -> Result<Listed<FileRecord>, StoreError> {
        let filter = purpose.map(|purpose| ("purpose = ?", vec![purpose.to_string()]));
        self.list("files", FILE, page, filter, file_of)
    }

    /// Forgets a file; whether it was known.
    pub fn delete_file(&self, id: &str) -> Result<bool, StoreError> {
        Ok(self.lock().prepare_cached("DELETE FROM files WHERE id = ?")?.execute([id])? > 0)
    }

    /// Files whose time is over.
    pub fn expired_files(&self, now: i64) -> Result<Vec<FileRecord>, StoreError> {
        let connection = self.lock();
        let mut statement = connection.prepare_cached(&format!("SELECT {FILE} FROM files WHERE expires_at <= ?"))?;
        Ok(statement.query_map([now], file_of)?.collect::<Result<_, _>>()?)
    }

    /// Bytes of all files and parts, and of rows that only a job has left.
    pub fn bytes(&self) -> Result<u64, StoreError> {
        kept_bytes(&self.lock())
    }

    // Uploads.

    /// Notes an upload.
    pub fn add_upload(&self, upload: &UploadRecord) -> Result<(), StoreError> {
        let connection = self.lock();
        let mut statement = connection.prepare_cached(
            "INSERT INTO uploads (id, bytes, created_at, filename, purpose, expires_at, status, file, file_expires_after)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
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
            file_expires_after
        ])?;
        Ok(())
    }

    /// An upload.
    pub fn upload(&self, id: &str) -> Result<Option<UploadRecord>, StoreError> {
        let connection = self.lock();
        let mut statement = connection.prepare_cached(&format!("SELECT {UPLOAD} FROM uploads WHERE id = ?"))?;
        Ok(statement.query_row([id], upload_of).optional()?)
    }

    /// Uploads that nobody has ended in time.
    pub fn expired_uploads(&self, now: i64) -> Result<Vec<UploadRecord>, StoreError> {
        let connection = self.lock();
        let sql = format!("SELECT {UPLOAD} FROM uploads WHERE status = 'pending' AND expires_at <= ?");
        let mut statement = connection.prepare_cached(&sql)?;
        Ok(statement.query_map([now], upload_of)?.collect::<Result<_, _>>()?)
    }

    /// Ends an upload that is pending, and forgets its parts; `false` if it was ended before.
    pub fn end_upload(&self, id: &str, status: &str, file: Option<&FileRecord>) -> Result<bool, StoreError> {
        let mut connection = self.lock();
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
        let mut connection = self.lock();
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
        let connection = self.lock();
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
        Ok(self.lock().prepare_cached("SELECT 1 FROM parts WHERE id = ?")?.exists([id])?)
    }

    // Jobs.

    /// Notes a job and what happened to it first. Where a client has sent the same request before, the job that came of that is given, and nothing is noted.
    pub fn add_job(&self, job: &JobRecord, events: &[NewEvent]) -> Result<Option<JobRecord>, StoreError> {
        let mut connection = self.lock();
        let change = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        if let Some(key) = &job.idempotency_key {
            let known = read_job(&change, "SELECT record FROM jobs WHERE record ->> 'idempotency_key' = ?", key)?;
            if known.is_some() {
                return Ok(known);
            }
        }
        change.execute(
            "INSERT INTO jobs (id, status, priority, result, record) VALUES (?, ?, ?, ?, ?)",
            params![job.id(), job.status.name(), job.priority, job.result_model, serde_json::to_string(job)?],
        )?;
        let seq = change.last_insert_rowid();
        for (name, value) in job.metadata.iter().flatten() {
            change.execute("INSERT INTO metadata (job, name, value) VALUES (?, ?, ?)", params![seq, name, value])?;
        }
        insert_events(&change, job.id(), job.created_at, events)?;
        change.commit()?;
        Ok(None)
    }

    /// A job.
    pub fn job(&self, id: &str) -> Result<Option<JobRecord>, StoreError> {
        read_job(&self.lock(), "SELECT record FROM jobs WHERE id = ?", id)
    }

    /// The job that made a model.
    pub fn job_of_result(&self, model: &str) -> Result<Option<JobRecord>, StoreError> {
        read_job(&self.lock(), "SELECT record FROM jobs WHERE result = ?", model)
    }

    /// The jobs whose names end like this.
    pub fn jobs_ending(&self, end: &str) -> Result<Vec<JobRecord>, StoreError> {
        let connection = self.lock();
        read_jobs(&connection, "SELECT record FROM jobs WHERE substr(id, -length(?1)) = ?1", [end])
    }

    /// Jobs.
    pub fn jobs(&self, page: &Page, filter: &MetadataFilter) -> Result<Listed<JobRecord>, StoreError> {
        let filter = match filter {
            MetadataFilter::All => None,
            MetadataFilter::None => Some(("seq NOT IN (SELECT job FROM metadata)".to_string(), Vec::new())),
            MetadataFilter::With(wanted) => {
                let each = "seq IN (SELECT job FROM metadata WHERE name = ? AND value = ?)";
                let sql = vec![each; wanted.len()].join(" AND ");
                Some((sql, wanted.iter().flat_map(|(name, value)| [name.clone(), value.clone()]).collect()))
            }
        };
        let filter = filter.as_ref().map(|(sql, values)| (sql.as_str(), values.clone()));
        let read = |row: &Row<'_>| row.get::<_, String>(0);
        let listed = self.list("jobs", "record", page, filter, read)?;
        let rows = listed.rows.iter().map(|text| serde_json::from_str(text)).collect::<Result<_, _>>()?;
        Ok(Listed { rows, has_more: listed.has_more })
    }

    /// Jobs of some status, those that come first in front, and no more than `limit`.
    pub fn jobs_with(&self, status: Status, limit: usize) -> Result<Vec<JobRecord>, StoreError> {
        let connection = self.lock();
        let sql = "SELECT record FROM jobs WHERE status = ? ORDER BY priority DESC, seq LIMIT ?";
        read_jobs(&connection, sql, params![status.name(), signed(limit as u64)])
    }

    /// How many jobs there are of each status.
    pub fn job_counts(&self) -> Result<BTreeMap<String, u64>, StoreError> {
        let connection = self.lock();
        let mut statement = connection.prepare_cached("SELECT status, COUNT(*) FROM jobs GROUP BY status")?;
        let count = |row: &Row<'_>| Ok((row.get(0)?, row.get::<_, i64>(1)?.unsigned_abs()));
        Ok(statement.query_map([], count)?.collect::<Result<_, _>>()?)
    }

    /// Models that jobs have made, the newest first.
    pub fn results(&self) -> Result<Vec<JobRecord>, StoreError> {
        let connection = self.lock();
        read_jobs(&connection, "SELECT record FROM jobs WHERE result IS NOT NULL ORDER BY seq DESC", [])
    }

    /// Changes a job and notes what happened, all of it or nothing; the job as it is then. `change` sees it as it is now, and gives the events, or nothing where
    /// there is nothing to change.
    pub fn change_job(
        &self,
        id: &str,
        now: i64,
        change: impl FnOnce(&mut JobRecord) -> Option<Vec<NewEvent>>,
    ) -> Result<Option<JobRecord>, StoreError> {
        let mut connection = self.lock();
        let write = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let Some(mut job) = read_job(&write, "SELECT record FROM jobs WHERE id = ?", id)? else { return Ok(None) };
        if let Some(events) = change(&mut job) {
            let result = job.result_model.as_ref().filter(|_| !job.is_result_deleted);
            write.execute(
                "UPDATE jobs SET status = ?, priority = ?, result = ?, record = ? WHERE id = ?",
                params![job.status.name(), job.priority, result, serde_json::to_string(&job)?, id],
            )?;
            insert_events(&write, id, now, &events)?;
            write.commit()?;
        }
        Ok(Some(job))
    }

    /// Forgets a job and all that is known of it.
    pub fn delete_job(&self, id: &str) -> Result<(), StoreError> {
        let mut connection = self.lock();
        let write = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for table in ["events", "metadata"] {
            write.execute(&format!("DELETE FROM {table} WHERE job = (SELECT seq FROM jobs WHERE id = ?)"), [id])?;
        }
        write.execute("DELETE FROM jobs WHERE id = ?", [id])?;
        write.commit()?;
        Ok(())
    }

    // Events.

    /// Notes events of a job, as one; how many of them are new.
    pub fn add_events(&self, job: &str, now: i64, events: &[NewEvent]) -> Result<usize, StoreError> {
        let mut connection = self.lock();
        let write = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let count = insert_events(&write, job, now, events)?;
        write.commit()?;
        Ok(count)
    }

    /// Events of a job behind one of them: the oldest first, or those before it, the newest first.
    pub fn events(&self, job: &str, page: &Page) -> Result<Listed<EventRecord>, StoreError> {
        let connection = self.lock();
        let after: Option<i64> = page.after.as_deref().and_then(|after| after.parse().ok());
        let (compare, order) = if page.is_ascending { (">", "ASC") } else { ("<", "DESC") };
        let start = after.unwrap_or(if page.is_ascending { -1 } else { i64::MAX });
        let mut statement = connection.prepare_cached(&format!(
            "SELECT seq, created_at, level, message, data FROM events
             WHERE job = (SELECT seq FROM jobs WHERE id = ?) AND seq {compare} ? ORDER BY seq {order} LIMIT ?"
        ))?;
        let event = |row: &Row<'_>| {
            let level = match row.get_ref(2)?.as_str()? {
                "error" => Level::Error,
                "warn" => Level::Warn,
                _ => Level::Info,
            };
            let data: Option<String> = row.get(4)?;
            Ok(EventRecord {
                seq: row.get(0)?,
                created_at: row.get(1)?,
                level,
                message: row.get(3)?,
                data: data.and_then(|text| serde_json::from_str(&text).ok()),
            })
        };
        let found = statement.query_map(params![job, start, signed(page.limit as u64 + 1)], event)?;
        Ok(cut(found.collect::<Result<_, _>>()?, page.limit))
    }

    /// One event of a job by what makes it one of a kind.
    pub fn event_data(&self, job: &str, name: &str) -> Result<Option<(i64, Option<Value>)>, StoreError> {
        let connection = self.lock();
        let mut statement = connection.prepare_cached(
            "SELECT created_at, data FROM events WHERE job = (SELECT seq FROM jobs WHERE id = ?) AND name = ?",
        )?;
        let read = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, Option<String>>(1)?));
        let found = statement.query_row([job, name], read).optional()?;
        Ok(found.map(|(at, data)| (at, data.and_then(|text| serde_json::from_str(&text).ok()))))
    }

    /// A page of a table whose rows have a `seq` and an `id`.
    fn list<T>(
        &self,
        table: &str,
        columns: &str,
        page: &Page,
        filter: Option<(&str, Vec<String>)>,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Listed<T>, StoreError> {
        let (compare, order) = if page.is_ascending { (">", "ASC") } else { ("<", "DESC") };
        let mut conditions = Vec::new();
        let mut values: Vec<Box<dyn ToSql>> = Vec::new();
        if let Some(after) = &page.after {
            // Behind something that is gone, or never was, there is nothing.
            conditions.push(format!("seq {compare} (SELECT seq FROM {table} WHERE id = ?)"));
            values.push(Box::new(after.clone()));
        }
        if let Some((condition, of)) = filter {
            conditions.push(condition.to_string());
            values.extend(of.into_iter().map(|value| Box::new(value) as Box<dyn ToSql>));
        }
        let condition =
            if conditions.is_empty() { String::new() } else { format!("WHERE {}", conditions.join(" AND ")) };
        values.push(Box::new(signed(page.limit as u64 + 1)));
        let connection = self.lock();
        let sql = format!("SELECT {columns} FROM {table} {condition} ORDER BY seq {order} LIMIT ?");
        let mut statement = connection.prepare_cached(&sql)?;
        let rows = statement.query_map(params_from_iter(values), read)?.collect::<Result<Vec<_>, _>>()?;
        Ok(cut(rows, page.limit))
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
    let mut statement = connection.prepare_cached(
        "INSERT INTO files (id, bytes, created_at, filename, purpose, extension, expires_at) VALUES (?, ?, ?, ?, ?, ?, ?)",
    )?;
    let FileRecord { id, created_at, filename, purpose, extension, expires_at, .. } = file;
    statement.execute(params![id, signed(file.bytes), created_at, filename, purpose, extension, expires_at])?;
    Ok(())
}

fn insert_events(connection: &Connection, job: &str, now: i64, events: &[NewEvent]) -> Result<usize, StoreError> {
    let mut statement = connection.prepare_cached(
        "INSERT OR IGNORE INTO events (job, name, created_at, level, message, data)
         SELECT seq, ?, ?, ?, ?, ? FROM jobs WHERE id = ?",
    )?;
    let mut count = 0;
    for event in events {
        let data = event.data.as_ref().map(Value::to_string);
        let NewEvent { name, level, message, .. } = event;
        count += statement.execute(params![name, now, level.name(), message, data, job])?;
    }
    Ok(count)
}

/// Rows of a job are second names of its files: they take space of their own once those are deleted.
fn kept_bytes(connection: &Connection) -> Result<u64, StoreError> {
    let sum = "SELECT (SELECT COALESCE(SUM(bytes), 0) FROM files) + (SELECT COALESCE(SUM(bytes), 0) FROM parts)
               + (SELECT COALESCE(SUM(record ->> 'rows_bytes'), 0) FROM jobs
                  WHERE status IN ('validating_files', 'queued', 'running', 'paused')
                  AND record ->> 'training_file' NOT IN (SELECT id FROM files))";
    let bytes: i64 = connection.prepare_cached(sum)?.query_row([], |row| row.get(0))?;
    Ok(bytes.unsigned_abs())
}

fn read_job(connection: &Connection, sql: &str, by: &str) -> Result<Option<JobRecord>, StoreError> {
    let text: Option<String> = connection.prepare_cached(sql)?.query_row([by], |row| row.get(0)).optional()?;
    Ok(text.map(|text| serde_json::from_str(&text)).transpose()?)
}

fn read_jobs(connection: &Connection, sql: &str, by: impl Params) -> Result<Vec<JobRecord>, StoreError> {
    let mut statement = connection.prepare_cached(sql)?;
    let texts = statement.query_map(by, |row| row.get::<_, String>(0))?.collect::<Result<Vec<_>, _>>()?;
    Ok(texts.iter().map(|text| serde_json::from_str(text)).collect::<Result<_, _>>()?)
}

/// Rows up to the limit, and whether there was one more.
fn cut<T>(mut rows: Vec<T>, limit: usize) -> Listed<T> {
    let has_more = rows.len() > limit;
    rows.truncate(limit);
    Listed { rows, has_more }
}

/// SQLite's numbers have a sign.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;

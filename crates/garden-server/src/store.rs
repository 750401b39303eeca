//! Everything that the server has to know after a restart, behind one small interface: files, uploads, jobs and their events.
//!
//! SQLite keeps it. Nothing outside this folder knows that, so another database can take its place. Contents of files and traces of memory are files, not rows.
//!
//! One connection writes; a few others read, and in the write-ahead log's mode neither side waits for the other. A job's record is JSON in a column; what lists, the queue and
//! the quota ask for has columns of its own, so one record that cannot be read spoils nothing but itself.

mod events;
mod files;
mod jobs;
mod migrations;
mod records;

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension as _, Row, ToSql, params_from_iter};

pub use records::{
    Added, Contents, Entry, EventRecord, FileRecord, Level, Listed, MetadataFilter, NewEvent, Page, PartAdded,
    PartRecord, RequestKey, ResultRecord, StoreError, Unreadable, UploadRecord,
};

/// How long a second process with the same database is waited for.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pages that are worth it.
const LEAST_TO_SHRINK: i64 = 256;
/// Connections that read at the same time.
const READERS: usize = 6;
/// Kibibytes of the database that a connection keeps in memory: the writer, and each reader.
const CACHE: (i64, i64) = (4096, 512);

/// The database.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    writer: Mutex<Connection>,
    readers: Vec<Mutex<Connection>>,
    /// The reader that the next one waits for when all are busy.
    next: AtomicUsize,
}

impl Store {
    /// Opens the database, brings it to this version's tables, or makes it. One that is damaged is not changed.
    pub fn open(path: &Path) -> Result<Store, StoreError> {
        check_whole(path)?;
        let mut writer = connect(path, CACHE.0)?;
        // What a client was told is there after a power cut, too.
        writer.pragma_update(None, "synchronous", "FULL")?;
        migrations::bring_up(&mut writer)?;
        let readers = (0..READERS).map(|_| {
            let reader = connect(path, CACHE.1)?;
            reader.pragma_update(None, "query_only", true)?;
            Ok(Mutex::new(reader))
        });
        let readers = readers.collect::<Result<_, StoreError>>()?;
        Ok(Store { path: path.to_path_buf(), writer: Mutex::new(writer), readers, next: AtomicUsize::new(0) })
    }

    /// Whether there is a database of ours, whatever its version. Nothing is changed.
    pub fn is_at(path: &Path) -> bool {
        let look = || -> Result<bool, rusqlite::Error> {
            // A connection that writes would recover and close the journal of somebody else's database, and any but one of a file that does not change would begin a journal.
            let has_journal = journal_of(path).exists();
            let uri = if has_journal { uri_of(path) } else { uri_of(path) + "?immutable=1" };
            let connection =
                Connection::open_with_flags(uri, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI)?;
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
        let any: bool = self.read().query_row(any, [], |row| row.get(0))?;
        Ok(!any)
    }

    /// How many changes of files, uploads and jobs there ever were, deletions among them. The number only grows.
    pub fn changes(&self) -> Result<u64, StoreError> {
        let connection = self.read();
        let mut statement = connection.prepare_cached("SELECT count FROM changes")?;
        Ok(statement.query_row([], |row| row.get::<_, i64>(0))?.unsigned_abs())
    }

    /// Whether it answers; an error says why not.
    pub fn check(&self) -> Result<(), StoreError> {
        // It reads a page of each, and anew: what a connection has read before it does not ask the file for.
        let connection = Connection::open_with_flags(&self.path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        let sql = "SELECT (SELECT count(*) FROM (SELECT 1 FROM jobs LIMIT 1)) + (SELECT count(*) FROM (SELECT 1 FROM files LIMIT 1))";
        connection.query_row(sql, [], |_| Ok(()))?;
        Ok(())
    }

    /// Writes a consistent copy of a database to a new file, while others read and write it; the names of what it knows. The database is not changed, also not if it
    /// is of another version.
    pub fn copy(path: &Path, to: &Path) -> Result<Contents, StoreError> {
        let database = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        database.busy_timeout(PATIENCE)?;
        let target = to.to_str().ok_or(rusqlite::Error::InvalidPath(to.to_path_buf()))?;
        database.execute("VACUUM INTO ?", [target])?;
        let copy = Connection::open_with_flags(to, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        let names = |sql: &str| -> Result<Vec<String>, StoreError> {
            let mut statement = copy.prepare(sql)?;
            Ok(statement.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?)
        };
        Ok(Contents {
            files: names("SELECT id || '.' || extension FROM files ORDER BY seq")?,
            parts: names("SELECT id FROM parts ORDER BY id")?,
            jobs: names("SELECT id FROM jobs ORDER BY seq")?,
        })
    }

    /// Gives pages that nothing uses any more back to the disk, once there are many.
    pub fn shrink(&self) -> Result<(), StoreError> {
        let writer = self.write();
        let free: i64 = writer.pragma_query_value(None, "freelist_count", |row| row.get(0))?;
        if free < LEAST_TO_SHRINK {
            return Ok(());
        }
        // Each row it gives is a page that went back.
        let mut statement = writer.prepare("PRAGMA incremental_vacuum")?;
        let mut rows = statement.query([])?;
        while rows.next()?.is_some() {}
        drop(rows);
        drop(statement);
        writer.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
        Ok(())
    }

    fn write(&self) -> MutexGuard<'_, Connection> {
        // Whoever panicked left a transaction that was rolled back.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection that only reads: one that is free, else the next in turn.
    fn read(&self) -> MutexGuard<'_, Connection> {
        for reader in &self.readers {
            match reader.try_lock() {
                Ok(reader) => return reader,
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => {}
            }
        }
        let next = self.next.fetch_add(1, Ordering::Relaxed) % self.readers.len();
        self.readers[next].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of something that is there, or was until lately.
    fn seq_of(&self, table: &str, id: &str) -> Result<i64, StoreError> {
        let connection = self.read();
        for table in [table, "gone"] {
            let mut statement = connection.prepare_cached(&format!("SELECT seq FROM {table} WHERE id = ?"))?;
            if let Some(seq) = statement.query_row([id], |row| row.get(0)).optional()? {
                return Ok(seq);
            }
        }
        Err(StoreError::NoSuchPlace)
    }

    /// A page of a table whose rows have a `seq` and an `id`.
    fn list<T>(
        &self,
        table: &str,
        columns: &str,
        page: &Page,
        filter: Option<(&str, Vec<String>)>,
        mut read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Listed<T>, StoreError> {
        let (compare, order) = if page.is_ascending { (">", "ASC") } else { ("<", "DESC") };
        let mut conditions = Vec::new();
        let mut values: Vec<Box<dyn ToSql>> = Vec::new();
        if let Some(behind) = page.behind {
            conditions.push(format!("seq {compare} ?"));
            values.push(Box::new(behind));
        } else if let Some(after) = &page.after {
            conditions.push(format!("seq {compare} ?"));
            values.push(Box::new(self.seq_of(table, after)?));
        }
        if let Some((condition, of)) = filter {
            conditions.push(condition.to_string());
            values.extend(of.into_iter().map(|value| Box::new(value) as Box<dyn ToSql>));
        }
        let condition =
            if conditions.is_empty() { String::new() } else { format!("WHERE {}", conditions.join(" AND ")) };
        values.push(Box::new(signed(page.limit as u64 + 1)));
        let connection = self.read();
        let sql = format!("SELECT {columns}, seq FROM {table} {condition} ORDER BY seq {order} LIMIT ?");
        let mut statement = connection.prepare_cached(&sql)?;
        let last = statement.column_count() - 1;
        let rows = statement.query_map(params_from_iter(values), |row| Ok((row.get(last)?, read(row)?)))?;
        let rows = rows.collect::<Result<Vec<_>, _>>()?;
        Ok(cut(rows, page.limit))
    }
}

/// The seconds for which servers of this folder have run, as far as they were counted. What is kept for a time is kept by these: a clock that jumps would make everything
/// old at once, or keep it for ever.
const COUNT: &str = "(SELECT seconds FROM clock)";

/// Remembers where something was.
fn note_gone(connection: &Connection, table: &str, id: &str) -> Result<(), StoreError> {
    let sql =
        format!("INSERT OR REPLACE INTO gone (id, seq, counted_at) SELECT id, seq, {COUNT} FROM {table} WHERE id = ?");
    connection.prepare_cached(&sql)?.execute([id])?;
    Ok(())
}

/// The write-ahead log beside a database.
fn journal_of(path: &Path) -> PathBuf {
    let mut journal = path.as_os_str().to_owned();
    journal.push("-wal");
    journal.into()
}

/// A path as SQLite's options are added to it: no letter of it is one of theirs.
fn uri_of(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes().iter();
    let letters = bytes.map(|byte| match byte {
        b'/' | b'.' | b'-' | b'_' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => char::from(*byte).to_string(),
        other => format!("%{other:02X}"),
    });
    std::iter::once("file:".to_string()).chain(letters).collect()
}

/// Looks at all pages of a database, as far as there is one: one that was copied half, or that a disk has damaged, would fail later, and with what a client was told to be kept.
fn check_whole(path: &Path) -> Result<(), StoreError> {
    if std::fs::metadata(path).map_or(0, |found| found.len()) == 0 {
        return Ok(());
    }
    let look = || -> Result<String, rusqlite::Error> {
        // A connection that writes would put its journal into the damaged pages when it is closed.
        let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        connection.busy_timeout(PATIENCE)?;
        connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
    };
    match look() {
        Ok(answer) if answer == "ok" => Ok(()),
        Ok(problem) => Err(StoreError::Damaged(problem)),
        Err(rusqlite::Error::SqliteFailure(failure, words))
            if matches!(failure.code, ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) =>
        {
            Err(StoreError::Damaged(words.unwrap_or_else(|| failure.to_string())))
        }
        Err(error) => Err(error.into()),
    }
}

/// Opens the database for reading and writing.
fn connect(path: &Path, cache_kib: i64) -> Result<Connection, StoreError> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(PATIENCE)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "cache_size", -cache_kib)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

/// Bytes of a database that knows nothing, and a little more.
const EMPTY: u64 = 256 << 10;

/// Bytes that clients take of the disk: files, parts of uploads, folders of jobs as they were last measured, and what the database has become larger by.
fn kept_bytes(connection: &Connection) -> Result<u64, StoreError> {
    let sum = "SELECT (SELECT COALESCE(SUM(bytes), 0) FROM files) + (SELECT COALESCE(SUM(bytes), 0) FROM parts)
               + (SELECT COALESCE(SUM(disk_bytes), 0) FROM jobs),
               (SELECT (page_count - freelist_count) * page_size FROM pragma_page_count(), pragma_freelist_count(), pragma_page_size())";
    let read = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?.unsigned_abs(), row.get::<_, i64>(1)?.unsigned_abs()));
    let (kept, database) = connection.prepare_cached(sum)?.query_row([], read)?;
    Ok(kept + database.saturating_sub(EMPTY))
}

/// Rows up to the limit, and whether there was one more. Each comes with its number in the table.
fn cut<T>(mut rows: Vec<(i64, T)>, limit: usize) -> Listed<T> {
    let has_more = rows.len() > limit;
    rows.truncate(limit);
    let last = rows.last().map(|(seq, _)| *seq);
    Listed { rows: rows.into_iter().map(|(_, row)| row).collect(), has_more, last }
}

/// SQLite's numbers have a sign.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;

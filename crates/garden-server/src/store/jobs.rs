//! Jobs, and requests that made one.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension, Params, Row, TransactionBehavior, params};

use super::events::insert_events;
use super::{
    Added, COUNT, Entry, Listed, MetadataFilter, NewEvent, Page, RequestKey, ResultRecord, Store, StoreError,
    Unreadable, note_gone, signed,
};
use crate::job::{JobRecord, Status};

/// What a record is read from.
const RECORD: &str = "id, created_at, finished_at, base, record";

impl Store {
    /// Notes a job and what happened to it first, unless the same request has made one before.
    pub fn add_job(
        &self,
        job: &JobRecord,
        events: &[NewEvent],
        request: Option<&RequestKey>,
    ) -> Result<Added, StoreError> {
        let mut connection = self.write();
        let change = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        if let Some(known) = request.map(|request| earlier(&change, request)).transpose()?.flatten() {
            return Ok(known);
        }
        change.execute(
            "INSERT INTO jobs (id, status, priority, result, record, created_at, finished_at, base, line) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            params![
                job.id(),
                job.status.name(),
                job.priority,
                job.result_model,
                serde_json::to_string(job)?,
                job.created_at,
                job.finished_at,
                job.base,
                line_of(job)
            ],
        )?;
        let seq = change.last_insert_rowid();
        for (name, value) in job.metadata.iter().flatten() {
            change.execute("INSERT INTO metadata (job, name, value) VALUES (?, ?, ?)", params![seq, name, value])?;
        }
        if let Some(RequestKey { owner, key, digest }) = request {
            change.execute(
                &format!(
                    "INSERT OR REPLACE INTO requests (owner, key, digest, job, counted_at) VALUES (?, ?, ?, ?, {COUNT})"
                ),
                params![owner, key, digest, job.id()],
            )?;
        }
        insert_events(&change, job.id(), job.created_at, events)?;
        change.commit()?;
        Ok(Added::New)
    }

    /// What a request with this key has made before, if one came.
    pub fn earlier(&self, request: &RequestKey) -> Result<Option<Added>, StoreError> {
        earlier(&self.read(), request)
    }

    /// Forgets keys of requests, uploads that are over, and where something was, that are older than this many seconds.
    pub fn forget_requests(&self, age: u64) -> Result<(), StoreError> {
        let connection = self.write();
        for what in
            ["requests WHERE counted_at", "gone WHERE counted_at", "uploads WHERE status <> 'pending' AND kept_until"]
        {
            connection.prepare_cached(&format!("DELETE FROM {what} < {COUNT} - ?"))?.execute([signed(age)])?;
        }
        Ok(())
    }

    /// A job.
    pub fn job(&self, id: &str) -> Result<Option<JobRecord>, StoreError> {
        read_job(&self.read(), &format!("SELECT {RECORD} FROM jobs WHERE id = ?"), id)
    }

    /// Whether a job is known, also if its record cannot be read.
    pub fn has_job(&self, id: &str) -> Result<bool, StoreError> {
        Ok(self.read().prepare_cached("SELECT 1 FROM jobs WHERE id = ?")?.exists([id])?)
    }

    /// The job that made a model.
    pub fn job_of_result(&self, model: &str) -> Result<Option<JobRecord>, StoreError> {
        read_job(&self.read(), &format!("SELECT {RECORD} FROM jobs WHERE result = ?"), model)
    }

    /// The jobs whose names end with these eight letters.
    pub fn jobs_ending(&self, end: &str) -> Result<Vec<JobRecord>, StoreError> {
        let sql = format!("SELECT {RECORD} FROM jobs WHERE substr(id, -8) = ?");
        Ok(readable(entries(&self.read(), &sql, [end])?))
    }

    /// Jobs.
    pub fn jobs(&self, page: &Page, filter: &MetadataFilter) -> Result<Listed<Entry>, StoreError> {
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
        self.list("jobs", RECORD, page, filter, entry_of)
    }

    /// Jobs of some status, those that come first in front, and no more than `limit`.
    pub fn jobs_with(&self, status: Status, limit: usize) -> Result<Vec<Entry>, StoreError> {
        let sql = format!("SELECT {RECORD} FROM jobs WHERE status = ? ORDER BY priority DESC, seq LIMIT ?");
        entries(&self.read(), &sql, params![status.name(), signed(limit as u64)])
    }

    /// Jobs of a status that wait, those that come first in front: the first of each line, so that a long one hides no other. There are no more than `limit`.
    pub fn first_of_lines(&self, status: Status, of_each: usize, limit: usize) -> Result<Vec<Entry>, StoreError> {
        // The index has all that the inner part asks for: records may be large.
        let sql = format!(
            "SELECT {RECORD} FROM jobs JOIN (
                 SELECT seq AS chosen FROM (
                     SELECT seq, priority, row_number() OVER (PARTITION BY line ORDER BY priority DESC, seq) AS place FROM jobs WHERE status = ?1
                 ) WHERE place <= ?2 ORDER BY place, priority DESC, seq LIMIT ?3
             ) ON seq = chosen ORDER BY priority DESC, seq"
        );
        entries(&self.read(), &sql, params![status.name(), signed(of_each as u64), signed(limit as u64)])
    }

    /// How many jobs there are of each status.
    pub fn job_counts(&self) -> Result<BTreeMap<String, u64>, StoreError> {
        let connection = self.read();
        let mut statement = connection.prepare_cached("SELECT status, COUNT(*) FROM jobs GROUP BY status")?;
        let count = |row: &Row<'_>| Ok((row.get(0)?, row.get::<_, i64>(1)?.unsigned_abs()));
        Ok(statement.query_map([], count)?.collect::<Result<_, _>>()?)
    }

    /// Models that can be used, the newest first. Records, which may be large, are not read for it.
    pub fn results(&self, page: &Page) -> Result<Listed<ResultRecord>, StoreError> {
        let columns = "result, id, base, COALESCE(finished_at, created_at)";
        let read = |row: &Row<'_>| {
            Ok(ResultRecord { model: row.get(0)?, job: row.get(1)?, base: row.get(2)?, created_at: row.get(3)? })
        };
        self.list("jobs", columns, page, Some(("result IS NOT NULL", Vec::new())), read)
    }

    /// Counts seconds for which the server has run; how many there are. Jobs that have ended meanwhile are kept from now on.
    pub fn count_time(&self, seconds: u64) -> Result<u64, StoreError> {
        let mut connection = self.write();
        let change = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        change.prepare_cached("UPDATE clock SET seconds = seconds + ?")?.execute([signed(seconds)])?;
        let now: i64 = change.prepare_cached(&format!("SELECT {COUNT}"))?.query_row([], |row| row.get(0))?;
        let new =
            "UPDATE jobs SET kept_from = ? WHERE kept_from IS NULL AND finished_at IS NOT NULL AND NOT is_trimmed";
        change.prepare_cached(new)?.execute([now])?;
        change.commit()?;
        Ok(now.unsigned_abs())
    }

    /// Jobs that have been over since before a moment of that count and of which more than a model is left, the oldest first.
    pub fn kept_before(&self, moment: i64, limit: usize) -> Result<Vec<JobRecord>, StoreError> {
        let sql = format!(
            "SELECT {RECORD} FROM jobs WHERE kept_from < ? AND finished_at IS NOT NULL AND NOT is_trimmed ORDER BY kept_from"
        );
        let connection = self.read();
        let mut statement = connection.prepare_cached(&sql)?;
        // Those that cannot be read stay, and do not stand before the others.
        let readable = statement.query_map([moment], entry_of)?.filter_map(|entry| match entry {
            Ok(Ok(job)) => Some(Ok(*job)),
            Ok(Err(_)) => None,
            Err(error) => Some(Err(error)),
        });
        Ok(readable.take(limit).collect::<Result<_, _>>()?)
    }

    /// Changes a job and notes what happened, all of it or nothing; the job as it is then. `change` sees it as it is now, and gives the events, or nothing where
    /// there is nothing to change.
    pub fn change_job(
        &self,
        id: &str,
        now: i64,
        change: impl FnOnce(&mut JobRecord) -> Option<Vec<NewEvent>>,
    ) -> Result<Option<JobRecord>, StoreError> {
        let mut connection = self.write();
        let write = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let found = read_job(&write, &format!("SELECT {RECORD} FROM jobs WHERE id = ?"), id)?;
        let Some(mut job) = found else { return Ok(None) };
        if let Some(events) = change(&mut job) {
            let result = job.result_model.as_ref().filter(|_| !job.is_result_deleted);
            write.execute(
                "UPDATE jobs SET status = ?, priority = ?, result = ?, record = ?, finished_at = ?, is_trimmed = ?, line = ? WHERE id = ?",
                params![job.status.name(), job.priority, result, serde_json::to_string(&job)?, job.finished_at,
                    job.is_trimmed && !job.is_result_deleted, line_of(&job), id],
            )?;
            insert_events(&write, id, now, &events)?;
            write.commit()?;
        }
        Ok(Some(job))
    }

    /// Forgets a job and all that is known of it; whether it was known.
    pub fn delete_job(&self, id: &str) -> Result<bool, StoreError> {
        let mut connection = self.write();
        let write = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        note_gone(&write, "jobs", id)?;
        for table in ["events", "metadata"] {
            write.execute(&format!("DELETE FROM {table} WHERE job = (SELECT seq FROM jobs WHERE id = ?)"), [id])?;
        }
        write.execute("DELETE FROM requests WHERE job = ?", [id])?;
        let count = write.execute("DELETE FROM jobs WHERE id = ?", [id])?;
        write.commit()?;
        Ok(count > 0)
    }

    // The disk.

    /// Notes how many bytes a job's folder takes of the disk; `None` to have it measured anew.
    pub fn note_disk(&self, id: &str, bytes: Option<u64>) -> Result<(), StoreError> {
        let sql = "UPDATE jobs SET disk_bytes = ?1 WHERE id = ?2 AND disk_bytes IS NOT ?1";
        self.write().prepare_cached(sql)?.execute(params![bytes.map(signed), id])?;
        Ok(())
    }

    /// Names of jobs whose folders were not measured yet.
    pub fn not_measured(&self, limit: usize) -> Result<Vec<String>, StoreError> {
        let connection = self.read();
        let mut statement = connection.prepare_cached("SELECT id FROM jobs WHERE disk_bytes IS NULL LIMIT ?")?;
        Ok(statement.query_map([signed(limit as u64)], |row| row.get(0))?.collect::<Result<_, _>>()?)
    }
}

/// The line in which a job waits: its client's, by what it waits for besides its turn. One whose files are being looked at has had its turn.
fn line_of(job: &JobRecord) -> String {
    let hold = job.hold.map(|hold| serde_json::to_value(hold).unwrap_or_default());
    match job.status {
        Status::ValidatingFiles if job.starts > 0 => "begun".to_string(),
        _ => format!("{}\n{}", job.owner, hold.as_ref().and_then(|hold| hold.as_str()).unwrap_or_default()),
    }
}

/// What an earlier request with the same key has made.
fn earlier(connection: &Connection, request: &RequestKey) -> Result<Option<Added>, StoreError> {
    // Keys of version 1 belonged to nobody.
    let sql = "SELECT job, digest FROM requests WHERE owner IN (?, '') AND key = ? ORDER BY owner DESC";
    let read = |row: &Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?));
    let known = connection.prepare_cached(sql)?.query_row([&request.owner, &request.key], read).optional()?;
    let Some((job, digest)) = known else { return Ok(None) };
    // Version 1 kept no digests.
    if !digest.is_empty() && digest != request.digest {
        return Ok(Some(Added::OtherBody));
    }
    let job = read_job(connection, &format!("SELECT {RECORD} FROM jobs WHERE id = ?"), &job)?;
    Ok(job.map(|job| Added::Known(Box::new(job))))
}

fn entry_of(row: &Row<'_>) -> rusqlite::Result<Entry> {
    let (id, created_at): (String, i64) = (row.get(0)?, row.get(1)?);
    // Anything may be in a database that a person or a half-written disk has touched.
    let (finished_at, base) = (row.get(2).unwrap_or_default(), row.get(3).unwrap_or_default());
    let record = row.get_ref(4)?;
    let text = record.as_str().map_err(|error| error.to_string());
    let read = text.and_then(|text| serde_json::from_str::<JobRecord>(text).map_err(|error| error.to_string()));
    let read = read.and_then(|job| if job.id() == id { Ok(job) } else { Err("it is of another job".to_string()) });
    Ok(read.map(Box::new).map_err(|problem| Unreadable { id, created_at, finished_at, base, problem }))
}

fn read_job(connection: &Connection, sql: &str, by: &str) -> Result<Option<JobRecord>, StoreError> {
    match connection.prepare_cached(sql)?.query_row([by], entry_of).optional()? {
        None => Ok(None),
        Some(Ok(job)) => Ok(Some(*job)),
        Some(Err(unreadable)) => Err(StoreError::Unreadable(unreadable)),
    }
}

fn entries(connection: &Connection, sql: &str, by: impl Params) -> Result<Vec<Entry>, StoreError> {
    let mut statement = connection.prepare_cached(sql)?;
    Ok(statement.query_map(by, entry_of)?.collect::<Result<_, _>>()?)
}

fn readable(entries: Vec<Entry>) -> Vec<JobRecord> {
    entries.into_iter().filter_map(|entry| entry.ok().map(|job| *job)).collect()
}

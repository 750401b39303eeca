//! The tables, as steps from one version to the next. A database of any earlier version is brought up when it is opened; one of a later version is left alone.

use rusqlite::{Connection, TransactionBehavior};

use super::StoreError;

/// Step N brings version N to version N + 1. A step that was released never changes again.
const STEPS: [&str; 5] = [FIRST, SECOND, THIRD, FOURTH, FIFTH];

/// The version of the tables.
pub(super) const VERSION: i64 = STEPS.len() as i64;

/// 0.1.0.
pub(super) const FIRST: &str = "
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

/// What quota, retention and repeated requests ask for gets columns and tables of its own; before, each of them read every record. Where something was that is gone
/// is known for a while, so that a client that deletes what it lists goes on from there. The keys of earlier requests
/// belonged to nobody and had no digest of their body.
const SECOND: &str = "
ALTER TABLE jobs ADD COLUMN created_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN finished_at INTEGER;
ALTER TABLE jobs ADD COLUMN disk_bytes INTEGER;
ALTER TABLE jobs ADD COLUMN base TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN is_trimmed INTEGER NOT NULL DEFAULT 0;
UPDATE jobs SET created_at = COALESCE(record ->> 'created_at', 0), finished_at = record ->> 'finished_at', base = COALESCE(record ->> 'base', '')
    WHERE json_valid(record);
CREATE INDEX jobs_by_end ON jobs (finished_at) WHERE finished_at IS NOT NULL AND NOT is_trimmed;
CREATE INDEX jobs_by_name_end ON jobs (substr(id, -8));
CREATE INDEX jobs_by_size ON jobs (disk_bytes);
CREATE INDEX files_by_expiry ON files (expires_at) WHERE expires_at IS NOT NULL;
CREATE TABLE gone (id TEXT PRIMARY KEY, seq INTEGER NOT NULL, at INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX gone_by_time ON gone (at);
CREATE TABLE requests (
    owner TEXT NOT NULL, key TEXT NOT NULL, digest TEXT NOT NULL, job TEXT NOT NULL, created_at INTEGER NOT NULL, PRIMARY KEY (owner, key)
) WITHOUT ROWID;
CREATE INDEX requests_by_time ON requests (created_at);
CREATE INDEX requests_of_job ON requests (job);
INSERT OR IGNORE INTO requests (owner, key, digest, job, created_at)
    SELECT '', record ->> 'idempotency_key', '', id, created_at FROM jobs WHERE json_valid(record) AND record ->> 'idempotency_key' IS NOT NULL;
";

/// Jobs that wait stand in lines (see `line_of` in jobs.rs). How long a job has been over is counted by the server itself, which a clock that jumps does not change.
const THIRD: &str = "
ALTER TABLE jobs ADD COLUMN line TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN kept_from INTEGER;
UPDATE jobs SET line = CASE WHEN status = 'validating_files' AND COALESCE(record ->> 'starts', 0) > 0 THEN 'begun'
        ELSE COALESCE(record ->> 'owner', '') || char(10) || COALESCE(record ->> 'hold', '') END
    WHERE status IN ('validating_files', 'queued') AND json_valid(record);
CREATE INDEX jobs_in_line ON jobs (status, line, priority DESC, seq);
DROP INDEX jobs_by_end;
CREATE INDEX jobs_by_age ON jobs (kept_from) WHERE finished_at IS NOT NULL AND NOT is_trimmed;
CREATE TABLE clock (seconds INTEGER NOT NULL);
INSERT INTO clock (seconds) VALUES (0);
";

/// Files, uploads and keys of requests are kept by the same count. What had been kept by the clock until now has the rest of its time, or all of it once more.
const FOURTH: &str = "
ALTER TABLE files ADD COLUMN kept_until INTEGER;
UPDATE files SET kept_until = (SELECT seconds FROM clock) + MAX(0, expires_at - CAST(strftime('%s', 'now') AS INTEGER)) WHERE expires_at IS NOT NULL;
DROP INDEX files_by_expiry;
CREATE INDEX files_by_expiry ON files (kept_until) WHERE kept_until IS NOT NULL;
ALTER TABLE uploads ADD COLUMN kept_until INTEGER NOT NULL DEFAULT 0;
UPDATE uploads SET kept_until = (SELECT seconds FROM clock) + expires_at - created_at;
ALTER TABLE requests RENAME COLUMN created_at TO counted_at;
UPDATE requests SET counted_at = (SELECT seconds FROM clock);
ALTER TABLE gone RENAME COLUMN at TO counted_at;
UPDATE gone SET counted_at = (SELECT seconds FROM clock);
";

/// Changes are counted in the transactions that make them, so that an older copy of the database is known by its lower count. Not counted is what the server finds again by
/// itself: events, which are in the logs of jobs, sizes, and the time that it has run.
const FIFTH: &str = "
CREATE TABLE changes (count INTEGER NOT NULL);
INSERT INTO changes SELECT COALESCE(SUM(seq), 0) FROM sqlite_sequence WHERE name IN ('files', 'uploads', 'jobs');
CREATE TRIGGER file_added AFTER INSERT ON files BEGIN UPDATE changes SET count = count + 1; END;
CREATE TRIGGER file_deleted AFTER DELETE ON files BEGIN UPDATE changes SET count = count + 1; END;
CREATE TRIGGER upload_added AFTER INSERT ON uploads BEGIN UPDATE changes SET count = count + 1; END;
CREATE TRIGGER upload_ended AFTER UPDATE OF status ON uploads BEGIN UPDATE changes SET count = count + 1; END;
CREATE TRIGGER part_added AFTER INSERT ON parts BEGIN UPDATE changes SET count = count + 1; END;
CREATE TRIGGER job_added AFTER INSERT ON jobs BEGIN UPDATE changes SET count = count + 1; END;
CREATE TRIGGER job_changed AFTER UPDATE OF record ON jobs BEGIN UPDATE changes SET count = count + 1; END;
CREATE TRIGGER job_deleted AFTER DELETE ON jobs BEGIN UPDATE changes SET count = count + 1; END;
";

/// `PRAGMA auto_vacuum`: pages go back to the disk when they are asked to.
const INCREMENTAL: i64 = 2;

/// Brings a database to this version's tables, all steps or none.
pub(super) fn bring_up(connection: &mut Connection) -> Result<(), StoreError> {
    let found: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let steps = usize::try_from(found).ok().and_then(|found| STEPS.get(found..)).ok_or(StoreError::Newer(found))?;
    if found == 0 {
        // Only a database without tables takes it at once.
        connection.pragma_update(None, "auto_vacuum", INCREMENTAL)?;
    }
    if !steps.is_empty() {
        let change = connection.transaction_with_behavior(TransactionBehavior::Exclusive)?;
        for step in steps {
            change.execute_batch(step)?;
        }
        change.pragma_update(None, "user_version", VERSION)?;
        change.commit()?;
    }
    let vacuum: i64 = connection.pragma_query_value(None, "auto_vacuum", |row| row.get(0))?;
    if vacuum != INCREMENTAL {
        connection.pragma_update(None, "auto_vacuum", INCREMENTAL)?;
        // It needs the database's size once more on the disk; without that it stays as large as it was.
        drop(connection.execute_batch("VACUUM"));
    }
    Ok(())
}

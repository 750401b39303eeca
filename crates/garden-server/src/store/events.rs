//! What happened to jobs.

use rusqlite::{Connection, OptionalExtension, Row, TransactionBehavior, params};
use serde_json::Value;

use super::{EventRecord, Level, Listed, NewEvent, Page, Store, StoreError, cut, signed};

impl Store {
    /// Notes events of a job, as one; how many of them are new.
    pub fn add_events(&self, job: &str, now: i64, events: &[NewEvent]) -> Result<usize, StoreError> {
        let mut connection = self.write();
        let write = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let count = insert_events(&write, job, now, events)?;
        write.commit()?;
        Ok(count)
    }

    /// Forgets the events of a job.
    pub fn delete_events(&self, job: &str) -> Result<(), StoreError> {
        let sql = "DELETE FROM events WHERE job = (SELECT seq FROM jobs WHERE id = ?)";
        self.write().prepare_cached(sql)?.execute([job])?;
        Ok(())
    }

    /// Events of a job behind one of them: the oldest first, or those before it, the newest first.
    pub fn events(&self, job: &str, page: &Page) -> Result<Listed<EventRecord>, StoreError> {
        let connection = self.read();
        let after = page.behind.or_else(|| page.after.as_deref().and_then(|after| after.parse().ok()));
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
        let found = found.map(|event| event.map(|event| (event.seq, event)));
        Ok(cut(found.collect::<Result<_, _>>()?, page.limit))
    }

    /// One event of a job by what makes it one of a kind.
    pub fn event_data(&self, job: &str, name: &str) -> Result<Option<(i64, Option<Value>)>, StoreError> {
        let connection = self.read();
        let mut statement = connection.prepare_cached(
            "SELECT created_at, data FROM events WHERE job = (SELECT seq FROM jobs WHERE id = ?) AND name = ?",
        )?;
        let read = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, Option<String>>(1)?));
        let found = statement.query_row([job, name], read).optional()?;
        Ok(found.map(|(at, data)| (at, data.and_then(|text| serde_json::from_str(&text).ok()))))
    }
}

pub(super) fn insert_events(
    connection: &Connection,
    job: &str,
    now: i64,
    events: &[NewEvent],
) -> Result<usize, StoreError> {
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

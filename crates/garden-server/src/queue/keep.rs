//! What the queue looks after besides jobs: how much of the disk they take, and what has had its time.

use std::time::{Duration, Instant};

use super::Queue;
use crate::error::ApiError;
use crate::job::JobRecord;

/// How often files and jobs whose time is over are looked for.
const HOUSEKEEPING: Duration = Duration::from_secs(60);
const LEAST_PAUSE: Duration = Duration::from_secs(1);
/// Folders are measured in one of so many parts of the queue's time.
const MEASURE_SHARE: u32 = 20;
/// But never longer apart than this.
const LONGEST_PAUSE: Duration = Duration::from_millis(400);
/// Jobs that are measured or deleted in one go: the queue has other work.
const AT_ONCE: usize = 50;
/// Seconds for which a request that is sent again is known.
const REQUEST_TIME: u64 = 24 * 3600;

impl Queue {
    /// Measures folders that grow, and some of those that nobody has measured yet.
    pub(super) fn measure<'a>(&mut self, growing: impl Iterator<Item = &'a JobRecord>) {
        if self.measured.is_some_and(|next| Instant::now() < next) {
            return;
        }
        let began = Instant::now();
        growing.for_each(|job| self.measure_one(job.id()));
        match self.server.store.not_measured(AT_ONCE) {
            Ok(ids) => ids.iter().for_each(|id| self.measure_one(id)),
            Err(error) => self.trouble("", "the queue", error.to_string()),
        }
        // As often as the queue looks, unless that takes a share of its time that counts: a job may pass the quota by what it writes in between.
        self.measured = Some(Instant::now() + (MEASURE_SHARE * began.elapsed()).min(LONGEST_PAUSE));
    }

    /// Measures the folder of a job. What cannot be noted now is when it is measured next.
    pub(super) fn measure_one(&self, id: &str) {
        drop(self.server.store.note_disk(id, Some(self.server.disk.job_bytes(id))));
    }

    /// Removes what has had its time.
    pub(super) fn keep_house(&mut self) -> Result<(), ApiError> {
        // What is kept for seconds is not deleted after minutes.
        let pause = self.server.settings.keep.map_or(HOUSEKEEPING, |keep| keep.clamp(LEAST_PAUSE, HOUSEKEEPING));
        if self.kept_house.is_some_and(|last| last.elapsed() < pause) {
            return Ok(());
        }
        self.kept_house = Some(Instant::now());
        self.server.disk.clear_backups();
        let seconds = self.counted.elapsed().as_secs();
        let count = self.server.change_even_if_full(|store| store.count_time(seconds))?;
        self.counted += Duration::from_secs(seconds);
        // What cannot be removed now keeps nothing else; the first problem is told.
        let mut done = Ok(());
        for file in self.server.store.expired_files()? {
            done = done.and(crate::files::remove(&self.server, &file));
        }
        for upload in self.server.store.expired_uploads()? {
            done = done.and(crate::files::end(&self.server, upload, "expired").map(drop));
        }
        done = done
            .and(self.server.change_even_if_full(|store| store.forget_requests(REQUEST_TIME)).map_err(ApiError::from));
        if let Some(before) = self.server.settings.keep.and_then(|keep| count.checked_sub(keep.as_secs())) {
            done = done.and(self.retire(i64::try_from(before).unwrap_or(i64::MAX)));
        }
        done.and(Ok(self.server.store.shrink()?))
    }

    /// Says outside of the database how many changes it has seen, so that an older one in its place is noticed. A kill before that leaves a lower number, never a higher one, and
    /// however many requests come it is written once a round.
    pub(super) fn note_changes(&mut self) {
        let Ok(changes) = self.server.store.changes() else { return };
        // What cannot be written now is in the next round.
        if self.noted_changes != Some(changes) && self.server.disk.note_changes(changes).is_ok() {
            self.noted_changes = Some(changes);
        }
    }

    /// Deletes jobs that have been over since before a moment of the server's count. What a model was made of goes, the model itself stays: that is deleted by name.
    fn retire(&mut self, before: i64) -> Result<(), ApiError> {
        let mut done = Ok(());
        for job in self.server.store.kept_before(before, AT_ONCE)? {
            let has_model = job.result_model.is_some() && !job.is_result_deleted;
            let gone = match has_model {
                true => crate::retention::trim(&self.server, &job),
                false => crate::retention::delete(&self.server, &job),
            };
            if gone.is_err() {
                done = done.and(gone);
                continue;
            }
            self.server.say(&format!(
                "{}: its time is over: {}",
                job.id(),
                if has_model { "all but its model was deleted" } else { "it was deleted" }
            ));
            // There may be more of them than one go takes.
            self.kept_house = None;
        }
        done
    }
}

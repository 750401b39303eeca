//! A training run as its output folder has it: read once ([`RunRecord`]), and shown as a page, a model card, text and JSON.
//!
//! The process that trains, its guard and the commands meet in these files and nowhere else, so whoever wants to tell about a run, now or years later,
//! reads the same record.

mod answers;
mod card;
mod charts;
mod files;
mod format;
mod guarded;
mod outcome;
mod page;
mod record;

pub use files::{CARD, FileError, GUARD, JOB, JobFile, RECIPE, REPORT, TRACE, write_end, write_text};
pub use format::percent;
pub use guarded::guarded;
pub use outcome::{LeftOut, RunOutcome};
pub use page::page;
pub use record::{Planned, PlannedRow, RunRecord};

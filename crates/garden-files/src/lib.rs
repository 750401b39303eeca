//! File access: bounded reads of untrusted files ([`read()`]) and atomic writes ([`replace`]).

mod allowance;
mod read;
mod write;

pub use allowance::Allowance;
pub use read::{LARGEST_SETTINGS, fits, folder_bytes, open, read, read_settings};
pub use write::{draft_of, free_bytes, open_log, replace};

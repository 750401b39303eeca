//! File access: bounded reads of untrusted files ([`read()`]) and atomic writes ([`replace`]).

mod read;
mod write;

pub use read::{LARGEST_SETTINGS, fits, open, read, read_settings};
pub use write::{draft_of, free_bytes, replace};

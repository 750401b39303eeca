//! File access: bounded reads of untrusted files ([`read()`]), atomic writes ([`replace`]), and where paths lead ([`lies_in`]).

mod allowance;
mod place;
mod read;
mod write;

pub use allowance::Allowance;
pub use place::{is_same, lies_in, real};
pub use read::{LARGEST_SETTINGS, fits, folder_bytes, is_lfs_pointer, open, read, read_settings};
pub use write::{draft_of, free_bytes, open_log, replace};

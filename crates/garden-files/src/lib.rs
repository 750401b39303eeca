//! Files: those from outside are read within bounds ([`read()`]), and those of ours are there as a whole or not at all ([`replace`]).

mod read;
mod write;

pub use read::{LARGEST_SETTINGS, fits, open, read, read_settings};
pub use write::{draft_of, replace};

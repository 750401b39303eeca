//! Which piece of a pipeline makes memory grow, and whether the growth ever ends.
//!
//! The Python package runs the same set of different examples through the pieces of a pipeline several times, each
//! combination in a separate process, and records the memory after each pass ([`Experiment`]). This crate judges the
//! record: [`judge`] is pure, and [`page`] puts the finding into words and charts. Growth in the first pass only is a
//! cache, growth in every pass a leak, memory freed by the garbage collector is garbage, and growth in an image that the
//! dataset keeps is the dataset's.

mod charts;
mod experiment;
mod finding;
mod growth;
mod holders;
mod judge;
mod page;
mod phrasing;

pub use experiment::{Experiment, ReadError};
pub use finding::{Cause, Finding, GivenBack, Growth, Kind, StageFinding};
pub use judge::judge;
pub use page::page;

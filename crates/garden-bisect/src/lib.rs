//! Which piece of a pipeline makes memory grow, and whether that ever ends.
//!
//! The Python package takes the pieces of a pipeline over the same different examples several times, each combination in a process
//! of its own, and writes down what was held after each pass ([`Experiment`]). This crate judges it: [`judge`] is pure, and
//! [`page`] puts the finding into words and charts. What grows in the first pass only is a cache, what grows in every pass a leak,
//! what the garbage collector gives back is garbage, and what grew in an image that the dataset keeps is the dataset's.

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

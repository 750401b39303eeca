//! The demo: a small dataset of drawn pictures, and the recipe that a tiny model learns it with.

pub mod base;
pub mod dataset;
mod drawing;
mod random;
pub mod recipe;

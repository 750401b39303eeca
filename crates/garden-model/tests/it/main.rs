//! The tests of this crate from outside, as one program: a program for each file would link the crate as many times.

mod arrival;
mod case;
mod engine;
mod failing;
mod generation;
mod memory;
mod merge_memory;
mod merging;
mod packing;
mod random;
mod reference;
mod refusals;
mod shapes;
mod steady;
mod training;

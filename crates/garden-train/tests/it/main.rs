//! The tests of this crate from outside, as one program: a program for each file would link the crate as many times.

mod broken_rows;
mod failing;
mod plan;
mod tensorboard;

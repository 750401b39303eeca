//! The tests of this crate from outside, as one program: a program for each file would link the crate as many times.

mod common;
mod files;
mod frames;
mod gpus;
mod listener;
mod logs;
mod monitors;
mod robust;
mod several;
mod times;
mod tools;
mod units;

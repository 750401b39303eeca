//! The tests of this crate from outside, as one program: a program for each file would link the crate as many times.

mod answers;
mod boxes;
mod datasets;
mod decoding;
mod examples;
mod files;
mod foreign;
mod loader;
mod memory;
mod mixing;
mod odd;
mod oracle;
mod pictures;
mod processor;
mod rows;
mod selective;
mod survey;
mod templates;
mod texts;

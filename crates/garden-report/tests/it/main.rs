//! The tests of this crate from outside, as one program: a program for each file would link the crate as many times.

mod common;
mod drawing;
mod html;
mod random;
mod reports;

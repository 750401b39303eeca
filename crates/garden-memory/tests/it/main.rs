//! The tests of this crate from outside, as one program: a program for each file would link the crate as many times.

mod bounds;
mod claims;
mod comparison_rates;
mod endings;
mod error_rates;
mod judgement;
mod population;
mod recordings;

//! The tests of this crate from outside, as one program: a program for each file would link the crate as many times.

mod audit;
mod bisect;
mod browser;
mod check;
mod cli;
mod common;
mod compare;
mod export;
mod generate;
mod monitor;
mod odd;
mod plan;
mod preview;
mod production;
mod quantise;
mod run;
mod terminal;
mod traces;
mod train;
mod training_page;

//! The tests of this crate from outside, as one program: a program for each file would link the crate as many times.

mod audit;
mod bisect;
mod browser;
mod check;
mod cli;
mod common;
mod compare;
mod export;
mod forked;
mod gates;
mod generate;
mod make;
mod monitor;
mod odd;
mod plan;
mod preview;
mod production;
mod quantise;
mod results;
mod resume;
mod rows;
mod run;
mod terminal;
mod traces;
mod train;
mod training_page;

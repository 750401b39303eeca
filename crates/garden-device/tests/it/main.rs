//! The tests of this crate from outside, as one program: a program for each file would link the crate as many times.

mod bench;
mod cached;
mod devices;
mod fused;
mod gradients;
mod kernels;
mod large;
mod quantised;

//! The parts of a chart of characters that a live view shares with reports: scales, labels of the clock, braille cells.

pub use crate::braille::{DOT_DISTANCE, DOTS_ACROSS, DOTS_DOWN, braille, dot, interpolate};
pub use crate::format::{ClockWords, TimeUnit};
pub use crate::scale::{Measure, Scale, clock_labels};

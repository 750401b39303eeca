//! Times: how they are written, and what all rows of a file together say about them.
//!
//! Readers call [`parse_moment`] for a cell and [`Stamps`] for lines, tell [`Times`] each form they saw, and the reading
//! settles them at the end.
//!
//! - `moment.rs`: a written time in any form; what its row leaves open is its [`Form`].
//! - `stamps.rs`: time stamps in front of rows and between them.
//! - `settled.rs`: what all rows decide together: day or month first, hours or minutes, midnights, the direction.
//! - `written.rs`: parts of written times (dates, clocks, zones) and the calendar.

mod moment;
mod settled;
mod stamps;
mod written;

pub(crate) use moment::{Form, day_clock_at, moment_at, parse_moment};
pub(crate) use settled::Times;
pub(crate) use stamps::{ShortClocks, Stamp, Stamps};
pub(crate) use written::{DATE_LENGTH, Midnights, clock_at, date_at, date_time_at, in_seconds};

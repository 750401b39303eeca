//! Starts training programs, listens to what they say, and signals them. Nothing else starts or signals processes.

mod channel;
pub mod checkpoint;
mod launch;
mod signals;

pub use channel::{Channel, ENVIRONMENT, Message};
pub use launch::{Ending, Notice, Stage, launch};
pub use signals::{Stop, listen_for_stops, pass_stop_on};

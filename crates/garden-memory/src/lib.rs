//! The core of Model Garden, free of files, clocks and threads: samples, events and run facts in, a diagnosis out.

mod advice;
mod bytes;
mod catalogue;
mod causes;
mod column;
mod compare;
mod comparison;
mod diagnose;
mod diagnosis;
mod evidence;
mod floor;
mod forecast;
mod growth;
mod judge;
mod laws;
mod leak;
mod processes;
mod records;
mod segments;
mod series;
mod shape;
mod signs;
mod stability;
mod stats;
mod summary;
mod trace;
mod trend;
mod waves;
mod words;

pub use bytes::{Bytes, GIB, KIB, MIB, ParseBytesError, TIB, format_between, format_change, unit_factor};
pub use compare::{CompareQuestion, Run, compare};
pub use comparison::*;
pub use diagnose::{Question, diagnose, judged_places, judged_series, quantity_series};
pub use diagnosis::*;
pub use stability::Stability;
pub use trace::{Activity, Event, EventKind, ProcessTrack, Quantity, RunFacts, Sample, Trace};

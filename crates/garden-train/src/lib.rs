//! Training: what a run writes and keeps.

mod tensorboard;

pub use tensorboard::EventFile;

//! `trainer_state.json` of a Hugging Face trainer: the list `log_history`, whose objects are read as lines of JSON, with the run's length.

use std::io::{BufReader, Read};

use serde::Deserialize;
use serde_json::Value;

use crate::error::Error;
use crate::lines::Lines;

/// How much of a file is searched for the keys of a state.
const KEYS_WITHIN: usize = 4096;

const UNREADABLE: Error = Error::NoUsedMemory {
    problem: "it begins like the state of a trainer, but breaks off or is not valid JSON",
    advice: "pass the `trainer_state.json` of a finished checkpoint",
};

/// The state of a trainer, as far as it matters here.
#[derive(Deserialize)]
pub(crate) struct State {
    log_history: Vec<Value>,
    /// The run's last step.
    pub(crate) max_steps: Option<u64>,
}

/// Whether the head of a file is the state of a trainer.
pub(crate) fn recognise(head: &[u8]) -> bool {
    let text: String = String::from_utf8_lossy(&head[..head.len().min(KEYS_WITHIN)]).split_whitespace().collect();
    text.starts_with('{') && text.contains("\"log_history\":[") && text.contains("\"global_step\":")
}

/// Reads a state whole: its list is in one object.
pub(crate) fn read<R: Read>(lines: &mut Lines<R>) -> Result<State, Error> {
    serde_json::from_reader(BufReader::new(lines.reader())).map_err(|_| UNREADABLE)
}

impl State {
    /// The entries of the list, one per line.
    pub(crate) fn to_lines(&self) -> String {
        self.log_history.iter().map(|entry| format!("{entry}\n")).collect()
    }
}

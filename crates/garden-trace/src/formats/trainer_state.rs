//! `trainer_state.json` of a Hugging Face trainer: the list `log_history`, whose objects are read as lines of JSON, with the run's length.

use std::io::BufReader;

use serde::Deserialize;
use serde_json::Value;

use super::{Contents, Head, Reader, Recognised, claim, jsonl, read_as};
use crate::error::Error;
use crate::reading::Reading;

const UNREADABLE: Error = Error::NoUsedMemory {
    problem: "it begins like the state of a trainer, but breaks off or is not valid JSON",
    advice: "pass the `trainer_state.json` of a finished checkpoint",
};

/// The state of a trainer, as far as it matters here.
#[derive(Deserialize)]
struct State {
    log_history: Vec<Value>,
    /// The run's last step.
    max_steps: Option<u64>,
}

/// Recognises the state of a trainer.
pub(super) fn recognise(head: &Head<'_>) -> Recognised {
    let text = head.json_keys();
    let has_keys = text.contains("\"log_history\":[") && text.contains("\"global_step\":");
    (text.starts_with('{') && has_keys).then(|| claim(TrainerState))?
}

struct TrainerState;

impl Reader for TrainerState {
    fn name(&self) -> &'static str {
        "trainer_state.json"
    }

    /// Reads a state whole, since its list is in one object.
    fn read(&self, file: &mut Contents<'_>, reading: &mut Reading) -> Result<(), Error> {
        let state: State = serde_json::from_reader(BufReader::new(file.lines.reader())).map_err(|_| UNREADABLE)?;
        let entries: String = state.log_history.iter().map(|entry| format!("{entry}\n")).collect();
        read_as(&entries, jsonl::recognise_lines, file.options, reading)?;
        reading.learn(|facts| facts.total_steps = facts.total_steps.or(state.max_steps));
        Ok(())
    }
}

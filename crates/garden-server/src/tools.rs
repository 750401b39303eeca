//! Our own program, asked for something that reads files of clients: what they hold, however large or broken, stays outside the server's memory.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use garden_guard::{Brief, run_briefly};
use serde::{Deserialize, Serialize};

use crate::Server;
use crate::error::ApiError;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(300);
/// Bytes of an answer.
const LONGEST: u64 = 32 << 20;

/// What `/api/diagnose` may be told of a trace, by the names of the API: flags of `diagnose` with `_` instead of `-`.
pub const TRACE_FACTS: [(&str, &str); 9] = [
    ("memory_limit", "A size, such as `16GiB`."),
    ("unit", "The unit of the memory values, such as `MiB`."),
    ("select", "The series to judge, of several."),
    ("column", "The column to judge."),
    ("examples", "Examples of an epoch; with `batch_size`."),
    ("batch_size", "Examples per micro-batch."),
    ("gradient_accumulation", "Micro-batches per step; with `batch_size`."),
    ("steps_per_epoch", "Steps of an epoch, where the trace does not tell, instead of `examples`."),
    ("leak_after", "How long growth without epochs is none, such as `30m`, or `never`."),
];
/// That there are no epochs at all, which is `true` or `false`.
pub const NO_EPOCHS: &str = "no_epochs";

/// What the program reads.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    /// Nothing.
    None,
    /// A file of ours.
    File(PathBuf),
}

/// Why it does not answer, in the API's own names: the last line of its errors, with exit code 2.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ToolRefusal {
    /// The parameter that is wrong, where it is one.
    pub param: Option<String>,
    /// What is wrong, in words.
    pub message: String,
}

/// What it says.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    pub code: Option<i32>,
    pub output: String,
    pub error: String,
}

impl Server {
    /// Asks our own program, for a client that waits for its turn.
    pub async fn tool(self: &Arc<Server>, owner: &str, words: &[&str], input: Input) -> Result<Said, ApiError> {
        let turn = self.turns.take(owner).await?;
        let words: Vec<std::ffi::OsString> = words.iter().map(Into::into).collect();
        let program = self.settings.program.clone();
        let environment = crate::environment::of_jobs(self);
        self.blocking_for_long(move || {
            // Held by the work: whoever asked may be gone long before it is done.
            let _turn = turn;
            let file = match &input {
                Input::None => None,
                Input::File(path) => {
                    let opened = garden_files::open(path);
                    Some(opened.map_err(|error| ApiError::internal("a file cannot be read", &error))?.0)
                }
            };
            let Brief { code, output, error } = run_briefly(&program, &words, &environment, file, PATIENCE, LONGEST)
                .map_err(|error| ApiError::internal("our own program did not answer", &error))?;
            Ok(Said {
                code,
                output: String::from_utf8_lossy(&output).into_owned(),
                error: String::from_utf8_lossy(&error).into_owned(),
            })
        })
        .await
    }
}

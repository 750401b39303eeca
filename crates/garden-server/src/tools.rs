//! Our own program, asked for something that reads files of clients: what they hold, however large or broken, stays outside the server's memory.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use garden_guard::{Brief, run_briefly};

use crate::Server;
use crate::error::ApiError;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(300);
/// Bytes of an answer.
const LONGEST: u64 = 32 << 20;

/// What the program reads.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    /// Nothing.
    None,
    /// A file of ours.
    File(PathBuf),
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

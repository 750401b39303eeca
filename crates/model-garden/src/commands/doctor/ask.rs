//! Questions to other programs, none of which can keep us waiting.

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use serde::de::DeserializeOwned;

/// What a program prints as JSON, in the time that it has; none if it ended without an answer.
pub fn answer<T: DeserializeOwned>(command: &mut Command, patience: Duration) -> Result<Option<T>, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child =
        command.stdout(Stdio::piped()).spawn().map_err(|error| format!("cannot start `{name}`: {error}"))?;
    let (sender, answers) = mpsc::channel();
    let mut pipe = child.stdout.take();
    // Not joined: a grandchild may hold the pipe open for ever.
    std::thread::spawn(move || {
        let mut text = Vec::new();
        if let Some(pipe) = &mut pipe {
            drop(pipe.take(1 << 20).read_to_end(&mut text));
        }
        drop(sender.send(text));
    });
    let text = answers.recv_timeout(patience);
    drop(child.kill());
    drop(child.wait());
    let text = text.map_err(|_| format!("`{name}` has not answered within {} s", patience.as_secs()))?;
    Ok(serde_json::from_slice(&text).ok())
}

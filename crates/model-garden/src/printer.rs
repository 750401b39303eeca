//! The only place that prints: data to standard output, talk to standard error.
//!
//! Paths, rows, templates and answers come from outside, and what they hold reaches a terminal through here alone: characters that would move its
//! cursor, set its title or turn its text around are written as `\u001b`, which in JSON means the same character.

use std::borrow::Cow;
use std::fs;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::failure::Failure;

/// The width of a text that goes to a file.
pub const MOST_COLUMNS: usize = 100;
/// Lines that wait to be said by whoever cannot wait.
const QUEUE: usize = 1024;
/// Colours of our own, beside those of reports (`preview`).
const COLOURS: [&str; 3] = ["\u{1b}[32m", "\u{1b}[33m", "\u{1b}[36m"];
/// How long the last of them are waited for.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Decides what may appear where.
#[derive(Debug)]
pub struct Printer {
    colour: bool,
    queue: OnceLock<Queue>,
}

/// Lines that a thread of their own prints, since whoever reads our standard error may have stopped reading.
#[derive(Debug)]
struct Queue {
    lines: SyncSender<String>,
    waiting: Arc<AtomicUsize>,
}

impl Printer {
    /// Colour only for a terminal, and never against the user's will (`NO_COLOR`, `TERM=dumb`).
    pub fn new() -> Printer {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Printer { colour: io::stdout().is_terminal() && !refused && !dumb, queue: OnceLock::new() }
    }

    /// Whether standard output shows colour.
    pub fn has_colour(&self) -> bool {
        self.colour
    }

    /// How wide a text may be: as the terminal is, or as a file is read best.
    pub fn columns(&self) -> usize {
        let size = io::stdout().is_terminal().then(|| ratatui::crossterm::terminal::size().ok()).flatten();
        size.map_or(MOST_COLUMNS, |(columns, _)| columns.into())
    }

    /// How wide a line on standard error may be, wherever data goes.
    pub fn talk_columns(&self) -> usize {
        let size = io::stderr().is_terminal().then(|| ratatui::crossterm::terminal::size().ok()).flatten();
        size.map_or(MOST_COLUMNS, |(columns, _)| columns.into())
    }

    /// Prints data; a reader that has gone away (`| head`) is no failure.
    pub fn out(&self, text: &str) -> Result<(), Failure> {
        let ours = if self.colour { [&COLOURS[..], &garden_report::COLOURS].concat() } else { Vec::new() };
        self.write_out(&printable(text, &ours))
    }

    /// Prints what a program may read as it is, an answer of a model: only a terminal is spared.
    pub fn out_exactly(&self, text: &str) -> Result<(), Failure> {
        if io::stdout().is_terminal() { self.out(text) } else { self.write_out(text) }
    }

    fn write_out(&self, text: &str) -> Result<(), Failure> {
        let mut stdout = io::stdout().lock();
        match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => {
                Err(Failure::new("cannot write to standard output", &error, None))
            }
            _ => Ok(()),
        }
    }

    /// Writes a file as a whole or not at all, so that a full disk leaves what was there before.
    pub fn write_file(&self, path: &Path, text: &str) -> Result<(), Failure> {
        let failed = |error: io::Error| {
            let hint = match error.kind() {
                ErrorKind::NotFound => Some("create the folder first, or choose another one with -o".into()),
                ErrorKind::PermissionDenied => Some("choose a writable folder with -o".into()),
                _ => None,
            };
            Failure::new(format!("cannot write `{}`", path.display()), &error, hint)
        };
        // A device or pipe, such as /dev/stderr, cannot be replaced.
        if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            return fs::write(path, text).map_err(failed);
        }
        garden_files::replace(path, text).map_err(failed)
    }

    /// Passes a program's output on.
    pub fn pass_on(&self, output: &[u8]) {
        // If nobody reads it any more, the program goes on all the same.
        drop(io::stdout().write_all(output));
    }

    /// Says something to the person who watches, on standard error.
    pub fn say(&self, line: &str) {
        talk(&format!("{line}\n"));
    }

    /// Shows a line that the next one takes the place of; an empty one takes it away.
    pub fn show(&self, line: &str) {
        drop(io::stderr().write_all(format!("\r\u{1b}[K{}", printable(line, &[])).as_bytes()));
    }

    /// Says something without ever waiting for whoever reads it; false if too much waits already and it was dropped.
    pub fn say_soon(&self, line: String) -> bool {
        let queue = self.queue.get_or_init(Queue::open);
        queue.waiting.fetch_add(1, Ordering::AcqRel);
        let is_taken = queue.lines.try_send(line).is_ok();
        if !is_taken {
            queue.waiting.fetch_sub(1, Ordering::AcqRel);
        }
        is_taken
    }

    /// Waits a moment until all that was to be said soon has been said.
    pub fn settle(&self) {
        let Some(queue) = self.queue.get() else { return };
        let patience = Instant::now() + LAST_WORDS;
        while queue.waiting.load(Ordering::Acquire) > 0 && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Prints a failure: what, why, what would help.
    pub fn failure(&self, failure: &Failure) {
        let mut text = format!("error: {}\n", failure.what);
        for cause in &failure.causes {
            text += &format!("  caused by: {cause}\n");
        }
        if let Some(hint) = &failure.hint {
            text += &format!("\nhint: {hint}\n");
        }
        talk(&text);
    }
}

/// Writes to standard error.
fn talk(text: &str) {
    // If standard error is closed there is nobody left to tell.
    drop(io::stderr().write_all(printable(text, &[]).as_bytes()));
}

/// A text in which nothing commands a terminal but the sequences that are given.
fn printable<'a>(text: &'a str, ours: &[&str]) -> Cow<'a, str> {
    let is_command = |character: char| match character {
        '\n' | '\t' => false,
        // These turn the order of letters around.
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        _ => character.is_control(),
    };
    if !text.contains(is_command) {
        return Cow::Borrowed(text);
    }
    let mut written = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        let kept = ours.iter().find(|sequence| rest.starts_with(**sequence)).map_or(0, |sequence| sequence.len());
        let length = kept.max(character.len_utf8());
        if kept > 0 || !is_command(character) {
            written.push_str(&rest[..length]);
        } else {
            written += &format!("\\u{:04x}", u32::from(character));
        }
        rest = &rest[length..];
    }
    Cow::Owned(written)
}

impl Queue {
    fn open() -> Queue {
        let (lines, waiting_lines) = mpsc::sync_channel::<String>(QUEUE);
        let waiting = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&waiting);
        std::thread::spawn(move || {
            for line in waiting_lines {
                talk(&format!("{line}\n"));
                count.fetch_sub(1, Ordering::AcqRel);
            }
        });
        Queue { lines, waiting }
    }
}

#[cfg(test)]
mod tests {
    use super::{COLOURS, printable};

    #[test]
    fn nothing_from_outside_commands_a_terminal() {
        let check = |text: &str, expected: &str| assert_eq!(printable(text, &[]), expected);
        check("rows:\n\tgrün 模型 1\n", "rows:\n\tgrün 模型 1\n");
        check("\u{1b}]0;owned\u{7}\u{1b}[2J\r", "\\u001b]0;owned\\u0007\\u001b[2J\\u000d");
        check("\u{9b}31m\u{7f}\u{202e}txt", "\\u009b31m\\u007f\\u202etxt");
        assert_eq!(printable("\u{1b}[32mok\u{1b}[5m", &COLOURS), "\u{1b}[32mok\\u001b[5m");
    }
}

//! Our own terminal in raw mode, so that every key (Ctrl-C too) reaches the program under watch; restored when dropped.

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

/// The terminal in raw mode for as long as this lives.
#[derive(Debug)]
pub struct RawTerminal {
    before: Termios,
}

impl RawTerminal {
    /// Sets standard input to raw mode; `None` if it is no terminal.
    pub fn enter() -> Option<RawTerminal> {
        let before = tcgetattr(rustix::stdio::stdin()).ok()?;
        let mut raw = before.clone();
        raw.make_raw();
        // Output is the child's terminal's business; ours still turns a line feed into a new line.
        raw.output_modes = before.output_modes;
        tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &raw).ok()?;
        Some(RawTerminal { before })
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // There is nothing left to do if the terminal has gone.
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &self.before);
    }
}

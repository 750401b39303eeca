//! Keys: what each of them means, and which wishes go beyond the view itself.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// What a key press means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// Stop watching.
    Quit,
    /// Interrupt what is watched; in raw mode the terminal sends no signal for Ctrl-C.
    Interrupt,
    /// Close what lies on top, or else stop watching.
    Back,
    /// Show or hide the program's output.
    Output,
    /// Show or hide the processes.
    Processes,
    /// Divide the chart into components or not.
    Layers,
    /// Show a shorter time.
    Closer,
    /// Show a longer time.
    Further,
    /// Show or hide the explanations.
    Help,
}

/// What the caller is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Stop watching.
    Quit,
    /// Interrupt what is watched.
    Interrupt,
}

impl Key {
    /// The meaning of a key event; `None` for keys without one and for releases.
    pub fn of(event: KeyEvent) -> Option<Key> {
        if event.kind == KeyEventKind::Release {
            return None;
        }
        if event.modifiers.contains(KeyModifiers::CONTROL) {
            return (event.code == KeyCode::Char('c')).then_some(Key::Interrupt);
        }
        Some(match event.code {
            KeyCode::Char('q') => Key::Quit,
            KeyCode::Esc => Key::Back,
            KeyCode::Char('o') => Key::Output,
            KeyCode::Char('p') => Key::Processes,
            KeyCode::Char('c') => Key::Layers,
            // The unshifted key of `+` on most keyboards, too.
            KeyCode::Char('+' | '=') => Key::Closer,
            KeyCode::Char('-' | '_') => Key::Further,
            KeyCode::Char('?' | 'h') => Key::Help,
            _ => return None,
        })
    }
}

//! The terminal while the view is on it: raw mode and the alternate screen, given back whatever happens.
//!
//! A release build aborts on a panic, so nothing is dropped then: the panic hook gives the terminal back before the
//! message is printed. The view goes to standard error, as all talk does; standard output stays free for the report.

use std::io::{self, BufWriter, Stderr};
use std::panic;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use ratatui::{Frame, Terminal};

/// Whether the terminal has to be given back.
static TAKEN: AtomicBool = AtomicBool::new(false);
static HOOK: Once = Once::new();
/// Room for one whole drawing of a large terminal, so that it arrives in one piece.
const BUFFER_BYTES: usize = 64 * 1024;

/// The terminal, taken over until this is dropped.
pub struct Screen {
    terminal: Terminal<CrosstermBackend<BufWriter<Stderr>>>,
}

impl Screen {
    /// Takes the terminal over.
    pub fn take() -> io::Result<Screen> {
        HOOK.call_once(|| {
            let before = panic::take_hook();
            panic::set_hook(Box::new(move |panic| {
                give_back();
                before(panic);
            }));
        });
        enable_raw_mode()?;
        TAKEN.store(true, Ordering::SeqCst);
        let open = || {
            execute!(io::stderr(), EnterAlternateScreen)?;
            let writer = BufWriter::with_capacity(BUFFER_BYTES, io::stderr());
            Ok(Screen { terminal: Terminal::new(CrosstermBackend::new(writer))? })
        };
        open().inspect_err(|_| give_back())
    }

    /// Draws one frame; only the cells that changed are sent.
    pub fn draw(&mut self, paint: impl FnOnce(&mut Frame)) -> io::Result<()> {
        self.terminal.draw(paint).map(|_| ())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// Restores the terminal, once.
fn give_back() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        // If the terminal has gone away there is nothing left to restore.
        drop(execute!(io::stderr(), LeaveAlternateScreen, Show));
        drop(disable_raw_mode());
    }
}

//! Parses a program's output as it comes, with the log reader: steps, events and facts.
//!
//! Memory values that the program prints are left out: the caller measures memory better.

use garden_memory::{EventKind, RunFacts};

use crate::formats::log::Hearing;

/// Lines are cut at this length.
const LONGEST_LINE: usize = 1 << 16;

/// The content of a piece of output.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Heard {
    /// The training step, if one was printed.
    pub step: Option<f64>,
    /// Events, in order.
    pub events: Vec<EventKind>,
    /// All facts so far, if there is a new one.
    pub facts: Option<RunFacts>,
}

/// Listens to the output of one program.
#[derive(Default)]
pub struct Listener {
    hearing: Hearing,
    line: Vec<u8>,
    facts: RunFacts,
}

impl Listener {
    /// A listener without any output yet.
    pub fn new() -> Listener {
        Listener::default()
    }

    /// Takes in output as it comes; lines end with a line feed or, as progress bars do, with a carriage return.
    pub fn hear(&mut self, output: &[u8]) -> Heard {
        let mut heard = Heard::default();
        for &byte in output {
            if byte == b'\n' || byte == b'\r' {
                let line = std::mem::take(&mut self.line);
                if let Some(step) = self.hearing.take(&line, &mut heard.events) {
                    heard.step = Some(step);
                }
                self.line = line;
                self.line.clear();
            } else if self.line.len() < LONGEST_LINE {
                self.line.push(byte);
            }
        }
        let facts = self.hearing.facts();
        if facts != self.facts {
            self.facts = facts.clone();
            heard.facts = Some(facts);
        }
        heard
    }
}

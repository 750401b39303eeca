//! Listens to a program's output as it comes, with the ears of the log reader: steps, events and facts.
//!
//! Memory that the program prints is left out: whoever listens measures it better.

use garden_memory::{EventKind, RunFacts};

use crate::log::Hearing;

/// Lines longer than this are not waited for.
const LONGEST_LINE: usize = 1 << 16;

/// What a piece of output told.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Heard {
    /// The training step, if one was told.
    pub step: Option<f64>,
    /// Events that were told, in order.
    pub events: Vec<EventKind>,
    /// All facts told so far, if a new one was among them.
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
    /// A listener that has heard nothing yet.
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

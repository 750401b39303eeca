//! The writer of our own trace format: JSON Lines that survive a kill.
//!
//! The first line is the header, `{"model_garden_trace":1,"facts":{..},"origin":{..}}`. Samples follow, with amounts in
//! bytes under the names of [`Quantity`], as `{"step":10,"time_s":1.5,"rss":123,"activity":"eval"}`, and events, as
//! `{"event":"epoch_end","step":83}`. Facts learned later are on a separate line, `{"facts":{..}}`. A process of the tree
//! is introduced by `{"process":{"pid":4711,"name":"python3","role":"training",..}}`; samples then carry the memory of
//! each process under its process id wherever that changed, as `"processes":{"4711":123}`, and `null` once it has exited.
//! Loaded libraries are on lines `{"libraries":["PIL","torch"]}`, each with the new names, or `null` from where on not all
//! are known. Each line is written in one piece, so a kill costs the last line at most.

use std::io::{self, Write};

use garden_memory::{Activity, EventKind, ProcessTrack, Quantity, RunFacts, Sample};
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

/// The version of the format, the only one read.
pub const VERSION: u64 = 1;

/// Writes a trace line by line; give it an unbuffered file, so that each line reaches the system at once.
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: W,
    line: Vec<u8>,
}

#[derive(Serialize)]
struct Header<'a> {
    model_garden_trace: u64,
    facts: &'a RunFacts,
    origin: Origin<'a>,
}

#[derive(Serialize)]
struct Introduction<'a> {
    pid: u32,
    parent: u32,
    name: &'a str,
    role: &'a str,
    command: &'a str,
}

struct Levels<'a>(&'a [(u32, Option<u64>)]);

impl Serialize for Levels<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(pid, level)| (pid, level)))
    }
}

struct Origin<'a>(&'a [(String, String)]);

impl Serialize for Origin<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        self.0.iter().try_for_each(|(name, value)| map.serialize_entry(name, value))?;
        map.end()
    }
}

impl<W: Write> Writer<W> {
    /// A writer to `out`; write the header first.
    pub fn new(out: W) -> Self {
        Writer { out, line: Vec::new() }
    }

    /// Writes the header: facts about the run, and where the trace comes from.
    pub fn header(&mut self, facts: &RunFacts, origin: &[(String, String)]) -> io::Result<()> {
        self.line.clear();
        let header = Header { model_garden_trace: VERSION, facts, origin: Origin(origin) };
        serde_json::to_writer(&mut self.line, &header)?;
        self.line.push(b'\n');
        self.out.write_all(&self.line)
    }

    /// Writes facts learned after the header.
    pub fn facts(&mut self, facts: &RunFacts) -> io::Result<()> {
        self.begin(None, None)?;
        self.word("facts", facts)?;
        self.end()
    }

    /// Introduces a process, before the first sample with its memory.
    pub fn process(&mut self, process: &ProcessTrack) -> io::Result<()> {
        self.begin(None, None)?;
        let ProcessTrack { pid, parent, name, role, command, .. } = process;
        self.word("process", &Introduction { pid: *pid, parent: *parent, name, role, command })?;
        self.end()
    }

    /// Writes the names of newly loaded libraries, or `None` once not all can be known.
    pub fn libraries(&mut self, names: Option<&[&String]>) -> io::Result<()> {
        self.begin(None, None)?;
        self.word("libraries", &names)?;
        self.end()
    }

    /// Writes a sample, and the memory of each process where it changed; `None` for one that has exited.
    pub fn sample(&mut self, sample: &Sample, processes: &[(u32, Option<u64>)]) -> io::Result<()> {
        self.begin(sample.step, sample.time_s)?;
        for quantity in Quantity::ALL {
            if let Some(value) = sample.get(quantity) {
                write!(self.line, "\"{}\":{value},", quantity.name())?;
            }
        }
        if sample.activity != Activity::Train {
            self.word("activity", &sample.activity)?;
        }
        if !processes.is_empty() {
            self.word("processes", &Levels(processes))?;
        }
        self.end()
    }

    /// Writes an event, after the samples that came before it.
    pub fn event(&mut self, kind: EventKind, step: Option<f64>, time_s: Option<f64>) -> io::Result<()> {
        self.begin(step, time_s)?;
        self.word("event", &kind)?;
        self.end()
    }

    /// The underlying writer.
    pub fn get_ref(&self) -> &W {
        &self.out
    }

    /// The underlying writer.
    pub fn get_mut(&mut self) -> &mut W {
        &mut self.out
    }

    /// Returns the underlying writer, when all is written.
    pub fn into_inner(self) -> W {
        self.out
    }

    fn begin(&mut self, step: Option<f64>, time_s: Option<f64>) -> io::Result<()> {
        self.line.clear();
        self.line.push(b'{');
        // JSON has no NaN or infinity; such a moment is unknown.
        for (name, number) in [("step", step), ("time_s", time_s)] {
            if let Some(number) = number.filter(|number| number.is_finite()) {
                write!(self.line, "\"{name}\":{number},")?;
            }
        }
        Ok(())
    }

    fn word(&mut self, name: &str, word: &impl Serialize) -> io::Result<()> {
        write!(self.line, "\"{name}\":")?;
        serde_json::to_writer(&mut self.line, word)?;
        self.line.push(b',');
        Ok(())
    }

    fn end(&mut self) -> io::Result<()> {
        if self.line.last() == Some(&b',') {
            self.line.pop();
        }
        self.line.extend_from_slice(b"}\n");
        self.out.write_all(&self.line)
    }
}

//! The reader of our own trace format; `writer.rs` describes the format.
//!
//! Unknown keys are ignored, so a later version may add some without a new version number. A header in the middle is
//! another run that was appended. A sample is kept if it has any quantity at all; a trace without RSS is judged by its
//! PSS.

mod plain_sample;

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use garden_memory::{EventKind, Libraries, ProcessTrack, Quantity, RunFacts, Sample, Trace};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

use super::{Contents, Head, Reader, Recognised, claim};
use crate::ReadOptions;
use crate::columns::activity_of;
use crate::error::{Error, shorten};
use crate::lines::{Line, LineEnd, Lines};
use crate::reading::{Origin, Reading, TOO_LONG, show_line};
use crate::writer::VERSION;

const MARK: &str = "\"model_garden_trace\"";

/// Recognises our header in the first line.
pub(super) fn recognise(head: &Head<'_>) -> Recognised {
    let is_ours = head.lines.first().is_some_and(|line| line.text.starts_with('{') && line.text.contains(MARK));
    is_ours.then(|| claim(Own))?
}

struct Own;

impl Reader for Own {
    fn name(&self) -> &'static str {
        "model-garden trace"
    }

    fn origin(&self) -> Origin {
        Origin::Own
    }

    fn read(&self, file: &mut Contents<'_>, reading: &mut Reading) -> Result<(), Error> {
        read(&mut file.lines, file.options, reading)
    }
}

#[derive(Deserialize)]
struct Header {
    model_garden_trace: serde_json::Value,
    #[serde(default)]
    facts: RunFacts,
    #[serde(default)]
    origin: Pedigree,
}

/// A sample or an event; a struct of named fields is read four times faster than a tree of values.
#[derive(Deserialize)]
struct Record<'a> {
    event: Option<&'a str>,
    step: Option<f64>,
    time_s: Option<f64>,
    activity: Option<&'a str>,
    rss: Option<Count>,
    anon: Option<Count>,
    anon_least: Option<Count>,
    file: Option<Count>,
    shmem: Option<Count>,
    pss: Option<Count>,
    swap: Option<Count>,
    private: Option<Count>,
    shared: Option<Count>,
    peak: Option<Count>,
    gpu: Option<Count>,
    gpu_used: Option<Count>,
    group: Option<Count>,
    available: Option<Count>,
    dev_shm: Option<Count>,
    pressure: Option<Count>,
    tensors: Option<Count>,
    tensors_cpu: Option<Count>,
    tensors_gpu: Option<Count>,
    objects: Option<Count>,
    arena: Option<Count>,
    processes: Option<BTreeMap<u32, Option<u64>>>,
}

impl Record<'_> {
    fn get(&self, quantity: Quantity) -> Option<u64> {
        let count = match quantity {
            Quantity::Rss => self.rss,
            Quantity::Anon => self.anon,
            Quantity::AnonLeast => self.anon_least,
            Quantity::File => self.file,
            Quantity::Shmem => self.shmem,
            Quantity::Pss => self.pss,
            Quantity::Swap => self.swap,
            Quantity::Private => self.private,
            Quantity::Shared => self.shared,
            Quantity::Peak => self.peak,
            Quantity::Gpu => self.gpu,
            Quantity::GpuUsed => self.gpu_used,
            Quantity::Group => self.group,
            Quantity::Available => self.available,
            Quantity::DevShm => self.dev_shm,
            Quantity::Pressure => self.pressure,
            Quantity::Tensors => self.tensors,
            Quantity::TensorsCpu => self.tensors_cpu,
            Quantity::TensorsGpu => self.tensors_gpu,
            Quantity::Objects => self.objects,
            Quantity::Arena => self.arena,
        };
        count.map(|count| count.0)
    }

    fn sample(&self) -> Sample {
        let mut sample = Sample::default();
        (sample.step, sample.time_s) = (self.step, self.time_s);
        sample.activity = self.activity.map(activity_of).unwrap_or_default();
        for quantity in Quantity::ALL {
            if let Some(value) = self.get(quantity) {
                sample.set(quantity, value);
            }
        }
        sample
    }
}

/// A whole number of at least zero; other writers may add a fraction.
#[derive(Clone, Copy)]
struct Count(u64);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CountVisitor)
    }
}

struct CountVisitor;

impl Visitor<'_> for CountVisitor {
    type Value = Count;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of at least zero")
    }

    fn visit_u64<E>(self, number: u64) -> Result<Count, E> {
        Ok(Count(number))
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Count, E> {
        if (0.0..9.2e18).contains(&number) { Ok(Count(number.round() as u64)) } else { Err(E::custom("out of range")) }
    }
}

/// Names and values in the order of the file.
#[derive(Default)]
struct Pedigree(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Pedigree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Pedigree;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with string values")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pedigree, A::Error> {
                let mut pairs = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, serde_json::Value>()? {
                    let text = value.as_str().map_or_else(|| value.to_string(), str::to_string);
                    pairs.push((name, text));
                }
                Ok(Pedigree(pairs))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

/// Reads the header, the samples and the events.
fn read<R: Read>(lines: &mut Lines<R>, options: &ReadOptions, reading: &mut Reading) -> Result<(), Error> {
    let main = main_quantity(options)?;
    if options.unit.is_some() {
        reading.note("`--unit` is ignored: a model-garden trace is in bytes");
    }
    if let Some(first) = lines.next()? {
        take_header(first.text, reading)?;
    }
    while let Some(line) = lines.next()? {
        take_line(&line, main, reading)?;
    }
    let judged = main.unwrap_or(if reading.trace().has(Quantity::Rss) { Quantity::Rss } else { Quantity::Pss });
    if judged == Quantity::Pss && !reading.trace().has(Quantity::Rss) {
        judge_pss(reading.trace());
    }
    if reading.trace().has(Quantity::Rss) {
        reading.name_main(judged.name());
        reading.saw_factor(1);
    }
    Ok(())
}

/// Makes PSS the judged memory, for traces without RSS.
fn judge_pss(trace: &mut Trace) {
    let recorded = std::mem::take(trace);
    for index in 0..recorded.len() {
        let mut sample = recorded.sample(index);
        if let Some(pss) = sample.get(Quantity::Pss) {
            sample.set(Quantity::Rss, pss);
        }
        trace.push(&sample);
    }
    (trace.facts, trace.origin, trace.events) = (recorded.facts, recorded.origin, recorded.events);
    trace.subject = recorded.subject;
    (trace.processes, trace.libraries) = (recorded.processes, recorded.libraries);
}

fn main_quantity(options: &ReadOptions) -> Result<Option<Quantity>, Error> {
    let Some(asked) = &options.column else { return Ok(None) };
    let found = Quantity::ALL.into_iter().find(|quantity| quantity.name().eq_ignore_ascii_case(asked.trim()));
    let available = || Quantity::ALL.iter().map(|quantity| quantity.name().to_string()).collect();
    found.map(Some).ok_or_else(|| Error::NoSuchColumn { asked: asked.clone(), available: available() })
}

fn take_header(text: &[u8], reading: &mut Reading) -> Result<(), Error> {
    let text = String::from_utf8_lossy(text);
    let header: Header = serde_json::from_str(&text).map_err(|error| Error::Header { problem: error.to_string() })?;
    if header.model_garden_trace.as_u64() != Some(VERSION) {
        return Err(Error::Version { found: shorten(&header.model_garden_trace.to_string()) });
    }
    let earlier = std::mem::take(&mut reading.trace().facts);
    reading.trace().facts = header.facts.or(earlier);
    for (name, value) in header.origin.0 {
        reading.trace().origin.retain(|(known, _)| *known != name);
        reading.trace().origin.push((name, value));
    }
    Ok(())
}

fn take_line(line: &Line<'_>, main: Option<Quantity>, reading: &mut Reading) -> Result<(), Error> {
    if line.end == LineEnd::TooLong {
        reading.skip_line(TOO_LONG, line.number, || show_line(line.text));
        return Ok(());
    }
    if let Some(sample) = plain_sample::read(line.text) {
        if let Taken::Empty = take_sample(sample, main, reading) {
            reading.skip_line(NO_VALUE, line.number, || show_line(line.text));
        }
        return Ok(());
    }
    if let Some(at) = find_header(line.text) {
        if at > 0 {
            reading.skip_line(TORN, line.number, || show_line(&line.text[..at]));
        }
        reading.push_event(EventKind::Restart, None, None);
        return take_header(&line.text[at..], reading);
    }
    if let Some(process) = introduction(line.text) {
        let sample = reading.trace().len();
        let earlier = reading.trace().processes.iter_mut().rev().find(|track| track.pid == process.pid);
        if let Some(earlier) = earlier.filter(|earlier| earlier.gone.is_none()) {
            if earlier.command == process.command {
                // The same process, whose role in the run is now better known.
                earlier.role = process.role;
                return Ok(());
            }
            // Another process, or the same one after an `exec`.
            earlier.gone = Some(sample);
        }
        reading.trace().processes.push(process);
        return Ok(());
    }
    if let Some(facts) = learnt_facts(line.text) {
        let earlier = std::mem::take(&mut reading.trace().facts);
        reading.trace().facts = facts.or(earlier);
        return Ok(());
    }
    if let Some(names) = loaded_libraries(line.text) {
        match names {
            Some(names) => reading.trace().libraries.add(names),
            None => reading.trace().libraries = Libraries::Incomplete,
        }
        return Ok(());
    }
    match serde_json::from_slice::<Record<'_>>(line.text).and_then(|record| take_record(&record, main, reading)) {
        Ok(Taken::Kept) => {}
        Ok(Taken::Empty) => reading.skip_line(NO_VALUE, line.number, || show_line(line.text)),
        Err(_) if line.end == LineEnd::File => {
            reading.skip_line(TORN, line.number, || show_line(line.text));
        }
        Err(_) => reading.skip_line("neither a sample nor an event", line.number, || show_line(line.text)),
    }
    Ok(())
}

/// Facts on a separate line: learned after the header was written.
fn learnt_facts(line: &[u8]) -> Option<RunFacts> {
    #[derive(Deserialize)]
    struct Learnt {
        facts: RunFacts,
    }
    // Nearly all lines are samples, so this returns at once.
    line.starts_with(b"{\"facts\"").then(|| serde_json::from_slice::<Learnt>(line).ok())?.map(|learnt| learnt.facts)
}

/// Libraries on a separate line: the new names, or `None` if not all can be known.
fn loaded_libraries(line: &[u8]) -> Option<Option<Vec<String>>> {
    #[derive(Deserialize)]
    struct Loaded {
        libraries: Option<Vec<String>>,
    }
    line.starts_with(b"{\"libraries\"").then(|| serde_json::from_slice::<Loaded>(line).ok())?.map(|line| line.libraries)
}

/// The introduction of a process.
fn introduction(line: &[u8]) -> Option<ProcessTrack> {
    #[derive(Deserialize)]
    struct Introduced {
        process: Introduction,
    }
    #[derive(Deserialize)]
    struct Introduction {
        pid: u32,
        #[serde(default)]
        parent: u32,
        #[serde(default)]
        name: String,
        #[serde(default)]
        role: String,
        #[serde(default)]
        command: String,
    }
    if !line.starts_with(b"{\"process\"") {
        return None;
    }
    let Introduction { pid, parent, name, role, command } = serde_json::from_slice::<Introduced>(line).ok()?.process;
    Some(ProcessTrack { pid, parent, name, role, command, levels: Vec::new(), gone: None })
}

/// Takes in the memory of processes from this sample on; a process id means its latest process.
fn take_levels(levels: &BTreeMap<u32, Option<u64>>, sample: usize, trace: &mut Trace) {
    for (pid, level) in levels {
        let Some(track) = trace.processes.iter_mut().rev().find(|track| track.pid == *pid) else { continue };
        match level {
            Some(bytes) => track.levels.push((sample, *bytes)),
            None => track.gone = Some(sample),
        }
    }
}

const NO_VALUE: &str = "no value";
const TORN: &str = "torn; the writer stopped in the middle";

/// The position of a header in a line: at the beginning, or after the torn last line of the run before.
fn find_header(line: &[u8]) -> Option<usize> {
    const OPENING: &[u8] = b"{\"model_garden_trace\"";
    // Nearly all lines have one brace only, so this returns at once.
    let has_another = line.get(1..)?.contains(&b'{');
    if !has_another {
        return line.starts_with(OPENING).then_some(0);
    }
    line.windows(OPENING.len()).position(|window| window == OPENING)
}

enum Taken {
    Kept,
    Empty,
}

fn take_record(record: &Record<'_>, main: Option<Quantity>, reading: &mut Reading) -> Result<Taken, serde_json::Error> {
    if let Some(name) = record.event {
        let kind = event_kind(name).ok_or_else(|| serde_json::Error::custom("unknown event"))?;
        reading.push_event(kind, record.step, record.time_s);
        return Ok(Taken::Kept);
    }
    let place = reading.trace().len();
    let taken = take_sample(record.sample(), main, reading);
    if let (Taken::Kept, Some(levels)) = (&taken, &record.processes) {
        take_levels(levels, place, reading.trace());
    }
    Ok(taken)
}

fn take_sample(mut sample: Sample, main: Option<Quantity>, reading: &mut Reading) -> Taken {
    if let Some(main) = main {
        let Some(value) = sample.get(main) else { return Taken::Empty };
        sample.set(Quantity::Rss, value);
    }
    if sample.is_empty() {
        return Taken::Empty;
    }
    reading.push(&sample);
    Taken::Kept
}

/// Bytes at the end of a trace in which its last time is looked for: hundreds of lines.
const LAST_BYTES: i64 = 64 * 1024;

/// The last time in a trace, in seconds on its clock, for appending to the trace.
pub fn last_time_s(mut file: &File) -> Option<f64> {
    let length = i64::try_from(file.metadata().ok()?.len()).ok()?;
    file.seek(SeekFrom::End(-length.min(LAST_BYTES))).ok()?;
    let mut end = Vec::new();
    file.read_to_end(&mut end).ok()?;
    let time = |line: &[u8]| serde_json::from_slice::<Record<'_>>(line).ok()?.time_s;
    end.rsplit(|byte| *byte == b'\n').find_map(time)
}

fn event_kind(name: &str) -> Option<EventKind> {
    serde_json::from_value(serde_json::Value::String(name.to_string())).ok()
}

//! The output of system tools, recorded again and again into one file: `ps`, `top`, `pidstat`, `free`, `docker stats`,
//! `kubectl top`, `nvidia-smi`, and files of `/proc`.
//!
//! Each family of tools claims the lines it knows and tells the samples in them; several may share a file. Time stamps
//! stand in front of a row, or on a line between the snapshots. Lines that nobody claims are counted.

mod cgroup;
mod containers;
mod free;
mod kernel;
mod processes;
mod rocm_smi;
mod sar;

use std::borrow::Cow;
use std::io::Read;

use garden_memory::{Quantity, Sample, Subject};

use super::log::{Scout, strip_colours};
use super::nvidia_smi::text as nvidia_smi;
use super::{Contents, Head, Reader, Recognised, claim, gpustat};
use crate::ReadOptions;
use crate::error::Error;
use crate::lines::{LineEnd, Lines};
use crate::reading::{Reading, TOO_LONG, TOO_MANY_SERIES, show_line};
use crate::series::identity::Identity;
use crate::series::several::LEAST_PEAK;
use crate::time::{Stamp, Stamps};

/// Tools of one file: who listens to them.
pub(super) struct Family {
    pub(super) tools: &'static [Tool],
    pub(super) listen: fn(&Head<'_>) -> Box<dyn Listen>,
}

/// All families, in the order in which they are offered a line.
const FAMILIES: [&Family; 9] = [
    &kernel::FAMILY,
    &cgroup::FAMILY,
    &sar::FAMILY,
    &free::FAMILY,
    &processes::FAMILY,
    &containers::FAMILY,
    &rocm_smi::FAMILY,
    &gpustat::FAMILY,
    &nvidia_smi::FAMILY,
];

/// A tool whose output is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tool {
    /// The name in reports.
    pub(super) name: &'static str,
    /// The first cell of its row in docs/formats.md.
    pub(super) documented_as: &'static str,
    /// Its example in testdata/formats.
    pub(super) example: &'static str,
}

/// All tools.
pub(super) fn all() -> impl Iterator<Item = &'static Tool> {
    FAMILIES.iter().flat_map(|family| family.tools)
}

/// Listens to the tools of a family.
pub(super) trait Listen {
    /// Takes in a line behind its stamp; appends the samples told by now.
    fn take(&mut self, line: &str, stamp: Option<Stamp>, told: &mut Vec<Told>) -> Claim;

    /// Ends a snapshot: a new stamp, or the end of the file.
    fn finish(&mut self, _: &mut Vec<Told>) {}

    /// A note on what was left out.
    fn note(&self) -> Option<String> {
        None
    }

    /// The refusal of output that cannot be judged.
    fn refusal(&self) -> Option<Error> {
        None
    }
}

/// One sample in a tool's output.
#[derive(Clone, Debug)]
pub(super) struct Told {
    tool: Tool,
    subject: Subject,
    identity: Option<Identity>,
    /// The judged column, by the tool's own name.
    column: &'static str,
    /// The unit of its value.
    factor: u64,
    pub(super) sample: Sample,
    pub(super) limit: Option<u64>,
    note: Option<String>,
    /// The stamp it was told under, if that is not the present one.
    stamp: Option<Stamp>,
}

impl Told {
    pub(super) fn new(tool: Tool, subject: Subject, column: &'static str, bytes: u64, factor: u64) -> Told {
        let mut sample = Sample::default();
        sample.set(Quantity::Rss, bytes);
        Told { tool, subject, identity: None, column, factor, sample, limit: None, note: None, stamp: None }
    }

    pub(super) fn of(self, identity: Identity) -> Told {
        Told { identity: Some(identity), ..self }
    }
}

/// Whether a line belongs to a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    No,
    Yes,
}

/// Listens to all families at once.
struct Tools {
    stamps: Stamps,
    families: Vec<Box<dyn Listen>>,
}

impl Tools {
    fn new(head: &Head<'_>) -> Tools {
        let families = FAMILIES.iter().map(|family| (family.listen)(head)).collect();
        Tools { stamps: Stamps::default(), families }
    }

    /// Takes in a line; appends the samples told by now.
    fn take(&mut self, line: &str, told: &mut Vec<Told>) -> Claim {
        let before = self.stamps.count();
        let rest = self.stamps.strip(line);
        if self.stamps.count() > before {
            self.finish(told);
        }
        if rest.is_empty() {
            return Claim::Yes;
        }
        let now = self.stamps.now();
        let is_claimed = self.families.iter_mut().any(|family| family.take(rest, now, told) == Claim::Yes);
        if is_claimed { Claim::Yes } else { Claim::No }
    }

    fn finish(&mut self, told: &mut Vec<Told>) {
        self.families.iter_mut().for_each(|family| family.finish(told));
    }
}

fn clean(text: &[u8]) -> Cow<'_, str> {
    let text = String::from_utf8_lossy(text);
    if !text.contains('\x1b') {
        return text;
    }
    let mut clean = String::new();
    strip_colours(&text, &mut clean);
    Cow::Owned(clean.trim().to_string())
}

/// Recognises the output of tools.
pub(super) fn recognise(head: &Head<'_>) -> Recognised {
    is_output(head).then(|| claim(Output))?
}

struct Output;

impl Reader for Output {
    fn name(&self) -> &'static str {
        "output of tools"
    }

    fn read(&self, file: &mut Contents<'_>, reading: &mut Reading) -> Result<(), Error> {
        let head = Head { bytes: &[], lines: file.head, options: file.options };
        read(&mut file.lines, &head, reading)
    }
}

/// Whether the head of a file is the output of tools, rather than a log that shows some of it once.
fn is_output(head: &Head<'_>) -> bool {
    let (mut tools, mut told) = (Tools::new(head), Vec::new());
    let mut scout = Scout::new(head.options);
    let (mut claimed, mut memory_lines) = (0, 0);
    for line in head.lines {
        let clean = clean(line.text.as_bytes());
        match tools.take(&clean, &mut told) {
            Claim::Yes => claimed += 1,
            Claim::No => memory_lines += usize::from(scout.shows_memory(&clean)),
        }
    }
    tools.finish(&mut told);
    let snapshots =
        told.iter().map(|one| told.iter().filter(|other| other.identity == one.identity).count()).take(MOST_LOOKED_AT);
    match snapshots.max() {
        None => false,
        Some(1) => memory_lines == 0 && 2 * claimed >= head.lines.len(),
        Some(most) => most > memory_lines,
    }
}

/// Samples whose recurrence is looked at for recognition.
const MOST_LOOKED_AT: usize = 50;

/// Reads the samples of all tools.
fn read<R: Read>(lines: &mut Lines<R>, head: &Head<'_>, reading: &mut Reading) -> Result<(), Error> {
    let options = head.options;
    let mut samples = Samples { tools: Tools::new(head), last_stamps: Vec::new() };
    let mut told = Vec::new();
    while let Some(line) = lines.next()? {
        reading.leave();
        if line.end == LineEnd::TooLong {
            reading.skip_line(TOO_LONG, line.number, || show_line(line.text));
            continue;
        }
        let text = clean(line.text);
        if samples.tools.take(&text, &mut told) == Claim::No && text.contains(char::is_alphanumeric) {
            reading.skip_line("not output of a known tool", line.number, || show_line(line.text));
        }
        for one in told.drain(..) {
            samples.push(one, line.number, options, reading)?;
        }
    }
    samples.tools.finish(&mut told);
    for one in told.drain(..) {
        samples.push(one, 0, options, reading)?;
    }
    let families = &samples.tools.families;
    families.iter().filter_map(|family| family.note()).for_each(|note| reading.note(note));
    families.iter().find_map(|family| family.refusal()).map_or(Ok(()), Err)
}

/// Puts samples into their series.
struct Samples {
    tools: Tools,
    /// The number of the stamp that each series used last.
    last_stamps: Vec<u64>,
}

impl Samples {
    fn push(&mut self, told: Told, line: u64, options: &ReadOptions, reading: &mut Reading) -> Result<(), Error> {
        check_options(&told, options, reading)?;
        let key = told.identity.as_ref().map_or(String::new(), key_of);
        let identity = told.identity.clone();
        if !reading.enter_optional(key.as_bytes(), || identity) {
            reading.skip_line(TOO_MANY_SERIES, line, || key);
            return Ok(());
        }
        if told.tool == processes::TOP {
            reading.least_peak = Some(LEAST_PEAK);
        }
        let stamp = told.stamp.or(self.tools.stamps.now());
        let mut sample = told.sample;
        sample.time_s = self.fresh(stamp, reading.place()).or(sample.time_s);
        stamp.iter().for_each(|stamp| reading.times.saw(stamp.form));
        let series = reading.current();
        series.format = Some(told.tool.name);
        series.trace.subject = told.subject;
        series.trace.names.entry(Quantity::Rss).or_insert_with(|| told.column.to_string());
        series.saw_factor(told.factor);
        told.limit.iter().for_each(|&limit| series.saw_limit(limit));
        told.note.into_iter().for_each(|note| series.note(note));
        reading.push(&sample);
        Ok(())
    }

    /// The time of a stamp, unless the series has a sample at it: one `date` at the top of a file dates one snapshot.
    fn fresh(&mut self, stamp: Option<Stamp>, place: usize) -> Option<f64> {
        let stamp = stamp?;
        self.last_stamps.resize(self.last_stamps.len().max(place + 1), 0);
        let is_fresh = std::mem::replace(&mut self.last_stamps[place], stamp.number) != stamp.number;
        is_fresh.then_some(stamp.time_s)
    }
}

/// The key of a series: a process keeps it when it changes its title.
fn key_of(identity: &Identity) -> String {
    Identity { detail: None, ..identity.clone() }.name(|_| true)
}

fn check_options(told: &Told, options: &ReadOptions, reading: &mut Reading) -> Result<(), Error> {
    if let Some(asked) = options.column.as_ref().filter(|asked| !asked.eq_ignore_ascii_case(told.column)) {
        return Err(Error::NoSuchColumn { asked: asked.clone(), available: vec![told.column.to_string()] });
    }
    if options.unit.is_some() && told.tool != free::FREE {
        reading.note(format!("`--unit` is ignored: the unit of `{}` is known", told.tool.name));
    }
    Ok(())
}

/// A number with a unit glued to it, as tools print them: `1.2g`, `23Gi`, `1.5GiB`, `4160`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Figure {
    value: f64,
    pub(super) factor: Option<u64>,
    decimals: usize,
}

impl Figure {
    pub(super) fn parse(text: &str) -> Option<Figure> {
        let end = text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | ','))).unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        // Some locales print a comma for the point.
        let number = number.replace(',', ".");
        let value = number.parse::<f64>().ok().filter(|value| value.is_finite())?;
        let factor = match unit {
            "" => None,
            "Ki" | "Mi" | "Gi" | "Ti" => garden_memory::unit_factor(&unit[..1]),
            _ => Some(garden_memory::unit_factor(unit)?),
        };
        let decimals = number.split_once('.').map_or(0, |(_, decimals)| decimals.len());
        Some(Figure { value, factor, decimals })
    }

    /// The number of bytes; `factor` applies where no unit is written.
    pub(super) fn bytes(self, factor: u64) -> Option<u64> {
        crate::amount::Amount { value: self.value, factor: self.factor }.scaled(factor).ok()
    }
}

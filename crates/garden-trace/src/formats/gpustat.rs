//! `gpustat`, once or again and again into one file: rows of GPUs, or with `--json` an object for each moment. Amounts are MiB.

use std::io::{BufReader, Read};

use garden_memory::{MIB, Quantity, Sample, Subject};
use serde::Deserialize;

use super::tools::{Claim, Family, Figure, Listen, Told, Tool};
use super::{Contents, Head, Reader, Recognised, claim};
use crate::error::Error;
use crate::lines::Lines;
use crate::reading::Reading;
use crate::series::identity::{Identity, Who};
use crate::time::{Stamp, parse_moment};

/// Recognises the output of `gpustat --json`.
pub(super) fn recognise(head: &Head<'_>) -> Recognised {
    let text = head.json_keys();
    let has_keys = ["\"query_time\"", "\"gpus\"", "\"memory.used\""].iter().all(|key| text.contains(key));
    (text.starts_with('{') && has_keys).then(|| claim(Gpustat))?
}

struct Gpustat;

impl Reader for Gpustat {
    fn name(&self) -> &'static str {
        "gpustat"
    }

    fn read(&self, file: &mut Contents<'_>, reading: &mut Reading) -> Result<(), Error> {
        read(&mut file.lines, reading)
    }
}

#[derive(Deserialize)]
struct Snapshot {
    query_time: Option<String>,
    gpus: Vec<Gpu>,
}

#[derive(Deserialize)]
struct Gpu {
    index: u32,
    #[serde(rename = "memory.used")]
    used: Option<u64>,
    #[serde(rename = "memory.total")]
    total: Option<u64>,
}

/// The reason given for what follows a broken object.
const BROKEN: &str = "the object is incomplete or not of `gpustat`; nothing behind it is read";

/// Reads the objects.
fn read<R: Read>(lines: &mut Lines<R>, reading: &mut Reading) -> Result<(), Error> {
    let objects = serde_json::Deserializer::from_reader(BufReader::new(lines.reader())).into_iter::<Snapshot>();
    for object in objects {
        reading.leave();
        match object {
            Ok(snapshot) => take(&snapshot, reading),
            Err(error) => reading.skip_line(BROKEN, error.line() as u64, || format!("`{error}`")),
        }
    }
    Ok(())
}

fn take(snapshot: &Snapshot, reading: &mut Reading) {
    let moment = snapshot.query_time.as_deref().and_then(parse_moment);
    moment.iter().for_each(|moment| reading.times.saw(moment.form));
    for gpu in &snapshot.gpus {
        let Some(used) = gpu.used else { continue };
        reading.enter(&gpu.index.to_le_bytes(), || Identity::of(Who::Gpu, gpu.index.to_string()));
        let series = reading.current();
        series.trace.subject = Subject::Device;
        series.saw_factor(MIB);
        gpu.total.iter().for_each(|total| series.saw_limit(total.saturating_mul(MIB)));
        let mut sample = Sample::default();
        sample.time_s = moment.map(|moment| moment.seconds);
        sample.set(Quantity::Rss, used.saturating_mul(MIB));
        reading.name_main("memory.used");
        reading.push(&sample);
    }
}

const GPUSTAT: Tool = Tool { name: "gpustat", documented_as: "gpustat", example: "gpustat.txt" };

/// `gpustat` without `--json`, for the table of tools.
pub(super) const FAMILY: Family = Family { tools: &[GPUSTAT], listen: |_| Box::new(Rows) };

struct Rows;

impl Listen for Rows {
    fn take(&mut self, line: &str, _: Option<Stamp>, told: &mut Vec<Told>) -> Claim {
        let Some(one) = row(line) else { return Claim::No };
        told.push(one);
        Claim::Yes
    }
}

/// A row such as `[0] NVIDIA A100 | 35'C,  80 % | 30000 / 81920 MB | user(29000M)`.
fn row(line: &str) -> Option<Told> {
    let (index, rest) = line.strip_prefix('[')?.split_once(']')?;
    index.parse::<u32>().ok()?;
    let usage = |cell: &str| {
        let (used, total) = cell.trim().strip_suffix(" MB")?.split_once(" / ")?;
        Some((Figure::parse(used.trim())?.bytes(MIB)?, Figure::parse(total.trim())?.bytes(MIB)?))
    };
    let (used, total) = rest.split('|').skip(1).find_map(usage)?;
    let mut one = Told::new(GPUSTAT, Subject::Device, "memory.used", used, MIB);
    one.limit = Some(total);
    Some(one.of(Identity::of(Who::Gpu, index)))
}

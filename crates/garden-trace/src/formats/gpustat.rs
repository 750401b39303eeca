//! `gpustat --json`, once or again and again into one file: an object for each moment, with a list of GPUs, in MiB.

use std::io::{BufReader, Read};

use garden_memory::{MIB, Quantity, Sample, Subject};
use serde::Deserialize;

use crate::error::Error;
use crate::lines::Lines;
use crate::reading::Reading;
use crate::series::identity::{Identity, Who};
use crate::time::parse_moment;

/// How much of a file is searched for the keys.
const KEYS_WITHIN: usize = 4096;

/// Whether the head of a file is of `gpustat --json`.
pub(crate) fn recognise(head: &[u8]) -> bool {
    let text = String::from_utf8_lossy(&head[..head.len().min(KEYS_WITHIN)]);
    text.trim_start().starts_with('{')
        && ["\"query_time\"", "\"gpus\"", "\"memory.used\""].iter().all(|key| text.contains(key))
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
pub(crate) fn read<R: Read>(lines: &mut Lines<R>, reading: &mut Reading) -> Result<(), Error> {
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

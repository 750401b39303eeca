//! Answers of Prometheus to range queries: `{"status":"success","data":{"resultType":"matrix","result":[..]}}`, the list
//! in `result` alone, or one series' list of `values`.
//!
//! Each result is a series, named by the labels in which the results differ. Values are bytes unless the metric's name
//! says otherwise. An instant query has one value per series, which is no trace.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufReader, Read};

use garden_memory::{MIB, Quantity, Sample, Subject};
use serde::Deserialize;

use super::{Contents, Head, Reader, Recognised, claim};
use crate::ReadOptions;
use crate::amount::Amount;
use crate::error::Error;
use crate::lines::Lines;
use crate::reading::{BareColumn, Reading};
use crate::series::identity::{Identity, Part, Who};
use crate::unit::rule::PROMETHEUS;

/// What an answer looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Answer,
    Results,
    Values,
}

/// Recognises an answer of Prometheus.
pub(super) fn recognise(head: &Head<'_>) -> Recognised {
    let text = head.json_keys();
    let is_values = text.strip_prefix("[[").is_some_and(|rest| {
        let after_number = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        after_number.len() < rest.len() && after_number.starts_with(",\"")
    });
    match () {
        _ if text.starts_with('{') && text.contains("\"resultType\":") => claim(Form::Answer),
        _ if text.starts_with("[{\"metric\":") => claim(Form::Results),
        _ if is_values => claim(Form::Values),
        _ => None,
    }
}

impl Reader for Form {
    fn name(&self) -> &'static str {
        "prometheus"
    }

    fn read(&self, file: &mut Contents<'_>, reading: &mut Reading) -> Result<(), Error> {
        read(&mut file.lines, *self, file.options, reading)
    }
}

#[derive(Deserialize)]
struct Answer {
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    #[serde(rename = "resultType")]
    kind: String,
    result: Vec<Found>,
}

#[derive(Deserialize)]
struct Found {
    #[serde(default)]
    metric: BTreeMap<String, String>,
    #[serde(default)]
    values: Vec<(f64, String)>,
}

/// Reads the series of an answer.
fn read<R: Read>(lines: &mut Lines<R>, form: Form, options: &ReadOptions, reading: &mut Reading) -> Result<(), Error> {
    let text = BufReader::new(lines.reader());
    let wrong = |_: serde_json::Error| UNREADABLE;
    let found: Vec<Found> = match form {
        Form::Answer => {
            let Answer { data } = serde_json::from_reader(text).map_err(wrong)?;
            if data.kind != "matrix" {
                return Err(INSTANT);
            }
            data.result
        }
        Form::Results => serde_json::from_reader(text).map_err(wrong)?,
        Form::Values => {
            let values = serde_json::from_reader(text).map_err(wrong)?;
            vec![Found { metric: BTreeMap::new(), values }]
        }
    };
    if found.iter().all(|one| one.values.is_empty()) {
        let (problem, advice) = ("the query of Prometheus found no samples", "check the query and its time range");
        return Err(Error::NoUsedMemory { problem, advice });
    }
    let labels: BTreeSet<String> = found.iter().flat_map(|one| one.metric.keys().cloned()).collect();
    found.iter().try_for_each(|one| take(one, &labels, options, reading))
}

const UNREADABLE: Error = Error::NoUsedMemory {
    problem: "the answer of Prometheus is incomplete, or not of a range query",
    advice: "save the whole answer of `/api/v1/query_range?query=..&start=..&end=..&step=15s`",
};

const INSTANT: Error = Error::NoUsedMemory {
    problem: "an instant query of Prometheus has one value per series",
    advice: "use a range query: `/api/v1/query_range?query=..&start=..&end=..&step=15s`",
};

const ADVICE: &str = "query memory in use, such as `process_resident_memory_bytes`, `container_memory_working_set_bytes` \
    or `node_memory_MemTotal_bytes - node_memory_MemAvailable_bytes`";

const FREE: Error = Error::NoUsedMemory { problem: "this metric of Prometheus is not memory in use", advice: ADVICE };

const SHARE: Error =
    Error::NoUsedMemory { problem: "this metric of Prometheus is a share of memory, not an amount", advice: ADVICE };

const VIRTUAL: Error = Error::NoUsedMemory {
    problem: "this metric of Prometheus is virtual memory, most of which a process never uses",
    advice: ADVICE,
};

const OTHER: Error =
    Error::NoUsedMemory { problem: "this metric of Prometheus is a counter or a time, not memory", advice: ADVICE };

fn take(found: &Found, labels: &BTreeSet<String>, options: &ReadOptions, reading: &mut Reading) -> Result<(), Error> {
    let name = found.metric.get("__name__").map_or("value", String::as_str);
    if let Some(refusal) = refusal_of(&name.to_ascii_lowercase()) {
        return Err(refusal);
    }
    let part = |label: &String| {
        let value = found.metric.get(label).map_or("", String::as_str);
        Part {
            who: Who::Label,
            value: if label == "__name__" { value.to_string() } else { format!("{label}={value}") },
        }
    };
    let identity = Identity { parts: labels.iter().map(part).collect(), detail: None };
    reading.enter(identity.name(|_| true).as_bytes(), || identity.clone());
    reading.name_main(name);
    reading.trace().subject = subject_of(name, &found.metric);
    let factor = options.unit.map(|unit| unit.factor()).or_else(|| factor_of(name));
    if factor.is_none() {
        let column = BareColumn { name: name.to_string(), convention: PROMETHEUS, provisional: 1, in_log: None };
        reading.declare_bare(Quantity::Rss, column);
    }
    found.values.iter().for_each(|(time_s, value)| take_value(*time_s, value, factor, reading));
    Ok(())
}

fn take_value(time_s: f64, text: &str, factor: Option<u64>, reading: &mut Reading) {
    let value = text.parse::<f64>().unwrap_or(f64::NAN);
    let bytes = match (Amount { value, factor: None }).scaled(factor.unwrap_or(1)) {
        Ok(bytes) => bytes,
        Err(problem) => return reading.skip_value(problem.reason(), 1, || format!("`{text}`")),
    };
    let mut sample = Sample::default();
    sample.time_s = Some(time_s).filter(|time| time.is_finite());
    sample.set(Quantity::Rss, bytes);
    match factor {
        Some(factor) => {
            reading.saw_factor(factor);
            reading.push(&sample);
        }
        None => reading.push_bare(&sample, &[(Quantity::Rss, value)]),
    }
}

/// Whether a metric's name says that it is memory in use.
pub(super) fn is_memory_in_use(metric: &str) -> bool {
    let lower = metric.to_ascii_lowercase();
    let is_memory = ["memory", "_rss", "resident", "working_set", "fb_used"].iter().any(|part| lower.contains(part));
    is_memory && refusal_of(&lower).is_none()
}

/// Whose memory a metric is, by its name.
pub(super) fn subject_of_metric(metric: &str) -> Subject {
    subject_of(metric, &BTreeMap::new())
}

/// The refusal of a metric that is not memory in use, by its name in lower case.
fn refusal_of(lower: &str) -> Option<Error> {
    let has = |parts: &[&str]| parts.iter().any(|part| lower.contains(part));
    match () {
        _ if has(&["memavailable", "memfree", "memtotal", "_limit", "fb_free", "fb_total"]) => Some(FREE),
        _ if has(&["percent", "_pct", "ratio", "utilization", "mem_copy_util"]) => Some(SHARE),
        _ if has(&["virtual", "_vsize", "vms"]) => Some(VIRTUAL),
        // Counters never fall, and times are no amounts.
        _ if lower.ends_with("_total") || has(&["_seconds", "cpu_usage"]) => Some(OTHER),
        _ => None,
    }
}

fn is_device(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["dcgm", "gpu", "nvidia"].iter().any(|part| name.contains(part))
}

fn subject_of(name: &str, labels: &BTreeMap<String, String>) -> Subject {
    match () {
        _ if is_device(name) => Subject::Device,
        _ if name.starts_with("node_") => Subject::Machine,
        _ if name.starts_with("process_") => Subject::Process,
        _ if name.starts_with("container_") || labels.contains_key("container") || labels.contains_key("pod") => {
            Subject::Container
        }
        _ => Subject::Process,
    }
}

/// The unit that a metric's name states; DCGM's frame buffer metrics are in MiB.
pub(super) fn factor_of(name: &str) -> Option<u64> {
    match () {
        _ if name.starts_with("DCGM_FI_DEV_FB_") => Some(MIB),
        _ if name.ends_with("_bytes") => Some(1),
        _ => None,
    }
}

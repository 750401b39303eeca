//! Metrics as clouds answer with them: the pods and nodes of Kubernetes' metrics API, and the datapoints of CloudWatch.
//!
//! Kubernetes: `kubectl get --raw /apis/metrics.k8s.io/v1beta1/namespaces/NS/pods/POD`, again and again; amounts are quantities such as
//! `4094378Ki`. CloudWatch: `aws cloudwatch get-metric-statistics`, whose datapoints are in no order. Only memory is read.

use std::io::{BufReader, Read};

use garden_memory::{GIB, KIB, MIB, Quantity, Sample, Subject};
use serde::Deserialize;

use crate::error::Error;
use crate::lines::Lines;
use crate::reading::Reading;
use crate::series::identity::{Identity, Part, Who};
use crate::time::parse_moment;

/// Whose answer it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cloud {
    Kubernetes,
    CloudWatch,
}

impl Cloud {
    /// The name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Cloud::Kubernetes => "kubernetes metrics",
            Cloud::CloudWatch => "cloudwatch",
        }
    }
}

/// How much of a file is searched for the keys of an answer.
const KEYS_WITHIN: usize = 4096;

/// Whether the head of a file is such an answer.
pub(crate) fn recognise(head: &[u8]) -> Option<Cloud> {
    let text: String = String::from_utf8_lossy(&head[..head.len().min(KEYS_WITHIN)]).split_whitespace().collect();
    let kinds = ["PodMetrics", "NodeMetrics", "PodMetricsList", "NodeMetricsList"];
    match text.starts_with('{') {
        true if kinds.iter().any(|kind| text.contains(&format!("\"kind\":\"{kind}\""))) => Some(Cloud::Kubernetes),
        true if text.contains("\"Datapoints\":[") => Some(Cloud::CloudWatch),
        _ => None,
    }
}

const UNREADABLE: Error = Error::NoUsedMemory {
    problem: "it begins like an answer of a metrics API, but is not valid JSON",
    advice: "save whole answers, one below the other",
};

/// Reads the answers, one below the other.
pub(crate) fn read<R: Read>(lines: &mut Lines<R>, cloud: Cloud, reading: &mut Reading) -> Result<(), Error> {
    let reader = BufReader::new(lines.reader());
    let mut number = 0;
    match cloud {
        Cloud::Kubernetes => {
            for one in serde_json::Deserializer::from_reader(reader).into_iter::<Metrics>() {
                number += 1;
                match one {
                    Ok(one) => take_metrics(&one, number, reading),
                    // The last answer may be cut off.
                    Err(_) if !reading.is_empty() => {
                        reading.skip_line("an answer is incomplete", number, || "the answer".into());
                        break;
                    }
                    Err(_) => return Err(UNREADABLE),
                }
            }
        }
        Cloud::CloudWatch => {
            for one in serde_json::Deserializer::from_reader(reader).into_iter::<Statistics>() {
                take_statistics(one.map_err(|_| UNREADABLE)?, reading)?;
            }
        }
    }
    Ok(())
}

/// An object of the metrics API: of a pod, of a node, or a list of them.
#[derive(Deserialize)]
struct Metrics {
    #[serde(default)]
    metadata: Metadata,
    timestamp: Option<String>,
    #[serde(default)]
    containers: Vec<Container>,
    usage: Option<Usage>,
    #[serde(default)]
    items: Vec<Metrics>,
}

#[derive(Default, Deserialize)]
struct Metadata {
    name: Option<String>,
}

#[derive(Deserialize)]
struct Container {
    name: String,
    usage: Usage,
}

#[derive(Deserialize)]
struct Usage {
    memory: Option<String>,
}

fn take_metrics(metrics: &Metrics, number: u64, reading: &mut Reading) {
    metrics.items.iter().for_each(|item| take_metrics(item, number, reading));
    let time_s = metrics.timestamp.as_deref().and_then(parse_moment).map(|moment| moment.seconds);
    let owner = metrics.metadata.name.as_ref();
    for container in &metrics.containers {
        let named = owner.into_iter().chain([&container.name]);
        let parts = named.map(|name| Part { who: Who::Named, value: name.clone() });
        let identity = Identity { parts: parts.collect(), detail: None };
        take_usage(&container.usage, identity, Subject::Container, time_s, number, reading);
    }
    if let Some(usage) = &metrics.usage {
        let identity = Identity::of(Who::Host, owner.cloned().unwrap_or_default());
        take_usage(usage, identity, Subject::Machine, time_s, number, reading);
    }
}

fn take_usage(
    usage: &Usage,
    identity: Identity,
    subject: Subject,
    time_s: Option<f64>,
    number: u64,
    reading: &mut Reading,
) {
    let text = usage.memory.as_deref().unwrap_or_default();
    let Some(bytes) = quantity(text) else {
        return reading.skip_line("no memory value", number, || format!("`{text}`"));
    };
    reading.enter(identity.name(|_| true).as_bytes(), || identity.clone());
    reading.name_main("usage.memory");
    reading.trace().subject = subject;
    let mut sample = Sample::default();
    sample.time_s = time_s;
    sample.set(Quantity::Rss, bytes as u64);
    reading.saw_factor(1);
    reading.push(&sample);
    reading.leave();
}

/// A quantity of Kubernetes: `4094378Ki`, `128974848`, `129M`, `128974848000m`.
fn quantity(text: &str) -> Option<f64> {
    const SUFFIXES: [(&str, f64); 11] = [
        ("Ki", KIB as f64),
        ("Mi", MIB as f64),
        ("Gi", GIB as f64),
        ("Ti", 1024.0 * GIB as f64),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("m", 1e-3),
        ("u", 1e-6),
        ("n", 1e-9),
    ];
    let (number, factor) =
        SUFFIXES.iter().find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, *factor))).unwrap_or((text, 1.0));
    number.parse::<f64>().ok().map(|number| number * factor).filter(|bytes| (0.0..9.2e18).contains(bytes))
}

/// The answer of `get-metric-statistics`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Statistics {
    #[serde(default)]
    label: String,
    datapoints: Vec<Datapoint>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Datapoint {
    timestamp: String,
    average: Option<f64>,
    maximum: Option<f64>,
    minimum: Option<f64>,
    #[serde(default)]
    unit: String,
}

const SHARE: Error = Error::NoUsedMemory {
    problem: "this metric of CloudWatch is a share of memory, not an amount",
    advice: "ask for an amount, such as `mem_used` of the CloudWatch agent or `MemoryUtilized` of Container Insights",
};

fn take_statistics(mut statistics: Statistics, reading: &mut Reading) -> Result<(), Error> {
    let time = |point: &Datapoint| parse_moment(&point.timestamp).map_or(f64::NAN, |moment| moment.seconds);
    statistics.datapoints.sort_by(|a, b| time(a).total_cmp(&time(b)));
    let identity = Identity::of(Who::Named, statistics.label.clone());
    for point in &statistics.datapoints {
        let Some(factor) = unit(&point.unit) else { return Err(SHARE) };
        let Some(value) = point.average.or(point.maximum).or(point.minimum) else {
            reading.skip_line("no memory value", 1, || format!("`{}`", point.timestamp));
            continue;
        };
        reading.enter(statistics.label.as_bytes(), || identity.clone());
        reading.name_main(&statistics.label);
        reading.trace().subject = Subject::Container;
        let mut sample = Sample::default();
        sample.time_s = Some(time(point)).filter(|time| time.is_finite());
        sample.set(Quantity::Rss, (value * factor).max(0.0) as u64);
        reading.saw_factor(factor as u64);
        reading.push(&sample);
        reading.leave();
    }
    Ok(())
}

/// Bytes per unit of CloudWatch; `None` for what is no amount.
fn unit(name: &str) -> Option<f64> {
    Some(match name {
        "" | "None" | "Bytes" => 1.0,
        "Kilobytes" => KIB as f64,
        "Megabytes" => MIB as f64,
        "Gigabytes" => GIB as f64,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_of_kubernetes() {
        for (text, bytes) in
            [("4094378Ki", 4_192_643_072.0), ("129M", 129e6), ("7", 7.0), ("128974848000m", 128_974_848.0)]
        {
            assert_eq!(quantity(text), Some(bytes), "{text}");
        }
        assert_eq!([quantity(""), quantity("-1"), quantity("1x")], [None; 3]);
    }
}

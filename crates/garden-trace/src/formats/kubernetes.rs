//! The metrics API of Kubernetes: `kubectl get --raw /apis/metrics.k8s.io/v1beta1/namespaces/NS/pods/POD`, again and again.
//!
//! Objects are of a pod, of a node, or lists of them, with their `kind` or, as items that were taken out of a list, without; amounts
//! are quantities such as `4094378Ki`. Only memory is read.

use std::io::BufReader;

use garden_memory::{GIB, KIB, MIB, Quantity, Sample, Subject};
use serde::Deserialize;

use super::{Contents, Head, Reader, Recognised, claim};
use crate::error::Error;
use crate::reading::Reading;
use crate::series::identity::{Identity, Part, Who};
use crate::time::parse_moment;

const UNREADABLE: Error = Error::NoUsedMemory {
    problem: "it begins like an answer of a metrics API, but is not valid JSON",
    advice: "save whole answers, one below the other",
};

/// Recognises an object of the metrics API.
pub(super) fn recognise(head: &Head<'_>) -> Recognised {
    let text = head.json_keys();
    let kinds = ["PodMetrics", "NodeMetrics", "PodMetricsList", "NodeMetricsList"];
    let has_kind = kinds.iter().any(|kind| text.contains(&format!("\"kind\":\"{kind}\"")));
    // Amounts that are texts, below the name of an object: nobody else writes that.
    let has_usage = ["\"usage\":{\"cpu\":\"", "\"usage\":{\"memory\":\""].iter().any(|key| text.contains(key));
    let is_item = has_usage && text.contains("\"metadata\":{");
    (text.starts_with(['{', '[']) && (has_kind || is_item)).then(|| claim(Kubernetes))?
}

struct Kubernetes;

impl Reader for Kubernetes {
    fn name(&self) -> &'static str {
        "kubernetes metrics"
    }

    fn read(&self, file: &mut Contents<'_>, reading: &mut Reading) -> Result<(), Error> {
        let answers = serde_json::Deserializer::from_reader(BufReader::new(file.lines.reader())).into_iter::<Answer>();
        for (answer, number) in answers.zip(1..) {
            match answer {
                Ok(Answer::One(metrics)) => take_metrics(&metrics, number, reading),
                Ok(Answer::Several(all)) => all.iter().for_each(|metrics| take_metrics(metrics, number, reading)),
                // The last answer may be cut off.
                Err(_) if !reading.is_empty() => {
                    reading.skip_line("an answer is incomplete", number, || "the answer".into());
                    break;
                }
                Err(_) => return Err(UNREADABLE),
            }
        }
        Ok(())
    }
}

/// What a command prints.
#[derive(Deserialize)]
#[serde(untagged)]
enum Answer {
    One(Box<Metrics>),
    Several(Vec<Metrics>),
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

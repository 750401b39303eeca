//! `aws cloudwatch get-metric-statistics`: datapoints, which come in no order. Shares of memory are refused.

use std::io::BufReader;

use garden_memory::{GIB, KIB, MIB, Quantity, Sample, Subject};
use serde::Deserialize;

use super::{Contents, Head, Reader, Recognised, claim};
use crate::error::Error;
use crate::reading::Reading;
use crate::series::identity::{Identity, Who};
use crate::time::parse_moment;

const UNREADABLE: Error = Error::NoUsedMemory {
    problem: "it begins like an answer of a metrics API, but is not valid JSON",
    advice: "save whole answers, one below the other",
};

/// Recognises an answer with datapoints.
pub(super) fn recognise(head: &Head<'_>) -> Recognised {
    let text = head.json_keys();
    (text.starts_with('{') && text.contains("\"Datapoints\":[")).then(|| claim(CloudWatch))?
}

struct CloudWatch;

impl Reader for CloudWatch {
    fn name(&self) -> &'static str {
        "cloudwatch"
    }

    fn read(&self, file: &mut Contents<'_>, reading: &mut Reading) -> Result<(), Error> {
        let answers =
            serde_json::Deserializer::from_reader(BufReader::new(file.lines.reader())).into_iter::<Statistics>();
        answers.into_iter().try_for_each(|answer| take_statistics(answer.map_err(|_| UNREADABLE)?, reading))
    }
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

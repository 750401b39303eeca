//! What `chart.js` draws, as far as it can be known without a browser: Node runs it with a few stand-ins for one.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test that cannot go on must fail")]

use std::io::Write;
use std::process::{Command, Stdio};

use garden_report::{Axis, Chart, Curve, Level, Scale, Size, Unit};
use serde_json::{Value, json};

/// The texts and paths of the picture of a chart; `None` where there is no Node.
fn drawn(chart: &Chart) -> Option<Vec<Value>> {
    let assets = concat!(env!("CARGO_MANIFEST_DIR"), "/assets");
    let source =
        ["words.js", "parts.js", "chart.js"].map(|name| std::fs::read_to_string(format!("{assets}/{name}")).unwrap());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/drawing.js");
    let node = Command::new("node").arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let Ok(mut node) = node else {
        garden_testing::missing("node");
        return None;
    };
    let input = json!({ "source": source.join("\n"), "data": chart }).to_string();
    node.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = node.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

fn of_class<'a>(drawn: &'a [Value], class: &str) -> Vec<&'a Value> {
    let is_of = |node: &&Value| node["classes"].as_str().unwrap().split(' ').any(|one| one == class);
    drawn.iter().filter(is_of).collect()
}

fn chart(values: Vec<f64>, unit: Unit) -> Chart {
    Chart {
        title: "Memory".into(),
        size: Size::Large,
        unit,
        axis: Axis { name: "step".into(), to: values.len() as f64, ..Axis::default() },
        places: (0..values.len()).map(|place| place as f64).collect(),
        curves: vec![Curve { name: "held".into(), values, ..Curve::default() }],
        ..Chart::default()
    }
}

#[test]
fn labels_of_levels_do_not_lie_over_each_other() {
    let mib = f64::from(1 << 20);
    for apart in [0.0, 0.5, 2.0, 5.0, 9.0, 400.0] {
        let mut chart = chart((0..50).map(|step| (80.0 + f64::from(step % 7)) * mib).collect(), Unit::Bytes);
        let level = |name: &str, value: f64| Level { name: name.into(), value: value * mib, ..Level::default() };
        chart.levels =
            vec![level("planned", 100.0), level("limit", 100.0 + apart), level("stopped", 100.0 + 2.0 * apart)];
        let Some(drawn) = drawn(&chart) else { return };
        let labels = of_class(&drawn, "level");
        let labels: Vec<_> = labels.iter().filter(|label| label["words"].is_string()).collect();
        assert_eq!(labels.len(), 3, "{drawn:#?}");
        for (place, one) in labels.iter().enumerate() {
            for other in &labels[..place] {
                let distance = (one["y"].as_f64().unwrap() - other["y"].as_f64().unwrap()).abs();
                assert!(distance >= 12.0 || one["x"] != other["x"], "{apart}: {one} over {other}");
            }
        }
    }
}

/// The heights of a curve, from its path.
fn heights(drawn: &[Value]) -> Vec<f64> {
    let lines = of_class(drawn, "curve");
    let path = lines.iter().find_map(|node| node["path"].as_str()).unwrap();
    let point = |point: &str| point.split(' ').nth(1).map(|y| y.parse().unwrap());
    path.split(['M', 'L']).filter_map(point).collect()
}

#[test]
fn a_loss_that_falls_by_decades_fills_a_logarithmic_axis() {
    let losses: Vec<f64> = (0..400).map(|step| 4.0 * (-f64::from(step) / 60.0).exp() + 0.001).collect();
    let mut chart = chart(losses, Unit::Number);
    let Some(linear) = drawn(&chart) else { return };
    chart.scale = Scale::Logarithmic;
    let logarithmic = drawn(&chart).unwrap();
    // How much of the height the second half of the run takes.
    let share = |drawn: &[Value]| {
        let heights = heights(drawn);
        let range = |part: &[f64]| {
            part.iter().copied().fold(f64::MIN, f64::max) - part.iter().copied().fold(f64::MAX, f64::min)
        };
        range(&heights[200..]) / range(&heights)
    };
    assert!(share(&linear) < 0.05 && share(&logarithmic) > 0.3, "{} {}", share(&linear), share(&logarithmic));
    let ticks: Vec<&str> = of_class(&logarithmic, "axis-y").iter().filter_map(|tick| tick["words"].as_str()).collect();
    assert!(ticks.len() >= 3 && ticks.contains(&"0.01") && ticks.contains(&"1"), "{ticks:?}");
}

#[test]
fn what_has_no_logarithm_is_left_out() {
    let mut chart = chart(vec![0.0, 1.0, 10.0, -3.0, 100.0], Unit::Number);
    chart.scale = Scale::Logarithmic;
    let Some(drawn) = drawn(&chart) else { return };
    let heights = heights(&drawn);
    assert!(heights.len() == 3 && heights.iter().all(|height| height.is_finite()), "{heights:?}");
}

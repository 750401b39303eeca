//! The demo: what it says and what it learns.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::process::Command;

use crate::common::{run, scratch, told};
use serde_json::Value;

/// A few steps of the demo; docs/demo.md has what all of them bring.
#[test]
fn the_demo_begins_to_learn() {
    let folder = scratch("train-demo");
    let output = folder.join("demo");
    let words = ["demo", "--output-dir", output.to_str().unwrap(), "--seed", "3", "--max-steps", "80", "--json"];
    let ended = run(&words);
    assert!(ended.status.success(), "{}", told(&ended));
    let result: Value = serde_json::from_slice(&ended.stdout).unwrap();
    let evaluations = &result["evaluations"];
    let (first, last) = (&evaluations["first"], &evaluations["last"]);
    assert_eq!((first["rows"].as_u64(), first["answers"].as_u64()), (Some(144), Some(144)));
    assert_eq!(first["field_accuracy"], 0.0);
    // Twice as good as a guess, which would be right in 31 % of fields.
    assert!(last["field_accuracy"].as_f64().unwrap() > 0.62, "{last}");
    for line in result["memory"].as_array().unwrap().iter().filter(|line| line["purpose"] != "all") {
        let bytes = |name: &str| line[name].as_f64().unwrap();
        if line["purpose"] != "loader and the rest" {
            assert_eq!(bytes("planned_bytes"), bytes("measured_bytes"), "{line}");
        }
    }
    assert!(run(&words).status.code() == Some(2));
    // What will happen and where files go comes first; what to try next, last.
    let talk = String::from_utf8(ended.stderr).unwrap();
    let first = talk.lines().next().unwrap();
    assert!(first.starts_with("The demo draws 3024 pictures") && first.contains(output.to_str().unwrap()), "{first}");
    let last = talk.lines().last().unwrap();
    assert!(last.contains(" generate --model "), "{last}");
    let next = Command::new("sh").args(["-c", last]).output().unwrap();
    assert!(
        next.status.success() && String::from_utf8_lossy(&next.stdout).contains("\"shape\""),
        "{last}: {}",
        told(&next)
    );
}

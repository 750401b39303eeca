//! Records of real experiments: what is found in them, what must not change it, and that no damage to a record is more than an error.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on must fail")]

use std::path::Path;

use expect_test::{Expect, expect};
use garden_bisect::{Experiment, Finding, judge, page};
use garden_report::Tone;
use serde_json::{Value, json};

const RECORDS: [&str; 4] = ["photographs", "train", "rows", "failed"];
const LIMIT: Option<u64> = Some(32 << 30);

fn record(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../testdata/bisect/{name}.json"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn judged(record: &Value) -> Finding {
    judge(&Experiment::read(&record.to_string()).unwrap(), LIMIT)
}

/// Everything that a finding says about growth, on a line each.
fn told(finding: &Finding) -> String {
    let mut lines = vec![format!("{}: {}", finding.verdict.name(), finding.summary)];
    for growth in &finding.growths {
        lines.push(format!(
            "{}: {} of the {:?} at {:?}, {:?} per example, {:?} in all",
            growth.run,
            growth.cause.map_or("no cause", |cause| cause.name()),
            growth.keeper,
            growth.held_at,
            growth.bytes_per_example,
            growth.full_dataset_bytes
        ));
    }
    lines.extend(finding.stages.iter().map(|stage| format!("{}: {}", stage.name, stage.kind.name())));
    lines.join("\n") + "\n"
}

fn check(name: &str, expected: Expect) {
    expected.assert_eq(&told(&judged(&record(name))));
}

#[test]
fn photographs_that_are_opened_and_kept() {
    check(
        "photographs",
        expect![[r#"
        cache: The dataset keeps decoded images (`dataset[..]`, 32 images with decoded pixels): 1.75 MiB per example in the first pass, nothing in the next. They are decoded when the processor first uses them. All 40 examples need 70.0 MiB.
        dataset + processor: decoded_images_kept of the Some("dataset") at Some("dataset[..]"), Some(1836160) per example, Some(73446400) in all
        dataset: flat
        dataset + processor: cache
        dataset + processor + collator: flat
        processor alone: flat
        collator alone: flat
    "#]],
    );
}

#[test]
fn logits_with_their_graphs_and_a_dataset_that_caches() {
    check(
        "train",
        expect![[r#"
        leak: A variable of module train keeps 26.7 KiB per example in every pass (`train.LOGITS`, list of torch.Tensor with their autograd graphs, 3 → 23): a leak. It begins with the loss. Each epoch of 400 examples adds 10.4 MiB. Also: The dataset keeps 33.1 KiB for each new example (`dataset.cache`, dict of dict, 10 → 50), nothing for repeats: a cache. All 400 examples need 12.9 MiB.
        dataset + collator + model + loss: graph_kept of the Some("module train") at Some("module train.LOGITS"), Some(27341) per example, Some(10936400) in all
        dataset: example_cache of the Some("dataset") at Some("dataset.cache"), Some(33894) per example, Some(13557600) in all
        dataset: cache
        dataset + collator: flat
        dataset + collator + model: flat
        dataset + collator + model + loss: leak
        dataset + collator + model + loss + optimizer: flat
        collator alone: flat
        model alone: flat
    "#]],
    );
}

#[test]
fn rows_that_workers_copy() {
    check(
        "rows",
        expect![[r#"
        copies: The loader workers copy 21.1 KiB per example of the parent's memory by touching it. This is not a leak: it ends once all of it has been touched, about 6.17 MiB for 300 examples in each worker that sees them all.
        2 workers: worker_copy_on_write of the None at None, Some(21576) per example, Some(6472800) in all
        dataset: flat
        dataset + collator: flat
        2 workers: copies
        collator alone: flat
    "#]],
    );
}

#[test]
fn workers_copy_no_more_than_their_parent_has() {
    let shared = |record: &Value| {
        let run = record["runs"].as_array().unwrap().iter().find(|run| run["how"] == "workers").unwrap();
        let base = &run["base"]["workers"];
        (base["held"].as_i64().unwrap() - base["private"].as_i64().unwrap()) / 2
    };
    for length in [300, 5_000, 1_000_000] {
        let mut longer = record("rows");
        longer["dataset_length"] = json!(length);
        let finding = judged(&longer);
        let all = finding.growths[0].full_dataset_bytes.unwrap();
        assert!(all <= shared(&longer), "{length}: {all} of {}", shared(&longer));
        assert_eq!(finding.summary.contains("at most the"), all == shared(&longer), "{}", finding.summary);
    }
}

#[test]
fn a_processor_that_raises() {
    check(
        "failed",
        expect![[r#"
        failed: A run failed: the processor raised at example 31: ValueError: example 31 is torn (/home/me/project/broken.py:28 in at: raise ValueError(f"example {number} is torn")).
        dataset: flat
        dataset + processor: failed
    "#]],
    );
}

/// Calls `change` with every number in a record that stands under one of these names.
fn each_number(value: &mut Value, names: &[&str], change: &dyn Fn(&mut Value)) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(|value| each_number(value, names, change)),
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                if value.is_number() && names.contains(&name.as_str()) {
                    change(value);
                } else {
                    each_number(value, names, change);
                }
            }
        }
        _ => {}
    }
}

#[test]
fn a_larger_process_gets_the_same_answer() {
    for name in RECORDS {
        let mut larger = record(name);
        each_number(&mut larger["runs"], &["held", "before_trim", "private", "allocated", "file"], &|number| {
            *number = json!(number.as_i64().unwrap() + (5 << 30));
        });
        assert_eq!(told(&judged(&larger)), told(&judged(&record(name))), "{name}");
    }
}

#[test]
fn four_times_the_memory_is_the_same_answer_about_four_times_as_much() {
    for name in RECORDS {
        let mut larger = record(name);
        let names = ["held", "before_trim", "private", "allocated", "file", "bytes", "python_bytes", "tensors_bytes"];
        each_number(&mut larger, &names, &|number| *number = json!(4 * number.as_i64().unwrap()));
        let (small, large) = (judged(&record(name)), judged(&larger));
        assert_eq!(large.verdict, small.verdict, "{name}");
        // What was below the floor may now be above it; what was found stays.
        for growth in &small.growths {
            let same = large.growths.iter().find(|other| other.run == growth.run).unwrap();
            assert_eq!((same.kind, same.cause, &same.keeper), (growth.kind, growth.cause, &growth.keeper), "{name}");
            let ratio = same.bytes_per_example.unwrap() as f64 / growth.bytes_per_example.unwrap() as f64;
            assert!((3.99..4.01).contains(&ratio), "{name}: {ratio}");
        }
    }
}

#[test]
fn cheap_passes_do_not_press_the_growth_into_a_corner() {
    let mut long = record("photographs");
    let dataset = &mut long["runs"][0];
    let visits = dataset["visits"].as_array().unwrap().clone();
    for pass in 4..20 {
        for visit in visits.iter().filter(|visit| visit["pass"] == 3) {
            let mut visit = visit.clone();
            visit["pass"] = json!(pass);
            dataset["visits"].as_array_mut().unwrap().push(visit);
        }
        let last = dataset["passes"][2].clone();
        dataset["passes"].as_array_mut().unwrap().push(last);
    }
    let experiment = Experiment::read(&long.to_string()).unwrap();
    let charts = page(&experiment, &judge(&experiment, LIMIT), None, "0").charts;
    assert_eq!((charts[0].axis.to, charts[0].places.len()), (96.0, charts[0].curves[1].values.len()));
    // The run that adds nothing to another one's growth lies below it.
    let tones: Vec<Tone> = charts[0].curves.iter().map(|curve| curve.tone).collect();
    assert_eq!(tones, [Tone::Next, Tone::Next, Tone::Muted]);
}

#[test]
fn without_the_look_it_is_still_known_what_grows_and_who_keeps_it() {
    let mut bare = record("photographs");
    bare["looks"] = json!([]);
    let finding = judged(&bare);
    assert_eq!(finding.verdict.name(), "cache");
    // Dropping the dataset gave the memory back.
    assert_eq!(finding.growths[0].keeper.as_deref(), Some("dataset"));
    assert_eq!(finding.growths[0].begins_with, "processor");
}

#[test]
fn a_piece_that_could_not_be_run_alone_is_not_blamed() {
    let mut failed = record("photographs");
    failed["looks"] = json!([]);
    for run in failed["runs"].as_array_mut().unwrap().iter_mut().filter(|run| run["how"] == "alone") {
        run["error"] =
            json!({ "stage": run["stages"][0], "kind": "not_fed", "text": "OSError: image file is truncated" });
        run["passes"] = json!([]);
        run["after"] = json!([]);
    }
    assert_eq!(judged(&failed).growths[0].keeper.as_deref(), Some("dataset"));
    // Alone it may just be one that cannot be fed.
    assert!(!judged(&failed).has_failed());
}

#[test]
fn a_run_that_was_stopped_tells_what_it_saw() {
    let mut stopped = record("train");
    // The chains with the loss, and with the loss and the optimizer.
    for run in &mut stopped["runs"].as_array_mut().unwrap()[3..5] {
        run["stopped"] = json!({ "pass": 1, "examples": 20, "available": 400 << 20 });
        run["passes"] = json!([]);
        run["after"] = json!([]);
        run["visits"].as_array_mut().unwrap().truncate(5);
    }
    let finding = judged(&stopped);
    let grown: Vec<&str> = finding.growths.iter().map(|growth| growth.begins_with.as_str()).collect();
    // A cache is worse than what is not known, and the optimizer is not blamed for what the loss did.
    assert_eq!((finding.verdict.name(), grown), ("cache", vec!["dataset", "loss"]));
    assert!(
        finding.notes.iter().any(|note| note.contains("stopped in pass 1 after 20 examples")),
        "{:?}",
        finding.notes
    );
}

/// The places of a document, as pointers.
fn places(value: &Value, at: &str, all: &mut Vec<String>) {
    let mut inside = |name: &str, value: &Value| {
        let here = format!("{at}/{}", name.replace('~', "~0").replace('/', "~1"));
        all.push(here.clone());
        places(value, &here, all);
    };
    match value {
        // The first and the last of a list stand for all of them.
        Value::Array(values) => {
            for index in [0, values.len().saturating_sub(1)] {
                if let Some(value) = values.get(index) {
                    inside(&index.to_string(), value);
                }
            }
        }
        Value::Object(fields) => fields.iter().for_each(|(name, value)| inside(name, value)),
        _ => {}
    }
}

#[test]
fn no_damage_to_a_record_is_more_than_an_error() {
    let strange = [json!(null), json!(-1), json!(0), json!(1_u64 << 50), json!(-(1_i64 << 50)), json!(u64::MAX)];
    let mut read = 0;
    for name in RECORDS {
        let whole = record(name);
        let mut all = Vec::new();
        places(&whole, "", &mut all);
        for place in &all {
            for other in &strange {
                let mut damaged = whole.clone();
                *damaged.pointer_mut(place).unwrap() = other.clone();
                if let Ok(experiment) = Experiment::read(&damaged.to_string()) {
                    let finding = judge(&experiment, LIMIT);
                    read += 1;
                    // A page takes ten times as long as a judgement.
                    if read % 5 == 0 {
                        let page = page(&experiment, &finding, experiment.command(), "0.0.0");
                        assert!(!page.text(garden_report::Style::Plain, 80).is_empty());
                    }
                }
            }
        }
    }
    // Most damage is to numbers, which leaves a record that can be judged.
    assert!(read > 1000, "{read}");
}

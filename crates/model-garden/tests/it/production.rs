//! The two production runs of the story: what they say with the run's facts, without them, and with wrong ones.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::fs;

use crate::common::{diagnose, repository, run, run_with_input, scratch, told};
use expect_test::expect_file;
use serde_json::Value;

const FACTS: [&str; 6] = ["--examples", "663", "--batch-size", "2", "--gradient-accumulation", "4"];
const LIMIT: [&str; 2] = ["--memory-limit", "32GB"];
const GIB: f64 = (1_u64 << 30) as f64;
const MIB: f64 = (1_u64 << 20) as f64;

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

fn assert_between(value: f64, low: f64, high: f64) {
    assert!((low..=high).contains(&value), "{value} is not between {low} and {high}");
}

fn first_cause(found: &Value) -> &str {
    found["causes"][0]["id"].as_str().unwrap_or("none")
}

#[test]
fn run2_with_facts_is_a_settled_epoch_fill_of_images() {
    let (found, code) = diagnose("testdata/production/run2.csv", &FACTS);
    assert_eq!((code, &found["verdict"], &found["mechanism"]), (0, &"settled".into(), &"epoch_fill".into()));
    assert_between(number(&found["knee"]["step"]), 78.0, 90.0);
    assert_between(number(&found["growth"]["bytes_per_step"]) / MIB, 160.0, 190.0);
    assert_between(number(&found["growth"]["bytes_per_example"]) / MIB, 20.0, 24.0);
    assert_eq!(first_cause(&found), "decoded_images_kept");
    let text =
        String::from_utf8(run(&[&["diagnose", "testdata/production/run2.csv"], &FACTS[..]].concat()).stdout).unwrap();
    let ten_times = text.split("ten times the examples would need").nth(1).unwrap();
    let amount: f64 = ten_times.trim_start().trim_start_matches("about ").split(' ').next().unwrap().parse().unwrap();
    assert_between(amount, 120.0, 160.0);
}

#[test]
fn run2_without_facts_is_settled_and_asks_for_them() {
    for file in ["run2.csv", "run2.log"] {
        let (found, code) = diagnose(&format!("testdata/production/{file}"), &[]);
        assert_eq!((code, &found["verdict"]), (0, &"settled".into()), "{file}");
        assert_between(number(&found["knee"]["step"]), 78.0, 92.0);
        let advice = found["advice"].to_string();
        assert!(advice.contains("--examples") && advice.contains("--steps-per-epoch"), "{advice}");
        assert_eq!(found["growth"]["bytes_per_example"], Value::Null);
    }
}

#[test]
fn images_are_not_blamed_where_the_facts_do_not_align() {
    let (found, _) = diagnose("testdata/production/run2.csv", &["--steps-per-epoch", "40"]);
    assert_eq!(found["verdict"], "settled");
    assert_ne!(found["mechanism"], "epoch_fill");
    assert!(!found["causes"].to_string().contains("decoded_images_kept"), "{}", found["causes"]);
    assert!(found["ruled_out"].to_string().contains("decoded_images_kept"));
}

#[test]
fn images_are_not_blamed_where_file_pages_grow() {
    let folder = scratch("file-pages");
    let table = fs::read_to_string(repository("testdata/production/run2.csv")).unwrap();
    let split = table.lines().skip(1).map(|line| {
        let (step, rss) = line.split_once(',').unwrap();
        let rss: u64 = rss.split(',').next().unwrap().parse().unwrap();
        format!("{step},{rss},2000,{}\n", rss - 2000)
    });
    let file = folder.join("file.csv");
    fs::write(&file, "step,rss_mb,anon_mb,file_mb\n".to_string() + &split.collect::<String>()).unwrap();
    let (found, _) = diagnose(file.to_str().unwrap(), &FACTS);
    assert_eq!((&found["verdict"], &found["mechanism"]), (&"settled".into(), &"file_pages".into()));
    assert_eq!(first_cause(&found), "mapped_file_pages");
    assert!(!found["causes"].to_string().contains("decoded_images_kept"));
}

#[test]
fn images_are_not_blamed_for_a_fiftieth_of_a_mebibyte_per_example() {
    // The same curve and memory, seen as a run with a thousand times the examples per step.
    let facts = ["--examples", "663000", "--batch-size", "2000", "--gradient-accumulation", "4"];
    let (found, _) = diagnose("testdata/production/run2.csv", &facts);
    assert_eq!(found["mechanism"], "epoch_fill");
    assert_between(number(&found["growth"]["bytes_per_example"]) / MIB, 0.02, 0.024);
    assert!(!found["causes"].to_string().contains("decoded_images_kept"), "{}", found["causes"]);
}

#[test]
fn run1_with_facts_is_growing_and_says_when_it_will_be_known() {
    let (found, code) = diagnose("testdata/production/run1.csv", &[&FACTS[..], &LIMIT[..]].concat());
    assert_eq!((code, &found["verdict"]), (0, &"growing".into()));
    assert_between(number(&found["forecast"]["decided_by_step"]), 83.0, 95.0);
    assert_between(number(&found["forecast"]["if_bounded"]["bytes"]) / GIB, 16.5, 19.0);
    assert_between(number(&found["forecast"]["if_unbounded"]["step"]), 155.0, 180.0);
    assert!(found["advice"].to_string().contains("undiminished at step 166"), "{}", found["advice"]);
    assert!(found["advice"].to_string().contains("twice"), "{}", found["advice"]);
}

#[test]
fn run1_without_facts_is_growing_and_never_a_leak() {
    let (found, code) = diagnose("testdata/production/run1.csv", &LIMIT);
    assert_eq!((code, &found["verdict"]), (0, &"growing".into()));
    assert_eq!(found["forecast"]["decided_by_step"], Value::Null);
}

#[test]
fn run1_is_bad_news_where_even_the_bounded_fill_exceeds_the_limit() {
    let (found, code) = diagnose("testdata/production/run1.csv", &[&FACTS[..], &["--memory-limit", "17GB"]].concat());
    assert_eq!((code, &found["verdict"]), (1, &"growing".into()));
}

/// Writes the log line of a sample.
type Line<'a> = Box<dyn Fn(usize) -> String + 'a>;

#[test]
fn a_log_in_other_words_says_the_same() {
    let table = fs::read_to_string(repository("testdata/production/run2.csv")).unwrap();
    let rows: Vec<(u64, u64)> = table
        .lines()
        .skip(1)
        .map(|line| {
            let mut fields = line.split(',').map(|field| field.parse().unwrap());
            (fields.next().unwrap(), fields.next().unwrap())
        })
        .collect();
    let comma = |n: u64| if n < 1000 { n.to_string() } else { format!("{},{:03}", n / 1000, n % 1000) };
    let mut before = rows[0].1;
    let changes: Vec<i64> = rows
        .iter()
        .map(|&(_, rss)| {
            let change = rss as i64 - before as i64;
            before = rss;
            change
        })
        .collect();
    let forms: [(&str, Line); 4] = [
        (
            "process ram",
            Box::new(|i| {
                format!("Step {}: 6529 tensors (CPU: 330, GPU: 6199), Process RAM: {} MB", rows[i].0, rows[i].1)
            }),
        ),
        (
            "change in brackets",
            Box::new(|i| {
                let sign = if changes[i] < 0 { '-' } else { '+' };
                let note = if rows[i].0 == 90 { "   WARMUP COMPLETE" } else { "" };
                format!(
                    "Step {}: {} MB  ({sign}{} MB){note}",
                    rows[i].0,
                    comma(rows[i].1),
                    comma(changes[i].unsigned_abs())
                )
            }),
        ),
        (
            "timestamp",
            Box::new(|i| format!("2025-11-03 12:{:02}:07,123 - INFO - Step {}: RAM: {} MB", i, rows[i].0, rows[i].1)),
        ),
        (
            "colour",
            Box::new(|i| format!("\x1b[32m[INFO]\x1b[0m Step {}: \x1b[1mRAM: {} MB\x1b[0m", rows[i].0, rows[i].1)),
        ),
    ];
    let asked = [&["diagnose", "-", "--format", "json"], &FACTS[..]].concat();
    for (name, line) in &forms {
        let log: String = (0..rows.len()).map(|i| line(i) + "\n").collect();
        let found: Value = serde_json::from_slice(&run_with_input(&asked, log.as_bytes()).stdout).unwrap();
        assert_eq!((&found["verdict"], &found["mechanism"]), (&"settled".into(), &"epoch_fill".into()), "{name}");
        assert_eq!(found["input"]["samples"], 24, "{name}");
        assert_between(number(&found["knee"]["step"]), 78.0, 90.0);
        assert_between(number(&found["growth"]["bytes_per_step"]) / MIB, 160.0, 190.0);
    }
}

#[test]
fn a_restart_splits_the_log_and_the_last_part_decides() {
    let log = fs::read_to_string(repository("testdata/production/run2.log")).unwrap();
    let first: String = log.lines().take(7).map(|line| line.to_string() + "\n").collect();
    let both = first + "[Process restarted]\n" + &log;
    let asked = [&["diagnose", "-", "--format", "json"], &FACTS[..]].concat();
    let found: Value = serde_json::from_slice(&run_with_input(&asked, both.as_bytes()).stdout).unwrap();
    let parts: Vec<&Value> = found["parts"].as_array().unwrap().iter().map(|part| &part["verdict"]).collect();
    assert_eq!((&found["verdict"], parts), (&"settled".into(), vec![&"growing".into(), &"settled".into()]));
}

#[test]
fn the_reports_are_the_ones_we_promise() {
    let report = |name: &str, words: &[&str]| {
        let told = told(&run(&[&["diagnose"], words].concat()));
        expect_file![repository(&format!("testdata/expected/{name}"))].assert_eq(&told);
    };
    let [run1, run2] = ["testdata/production/run1.csv", "testdata/production/run2.csv"];
    report("run1.txt", &[&[run1], &FACTS[..], &LIMIT[..]].concat());
    report("run1-without-facts.txt", &[&[run1], &LIMIT[..]].concat());
    report("run2.txt", &[&[run2], &FACTS[..], &LIMIT[..]].concat());
    report("run2.json", &[&[run2, "--format", "json"], &FACTS[..], &LIMIT[..]].concat());
    report("run2.md", &[&[run2, "--format", "markdown"], &FACTS[..], &LIMIT[..]].concat());
    report("sawtooth.txt", &[&["testdata/traces/e_gc_sawtooth.csv"], &LIMIT[..]].concat());
    report(
        "leak.txt",
        &[&["testdata/traces/f_slow_leak_under_sawtooth.csv", "--steps-per-epoch", "50"], &LIMIT[..]].concat(),
    );
    report(
        "staircase.txt",
        &[&["testdata/traces/i_eval_staircase.csv", "--steps-per-epoch", "50"], &LIMIT[..]].concat(),
    );
}

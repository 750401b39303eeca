//! `model-garden monitor` on real programs.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::{diagnose, has_python, model_garden, run, scratch, told};
use serde_json::Value;

/// Watches a command every 20 ms; gives the output and the trace.
fn monitor(name: &str, flags: &[&str], command: &[&str]) -> (Output, PathBuf) {
    let trace = scratch(name).join("trace.jsonl");
    let fixed = ["monitor", "--interval", "20ms", "-o", trace.to_str().unwrap()];
    let output = run(&[&fixed, flags, &["--"], command].concat());
    (output, trace)
}

fn judged(trace: &Path) -> Value {
    diagnose(trace.to_str().unwrap(), &[]).0
}

fn mib_per_step(found: &Value) -> f64 {
    found["growth"]["bytes_per_step"].as_f64().unwrap() / 1_048_576.0
}

#[test]
fn an_unmodified_script_behind_a_shell_is_judged_per_step() {
    if !has_python() {
        return;
    }
    let (output, trace) =
        monitor("shell", &["--steps-per-epoch", "20"], &["bash", "-c", "python3 testdata/programs/leak.py"]);
    let found = judged(&trace);
    assert_eq!((output.status.code(), &found["verdict"]), (Some(1), &"leak".into()), "{}", told(&output));
    assert!((0.9..1.1).contains(&mib_per_step(&found)), "{}", found["growth"]);
    let talk = String::from_utf8_lossy(&output.stderr);
    assert!(talk.contains("grew most: python3") && talk.contains("training"), "{talk}");
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(out.contains("Step 120: loss"), "what the program prints is passed on");
    assert!(out.contains(&format!("LEAK  {}", &found["summary"].as_str().unwrap()[..40])), "{out}");
}

#[test]
fn the_process_that_grows_is_named_not_its_wrapper() {
    if !has_python() {
        return;
    }
    let (output, _) = monitor("wrapper", &["--steps-per-epoch", "20"], &["python3", "testdata/programs/wrapper.py"]);
    let talk = String::from_utf8_lossy(&output.stderr);
    let grew = talk.lines().find(|line| line.starts_with("grew most")).unwrap();
    let root = talk.split("watching ").nth(1).unwrap().split(' ').next().unwrap();
    assert!(!grew.contains(&format!("process {root},")), "{grew} names the wrapper {root}: {talk}");
}

#[test]
fn facts_that_the_program_prints_need_no_flags() {
    if !has_python() {
        return;
    }
    let (output, trace) = monitor("facts", &[], &["python3", "testdata/programs/lazy_cache.py"]);
    let found = judged(&trace);
    assert_eq!(
        (&found["verdict"], &found["mechanism"]),
        (&"settled".into(), &"epoch_fill".into()),
        "{}",
        told(&output)
    );
    let knee = found["knee"]["step"].as_f64().unwrap();
    assert!((36.0..=44.0).contains(&knee), "{knee}");
}

#[test]
fn the_event_channel_tells_steps_facts_and_counts() {
    if !has_python() {
        return;
    }
    let (output, trace) = monitor("channel", &[], &["python3", "testdata/programs/event_channel.py"]);
    let found = judged(&trace);
    assert_eq!(found["verdict"], "leak", "{}", told(&output));
    assert!((0.9..1.1).contains(&mib_per_step(&found)), "{}", found["growth"]);
    assert_eq!(found["causes"][0]["id"], "graph_kept", "tensors rose along");
}

#[test]
fn the_command_s_own_code_is_passed_through() {
    assert_eq!(monitor("code", &["--passthrough"], &["sh", "-c", "exit 7"]).0.status.code(), Some(7));
    assert_eq!(monitor("signal", &["--passthrough"], &["sh", "-c", "kill -9 $$"]).0.status.code(), Some(137));
}

#[test]
fn a_running_process_is_watched_and_left_alone() {
    let mut sleeper = Command::new("sleep").arg("60").spawn().unwrap();
    let trace = scratch("attach").join("trace.jsonl");
    let pid = sleeper.id().to_string();
    let output =
        run(&["monitor", "--pid", &pid, "--interval", "20ms", "--duration", "400ms", "-o", trace.to_str().unwrap()]);
    let is_alive = sleeper.try_wait().unwrap().is_none();
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    assert!(is_alive);
    assert_eq!((output.status.code(), &judged(&trace)["verdict"]), (Some(0), &"flat".into()), "{}", told(&output));
}

#[test]
fn a_trace_survives_the_sudden_end_of_the_monitor() {
    let trace = scratch("killed").join("trace.jsonl");
    let words = ["monitor", "--interval", "20ms", "-o", trace.to_str().unwrap(), "--", "sleep", "2"];
    let mut watcher = model_garden(&words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let patience = Instant::now() + Duration::from_secs(10);
    while std::fs::read_to_string(&trace).map_or(0, |text| text.lines().count()) < 12 && Instant::now() < patience {
        std::thread::sleep(Duration::from_millis(20));
    }
    watcher.kill().unwrap();
    watcher.wait().unwrap();
    let found = judged(&trace);
    assert!(found["input"]["samples"].as_u64().unwrap() >= 10, "{}", found["input"]);
}

#[test]
fn what_cannot_be_watched_is_an_error_with_a_hint() {
    let output = run(&["monitor", "--pid", "4194999"]);
    assert_eq!(output.status.code(), Some(2));
    let talk = String::from_utf8_lossy(&output.stderr);
    assert!(talk.contains("cannot watch process `4194999`") && talk.contains("hint:"), "{talk}");
    let output = run(&["monitor", "--", "/no/such/program"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot start `/no/such/program`"));
}

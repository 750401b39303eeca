//! What people have, as they have it: the loops they keep running, several series in a file, levels near a limit, and growth
//! that is easily taken for something harmless.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::fmt::Write;

use crate::common::{run_with_input, told};
use serde_json::Value;

/// The diagnosis of an input as JSON, and the exit code.
fn judge(input: &str, flags: &[&str]) -> (Value, i32) {
    let output = run_with_input(&[&["diagnose", "-", "--format", "json"], flags].concat(), input.as_bytes());
    let text = String::from_utf8_lossy(&output.stdout);
    let found = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}{}", told(&output)));
    (found, output.status.code().unwrap())
}

fn refused(input: &str, flags: &[&str]) -> String {
    let output = run_with_input(&[&["diagnose", "-"], flags].concat(), input.as_bytes());
    assert_eq!(output.status.code(), Some(2));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn lines(count: usize, line: impl Fn(usize) -> String) -> String {
    (1..=count).fold(String::new(), |mut text, at| {
        writeln!(text, "{}", line(at)).unwrap();
        text
    })
}

fn mib(value: &Value) -> f64 {
    value.as_f64().unwrap() / 1_048_576.0
}

/// The level in MiB that was read last.
fn last(found: &Value) -> f64 {
    mib(&found["memory"]["last_bytes"])
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

const MACHINE: [&str; 2] = ["--memory-limit", "64GB"];

#[test]
fn free_shows_used_memory_not_the_machines_size() {
    let (found, _) = judge(&lines(99, |i| format!("Mem: 64000 {} 9 9 9 9", 4000 + 30 * i)), &MACHINE);
    assert_eq!((text(&found["verdict"]), last(&found)), ("growing", 6970.0));
}

#[test]
fn kibibytes_of_ps_are_kibibytes() {
    let rss = lines(121, |i| (4_000_000 + 30_000 * (i - 1)).to_string());
    let (found, _) = judge(&format!("rss\n{rss}"), &MACHINE);
    assert_eq!((text(&found["input"]["unit"]), last(&found).round()), ("KiB", 7422.0));
}

#[test]
fn bytes_of_psutil_are_bytes() {
    let line = |i: usize| format!("step {i}: pmem(rss={}, vms=9000000000)", 7_159_930_880_u64 + 8_388_608 * i as u64);
    let (found, _) = judge(&lines(60, line), &MACHINE);
    assert_eq!(last(&found).round(), 7308.0);
    let (found, _) = judge(&lines(60, |i| format!("step {i} max rss 126572 (kb)")), &MACHINE);
    assert_eq!(last(&found).round(), 124.0);
}

#[test]
fn a_unit_that_cannot_be_known_is_asked_for() {
    let input = format!("rss\n{}", lines(50, |i| (40_000_000 + 100_000 * i).to_string()));
    let refusal = refused(&input, &["--memory-limit", "512GB"]);
    assert!(refusal.contains("--unit kib") && refusal.contains("--unit bytes"), "{refusal}");
    let (found, _) = judge(&input, &["--memory-limit", "512GB", "--unit", "kib"]);
    assert_eq!(last(&found).round(), 43945.0);
}

#[test]
fn two_gpus_are_two_series_of_device_memory() {
    let both = |i: usize| {
        let at = format!("2024/01/15 12:{:02}:{:02}.000", i / 60, i % 60);
        format!("{at}, 0, 5000 MiB, 81559 MiB\n{at}, 1, {} MiB, 81559 MiB", 5000 + 360 * i)
    };
    let input = format!("timestamp, index, memory.used [MiB], memory.total [MiB]\n{}", lines(99, both));
    let (found, _) = judge(&input, &[]);
    assert_eq!((text(&found["verdict"]), last(&found).round()), ("growing", 40640.0));
    assert_eq!(mib(&found["forecast"]["limit_bytes"]), 81559.0);
    let series: Vec<(&str, &str, bool)> = found["series"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (text(&one["name"]), text(&one["verdict"]), one["decides"].as_bool().unwrap()))
        .collect();
    assert_eq!(series, [("GPU 0", "flat", false), ("GPU 1", "growing", true)]);
    assert!(text(&found["summary"]).starts_with("2 series: 1 growing, 1 flat. GPU 1: "), "{}", found["summary"]);
    let causes: Vec<&str> = found["causes"].as_array().unwrap().iter().map(|cause| text(&cause["id"])).collect();
    assert!(!causes.contains(&"decoded_images_kept") && causes.contains(&"device_allocator_cache"), "{causes:?}");
    let (one, _) = judge(&input, &["--select", "GPU 0"]);
    assert_eq!((text(&one["verdict"]), one["series"].as_array().unwrap().len()), ("flat", 0));
    let refusal = refused(&input, &["--select", "GPU 7"]);
    assert!(refusal.contains("GPU 0") && refusal.contains("GPU 1"), "{refusal}");
}

#[test]
fn the_rank_that_differs_is_named() {
    let ranks = |i: usize| {
        let line = |rank: usize| {
            let grown = if rank == 3 { 20 * i } else { i % 2 };
            format!("[rank{rank}]: step {i} rss={} MB", 4000 + grown)
        };
        (0..4).map(line).collect::<Vec<_>>().join("\n")
    };
    let (found, code) = judge(&lines(200, ranks), &["--steps-per-epoch", "40", "--memory-limit", "64GB"]);
    assert_eq!((text(&found["verdict"]), code), ("leak", 1));
    assert!(text(&found["summary"]).starts_with("4 series: 1 leak, 3 flat. rank 3: "), "{}", found["summary"]);
}

/// The loops that a team kept running, once a second into a file.
#[test]
fn the_loops_of_the_story_are_read() {
    let ps = |i: usize| {
        format!("    PID   RSS    VSZ CMD\n   4711 {} 9000000 python train-vision.py", 4_000_000 + 20_000 * i)
    };
    let (found, _) = judge(&lines(80, ps), &MACHINE);
    assert_eq!((text(&found["verdict"]), last(&found).round()), ("growing", 5469.0));
    let both = |i: usize| {
        let used = 8.0 + 0.02 * i as f64;
        let rss = 4_000_000 + 20_000 * i;
        format!(
            "               total        used        free      shared  buff/cache   available\n\
             Mem:            62Gi       {used:.1}Gi        40Gi       1.0Mi        14Gi        54Gi\n\
             Swap:             0B          0B          0B\n\
             root        4711 99.0  9.0 9000000 {rss} ?       Rl   10:00  12:34 python train-vision.py\n\
             root        4899  0.0  0.0   6480  2200 pts/0    S+   10:00   0:00 grep train-vision"
        )
    };
    let (found, _) = judge(&lines(80, both), &[]);
    let names: Vec<&str> = found["series"].as_array().unwrap().iter().map(|one| text(&one["name"])).collect();
    assert_eq!(names, ["machine", "pid 4711 (python train-vision.py)"]);
    let (process, _) = judge(&lines(80, both), &["--select", "4711"]);
    assert_eq!(last(&process).round(), 5469.0);
    let clock = |i: usize| {
        let at = 86_000 + 10 * i;
        format!("{:02}:{:02}:{:02} - {} MB", at / 3600 % 24, at / 60 % 60, at % 60, 4000 + 20 * i)
    };
    let (found, _) = judge(&lines(90, clock), &MACHINE);
    assert_eq!((text(&found["clock"]), last(&found)), ("time", 5800.0));
    assert_eq!(found["memory"]["to"].as_f64().unwrap() - found["memory"]["from"].as_f64().unwrap(), 890.0);
}

#[test]
fn the_end_of_a_process_is_the_end_of_its_series() {
    let mem = |i: usize| format!("MEM {}.0 {}.0", 100 + 7 * i, 1_700_000_000 + i);
    let input = format!("CMDLINE python train.py\n{}MEM 0.0 1700000121.0\n", lines(120, mem));
    let (found, _) = judge(&input, &MACHINE);
    assert_eq!((text(&found["verdict"]), last(&found)), ("growing", 940.0));
}

#[test]
fn a_plateau_close_to_the_limit_is_bad_news() {
    let level = |i: usize| 20_000.0 + 45_228.8 * (i as f64 / 40.0).min(1.0);
    let input = format!("step,rss_mb\n{}", lines(200, |i| format!("{i},{}", level(i))));
    let (found, code) = judge(&input, &["--memory-limit", "64GB", "--steps-per-epoch", "40"]);
    assert_eq!((text(&found["verdict"]), code), ("settled", 1));
    assert_eq!(found["headroom"]["in_reach"], true);
    let summary = text(&found["summary"]);
    assert!(summary.ends_with("The limit is in reach: 307 MiB of 64.0 GiB are left."), "{summary}");
    let evidence = found["evidence"].to_string();
    assert!(evidence.contains("It may be the limit that ended the growth"), "{evidence}");
    // Far from the limit the same plateau is good news.
    let (found, code) = judge(&input, &["--memory-limit", "128GB", "--steps-per-epoch", "40"]);
    assert_eq!((&found["headroom"]["in_reach"], code), (&Value::Bool(false), 0));
    // Unless another spike like those before would exceed it.
    let spiky = lines(200, |i| format!("{i},{}", if i % 50 == 25 { 3000.0 } else { 1000.0 + (i % 3) as f64 }));
    let (found, code) = judge(&format!("step,rss_mb\n{spiky}"), &["--memory-limit", "2500MB"]);
    assert_eq!((text(&found["verdict"]), code), ("flat", 1));
}

#[test]
fn without_epochs_a_long_straight_line_is_a_leak() {
    // Ten days, a sample every ten minutes, to 28.7 of 32 GiB.
    let days = |i: usize| format!("{},{}", 600 * i, 4096.0 + 17.6 * i as f64);
    let input = format!("time_s,rss_mb\n{}", lines(1440, days));
    let (found, code) = judge(&input, &["--memory-limit", "32GB"]);
    assert_eq!((text(&found["verdict"]), code), ("leak", 1));
    let (found, code) = judge(&input, &["--memory-limit", "32GB", "--leak-after", "never"]);
    assert_eq!((text(&found["verdict"]), code), ("growing", 1), "the limit is in reach all the same");
    // A forecast has one origin: all of its times count from the last sample.
    let end = &found["forecast"]["if_unbounded"];
    let [low, at, high] = [&end["low"], &end["time_s"], &end["high"]].map(|time| time.as_f64().unwrap());
    assert!(low <= at + 1.0 && at <= high + 1.0 && (at - 113_454.0).abs() < 10.0, "{end}");
    // An hour proves nothing, unless somebody says so.
    let hour = format!("time_s,rss_mb\n{}", lines(360, |i| format!("{},{}", 10 * i, 4096.0 + 17.6 * i as f64)));
    let verdict = |flags: &[&str]| text(&judge(&hour, flags).0["verdict"]).to_string();
    assert_eq!(verdict(&["--memory-limit", "48GB"]), "growing");
    assert_eq!(verdict(&["--memory-limit", "48GB", "--leak-after", "30m"]), "leak");
    // Steps without an epoch may still have one; a stream has none.
    let steps =
        format!("step,time_s,rss_mb\n{}", lines(1440, |i| format!("{i},{},{}", 60 * i, 4096.0 + 17.6 * i as f64)));
    let verdict = |flags: &[&str]| text(&judge(&steps, flags).0["verdict"]).to_string();
    assert_eq!(verdict(&["--memory-limit", "64GB"]), "growing");
    assert_eq!(verdict(&["--memory-limit", "64GB", "--no-epochs"]), "leak");
}

/// Growth on 20 epochs of 50 steps, as a verdict.
fn over_epochs(level: impl Fn(f64) -> f64) -> (String, String) {
    let line = |i: usize| format!("{i},{:.2}", 2000.0 + level(i as f64) + (i * 7919 % 13) as f64 * 0.2);
    let input = format!("step,rss_mb\n{}", lines(1000, line));
    let (found, _) = judge(&input, &["--steps-per-epoch", "50", "--memory-limit", "64GB"]);
    (text(&found["verdict"]).to_string(), text(&found["summary"]).to_string())
}

#[test]
fn evidence_adds_up_over_a_change_of_pace() {
    let faster = over_epochs(|t| t + 4.0 * (t - 950.0).max(0.0));
    assert_eq!(faster.0, "leak", "{}", faster.1);
    let slower = over_epochs(|t| t - 0.5 * (t - 300.0).max(0.0));
    assert_eq!(slower.0, "leak", "{}", slower.1);
    let once_per_epoch = over_epochs(|t| 40.0 * (t / 50.0).floor());
    assert_eq!(once_per_epoch.0, "leak", "{}", once_per_epoch.1);
    // The capacity of a list that only grows rests for as long as it has grown.
    let list = over_epochs(|t| 2.0_f64.powf((t.max(1.0)).log2().ceil()));
    assert_eq!(list.0, "leak", "{}", list.1);
    let under_teeth = over_epochs(|t| 0.3 * t + 900.0 * (t / 23.0).fract());
    assert_eq!(under_teeth.0, "leak", "{}", under_teeth.1);
}

#[test]
fn growth_that_is_no_leak_is_said_to_be_what_it_is() {
    let vocabulary = over_epochs(|t| 20.0 * t.powf(0.7));
    assert_eq!(vocabulary.0, "growing");
    assert!(vocabulary.1.contains("like the 0.7th power of the steps"), "{}", vocabulary.1);
    let workers = over_epochs(|t| 600.0 * ((t % 50.0) / 10.0).min(1.0));
    assert!(["flat", "sawtooth"].contains(&workers.0.as_str()), "{workers:?}");
}

#[test]
fn a_reassuring_verdict_says_what_it_could_not_have_seen() {
    let noise = |i: usize| (i * i * 7919 % 131) as f64 * 0.1;
    let input = format!("step,rss_mb\n{}", lines(200, |i| format!("{i},{}", 3000.0 + noise(i))));
    let (found, code) = judge(&input, &MACHINE);
    assert_eq!((text(&found["verdict"]), code), ("flat", 0));
    assert!(found["evidence"].to_string().contains("cannot be excluded"), "{}", found["evidence"]);
    // A leak is either called growth, or within the bound.
    for per_step in [0.02, 0.05, 0.08, 0.1, 0.2, 0.5] {
        let leak = |i: usize| format!("{i},{}", 3000.0 + noise(i) + per_step * i as f64);
        let (found, _) = judge(&format!("step,rss_mb\n{}", lines(200, leak)), &MACHINE);
        let most = found["sensitivity"]["bytes_per_step"].as_f64();
        assert!(most.is_none_or(|most| most >= per_step * 1_048_576.0), "{per_step}: {most:?}");
        assert_eq!(text(&found["verdict"]), if most.is_some() { "flat" } else { "growing" });
    }
}

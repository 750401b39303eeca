//! `model-garden audit` on records made by hand: what it says, its formats, and records that cannot be used. `python/tests/test_audit.py` makes real ones.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on must fail")]

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::browser::Browser;
use crate::common::{has_python, model_garden, repository, run, scratch, told};
use expect_test::{Expect, expect};
use serde_json::{Value, json};

/// A trace of so many steps with a growth in KiB per step, and steps of so many microseconds; `run` makes it differ from others.
fn write_trace(path: &Path, growth: u64, microseconds: u64, run: u64) {
    let mut text = String::from("{\"model_garden_trace\":1}\n");
    for step in 1..=72_u64 {
        let ripple = (step * 7919 + run * 104_729) % 97;
        let anon = (200 << 20) + ((step * growth) << 10) + ripple * 4096;
        let time = (step * (microseconds + 3 * run)) as f64 / 1e6;
        text +=
            &format!("{{\"step\":{step},\"time_s\":{time},\"rss\":{anon},\"anon\":{anon},\"shmem\":0,\"swap\":0}}\n");
    }
    fs::write(path, text).unwrap();
}

/// A record: three runs without anything, and three with each workaround of a name, a growth and a time per step.
fn record(name: &str, workarounds: &[(&str, u64, u64)]) -> PathBuf {
    let folder = scratch(name);
    let traces = |kind: usize, growth: u64, microseconds: u64| -> Vec<String> {
        let one = |run: u64| {
            let file = format!("{kind}-{run}.jsonl");
            write_trace(&folder.join(&file), growth, microseconds, run + 3 * kind as u64);
            file
        };
        (1..=3).map(one).collect()
    };
    let tried: Vec<Value> = workarounds
        .iter()
        .enumerate()
        .map(|(kind, (name, growth, time))| json!({ "name": name, "traces": traces(kind + 1, *growth, *time) }))
        .collect();
    let manifest = json!({ "model_garden_audit": 1, "loop": "train:loop", "steps": 60, "warm_up": 12, "rounds": 3,
        "origin": { "python": "3.11.7", "processes": "fresh interpreters" }, "baseline": traces(0, 2048, 20_000), "workarounds": tried });
    fs::write(folder.join("audit.json"), manifest.to_string()).unwrap();
    folder
}

fn check(words: &[&str], expected: Expect) {
    expected.assert_eq(&told(&run(words)));
}

#[test]
fn each_workaround_gets_a_sentence() {
    let folder = record(
        "audit",
        &[("gc.collect every step", 2048, 20_700), ("keep=False", 0, 20_000), ("size=2", 4096, 20_000)],
    );
    check(
        &["audit", folder.to_str().unwrap()],
        expect![[r#"
            exit 0
            ----- stdout
            HELPS  keep=False ends the growth; size=2 adds growth; gc.collect every step costs time and has no
                   effect on growth.

            In numbers
              baseline growth  +2.00 MiB per step (95 %: 2.00 to 2.00)
              baseline step    20.0 ms (95 %: 20.0 to 20.0)
              baseline peak    344 MiB

            Workarounds
              - gc.collect every step: no effect on growth (-0.49 to +1.19 KiB per step), costs 3.5 % of step
                time (3.5 to 3.6): remove it
              - keep=False: ends the growth of +2.00 MiB per step: -1.08 to +1.12 KiB per step remain, no effect
                on step time (+0.1 to +0.1 %): keep it
              - size=2: doubles the growth (+2.00 to +2.00 MiB per step), no effect on step time (+0.1 to
                +0.2 %): remove it

            Differences
              workaround             growth                       step            peak
              gc.collect every step  -0.49 to +1.19 KiB per step  +3.5 to +3.6 %  -265 to +297 KiB
              keep=False             -2.00 to -2.00 MiB per step  +0.1 to +0.1 %  -144 to -143 MiB
              size=2                 +2.00 to +2.00 MiB per step  +0.1 to +0.2 %  +144 to +144 MiB

            Method
              - Each kind ran 3 times in its own process, taking turns; memory includes child processes.
              - Growth is compared over steps 12 to 72.
              - The table shows differences from the baseline (no workaround) as 95 % intervals, from the spread
                of runs of the same kind (Welch's t).
        "#]],
    );
}

#[test]
fn scripts_pages_and_trackers_get_the_same() {
    let name = "<img src=x onerror=harm()> `a` @you";
    let folder = record("audit-formats", &[(name, 2048, 20_000), ("other", 1024, 20_000)]);
    let folder = folder.to_str().unwrap();
    let data: Value = serde_json::from_slice(&run(&["audit", folder, "--format", "json"]).stdout).unwrap();
    assert_eq!((&data["loop"], &data["workarounds"][0]["name"]), (&json!("train:loop"), &json!(name)));
    assert_eq!(
        (&data["workarounds"][0]["effect"], &data["workarounds"][1]["effect"]),
        (&json!("none"), &json!("less"))
    );
    assert_eq!(data["workarounds"][1]["basis"], "replicates");
    let markdown = String::from_utf8(run(&["audit", folder, "--format", "markdown"]).stdout).unwrap();
    assert!(markdown.starts_with("## Audit of `train:loop`: helps") && !markdown.contains("<img"), "{markdown}");
    let page = Path::new(folder).join("page.html");
    let output = run(&["audit", folder, "--format", "html", "-o", page.to_str().unwrap()]);
    assert_eq!(told(&output), "exit 0\n");
    let Some(mut browser) = Browser::start("audit") else { return };
    browser.open(&page, 1400, "dark");
    assert_eq!(browser.troubles(), Vec::<String>::new());
    let curves = browser.ask("[...document.querySelectorAll('[data-curve]')].map((curve) => curve.dataset.curve)");
    assert_eq!(curves, json!(["baseline", name, "other"]));
    assert_eq!(browser.number("document.querySelectorAll('img').length"), 0.0);
}

/// Python makes the runs, and the program that it then becomes judges them.
#[test]
fn a_loop_is_run_from_the_command_line() {
    if !has_python() {
        return;
    }
    let folder = scratch("audit-run");
    let audit = |loop_name: &str, words: &[&str]| {
        let mut command = model_garden(&[&["audit", loop_name, "--steps", "20", "--rounds", "2"], words].concat());
        command.env("PYTHONPATH", repository("python")).env("TMPDIR", &folder);
        command.current_dir(repository("python/tests/programs")).output().unwrap()
    };
    let output = audit(
        "audited:leak",
        &["-w", "keep=False", "-w", "gc.collect", "--setting", "size=777216", "--format", "json"],
    );
    let data: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", told(&output)));
    let effects: Vec<&Value> = data["workarounds"].as_array().unwrap().iter().map(|one| &one["effect"]).collect();
    assert_eq!((output.status.code(), effects), (Some(0), vec![&json!("ends"), &json!("none")]), "{data:#}");
    let growth = data["workarounds"][0]["growth"]["before"]["value"].as_f64().unwrap();
    assert!((growth / 777_216.0 - 1.0).abs() < 0.05, "{data:#}");
    let output = audit("audited:raising", &["-w", "gc.collect"]);
    let talk = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{talk}");
    assert!(talk.contains("error: the loop raised at step 7: ValueError: a step that went wrong"), "{talk}");
    let left: Vec<_> = fs::read_dir(&folder).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    check(
        &["audit", "train", "-w", "gc.collect"],
        expect![[r#"
            exit 2
            ----- stderr
            error: `train` is neither module:function nor a folder

            hint: `model-garden audit train:loop --workaround gc.collect` runs loop() of train.py
        "#]],
    );
}

#[test]
fn records_that_cannot_be_used_are_named() {
    check(
        &["audit", "testdata"],
        expect![[r#"
            exit 2
            ----- stderr
            error: cannot judge `testdata`
              caused by: cannot open `testdata/audit.json`
              caused by: No such file or directory (os error 2)

            hint: make a record with `model-garden audit module:function --workaround NAME --record FOLDER`
        "#]],
    );
    let folder = record("audit-wrong", &[("gc.collect every step", 0, 20_000)]);
    let manifest = fs::read_to_string(folder.join("audit.json")).unwrap();
    let told_of = |text: &str| {
        fs::write(folder.join("audit.json"), text).unwrap();
        let told = told(&run(&["audit", folder.to_str().unwrap()]));
        assert!(told.starts_with("exit 2\n----- stderr\nerror: cannot judge "), "{told}");
        told
    };
    assert!(told_of("{}").contains("missing field `model_garden_audit`"));
    assert!(
        told_of(&manifest.replace("\"model_garden_audit\":1", "\"model_garden_audit\":9")).contains("it has version 9")
    );
    assert!(
        told_of(&manifest.replace("0-1.jsonl", "../0-1.jsonl"))
            .contains("`../0-1.jsonl` is not a file in the same folder")
    );
    assert!(told_of(&manifest.replace("0-1.jsonl", "gone.jsonl")).contains("gone.jsonl"));
}

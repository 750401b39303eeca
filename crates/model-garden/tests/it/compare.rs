//! `model-garden compare` from the command line: what it says, its formats, its exit codes and its errors.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on must fail")]

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::browser::Browser;
use crate::common::{has_python, model_garden, run, run_with_input, scratch, told};
use expect_test::{Expect, expect};
use serde_json::Value;

const RUNS: [&str; 2] = ["testdata/production/run1.csv", "testdata/production/run2.csv"];

fn check(words: &[&str], expected: Expect) {
    expected.assert_eq(&told(&run(words)));
}

fn compared(words: &[&str]) -> Value {
    let output = run(&[&["compare", "--format", "json"], words].concat());
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", told(&output)))
}

/// A trace of so many steps with a growth in KiB per step, and steps of so many milliseconds.
fn write_trace(folder: &Path, name: &str, steps: u64, growth: u64, milliseconds: u64) -> PathBuf {
    let mut text = String::from("{\"model_garden_trace\":1}\n");
    for step in 0..steps {
        // A ripple that differs from trace to trace.
        let ripple = (step * 7919 + growth * 31 + milliseconds) % 97;
        let anon = (500 << 20) + ((step * growth + ripple * 8) << 10);
        let time = (step * milliseconds) as f64 / 1000.0 + ripple as f64 / 1e5;
        text += &format!("{{\"step\":{step},\"time_s\":{time},\"rss\":{anon},\"anon\":{anon}}}\n");
    }
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path
}

#[test]
fn a_pipeline_fails_on_the_answers_that_it_names() {
    let folder = scratch("compare_fail_on");
    let [lean, fat, slow] = [("lean.jsonl", 0, 100), ("fat.jsonl", 2048, 100), ("slow.jsonl", 0, 150)]
        .map(|(name, growth, milliseconds)| write_trace(&folder, name, 120, growth, milliseconds));
    let code = |before: &Path, after: &Path, flags: &[&str]| {
        let words = [&["compare", before.to_str().unwrap(), after.to_str().unwrap()], flags].concat();
        run(&words).status.code()
    };
    assert_eq!(code(&lean, &fat, &[]), Some(0));
    assert_eq!(code(&lean, &fat, &["--fail-on", "more"]), Some(1));
    assert_eq!(code(&fat, &lean, &["--fail-on", "more"]), Some(0));
    assert_eq!(code(&lean, &slow, &["--fail-on", "more"]), Some(0));
    assert_eq!(code(&lean, &slow, &["--fail-on", "more,slower"]), Some(1));
    assert_eq!(code(&lean, &lean, &["--fail-on", "more,slower,unclear"]), Some(0));
}

#[test]
fn the_two_production_runs_grew_alike() {
    check(
        &["compare", RUNS[0], RUNS[1]],
        expect![[r#"
            exit 0
            ----- stdout
            SAME  No effect on growth (-2.83 to +0.59 MiB per step).

            In numbers
              growth before  +169 MiB per step (95 %: 165 to 173)
              growth after   +168 MiB per step (95 %: 163 to 174)
              difference     -1.12 MiB per step (95 %: -2.83 MiB to +605 KiB)
              peak           15.4 GiB before, 15.2 GiB after: -177 MiB
              final level    15.4 GiB before, 15.2 GiB after: -177 MiB

            Runs
                      run       verdict  samples  growth             step time  peak
              before  run1.csv  growing  7        +169 MiB per step             15.4 GiB
              after   run2.csv  settled  24       +168 MiB per step             15.2 GiB

            What to do
              About the change: it does not reduce growth.

            Method
              - Growth is the slope of the lows over steps 10 to 70.
              - Differences within 16.9 MiB per step count as no effect.
              - Intervals are 95 %, from the autocorrelated noise within each run. They leave out how much runs
                of the same kind differ: repeat both to include it (--before, --after).
        "#]],
    );
}

#[test]
fn several_runs_of_each_kind_are_compared_by_their_differences() {
    let folder = scratch("compare-several");
    let traces: Vec<String> = (0..6)
        .map(|n| {
            let (growth, milliseconds) = if n < 3 { (2048 + 16 * n, 100) } else { (4 * n, 120 + n) };
            write_trace(&folder, &format!("{n}.jsonl"), 80, growth, milliseconds).to_str().unwrap().to_string()
        })
        .collect();
    let [a, b, c, d, e, f] = [0, 1, 2, 3, 4, 5].map(|n| traces[n].as_str());
    let found = compared(&["--before", a, b, c, "--after", d, e, f]);
    assert_eq!((&found["effect"], &found["basis"]), (&Value::from("ends"), &Value::from("replicates")), "{found:#}");
    let ratio = &found["step_time"]["ratio"];
    assert!((1.20..1.26).contains(&ratio["value"].as_f64().unwrap()), "{ratio}");
    assert_eq!(found["step_time"]["effect"], "costs");
    assert_eq!((found["before"].as_array().unwrap().len(), &found["after"][2]["name"]), (3, &Value::from("5.jsonl")));
    let text = told(&run(&["compare", "--before", a, b, c, "--after", d, e, f]));
    assert!(text.contains("from the spread of runs of the same kind"), "{text}");
}

#[test]
fn every_format_says_the_same_and_files_are_written() {
    let folder = scratch("compare-formats");
    let one = write_trace(&folder, "one.jsonl", 60, 1024, 50);
    let other = write_trace(&folder, "<b>&two|.jsonl", 60, 1024, 60);
    let (one, other) = (one.to_str().unwrap(), other.to_str().unwrap());
    let summary = compared(&[one, other])["summary"].as_str().unwrap().to_string();
    assert!(summary.starts_with("No effect on growth (") && summary.contains("costs 20 % of step time"), "{summary}");
    for (format, needle) in [("markdown", "## Comparison of "), ("html", "<strong>same</strong>")] {
        let file = folder.join(format);
        let output = run(&["compare", one, other, "--format", format, "-o", file.to_str().unwrap()]);
        assert_eq!(told(&output), "exit 0\n");
        let text = fs::read_to_string(file).unwrap();
        assert!(text.contains(needle) && !text.contains("<b>&two"), "{text}");
    }
    let text = told(&run(&["compare", one, other]));
    assert!(text.replace("\n      ", " ").contains(&format!("SAME  {summary}")), "{text}");
}

#[test]
fn one_trace_may_come_from_standard_input() {
    let other = fs::read(crate::common::repository(RUNS[1])).unwrap();
    let output = run_with_input(&["compare", RUNS[0], "-", "--format", "json"], &other);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&found["effect"], &found["after"][0]["name"]), (&Value::from("none"), &Value::from("standard input")));
}

#[test]
fn too_little_data_is_said_with_its_own_exit_code() {
    let folder = scratch("compare-short");
    let short = folder.join("short.csv");
    fs::write(&short, "step,rss_mb\n1,100\n2,101\n3,102\n").unwrap();
    check(
        &["compare", RUNS[0], short.to_str().unwrap()],
        expect![[r#"
            exit 3
            ----- stdout
            INSUFFICIENT  Not enough data to compare: `short.csv` has 3 samples.

            In numbers
              peak         5.42 GiB before, 102 MiB after: -5.32 GiB
              final level  5.42 GiB before, 102 MiB after: -5.32 GiB

            Runs
                      run        verdict       samples  growth  step time  peak
              before  run1.csv   growing       7                           5.42 GiB
              after   short.csv  insufficient  3                           102 MiB

            What to do
              To find out: record more of both.

              - the runs cover different steps, so they are compared from the start of each trace
        "#]],
    );
}

#[test]
fn wrong_arguments_and_files_are_named() {
    check(
        &["compare", RUNS[0], "no/such/trace.csv"],
        expect![[r#"
            exit 2
            ----- stderr
            error: cannot compare `no/such/trace.csv`
              caused by: cannot open `no/such/trace.csv`
              caused by: No such file or directory (os error 2)

            hint: check the path; `-` reads standard input
        "#]],
    );
    check(
        &["compare", RUNS[0]],
        expect![[r#"
            exit 2
            ----- stderr
            error: 2 values required for '[BEFORE] [AFTER]...' but 1 was provided

            Usage: model-garden compare [OPTIONS] [BEFORE] [AFTER]...

            For more information, try '--help'.
        "#]],
    );
    check(
        &["compare", "--before", RUNS[0]],
        expect![[r#"
            exit 2
            ----- stderr
            error: the following required arguments were not provided:
              --after <TRACE>...

            Usage: model-garden compare --before <TRACE>... --after <TRACE>... [BEFORE] [AFTER]...

            For more information, try '--help'.
        "#]],
    );
    check(
        &["compare", RUNS[0], RUNS[1], "--before", RUNS[0], "--after", RUNS[1]],
        expect![[r#"
            exit 2
            ----- stderr
            error: the argument '[BEFORE] [AFTER]...' cannot be used with:
              --before <TRACE>...
              --after <TRACE>...

            Usage: model-garden compare <BEFORE> <AFTER>...

            For more information, try '--help'.
        "#]],
    );
}

#[test]
fn the_page_draws_both() {
    let folder = scratch("compare-page");
    let traces = [("a", 2048, 50), ("b", 0, 51), ("c", 2100, 52), ("d", 8, 49)]
        .map(|(name, growth, ms)| write_trace(&folder, name, 80, growth, ms).to_str().unwrap().to_string());
    let Some(mut browser) = Browser::start("compare") else { return };
    let page = folder.join("page.html");
    let shown = |browser: &mut Browser, words: &[&str]| {
        let output = run(&[&["compare", "--format", "html", "-o", page.to_str().unwrap()], words].concat());
        assert_eq!(told(&output), "exit 0\n");
        browser.open(&page, 1400, "light");
        assert_eq!(browser.troubles(), Vec::<String>::new());
        assert_eq!(browser.text("document.querySelector('.word strong').textContent"), "ends");
        let bare =
            "[...document.querySelectorAll('.curve .line')].filter((line) => line.getTotalLength() < 100).length";
        assert_eq!(browser.number(bare), 0.0);
        browser.ask("[...document.querySelectorAll('[data-curve]')].map((curve) => curve.dataset.curve)").to_string()
    };
    let [a, b, c, d] = traces.each_ref().map(String::as_str);
    assert_eq!(shown(&mut browser, &[a, b]), r#"["before","after"]"#);
    assert_eq!(
        shown(&mut browser, &["--before", a, c, "--after", b, d]),
        r#"["before 1","before 2","after 1","after 2"]"#
    );
}

/// Real programs: the same loop with a leak, with half of it, and without.
#[test]
fn real_programs_are_told_apart() {
    if !has_python() {
        return;
    }
    let folder = scratch("compare-real");
    let record = |name: &str, kept: u32| {
        let program = format!(
            "import time\nkept = []\nfor step in range(60):\n    block = b'x' * 1048576\n    kept.append(block[:{kept} * 1024])\n    print('Step', step, flush=True)\n    time.sleep(0.04)\n"
        );
        let trace = folder.join(name);
        let words = ["monitor", "--interval", "20ms", "-o", trace.to_str().unwrap(), "--", "python3", "-c", &program];
        let status = model_garden(&words).output().unwrap().status;
        assert!(matches!(status.code(), Some(0 | 1 | 3)), "{status}");
        trace.to_str().unwrap().to_string()
    };
    let (leak, half, flat) = (record("leak", 900), record("half", 450), record("flat", 0));
    let rate = |found: &Value, side: &str| found["growth"][side]["value"].as_f64().unwrap() / 1024.0;
    let ended = compared(&[&leak, &flat]);
    assert_eq!(ended["effect"], "ends", "{ended:#}");
    assert!((rate(&ended, "before") - 900.0).abs() < 60.0, "{ended:#}");
    let halved = compared(&[&leak, &half]);
    assert!(halved["summary"].as_str().unwrap().starts_with("Halves the growth"), "{halved:#}");
    let added = compared(&[&flat, &half]);
    assert_eq!(added["effect"], "more", "{added:#}");
}

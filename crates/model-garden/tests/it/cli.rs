//! The command line: exit codes, error messages, where output goes, and what happens to bad input.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::fs;
use std::io::Read;
use std::process::Stdio;

use crate::common::{diagnose, model_garden, run, run_with_input, scratch, told};
use expect_test::{Expect, expect};
use serde_json::Value;

const RUN2: &str = "testdata/production/run2.csv";

fn check(words: &[&str], expected: Expect) {
    expected.assert_eq(&told(&run(words)));
}

fn check_input(input: &[u8], expected: Expect) {
    let output = run_with_input(&["diagnose", "-", "--memory-limit", "32GB"], input);
    let told = told(&output);
    // The charts are pinned elsewhere; here the first and the last lines matter.
    let lines: Vec<&str> = told.lines().filter(|line| !line.is_empty()).collect();
    let short = if lines.len() > 12 { [&lines[..4], &["..."], &lines[lines.len() - 3..]].concat() } else { lines };
    expected.assert_eq(&(short.join("\n") + "\n"));
}

#[test]
fn a_missing_file_is_named() {
    check(
        &["diagnose", "no/such/trace.csv"],
        expect![[r#"
            exit 2
            ----- stderr
            error: cannot diagnose `no/such/trace.csv`
              caused by: cannot open `no/such/trace.csv`
              caused by: No such file or directory (os error 2)

            hint: check the path; `-` reads standard input
        "#]],
    );
}

#[test]
fn a_directory_is_refused() {
    check(
        &["diagnose", "testdata"],
        expect![[r#"
        exit 2
        ----- stderr
        error: cannot diagnose `testdata`
          caused by: cannot read `testdata`: it is a directory

        hint: pass a trace file inside it
    "#]],
    );
}

#[test]
fn an_unknown_column_lists_what_is_there() {
    check(
        &["diagnose", RUN2, "--column", "ram"],
        expect![[r#"
        exit 2
        ----- stderr
        error: cannot diagnose `testdata/production/run2.csv`
          caused by: no column `ram` among `step`, `rss_mb`, `tensors`, `tensors_cpu`, `tensors_gpu`

        hint: spell the `--column` name as in the file
    "#]],
    );
}

#[test]
fn sizes_and_pairs_of_flags_are_checked() {
    check(
        &["diagnose", RUN2, "--memory-limit", "lots"],
        expect![[r#"
        exit 2
        ----- stderr
        error: invalid value 'lots' for '--memory-limit <SIZE>': `lots` is not a size; write for example 500MB, 28GB or 1.5GiB (powers of 1024)

        For more information, try '--help'.
    "#]],
    );
    check(
        &["diagnose", RUN2, "--stable-after", "90"],
        expect![[r#"
        exit 2
        ----- stderr
        error: the following required arguments were not provided:
          <--max-variation <SIZE>|--max-growth <SIZE>>

        Usage: model-garden diagnose --stable-after <STEP> <--max-variation <SIZE>|--max-growth <SIZE>> <TRACE>

        For more information, try '--help'.
    "#]],
    );
    check(
        &["diagnose", RUN2, "--examples", "663", "--steps-per-epoch", "83"],
        expect![[r#"
        exit 2
        ----- stderr
        error: the argument '--examples <N>' cannot be used with '--steps-per-epoch <S>'

        Usage: model-garden diagnose --batch-size <B> --examples <N> <TRACE>

        For more information, try '--help'.
    "#]],
    );
    check(
        &["diagnose", RUN2, "--steps-per-epoch", "0"],
        expect![[r#"
            exit 2
            ----- stderr
            error: invalid value '0' for '--steps-per-epoch <S>': expected a whole number of at least 1

            For more information, try '--help'.
        "#]],
    );
}

#[test]
fn input_that_is_no_trace_is_an_error_with_a_hint() {
    check_input(
        b"",
        expect![[r#"
        exit 2
        ----- stderr
        error: cannot diagnose standard input
          caused by: not a memory trace: the file is empty
        hint: has the run written anything yet? Output may still be buffered
    "#]],
    );
    check_input(
        b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0",
        expect![[r#"
        exit 2
        ----- stderr
        error: cannot diagnose standard input
          caused by: not a memory trace: the content is binary (not text)
        hint: pass the text log with the memory values, not a model, archive or profile
    "#]],
    );
    check_input(
        b"hello\nworld\n",
        expect![[r#"
            exit 2
            ----- stderr
            error: cannot diagnose standard input
              caused by: not a memory trace: unknown format, beginning with `hello`
            hint: known formats: a model-garden trace; `mprofile_*.dat` of memory_profiler; psrecord logs; Prometheus range queries; answers of Kubernetes' metrics API; `aws cloudwatch get-metric-statistics`; `trainer_state.json`; `gpustat --json`; `to_json()` of pandas; one JSON list of objects; JSON lines such as {"step":10,"rss_mb":5434}; InfluxDB's line protocol; CSV exports of Grafana; CSV or TSV with a header such as `step,rss_mb`; `nvidia-smi --query-gpu=timestamp,index,memory.used --format=csv`; one amount per line; training logs with lines such as `Step 10: RAM: 5434 MB`; output of `/proc/PID/status`, `/proc/meminfo`, `/proc/PID/smaps_rollup`, `memory.stat`, `sar`, `free`, `ps`, `top`, `pidstat`, `smem`, `docker stats`, `kubectl top`, `rocm-smi`, `gpustat`, `nvidia-smi`
        "#]],
    );
    check_input(
        b"step,loss\n1,2\n",
        expect![[r#"
        exit 2
        ----- stderr
        error: cannot diagnose standard input
          caused by: no memory column among `step`, `loss`
        hint: select the memory column with `--column NAME`
    "#]],
    );
}

#[test]
fn too_little_data_says_what_is_missing() {
    check_input(
        b"step,rss_mb\n10,5434\n",
        expect![[r#"
        exit 3
        ----- stdout
        INSUFFICIENT  Too little data: 1 usable memory sample, at least 5 are needed.
        Memory by sample: standard input, rss_mb
        ...
          1. Record more samples: one per step, or one every 10 steps over at least 50 steps.
          2. Two passes over the same data best separate a cache from a leak.
        Read: csv, 1 sample, column rss_mb (MiB), 0 skipped
    "#]],
    );
    check_input(
        b"step,rss_mb\n",
        expect![[r#"
        exit 3
        ----- stdout
        INSUFFICIENT  Too little data: 0 usable memory samples, at least 5 are needed.
        Forecast
          limit  32.0 GiB
        What to do
          1. Record more samples: one per step, or one every 10 steps over at least 50 steps.
          2. Two passes over the same data best separate a cache from a leak.
        Read: csv, 0 samples, 0 skipped
    "#]],
    );
}

#[test]
fn unusable_values_are_counted_and_named() {
    let table = b"step,rss_mb\n1,100\n2,NaN\n3,-5\n4,100\n5,n/a\n6,100\n7,100\n8,inf\n9,100\n10,100\n3,100\n11,100\n";
    check_input(
        table,
        expect![[r#"
            exit 0
            ----- stdout
            FLAT  Memory is flat at 100 MiB: no growth beyond noise after start-up.
            Memory by step: standard input, rss_mb
            ...
              - 1 line skipped: value is not a number (line 6, `rss_mb` = `n/a`)
              - 1 line skipped: value is infinite or larger than any machine's memory (line 9, `rss_mb` = `inf`)
              - 1 sample skipped: the step goes backwards
        "#]],
    );
}

#[test]
fn mixed_units_are_read_as_they_say() {
    let log = "Step 1: RAM: 1024 MB\nStep 2: RAM: 1 GB\nStep 3: RAM: 1048576 KiB\nStep 4: RAM: 1.0 GiB\nStep 5: RAM: 1,024 MB\n";
    let (found, _) = {
        let output = run_with_input(&["diagnose", "-", "--format", "json"], log.as_bytes());
        (serde_json::from_slice::<Value>(&output.stdout).unwrap(), output)
    };
    assert_eq!((&found["verdict"], &found["level"]["bytes"]), (&"flat".into(), &(1_u64 << 30).into()));
}

#[test]
fn the_stability_assertion_decides_the_exit_code() {
    let ask = |step: &str, bound: &str| {
        let (found, code) = diagnose(RUN2, &["--stable-after", step, "--max-variation", bound]);
        (
            code,
            found["stability"]["passed"].as_bool().unwrap(),
            found["stability"]["text"].as_str().unwrap().to_string(),
        )
    };
    let (code, passed, text) = ask("90", "500MB");
    assert_eq!((code, passed), (1, false), "{text}");
    assert!(text.contains("662 MiB"), "{text}");
    // Memory that falls is no growth, and in the window that the team asked for it hardly moves.
    let (found, code) = diagnose(RUN2, &["--stable-after", "90", "--max-growth", "500MB"]);
    assert_eq!((code, &found["stability"]["growth_bytes"]), (0, &(36_u64 << 20).into()), "{}", found["stability"]);
    let (found, code) = diagnose(RUN2, &["--stable-between", "90..120", "--max-variation", "500MB"]);
    assert_eq!((code, &found["stability"]["variation_bytes"]), (0, &(36_u64 << 20).into()), "{}", found["stability"]);
    let (found, code) = diagnose(RUN2, &["--stable-between", "40..90", "--max-growth", "500MB"]);
    assert_eq!((code, &found["stability"]["passed"]), (1, &false.into()), "{}", found["stability"]);
    assert_eq!((ask("90", "700MB").0, ask("90", "700MB").1), (0, true));
    // The trace ends at step 240: too early to speak of what comes after step 220.
    let (code, passed, text) = ask("220", "10GB");
    assert_eq!((code, passed), (1, false), "{text}");
}

#[test]
fn every_field_of_the_contract_is_there_and_unknown_ones_are_null() {
    let fields = [
        "verdict",
        "mechanism",
        "confidence",
        "summary",
        "likelihood",
        "growth",
        "knee",
        "level",
        "memory",
        "forecast",
        "headroom",
        "sensitivity",
        "clock",
        "phases",
        "processes",
        "causes",
        "ruled_out",
        "suspect",
        "next_command",
        "claims",
        "evidence",
        "advice",
        "parts",
        "series",
        "stability",
        "input",
    ];
    for file in
        ["testdata/production/run1.csv", RUN2, "testdata/traces/c_flat.csv", "testdata/traces/i_eval_staircase.csv"]
    {
        let (found, _) = diagnose(file, &["--memory-limit", "32GB"]);
        let found = found.as_object().unwrap();
        let names: Vec<&str> = found.keys().map(String::as_str).collect();
        for field in fields {
            assert!(names.contains(&field), "{file}: {field} is missing");
        }
        assert_eq!(names.len(), fields.len(), "{file}: {names:?}");
    }
    let (flat, _) = diagnose("testdata/traces/c_flat.csv", &[]);
    assert_eq!(
        (&flat["knee"], &flat["growth"]["bytes_per_step"], &flat["likelihood"]),
        (&Value::Null, &Value::Null, &Value::Null)
    );
    let bytes_per_example = &diagnose(RUN2, &[]).0["growth"]["bytes_per_example"];
    assert_eq!(bytes_per_example, &Value::Null);
}

#[test]
fn a_report_goes_to_a_file_as_a_whole() {
    let folder = scratch("output");
    let file = folder.join("report.md");
    let output = run(&["diagnose", RUN2, "--format", "markdown", "-o", file.to_str().unwrap()]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 0));
    assert!(fs::read_to_string(&file).unwrap().starts_with("## Memory of run2.csv: settled"));
    let left: Vec<_> = fs::read_dir(&folder).unwrap().collect();
    assert_eq!(left.len(), 1, "no draft stays behind");
    let output = run(&["diagnose", RUN2, "-o", folder.join("no/such/folder.txt").to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("hint: create the folder first"));
}

#[test]
fn a_full_disk_is_a_failure() {
    let output = run(&["diagnose", RUN2, "-o", "/dev/full"]);
    assert_eq!(output.status.code(), Some(2), "{}", told(&output));
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let mut child = model_garden(&["diagnose", RUN2, "--format", "json"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stdout.take().unwrap();
    pipe.read_exact(&mut [0; 10]).unwrap();
    drop(pipe);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn no_line_is_wider_than_100_columns_and_plain_text_has_no_escapes() {
    for file in ["testdata/production/run1.csv", RUN2, "testdata/traces/i_eval_staircase.csv"] {
        let text = String::from_utf8(run(&["diagnose", file]).stdout).unwrap();
        assert!(!text.contains('\x1b'), "{file}");
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{file}: {line}");
        }
    }
}

#[test]
fn help_shows_every_flag_and_the_exit_codes() {
    let help = String::from_utf8(run(&["diagnose", "--help"]).stdout).unwrap();
    for word in [
        "--format",
        "--output",
        "--examples",
        "--batch-size",
        "--gradient-accumulation",
        "--steps-per-epoch",
        "--total-steps",
        "--memory-limit",
        "--column",
        "--unit",
        "--stable-after",
        "--stable-between",
        "--max-variation",
        "--max-growth",
        "insufficient",
        "exit codes",
    ] {
        assert!(help.contains(word), "{word} is missing in:\n{help}");
    }
}

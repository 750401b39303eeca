//! `model-garden bisect`: what it makes of records of real experiments, its exit codes, and what it says when it cannot go on.
//!
//! That the experiment itself finds what it should is tested with the Python package, in `python/tests/test_bisect.py`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::fs;

use crate::common::{has_python, model_garden, repository, run, scratch, told};
use expect_test::{Expect, expect, expect_file};
use serde_json::{Value, json};

const TRAIN: &str = "testdata/bisect/train.json";
const LIMIT: [&str; 2] = ["--memory-limit", "32GB"];

fn check(words: &[&str], expected: Expect) {
    expected.assert_eq(&told(&run(words)));
}

fn record(name: &str) -> Value {
    serde_json::from_slice(&fs::read(repository(&format!("testdata/bisect/{name}.json"))).unwrap()).unwrap()
}

/// The exit code for a record.
fn code(name: &str, record: &Value, flags: &[&str]) -> Option<i32> {
    let file = scratch(&format!("bisect-{name}")).join("record.json");
    fs::write(&file, record.to_string()).unwrap();
    run(&[&["bisect", file.to_str().unwrap(), "--format", "json"], flags].concat()).status.code()
}

#[test]
fn a_record_is_told_in_every_format() {
    for (format, file) in [("text", "bisect-train.txt"), ("json", "bisect-train.json"), ("markdown", "bisect-train.md")]
    {
        let output = run(&[&["bisect", TRAIN, "--format", format], &LIMIT[..]].concat());
        assert_eq!((output.status.code(), output.stderr.len()), (Some(1), 0), "{}", told(&output));
        expect_file![repository(&format!("testdata/expected/{file}"))]
            .assert_eq(&String::from_utf8(output.stdout).unwrap());
    }
}

#[test]
fn the_same_goes_into_a_file() {
    let folder = scratch("bisect-output");
    let file = folder.join("answer.txt");
    let output = run(&[&["bisect", TRAIN, "-o", file.to_str().unwrap()], &LIMIT[..]].concat());
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{}", told(&output));
    let text = fs::read_to_string(file).unwrap();
    assert!(text.starts_with("LEAK  A variable of module train keeps 26.7 KiB per example"), "{text}");
    let page = folder.join("answer.html");
    run(&["bisect", TRAIN, "--format", "html", "-o", page.to_str().unwrap()]);
    let page = fs::read_to_string(page).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("\"verdict\": \"leak\""), "{}", &page[..200]);
}

#[test]
fn exit_codes_tell_the_answer() {
    let photographs = record("photographs");
    assert_eq!(code("leak", &record("train"), &[]), Some(1));
    assert_eq!(code("cache", &photographs, &LIMIT), Some(0));
    // 70 MiB for all of them.
    assert_eq!(code("cache-too-large", &photographs, &["--memory-limit", "60MB"]), Some(1));
    assert_eq!(code("cache-just-right", &photographs, &["--memory-limit", "80MB"]), Some(0));
    assert_eq!(code("copies", &record("rows"), &[]), Some(0));
    assert_eq!(code("failed", &record("failed"), &[]), Some(2));
    // Growth that is neither even nor over: more passes are needed.
    let mut uneven = photographs.clone();
    let run =
        uneven["runs"].as_array_mut().unwrap().iter_mut().find(|run| run["name"] == "dataset + processor").unwrap();
    for (pass, more) in run["passes"].as_array_mut().unwrap().iter_mut().zip([0, 20 << 20, 26 << 20]) {
        pass["held"] = json!(pass["held"].as_i64().unwrap() + more);
    }
    assert_eq!(code("undecided", &uneven, &[]), Some(3));
}

#[test]
fn what_is_no_record_is_refused() {
    let folder = scratch("bisect-broken");
    let tell = |name: &str, text: &str, expected: Expect| {
        let file = folder.join(name);
        fs::write(&file, text).unwrap();
        let told = told(&run(&["bisect", file.to_str().unwrap()]));
        expected.assert_eq(&told.replace(folder.to_str().unwrap(), "FOLDER"));
    };
    tell(
        "empty.json",
        "",
        expect![[r#"
        exit 2
        ----- stderr
        error: cannot judge `FOLDER/empty.json`
          caused by: not an experiment record: EOF while parsing a value at line 1 column 0

        hint: make a record with `model-garden bisect module:function --record FILE`
    "#]],
    );
    tell(
        "other.json",
        "{\"format\": \"something\"}",
        expect![[r#"
            exit 2
            ----- stderr
            error: cannot judge `FOLDER/other.json`
              caused by: its format is `something`, not `model-garden-bisect`

            hint: make a record with `model-garden bisect module:function --record FILE`
        "#]],
    );
    tell(
        "torn.json",
        &record("train").to_string()[..2000],
        expect![[r#"
        exit 2
        ----- stderr
        error: cannot judge `FOLDER/torn.json`
          caused by: not an experiment record: EOF while parsing a value at line 1 column 2000

        hint: make a record with `model-garden bisect module:function --record FILE`
    "#]],
    );
    let mut newer = record("failed");
    newer["version"] = json!(7);
    tell(
        "newer.json",
        &newer.to_string(),
        expect![[r#"
        exit 2
        ----- stderr
        error: cannot judge `FOLDER/newer.json`
          caused by: it has version 7; this program reads 1

        hint: make a record with `model-garden bisect module:function --record FILE`
    "#]],
    );
    newer["format"] = json!("coffee");
    tell(
        "coffee.json",
        &newer.to_string(),
        expect![[r#"
        exit 2
        ----- stderr
        error: cannot judge `FOLDER/coffee.json`
          caused by: its format is `coffee`, not `model-garden-bisect`

        hint: make a record with `model-garden bisect module:function --record FILE`
    "#]],
    );
    fs::write(folder.join("binary.json"), [0xff, 0xfe, 0x00]).unwrap();
    let output = run(&["bisect", folder.join("binary.json").to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2), "{}", told(&output));
}

#[test]
fn what_is_neither_a_record_nor_a_function_is_explained() {
    check(
        &["bisect", "train.json"],
        expect![[r#"
        exit 2
        ----- stderr
        error: `train.json` is neither module:function nor a file

        hint: `model-garden bisect train:pieces` calls pieces() of train.py
    "#]],
    );
    check(
        &["bisect", "train:pieces", "--python", "no/such/python"],
        expect![[r#"
        exit 2
        ----- stderr
        error: cannot start Python as `no/such/python`
          caused by: No such file or directory (os error 2)

        hint: choose a Python with --python, or activate its environment
    "#]],
    );
    check(
        &["bisect", "train:pieces", "--passes", "1"],
        expect![[r#"
        exit 2
        ----- stderr
        error: invalid value '1' for '--passes <N>': 1 is not in 2..=1000

        For more information, try '--help'.
    "#]],
    );
    check(
        &["bisect", "train:pieces", "--examples", "3"],
        expect![[r#"
        exit 2
        ----- stderr
        error: invalid value '3' for '--examples <N>': 3 is not in 8..=4294967295

        For more information, try '--help'.
    "#]],
    );
    check(
        &["bisect"],
        expect![[r#"
        exit 2
        ----- stderr
        error: the following required arguments were not provided:
          <MODULE:FUNCTION>

        Usage: model-garden bisect <MODULE:FUNCTION>

        For more information, try '--help'.
    "#]],
    );
}

/// The experiment and the answer are one process, whose files are gone afterwards.
#[test]
fn a_function_is_run_by_python_and_judged() {
    if !has_python() {
        return;
    }
    let folder = scratch("bisect-run");
    let keeps = "kept = []\ndef pieces():\n    return {'dataset': list(range(60)), 'collator': lambda batch: kept.append(b'x' * 200_000)}\n";
    fs::write(folder.join("train.py"), keeps).unwrap();
    let temporary = folder.join("temporary");
    fs::create_dir(&temporary).unwrap();
    let words = ["bisect", "train:pieces", "--passes", "3", "--format", "json", "--python", "python3"];
    let mut command = model_garden(&words);
    command.current_dir(&folder).env("PYTHONPATH", repository("python")).env("TMPDIR", &temporary);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", told(&output));
    let finding: Value = serde_json::from_slice(&output.stdout).unwrap();
    let growth = &finding["growths"][0];
    assert_eq!(
        (&finding["verdict"], &growth["cause"], &growth["keeper"], &growth["held_at"]),
        (&json!("leak"), &json!("growing_container"), &json!("module train"), &json!("module train.kept"))
    );
    // Batches of two.
    let each = growth["bytes_per_example"].as_f64().unwrap();
    assert!((97_000.0..105_000.0).contains(&each), "{each}");
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0, "something was left behind");
}

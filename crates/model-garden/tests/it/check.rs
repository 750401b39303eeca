//! `model-garden check` on small datasets and a tiny model: the answer, its parts, and exit codes.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use std::fs;
use std::process::Output;

use crate::common::{run, scratch};
use expect_test::expect;
use serde_json::{Value, json};

const MODEL: &str = "testdata/tiny-model";

fn check(dataset: &str, words: &[&str]) -> Output {
    let mut all = vec!["check", dataset, "--base-model", MODEL, "--threads", "2"];
    all.extend(words);
    run(&all)
}

fn text(done: &Output) -> String {
    String::from_utf8(done.stdout.clone()).unwrap()
}

fn first_line(done: &Output) -> String {
    text(done).lines().next().unwrap_or_default().to_string()
}

#[test]
fn a_good_dataset() {
    let done = check("testdata/data/datasets/chat.jsonl", &[]);
    assert_eq!(done.status.code(), Some(0));
    expect![[r#"
        4 rows, all usable: 1 step per epoch at 2 x 4

        Tokens per row: median 62, 99 % up to 112, largest 112
           54 -  55  ████████████████████████████████████████ 1
           56 -  63  ████████████████████████████████████████ 1
           64 -  79  ████████████████████████████████████████ 1
           80 -  95   0
           96 - 111   0
                112  ████████████████████████████████████████ 1

        Image tokens per row: median 8, 99 % up to 14, largest 14
                6  ████████████████████████████████████████ 1
                7   0
           8 -  9  ████████████████████████████████████████ 1
          10 - 11   0
          12 - 13   0
               14  ████████████████████████████████████████ 1

        Trained tokens per row: median 9, 99 % up to 45, largest 45
           6 -  7  ████████████████████████████████████████ 1
           8 - 11  ████████████████████████████████████████ 1
          12 - 15  ████████████████████████████████████████ 1
          16 - 23   0
          24 - 31   0
          32 - 45  ████████████████████████████████████████ 1

        Megapixels per image: median 0.0063, 99 % up to 0.0072, largest 0.0072
          0.0061 - 0.0067  ████████████████████████████████████████ 2
          0.0067 - 0.0072   0
                   0.0072  ████████████████████████████████████████ 2

        Largest row: testdata/data/datasets/chat.jsonl:4
          112 tokens, 8 of them from 1 image (120 x 60)
        Largest micro-batch in any order
          189 tokens, 57 trained, 88 patches, 3 images

        Host memory for the data
              104 KiB  in Python with 4 images decoded in a list
              459 KiB  here, regardless of the number of images:
                 64 B    row index
              404 KiB    patches of the largest micro-batch
             42.2 KiB    largest image decoded, on 2 threads
             13.0 KiB    largest row compressed, on 2 threads
    "#]]
    .assert_eq(&text(&done));
    assert!(text(&done).lines().all(|line| line.chars().count() <= 80), "{}", text(&done));
}

#[test]
fn bad_rows_by_line_and_field() {
    let folder = scratch("check-bad");
    let gate = fs::canonicalize(crate::common::repository("testdata/data/datasets/pictures/gate.jpg")).unwrap();
    let good = json!({"prompt": "Which gate?", "image": gate, "response": "B14"}).to_string();
    let missing =
        |number: usize| json!({"prompt": "What?", "image": format!("{number}.jpg"), "response": "It."}).to_string();
    let mut lines = vec![good.clone(), r#"{"prompt": "What?", "response": 3}"#.to_string(), good];
    lines.push(r#"{"prompt": "Say nothing.", "response": " "}"#.to_string());
    lines.extend((0..30).map(missing));
    let file = folder.join("rows.jsonl");
    fs::write(&file, lines.join("\n")).unwrap();
    let file = file.to_str().unwrap();
    let done = check(file, &[]);
    assert_eq!(done.status.code(), Some(1));
    assert_eq!(first_line(&done), "31 of 34 rows are bad; the other 3 make 1 step per epoch at 2 x 4");
    let told = text(&done);
    for part in [
        "rows.jsonl:2: field `response` is the number 3, not a string",
        "rows.jsonl:5: field `image` names `",
        "... and 11 more (--format json lists up to 1000)",
        "warning: 1 row duplicates an earlier one",
        "rows.jsonl:3 is the same as ",
        "warning: 1 row has an empty answer",
    ] {
        assert!(told.contains(part), "`{part}` is missing: {told}");
    }
    assert_eq!(told.matches("hint: paths are relative").count(), 1);
    let done = check(file, &["--format", "json"]);
    assert_eq!(done.status.code(), Some(1));
    let value: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!((&value["bad"], &value["rows"], &value["usable"]), (&json!(31), &json!(34), &json!(3)));
    assert_eq!(value["problems"].as_array().unwrap().len(), 31);
    assert_eq!((&value["problems"][0]["row"], &value["problems"][0]["field"]), (&json!(2), &json!("response")));
    assert_eq!((&value["duplicates"][0]["row"], &value["duplicates"][0]["first_row"]), (&json!(3), &json!(1)));
    assert_eq!((&value["empty_answers"][0]["row"], &value["steps_per_epoch"]), (&json!(4), &json!(1)));
}

#[test]
fn long_rows_under_each_policy() {
    let with =
        |policy: &str| check("testdata/data/datasets/chat.jsonl", &["--max-length", "80", "--on-long-row", policy]);
    let refused = with("refuse");
    assert_eq!((refused.status.code(), first_line(&refused).contains(" bad")), (Some(1), true));
    assert!(text(&refused).contains("`max_length` is 80"));
    let dropped = with("drop");
    assert_eq!(dropped.status.code(), Some(0));
    assert!(first_line(&dropped).contains(" dropped as too long"), "{}", first_line(&dropped));
}

#[test]
fn what_cannot_be_used_at_all() {
    let done = check("nothing.jsonl", &[]);
    assert_eq!(done.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&done.stderr).contains("no such file or folder"));
    let done = run(&["check", "testdata/data/datasets/chat.jsonl", "--base-model", "testdata"]);
    assert_eq!(done.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&done.stderr).contains("config.json"));
    let done = check("testdata/data/datasets/chat.jsonl", &["--min-pixels", "9000000"]);
    assert_eq!(done.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&done.stderr).contains("--min-pixels"));
}

#[test]
fn fields_that_look_like_something_to_learn_from_are_named_with_the_flags_for_them() {
    let file = "testdata/data/foreign/image-fields.jsonl";
    let done = check(file, &[]);
    assert_eq!(done.status.code(), Some(1));
    let text = text(&done);
    let expected = "  testdata/data/foreign/image-fields.jsonl:2: field `image_1` is the string `../datasets/pictures/gate.jpg`: it looks like a picture and is not used
    hint: `--field image=image_1,image=image_2` uses it; `--ignore-field image_1,image_2` trains without it
";
    assert!(text.contains(expected), "{text}");
    // The flags may come in pieces.
    let words = [
        "--field",
        "image=image_1",
        "--field",
        "image=image_2",
        "--ignore-field",
        "image_path,source",
        "--ignore-field",
        "messages[].images",
    ];
    let done = check(file, &words);
    assert_eq!(done.status.code(), Some(0), "{}", crate::common::told(&done));
    let shown = run(&[&["preview", file, "--model", MODEL, "--row", "2"], &words[..]].concat());
    assert_eq!(String::from_utf8_lossy(&shown.stdout).matches("<image ").count(), 2, "{}", crate::common::told(&shown));
    let wrong = run(&["check", file, "--model", MODEL, "--field", "wall=image_1"]);
    assert!(
        crate::common::told(&wrong).contains("`wall` is not a meaning: use question"),
        "{}",
        crate::common::told(&wrong)
    );
}

#[test]
fn decoding_finds_what_headers_do_not_tell() {
    let folder = scratch("check-decode");
    let odd = |name: &str| fs::canonicalize(crate::common::repository("testdata/data/odd")).unwrap().join(name);
    let row = |name: &&str| json!({"prompt": "q", "image": odd(name), "response": "a"}).to_string() + "\n";
    let rows: String = ["frames.gif", "one.png", "gray-16.png", "one.tiff"].iter().map(row).collect();
    let file = folder.join("rows.jsonl");
    fs::write(&file, rows).unwrap();
    let file = file.to_str().unwrap();
    let quick: Value = serde_json::from_slice(&check(file, &["--format", "json"]).stdout).unwrap();
    assert_eq!((&quick["bad"], &quick["decoded"]), (&json!(0), &json!(false)));
    assert_eq!(quick["several_frames"], json!({"pictures": 1, "first": format!("{file}:1")}));
    assert_eq!(quick["clipped_gray"], json!({"pictures": 1, "first": format!("{file}:3")}));
    let done = check(file, &["--decode", "--format", "json"]);
    let whole: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!((done.status.code(), &whole["bad"], &whole["decoded"]), (Some(1), &json!(1), &json!(true)));
    assert_eq!((&whole["problems"][0]["row"], &whole["problems"][0]["field"]), (&json!(2), &json!("image")));
    let text = text(&check(file, &["--decode"]));
    assert!(text.starts_with("1 of 4 rows is bad; the other 3 make"), "{text}");
    assert!(text.contains("\nPictures\n  every picture of the 3 usable rows was decoded\n  1 picture has several frames or pages: the first one is used, first "), "{text}");
}

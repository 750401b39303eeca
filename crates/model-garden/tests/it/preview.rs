//! `model-garden preview` on small datasets and a tiny model.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name)
}

fn preview(dataset: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_model-garden"));
    command.arg("preview").arg(dataset).arg("--base-model").arg(testdata("tiny-model")).args(words).output().unwrap()
}

#[test]
fn a_row_as_the_model_sees_it() {
    let done = preview(&testdata("data/datasets/chat.jsonl"), &["--rows", "2"]);
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    for part in [
        "<|vision_start|><image 3 x 2 = 6 tokens><|vision_end|>Which gate is it?<|im_end|>",
        "«Gate B14.<|im_end|>»",
        "chat.jsonl:1: 54 tokens, 6 of images, 9 trained",
        "chat.jsonl:2: ",
    ] {
        assert!(text.contains(part), "`{part}` is missing: {text}");
    }
}

#[test]
fn structure_is_masked_and_long_rows_are_dropped() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("preview");
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("rows.jsonl");
    let row = |answer: &str| serde_json::json!({"prompt": "What is it?", "response": answer}).to_string() + "\n";
    fs::write(&file, row("{\"colour\": \"red\"}") + &row("{\"colour\": \"blue\"}")).unwrap();
    let masked = |level: &str| {
        let done = preview(&file, &["--json", "--selective-loss", level]);
        let told: Value = serde_json::from_slice(&done.stdout).unwrap();
        told["rows"][0]["preview"]["masked"].as_u64().unwrap()
    };
    let counts = ["off", "conservative", "aggressive"].map(masked);
    assert!(counts[0] == 0 && counts[1] > 0 && counts[2] > counts[1], "{counts:?}");
    let short = preview(&file, &["--max-length", "20", "--on-long-row", "drop"]);
    assert!(String::from_utf8(short.stdout).unwrap().contains("dropped, as it has"));
    for (words, told) in [
        (vec!["--max-length", "20"], vec!["row 1", "rows.jsonl:1", "20"]),
        (vec!["--row", "3"], vec!["no row 3", "2 rows"]),
        (vec!["--labels", "some"], vec!["some", "assistant"]),
    ] {
        let done = preview(&file, &words);
        let error = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(2));
        assert!(told.iter().all(|part| error.contains(part)), "{words:?}: {error}");
    }
    fs::write(&file, row("fine") + "{\"prompt\": \"a\", \"response\": 3}\n").unwrap();
    let error = String::from_utf8(preview(&file, &["--row", "2"]).stderr).unwrap();
    assert!(error.contains("rows.jsonl:2") && error.contains("response"), "{error}");
    fs::remove_dir_all(&folder).unwrap();
}

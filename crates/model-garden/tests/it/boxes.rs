//! Boxes from a dataset to an evaluation: what `check` and `preview` say about them, and how answers are scored.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::common::{repository, run, scratch, told};

const MODEL: &str = "testdata/tiny-model";
/// Width and height of the picture of each row.
const SIZE: [f64; 2] = [613.0, 401.0];

/// A dataset whose rows each ask for one box.
fn dataset(folder: &Path, rows: usize) -> PathBuf {
    std::fs::copy(repository("testdata/data/recorded/pictures/rgb-large.png"), folder.join("a.png")).unwrap();
    let row = |number: usize| {
        let left = SIZE[0] * number as f64 / (rows + 1) as f64;
        json!({
            "messages": [
                {"role": "user", "content": format!("<image>Where is <ref-object> {number}?")},
                {"role": "assistant", "content": "[{\"bbox_2d\": <bbox>, \"label\": \"boat\"}]"},
            ],
            "images": ["a.png"],
            "objects": {"ref": ["boat"], "bbox": [[left, 10, left + 40.5, SIZE[1]]]},
        })
    };
    let text: String = (0..rows).map(|number| row(number).to_string() + "\n").collect();
    let file = folder.join("rows.jsonl");
    std::fs::write(&file, text).unwrap();
    file
}

#[test]
fn check_says_what_is_done_with_boxes() {
    let folder = scratch("boxes-check");
    let file = dataset(&folder, 3);
    let mut rows = std::fs::read_to_string(&file).unwrap();
    let text = |numbers: &str| {
        let answer = format!("{{\"bbox_2d\": {numbers}}}");
        json!({"prompt": "Where?", "image": "a.png", "response": answer}).to_string() + "\n"
    };
    rows += &text("[1, 2, 30, 40]");
    std::fs::write(&file, &rows).unwrap();
    let words = ["check", file.to_str().unwrap(), "--base-model", MODEL];
    let done = run(&words);
    let said = told(&done);
    assert_eq!(done.status.code(), Some(0), "{said}");
    assert!(said.contains("3 boxes of `objects`: written in pixels of the resized images"), "{said}");
    assert!(said.contains("1 box in texts (`bbox_2d`): not converted"), "{said}");
    let converted = told(&run(&[&words[..], &["--bbox-2d", "original"]].concat()));
    assert!(
        converted.contains("1 box in texts (`bbox_2d`): converted from pixels of the original images"),
        "{converted}"
    );
    // A box that only the original picture has room for is most likely meant for that.
    std::fs::write(&file, rows + &text("[1, 2, 600, 400]")).unwrap();
    let done = run(&words);
    let said = told(&done);
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(
        said.contains("rows.jsonl:5: field `response` has `bbox_2d` [1, 2, 600, 400], outside its picture"),
        "{said}"
    );
    assert!(said.contains("convert them with `--bbox-2d original`"), "{said}");
}

#[test]
fn preview_draws_boxes() {
    let folder = scratch("boxes-preview");
    let file = dataset(&folder, 2);
    let seen = folder.join("seen");
    let words =
        ["preview", file.to_str().unwrap(), "--base-model", MODEL, "--rows", "2", "--pictures", seen.to_str().unwrap()];
    let done = run(&words);
    assert!(done.status.success(), "{}", told(&done));
    assert!(told(&done).contains("from `objects`: [0, 10, 40.5, 401]"), "{}", told(&done));
    for row in 1..=2 {
        let png = std::fs::read(seen.join(format!("row-{row}-picture-1.png"))).unwrap();
        assert!(png.starts_with(b"\x89PNG"));
    }
    let json: Value = serde_json::from_slice(&run(&[&words[..], &["--json"]].concat()).stdout).unwrap();
    let preview = &json["rows"][1]["preview"];
    let [width, height] = [0, 1].map(|place| preview["pictures"][0][place].as_f64().unwrap());
    let [x1, x2] = [SIZE[0] / 3.0, SIZE[0] / 3.0 + 40.5].map(|x| (x / SIZE[0] * width).round_ties_even());
    let expected = [x1, (10.0 / SIZE[1] * height).round_ties_even(), x2, height].map(|number| number as i64);
    assert_eq!(preview["boxes"][0]["numbers"], json!(expected));
}

#[test]
fn answers_with_boxes_are_scored_by_their_overlap() {
    let folder = scratch("boxes-train");
    let (file, output) = (dataset(&folder, 6), folder.join("out"));
    let words = [
        "train-vision",
        "--base-model",
        MODEL,
        "--dataset",
        file.to_str().unwrap(),
        "--output-dir",
        output.to_str().unwrap(),
    ];
    let more = [
        "--eval-split",
        "0.4",
        "--max-steps",
        "2",
        "--eval-steps",
        "2",
        "--eval-answers",
        "2",
        "--max-new-tokens",
        "8",
        "--threads",
        "1",
    ];
    let done = run(&[&words[..], &more].concat());
    assert!(done.status.success(), "{}", told(&done));
    let log = std::fs::read_to_string(output.join("log.jsonl")).unwrap();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let evaluations: Vec<&Value> = lines.iter().filter(|line| line.get("eval_loss").is_some()).collect();
    assert_eq!(evaluations.len(), 2, "{log}");
    // A model of random weights answers no box.
    assert!(evaluations.iter().all(|line| line["eval_mean_iou"] == 0.0 && line["eval_iou_50"] == 0.0), "{log}");
    // The right answers are those of the model's pixels.
    let answers = std::fs::read_to_string(output.join("predictions.jsonl")).unwrap();
    assert!(answers.contains("bbox_2d\\\": ["), "{answers}");
    assert!(!answers.contains("<bbox>") && !answers.contains("<ref-object>"), "{answers}");
    let page = std::fs::read_to_string(output.join("report.html")).unwrap();
    assert!(page.contains("box overlap"));
}

//! Input that is wrong or hostile, through the command line: an answer, an exit code, and nothing that a terminal would obey.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::common::{model_garden, repository, run, scratch, told};
use serde_json::json;

const MODEL: &str = "testdata/tiny-model";
const ROWS: &str = "testdata/data/datasets/chat.jsonl";

fn refused(output: &Output, words: &str) {
    assert_eq!(output.status.code(), Some(2), "{}", told(output));
    assert!(told(output).contains(words), "{}", told(output));
}

/// A copy of the tiny model in which a file has another text.
fn changed_model(name: &str, file: &str, from: &str, to: &str) -> PathBuf {
    let folder = scratch(name);
    for entry in fs::read_dir(repository(MODEL)).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, folder.join(path.file_name().unwrap())).unwrap();
    }
    let text = fs::read_to_string(folder.join(file)).unwrap();
    assert!(text.contains(from), "{file} has no {from}");
    fs::write(folder.join(file), text.replacen(from, to, 1)).unwrap();
    folder
}

#[test]
fn threads_are_as_many_as_can_be_started() {
    let many = "1000000";
    for words in [
        &["check", ROWS, "--base-model", MODEL, "--threads", many][..],
        &["generate", "--model", MODEL, "--prompt", "a", "--threads", many],
        &["train-vision", "--base-model", MODEL, "--dataset", ROWS, "--output-dir", "/nowhere", "--threads", many],
        &[
            "train-vision",
            "--base-model",
            MODEL,
            "--dataset",
            ROWS,
            "--output-dir",
            "/nowhere",
            "--loader-threads",
            many,
        ],
    ] {
        refused(&run(words), "1024");
    }
}

#[test]
fn a_processor_that_does_not_fit_its_model_is_refused_by_all() {
    let cases = [
        ("\"merge_size\": 2", "\"merge_size\": 2147483648", "`merge_size` is 2147483648; the maximum is 1024"),
        (
            "\"merge_size\": 2",
            "\"merge_size\": 4",
            "`merge_size` is 4; `vision_config.spatial_merge_size` of config.json is 2",
        ),
    ];
    for (number, (from, to, words)) in cases.into_iter().enumerate() {
        let model = changed_model(&format!("misfit-{number}"), "preprocessor_config.json", from, to);
        let model = model.to_str().unwrap();
        refused(&run(&["check", ROWS, "--base-model", model]), words);
        let image = "testdata/data/datasets/pictures/gate.jpg";
        refused(&run(&["generate", "--model", model, "--prompt", "a", "--image", image, "--threads", "1"]), words);
    }
}

#[test]
fn pictures_are_not_enlarged_beyond_what_is_decoded() {
    let words = ["generate", "--model", MODEL, "--prompt", "a", "--image", "testdata/data/datasets/pictures/gate.jpg"];
    let huge = ["--min-pixels", "500000000000", "--max-pixels", "500000000000"];
    refused(&run(&[&words[..], &huge].concat()), "the maximum is 178956970");
}

/// What would clear a terminal, rename its window, or speak to it in eight bits.
const COMMANDS: &str = "\u{1b}[2J\u{1b}]0;owned\u{7}\u{9b}31m";

fn obeys_nothing(output: &Output) {
    let text = told(output);
    let bad = text.chars().find(|letter| letter.is_control() && !['\n', '\t'].contains(letter));
    assert_eq!(bad, None, "{text:?}");
}

#[test]
fn a_terminal_is_not_commanded_from_outside() {
    let folder = scratch("commands").join(format!("data{COMMANDS}"));
    fs::create_dir_all(&folder).unwrap();
    let picture = repository("testdata/data/datasets/pictures/gate.jpg").canonicalize().unwrap();
    let rows = [
        json!({"prompt": "a", "image": format!("{COMMANDS}.jpg"), "response": "b"}),
        json!({"prompt": COMMANDS, "image": picture, "response": COMMANDS, COMMANDS: 1}),
        json!({"messages": [{"role": COMMANDS, "content": "b"}]}),
    ];
    let file = folder.join("rows.jsonl");
    fs::write(&file, rows.map(|row| row.to_string() + "\n").concat()).unwrap();
    let file = file.to_str().unwrap();
    let template = folder.join("template.jinja");
    fs::write(&template, format!("{{{{ raise_exception('{COMMANDS}') }}}}")).unwrap();
    let check = ["check", file, "--base-model", MODEL];
    let failing = [&check[..], &["--chat-template", template.to_str().unwrap()]].concat();
    for words in [
        &check[..],
        &[&check[..], &["--format", "json"]].concat(),
        &failing,
        &["preview", file, "--base-model", MODEL, "--row", "2"],
        &["preview", file, "--base-model", MODEL, "--row", "1"],
        &["preview", file, "--base-model", MODEL, "--row", "2", "--json"],
        &["check", COMMANDS, "--base-model", MODEL],
        &["check", file, "--base-model", COMMANDS],
        &["generate", "--model", COMMANDS, "--prompt", "a"],
        &["check", file, "--base-model", MODEL, "--batch-size", COMMANDS],
        &[
            "train-vision",
            "--base-model",
            MODEL,
            "--dataset",
            file,
            "--output-dir",
            folder.join("out").to_str().unwrap(),
        ],
        &["diagnose", file],
    ] {
        obeys_nothing(&run(words));
    }
    let done = run(&[&check[..], &["--format", "json"]].concat());
    let told: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert!(told.to_string().contains("owned\\u0007"), "{told}");
}

/// A cache of the hub with one dataset, whose files are links as the hub's own program makes them.
fn cache(folder: &Path) {
    let repository_folder = folder.join("datasets--someone--theirs");
    let (blobs, snapshot) = (repository_folder.join("blobs"), repository_folder.join("snapshots/abc"));
    fs::create_dir_all(&blobs).unwrap();
    fs::create_dir_all(&snapshot).unwrap();
    let picture = repository("testdata/data/datasets/pictures/gate.jpg").canonicalize().unwrap();
    fs::copy(&picture, blobs.join("b1")).unwrap();
    let row = |image: &str| json!({"prompt": "a", "image": image, "response": "b"}).to_string() + "\n";
    fs::write(blobs.join("b2"), row("own.jpg") + &row(picture.to_str().unwrap())).unwrap();
    symlink("../../blobs/b1", snapshot.join("own.jpg")).unwrap();
    symlink("../../blobs/b2", snapshot.join("train.jsonl")).unwrap();
}

#[test]
fn rows_of_the_hub_stay_in_their_folder_unless_allowed() {
    let folder = scratch("hub-paths");
    cache(&folder);
    let words = ["check", "someone/theirs", "--base-model", MODEL, "--threads", "1"];
    let check =
        |more: &[&str]| model_garden(&[&words[..], more].concat()).env("HF_HUB_CACHE", &folder).output().unwrap();
    let done = check(&[]);
    assert_eq!(done.status.code(), Some(1), "{}", told(&done));
    let text = told(&done);
    assert!(text.contains("1 bad row") || text.contains("1 of 2"), "{text}");
    assert!(text.contains("which is outside `") && text.contains("--image-paths anywhere"), "{text}");
    assert_eq!(check(&["--image-paths", "anywhere"]).status.code(), Some(0));
}

/// The tiny model was made for 1,024 positions.
#[test]
fn prompts_beyond_the_model_s_positions_are_refused() {
    let folder = scratch("inputs-long-prompt");
    let prompts = folder.join("prompts.jsonl");
    let line = |length: usize| json!({"prompt": "a", "system": "a".repeat(length)}).to_string() + "\n";
    fs::write(&prompts, line(10) + &line(70_000)).unwrap();
    let words = ["generate", "--model", MODEL, "--prompts", prompts.to_str().unwrap(), "--max-new-tokens", "1"];
    refused(&bounded(&words), "the model supports 1024 (`max_position_embeddings`)");
    refused(&bounded(&words), "line 2: the prompt is too long");
}

/// Opening a pipe that nobody writes to never ends, so it is refused before: wherever a model, an adapter or a flag names a file.
#[test]
fn pipes_in_the_place_of_settings_are_refused() {
    let folder = scratch("inputs-pipes");
    let pipe = |path: &Path| {
        drop(fs::remove_file(path));
        assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    };
    for (number, file) in [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "preprocessor_config.json",
        "model.safetensors.index.json",
    ]
    .into_iter()
    .enumerate()
    {
        let model = folder.join(format!("model-{number}"));
        fs::create_dir_all(&model).unwrap();
        for entry in fs::read_dir(repository(MODEL)).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, model.join(path.file_name().unwrap())).unwrap();
        }
        if file.ends_with(".index.json") {
            // Which is read only without the single file.
            fs::remove_file(model.join("model.safetensors")).unwrap();
        }
        pipe(&model.join(file));
        refused(
            &bounded(&["generate", "--model", model.to_str().unwrap(), "--prompt", "a"]),
            "a pipe, not a regular file",
        );
    }
    let adapter = folder.join("adapter");
    fs::create_dir_all(&adapter).unwrap();
    pipe(&adapter.join("adapter_config.json"));
    let words = ["generate", "--model", MODEL, "--prompt", "a", "--adapter", adapter.to_str().unwrap()];
    refused(&bounded(&words), "a pipe, not a regular file");
    let prompts = folder.join("prompts.jsonl");
    pipe(&prompts);
    refused(
        &bounded(&["generate", "--model", MODEL, "--prompts", prompts.to_str().unwrap()]),
        "a pipe, not a regular file",
    );
    refused(&bounded(&["train-vision", "--config", prompts.to_str().unwrap()]), "a pipe, not a regular file");
}

/// Runs the program; one that has not ended after a minute is ended, which is no exit code.
fn bounded(words: &[&str]) -> Output {
    let mut child =
        model_garden(words).stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let begin = std::time::Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begin.elapsed() > std::time::Duration::from_secs(60) {
            child.kill().unwrap();
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    child.wait_with_output().unwrap()
}

#[test]
fn diagnose_sorts_shuffled_lines_and_refuses_percentages() {
    let folder = scratch("shuffled-lines");
    // 47 has no divisor in common with 120, so each line comes once; two share each step.
    let rows = (0..120).map(|at| (at * 47 + 13) % 120 / 2).map(|at| format!("{},{}\n", 10 * at, 4000 + 3 * at));
    let shuffled = folder.join("shuffled.csv");
    fs::write(&shuffled, format!("step,rss_mb\n{}", rows.collect::<String>())).unwrap();
    let output = run(&["diagnose", shuffled.to_str().unwrap()]);
    let text = told(&output);
    assert!(text.contains("the samples are in no order: sorted by step") && !text.contains("starts"), "{text}");
    assert!(text.contains("307 KiB per step"), "{text}");

    let lines = (0..20).map(|at| format!("{{\"step\":{at},\"memory_percent\":41.{at}}}\n"));
    let shares = folder.join("shares.jsonl");
    fs::write(&shares, lines.collect::<String>()).unwrap();
    let asked = run(&["diagnose", shares.to_str().unwrap(), "--column", "memory_percent"]);
    refused(&asked, "column `memory_percent` is a percentage, not an amount of memory");
    refused(&run(&["diagnose", shares.to_str().unwrap()]), "no memory column among `step`, `memory_percent`");
}

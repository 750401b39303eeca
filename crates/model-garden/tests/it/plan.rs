//! `model-garden plan` from shapes, and from a tiny model with small datasets.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name)
}

fn plan(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_model-garden")).arg("plan").args(words).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The plan as JSON, and the exit code.
fn told(words: &[&str]) -> (Value, i32) {
    let done = plan(&[words, &["--format", "json"]].concat());
    let code = done.status.code().unwrap();
    let value = serde_json::from_slice(&done.stdout)
        .unwrap_or_else(|error| panic!("{words:?}: {error}: {}", String::from_utf8_lossy(&done.stderr)));
    (value, code)
}

fn bytes(value: &Value, purpose: &str) -> u64 {
    let lines = value["plan"]["lines"].as_array().unwrap().iter();
    lines.filter(|line| line["purpose"] == purpose).map(|line| line["bytes"].as_u64().unwrap()).sum()
}

const SHAPE: [&str; 8] =
    ["--shape", "qwen2.5-vl-3b", "--image", "1024x1024", "--threads", "2", "--memory-limit", "64GB"];

#[test]
fn a_shape_says_whether_it_fits_and_what_for() {
    let done = plan(&[&SHAPE[..], &["--load-in-4bit", "--text-tokens", "256", "--batch-size", "2"]].concat());
    assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
    let text = text(&done);
    assert!(text.lines().next().unwrap().contains("fits into the limit of 64.0 GiB"), "{text}");
    for part in [
        "qwen2.5-vl-3b, LoRA of rank 16; micro-batches of 2 rows with 3250 tokens and 10952 patches",
        "4 bits in the decoder's linear layers",
        "minimum  recommended",
        "on a GPU: GPU memory",
        "--loader-threads 3 costs",
        "--prefetch 512MB costs",
    ] {
        assert!(text.contains(part), "`{part}` is missing:\n{text}");
    }
}

#[test]
fn figures_are_those_of_simple_arithmetic() {
    let (told, code) = told(&[&SHAPE[..], &["--text-tokens", "256"]].concat());
    assert_eq!((code, told["fits"].as_bool()), (0, Some(true)));
    assert_eq!(told["parameters"], 3_754_622_976_u64);
    let weights = bytes(&told, "weights") as f64 / (2.0 * 3_754_622_976.0);
    assert!((1.0..1.001).contains(&weights), "{weights}");
    assert_eq!(bytes(&told, "adapters"), 4 * 29_933_568);
    assert_eq!(bytes(&told, "optimizer"), 2 * bytes(&told, "gradients"));
    // 37 inputs of layers, f32.
    let kept = bytes(&told, "activations kept");
    assert_eq!(kept, 37 * 3250 * 2048 * 4);
    let lines = told["plan"]["lines"].as_array().unwrap().iter();
    let sum: u64 = lines.map(|line| line["bytes"].as_u64().unwrap()).sum();
    assert_eq!(told["needed_bytes"], sum);
    assert_eq!(told["plan"]["total_bytes"], sum);
    let needs = &told["plan"]["requirements"];
    assert!(told["gpu"].is_null());
    assert!(needs["processor"]["recommended_bytes"].as_u64() > needs["processor"]["minimum_bytes"].as_u64());
    assert!(told["advice"].is_null());
}

/// A GPU need not be here: its memory has lines and a fit of its own, and what is advised is enough for it.
#[test]
fn a_plan_for_a_gpu_says_what_fits_onto_it() {
    let shape = ["--shape", "qwen2.5-vl-7b", "--image", "1024x1024", "--memory-limit", "64GB"];
    let (roomy, code) = told(&[&shape[..], &["--vram", "48GB", "--load-in-4bit"]].concat());
    assert_eq!((code, roomy["fits"].as_bool(), roomy["plan"]["device"].as_str()), (0, Some(true), Some("cuda")));
    let gpu = &roomy["gpu"];
    assert_eq!((&gpu["available_from"], &gpu["needed_bytes"]), (&"vram".into(), &roomy["plan"]["device_bytes"]));
    assert_eq!(roomy["plan"]["requirements"]["gpu"]["minimum_bytes"], gpu["needed_bytes"]);
    assert_eq!(roomy["needed_bytes"], roomy["plan"]["host_bytes"]);

    let (tight, code) = told(&[&shape[..], &["--vram", "16GB"]].concat());
    assert_eq!((code, tight["gpu"]["fits"].as_bool(), tight["fits"].as_bool()), (1, Some(false), Some(false)));
    let found = &tight["advice"]["combination"];
    let pairs = found["settings"].as_array().unwrap().iter();
    let flags: Vec<String> =
        pairs.map(|pair| format!("--{}={}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap())).collect();
    let flags: Vec<&str> = flags.iter().map(String::as_str).chain(["--vram", "16GB"]).collect();
    let (after, code) = told(&[&shape[..], &flags].concat());
    assert_eq!((code, &after["gpu"]["needed_bytes"]), (0, &found["total_bytes"]), "{found}");

    let told = plan(&[&shape[..], &["--vram", "16GB"]].concat());
    let text = String::from_utf8(told.stdout).unwrap();
    assert!(
        text.starts_with("does not fit: needs ") && text.contains("of GPU memory, more than the 16.0 GiB of --vram"),
        "{text}"
    );
    // Without one, and without a wish, there is nothing to compare with.
    let hidden = |more: &[&str]| {
        let words = [&["plan"], &shape[..], &["--device", "cuda"], more].concat();
        Command::new(env!("CARGO_BIN_EXE_model-garden")).args(words).env("CUDA_VISIBLE_DEVICES", "").output().unwrap()
    };
    let told = hidden(&[]);
    let text = String::from_utf8(told.stdout).unwrap();
    assert!(text.lines().next().unwrap().contains("no GPU here could be inspected"), "{text}");
    assert_eq!(told.status.code(), Some(0));
    let told: Value = serde_json::from_slice(&hidden(&["--format", "json"]).stdout).unwrap();
    assert!(told["gpu"]["available_bytes"].is_null() && told["gpu"]["needed_bytes"].is_u64(), "{}", told["gpu"]);
    let contradiction = plan(&[&shape[..], &["--device", "cpu", "--vram", "16GB"]].concat());
    assert_eq!(contradiction.status.code(), Some(2));
}

/// What is advised is what planning with it gives, for each change alone and for those that are enough together.
#[test]
fn advice_is_kept() {
    let base = ["--shape", "qwen2.5-vl-3b", "--image", "1024x1024", "--threads", "2", "--recompute", "none"];
    let with = |settings: &Value, limit: &str| {
        let pairs = settings.as_array().unwrap().iter();
        let flags: Vec<String> =
            pairs.map(|pair| format!("--{}={}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap())).collect();
        let flags: Vec<&str> = flags.iter().map(String::as_str).chain(["--memory-limit", limit]).collect();
        told(&[&base[..], &flags].concat())
    };
    for limit in ["4GB", "8GB", "12GB"] {
        let (first, code) = told(&[&base[..], &["--memory-limit", limit]].concat());
        assert_eq!((code, first["fits"].as_bool()), (1, Some(false)), "{limit}");
        let savings = first["advice"]["savings"].as_array().unwrap();
        assert!(savings.len() >= 5, "{savings:?}");
        if limit == "4GB" {
            for saving in savings {
                let (after, _) = with(&saving["settings"], limit);
                let saved = first["needed_bytes"].as_u64().unwrap() - after["needed_bytes"].as_u64().unwrap();
                assert_eq!(saving["saves_bytes"], saved, "{saving}");
            }
        }
        let found = &first["advice"]["combination"];
        let (after, code) = with(&found["settings"], limit);
        assert_eq!(after["needed_bytes"], found["total_bytes"], "{limit}: {found}");
        assert_eq!((found["fits"].as_bool().unwrap(), code), (code == 0, i32::from(!found["fits"].as_bool().unwrap())));
    }
    let (small, _) = told(&[&base[..], &["--memory-limit", "12GB"]].concat());
    let first = &small["advice"]["combination"]["settings"][0];
    assert_eq!(first[0], "recompute", "what changes nothing is enough: {small:#}");
}

#[test]
fn what_does_not_fit_is_said_with_what_would_help() {
    let words = [&SHAPE[..6], &["--memory-limit", "6GB"]].concat();
    let done = plan(&words);
    let text = text(&done);
    assert_eq!(done.status.code(), Some(1));
    assert!(text.starts_with("does not fit: needs "), "{text}");
    assert!(text.contains("only 6.00 GiB is allowed") && text.contains("--load-in-4bit"), "{text}");
    assert!(text.contains("and fits: --"), "{text}");
    let hopeless = plan(&["--shape", "qwen2.5-vl-72b", "--image", "none", "--memory-limit", "1GB"]);
    assert!(String::from_utf8(hopeless.stdout).unwrap().contains("Not enough even together"));
}

#[test]
fn a_dataset_is_planned_by_its_largest_rows() {
    let (model, dataset) = (testdata("tiny-model"), testdata("data/datasets/chat.jsonl"));
    let words = ["--base-model", model.to_str().unwrap(), "--dataset", dataset.to_str().unwrap(), "--batch-size", "2"];
    let (first, code) = told(&words);
    assert_eq!(code, 0);
    assert_eq!(first["micro_batch"]["rows"], 2);
    assert!(first["micro_batch"]["largest_row"].as_str().unwrap().contains("chat.jsonl:"), "{first:#}");
    assert!(bytes(&first, "index") >= 16 && bytes(&first, "loader") > 0, "{first:#}");
    let (one, _) = told(&[&words[..4], &["--batch-size", "1"]].concat());
    assert!(one["needed_bytes"].as_u64() < first["needed_bytes"].as_u64());
    let (tight, code) = told(&[&words[..], &["--memory-limit", "10MB"]].concat());
    assert_eq!(code, 1);
    assert!(!tight["advice"]["savings"].as_array().unwrap().is_empty(), "{tight:#}");
    // Without a dataset the same model is planned for rows of a shape.
    let (shape, _) = told(&[&words[..2], &["--text-tokens", "32", "--image", "none"]].concat());
    assert_eq!(shape["micro_batch"]["tokens"], 64);
}

#[test]
fn what_cannot_be_planned_is_named() {
    for (words, parts) in [
        (vec![], vec!["no model", "--shape"]),
        (vec!["--shape", "qwen2.5-vl-3b"], vec!["no image size", "--image 1024x1024", "--image none"]),
        (vec!["--shape", "qwen9"], vec!["qwen2.5-vl-3b"]),
        (vec!["--shape", "qwen2.5-vl-3b", "--image", "big"], vec!["WIDTHxHEIGHT"]),
        (vec!["--shape", "qwen2.5-vl-3b", "--dataset", "x.jsonl"], vec!["cannot be used with"]),
        (vec!["--shape", "qwen2.5-vl-3b", "--batch-size", "0"], vec!["batch-size", "at least 1"]),
        (vec!["--shape", "qwen2.5-vl-3b", "--full", "--load-in-4bit"], vec!["cannot be used with"]),
        (vec!["--shape", "qwen2.5-vl-3b", "--image", "10x90000"], vec!["factor of 200"]),
        (vec!["--base-model", "nowhere/at-all"], vec!["nowhere/at-all"]),
    ] {
        let done = plan(&words);
        let error = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(2), "{words:?}: {error}");
        assert!(parts.iter().all(|part| error.contains(part)), "{words:?}: {error}");
    }
}

/// How near it is depends on the machine (`bench/step_time.py` measures that); here, that it is a time of this run.
#[test]
fn the_time_of_a_step_is_measured_where_somebody_asks() {
    let model = testdata("tiny-model");
    let dataset = dataset_of_text();
    let words = ["--model", model.to_str().unwrap(), "--dataset", dataset.to_str().unwrap(), "--device", "cpu"];
    let (without, _) = told(&words);
    assert!(without["step_time"].is_null(), "nobody asked: {without}");
    let words = [&words[..], &["--step-time", "--batch-size", "1", "--gradient-accumulation", "3"]].concat();
    let (told, _) = told(&words);
    let of = |name: &str| told["step_time"][name].as_f64().unwrap_or_else(|| panic!("{name}: {told}"));
    assert!(of("micro_step_seconds") > 0.0 && of("measured_in_seconds") > of("micro_step_seconds"));
    // Three micro-batches, and an update.
    assert!(of("step_seconds") > 3.0 * of("micro_step_seconds"), "{told}");
    // Six rows, one of them in a micro-batch: two steps.
    assert_eq!(of("epoch_seconds"), 2.0 * of("step_seconds"));
    let said = text(&plan(&words));
    let line = said.lines().nth(2).unwrap();
    assert!(line.starts_with("a step takes about ") && line.contains("3 micro-batches of"), "{said}");
    let both = plan(&["--shape", "qwen2.5-vl-3b", "--image", "none", "--vram", "24GB", "--step-time"]);
    assert_eq!(both.status.code(), Some(2), "a GPU that is not here cannot be measured");
    std::fs::remove_file(dataset).unwrap();
}

/// Six rows of text.
fn dataset_of_text() -> PathBuf {
    let file = std::env::temp_dir().join(format!("model-garden-step-time-{}.jsonl", std::process::id()));
    let row = |number: usize| {
        format!(
            "{{\"messages\": [{{\"role\": \"user\", \"content\": \"what is {number}?\"}}, {{\"role\": \"assistant\", \"content\": \"a number\"}}]}}\n"
        )
    };
    std::fs::write(&file, (0..6).map(row).collect::<String>()).unwrap();
    file
}

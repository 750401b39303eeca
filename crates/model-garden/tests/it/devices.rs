//! Where training would compute, on a machine whose GPUs are hidden, and with a driver that is none.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::path::Path;
use std::process::{Command, Output};

use crate::common::{model_garden, picture_rows, scratch, told};
use serde_json::Value;

/// Whatever GPUs there are, they are not seen.
fn hidden(words: &[&str]) -> Output {
    model_garden(words).env("CUDA_VISIBLE_DEVICES", "").output().unwrap()
}

fn train<'a>(dataset: &'a str, output: &'a str, device: &'a str) -> Vec<&'a str> {
    let fixed = ["train-vision", "--base-model", "testdata/tiny-model", "--max-pixels", "12544", "--threads", "1"];
    let rest =
        ["--dataset", dataset, "--output-dir", output, "--device", device, "--max-steps", "3", "--warmup-steps", "0"];
    [&fixed[..], &rest].concat()
}

#[test]
fn without_a_gpu_the_processor_computes() {
    let output = hidden(&["devices"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.starts_with("training uses the CPU, "), "{text}");
    let look: Value = serde_json::from_slice(&hidden(&["devices", "--json"]).stdout).unwrap();
    assert_eq!(look["gpu"], "absent", "{look}");
    let folder = scratch("devices-none");
    let (dataset, output) = (picture_rows(&folder, 4, |row| format!("{row}?")), folder.join("out"));
    let words = train(dataset.to_str().unwrap(), output.to_str().unwrap(), "cuda");
    let refused = hidden(&words);
    assert_eq!(refused.status.code(), Some(2));
    assert!(told(&refused).contains("no usable GPU"), "{}", told(&refused));
    assert!(!output.exists(), "nothing was begun");
}

/// A library by the driver's name that has nothing in it: an installation that is broken is told, and not taken for a machine without a GPU.
#[test]
fn a_driver_that_is_none_is_named() {
    let folder = scratch("devices-broken");
    let library = folder.join("libcuda.so.1");
    std::fs::write(folder.join("empty.c"), "").unwrap();
    let made = Command::new("cc").args(["-shared", "-o"]).arg(&library).arg(folder.join("empty.c")).status();
    if !made.is_ok_and(|status| status.success()) {
        return garden_testing::missing("cc");
    }
    let with_it = |words: &[&str]| model_garden(words).env("LD_LIBRARY_PATH", &folder).output().unwrap();
    let look: Value = serde_json::from_slice(&with_it(&["devices", "--json"]).stdout).unwrap();
    assert_eq!(
        (look["gpu"].as_str(), look["problem"].as_str()),
        (Some("unusable"), Some("the NVIDIA driver lacks cuInit"))
    );
    let (dataset, output) = (picture_rows(&folder, 4, |row| format!("{row}?")), folder.join("out"));
    let paths = |path: &Path| path.to_str().unwrap().to_string();
    let (dataset, output) = (paths(&dataset), paths(&output));
    let refused = with_it(&train(&dataset, &output, "auto"));
    assert_eq!(refused.status.code(), Some(2));
    assert!(told(&refused).contains("the GPU cannot be used"), "{}", told(&refused));
    assert!(told(&refused).contains("--device cpu"), "{}", told(&refused));
    // Whoever asks for the processor gets it.
    let trained = with_it(&train(&dataset, &output, "cpu"));
    assert!(trained.status.success(), "{}", told(&trained));
}

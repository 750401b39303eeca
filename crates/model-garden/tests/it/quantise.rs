//! `model-garden quantise` on a small checkpoint.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn case(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/reference/recorded_quantised").join(name)
}

fn quantise(words: &[&Path], more: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_model-garden")).arg("quantise").args(words).args(more).output().unwrap()
}

#[test]
fn a_checkpoint_becomes_one_of_4_bits() {
    let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join("quantised");
    let _gone = fs::remove_dir_all(&to);
    let done = quantise(&[&case("nf4_on_load"), &to], &[]);
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success() && text.starts_with("packed 14 weights of "), "{text}");
    let config: serde_json::Value = serde_json::from_str(&fs::read_to_string(to.join("config.json")).unwrap()).unwrap();
    assert_eq!(config["quantization_config"]["bnb_4bit_quant_type"], "nf4");
    assert_eq!(config["hidden_size"].as_u64(), Some(64));
    // Never over what is there.
    let again = quantise(&[&case("nf4_on_load"), &to], &[]);
    let error = String::from_utf8(again.stderr).unwrap();
    assert_eq!(again.status.code(), Some(2));
    assert!(error.contains("not empty"), "{error}");
    fs::remove_dir_all(&to).unwrap();
    let told = quantise(&[&case("nf4_on_load"), &to], &["--json", "--single", "--keep", "lm_head"]);
    let told: serde_json::Value = serde_json::from_slice(&told.stdout).unwrap();
    assert_eq!((&told["has_double_scales"], &told["kept"]), (&false.into(), &serde_json::json!(["lm_head"])));
    assert!(told["packed_weights"].as_u64().unwrap() > 14, "the vision tower too: {told}");
    fs::remove_dir_all(&to).unwrap();
}

#[test]
fn what_is_wrong_is_said_and_nothing_is_left() {
    let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join("not-quantised");
    let _gone = fs::remove_dir_all(&to);
    let done = quantise(&[Path::new("no-such-model"), &to], &[]);
    assert_eq!(done.status.code(), Some(2));
    assert!(String::from_utf8(done.stderr).unwrap().contains("no-such-model"));
    // A weight that is no number, far into the file: the half that was written goes away.
    let broken = Path::new(env!("CARGO_TARGET_TMPDIR")).join("broken-model");
    fs::create_dir_all(&broken).unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(case("nf4_on_load").join(name), broken.join(name)).unwrap();
    }
    let file = broken.join("model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let last = bytes.len() - 2;
    bytes[last..].copy_from_slice(&[0xc0, 0x7f]);
    fs::write(&file, bytes).unwrap();
    let done = quantise(&[&broken, &to], &[]);
    let error = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(2));
    assert!(error.contains("not finite") && error.contains("model.safetensors"), "{error}");
    assert_eq!(fs::read_dir(&to).unwrap().count(), 0);
    fs::remove_dir_all(&to).unwrap();
    fs::remove_dir_all(&broken).unwrap();
}

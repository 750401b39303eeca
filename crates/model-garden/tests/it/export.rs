//! `model-garden export` on tiny models: what is written, proven and refused.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use garden_model::Checkpoint;
use serde_json::Value;

fn case(name: &str) -> PathBuf {
    let reference = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/reference");
    let folder = reference.join("recorded").join(name);
    if folder.exists() { folder } else { reference.join("recorded_quantised").join(name) }
}

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("export-{name}"));
    let _gone = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn export(base: &Path, adapter: &Path, to: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_model-garden"));
    command.arg("export").arg("--base-model").arg(base).arg("--adapter").arg(adapter).arg("--output-dir").arg(to);
    command.args(["--threads", "2"]).args(more).output().unwrap()
}

fn error(done: &Output) -> String {
    let text = String::from_utf8(done.stderr.clone()).unwrap();
    assert_eq!(done.status.code(), Some(2), "{text}");
    assert!(done.stdout.is_empty());
    text
}

fn entries(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[test]
fn a_merged_checkpoint_is_written_and_proven() {
    let (base, parent) = (case("bfloat16"), folder("plain"));
    let to = parent.join("inside/merged");
    let done = export(&base, &base.join("adapter"), &to, &[]);
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    for told in ["in 1 file;", "merged into 14 of them", "the adapter changes logits by", "best tokens agree in"] {
        assert!(text.contains(told), "`{told}` is not in: {text}");
    }
    assert_eq!(entries(&parent.join("inside")), ["merged"]);
    // Never over what is there.
    assert!(error(&export(&base, &base.join("adapter"), &to, &[])).contains("not empty"));
    fs::remove_dir_all(&to).unwrap();
    // An empty folder is as good as none.
    fs::create_dir_all(&to).unwrap();
    let more = ["--json", "--dtype", "float16", "--shard-size", "20KB", "--no-verify"];
    let done = export(&base, &base.join("adapter"), &to, &more);
    let told: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert!(told["shards"].as_u64().unwrap() > 3 && told["proof"].is_null(), "{told}");
    let config: Value = serde_json::from_str(&fs::read_to_string(to.join("config.json")).unwrap()).unwrap();
    assert_eq!(config["torch_dtype"], "float16");
    assert_eq!(Checkpoint::open(&to).unwrap().names().count() as u64, told["tensors"].as_u64().unwrap());
    fs::remove_dir_all(&parent).unwrap();
}

#[test]
fn a_base_of_4_bits_is_merged_only_knowingly() {
    let (base, parent) = (case("nf4_saved_bfloat16"), folder("packed"));
    let to = parent.join("merged");
    let text = error(&export(&base, &base.join("adapter"), &to, &[]));
    for told in ["4-bit", "--model", "--dequantise"] {
        assert!(text.contains(told), "`{told}` is not in: {text}");
    }
    assert!(entries(&parent).is_empty());
    let done = export(&base, &base.join("adapter"), &to, &["--dequantise", "--json"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let told: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert!(told["unpacked_weights"].as_u64().unwrap() > 0, "{told}");
    assert!(told["proof"]["merged_differs_by"]["relative"].as_f64().unwrap() < 0.02, "{told}");
    fs::remove_dir_all(&parent).unwrap();
}

/// A copy of an adapter with another base named, and with B of zeros if wanted.
fn adapter(from: &Path, to: &Path, base: &str, is_idle: bool) {
    fs::create_dir_all(to).unwrap();
    let text = fs::read_to_string(from.join("adapter_config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    config["base_model_name_or_path"] = base.into();
    fs::write(to.join("adapter_config.json"), config.to_string()).unwrap();
    let mut bytes = fs::read(from.join("adapter_model.safetensors")).unwrap();
    if is_idle {
        let start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header: Value = serde_json::from_slice(&bytes[8..start]).unwrap();
        for (_, about) in header.as_object().unwrap().iter().filter(|(name, _)| name.contains("lora_B")) {
            let offset = |index: usize| start + about["data_offsets"][index].as_u64().unwrap() as usize;
            bytes[offset(0)..offset(1)].fill(0);
        }
    }
    fs::write(to.join("adapter_model.safetensors"), bytes).unwrap();
}

#[test]
fn another_base_is_noted_and_an_idle_adapter_refused() {
    let (base, parent) = (case("decoder_lora"), folder("adapters"));
    let run = |name: &str, is_idle: bool| {
        let from = parent.join("adapter");
        adapter(&base.join("adapter"), &from, name, is_idle);
        let done = export(&base, &from, &parent.join("merged"), &["--no-verify"]);
        let _gone = fs::remove_dir_all(parent.join("merged"));
        done
    };
    let noted = |done: &Output| String::from_utf8_lossy(&done.stderr).contains("as its base, but is merged onto");
    let other = run("Qwen/Qwen2.5-VL-7B-Instruct", false);
    assert!(other.status.success() && noted(&other));
    for same in ["somebody/decoder_lora", "/another/machine/Decoder_LoRA/", ""] {
        let done = run(same, false);
        assert!(done.status.success() && !noted(&done), "{same}");
    }
    let text = error(&run("", true));
    assert!(text.contains("changes nothing") && text.contains("zero"), "{text}");
    assert_eq!(entries(&parent), ["adapter"]);
    fs::remove_dir_all(&parent).unwrap();
}

#[test]
fn what_goes_wrong_leaves_nothing() {
    let (base, parent) = (case("decoder_lora"), folder("wrong"));
    let (from, to) = (base.join("adapter"), parent.join("merged"));
    // The files of a limited size stand for a full disk: the error comes in the middle of writing.
    let binary = env!("CARGO_BIN_EXE_model-garden");
    let script = "trap '' XFSZ; ulimit -f 64; exec \"$0\" \"$@\"";
    let mut limited = Command::new("sh");
    limited.args(["-c", script, binary, "export", "--base-model"]).arg(&base).arg("--adapter").arg(&from);
    let text = error(&limited.arg("--output-dir").arg(&to).output().unwrap());
    assert!(text.contains("model.safetensors") && text.contains("too large"), "{text}");
    assert!(entries(&parent).is_empty());
    // A folder that cannot be.
    fs::write(parent.join("file"), "of somebody").unwrap();
    let text = error(&export(&base, &from, &parent.join("file/merged"), &[]));
    assert!(text.contains("file"), "{text}");
    let text = error(&export(&base, &from, &parent.join("file"), &[]));
    assert!(text.contains("--output-dir"), "{text}");
    // What a killed export has left is named.
    fs::create_dir_all(parent.join("merged.partial")).unwrap();
    let text = error(&export(&base, &from, &to, &[]));
    assert!(text.contains("merged.partial") && text.contains("remove it"), "{text}");
    for (base, from, told) in [
        (Path::new("no-such-model"), from.as_path(), "no-such-model"),
        (&base, Path::new("no-such-adapter"), "no-such-adapter"),
        (&case("bfloat16"), &from, "tensor `"),
    ] {
        let text = error(&export(base, from, &parent.join("other"), &[]));
        assert!(text.contains(told), "{text}");
    }
    assert_eq!(entries(&parent), ["file", "merged.partial"]);
    fs::remove_dir_all(&parent).unwrap();
}

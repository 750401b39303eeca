//! Every kind of result (full, adapter, merged, quantised) beside what transformers and peft save, as testdata/reference/saved.py has recorded it; and
//! loaded by them where they are installed (GARDEN_PYTHON, or python3).

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on must fail")]
#![allow(clippy::print_stderr, reason = "a test that is skipped says so")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use crate::common::{picture_rows, repository, run, scratch, told};
use garden_device::Dtype;
use safetensors::tensor::TensorView;
use safetensors::{Dtype as FileDtype, SafeTensors};
use serde_json::Value;

/// How a base differs from the tiny model: as `BASES` of saved.py says, and what makes no difference to what is saved.
#[derive(Clone, Copy, Default)]
struct Changes {
    dtype: Option<(Dtype, &'static str)>,
    is_untied: bool,
    has_stored_head: bool,
    has_newer_names: bool,
    shards: usize,
}

/// Bases by the names that the recording has for them.
fn bases() -> Vec<(&'static str, Changes)> {
    let plain = Changes { shards: 1, ..Changes::default() };
    let half = Changes { dtype: Some((Dtype::F16, "float16")), is_untied: true, ..plain };
    let wide = Changes { dtype: Some((Dtype::F32, "float32")), is_untied: true, shards: 3, ..plain };
    vec![
        ("tiny", plain),
        ("tiny_float16_untied", half),
        ("tiny_float32_untied", wide),
        ("tiny_newer_names", Changes { has_newer_names: true, shards: 2, ..plain }),
        ("tiny_stored_head", Changes { has_stored_head: true, ..plain }),
    ]
}

/// A result: of which base, of which kind, and where.
struct Made {
    base: &'static str,
    base_folder: PathBuf,
    kind: &'static str,
    folder: PathBuf,
}

/// All results, made once.
static MADE: LazyLock<Vec<Made>> = LazyLock::new(|| {
    let folder = scratch("results");
    let dataset = picture_rows(&folder, 8, |row| format!("Picture {row}?"));
    let mut made = Vec::new();
    for (base, changes) in bases() {
        let base_folder = folder.join(base);
        write_base(&base_folder, changes);
        make(base, &base_folder, &dataset, &folder, &mut made);
    }
    make("demo", &repository("crates/model-garden/assets/demo-base"), &dataset, &folder, &mut made);
    made
});

fn make(base: &'static str, base_folder: &Path, dataset: &Path, folder: &Path, made: &mut Vec<Made>) {
    let place = |kind: &str| folder.join(format!("{base}-{kind}"));
    let text = |path: &Path| path.to_str().unwrap().to_string();
    let train = |kind: &str, more: &[&str]| {
        let output = text(&place(kind));
        let (base, dataset) = (text(base_folder), text(dataset));
        let fixed = ["train-vision", "--base-model", &base, "--dataset", &dataset, "--output-dir", &output];
        let steps = ["--max-steps", "2", "--warmup-steps", "0", "--max-pixels", "12544", "--learning-rate", "1e-3"];
        works(&[&fixed[..], &steps, more].concat());
    };
    train("full", &["--full"]);
    train("adapter", &["--lora-r", "4", "--learning-rate", "0.1"]);
    let (base_text, adapter, merged, quantised) =
        (text(base_folder), text(&place("adapter")), text(&place("merged")), text(&place("quantised")));
    works(&["export", "--base-model", &base_text, "--adapter", &adapter, "--output-dir", &merged]);
    works(&["quantise", &base_text, &quantised]);
    for kind in ["full", "adapter", "merged", "quantised"] {
        made.push(Made { base, base_folder: base_folder.to_path_buf(), kind, folder: place(kind) });
    }
}

fn works(words: &[&str]) {
    let done = run(words);
    assert!(done.status.success(), "{words:?}: {}", told(&done));
}

/// Writes the tiny model with some changes.
fn write_base(to: &Path, changes: Changes) {
    let from = repository("testdata/tiny-model");
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(&from).unwrap().map(Result::unwrap) {
        if entry.file_name() != "model.safetensors" {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
    let mut config = json(&from.join("config.json"));
    let bytes = std::fs::read(from.join("model.safetensors")).unwrap();
    let mut tensors: BTreeMap<String, (FileDtype, Vec<usize>, Vec<u8>)> = SafeTensors::deserialize(&bytes)
        .unwrap()
        .iter()
        .map(|(name, tensor)| (name.to_string(), (tensor.dtype(), tensor.shape().to_vec(), tensor.data().to_vec())))
        .collect();
    if changes.is_untied {
        config["tie_word_embeddings"] = false.into();
        config["text_config"]["tie_word_embeddings"] = false.into();
    }
    if changes.is_untied || changes.has_stored_head {
        tensors.insert("lm_head.weight".into(), tensors["model.embed_tokens.weight"].clone());
    }
    if let Some((kind, name)) = changes.dtype {
        config["dtype"] = name.into();
        for (dtype, shape, bytes) in tensors.values_mut() {
            let mut values = vec![0.0; shape.iter().product()];
            Dtype::Bf16.widen(bytes, &mut values);
            bytes.resize(values.len() * kind.size(), 0);
            kind.narrow(&values, bytes);
            *dtype = if kind == Dtype::F16 { FileDtype::F16 } else { FileDtype::F32 };
        }
    }
    if changes.has_newer_names {
        let newer = |name: String| match name.split_once('.') {
            Some(("visual", _)) => format!("model.{name}"),
            Some(("model", rest)) => format!("model.language_model.{rest}"),
            _ => name,
        };
        tensors = tensors.into_iter().map(|(name, tensor)| (newer(name), tensor)).collect();
    }
    std::fs::write(to.join("config.json"), format!("{config:#}")).unwrap();
    let all: Vec<_> = tensors.into_iter().collect();
    let mut weight_map = serde_json::Map::new();
    for (number, part) in all.chunks(all.len().div_ceil(changes.shards)).enumerate() {
        let file = match changes.shards {
            1 => "model.safetensors".to_string(),
            count => format!("model-{:05}-of-{count:05}.safetensors", number + 1),
        };
        let views = part
            .iter()
            .map(|(name, (dtype, shape, bytes))| (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
        safetensors::serialize_to_file(views, None, &to.join(&file)).unwrap();
        weight_map.extend(part.iter().map(|(name, _)| (name.clone(), file.clone().into())));
    }
    if changes.shards > 1 {
        let index = serde_json::json!({"metadata": {}, "weight_map": weight_map});
        std::fs::write(to.join("model.safetensors.index.json"), index.to_string()).unwrap();
    }
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Types and shapes of all tensors of a folder, and the type that its configuration names, as `described` of saved.py tells them.
fn described(folder: &Path) -> (Option<String>, BTreeMap<String, String>) {
    let mut tensors = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.extension().is_none_or(|ending| ending != "safetensors") {
            continue;
        }
        let bytes = std::fs::read(entry).unwrap();
        for (name, tensor) in SafeTensors::deserialize(&bytes).unwrap().iter() {
            let shape = match name.contains(".quant_state.") {
                true => "text".to_string(),
                false => format!("{:?}", tensor.shape()),
            };
            let before = tensors.insert(name.to_string(), format!("{:?} {shape}", tensor.dtype()));
            assert!(before.is_none(), "{name} is there twice");
        }
    }
    let config = folder.join("config.json");
    let dtype = config.exists().then(|| json(&config)).map(|config| {
        let named = config.get("dtype").or_else(|| config.get("torch_dtype"));
        named.and_then(Value::as_str).unwrap().to_string()
    });
    (dtype, tensors)
}

/// What is recorded of a base and a kind.
fn recorded(base: &str, kind: &str) -> (Option<String>, BTreeMap<String, String>) {
    let all = json(&repository("testdata/reference/recorded_saved.json"));
    let found = &all[base][kind];
    let tensors = found["tensors"].as_object().unwrap_or_else(|| panic!("nothing is recorded of {base} {kind}"));
    let tensors = tensors.iter().map(|(name, about)| (name.clone(), about.as_str().unwrap().to_string()));
    (found["dtype"].as_str().map(String::from), tensors.collect())
}

/// Fails with what differs, not with two long lists.
fn assert_same(what: &str, folder: &Path, expected: (Option<String>, BTreeMap<String, String>)) {
    let (dtype, tensors) = described(folder);
    let differing: Vec<String> = expected
        .1
        .keys()
        .chain(tensors.keys())
        .filter(|name| expected.1.get(*name) != tensors.get(*name))
        .map(|name| format!("{name}: {:?}, {:?} expected", tensors.get(name), expected.1.get(name)))
        .collect();
    assert!(
        differing.is_empty(),
        "{what}: {} tensors differ: {:#?}",
        differing.len(),
        &differing[..differing.len().min(6)]
    );
    assert_eq!(dtype, expected.0, "{what}: config.json");
}

#[test]
fn every_result_has_the_names_shapes_and_types_that_transformers_saves() {
    for made in MADE.iter() {
        let what = format!("{} {}", made.base, made.kind);
        assert_same(&what, &made.folder, recorded(made.base, made.kind));
        let mut files =
            vec!["tokenizer.json", "tokenizer_config.json", "preprocessor_config.json", "chat_template.jinja"];
        let own = if made.kind == "adapter" { "adapter_config.json" } else { "generation_config.json" };
        files.push(own);
        for file in files {
            assert!(made.folder.join(file).is_file(), "{what}: {file} is missing");
        }
    }
}

/// Models of other shapes, with adapters that peft has saved.
#[test]
fn merged_models_have_the_names_shapes_and_types_that_transformers_saves() {
    let folder = scratch("results-merged");
    for name in ["bfloat16", "two_images_rslora", "vision_lora"] {
        let (base, to) = (repository("testdata/reference/recorded").join(name), folder.join(name));
        let (base_text, adapter) = (base.to_str().unwrap(), base.join("adapter"));
        let words = ["export", "--base-model", base_text, "--adapter", adapter.to_str().unwrap()];
        works(&[&words[..], &["--output-dir", to.to_str().unwrap()]].concat());
        assert_same(name, &to, recorded(name, "merged"));
    }
}

#[test]
fn transformers_and_peft_load_every_result() {
    let python = std::env::var("GARDEN_PYTHON").unwrap_or_else(|_| "python3".into());
    let packages = "import torch, torchvision, transformers, peft";
    let found = Command::new(&python).args(["-c", packages]).output();
    if !found.is_ok_and(|found| found.status.success()) {
        let reason = format!("{python} has no torch, torchvision, transformers and peft; GARDEN_PYTHON names another");
        return garden_testing::skip(&reason);
    }
    let has_four_bits = Command::new(&python).args(["-c", "import bitsandbytes, accelerate"]).output().unwrap();
    // One process for all: what takes time is to load the packages.
    let mut command = Command::new(&python);
    command.arg(repository("testdata/reference/saved.py"));
    for made in MADE.iter() {
        if made.kind == "quantised" && !has_four_bits.status.success() {
            garden_testing::skip(&format!("{python} has no bitsandbytes and accelerate: {} is not loaded", made.base));
            continue;
        }
        command.args(["--check", made.kind]).arg(&made.folder).arg(&made.base_folder);
    }
    let done = command.output().unwrap();
    assert!(done.status.success(), "{}", told(&done));
    eprintln!("{}", String::from_utf8_lossy(&done.stdout));
}

/// A rate that no run has makes weights that float16 cannot hold: the result is there all the same, and says what it is.
#[test]
fn values_too_large_for_16_bits_keep_32() {
    let folder = scratch("results-large");
    let dataset = picture_rows(&folder, 8, |row| format!("Picture {row}?"));
    let [base, output] = ["base", "out"].map(|name| folder.join(name));
    write_base(&base, Changes { dtype: Some((Dtype::F16, "float16")), shards: 1, ..Changes::default() });
    let fixed = ["train-vision", "--full", "--base-model", base.to_str().unwrap(), "--dataset"];
    let more = ["--max-steps", "1", "--warmup-steps", "0", "--learning-rate", "1e5", "--max-pixels", "12544"];
    let output_words = [dataset.to_str().unwrap(), "--output-dir", output.to_str().unwrap()];
    let done = run(&[&fixed[..], &output_words, &more].concat());
    assert!(done.status.success(), "{}", told(&done));
    assert!(told(&done).contains("is too large for float16"), "{}", told(&done));
    let (dtype, tensors) = described(&output);
    assert_eq!(dtype.as_deref(), Some("float32"));
    assert!(tensors.values().all(|about| about.starts_with("F32")));
}

/// Checkpoints keep what rounding would lose, so a run that goes on makes the same result, bit for bit.
#[test]
fn a_full_run_goes_on_exactly() {
    let folder = scratch("results-resumed");
    let dataset = picture_rows(&folder, 8, |row| format!("Picture {row}?"));
    let (dataset, output) = (dataset.to_str().unwrap(), folder.join("out"));
    let fixed = ["train-vision", "--full", "--base-model", "testdata/tiny-model", "--dataset", dataset, "--output-dir"];
    let more = ["--max-steps", "4", "--save-steps", "2", "--max-pixels", "12544", "--threads", "1", "--resume", "auto"];
    let words = [&fixed[..], &[output.to_str().unwrap()], &more].concat();
    works(&words);
    let weights = || std::fs::read(output.join("model.safetensors")).unwrap();
    let whole = weights();
    let (dtype, tensors) = described(&output.join("checkpoint-2"));
    assert_eq!(dtype.as_deref(), Some("float32"));
    assert!(tensors["visual.patch_embed.proj.weight"] == "F32 [32, 3, 2, 14, 14]");
    std::fs::remove_dir_all(output.join("checkpoint-4")).unwrap();
    std::fs::remove_file(output.join("model.safetensors")).unwrap();
    works(&words);
    assert!(weights() == whole);
    let proof = &json(&output.join("result.json"))["proof"];
    assert!(proof["loss"].is_number() && proof["loss_unrounded"].is_number(), "{proof}");
}

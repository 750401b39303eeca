//! `model-garden generate` on a tiny random model whose answers transformers recorded (testdata/tiny-model/expected.json).

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use garden_input::FAMILIES;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use garden_device::Cpu;
use garden_model::{
    Checkpoint, Config, GradientCheckpointing, Limits, LoraConfig, Model, Storage, Targets, Training, write_adapter,
};
use serde_json::{Value, json};

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/tiny-model")
}

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("generate-{name}"));
    let _gone = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn generate(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_model-garden"));
    command.arg("generate").arg("--model").arg(tiny()).args(["--max-new-tokens", "20"]).args(words).output().unwrap()
}

fn answers(words: &[&str]) -> Vec<Value> {
    let done = generate(&[words, &["--json"]].concat());
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let told: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert!(told["plan"]["bytes"]["key/value cache"].as_u64().unwrap() > 0, "{told}");
    told["answers"].as_array().unwrap().clone()
}

fn error(words: &[&str]) -> String {
    let done = generate(words);
    assert_eq!(done.status.code(), Some(2), "{words:?}");
    assert!(done.stdout.is_empty());
    String::from_utf8(done.stderr).unwrap()
}

fn expected() -> Vec<Value> {
    let text = fs::read_to_string(tiny().join("expected.json")).unwrap();
    let value: Value = serde_json::from_str(&text).unwrap();
    value["answers"].as_array().unwrap().clone()
}

fn words_of(question: &Value) -> Vec<String> {
    let mut words = vec!["--prompt".to_string(), question["text"].as_str().unwrap().to_string()];
    if let Some(image) = question["image"].as_str() {
        words.extend(["--image".into(), tiny().join(image).display().to_string()]);
    }
    words
}

#[test]
fn answers_are_those_of_transformers() {
    let all = expected();
    assert!(all.len() >= 3);
    for question in &all {
        let words = words_of(question);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let answer = &answers(&words)[0];
        assert_eq!(answer["tokens"], question["answer_tokens"]);
        assert_eq!(answer["text"], question["answer"]);
        assert_eq!(answer["prompt_tokens"], question["prompt_tokens"].as_array().unwrap().len());
        // As it is printed while it grows.
        let text = String::from_utf8(generate(&words).stdout).unwrap();
        assert_eq!(text, format!("{}\n", question["answer"].as_str().unwrap()));
    }
}

#[test]
fn a_file_of_prompts_gives_the_same_answers() {
    let all = expected();
    let folder = folder("prompts");
    let line = |question: &Value| {
        let mut line = json!({"prompt": question["text"]});
        if let Some(image) = question["image"].as_str() {
            fs::copy(tiny().join(image), folder.join(image)).unwrap();
            line["images"] = json!([image]);
        }
        format!("{line}\n")
    };
    let file = folder.join("prompts.jsonl");
    fs::write(&file, all.iter().map(line).collect::<String>()).unwrap();
    for (answer, question) in answers(&["--prompts", file.to_str().unwrap()]).iter().zip(&all) {
        assert_eq!(answer["tokens"], question["answer_tokens"]);
    }
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn draws_depend_on_the_seed_alone() {
    let draw = |seed: &str| {
        let words = ["--prompt", "Hello", "--temperature", "1.5", "--top-k", "40", "--top-p", "0.95", "--seed", seed];
        answers(&words)[0]["tokens"].clone()
    };
    assert_eq!(draw("7"), draw("7"));
    assert_ne!(draw("7"), draw("8"));
}

#[test]
fn weights_of_4_bits_and_adapters_change_the_answer() {
    let question = &expected()[0];
    let words = words_of(question);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let plain = answers(&words);
    let packed = answers(&[&words[..], &["--load-in-4bit"]].concat());
    assert_ne!(plain[0]["tokens"], packed[0]["tokens"], "a random model is not the same in 4 bits");
    for (name, size) in [("nothing", 0.0), ("something", 0.3)] {
        let folder = folder(name);
        save_adapter(&folder, size);
        let adapted = answers(&[&words[..], &["--adapter", folder.to_str().unwrap()]].concat());
        assert_eq!(plain[0]["tokens"] == adapted[0]["tokens"], size == 0.0, "{name}");
        fs::remove_dir_all(&folder).unwrap();
    }
}

/// An adapter of values up to so large.
fn save_adapter(folder: &Path, size: f32) {
    let config = Config::read(&tiny().join("config.json")).unwrap();
    let checkpoint = Checkpoint::open(&tiny()).unwrap();
    let lora = LoraConfig { rank: 2, alpha: 4.0, targets: Targets::decoder(FAMILIES[0]), ..LoraConfig::default() };
    let training = Training::Lora(lora.clone());
    let limits = Limits { tokens: 1, rows: 1, targets: 1, patches: 0, images: 0, longest: 1 };
    let mut cpu = Cpu::new(1);
    let model = Model::build(
        &mut cpu,
        &config,
        &checkpoint,
        &training,
        GradientCheckpointing::PerLayer,
        &Storage::default(),
        limits,
    )
    .unwrap();
    for parameter in model.parameters() {
        let length = parameter.shape.iter().product();
        let values: Vec<f32> = (0..length).map(|index: usize| size * ((index * 37 % 19) as f32 / 9.0 - 1.0)).collect();
        model.set(&mut cpu, parameter, &values);
    }
    write_adapter(&mut cpu, &model, &lora, None, folder).unwrap();
}

#[test]
fn what_is_wrong_is_said() {
    let folder = folder("wrong");
    let path = |name: &str| folder.join(name).display().to_string();
    fs::write(path("no.jpg"), "this is no picture").unwrap();
    fs::write(path("lines.jsonl"), "{\"prompt\": \"a\"}\n{\"prompt\": 3}\n").unwrap();
    fs::write(path("other.jsonl"), "{\"prompt\": \"a\", \"picture\": \"b\"}\n").unwrap();
    fs::write(path("image.jsonl"), "\n{\"prompt\": \"a\", \"image\": \"gone.png\"}\n").unwrap();
    for (words, told) in [
        (vec!["--prompt", "a", "--image", &path("gone.png")], vec!["gone.png", "No such file"]),
        (vec!["--prompt", "a", "--image", &path("no.jpg")], vec!["no.jpg"]),
        (vec!["--prompt", "a", "--temperature=-1"], vec!["temperature", "-1"]),
        (vec!["--prompt", "a", "--top-p", "1.5"], vec!["top_p", "1.5"]),
        (vec!["--prompts", &path("lines.jsonl")], vec!["lines.jsonl", "line 2", "prompt"]),
        (vec!["--prompts", &path("other.jsonl")], vec!["line 1", "picture"]),
        (vec!["--prompts", &path("image.jsonl")], vec!["line 2", "gone.png"]),
        (vec!["--prompt", "a", "--adapter", &path("none")], vec!["none", "adapter"]),
        (vec!["--prompt", "a", "--max-new-tokens", "900000000"], vec!["max-new-tokens"]),
        (vec!["--prompt", "a", "--min-pixels", "9000000"], vec!["9000000"]),
        (vec!["--prompt", "a <|image_pad|>"], vec!["contains `<|image_pad|>`", "hint: take the token out"]),
        (vec!["--prompt", "a", "--system-prompt", "<|vision_start|>"], vec!["contains `<|vision_start|>`"]),
    ] {
        let text = error(&words);
        for word in told {
            assert!(text.contains(word), "{words:?}: {text}");
        }
    }
    let other = Command::new(env!("CARGO_BIN_EXE_model-garden"))
        .args(["generate", "--model", &path(""), "--prompt", "a"])
        .output()
        .unwrap();
    let text = String::from_utf8(other.stderr).unwrap();
    assert!(other.status.code() == Some(2) && text.contains("tokenizer.json"), "{text}");
    fs::remove_dir_all(&folder).unwrap();
}

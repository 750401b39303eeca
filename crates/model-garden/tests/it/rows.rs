//! What rows hold besides questions and answers: used, refused by name, or listed before anything is trained.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use std::path::{Path, PathBuf};

use crate::common::{repository, run, scratch};
use serde_json::{Value, json};

const MODEL: &str = "testdata/tiny-model";
/// It writes tools; the model's own does not.
const TEMPLATE: &str = "testdata/data/recorded/templates/qwen3_vl.jinja";

/// Rows that end with a call of a tool.
fn rows(folder: &Path, count: usize) -> PathBuf {
    let row = |number: usize| {
        json!({"id": number, "tools": [{"type": "function", "function": {"name": "get", "parameters": {}}}], "messages": [
            {"role": "user", "content": format!("Gate {number}?")},
            {"role": "assistant", "content": null, "tool_calls": [{"id": "a", "type": "function", "function": {"name": "get", "arguments": "{\"gate\": 1}"}}]},
            {"role": "tool", "tool_call_id": "a", "content": "open"},
            {"role": "assistant", "content": "Open.", "weight": 0},
            {"role": "user", "content": "And the next?"},
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "get", "arguments": {"gate": number}}}]},
        ]})
    };
    let file = folder.join("rows.jsonl");
    std::fs::write(&file, (0..count).map(|number| format!("{}\n", row(number))).collect::<String>()).unwrap();
    file
}

fn words<'a>(command: &'a str, file: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
    [command, file.to_str().unwrap(), "--base-model", MODEL].into_iter().chain(more.iter().copied()).collect()
}

#[test]
fn a_template_without_tools_is_told_by_the_field() {
    let folder = scratch("rows-refused");
    let file = rows(&folder, 3);
    let done = run(&words("check", &file, &[]));
    assert_eq!(done.status.code(), Some(1));
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(text.starts_with("3 of 3 rows are bad\n"), "{text}");
    assert!(text.contains("rows.jsonl:1: field `tools` describes tools, which the chat template in "), "{text}");
    assert!(text.contains("--chat-template FILE"), "{text}");
    let output = folder.join("out");
    let training = ["train-vision", "--dataset", file.to_str().unwrap(), "--base-model", MODEL, "--output-dir"];
    let done = run(&[&training[..], &[output.to_str().unwrap()]].concat());
    assert_eq!(done.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&done.stderr).contains("rows.jsonl:1`: field `tools`"));
}

#[test]
fn what_is_not_used_is_listed_and_calls_are_trained() {
    let file = rows(&scratch("rows-listed"), 3);
    let done = run(&words("check", &file, &["--chat-template", TEMPLATE]));
    let text = String::from_utf8(done.stdout).unwrap();
    assert_eq!(done.status.code(), Some(0), "{text}");
    for line in ["Unused fields: ", "  `id` in 3 rows, first ", "  `messages[].tool_call_id` in 3 rows, first "] {
        assert!(text.contains(line), "`{line}` is missing: {text}");
    }
    assert!(!text.contains("empty answer"), "{text}");
    let done = run(&words("check", &file, &["--chat-template", TEMPLATE, "--format", "json"]));
    let found: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(found["ignored"][0]["field"], "id");
    assert_eq!((&found["ignored"][0]["rows"], &found["more_ignored"]), (&json!(3), &json!(0)));
    let done = run(&words("preview", &file, &["--chat-template", TEMPLATE, "--system-prompt", "Use the tool."]));
    let text = String::from_utf8(done.stdout).unwrap();
    for part in [
        "<|im_start|>system\nUse the tool.\n\n# Tools",
        "«<tool_call>\n{\"name\": \"get\", \"arguments\": {\"gate\": 1}}\n</tool_call><|im_end|>»",
        "<|im_start|>assistant\nOpen.<|im_end|>",
        "«<tool_call>\n{\"name\": \"get\", \"arguments\": {\"gate\": 0}}\n</tool_call><|im_end|>»",
    ] {
        assert!(text.contains(part), "`{part}` is missing: {text}");
    }
}

#[test]
fn a_result_answers_with_the_template_it_was_trained_with() {
    let folder = scratch("rows-trained");
    let (file, output) = (rows(&folder, 6), folder.join("out"));
    let (output, file) = (output.to_str().unwrap(), file.to_str().unwrap());
    let fixed = ["train-vision", "--dataset", file, "--base-model", MODEL, "--output-dir", output, "--threads", "1"];
    let more = ["--max-steps", "2", "--eval-split", "0.3", "--max-new-tokens", "4", "--save-steps", "1"];
    let template = ["--chat-template", TEMPLATE, "--system-prompt", "Use the tool."];
    let done = run(&[&fixed[..], &more, &template].concat());
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(0), "{said}");
    let (note, begin) = (said.find("note: unused field `id` in 6 rows"), said.find("2 steps of 2 x 4 rows"));
    assert!(note.unwrap() < begin.unwrap(), "{said}");
    let read = |name: &str| std::fs::read_to_string(Path::new(output).join(name)).unwrap();
    assert_eq!(read("chat_template.jinja"), std::fs::read_to_string(repository(TEMPLATE)).unwrap());
    assert!(read("recipe.toml").contains("system-prompt = \"Use the tool.\""));
    assert!(read("README.md").contains("--system 'Use the tool.'"));
    // The right answer is the call as the template writes it.
    assert!(read("predictions.jsonl").contains(r#""expected":"<tool_call>\n{\"name\": \"get\""#));
    let prompt_tokens = |more: &[&str]| {
        let words = ["generate", "--model", MODEL, "--prompt", "Hello.", "--max-new-tokens", "1", "--json"];
        let done = run(&[&words[..], more].concat());
        let told: Value = serde_json::from_slice(&done.stdout).unwrap();
        told["answers"][0]["prompt_tokens"].as_u64().unwrap()
    };
    let own = prompt_tokens(&["--chat-template", TEMPLATE]);
    assert_ne!(own, prompt_tokens(&[]), "the templates differ in what they write without instructions");
    assert_eq!(prompt_tokens(&["--adapter", output]), own);
    let checkpoint = format!("{output}/checkpoint-2");
    assert_eq!(prompt_tokens(&["--adapter", &checkpoint]), own);
    let merged = folder.join("merged");
    let merged = merged.to_str().unwrap();
    let words = ["export", "--base-model", MODEL, "--adapter", output, "--output-dir", merged, "--no-verify"];
    let done = run(&words);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let kept = std::fs::read_to_string(Path::new(merged).join("chat_template.jinja")).unwrap();
    assert_eq!(kept, read("chat_template.jinja"));
}

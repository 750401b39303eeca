//! Tokens and rendered conversations against what Python recorded (`testdata/data`).

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use garden_data::{Chat, Content, Ending, Message, Part, SpecialTokens, Template, Tokenizer};
use serde_json::Value;

fn testdata(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(path)
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn tokens(value: &Value) -> Vec<i32> {
    value.as_array().unwrap().iter().map(|token| token.as_i64().unwrap() as i32).collect()
}

/// `GARDEN_TEXTS=FILE` compares with another recording, such as one of a hundred thousand texts; `GARDEN_TOKENIZER=FILE` with another tokenizer.
#[test]
fn tokens_are_those_of_hugging_face() {
    let tiny = || testdata("tiny-model/tokenizer.json");
    let tokenizer = Tokenizer::read(&std::env::var_os("GARDEN_TOKENIZER").map_or_else(tiny, PathBuf::from)).unwrap();
    let file = std::env::var_os("GARDEN_TEXTS").map_or_else(|| testdata("data/recorded/texts.json"), PathBuf::from);
    let recorded = json(&file);
    let mut wrong = Vec::new();
    for one in recorded["encode"].as_array().unwrap() {
        let text = one["text"].as_str().unwrap();
        let (got, expected) = (tokenizer.encode(text), tokens(&one["tokens"]));
        if got != expected {
            wrong.push(format!("{text:?}: {got:?} instead of {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} texts differ:\n{}", wrong.len(), wrong[..wrong.len().min(20)].join("\n"));
    for one in recorded["encode"].as_array().unwrap().iter().chain(recorded["decode"].as_array().unwrap()) {
        let tokens = tokens(&one["tokens"]);
        assert_eq!(tokenizer.decode(&tokens, SpecialTokens::Keep), one["decoded"].as_str().unwrap(), "{tokens:?}");
        assert_eq!(tokenizer.decode(&tokens, SpecialTokens::Skip), one["plain"].as_str().unwrap(), "{tokens:?}");
    }
}

fn message(value: &Value) -> Message {
    let content = match &value["content"] {
        Value::String(text) => Content::Text(text.clone()),
        parts => Content::Parts(parts.as_array().unwrap().iter().map(part).collect()),
    };
    Message::new(value["role"].as_str().unwrap(), content)
}

fn part(value: &Value) -> Part {
    match value["text"].as_str() {
        Some(text) => Part::Text(text.to_string()),
        None => Part::Image,
    }
}

#[test]
fn conversations_are_rendered_as_in_python() {
    let template = Template::open(&testdata("tiny-model"), None).unwrap();
    for one in json(&testdata("data/recorded/conversations.json")).as_array().unwrap() {
        let messages: Vec<Message> = one["messages"].as_array().unwrap().iter().map(message).collect();
        let ending = if one["add_generation_prompt"] == true { Ending::Answer } else { Ending::Nothing };
        assert_eq!(template.render(Chat::of(&messages), ending).unwrap(), one["rendered"].as_str().unwrap());
    }
}

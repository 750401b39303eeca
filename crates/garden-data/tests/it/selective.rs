//! Selective loss against an implementation in Python (`testdata/data/examples.py`), and what holds for any answer.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use garden_data::{
    Example, ExampleSettings, KeyCounter, Level, Message, Outcome, Paint, Preview, Processor, Record, SelectiveLoss,
    StoredPicture, Tokenizer,
};
use garden_model::IGNORED;
use serde_json::Value;

const LEVELS: [(&str, Level); 3] =
    [("conservative", Level::Conservative), ("moderate", Level::Moderate), ("aggressive", Level::Aggressive)];

fn testdata(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(path)
}

/// What Python recorded; `GARDEN_ANSWERS=FILE` compares with another recording, such as one of thousands of answers.
fn recorded() -> Value {
    let here = || testdata("data/recorded/selective.json");
    let file = std::env::var_os("GARDEN_ANSWERS").map_or_else(here, PathBuf::from);
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

fn answers(recorded: &Value) -> impl Iterator<Item = (&str, &Value)> {
    recorded["answers"].as_array().unwrap().iter().map(|one| (one["answer"].as_str().unwrap(), one))
}

fn keys(recorded: &Value) -> HashSet<String> {
    recorded["keys"].as_array().unwrap().iter().map(|key| key.as_str().unwrap().to_string()).collect()
}

#[test]
fn masks_are_those_of_python() {
    let tokenizer = Tokenizer::read(&testdata("tiny-model/tokenizer.json")).unwrap();
    let recorded = recorded();
    for (answer, expected) in answers(&recorded) {
        let (tokens, spans) = tokenizer.encode_spans(answer);
        assert_eq!(serde_json::json!(tokens), expected["tokens"], "{answer:?}");
        for (name, level) in LEVELS {
            let selective = SelectiveLoss { level, keys: Arc::new(keys(&recorded)), start_epoch: 0 };
            let masked = selective.masked(answer, &spans);
            let mask = masked.map(|mask| mask.iter().map(|one| if *one { '1' } else { '0' }).collect::<String>());
            assert_eq!(mask.as_deref(), expected[name].as_str(), "{answer:?} {name}");
        }
    }
}

#[test]
fn common_keys_are_those_of_python() {
    let recorded = recorded();
    let mut counter = KeyCounter::default();
    for (answer, _) in answers(&recorded) {
        counter.add(answer);
    }
    assert_eq!(counter.answers() as u64, recorded["structured"].as_u64().unwrap());
    assert_eq!(counter.common(recorded["share"].as_f64().unwrap()), keys(&recorded));
}

fn random(state: &mut u64, below: usize) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state % below as u64) as usize
}

/// Content without a byte that structure has, too.
const PLAIN: [&str; 6] = ["x", "zwölf", "e\u{301}", "中文", "\\u00e9", "\\\\"];
const LIKE_STRUCTURE: [&str; 6] = ["\\\"", "k, w", "{", " ", "a\\\":[]b", "null"];

/// A JSON text with odd white space.
fn random_json(words: &[&str], state: &mut u64, depth: usize) -> String {
    const SPACES: [&str; 5] = ["", " ", "\n  ", "\t", "\r\n"];
    let word = |state: &mut u64| format!("\"{}\"", words[random(state, words.len())]);
    let space = |state: &mut u64| SPACES[random(state, SPACES.len())];
    match random(state, if depth == 0 { 2 } else { 5 }) {
        kind @ (0 | 1) if depth < 4 => {
            let parts: Vec<String> = (0..random(state, 4))
                .map(|_| {
                    let key = if kind == 0 {
                        format!("{}{}:{}", word(state), space(state), space(state))
                    } else {
                        String::new()
                    };
                    format!("{}{key}{}{}", space(state), random_json(words, state, depth + 1), space(state))
                })
                .collect();
            if kind == 0 { format!("{{{}}}", parts.join(",")) } else { format!("[{}]", parts.join(",")) }
        }
        2 => word(state),
        3 => "null".to_string(),
        _ => random(state, 5000).to_string(),
    }
}

#[test]
fn what_is_masked_is_structure_and_what_is_not_has_content() {
    let processor = Processor::open(&testdata("tiny-model")).unwrap();
    let (mut state, mut masked, mut left) = (99, 0, 0);
    for number in 0..3000 {
        let is_plain = number % 2 == 0;
        let answer = random_json(if is_plain { &PLAIN } else { &LIKE_STRUCTURE }, &mut state, 0);
        let record = Record {
            place: "x".to_string(),
            messages: vec![Message::text("user", "{\"a\": 1}"), Message::text("assistant", &answer)],
            ..Record::default()
        };
        let selective = SelectiveLoss { level: Level::Conservative, ..SelectiveLoss::default() };
        let settings = ExampleSettings { selective, ..ExampleSettings::default() };
        let Outcome::Kept(example) = Example::of(&processor, &record, &settings).unwrap() else { unreachable!() };
        let [range] = &example.answers[..] else { panic!("one answer") };
        assert!(example.labels[..range.start].iter().all(|label| *label == IGNORED));
        // The end of the turn and its line end are always trained.
        assert!(example.labels[range.end - 2..].iter().all(|label| *label != IGNORED), "{answer:?}");
        for place in range.start..range.end - 2 {
            let bytes = processor.tokenizer.decode_bytes(&[example.tokens[place]], garden_data::SpecialTokens::Keep);
            let is_structure = bytes.iter().all(|byte| b"{}[]:,\" \t\r\n".contains(byte));
            match example.labels[place] == IGNORED {
                true => assert!(is_structure, "{answer:?}: {bytes:?} is masked"),
                false => assert!(!is_structure || !is_plain, "{answer:?}: {bytes:?} is trained"),
            }
            masked += usize::from(example.labels[place] == IGNORED);
            left += usize::from(example.labels[place] != IGNORED);
        }
    }
    assert!(masked > 10_000 && left > 10_000, "{masked} masked, {left} left");
}

/// The row that `docs/loss.md` shows.
fn invoice() -> Record {
    let answer = r#"{"vendor": "Meyer & Sons", "date": null, "total": 1234.56}"#;
    let data = std::fs::read(testdata("tiny-model/sign.png")).unwrap();
    Record {
        place: "invoices.jsonl:1".to_string(),
        messages: vec![Message::with_images("user", 1, "What is the total?"), Message::text("assistant", answer)],
        pictures: vec![StoredPicture { name: "sign.png".to_string(), data, ..StoredPicture::default() }],
        ..Record::default()
    }
}

fn preview(level: Level) -> Preview {
    let processor = Processor::open(&testdata("tiny-model")).unwrap();
    let keys = Arc::new(HashSet::from(["vendor", "date", "total"].map(str::to_string)));
    let settings =
        ExampleSettings { selective: SelectiveLoss { level, keys, start_epoch: 0 }, ..ExampleSettings::default() };
    let Outcome::Kept(example) = Example::of(&processor, &invoice(), &settings).unwrap() else { unreachable!() };
    Preview::of(&processor, &example)
}

#[test]
fn a_preview_shows_what_is_trained() {
    let shown = |level| preview(level).text(Paint::Marks);
    let page = std::fs::read_to_string(testdata("../docs/loss.md")).unwrap();
    for level in [Level::Off, Level::Conservative, Level::Moderate, Level::Aggressive] {
        let text = shown(level);
        let (answer, numbers) = (text.lines().rev().nth(2).unwrap(), text.lines().last().unwrap());
        for line in [answer, numbers] {
            assert!(page.contains(line), "docs/loss.md lacks {line}");
        }
    }
    let colours = preview(Level::Moderate).text(Paint::Ansi);
    assert!(colours.contains("\x1b[36m<image 3 x 2 = 6 tokens>\x1b[0m<|vision_end|>What is the total?"), "{colours:?}");
    assert!(colours.contains("\x1b[33m{\"\x1b[0m\x1b[32mvendor\x1b[0m\x1b[33m\": \"\x1b[0m"), "{colours:?}");
    let value = serde_json::to_value(preview(Level::Off)).unwrap();
    assert_eq!(value["pieces"][1]["kind"], "image");
    assert_eq!(value["pieces"][1]["tokens"], value["image_tokens"]);
}

#[test]
fn a_row_cannot_change_the_terminal() {
    let processor = Processor::open(&testdata("tiny-model")).unwrap();
    let messages = vec![Message::text("user", "\x1b[2J\x07"), Message::text("assistant", "a\rb\u{9b}")];
    let record = Record { place: "x".to_string(), messages, ..Record::default() };
    let Outcome::Kept(example) = Example::of(&processor, &record, &ExampleSettings::default()).unwrap() else {
        unreachable!()
    };
    let text = Preview::of(&processor, &example).text(Paint::Marks);
    assert!(text.contains("\\u{1b}[2J\\u{7}") && text.contains("«a\\rb\\u{9b}<|im_end|>»\n"), "{text:?}");
}

//! A whole prompt against what transformers made of it, and what is refused, in the words that a user sees.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use garden_data::{Chat, Ending, Error, Message, PictureFile, Processor, SpecialTokens, TemplateFile};
use serde_json::Value;

fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/tiny-model")
}

fn tokens(value: &Value) -> Vec<i32> {
    value.as_array().unwrap().iter().map(|token| token.as_i64().unwrap() as i32).collect()
}

#[test]
fn prompts_are_those_of_transformers() {
    let processor = Processor::open(&model()).unwrap();
    let expected: Value = serde_json::from_slice(&std::fs::read(model().join("expected.json")).unwrap()).unwrap();
    for one in expected["answers"].as_array().unwrap() {
        let name = one["image"].as_str();
        let data = name.map_or_else(Vec::new, |name| std::fs::read(model().join(name)).unwrap());
        let files: Vec<PictureFile> = name.iter().map(|name| PictureFile { name, data: &data }).collect();
        let message = Message::with_images("user", files.len(), one["text"].as_str().unwrap());
        let prompt = processor.prompt(&[message], &files).unwrap();
        assert_eq!(prompt.tokens, tokens(&one["prompt_tokens"]));
        assert_eq!(serde_json::json!(prompt.images.grids), one["grids"]);
        let patches: usize = prompt.images.grids.iter().map(|grid| grid.iter().product::<usize>()).sum();
        assert_eq!(prompt.images.pixels.len(), patches * processor.images.patch_values());
        let answer = processor.tokenizer.decode(&tokens(&one["answer_tokens"]), SpecialTokens::Skip);
        assert_eq!(answer, one["answer"].as_str().unwrap());
    }
}

/// A copy of the tiny model's small files in which one text is another.
struct Changed(PathBuf);

impl Changed {
    fn new(name: &str, file: &str, from: &str, to: &str) -> Changed {
        let folder = std::env::temp_dir().join(format!("garden-data-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for one in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "preprocessor_config.json"] {
            let text = std::fs::read_to_string(model().join(one)).unwrap();
            assert!(one != file || text.contains(from), "{file} has no {from}");
            std::fs::write(folder.join(one), if one == file { text.replacen(from, to, 1) } else { text }).unwrap();
        }
        Changed(folder)
    }

    fn error(&self) -> String {
        self.words(Processor::open(&self.0).unwrap_err())
    }

    fn words(&self, error: Error) -> String {
        error.to_string().replace(&format!("{}/", self.0.display()), "")
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn other_tokenizers_are_refused_by_name() {
    let check = |from: &str, to: &str, expected: &str| {
        let error = Changed::new("tokenizer", "tokenizer.json", from, to).error();
        assert_eq!(error, format!("`tokenizer.json`: {expected}"));
    };
    check(r#""type": "BPE""#, r#""type": "Unigram""#, "field `model.type` is `Unigram`; only `BPE` is supported");
    check(r#""type": "NFC""#, r#""type": "NFKC""#, "field `normalizer.type` is `NFKC`; only `NFC` is supported");
    check(
        r#""byte_fallback": false"#,
        r#""byte_fallback": true"#,
        r#"field `model.byte_fallback` is true; only null, false or "" is supported"#,
    );
    check(r#""lstrip": false"#, r#""lstrip": true"#, "field `added_tokens.0.lstrip` is true, which is not supported");
    check(
        r#""behavior": "Isolated""#,
        r#""behavior": "Removed""#,
        "field `pre_tokenizer.pretokenizers.0.behavior` is `Removed`; only `Isolated` is supported",
    );
    check(
        r#""use_regex": false"#,
        r#""use_regex": true"#,
        "field `pre_tokenizer.pretokenizers.1.use_regex` is not false, the only supported value",
    );
    check(
        r#""<|image_pad|>""#,
        r#""<|other|>""#,
        "field `added_tokens` has no `<|image_pad|>`, the placeholder for images",
    );
    check(r#""model": {"#, r#""models": {"#, "no tokenizer: missing field `model` at line 5229 column 1");
}

#[test]
fn settings_are_refused_by_name() {
    let check = |from: &str, to: &str, expected: &str| {
        let error = Changed::new("settings", "preprocessor_config.json", from, to).error();
        assert_eq!(error, format!("`preprocessor_config.json`: {expected}"));
    };
    check(
        r#""min_pixels": 3136"#,
        r#""min_pixels": 99999"#,
        "field `min_pixels` is 99999, more than max_pixels (12544)",
    );
    check(r#""patch_size": 14"#, r#""patch_size": -1"#, "field `patch_size` is -1; expected a whole number above 0");
    check(r#""merge_size""#, r#""resample": 2, "merge_size""#, "field `resample` is 2; only 3 (bicubic) is supported");
}

#[test]
fn both_forms_of_settings_are_read() {
    let newer = r#""size": {"shortest_edge": 3136, "longest_edge": 12544}, "#;
    let older = "\"min_pixels\": 3136,\n \"max_pixels\": 12544,";
    let changed = Changed::new("sizes", "preprocessor_config.json", older, newer);
    let [one, two] = [&changed.0, &model()].map(|folder| Processor::open(folder).unwrap().images);
    assert_eq!(one, two);
    assert_eq!((one.min_pixels, one.max_pixels), (3136, 12544));
}

#[test]
fn templates_are_found_and_their_errors_named() {
    let message = [Message::text("user", "Hi.")];
    let changed = Changed::new("template", "chat_template.jinja", "{% set", "{{ raise_exception('no chats') }}{% set");
    let processor = Processor::open(&changed.0).unwrap();
    let words = changed.words(processor.prompt(&message, &[]).unwrap_err());
    assert_eq!(words, "the chat template in `chat_template.jinja`, line 1 failed: no chats");

    std::fs::write(changed.0.join("chat_template.jinja"), "{{ eos_token }}{{ messages[0].content }}").unwrap();
    let tokens = Processor::open(&changed.0).unwrap().prompt(&message, &[]).unwrap().tokens;
    assert_eq!(processor.tokenizer.decode(&tokens, SpecialTokens::Keep), "<|im_end|>Hi.");

    // Older folders have it in a JSON file of its own, or in the settings of the tokenizer, perhaps as one of several.
    let source = std::fs::read_to_string(model().join("chat_template.jinja")).unwrap();
    let expected = Processor::open(&model()).unwrap().prompt(&message, &[]).unwrap();
    std::fs::remove_file(changed.0.join("chat_template.jinja")).unwrap();
    let named = serde_json::json!([{"name": "tools", "template": ""}, {"name": "default", "template": source}]);
    for (file, value) in [
        ("chat_template.json", serde_json::json!({ "chat_template": source })),
        ("tokenizer_config.json", serde_json::json!({ "chat_template": source })),
        ("tokenizer_config.json", serde_json::json!({ "chat_template": named })),
    ] {
        std::fs::write(changed.0.join(file), value.to_string()).unwrap();
        assert_eq!(Processor::open(&changed.0).unwrap().prompt(&message, &[]).unwrap(), expected);
        if file == "chat_template.json" {
            std::fs::remove_file(changed.0.join(file)).unwrap();
        }
    }
    std::fs::write(changed.0.join("tokenizer_config.json"), "{}").unwrap();
    assert_eq!(changed.error(), "`tokenizer_config.json`: field `chat_template` is missing");
}

#[test]
fn conversations_must_fit_their_pictures() {
    let processor = Processor::open(&model()).unwrap();
    let error = processor.prompt(&[Message::with_images("user", 2, "Which?")], &[]).unwrap_err();
    assert_eq!(error.to_string(), "the conversation has 2 image placeholders and 0 images");
    let file = PictureFile { name: "notes.txt", data: b"hello" };
    let error = processor.prompt(&[Message::with_images("user", 1, "Which?")], &[file]).unwrap_err();
    assert_eq!(error.to_string(), "picture `notes.txt`: this is not a JPEG, PNG, WebP, GIF, BMP or TIFF file");
}

/// Where two files say the same thing, the one counts that counts in transformers 5.
#[test]
fn files_come_in_the_order_of_transformers() {
    let changed = Changed::new("order", "chat_template.jinja", "{% set", "{% set");
    let write = |name: &str, text: &str| std::fs::write(changed.0.join(name), text).unwrap();
    let rendered = || {
        let processor = Processor::open(&changed.0).unwrap();
        let text = processor.template.render(Chat::of(&[Message::text("user", "x")]), Ending::Nothing).unwrap();
        (text, processor.images.max_pixels)
    };
    write("chat_template.jinja", "jinja {{ eos_token }} {{ unk_token }}");
    // A name that no file has, and one that is null.
    write("tokenizer_config.json", r#"{"unk_token": null}"#);
    assert_eq!(rendered(), ("jinja <|endoftext|> ".to_string(), 12_544));
    write("special_tokens_map.json", r#"{"eos_token": {"content": "<|im_end|>"}}"#);
    assert_eq!(rendered().0, "jinja <|im_end|> ");
    write("chat_template.json", r#"{"chat_template": "json"}"#);
    assert_eq!(rendered().0, "json");
    write("processor_config.json", r#"{"max_pixels": 6272, "image_processor": null}"#);
    assert_eq!(rendered(), ("json".to_string(), 12_544));
    write("processor_config.json", r#"{"chat_template": "processor", "image_processor": {"max_pixels": 6272}}"#);
    assert_eq!(rendered(), ("processor".to_string(), 6272));
    // A template that was given takes the place of all of them.
    let given = TemplateFile { path: "given".into(), source: "given".to_string() };
    given.write(&changed.0).unwrap();
    assert_eq!(rendered(), ("given".to_string(), 6272));
}

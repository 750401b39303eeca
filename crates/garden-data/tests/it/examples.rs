//! Tokens, labels, grids and positions of whole rows against what Python recorded (`testdata/data`), and what is done with long rows.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use garden_data::{
    Collator, Content, Example, ExampleSettings, Labels, LengthLimit, Message, Outcome, Part, Processor, Record,
    StoredPicture, SystemPrompt, Tally, TooLong,
};
use garden_model::{Batch, Config, IGNORED, Images};
use serde_json::Value;

fn testdata(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(path)
}

/// What Python recorded; `GARDEN_EXAMPLES=FILE` compares with another recording, such as one of thousands of rows.
fn recorded() -> Value {
    let here = || testdata("data/recorded/examples.json");
    json(&std::env::var_os("GARDEN_EXAMPLES").map_or_else(here, PathBuf::from))
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn processor() -> Processor {
    Processor::open(&testdata("tiny-model")).unwrap()
}

fn message(value: &Value) -> Message {
    let part = |part: &Value| part["text"].as_str().map_or(Part::Image, |text| Part::Text(text.to_string()));
    let content = match &value["content"] {
        Value::String(text) => Content::Text(text.clone()),
        parts => Content::Parts(parts.as_array().unwrap().iter().map(part).collect()),
    };
    Message::new(value["role"].as_str().unwrap(), content)
}

fn record(value: &Value, number: usize) -> Record {
    let picture = |name: &Value| {
        let name = name.as_str().unwrap();
        let data = std::fs::read(testdata("data/recorded/pictures").join(name)).unwrap();
        StoredPicture { name: name.to_string(), data, ..StoredPicture::default() }
    };
    Record {
        place: format!("rows.jsonl:{}", number + 1),
        messages: value["messages"].as_array().unwrap().iter().map(message).collect(),
        pictures: value["pictures"].as_array().unwrap().iter().map(picture).collect(),
        ..Record::default()
    }
}

fn records() -> Vec<(Value, Record)> {
    records_of(&recorded())
}

fn records_of(recorded: &Value) -> Vec<(Value, Record)> {
    let rows = recorded.as_array().unwrap().iter().enumerate();
    rows.map(|(number, value)| (value.clone(), record(value, number))).collect()
}

fn kept(processor: &Processor, record: &Record, settings: &ExampleSettings) -> Example {
    match Example::of(processor, record, settings).unwrap() {
        Outcome::Kept(example) => example,
        Outcome::Dropped(tokens) => panic!("{} was dropped, {tokens} tokens", record.place),
    }
}

fn error(processor: &Processor, record: &Record, settings: &ExampleSettings) -> String {
    Example::of(processor, record, settings).unwrap_err().to_string()
}

#[test]
fn rows_are_those_of_transformers() {
    compare(&processor(), records());
}

/// Two line ends are one token there, so headers and answers share tokens.
#[test]
fn borders_are_those_of_transformers() {
    let folder = copied("borders", &["tokenizer_config.json", "preprocessor_config.json", "chat_template.jinja"]);
    let mut tokenizer = json(&testdata("tiny-model/tokenizer.json"));
    let model = &mut tokenizer["model"];
    let last = model["merges"].as_array_mut().unwrap().last_mut().unwrap();
    let word: String = last.as_array().unwrap().iter().map(|part| part.as_str().unwrap()).collect();
    *last = serde_json::json!(["Ċ", "Ċ"]);
    let token = model["vocab"].as_object_mut().unwrap().remove(&word).unwrap();
    model["vocab"]["ĊĊ"] = token;
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    compare(&Processor::open(&folder).unwrap(), records_of(&json(&testdata("data/recorded/borders.json"))));
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A folder with some files of the tiny model.
fn copied(name: &str, files: &[&str]) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("garden-data-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for file in files {
        std::fs::copy(testdata("tiny-model").join(file), folder.join(file)).unwrap();
    }
    folder
}

fn compare(processor: &Processor, records: Vec<(Value, Record)>) {
    let config = Config::read(&testdata("tiny-model/config.json")).unwrap();
    for (expected, record) in records {
        for (name, labels) in
            [("assistant", Labels::Assistant), ("completion", Labels::Completion), ("all", Labels::All)]
        {
            let example = kept(processor, &record, &ExampleSettings { labels, ..ExampleSettings::default() });
            assert_eq!(serde_json::json!(example.tokens), expected["tokens"], "{}", record.place);
            assert_eq!(serde_json::json!(example.grids), expected["grids"], "{}", record.place);
            let trained: String =
                example.labels.iter().map(|label| if *label == IGNORED { '0' } else { '1' }).collect();
            assert_eq!(trained, expected["labels"][name].as_str().unwrap(), "{} {name}", record.place);
            let is_itself = |(label, token): (&i32, &i32)| *label == IGNORED || label == token;
            assert!(example.labels.iter().zip(&example.tokens).all(is_itself));
        }
        let mut collator = Collator::new(processor, 1000);
        collator.add(kept(processor, &record, &ExampleSettings::default()), &record.pictures).unwrap();
        let (rows, images) = collator.finish();
        let batch = Batch::new(&config, &rows, images).unwrap();
        for (axis, expected) in expected["positions"].as_array().unwrap().iter().enumerate() {
            let positions: Vec<i32> = batch.positions().iter().map(|position| position[axis]).collect();
            assert_eq!(serde_json::json!(positions), *expected, "{} axis {axis}", record.place);
        }
    }
}

#[test]
fn a_batch_is_its_rows_end_to_end() {
    let (processor, config) = (processor(), Config::read(&testdata("tiny-model/config.json")).unwrap());
    let settings = ExampleSettings::default();
    let mut collator = Collator::new(&processor, 1000);
    let (mut alone, mut grids) = (Vec::new(), Vec::new());
    let mut first = None;
    for (_, record) in records() {
        let example = kept(&processor, &record, &settings);
        collator.add(example.clone(), &record.pictures).unwrap();
        let mut single = Collator::new(&processor, example.patches());
        single.add(example, &record.pictures).unwrap();
        let (_, images) = single.finish();
        alone.extend(images.pixels);
        grids.extend(images.grids);
    }
    // Twice, since the second batch is written over the first.
    for _ in 0..2 {
        assert_eq!(collator.rows(), records().len());
        let (rows, images) = collator.finish();
        assert_eq!(images, Images { pixels: alone.clone(), grids: grids.clone() });
        let place = images.pixels.as_ptr();
        assert_eq!(*first.get_or_insert(place), place, "the buffer is another one");
        let batch = Batch::new(&config, &rows, images).unwrap();
        collator.give_back(batch.into_pixels());
        for (_, record) in records() {
            collator.add(kept(&processor, &record, &settings), &record.pictures).unwrap();
        }
    }
}

#[test]
fn there_are_as_many_buffers_as_batches_under_way() {
    let processor = processor();
    let [text, picture] = [0, 2].map(|number| records().swap_remove(number).1);
    let mut collator = Collator::new(&processor, 100);
    let mut batch = |record: &Record| {
        collator.add(kept(&processor, record, &ExampleSettings::default()), &record.pictures).unwrap();
        collator.finish().1.pixels
    };
    // A text needs no buffer and takes none away.
    assert_eq!(batch(&text).capacity(), 0);
    let (one, two) = (batch(&picture), batch(&picture));
    assert_eq!(one, two);
    let room = 100 * processor.images.patch_values();
    assert_eq!([one.capacity(), two.capacity()], [room; 2]);
    let before = [one.as_ptr(), two.as_ptr()];
    collator.give_back(one);
    collator.give_back(two);
    collator.give_back(Vec::new());
    let mut batch = || {
        collator.add(kept(&processor, &picture, &ExampleSettings::default()), &picture.pictures).unwrap();
        collator.finish().1.pixels
    };
    let after = [batch(), batch()].map(|pixels| pixels.as_ptr());
    assert!(after.iter().all(|pixels| before.contains(pixels)));
}

#[test]
fn a_picture_that_fails_leaves_the_batch_as_it_was() {
    let processor = processor();
    let settings = ExampleSettings::default();
    let [good, bad] = [2, 3].map(|number| records().swap_remove(number).1);
    let mut collator = Collator::new(&processor, 400);
    collator.add(kept(&processor, &good, &settings), &good.pictures).unwrap();
    let (patches, example) = (collator.patches(), kept(&processor, &bad, &settings));
    let mut broken = bad.pictures.clone();
    broken[1].data.truncate(200);
    assert!(collator.add(example.clone(), &broken).unwrap_err().to_string().starts_with("picture `gray.jpg`: "));
    assert_eq!((collator.rows(), collator.patches()), (1, patches));
    let error = collator.add(example.clone(), &broken[..1]).unwrap_err();
    assert_eq!(error.to_string(), "`rows.jsonl:4`: the example has 3 pictures; 1 were given");
    let mut small = Collator::new(&processor, 100);
    let error = small.add(example.clone(), &bad.pictures).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`rows.jsonl:4`: its pictures have 172 patches, 172 in the batch; the buffers hold 100"
    );
    collator.add(example, &bad.pictures).unwrap();
    let (rows, images) = collator.finish();
    let config = Config::read(&testdata("tiny-model/config.json")).unwrap();
    Batch::new(&config, &rows, images).unwrap();
}

#[test]
fn long_rows_are_refused_shrunk_or_dropped() {
    let processor = processor();
    let record = records().swap_remove(3).1;
    let whole = kept(&processor, &record, &ExampleSettings::default());
    let plain = whole.tokens.len() - whole.image_tokens;
    let with = |tokens: usize, too_long| ExampleSettings {
        length: Some(LengthLimit { tokens, too_long }),
        ..ExampleSettings::default()
    };
    let mut tally = Tally::default();
    let just = whole.tokens.len();
    assert_eq!(kept(&processor, &record, &with(just, TooLong::Refuse)), whole);
    let most = just - 1;
    assert_eq!(
        error(&processor, &record, &with(most, TooLong::Refuse)),
        format!(
            "`rows.jsonl:4`: the row has {just} tokens, {} of them from images; `max_length` is {most}: raise `max_length`, lower \
             `max_pixels`, or use the policy `shrink` or `drop`",
            whole.image_tokens
        )
    );
    let outcome = Example::of(&processor, &record, &with(most, TooLong::Drop)).unwrap();
    assert_eq!(outcome, Outcome::Dropped(just));
    tally.add(&outcome);
    let shrunk = kept(&processor, &record, &with(most, TooLong::Shrink));
    assert!(shrunk.tokens.len() <= most && shrunk.image_tokens < whole.image_tokens, "{shrunk:?}");
    assert_eq!(shrunk.tokens.len() - shrunk.image_tokens, plain);
    assert!(shrunk.shrunk_to.is_some_and(|pixels| pixels < processor.images.max_pixels));
    assert_eq!(shrunk.trained(), whole.trained());
    tally.add(&Outcome::Kept(shrunk.clone()));
    tally.add(&Outcome::Kept(whole.clone()));
    assert_eq!((tally.kept, tally.shrunk, tally.dropped, tally.trained), (2, 1, 1, 2 * whole.trained()));
    // Smaller pictures go through the same patches.
    let mut collator = Collator::new(&processor, 1000);
    collator.add(shrunk, &record.pictures).unwrap();
    let (rows, images) = collator.finish();
    let config = Config::read(&testdata("tiny-model/config.json")).unwrap();
    Batch::new(&config, &rows, images).unwrap();
    let refused = error(&processor, &record, &with(plain + 5, TooLong::Shrink));
    assert!(refused.contains("at their smallest (`min_pixels`)"), "{refused}");
    let refused = error(&processor, &record, &with(plain - 1, TooLong::Shrink));
    assert!(refused.starts_with(&format!("`rows.jsonl:4`: the row has {plain} tokens without images; ")), "{refused}");
}

fn row(messages: &[Message]) -> Record {
    Record { place: "rows.jsonl:9".to_string(), messages: messages.to_vec(), ..Record::default() }
}

#[test]
fn instructions_are_those_that_are_asked_for() {
    let processor = processor();
    let bare = row(&[Message::text("user", "Hi."), Message::text("assistant", "Yes.")]);
    let mut own = bare.clone();
    own.messages.insert(0, Message::text("system", "Be brief."));
    let text = |record: &Record, system: SystemPrompt| {
        let example = kept(&processor, record, &ExampleSettings { system, ..ExampleSettings::default() });
        processor.tokenizer.decode(&example.tokens, garden_data::SpecialTokens::Skip)
    };
    let of_template = "system\nYou are a helpful assistant.\nuser\nHi.\nassistant\nYes.\n";
    let [brief, polite] =
        ["Be brief.", "Be polite."].map(|words| format!("system\n{words}\nuser\nHi.\nassistant\nYes.\n"));
    assert_eq!(text(&bare, SystemPrompt::Own), of_template);
    assert_eq!(text(&own, SystemPrompt::Own), brief);
    assert_eq!(text(&bare, SystemPrompt::Default("Be polite.".into())), polite);
    assert_eq!(text(&own, SystemPrompt::Default("Be polite.".into())), brief);
    assert_eq!(text(&bare, SystemPrompt::Always("Be polite.".into())), polite);
    assert_eq!(text(&own, SystemPrompt::Always("Be polite.".into())), polite);
}

#[test]
fn rows_that_cannot_be_trained_are_told() {
    let processor = processor();
    let settings = ExampleSettings::default();
    let check = |record: &Record, expected: &str| assert_eq!(error(&processor, record, &settings), expected);
    check(
        &row(&[Message::text("user", "Hi.")]),
        "`rows.jsonl:9`: `messages` has no answer (role `assistant`), so nothing would be trained",
    );
    check(&row(&[Message::text("assistant", "Hi.")]), "`rows.jsonl:9`: `messages[0]` is an answer without a question");
    check(
        &row(&[Message::with_images("user", 1, "Hi."), Message::text("assistant", "<|image_pad|>")]),
        "`rows.jsonl:9`: the conversation has 2 image placeholders and 0 images",
    );
    let mut thin = row(&[Message::with_images("user", 1, "Hi."), Message::text("assistant", "Yes.")]);
    let data = std::fs::read(testdata("data/recorded/pictures/rgb.png")).unwrap();
    thin.pictures.push(StoredPicture { name: "rows.jsonl:9 images[0]".to_string(), data, ..StoredPicture::default() });
    let settings = ExampleSettings::default();
    assert!(Example::of(&processor, &thin, &settings).is_ok());
    thin.pictures[0].data.truncate(10);
    assert!(error(&processor, &thin, &settings).starts_with("picture `rows.jsonl:9 images[0]`: "));
}

#[test]
fn a_template_that_changes_earlier_turns_is_told() {
    let folder = copied("turns", &["tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"]);
    let source = "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('|')[-1] }}\
                  {% else %}{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";
    std::fs::write(folder.join("chat_template.jinja"), source).unwrap();
    let processor = Processor::open(&folder).unwrap();
    let turns = ["a", "thought|b", "c", "thought|d"];
    let roles = ["user", "assistant", "user", "assistant"];
    let messages: Vec<Message> = roles.iter().zip(turns).map(|(role, text)| Message::text(role, text)).collect();
    assert_eq!(
        error(&processor, &row(&messages), &ExampleSettings::default()),
        "`rows.jsonl:9`: the chat template writes `messages[1]` and everything before it differently when the conversation continues: \
         \"thought|b\" becomes \"b[user]c[assistant]thought|d\"; answers cannot be found in such texts. Use rows with one answer each, or \
         labels on all tokens"
    );
    let all = ExampleSettings { labels: Labels::All, ..ExampleSettings::default() };
    assert!(Example::of(&processor, &row(&messages), &all).is_ok());
    let one = kept(&processor, &row(&messages[..2]), &ExampleSettings::default());
    let answer = &one.tokens[one.answers[0].clone()];
    // The bracket of the header and the answer are tokens of their own here.
    assert_eq!(processor.tokenizer.decode(answer, garden_data::SpecialTokens::Keep), "thought|b");
    std::fs::remove_dir_all(&folder).unwrap();
}

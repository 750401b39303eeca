//! Boxes of rows: what the model is told, and where they are drawn. Numbers of `objects` against Python's are in `rows.rs`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use garden_data::{
    BoxFormat, BoxSettings, BoxSource, Dataset, Error, Example, ExampleSettings, KeyCounter, LengthLimit, Outcome,
    Preview, Processor, Record, TextBoxes, TooLong, drawn_png,
};
use serde_json::{Value, json};

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name)
}

fn processor() -> Processor {
    Processor::open(&testdata("tiny-model")).unwrap()
}

/// A picture of 613 x 401 pixels, which the model sees as 112 x 84 or so.
const PICTURE: &str = "data/recorded/pictures/rgb-large.png";

fn record(name: &str, row: Value) -> Record {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("boxes-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::copy(testdata(PICTURE), folder.join("a.png")).unwrap();
    let file = folder.join("rows.jsonl");
    std::fs::write(&file, row.to_string()).unwrap();
    let record = Dataset::open(&file).unwrap().read(0).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    record
}

fn example(record: &Record, settings: &ExampleSettings) -> Result<Example, Error> {
    match Example::of(&processor(), record, settings)? {
        Outcome::Kept(example) => Ok(example),
        Outcome::Dropped(tokens) => panic!("dropped with {tokens} tokens"),
    }
}

fn answer(example: &Example) -> String {
    example.written.as_ref().unwrap().last().unwrap().words().into_owned()
}

fn row(answer: &str, objects: Value) -> Value {
    json!({"messages": [{"role": "user", "content": "<image>Where?"}, {"role": "assistant", "content": answer}], "images": ["a.png"], "objects": objects})
}

#[test]
fn boxes_may_stand_between_tokens_as_qwen2_vl_has_them() {
    let objects = json!({"ref": ["a dog"], "bbox": [[0, 0, 306.5, 401], [613, 200.5]]});
    let record = record("tokens", row("<ref-object><bbox> at <bbox>", objects));
    let boxes = BoxSettings { format: BoxFormat::Tokens, ..BoxSettings::default() };
    let example = example(&record, &ExampleSettings { boxes, ..ExampleSettings::default() }).unwrap();
    let [_, height, width] = example.grids[0].map(|patches| patches * 14);
    let expected = format!(
        "<|object_ref_start|>a dog<|object_ref_end|><|box_start|>(0,0),({},{height})<|box_end|> at <|box_start|>({width},{})<|box_end|>",
        width / 2,
        height / 2
    );
    assert_eq!(answer(&example), expected);
}

#[test]
fn a_place_without_a_box_is_refused() {
    for (number, objects) in [json!(null), json!({"bbox": []})].into_iter().enumerate() {
        let record = record(&format!("none-{number}"), row("at <bbox>", objects.clone()));
        let problem = example(&record, &ExampleSettings::default()).unwrap_err().to_string();
        assert!(problem.contains("objects"), "{objects}: {problem}");
    }
}

/// Twice as many marks take about twice as long: each is looked for once, also those that are not there, and so is the end of a list.
#[test]
fn rows_with_very_many_marks_do_not_hang() {
    garden_testing::alone("boxes::rows_with_very_many_marks_do_not_hang", || {
        let begin = garden_testing::cpu_time();
        for (name, text) in [("keys", r#""bbox_2d" "#), ("open", r#""bbox_2d": [1, "#), ("places", "<bbox> ")] {
            let boxes = if name == "places" { vec![json!([1, 1, 9, 9]); 100_000] } else { Vec::new() };
            let objects = json!({"bbox": boxes, "ref": []});
            let record = record(&format!("many-{name}"), row(&text.repeat(100_000), objects));
            // Whatever becomes of it: too long a row, or one that is fine.
            drop(Example::of(&processor(), &record, &ExampleSettings::default()));
        }
        let took = garden_testing::cpu_time() - begin;
        assert!(took.as_secs() < 60, "{took:?}");
    });
}

#[test]
fn boxes_of_texts_are_converted_only_if_somebody_says_so() {
    let text = "```json\n[{\"bbox_2d\" : [306.5,0, 613, 401], \"label\": \"[1, 2, 3, 4]\"}, {\"bbox_2d\": null}]\n```";
    let record = record("texts", row(text, Value::Null));
    let with = |in_texts| {
        let boxes = BoxSettings { in_texts, ..BoxSettings::default() };
        example(&record, &ExampleSettings { boxes, ..ExampleSettings::default() })
    };
    let made = with(TextBoxes::Original).unwrap();
    let [_, height, width] = made.grids[0].map(|patches| patches * 14);
    let expected = text.replace("[306.5,0, 613, 401]", &format!("[{}, 0, {width}, {height}]", width / 2));
    assert_eq!(answer(&made), expected);
    assert_eq!((made.boxes.len(), made.boxes[0].source), (1, BoxSource::Converted));
    for text in [r#"{"bbox_2d": [[1, 2, 3, 4]]}"#, r#"{"bbox_2d": "1,2,3,4"}"#, r#"{"bbox_2d": [1, 2"#] {
        let record = self::record("no-list", row(text, Value::Null));
        let boxes = BoxSettings { in_texts: TextBoxes::Original, ..BoxSettings::default() };
        let error = example(&record, &ExampleSettings { boxes, ..ExampleSettings::default() }).unwrap_err();
        assert!(error.to_string().contains("not a list of numbers"), "{text}: {error}");
    }
    // Left alone it cannot be right, and what helps is said.
    let error = with(TextBoxes::Resized).unwrap_err();
    let told = format!("has `bbox_2d` [306.5, 0, 613, 401], outside its picture of {width} x {height}");
    assert!(error.to_string().contains(&told), "{error}");
    assert!(error.hint().unwrap().contains("--bbox-2d original"), "{:?}", error.hint());
}

#[test]
fn boxes_follow_pictures_that_are_made_smaller() {
    let objects = json!({"ref": [], "bbox": [[0, 0, 613, 401]]});
    let record = record("shrunk", row("<bbox>", objects));
    let full = example(&record, &ExampleSettings::default()).unwrap();
    let limit = LengthLimit { tokens: full.tokens.len() - 4, too_long: TooLong::Shrink };
    let settings = ExampleSettings { length: Some(limit), ..ExampleSettings::default() };
    let small = example(&record, &settings).unwrap();
    assert!(small.tokens.len() <= limit.tokens && small.grids != full.grids);
    for made in [&full, &small] {
        let [_, height, width] = made.grids[0].map(|patches| patches * 14);
        assert_eq!(answer(made), format!("[0, 0, {width}, {height}]"));
    }
}

#[test]
fn boxes_are_drawn_where_the_model_is_told_they_are() {
    let objects = json!({"bbox": [[153.25, 100.25, 459.75, 300.75]]});
    let record = record("drawn", row("<bbox>", objects));
    let (made, processor) = (example(&record, &ExampleSettings::default()).unwrap(), processor());
    let png = drawn_png(&processor, &record.pictures[0], made.grids[0], &[&made.boxes[0]]).unwrap();
    let mut picture = garden_data::Picture::default();
    picture.decode("drawn", &png, 1 << 30).unwrap();
    let [_, height, width] = made.grids[0].map(|patches| patches * 14);
    assert_eq!((picture.width, picture.height), (width, height));
    let at = |x: usize, y: usize| &picture.pixels[3 * (y * width + x)..][..3];
    let [left, top, right, bottom] = [0, 1, 2, 3].map(|place| made.boxes[0].numbers[place] as usize);
    assert_eq!((left, right), (width / 4, 3 * width / 4));
    let red = [255, 40, 40];
    for (x, y) in [(left, top), (right - 1, bottom - 1), (left, bottom - 1), ((left + right) / 2, top)] {
        assert_eq!(at(x, y), red, "{x} {y}");
    }
    for (x, y) in [(left - 1, top), (right, top), (left, bottom), ((left + right) / 2, (top + bottom) / 2)] {
        assert_ne!(at(x, y), red, "{x} {y}");
    }
    let text = Preview::of(&processor, &made).text(garden_data::Paint::Marks);
    assert!(text.contains(&format!("  box [{left}, {top}, {right}, {bottom}] in picture 1 of {width} x {height}, from `objects`: [153.25, 100.25, 459.75, 300.75]\n")), "{text}");
}

#[test]
fn keys_are_counted_before_the_boxes_are_there() {
    let record = record("keys", row("{\"bbox_2d\": <bbox>}", json!({"bbox": [[1, 1, 2, 2]]})));
    let mut keys = KeyCounter::default();
    keys.add_answers(&record.messages);
    assert!(keys.common(0.5).contains("bbox_2d"));
}

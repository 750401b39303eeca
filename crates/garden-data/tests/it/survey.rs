//! Looking through whole datasets: sizes from headers, every kind of problem by its place, limits that no batch exceeds.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use garden_data::{
    Collator, Dataset, Example, ExampleSettings, LengthLimit, MAX_PIXELS, Order, Outcome, ProblemKind, Processor,
    Survey, SurveySettings, TooLong, picture_size,
};
use garden_model::{Batch, Config, Limits};
use serde_json::json;

pub(crate) fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name)
}

fn processor() -> Processor {
    Processor::open(&testdata("tiny-model")).unwrap()
}

fn config() -> Config {
    Config::read(&testdata("tiny-model/config.json")).unwrap()
}

fn survey_with(dataset: &Dataset, example: &ExampleSettings, batch_size: usize, threads: usize) -> Survey {
    let mut done = 0;
    let settings = SurveySettings { example, batch_size, keeps_sizes: false, decodes: false, threads };
    let survey = Survey::of(dataset, &processor(), settings, |rows| done = rows);
    assert_eq!((done, survey.rows), (dataset.len(), dataset.len()));
    survey
}

fn survey(path: &Path) -> Survey {
    survey_with(&Dataset::open(path).unwrap(), &ExampleSettings::default(), 2, 2)
}

/// A folder that goes away.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Scratch {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("survey-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    fn write(&self, name: &str, data: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, data).unwrap();
        path
    }

    pub(crate) fn rows(&self, rows: &[serde_json::Value]) -> PathBuf {
        let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
        self.write("rows.jsonl", lines)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

fn base64(data: &[u8]) -> String {
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in data.chunks(3) {
        let bits = three.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for digit in 0..4 {
            let value = (bits >> (18 - 6 * digit)) & 63;
            text.push(if digit <= three.len() { char::from(alphabet[value as usize]) } else { '=' });
        }
    }
    text
}

/// All pictures of the test data.
fn pictures() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in ["data/datasets/pictures", "data/recorded/pictures", "tiny-model"] {
        let entries = std::fs::read_dir(testdata(folder)).unwrap().map(|entry| entry.unwrap().path());
        let is_picture = |path: &PathBuf| {
            path.extension()
                .is_some_and(|end| ["jpg", "png", "gif", "webp", "bmp", "tif", "tiff"].iter().any(|one| end == *one))
        };
        found.extend(entries.filter(is_picture));
    }
    found.sort();
    found
}

/// A JPEG with so many bytes of application data before its own header.
fn with_far_header(jpeg: &[u8], bytes: usize) -> Vec<u8> {
    let mut data = jpeg[..2].to_vec();
    for start in (0..bytes).step_by(65_000) {
        let length = (bytes - start).min(65_000);
        data.extend([0xff, 0xe2]);
        data.extend(((length + 2) as u16).to_be_bytes());
        data.resize(data.len() + length, 7);
    }
    data.extend(&jpeg[2..]);
    data
}

#[test]
fn sizes_from_headers_are_those_of_whole_files() {
    let scratch = Scratch::new("sizes");
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    for path in pictures() {
        let name = format!("{}-{}", files.len(), path.file_name().unwrap().to_string_lossy());
        files.push((name, std::fs::read(path).unwrap()));
    }
    let gate = std::fs::read(testdata("data/datasets/pictures/gate.jpg")).unwrap();
    for bytes in [60_000, 65_000, 200_000, 1_000_000] {
        files.push((format!("far-{bytes}.jpg"), with_far_header(&gate, bytes)));
    }
    let wrapped = |data: &[u8]| {
        let text = base64(data);
        let lines: Vec<&str> = (0..text.len()).step_by(76).map(|at| &text[at..text.len().min(at + 76)]).collect();
        lines.join("\n")
    };
    let mut rows = Vec::new();
    for (name, data) in &files {
        scratch.write(name, data);
        for image in [
            name.clone(),
            format!("data:image/x;base64,{}", base64(data)),
            format!("data:image/x;base64,{}", wrapped(data)),
        ] {
            rows.push(json!({"prompt": "a", "image": image, "response": "b"}));
        }
    }
    let dataset = Dataset::open(&scratch.rows(&rows)).unwrap();
    assert!(files.len() > 10);
    for row in 0..dataset.len() {
        let (name, data) = &files[row / 3];
        match (picture_size(name, data, MAX_PIXELS), dataset.outline(row, MAX_PIXELS)) {
            (Ok(size), Ok(outline)) => {
                let picture = &outline.pictures[0];
                assert_eq!(
                    (picture.width, picture.height, picture.bytes),
                    (size.0, size.1, data.len() as u64),
                    "{name}"
                );
            }
            (Err(_), Err(_)) => {}
            (whole, header) => panic!("{name}: {whole:?}, {header:?}"),
        }
    }
}

#[test]
fn rows_of_every_format_have_the_same_counts() {
    let expected = survey(&testdata("data/datasets/chat.jsonl"));
    assert_eq!((expected.rows, expected.problem_count, expected.tally.kept), (4, 0, 4));
    assert!(expected.largest.as_ref().unwrap().place.ends_with("chat.jsonl:4"));
    assert_eq!((expected.tokens.count(), expected.image_tokens.count(), expected.pictures.count), (4, 3, 4));
    for name in ["chat_paths.jsonl", "chat_older.jsonl", "sharegpt.json", "snapshot"] {
        let found = survey(&testdata("data/datasets").join(name));
        assert_eq!((found.tally, found.limits, &found.problems), (expected.tally, expected.limits, &expected.problems));
        assert_eq!((found.pictures, &found.tokens), (expected.pictures, &expected.tokens), "{name}");
    }
    for name in [
        "questions.jsonl",
        "questions.json",
        "folder",
        "shards",
        "parquet/snappy.parquet",
        "parquet/zstd.parquet",
        "parquet/pages.parquet",
    ] {
        let found = survey(&testdata("data/datasets").join(name));
        assert!(found.problem_count == 0 && found.tally.kept == found.rows && found.pictures.count > 1, "{name}");
    }
}

#[test]
fn each_kind_of_problem_is_told_by_place_and_field() {
    let scratch = Scratch::new("problems");
    let gate = std::fs::read(testdata("data/datasets/pictures/gate.jpg")).unwrap();
    scratch.write("empty.jpg", "");
    scratch.write("text.jpg", "this is a text");
    scratch.write("cut.jpg", &gate[..100]);
    // A header that claims 60,000 x 60,000 pixels.
    let mut bomb = gate.clone();
    let frame = gate.windows(2).position(|two| two == [0xff, 0xc0] || two == [0xff, 0xc2]).unwrap();
    bomb[frame + 5..frame + 9].copy_from_slice(&[0xea, 0x60, 0xea, 0x60]);
    scratch.write("bomb.jpg", &bomb);
    let with = |image: &str| json!({"prompt": "What?", "image": image, "response": "That."}).to_string();
    let lines = [
        with("empty.jpg"),
        with("text.jpg"),
        with("cut.jpg"),
        with("bomb.jpg"),
        with("missing.jpg"),
        with("https://example.org/a.jpg"),
        with("data:image/png;base64,iVBORw0K*Goo"),
        r#"{"prompt": "What?", "response": 3}"#.to_string(),
        r#"{"prompt": "What?""#.to_string(),
        r#"{"messages": [{"role": "user", "content": "Hello."}]}"#.to_string(),
        r#"{"prompt": "What?", "response": "That."}"#.to_string(),
    ];
    let path = scratch.write("rows.jsonl", lines.join("\n"));
    let found = survey(&path);
    let told: Vec<(usize, &str, &str)> =
        found.problems.iter().map(|problem| (problem.row, problem.field.as_str(), problem.problem.as_str())).collect();
    let expected = [
        ("image", "without bytes"),
        ("image", "names `text.jpg`: this is not a JPEG"),
        ("image", "truncated"),
        ("image", "60000 x 60000 pixels"),
        ("image", "missing.jpg"),
        ("image", "remote URL"),
        ("image", "not usable base64"),
        ("response", "is the number 3"),
        ("", "broken JSON"),
        ("messages", "has no answer"),
    ];
    assert_eq!((found.problem_count, found.tally.kept), (10, 1));
    assert_eq!(found.left_out, (0..10).collect::<Vec<u32>>());
    for (index, (field, part)) in expected.iter().enumerate() {
        let (row, told_field, problem) = told[index];
        assert!((row, told_field) == (index, *field) && problem.contains(part), "{:?}: `{part}`", told[index]);
        assert!(found.problems[index].place.ends_with(&format!("rows.jsonl:{}", index + 1)));
        assert_eq!(found.problems[index].kind, ProblemKind::Unusable);
    }
}

#[test]
fn long_rows_are_counted_whatever_is_done_with_them() {
    let dataset = Dataset::open(&testdata("data/datasets/chat.jsonl")).unwrap();
    let with = |tokens: usize, too_long: TooLong| {
        let length = Some(LengthLimit { tokens, too_long });
        survey_with(&dataset, &ExampleSettings { length, ..ExampleSettings::default() }, 1, 1)
    };
    let most = survey(&testdata("data/datasets/chat.jsonl")).tokens.most() as usize;
    let refused = with(most - 1, TooLong::Refuse);
    assert_eq!((refused.too_long, refused.problem_count, refused.tally.kept), (1, 1, 3));
    assert_eq!(refused.problems[0].kind, ProblemKind::TooLong);
    let dropped = with(most - 1, TooLong::Drop);
    assert_eq!((dropped.too_long, dropped.problem_count, dropped.tally.dropped), (1, 0, 1));
    assert_eq!((&dropped.left_out, &refused.left_out), (&vec![3], &vec![3]));
    let shrunk = with(most - 1, TooLong::Shrink);
    assert_eq!((shrunk.too_long, shrunk.problem_count, shrunk.tally.shrunk), (1, 0, 1));
    assert!(shrunk.limits.tokens < most);
}

#[test]
fn duplicates_and_empty_answers() {
    let scratch = Scratch::new("duplicates");
    let row = |question: &str, answer: &str| json!({"prompt": question, "response": answer});
    let path =
        scratch.rows(&[row("a", "b"), row("a", "c"), row("a", "b"), row("d", " \n"), row("a", "b"), row("d", "")]);
    let found = survey(&path);
    let pairs: Vec<(u32, u32)> = found.duplicates.iter().map(|one| (one.row, one.first)).collect();
    assert_eq!((pairs, found.duplicate_count), (vec![(2, 0), (4, 0)], 2));
    assert_eq!((found.empty_answers, found.empty_answer_count, found.problem_count), (vec![3, 5], 2, 0));
    // The same words about another picture are another row, the same picture by path and as base64 the same.
    let data = |name: &str| std::fs::read(testdata("data/datasets/pictures").join(name)).unwrap();
    scratch.write("one.jpg", data("gate.jpg"));
    scratch.write("copy.jpg", data("gate.jpg"));
    scratch.write("other.png", data("receipt.png"));
    let inline = format!("data:image/jpeg;base64,{}", base64(&data("gate.jpg")));
    let images = ["one.jpg", "other.png", "copy.jpg", &inline];
    let rows: Vec<_> = images.iter().map(|image| json!({"prompt": "a", "image": image, "response": "b"})).collect();
    let pairs: Vec<(u32, u32)> =
        survey(&scratch.rows(&rows)).duplicates.iter().map(|one| (one.row, one.first)).collect();
    assert_eq!(pairs, [(2, 0), (3, 0)]);
}

/// Rows of many sizes, some of them bad.
fn mixed(scratch: &Scratch, count: usize) -> PathBuf {
    let gate = testdata("data/datasets/pictures/gate.jpg").canonicalize().unwrap();
    let receipt = testdata("data/datasets/pictures/receipt.png").canonicalize().unwrap();
    let row = |number: usize| {
        let images = &[&gate, &receipt, &gate][..number * 7 % 4];
        let answer = "word ".repeat(number * 13 % 17);
        match number % 23 {
            5 => json!({"prompt": "What?", "image": "missing.jpg", "response": "That."}),
            _ => json!({"prompt": format!("Question {}?", number % 2), "images": images, "response": answer}),
        }
    };
    scratch.rows(&(0..count).map(row).collect::<Vec<_>>())
}

#[test]
fn the_same_on_any_number_of_threads() {
    let scratch = Scratch::new("threads");
    let dataset = Dataset::open(&mixed(&scratch, 333)).unwrap();
    let one = survey_with(&dataset, &ExampleSettings::default(), 3, 1);
    assert!(one.problem_count > 10 && one.duplicate_count > 0 && one.empty_answer_count > 0);
    for threads in [2, 5] {
        assert_eq!(survey_with(&dataset, &ExampleSettings::default(), 3, threads), one);
    }
}

#[test]
fn no_batch_exceeds_the_limits() {
    let scratch = Scratch::new("limits");
    let dataset = Dataset::open(&mixed(&scratch, 60)).unwrap();
    let (processor, config) = (processor(), config());
    for batch_size in [1, 2, 5] {
        let found = survey_with(&dataset, &ExampleSettings::default(), batch_size, 2);
        let mut reached = Limits::default();
        for epoch in 0..3 {
            let order = Order::new(dataset.len(), 42);
            let rows: Vec<usize> = (0..dataset.len())
                .map(|position| order.at(epoch, position))
                .filter(|row| found.left_out.binary_search(&(*row as u32)).is_err())
                .collect();
            for rows in rows.chunks(batch_size) {
                let mut collator = Collator::new(&processor, found.limits.patches);
                let mut alone = Limits::default();
                for row in rows {
                    let record = dataset.read(*row).unwrap();
                    let Ok(Outcome::Kept(example)) = Example::of(&processor, &record, &ExampleSettings::default())
                    else {
                        panic!("row {row}")
                    };
                    let (tokens, targets) = (example.tokens.len(), example.trained());
                    alone = alone.plus(Limits::of_row(tokens, targets, &example.grids));
                    collator.add(example, &record.pictures).unwrap();
                }
                let (rows, images) = collator.finish();
                let limits = Batch::new(&config, &rows, images).unwrap().limits();
                assert_eq!(limits, alone);
                assert_eq!(limits.max(found.limits), found.limits);
                reached = reached.max(limits);
            }
        }
        if batch_size == 1 {
            assert_eq!(reached, found.limits);
        }
    }
}

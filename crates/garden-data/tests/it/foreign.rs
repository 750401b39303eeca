//! Datasets of other tools (`testdata/data/foreign`): each is trained as its tool would train it, or refused by the field that says otherwise.
//!
//! `NAME.expected` beside a file or folder says what is to come, as its tool's documentation has it: conversations with what is trained in `«»`, or the field
//! that is refused with words of the problem and of the way out. A part that begins with `with FLAGS:` goes that way.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use garden_data::{
    Content, Dataset, Error, Example, ExampleSettings, FieldNames, MAX_PIXELS, Outcome, Part, Processor, Record,
};
use garden_model::IGNORED;

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name)
}

/// The name of a picture, by its bytes.
fn picture_name(data: &[u8]) -> &'static str {
    let names = ["gate.jpg", "receipt.png"];
    let is_it = |name: &&str| std::fs::read(testdata("data/datasets/pictures").join(name)).unwrap() == data;
    names.into_iter().find(is_it).unwrap_or("another picture")
}

/// A conversation as text: pictures by name, and answers that are trained in `«»`.
fn told(record: &Record, example: &Example) -> String {
    let mut pictures = record.pictures.iter().map(|picture| picture_name(&picture.data));
    let mut answers = example.answers.iter();
    let mut text = String::new();
    for message in &record.messages {
        let mut words = String::new();
        match &message.content {
            Content::Absent => {}
            Content::Text(text) => words += text,
            Content::Parts(parts) => parts.iter().for_each(|part| match part {
                Part::Text(text) => words += text,
                Part::Image => write!(words, "[{}]", pictures.next().unwrap()).unwrap(),
            }),
        }
        let words = words.replace('\n', "\n  ");
        let is_trained = message.role == "assistant"
            && answers.next().unwrap().clone().any(|token| example.labels[token] != IGNORED);
        let words = if is_trained { format!("«{words}»") } else { words };
        writeln!(text, "{}: {words}", message.role).unwrap();
    }
    assert!(pictures.next().is_none());
    text
}

/// What is refused, and why.
struct Refusal {
    field: String,
    problem: String,
    hint: String,
}

impl Refusal {
    fn of(error: Error) -> Refusal {
        let hint = error.hint().unwrap_or_default().to_string();
        match error {
            Error::Row { field, problem, .. } => Refusal { field, problem, hint },
            other => Refusal { field: String::new(), problem: other.to_string(), hint },
        }
    }
}

fn read(dataset: &Dataset, processor: &Processor, row: usize) -> Result<String, Error> {
    let record = dataset.read(row)?;
    let Outcome::Kept(example) = Example::of(processor, &record, &ExampleSettings::default())? else { unreachable!() };
    let ignored: BTreeSet<String> = dataset.outline(row, MAX_PIXELS)?.ignored.into_iter().collect();
    let mut text = told(&record, &example);
    if !ignored.is_empty() {
        writeln!(text, "unused: {}", ignored.into_iter().collect::<Vec<_>>().join(" ")).unwrap();
    }
    Ok(text)
}

/// The first line of a block, and the others.
type Block<'a> = (&'a str, Vec<&'a str>);

/// The flags of a part, and its blocks.
fn parts(expected: &str) -> Vec<(FieldNames, Vec<Block<'_>>)> {
    let mut parts = vec![(FieldNames::default(), Vec::new())];
    for block in expected.split("\n\n") {
        let mut lines = block.lines().filter(|line| !line.starts_with('#')).peekable();
        if let Some(flags) = lines.peek().and_then(|line| line.strip_prefix("with ")) {
            lines.next();
            parts.push((names(flags), Vec::new()));
        }
        if let Some(first) = lines.next() {
            parts.last_mut().unwrap().1.push((first, lines.collect()));
        }
    }
    parts
}

fn names(flags: &str) -> FieldNames {
    let words: Vec<&str> = flags.split(' ').collect();
    let mut names = FieldNames::default();
    for pair in words.chunks(2) {
        match pair {
            ["--field", given] => names.meanings = given.parse().unwrap(),
            ["--ignore-field", given] => names.ignored = given.parse().unwrap(),
            other => panic!("{other:?}"),
        }
    }
    names
}

/// Differences between a refusal and the words that it should have.
fn missing(refusal: &Refusal, lines: &[&str]) -> Vec<String> {
    let mut missing = Vec::new();
    for line in lines {
        let (text, words) = match line.split_once(": ").unwrap() {
            ("problem", words) => (&refusal.problem, words),
            ("hint", words) => (&refusal.hint, words),
            other => panic!("{other:?}"),
        };
        if !text.contains(words) {
            missing.push(format!("`{words}` is not in `{text}`"));
        }
    }
    missing
}

/// What is wrong about one file.
fn differences(processor: &Processor, path: &Path, expected: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for (names, blocks) in parts(expected) {
        let opened = Dataset::open_named(path, "train", None, &names);
        for (first, lines) in blocks {
            let (dataset, row) = match (&opened, first.strip_prefix("row ")) {
                (Err(error), None) => {
                    let hint = error.hint().unwrap_or_default().to_string();
                    let refusal = Refusal { field: String::new(), problem: error.to_string(), hint };
                    wrong.extend(missing(&refusal, &lines));
                    continue;
                }
                (Ok(_), None) => {
                    wrong.push("is opened".into());
                    continue;
                }
                (Err(error), Some(_)) => {
                    wrong.push(format!("is not opened: {error}"));
                    continue;
                }
                (Ok(dataset), Some(row)) => (dataset, row),
            };
            let (number, refused) =
                row.split_once(" refused ").map_or((row, None), |(number, field)| (number, Some(field)));
            let found = read(dataset, processor, number.parse::<usize>().unwrap() - 1);
            match (found, refused) {
                (Ok(text), None) => {
                    let lines = lines.join("\n") + "\n";
                    wrong.extend((text != lines).then(|| format!("row {number} is\n{text}instead of\n{lines}")));
                }
                (Err(error), Some(field)) => {
                    let refusal = Refusal::of(error);
                    if format!("`{}`", refusal.field) != field {
                        wrong.push(format!(
                            "row {number} is refused by `{}` and not {field}: {}",
                            refusal.field, refusal.problem
                        ));
                    }
                    wrong.extend(missing(&refusal, &lines).into_iter().map(|one| format!("row {number}: {one}")));
                }
                (Ok(text), Some(field)) => wrong.push(format!("row {number} is not refused by {field} but\n{text}")),
                (Err(error), None) => wrong.push(format!("row {number} is refused: {error} ({:?})", error.hint())),
            }
        }
    }
    wrong
}

#[test]
fn datasets_of_other_tools_are_trained_as_there_or_refused() {
    let processor = Processor::open(&testdata("tiny-model")).unwrap();
    let folder = testdata("data/foreign");
    let mut names: Vec<String> =
        std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let (mut seen, mut wrong) = (0, String::new());
    for name in names.iter().filter(|name| !name.ends_with(".expected")) {
        let expected = std::fs::read_to_string(folder.join(format!("{name}.expected"))).unwrap();
        for one in differences(&processor, &folder.join(name), &expected) {
            writeln!(wrong, "{name}: {one}").unwrap();
        }
        seen += 1;
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(seen >= 40, "{seen}");
}

/// The commands that convert what is not read are tried: what they write is read.
#[test]
fn commands_of_hints_convert() {
    if std::process::Command::new("python3").arg("--version").output().is_err() {
        return garden_testing::missing("python3");
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("foreign-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for (name, rows, made) in [
        ("table.csv", 1, "table.jsonl"),
        ("coco-captions.json", 1, "coco-captions.jsonl"),
        ("coco-instances.json", 1, "coco-instances.jsonl"),
        ("imagefolder-csv", 1, "imagefolder-csv"),
        ("classes", 2, "classes"),
        ("captions-beside", 1, "captions-beside"),
        ("wrapped.json", 1, "wrapped.rows.json"),
    ] {
        let (from, to) = (testdata("data/foreign").join(name), folder.join(name));
        let copied = std::process::Command::new("cp").arg("-r").arg(&from).arg(&to).status().unwrap();
        assert!(copied.success());
        let error = Dataset::open(&to).unwrap_err();
        let hint = error.hint().unwrap();
        let command =
            hint.split('`').find(|piece| piece.starts_with("python3")).unwrap_or_else(|| panic!("{name}: {hint}"));
        let ran = std::process::Command::new("sh").args(["-c", command]).output().unwrap();
        assert!(ran.status.success(), "{command}\n{}", String::from_utf8_lossy(&ran.stderr));
        let dataset = Dataset::open(&folder.join(made)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(dataset.len(), rows, "{name}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

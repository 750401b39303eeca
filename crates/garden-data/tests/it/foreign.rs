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

/// The commands that convert what is not read are tried: the first row of what they write is compared.
#[test]
fn commands_of_hints_convert() {
    if std::process::Command::new("python3").arg("--version").output().is_err() {
        return garden_testing::missing("python3");
    }
    let processor = Processor::open(&testdata("tiny-model")).unwrap();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("foreign-{}", std::process::id()));
    let (given, pictures) = (folder.join("foreign"), folder.join("datasets/pictures"));
    // What the rows name lies where they name it.
    let train = given.join("train2017");
    [&given, &pictures, &train].iter().for_each(|folder| std::fs::create_dir_all(folder).unwrap());
    let gate = testdata("data/datasets/pictures/gate.jpg");
    let copies = ["COCO_train2014_000000458752.jpg", "COCO_val2014_000000262148.jpg", "gate.jpg", "train2017/gate.jpg"];
    let copies = copies.map(|name| given.join(name)).into_iter().chain([pictures.join("gate.jpg")]);
    copies.for_each(|copy| assert!(std::fs::copy(&gate, copy).is_ok()));
    let answers = r#"{"annotations": [{"question_id": 458752000, "multiple_choice_answer": "B14"}, {"question_id": 262148000, "multiple_choice_answer": "B14"}]}"#;
    std::fs::write(given.join("ANNOTATIONS.json"), answers).unwrap();
    let boxes = "user: [gate.jpg]Locate every object and answer in JSON.\nassistant: «[{\"bbox_2d\": [1, 2, 31, 42], \"label\": \"sign\"}]»\n";
    let question = "user: [gate.jpg]Which gate?\nassistant: «B14»\n";
    let caption = |caption: &str| format!("user: [gate.jpg]\nassistant: «{caption}»\n");
    let about = "unused: exif height key original_height original_width sha256 status url width\n";
    for (name, made, row) in [
        ("table.csv", "table.jsonl", "user: [gate.jpg]Which gate, please?\nassistant: «B14.»\n".to_string()),
        (
            "semicolons.csv",
            "semicolons.jsonl",
            "user: [gate.jpg]Which gate, please?\nassistant: «B14, I think.»\n".into(),
        ),
        ("coco-captions.json", "coco-captions.jsonl", caption("A sign.")),
        ("coco-instances.json", "coco-instances.jsonl", boxes.into()),
        ("coco-panoptic.json", "coco-panoptic.jsonl", boxes.into()),
        ("lvis.json", "lvis.jsonl", boxes.into()),
        ("vqa-v2-questions.json", "vqa-v2-questions.jsonl", question.into()),
        ("vqa-v2-val-questions.json", "vqa-v2-val-questions.jsonl", question.into()),
        ("imagefolder-csv", "imagefolder-csv", caption("A sign, at an airport.")),
        ("imagefolder-csv-and-json", "imagefolder-csv-and-json", caption("A sign.")),
        ("img2dataset-files", "img2dataset-files", caption("A sign at an airport.") + about),
        ("captions-beside", "captions-beside", caption("A sign at an airport.")),
    ] {
        convert(&given, name);
        let dataset = Dataset::open(&given.join(made)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(dataset.len(), 1, "{name}");
        assert_eq!(read(&dataset, &processor, 0).unwrap(), row, "{name}");
    }
    convert(&given, "classes");
    let dataset = Dataset::open(&given.join("classes")).unwrap();
    let rows = [0, 1].map(|row| read(&dataset, &processor, row).unwrap());
    assert_eq!(rows[0], "user: [receipt.png]What does the picture show?\nassistant: «receipt»\n");
    assert_eq!(rows[1], "user: [gate.jpg]What does the picture show?\nassistant: «sign»\n");
    convert(&given, "wrapped.json");
    let error = Dataset::open(&given.join("wrapped.rows.json")).unwrap().read(0).unwrap_err();
    assert!(error.to_string().contains("`question` has no answer"), "{error}");
    // A command that fails leaves no file.
    std::fs::remove_file(given.join("ANNOTATIONS.json")).unwrap();
    std::fs::remove_file(given.join("vqa-v2-questions.jsonl")).unwrap();
    assert!(!run(&given, &command(&given.join("vqa-v2-questions.json"))).status.success());
    assert!(!given.join("vqa-v2-questions.jsonl").exists());
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Copies a dataset that is not read into a folder, and runs the command of its message there.
fn convert(folder: &Path, name: &str) {
    let to = folder.join(name);
    let copied = std::process::Command::new("cp").arg("-r").arg(testdata("data/foreign").join(name)).arg(&to).status();
    assert!(copied.unwrap().success());
    let command = command(&to);
    let ran = run(folder, &command);
    assert!(ran.status.success(), "{command}\n{}", String::from_utf8_lossy(&ran.stderr));
}

/// The command in the message about a dataset that is not read.
fn command(dataset: &Path) -> String {
    let error = Dataset::open(dataset).unwrap_err();
    let hint = error.hint().unwrap();
    let command = hint.split('`').find(|piece| piece.starts_with("python3"));
    command.unwrap_or_else(|| panic!("{}: {hint}", dataset.display())).to_string()
}

fn run(folder: &Path, command: &str) -> std::process::Output {
    std::process::Command::new("sh").args(["-c", command]).current_dir(folder).output().unwrap()
}

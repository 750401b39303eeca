//! Rows in the shapes that people publish: each is trained as transformers and TRL train it (`testdata/data/rows.py`), or refused by the name of the field.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use garden_data::{Dataset, Error, Example, ExampleSettings, Outcome, Processor, Survey, SurveySettings, TemplateFile};
use garden_model::IGNORED;
use serde_json::Value;

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name)
}

fn processor(template: &str) -> Processor {
    let template = TemplateFile::read(&testdata(&format!("data/recorded/templates/{template}.jinja"))).unwrap();
    Processor::open_with(&testdata("tiny-model"), Some(&template)).unwrap()
}

/// What was recorded of each row, and the row as a dataset of its own: pictures are found beside it. `GARDEN_ROWS` is a folder with others.
fn each_row(mut check: impl FnMut(&str, &Value, &Dataset)) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!(
        "rows-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    std::fs::create_dir_all(&folder).unwrap();
    std::os::unix::fs::symlink(testdata("data/recorded/pictures").canonicalize().unwrap(), folder.join("pictures"))
        .unwrap();
    let given = std::env::var_os("GARDEN_ROWS").map_or_else(|| testdata("data/recorded"), PathBuf::from);
    let recorded: Vec<Value> =
        serde_json::from_str(&std::fs::read_to_string(given.join("rows.json")).unwrap()).unwrap();
    let rows = std::fs::read_to_string(given.join("rows.jsonl")).unwrap();
    assert_eq!(rows.lines().count(), recorded.len());
    for (row, recorded) in rows.lines().zip(&recorded) {
        let file = folder.join("row.jsonl");
        std::fs::write(&file, row).unwrap();
        check(row, recorded, &Dataset::open(&file).unwrap());
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

fn example(processor: &Processor, dataset: &Dataset) -> Result<Example, Error> {
    let record = dataset.read(0)?;
    match Example::of(processor, &record, &ExampleSettings::default())? {
        Outcome::Kept(example) => Ok(example),
        Outcome::Dropped(_) => unreachable!(),
    }
}

#[test]
fn rows_are_trained_as_transformers_and_trl_train_them() {
    let mut seen = 0;
    each_row(|row, recorded, dataset| {
        let Some(tokens) = recorded.get("tokens") else { return };
        let processor = processor(recorded["template"].as_str().unwrap());
        let example = example(&processor, dataset).unwrap_or_else(|error| panic!("{row}: {error}"));
        let text = |tokens: &[i32]| processor.tokenizer.decode(tokens, garden_data::SpecialTokens::Keep);
        let tokens: Vec<i32> = serde_json::from_value(tokens.clone()).unwrap();
        assert_eq!(text(&example.tokens), text(&tokens), "{row}");
        assert_eq!(example.tokens, tokens, "{row}");
        let trained: String = example.labels.iter().map(|label| if *label == IGNORED { '0' } else { '1' }).collect();
        assert_eq!(trained, recorded["trained"].as_str().unwrap(), "{row}\n{}", text(&tokens));
        seen += 1;
    });
    assert!(seen > 10);
}

#[test]
fn what_would_be_lost_is_refused_by_the_name_of_its_field() {
    let mut seen = 0;
    each_row(|row, recorded, dataset| {
        let Some(field) = recorded.get("refused") else { return };
        let processor = processor(recorded["template"].as_str().unwrap());
        match example(&processor, dataset) {
            Err(Error::Row { field: found, place, problem, .. }) => {
                assert!(place.ends_with("row.jsonl:1"), "{place}");
                assert_eq!(found, field.as_str().unwrap(), "{row}: {problem}");
            }
            other => panic!("{row}: {other:?}"),
        }
        seen += 1;
    });
    assert!(seen > 20);
}

#[test]
fn what_nothing_reads_is_listed() {
    each_row(|row, recorded, dataset| {
        let Some(ignored) = recorded.get("ignored") else { return };
        let processor = processor(recorded["template"].as_str().unwrap());
        let example = ExampleSettings::default();
        let settings =
            SurveySettings { example: &example, batch_size: 1, keeps_sizes: false, decodes: false, threads: 1 };
        let survey = Survey::of(dataset, &processor, settings, |_| {});
        let fields: Vec<&str> = survey.ignored.iter().map(|one| one.field.as_str()).collect();
        assert_eq!(Value::from(fields), *ignored, "{row}");
        assert!(survey.ignored.iter().all(|one| one.rows == 1 && one.first.ends_with("row.jsonl:1")));
    });
}

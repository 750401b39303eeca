//! Micro-batches are what their rows are, one after the other, whatever the number of threads; bad rows stop or are counted.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use garden_data::{
    Ahead, BadRow, Batches, Collator, Dataset, Example, ExampleSettings, Loader, LoaderBuffers, LoaderSettings,
    Outcome, Processor,
};

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name)
}

fn processor() -> Arc<Processor> {
    Arc::new(Processor::open(&testdata("tiny-model")).unwrap())
}

/// Rows with pictures of several sizes, and rows without.
fn dataset(folder: &Path, rows: usize, broken: &[usize]) -> Arc<Dataset> {
    let pictures: Vec<PathBuf> = std::fs::read_dir(testdata("data/recorded/pictures"))
        .unwrap()
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "jpg" || ending == "png"))
        .collect();
    let line = |row: usize| {
        let text = format!("What is in picture {row}?");
        let image = match row % 4 {
            3 => serde_json::Value::Null,
            _ => pictures[row % pictures.len()].to_str().unwrap().into(),
        };
        let mut line = serde_json::json!({"prompt": text, "response": format!("number {row}")});
        if broken.contains(&row) {
            line["image"] = "nowhere.png".into();
        } else if !image.is_null() {
            line["image"] = image;
        }
        line.to_string() + "\n"
    };
    std::fs::create_dir_all(folder).unwrap();
    let path = folder.join("train.jsonl");
    std::fs::write(&path, (0..rows).map(line).collect::<String>()).unwrap();
    Arc::new(Dataset::open(&path).unwrap())
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("loader-{name}"))
}

fn settings(patches: usize, threads: usize, bytes: usize, bad_row: BadRow) -> LoaderSettings {
    let (example, tokens) = (ExampleSettings::default(), 1 << 14);
    LoaderSettings { example, bad_row, patches, tokens, ahead: Ahead { threads, bytes } }
}

#[test]
fn micro_batches_are_what_their_rows_are() {
    let (processor, dataset) = (processor(), dataset(&folder("same"), 30, &[]));
    let batches = Batches::new(30, [4, 17].into(), 4, Some(3));
    let numbers = 5..19;
    let mut expected = Vec::new();
    let mut collator = Collator::new(&processor, 1 << 14);
    for number in numbers.clone() {
        for row in batches.rows(number) {
            let record = dataset.read(row).unwrap();
            let Outcome::Kept(example) = Example::of(&processor, &record, &ExampleSettings::default()).unwrap() else {
                panic!("nothing is dropped")
            };
            collator.add(example, &record.pictures).unwrap();
        }
        expected.push(collator.finish());
    }
    for (threads, bytes) in [(1, 1), (2, 1 << 27), (5, 1 << 28)] {
        let settings = settings(1 << 14, threads, bytes, BadRow::Stop);
        let mut loader = Loader::new(dataset.clone(), processor.clone(), batches.clone(), settings, numbers.clone());
        for (number, (rows, images)) in numbers.clone().zip(&expected) {
            let found = loader.next().unwrap().unwrap();
            assert_eq!((found.number, &found.rows, found.images == *images), (number, rows, true));
            loader.give_back(found.images.pixels);
        }
        assert!(loader.next().is_none());
    }
}

#[test]
fn a_bad_row_stops_or_is_counted() {
    let (processor, dataset) = (processor(), dataset(&folder("bad"), 8, &[5]));
    let batches = Batches::new(8, [].into(), 2, None);
    let load = |bad_row| {
        let settings = settings(1 << 14, 2, 1 << 27, bad_row);
        Loader::new(dataset.clone(), processor.clone(), batches.clone(), settings, 0..4)
    };
    let error = load(BadRow::Stop).nth(2).unwrap().unwrap_err();
    assert!(error.to_string().contains("train.jsonl:6`: field `image` names"), "{error}");
    let made: Vec<_> = load(BadRow::Skip).map(Result::unwrap).collect();
    let counts: Vec<_> = made.iter().map(|batch| (batch.rows.len(), batch.skipped.len())).collect();
    assert_eq!(counts, [(2, 0), (2, 0), (1, 1), (2, 0)]);
    assert_eq!(made[2].skipped[0].row, 5);
}

#[test]
fn a_row_that_became_longer_than_was_planned_is_bad() {
    let (processor, dataset) = (processor(), dataset(&folder("longer"), 4, &[]));
    let batches = Batches::new(4, [].into(), 2, None);
    let tokens = |batch: &garden_data::MicroBatch| batch.rows.iter().map(|row| row.tokens.len()).sum::<usize>();
    let load = |most: usize, bad_row| {
        let settings = LoaderSettings { tokens: most, ..settings(1 << 14, 1, 1 << 27, bad_row) };
        Loader::new(dataset.clone(), processor.clone(), batches.clone(), settings, 0..2)
    };
    let most = load(1 << 14, BadRow::Stop).map(|made| tokens(&made.unwrap())).max().unwrap();
    assert!(load(most, BadRow::Stop).all(|made| made.is_ok()));
    let made: Vec<_> = load(most - 1, BadRow::Skip).map(Result::unwrap).collect();
    let skipped: Vec<String> =
        made.iter().flat_map(|batch| &batch.skipped).map(|skipped| skipped.error.to_string()).collect();
    assert!(!skipped.is_empty() && made.iter().all(|batch| tokens(batch) < most), "{skipped:?}");
    let words = format!("makes a micro-batch of {most} tokens; {} were planned before step 1", most - 1);
    assert!(skipped[0].contains("train.jsonl:") && skipped[0].contains(&words), "{skipped:?}");
}

#[test]
fn room_is_buffers_of_the_largest_micro_batch() {
    let processor = processor();
    let values = processor.images.patch_values() * 4;
    let of = |patches, threads, bytes| LoaderBuffers::of(&processor, (patches, 10), Ahead { threads, bytes });
    // One waits and one is in use, even if nothing may wait; more only where there is room, and a few for each thread.
    let least = LoaderBuffers { buffers: 2, buffer_bytes: 100 * values, waiting: 1, row_bytes: 80 };
    assert_eq!(of(100, 2, 0), least);
    assert_eq!(of(100, 2, 350 * values).buffers, 4);
    assert_eq!(of(100, 1, 1 << 40).buffers, 5);
    // Rows without pictures wait, too, and no more of them.
    let texts = of(0, 2, 1 << 30);
    assert_eq!((texts.bytes(), texts.waiting, texts.token_bytes(Ahead { threads: 2, bytes: 1 << 30 })), (0, 8, 800));
    assert_eq!(of(0, 2, 200).waiting, 2);
}

#[test]
fn micro_batches_of_texts_wait_in_small_numbers() {
    let folder = folder("texts");
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("train.jsonl");
    let line = |row: usize| format!("{{\"prompt\": \"{row}\", \"response\": \"{}\"}}\n", row * 3);
    std::fs::write(&path, (0..400).map(line).collect::<String>()).unwrap();
    let dataset = Arc::new(Dataset::open(&path).unwrap());
    let batches = Batches::new(400, [].into(), 2, None);
    let loader = Loader::new(dataset, processor(), batches, settings(0, 2, 1 << 28, BadRow::Stop), 0..200);
    // Nobody takes one: it must not go on to the memory that pictures may have.
    let begin = std::time::Instant::now();
    while loader.waiting() < 8 && begin.elapsed().as_secs() < 30 {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_eq!(loader.waiting(), 8);
}

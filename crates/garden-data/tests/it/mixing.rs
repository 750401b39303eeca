//! Several datasets: joined they are one file with all their rows, samples are drawn by the seed, and weights are kept at every position.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use garden_data::{
    Batches, Dataset, Error, ExampleSettings, FieldNames, Mixture, Order, Processor, Source, Survey, SurveySettings,
};
use garden_input::Limits;

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name)
}

fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("mixing-{name}"));
    drop(std::fs::remove_dir_all(&path));
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// A file of rows that differ in their length.
fn rows(folder: &Path, name: &str, count: usize) -> PathBuf {
    let line = |row: usize| {
        let answer = "word ".repeat(1 + row * 7 % 23);
        format!("{}\n", serde_json::json!({"prompt": format!("{name} {row}?"), "response": answer.trim()}))
    };
    let path = folder.join(format!("{name}.jsonl"));
    std::fs::write(&path, (0..count).map(line).collect::<String>()).unwrap();
    path
}

fn sources(paths: &[PathBuf], most: &[Option<usize>]) -> Vec<Source> {
    let most = |place: usize| most.get(place).copied().flatten();
    let source =
        |(place, path): (usize, &PathBuf)| Source { path: path.clone(), split: "train".into(), most: most(place) };
    paths.iter().enumerate().map(source).collect()
}

fn joined(paths: &[PathBuf], most: &[Option<usize>], seed: u64) -> Result<Dataset, Error> {
    Dataset::open_all(&sources(paths, most), None, &FieldNames::default(), seed)
}

/// What a row says and shows.
fn said(dataset: &Dataset) -> Vec<String> {
    let said = |index| {
        let record = dataset.read(index).unwrap();
        let pictures: Vec<usize> = record.pictures.iter().map(|picture| picture.data.len()).collect();
        format!("{:?} {pictures:?}", record.messages)
    };
    (0..dataset.len()).map(said).collect()
}

fn surveyed(dataset: &Dataset, batch_size: usize) -> Survey {
    let processor = Processor::open(&testdata("tiny-model")).unwrap();
    let example = ExampleSettings::default();
    let settings = SurveySettings { example: &example, batch_size, keeps_sizes: true, decodes: false, threads: 2 };
    Survey::of(dataset, &processor, settings, |_| {})
}

#[test]
fn joined_datasets_are_what_one_file_with_all_rows_is() {
    let folder = folder("joined");
    let (one, two) = (rows(&folder, "one", 40), rows(&folder, "two", 7));
    let both = folder.join("both.jsonl");
    std::fs::write(&both, [std::fs::read(&one).unwrap(), std::fs::read(&two).unwrap()].concat()).unwrap();
    let (joined, both) = (joined(&[one, two], &[], 1).unwrap(), Dataset::open(&both).unwrap());
    assert_eq!(said(&joined), said(&both));
    let (found, expected) = (surveyed(&joined, 3), surveyed(&both, 3));
    assert_eq!(
        (found.fingerprint, found.limits, &found.sizes),
        (expected.fingerprint, expected.limits, &expected.sizes)
    );
    let each: Vec<(usize, usize)> = found.portions.iter().map(|portion| (portion.rows, portion.kept)).collect();
    assert_eq!(each, [(40, 40), (7, 7)]);
    assert!(found.portions[0].fingerprint != found.portions[1].fingerprint);
    let tokens: u64 = found.portions.iter().map(|portion| portion.tokens).sum();
    assert_eq!(tokens, expected.tally.tokens as u64);
    assert_eq!((joined.files(), joined.index_bytes()), (2, both.index_bytes()));
    assert!(joined.place(40).ends_with("two.jsonl:1"), "{}", joined.place(40));
}

#[test]
fn every_format_is_joined_with_every_other() {
    let data = testdata("data/datasets");
    let names =
        ["questions.jsonl", "chat.jsonl", "sharegpt.json", "parquet/snappy.parquet", "parquet/pages.parquet", "shards"];
    let paths: Vec<PathBuf> = names.iter().map(|name| data.join(name)).collect();
    for one in &paths {
        for two in paths.iter().filter(|two| *two != one) {
            let joined = joined(&[one.clone(), two.clone()], &[], 0).unwrap();
            let expected = [said(&Dataset::open(one).unwrap()), said(&Dataset::open(two).unwrap())].concat();
            assert_eq!(said(&joined), expected, "{} and {}", one.display(), two.display());
            // Not only from front to back.
            let last = joined.read(joined.len() - 1).unwrap().messages;
            assert_eq!(joined.read(0).unwrap().messages, Dataset::open(one).unwrap().read(0).unwrap().messages);
            assert_eq!(joined.read(joined.len() - 1).unwrap().messages, last);
        }
    }
}

#[test]
fn a_sample_is_drawn_by_the_seed_and_grows_with_its_size() {
    let folder = folder("sample");
    let (one, two) = (rows(&folder, "one", 100), rows(&folder, "two", 100));
    let drawn = |most: &[Option<usize>], seed: u64| -> Vec<String> {
        let dataset = joined(&[one.clone(), two.clone()], most, seed).unwrap();
        (0..dataset.len()).map(|row| dataset.place(row).rsplit('/').next().unwrap().to_string()).collect()
    };
    let some = drawn(&[Some(10), Some(20)], 7);
    assert_eq!(some.iter().filter(|place| place.starts_with("one")).count(), 10);
    assert_eq!(some.len(), 30);
    assert_eq!(some, drawn(&[Some(10), Some(20)], 7));
    assert_ne!(some, drawn(&[Some(10), Some(20)], 8));
    // They are in stored order, and not only the first rows.
    let line = |place: &String| place.rsplit(':').next().unwrap().parse::<usize>().unwrap();
    let lines: Vec<usize> = some[..10].iter().map(line).collect();
    assert!(lines.is_sorted() && lines[9] > 10, "{lines:?}");
    // Files that belong together do not lose the same lines.
    let equal = drawn(&[Some(10), Some(10)], 7);
    assert_ne!(equal[..10].iter().map(line).collect::<Vec<_>>(), equal[10..].iter().map(line).collect::<Vec<_>>());
    let more = drawn(&[Some(50), Some(20)], 7);
    assert!(some.iter().all(|place| more.contains(place)), "a larger sample contains the smaller one");
    // A bound beyond the rows takes all of them.
    assert_eq!(drawn(&[Some(100), Some(1000)], 7), drawn(&[], 7));
    // Each row is drawn about as often as any other: 10 of 100 for 200 seeds is 20 each, with a variance of 18.
    let mut counts = [0u32; 100];
    for seed in 0..200 {
        drawn(&[Some(10), Some(1)], seed)[..10].iter().for_each(|place| counts[line(place) - 1] += 1);
    }
    let chi: f64 = counts.iter().map(|count| (f64::from(*count) - 20.0).powi(2) / 18.0).sum();
    // 99 degrees of freedom: 149 is exceeded once in a thousand, 62 fallen short of as rarely.
    assert!((62.0..149.0).contains(&chi), "{chi}");
    let dataset = joined(&[one.clone(), two], &[Some(10), None], 7).unwrap();
    let whole = Dataset::open(&one).unwrap().index_bytes();
    assert_eq!(dataset.index_bytes(), 2 * whole + 4 * 110);
    let portions: Vec<(usize, usize)> = dataset.portions().iter().map(|of| (of.stored, of.rows)).collect();
    assert_eq!(portions, [(100, 10), (100, 100)]);
}

#[test]
fn the_same_file_twice_is_refused_however_it_is_named() {
    let folder = folder("twice");
    let (one, inside) = (rows(&folder, "one", 3), folder.join("inside"));
    std::fs::create_dir_all(&inside).unwrap();
    let (two, linked) = (rows(&inside, "two", 3), folder.join("linked.jsonl"));
    std::os::unix::fs::symlink(&one, &linked).unwrap();
    let roundabout = inside.join("../one.jsonl");
    for (first, second) in [(&one, &one), (&one, &linked), (&roundabout, &one), (&inside, &two), (&two, &inside)] {
        let error = joined(&[first.clone(), second.clone()], &[], 0).unwrap_err();
        assert!(error.to_string().contains(&format!("dataset `{}`: is given twice", second.display())), "{error}");
        assert!(error.hint().unwrap().contains("--dataset-weights"));
    }
    // A copy is another file: `check` counts its rows as duplicates.
    let copy = folder.join("copy.jsonl");
    std::fs::copy(&one, &copy).unwrap();
    assert_eq!(surveyed(&joined(&[one, copy], &[], 0).unwrap(), 2).duplicate_count, 3);
}

#[test]
fn what_other_tools_take_for_several_datasets_gets_a_hint() {
    let folder = folder("hint");
    let (one, two) = (rows(&folder, "one", 3), rows(&folder, "two", 3));
    let (one, two) = (one.display(), two.display());
    let hint = |name: String| Dataset::open(Path::new(&name)).unwrap_err().hint().map(str::to_string);
    assert_eq!(hint(format!("{one}#500")), Some(format!("use `--dataset {one}` with `--max-samples 500`")));
    let both = Some(format!("pass each dataset by itself: `--dataset {one} --dataset {two}`"));
    assert_eq!(hint(format!("{one},{two}")), both);
    assert_eq!(hint(format!("{one},{two}.gone")), None);
}

/// Rows of each dataset that come in a stretch of positions.
fn counts(mixture: &Mixture, rows: &[usize], epoch: u64, positions: std::ops::Range<usize>) -> Vec<usize> {
    let ends: Vec<usize> = rows
        .iter()
        .scan(0, |sum, rows| {
            *sum += rows;
            Some(*sum)
        })
        .collect();
    let mut counts = vec![0; rows.len()];
    positions.for_each(|position| counts[ends.partition_point(|end| *end <= mixture.at(epoch, position))] += 1);
    counts
}

const MIXTURES: [(&[usize], &[f64]); 8] = [
    (&[1000, 100], &[0.5, 0.5]),
    (&[1000, 100], &[1000.0, 100.0]),
    (&[10, 1], &[1.0, 2.0]),
    (&[1, 1], &[3.0, 2.0]),
    (&[37, 411, 5], &[0.2, 0.1, 0.7]),
    (&[300, 200, 100, 50, 1], &[1.0, 1.0, 1.0, 1.0, 0.01]),
    (&[663], &[4.0]),
    (&[2, 997], &[0.001, 0.999]),
];

#[test]
fn weights_are_kept_in_every_epoch_and_at_every_position() {
    for (rows, weights) in MIXTURES {
        for seed in [None, Some(3)] {
            let mixture = Mixture::new(rows, weights, seed);
            let (all, sum): (usize, f64) = (rows.iter().sum(), weights.iter().sum());
            assert_eq!(mixture.len(), all);
            let quotas = mixture.quotas();
            let shares = || quotas.iter().zip(weights).map(|(quota, weight)| (*quota, weight / sum * all as f64));
            assert!(shares().all(|(quota, share)| (quota as f64 - share).abs() < 1.0), "{quotas:?}");
            for epoch in 0..3 {
                assert_eq!(counts(&mixture, rows, epoch, 0..all), quotas);
                // With two datasets, each is behind or ahead of its share by half a row at most; each further one adds half a row.
                let most = (rows.len() - 1) as f64 / 2.0 + 1e-9;
                for end in (1..all).step_by(1 + all / 50) {
                    for (found, quota) in counts(&mixture, rows, epoch, 0..end).into_iter().zip(&quotas) {
                        let due = (quota * end) as f64 / all as f64;
                        assert!((found as f64 - due).abs() <= most, "{rows:?} at {end}: {found}, {due}");
                    }
                }
            }
        }
    }
}

#[test]
fn no_row_comes_again_before_all_of_its_dataset_have_come() {
    for (rows, weights) in MIXTURES {
        for seed in [None, Some(11)] {
            let mixture = Mixture::new(rows, weights, seed);
            let mut first = 0;
            for (place, count) in rows.iter().enumerate() {
                let range = first..first + count;
                first += count;
                let all = (0..4).flat_map(|epoch| (0..mixture.len()).map(move |position| (epoch, position)));
                let draws: Vec<usize> = all
                    .map(|(epoch, position)| mixture.at(epoch, position))
                    .filter(|row| range.contains(row))
                    .collect();
                for pass in draws.chunks(*count) {
                    let mut sorted = pass.to_vec();
                    sorted.sort_unstable();
                    sorted.dedup();
                    assert_eq!(sorted.len(), pass.len(), "dataset {place} of {rows:?}");
                    if seed.is_none() {
                        assert!(pass.is_sorted(), "rows keep their order");
                    }
                }
                let passes: Vec<&[usize]> = draws.chunks_exact(*count).collect();
                let differ = passes.windows(2).all(|pair| pair[0] != pair[1]);
                assert!(differ || *count < 10 || seed.is_none(), "each pass has its own order");
            }
        }
    }
}

#[test]
fn one_dataset_with_a_weight_is_that_dataset() {
    let mixed = Batches::mixed(Mixture::new(&[663], &[0.3], Some(42)), [5].into(), 2);
    let plain = Batches::new(664, [5].into(), 2, Some(42));
    assert_eq!((mixed.per_epoch(), mixed.rows_per_epoch()), (plain.per_epoch(), plain.rows_per_epoch()));
    assert!((0..3 * plain.per_epoch()).all(|number| mixed.rows(number) == plain.rows(number)));
    assert_eq!(plain.rows(0)[0], {
        let row = Order::new(663, 42).at(0, 0);
        row + usize::from(row >= 5)
    });
}

#[test]
fn rows_that_are_left_out_never_come_and_a_run_goes_on_where_it_was() {
    // Rows 0 to 9 are of one dataset, 10 to 12 of another; the first of each is left out.
    let batches = || Batches::mixed(Mixture::new(&[9, 2], &[1.0, 1.0], Some(5)), [0, 10].into(), 4);
    let all: Vec<Vec<usize>> = (0..9).map(|number| batches().rows(number)).collect();
    assert!(all.concat().iter().all(|row| *row != 0 && *row != 10 && *row < 13));
    assert_eq!(all.iter().map(Vec::len).collect::<Vec<usize>>(), [4, 4, 3, 4, 4, 3, 4, 4, 3]);
    assert_eq!((3..9).map(|number| batches().rows(number)).collect::<Vec<_>>(), all[3..]);
}

/// Whether one is at most the other in all sizes.
fn within(one: Limits, other: Limits) -> bool {
    one.max(other) == other
}

#[test]
fn no_micro_batch_is_larger_than_the_largest_of_a_mixture() {
    let folder = folder("limits");
    let long = folder.join("long.jsonl");
    let row = |length: usize| format!("{}\n", serde_json::json!({"prompt": "a", "response": "long ".repeat(length)}));
    std::fs::write(&long, row(300)).unwrap();
    let (many, few) = (rows(&folder, "many", 60), rows(&folder, "few", 5));
    let dataset = joined(&[many, few, long], &[], 0).unwrap();
    for batch_size in [1, 3, 8, 70] {
        let survey = surveyed(&dataset, batch_size);
        for weights in [[1.0, 1.0, 1.0], [0.9, 0.05, 0.05], [0.1, 0.2, 0.7], [60.0, 5.0, 1.0]] {
            let mixture = Mixture::new(&[60, 5, 1], &weights, Some(9));
            let planned = survey.limits_of_mixture(&mixture, batch_size);
            let batches = Batches::mixed(mixture, [].into(), batch_size);
            let mut most = Limits::default();
            for number in 0..12 * batches.per_epoch() {
                let sizes =
                    batches.rows(number).iter().map(|row| survey.sizes[*row].tokens as usize).collect::<Vec<_>>();
                most.tokens = most.tokens.max(sizes.iter().sum());
                most.rows = most.rows.max(sizes.len());
            }
            let of_text = Limits { tokens: planned.tokens, rows: planned.rows, ..Limits::default() };
            assert!(within(most, of_text), "{weights:?} by {batch_size}: {most:?} of {planned:?}");
            // The long row fills what it may and no more: without the bound on each dataset it would be planned for each row.
            assert!(
                planned.tokens <= most.tokens + most.tokens / 3,
                "{weights:?} by {batch_size}: {most:?} of {planned:?}"
            );
        }
        // Without weights the long row comes once.
        assert!(within(surveyed(&dataset, batch_size).limits, survey.limits));
    }
}

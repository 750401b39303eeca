//! Several datasets in one run: as one file with all their rows, by weights, in samples; going on after a kill; and what is refused.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on must fail")]

use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;

use crate::common::{picture_rows, run, scratch, told};
use crate::resume::{STEPS, Scene, TRIES, checkpoints, losses, signal};

/// Rows about pictures in a folder of its own.
fn rows(folder: &Path, name: &str, count: usize) -> PathBuf {
    let inside = folder.join(name);
    std::fs::create_dir_all(&inside).unwrap();
    picture_rows(&inside, count, |row| format!("{name} {row}?"))
}

/// Trains on these datasets.
fn train(datasets: &[&Path], output: &Path, more: &[&str]) -> Output {
    let fixed = ["train-vision", "--model", "testdata/tiny-model", "--output-dir", output.to_str().unwrap()];
    let steps = ["--epochs", "1", "--gradient-accumulation", "1", "--warmup-steps", "0"];
    let batch: &[&str] = if more.contains(&"--batch-tokens") { &[] } else { &["--batch-size", "2"] };
    let rate = ["--learning-rate", "5e-3", "--lr-scheduler", "constant", "--threads", "1", "--logging-steps", "1"];
    let small = ["--max-pixels", "12544", "--save-steps", "4", "--eval-answers", "2", "--max-new-tokens", "8"];
    let datasets: Vec<&str> = datasets.iter().flat_map(|path| ["--dataset", path.to_str().unwrap()]).collect();
    run(&[&fixed[..], &steps, batch, &rate, &small, &datasets, more].concat())
}

fn trained(datasets: &[&Path], output: &Path, more: &[&str]) -> Output {
    let ended = train(datasets, output, more);
    assert!(ended.status.success(), "{}", told(&ended));
    ended
}

fn adapter(output: &Path) -> Vec<u8> {
    std::fs::read(output.join("adapter_model.safetensors")).unwrap()
}

#[test]
fn two_datasets_train_as_one_file_with_all_their_rows() {
    let folder = scratch("mixing-joined");
    let (one, two, both) = (rows(&folder, "one", 9), rows(&folder, "two", 6), folder.join("both.jsonl"));
    std::fs::write(&both, [std::fs::read(&one).unwrap(), std::fs::read(&two).unwrap()].concat()).unwrap();
    // With rows held out, with micro-batches by tokens, and in stored order too.
    for (name, flags) in [
        ("plain", &["--epochs", "2"][..]),
        ("split", &["--eval-split", "0.2"]),
        ("tokens", &["--batch-tokens", "300"]),
        ("stored", &["--shuffle", "false"]),
    ] {
        let [joined, whole, last] = ["joined", "whole", "last"].map(|kind| folder.join(format!("{name}-{kind}")));
        trained(&[&one, &two], &joined, flags);
        trained(&[&both], &whole, flags);
        assert_eq!(losses(&joined), losses(&whole), "{name}");
        assert_eq!(adapter(&joined), adapter(&whole), "{name}");
        // As long as only the last dataset counted, this was the same.
        trained(&[&two], &last, flags);
        assert_ne!(adapter(&joined), adapter(&last), "{name}");
    }
    // The order of datasets is that of the rows.
    trained(&[&two, &one], &folder.join("other"), &[]);
    trained(&[&one, &two], &folder.join("same"), &[]);
    assert_ne!(losses(&folder.join("other")), losses(&folder.join("same")));
}

/// Kills guard and trainer in the middle of a run, and goes on.
#[test]
fn a_killed_run_with_weights_and_samples_goes_on_exactly() {
    let scene = Scene::new("mixing-killed");
    // Bigger than a micro-batch, and smaller: the only row of the third dataset comes again within an epoch.
    let (two, one) = (rows(&scene.folder, "two", 40), rows(&scene.folder, "single", 1));
    let datasets = ["--dataset", two.to_str().unwrap(), "--dataset", one.to_str().unwrap()];
    let drawn = ["--dataset-weights", "0.5,0.3,0.2", "--max-samples", "12,11,5"];
    let flags = [&datasets[..], &drawn].concat();
    let [whole, output] = ["whole", "out"].map(|name| scene.folder.join(name));
    let ended = scene.train(&whole, &flags);
    assert!(ended.status.success(), "{}", told(&ended));
    for line in
        ["train.jsonl: 12 rows per epoch (50.0 %), drawn 12 of 24", "5 rows per epoch (20.8 %), 1 different row"]
    {
        assert!(told(&ended).contains(line), "{line}: {}", told(&ended));
    }
    let in_step = || (5..STEPS - 1).contains(&losses(&output).len());
    let caught = (0..TRIES).any(|_| {
        drop(std::fs::remove_dir_all(&output));
        let mut running = scene.start(&output, &flags);
        let Some(worker) = running.halt(&in_step) else { return false };
        signal("-KILL", running.guard.id());
        signal("-KILL", worker);
        true
    });
    assert!(caught && !output.join("result.json").exists());
    let resumed = scene.train(&output, &[&flags[..], &["--resume", "auto"]].concat());
    assert!(resumed.status.success() && told(&resumed).contains("resuming from"), "{}", told(&resumed));
    assert_eq!((losses(&output), adapter(&output)), (losses(&whole), adapter(&whole)));
}

/// A checkpoint of a version that knew of one dataset.
#[test]
fn a_checkpoint_from_before_there_were_several_goes_on() {
    let folder = scratch("mixing-older");
    let (dataset, output) = (rows(&folder, "one", 24), folder.join("out"));
    trained(&[&dataset], &output, &[]);
    let whole = losses(&output);
    std::fs::remove_dir_all(output.join("checkpoint-12")).unwrap();
    let path = output.join("checkpoint-8/garden_state.json");
    let mut state: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert!(state.as_object_mut().unwrap().remove("portions").is_some());
    let recipe = state["recipe"].as_object_mut().unwrap();
    assert!(recipe["dataset"].is_string(), "one dataset is written as it was");
    assert!(recipe.remove("dataset-weights").is_some() && recipe.remove("max-samples").is_some());
    std::fs::write(&path, state.to_string()).unwrap();
    // The page of such a run can be made again, too.
    let job = output.join(".job.json");
    let mut file: Value = serde_json::from_slice(&std::fs::read(&job).unwrap()).unwrap();
    let rows = file.pointer_mut("/job/train").or(None);
    if let Some(rows) = rows.and_then(Value::as_object_mut) {
        assert!(rows["path"].is_string());
        ["portions", "seed"].iter().for_each(|name| assert!(rows.remove(*name).is_some(), "{name}"));
        std::fs::write(&job, file.to_string()).unwrap();
    } else {
        panic!("{file}");
    }
    let report = run(&["report", output.to_str().unwrap()]);
    assert!(report.status.success(), "{}", told(&report));
    trained(&[&dataset], &output, &["--resume", "auto"]);
    assert_eq!(losses(&output), whole);
}

#[test]
fn a_resume_with_other_datasets_is_refused_with_what_changed() {
    let folder = scratch("mixing-changed");
    let [one, two, three] = [("one", 10), ("two", 6), ("three", 6)].map(|(name, count)| rows(&folder, name, count));
    let (output, weights) = (folder.join("out"), ["--dataset-weights", "1,3"]);
    trained(&[&one, &two], &output, &weights);
    let whole = losses(&output);
    std::fs::remove_dir_all(checkpoints(&output).pop().unwrap()).unwrap();
    let refused = |datasets: &[&Path], more: &[&str], words: &[&str]| {
        let ended = train(datasets, &output, &[&["--resume", "auto"], more].concat());
        assert_eq!(ended.status.code(), Some(2), "{}", told(&ended));
        for words in words.iter().chain(&["hint: resume with"]) {
            assert!(told(&ended).contains(words), "{words}: {}", told(&ended));
        }
    };
    refused(&[&one, &two], &[], &["it was made with `dataset-weights` [1.0,3.0], not none"]);
    refused(&[&one, &two], &["--dataset-weights", "1,2"], &["`dataset-weights` [1.0,3.0], not [1.0,2.0]"]);
    let samples = [&weights[..], &["--max-samples", "5"]].concat();
    refused(&[&one, &two], &samples, &["it was made with `max-samples` none, not 5"]);
    refused(&[&two, &one], &weights, &["it was made with `dataset` [", "two/train.jsonl\",\""]);
    // As many rows, but others.
    refused(&[&one, &three], &weights, &["different rows", "they were of ", "now they are of ", "three/train.jsonl"]);
    let text = std::fs::read_to_string(&two).unwrap();
    std::fs::write(&two, text.replace("two 3?", "two 33?")).unwrap();
    refused(&[&one, &two], &weights, &["different rows, or another order; changed: `", "two/train.jsonl`"]);
    std::fs::write(&two, text.clone() + text.lines().next().unwrap()).unwrap();
    refused(&[&one, &two], &weights, &["had 16 rows, 0 of them unused; now it has 17", "`, 6 rows before and 7 now"]);
    std::fs::write(&two, text).unwrap();
    // The same rows in other places are the same rows.
    let moved = [&one, &two].map(|path| {
        let to = folder.join(format!("moved-{}.jsonl", path.parent().unwrap().file_name().unwrap().display()));
        std::fs::rename(path, &to).unwrap();
        to
    });
    let resumed = trained(&[&moved[0], &moved[1]], &output, &[&weights[..], &["--resume", "auto"]].concat());
    assert!(told(&resumed).contains("changed: `dataset` from ["), "{}", told(&resumed));
    assert_eq!(losses(&output), whole);
}

#[test]
fn what_cannot_be_mixed_is_refused() {
    let folder = scratch("mixing-refused");
    let [one, two, tiny] = [("one", 10), ("two", 6), ("tiny", 1)].map(|(name, count)| rows(&folder, name, count));
    let refused = |datasets: &[&Path], more: &[&str], words: &[&str]| {
        let ended = train(datasets, &folder.join("out"), more);
        assert_eq!(ended.status.code(), Some(2), "{more:?}: {}", told(&ended));
        for words in words {
            assert!(told(&ended).contains(words), "{words}: {}", told(&ended));
        }
    };
    let both: &[&Path] = &[&one, &two];
    refused(&[&one, &one], &[], &["is given twice", "hint: omit one of them"]);
    refused(
        both,
        &["--dataset-weights", "1"],
        &["`dataset-weights` has 1 number for 2 datasets", "hint: give one for"],
    );
    refused(both, &["--dataset-weights", "1,2,3"], &["has 3 numbers for 2 datasets"]);
    refused(both, &["--dataset-weights", "1,0"], &["`dataset-weights` has 0; a weight must be above 0"]);
    refused(both, &["--dataset-weights=-1,1"], &["`dataset-weights` has -1;"]);
    refused(both, &["--dataset-weights", "1,nan"], &["a weight must be above 0"]);
    refused(both, &["--dataset-weights", "1,many"], &["`dataset-weights` cannot be \"1,many\": `many`: invalid float"]);
    refused(both, &["--max-samples", "0"], &["`max-samples` has 0; it must be at least 1"]);
    refused(both, &["--max-samples", "1,2,3"], &["`max-samples` has 3 numbers for 2 datasets"]);
    refused(both, &["--max-samples", "1.5"], &["`max-samples` cannot be \"1.5\""]);
    refused(
        &[&one, &tiny],
        &["--dataset-weights", "99,1"],
        &["leaves `", "tiny/train.jsonl` no row in an epoch of 11 rows"],
    );
    let held_out = ["--dataset-weights", "1,1", "--eval-split", "0.95"];
    refused(&[&one, &tiny], &held_out, &["none of whose rows is left to train on"]);
    // A second evaluation dataset is not thrown away in silence.
    let twice = ["--eval-dataset", two.to_str().unwrap(), "--eval-dataset", tiny.to_str().unwrap()];
    refused(&[&one], &twice, &["'--eval-dataset <FILE|DIR>' cannot be used multiple times"]);
    let path = folder.join("weights.toml");
    std::fs::write(&path, "dataset-weights = [0.5, 0.5]\nbatch-tokens = 300\n").unwrap();
    let words =
        ["train-vision", "--config", path.to_str().unwrap(), "--model", "testdata/tiny-model", "--output-dir", "x"];
    let datasets = ["--dataset", one.to_str().unwrap(), two.to_str().unwrap()];
    let ended = run(&[&words[..], &datasets].concat());
    assert!(told(&ended).contains("`dataset-weights` cannot be used with `batch-tokens`"), "{}", told(&ended));
    // A row that cannot be used is named with the file that it is in.
    let text = std::fs::read_to_string(&two).unwrap();
    std::fs::write(&two, text + "{\"prompt\": \"?\", \"image\": \"nowhere.png\", \"response\": \"x\"}\n").unwrap();
    refused(both, &[], &["1 of 17 rows cannot be used; the first: `", "two/train.jsonl:7`: field `image`"]);
    assert!(!folder.join("out/checkpoint-4").exists());
}

#[test]
fn settings_of_adapters_are_refused_beside_full() {
    let folder = scratch("mixing-full");
    let dataset = rows(&folder, "one", 4);
    for flags in [
        &["--lora-r", "16"][..],
        &["--lora-alpha", "32"],
        &["--lora-dropout", "0.1"],
        &["--lora-targets", "q_proj"],
        &["--use-rslora"],
        &["--finetune-vision"],
        &["--modules-to-save", "lm_head"],
        &["--adapter", "nowhere"],
    ] {
        let ended = train(&[&dataset], &folder.join("out"), &[&["--full"], flags].concat());
        assert_eq!(ended.status.code(), Some(2), "{flags:?}: {}", told(&ended));
        assert!(told(&ended).contains(&format!("`{}` ", &flags[0][2..])), "{flags:?}: {}", told(&ended));
        assert!(told(&ended).contains("`full`"), "{flags:?}: {}", told(&ended));
    }
    // The recipe that such a run leaves can be used again, and so can those of earlier versions, which have all settings.
    let output = folder.join("full");
    trained(&[&dataset], &output, &["--full", "--max-steps", "1"]);
    let recipe = std::fs::read_to_string(output.join("recipe.toml")).unwrap();
    assert!(!recipe.contains("lora"), "{recipe}");
    let older = format!("lora-r = 16\nlora-alpha = 16.0\nlora-dropout = 0.0\nuse-rslora = false\n{recipe}");
    for (number, text) in [recipe, older].iter().enumerate() {
        let path = folder.join(format!("{number}.toml"));
        std::fs::write(&path, text).unwrap();
        let output = folder.join(format!("again-{number}"));
        let words = ["train-vision", "--config", path.to_str().unwrap(), "--output-dir", output.to_str().unwrap()];
        let ended = run(&[&words[..], &["--dry-run"]].concat());
        assert!(ended.status.success(), "{}", told(&ended));
    }
}

#[test]
fn targets_that_do_not_exist_are_refused_with_those_that_do() {
    let folder = scratch("mixing-targets");
    let dataset = rows(&folder, "one", 4);
    let tried = |targets: &str| train(&[&dataset], &folder.join("out"), &["--dry-run", "--lora-targets", targets]);
    // One name among right ones was left out in silence, and the head has no adapter.
    for (targets, unknown) in [
        ("q_proj,qproj", "qproj"),
        ("query_key_value", "query_key_value"),
        ("lm_head,q_proj", "lm_head"),
        (".*nothing.*", ".*nothing.*"),
    ] {
        let ended = tried(targets);
        assert_eq!(ended.status.code(), Some(2), "{targets}: {}", told(&ended));
        let problem = format!("`lora-targets` has `{unknown}`, which matches no linear layer of the model");
        assert!(told(&ended).contains(&problem), "{}", told(&ended));
        assert!(told(&ended).contains("hint: linear layers: q_proj, k_proj, v_proj"), "{}", told(&ended));
    }
    let ended = tried("(q_proj");
    assert!(told(&ended).contains("is not a regular expression"), "{}", told(&ended));
    for targets in [
        "q_proj, v_proj",
        "all-linear",
        "attn.qkv,attn.proj,merger.mlp.0,merger.mlp.2,down_proj",
        ".*layers\\.1\\..*up_proj",
    ] {
        let ended = tried(targets);
        assert!(ended.status.success(), "{targets}: {}", told(&ended));
    }
}

#[test]
fn check_plan_preview_and_the_page_know_all_datasets() {
    let folder = scratch("mixing-known");
    let (one, two, output) = (rows(&folder, "one", 12), rows(&folder, "two", 4), folder.join("out"));
    let (first, second) = (one.to_str().unwrap(), two.to_str().unwrap());
    let json = |words: &[&str]| -> Value {
        let ended = run(words);
        assert!(ended.status.success(), "{}", told(&ended));
        serde_json::from_slice(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {}", told(&ended)))
    };
    let per_epoch = |told: &Value| -> Vec<u64> {
        told["datasets"].as_array().unwrap().iter().map(|rows| rows["per_epoch"].as_u64().unwrap()).collect()
    };
    let mixed = ["--dataset-weights", "1,3", "--max-samples", "8"];
    let check = [&["check", first, second, "--model", "testdata/tiny-model"], &mixed[..]].concat();
    let checked = json(&[&check[..], &["--format", "json"]].concat());
    assert_eq!((checked["rows"].as_u64(), per_epoch(&checked)), (Some(12), vec![3, 9]));
    assert_eq!(checked["datasets"][0]["stored"], 12);
    let text = told(&run(&check));
    assert!(
        text.contains("one/train.jsonl: 3 rows per epoch (25.0 %), drawn 8 of 12, 8 different rows: each"),
        "{text}"
    );
    let refused = run(&[&check[..5], &["--dataset-weights", "1"]].concat());
    assert!(told(&refused).contains("has 1 number for 2 datasets"), "{}", told(&refused));
    let plan = ["plan", "--model", "testdata/tiny-model", "--dataset", first, "--dataset", second, "--device", "cpu"];
    let planned = json(&[&plan[..], &mixed, &["--format", "json"]].concat());
    assert_eq!(per_epoch(&planned), [3, 9]);
    let text = told(&run(&[&plan[..], &mixed].concat()));
    assert!(text.contains("two/train.jsonl: 9 rows per epoch (75.0 %)"), "{text}");
    // The largest micro-batch is the same with rows of either dataset; only the number of rows differs.
    assert_eq!(checked["limits"]["rows"], planned["micro_batch"]["rows"]);
    let seen = told(&run(&["preview", first, second, "--model", "testdata/tiny-model", "--row", "13"]));
    assert!(seen.contains("two/train.jsonl:1: ") && seen.contains("two 0?"), "{seen}");
    let beyond = told(&run(&["preview", first, second, "--model", "testdata/tiny-model", "--row", "17"]));
    assert!(
        beyond.contains("one/train.jsonl` has 12 rows") && beyond.contains("two/train.jsonl` has 4 rows"),
        "{beyond}"
    );
    let ended = trained(&[&one, &two], &output, &[&mixed[..], &["--format", "json"]].concat());
    let told: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(per_epoch(&told), [3, 9]);
    let page = std::fs::read_to_string(output.join("report.html")).unwrap();
    assert!(page.contains("Datasets") && page.contains("two/train.jsonl") && page.contains("rows per epoch"));
    let card = std::fs::read_to_string(output.join("README.md")).unwrap();
    assert!(card.contains("12 rows of 2 datasets (3 + 9 in an epoch)"), "{card}");
    assert!(!card.contains("train.jsonl"), "places of this machine are not published");
    // One command repeats the run, with lists in its file.
    let recipe = std::fs::read_to_string(output.join("recipe.toml")).unwrap();
    assert!(recipe.contains("dataset = [") && recipe.contains("dataset-weights = [1.0, 3.0]"), "{recipe}");
    let again = folder.join("again");
    let words =
        ["train-vision", "--config", output.join("recipe.toml").to_str().unwrap(), "--output-dir"].map(String::from);
    let words: Vec<&str> = words.iter().map(String::as_str).chain([again.to_str().unwrap()]).collect();
    let ended = run(&words);
    assert!(ended.status.success());
    assert_eq!(adapter(&again), adapter(&output));
}

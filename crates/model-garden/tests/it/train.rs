//! `model-garden train-vision` on a tiny model: killed, stopped, out of memory, resumed; and what cannot work.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]
#![allow(clippy::print_stderr, reason = "the step that was drawn is part of a failure")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::{diagnose, model_garden, picture_rows, run, scratch, told, trainer_of};
use serde_json::Value;

/// How long anything here may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

fn dataset(folder: &Path, rows: usize) -> PathBuf {
    picture_rows(folder, rows, |row| format!("Picture {row}?"))
}

/// The words of a run into a folder, with pictures small enough for a quick step.
fn words(dataset: &Path, output: &Path, more: &[&str]) -> Vec<String> {
    let fixed = [
        "train-vision",
        "--base-model",
        "testdata/tiny-model",
        "--dataset",
        dataset.to_str().unwrap(),
        "--output-dir",
        output.to_str().unwrap(),
        "--max-pixels",
        "12544",
        "--learning-rate",
        "5e-3",
        "--lora-dropout",
        "0.1",
        "--threads",
        "1",
        "--logging-steps",
        "1",
        "--save-steps",
        "7",
        "--memory-steps",
        "5",
        "--max-new-tokens",
        "8",
        "--eval-answers",
        "3",
    ];
    fixed.iter().chain(more).map(ToString::to_string).collect()
}

fn train(dataset: &Path, output: &Path, more: &[&str]) -> Output {
    let words = words(dataset, output, more);
    run(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

fn start(dataset: &Path, output: &Path, more: &[&str]) -> Child {
    let words = words(dataset, output, more);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    model_garden(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Step, loss, accuracy, norm of gradients and rate of every step that the log has, as they are written.
fn losses(output: &Path) -> Vec<[Value; 5]> {
    let text = std::fs::read_to_string(output.join("log.jsonl")).unwrap_or_default();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines
        .filter(|line| line.get("loss").is_some())
        .map(|line| {
            ["step", "loss", "mean_token_accuracy", "grad_norm", "learning_rate"].map(|name| line[name].clone())
        })
        .collect()
}

fn evaluations(output: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(output.join("log.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.map(|line| line["eval_loss"].clone()).filter(|loss| !loss.is_null()).collect()
}

/// Waits until the log has a step.
fn wait_for_step(output: &Path, step: usize) {
    let begin = Instant::now();
    while losses(output).len() < step {
        assert!(begin.elapsed() < PATIENCE, "step {step} did not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The process that trains under a guard.
fn worker(guard: &Child) -> u32 {
    let begin = Instant::now();
    loop {
        if let Some(pid) = trainer_of(guard.id()) {
            return pid;
        }
        assert!(begin.elapsed() < PATIENCE, "no process that trains");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn signal(name: &str, pid: u32) {
    assert!(Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
}

fn result(output: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(output.join("result.json")).unwrap()).unwrap()
}

/// A step that the seed chooses, and the number of the draw.
fn random_step(draw: u64, most: u64) -> usize {
    // SplitMix64's first step: neighbouring seeds give other steps.
    let bits = (garden_testing::seed() * 10 + draw).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    1 + ((bits >> 32) % most) as usize
}

#[test]
fn a_killed_run_goes_on_as_if_nothing_had_happened() {
    let folder = scratch("train-killed");
    let dataset = dataset(&folder, 60);
    let [whole, killed, abandoned] = ["whole", "killed", "abandoned"].map(|name| folder.join(name));
    let flags = ["--epochs", "3", "--eval-split", "0.1", "--eval-steps", "10", "--batch-size", "2"];
    let first = train(&dataset, &whole, &flags);
    assert!(first.status.success(), "{}", told(&first));
    let expected = losses(&whole);
    assert_eq!(expected.len(), 21);
    // The process that trains is killed: its guard starts it again.
    let guard = start(&dataset, &killed, &flags);
    let step = random_step(1, 18);
    eprintln!("killing after step {step}");
    wait_for_step(&killed, step);
    signal("-KILL", worker(&guard));
    let ended = guard.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", told(&ended));
    assert_eq!(losses(&killed), expected);
    assert_eq!(evaluations(&killed), evaluations(&whole));
    // Both are killed: the next command goes on.
    let guard = start(&dataset, &abandoned, &flags);
    wait_for_step(&abandoned, random_step(2, 12));
    let trains = worker(&guard);
    signal("-KILL", guard.id());
    signal("-KILL", trains);
    drop(guard.wait_with_output());
    let has_checkpoint = std::fs::read_dir(&abandoned)
        .unwrap()
        .flatten()
        .any(|entry| entry.file_name().to_string_lossy().starts_with("checkpoint-"));
    let refused = train(&dataset, &abandoned, &flags);
    assert_eq!(refused.status.code(), Some(if has_checkpoint { 2 } else { 0 }), "{}", told(&refused));
    if has_checkpoint {
        let resumed = train(&dataset, &abandoned, &[&flags[..], &["--resume", "auto"]].concat());
        assert!(resumed.status.success(), "{}", told(&resumed));
    }
    assert_eq!(losses(&abandoned), expected);
    use_result(&dataset, &whole, &folder);
}

#[test]
fn a_run_that_goes_on_is_told_from_its_first_step() {
    let folder = scratch("train-whole-story");
    let dataset = dataset(&folder, 60);
    let output = folder.join("out");
    let flags = ["--epochs", "2", "--batch-size", "2", "--save-steps", "3", "--json"];
    let guard = start(&dataset, &output, &flags);
    wait_for_step(&output, 8);
    let trains = worker(&guard);
    signal("-KILL", guard.id());
    signal("-KILL", trains);
    drop(guard.wait_with_output());
    let first_part = std::fs::read_to_string(output.join("trace.jsonl")).unwrap();
    let resumed = train(&dataset, &output, &[&flags[..], &["--resume", "auto"]].concat());
    assert!(resumed.status.success(), "{}", told(&resumed));
    let trace = std::fs::read_to_string(output.join("trace.jsonl")).unwrap();
    assert!(trace.starts_with(&first_part), "the first part is gone");
    assert!(!output.join("trace-1.jsonl").exists());
    let lines: Vec<Value> = trace.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let times: Vec<f64> = lines.iter().filter_map(|line| line["time_s"].as_f64()).collect();
    assert!(times.is_sorted(), "one clock over all starts: {times:?}");
    let told: Value = serde_json::from_slice(&resumed.stdout).unwrap();
    assert_eq!(told["seconds"], told["result"]["progress"]["seconds"], "one time");
    // The verdict is headed by both starts, and the peak is that of both.
    assert!(told["summary"].as_str().unwrap().starts_with("2 starts over steps 0 to "), "{}", told["summary"]);
    let peak = lines.iter().filter_map(|line| line["peak"].as_u64()).max().unwrap();
    let all = told["memory"].as_array().unwrap().iter().find(|row| row["purpose"] == "all").unwrap();
    assert!(all["measured_bytes"].as_u64().unwrap() >= peak, "{all} {peak}");
    let page = std::fs::read_to_string(output.join("report.html")).unwrap();
    assert!(page.contains("2 starts over steps 0 to ") && page.contains("Restart: "), "the page shows both starts");
}

/// The adapter is exported, and answers.
fn use_result(dataset: &Path, output: &Path, folder: &Path) {
    let adapter = output.to_str().unwrap();
    let proof = &result(output)["proof"];
    assert_ne!(proof["loss"], proof["loss_without_adapter"]);
    for name in ["adapter_model.safetensors", "adapter_config.json", "tokenizer.json", "recipe.toml", "trace.jsonl"] {
        assert!(output.join(name).exists(), "{name}");
    }
    let merged = folder.join("merged");
    let exported = run(&[
        "export",
        "--base-model",
        "testdata/tiny-model",
        "--adapter",
        adapter,
        "--output-dir",
        merged.to_str().unwrap(),
        "--dtype",
        "float32",
    ]);
    assert!(exported.status.success(), "{}", told(&exported));
    // Whoever loads the adapter or the merged model sees pictures as large as they were in training.
    for folder in [output, &merged] {
        let text = std::fs::read_to_string(folder.join("preprocessor_config.json")).unwrap();
        let settings: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(settings["max_pixels"], 12544, "{text}");
        assert!(settings["size"].is_null() || settings["size"]["longest_edge"] == 12544, "{text}");
    }
    let answer = |words: &[&str]| {
        let fixed = ["generate", "--prompt", "Picture 3?", "--max-new-tokens", "6", "--json"];
        let output = run(&[&fixed[..], words].concat());
        let told: Value = serde_json::from_slice(&output.stdout).unwrap();
        told["answers"][0]["tokens"].clone()
    };
    // The first row's picture is larger than that.
    let first = std::fs::read_to_string(dataset).unwrap();
    let first: Value = serde_json::from_str(first.lines().next().unwrap()).unwrap();
    let picture = first["image"].as_str().unwrap();
    let adapted = ["--model", "testdata/tiny-model", "--adapter", adapter, "--image", picture];
    assert_eq!(answer(&["--model", merged.to_str().unwrap(), "--image", picture]), answer(&adapted));
    let with_adapter = answer(&["--model", "testdata/tiny-model", "--adapter", adapter]);
    assert_eq!(answer(&["--model", merged.to_str().unwrap()]), with_adapter);
    assert!(with_adapter.as_array().is_some_and(|tokens| !tokens.is_empty()));
    // A folder that has a result says so.
    let again = train(dataset, output, &[]);
    assert!(told(&again).contains("has checkpoints of an earlier run"), "{}", told(&again));
}

#[test]
fn asked_to_end_it_saves_and_loses_nothing() {
    let folder = scratch("train-asked");
    let dataset = dataset(&folder, 40);
    let (whole, stopped) = (folder.join("whole"), folder.join("stopped"));
    let flags = ["--max-steps", "20", "--optim", "adamw-8bit", "--lora-r", "64"];
    let first = train(&dataset, &whole, &flags);
    assert!(first.status.success(), "{}", told(&first));
    let guard = start(&dataset, &stopped, &flags);
    wait_for_step(&stopped, 5);
    signal("-TERM", guard.id());
    let ended = guard.wait_with_output().unwrap();
    let done = losses(&stopped).len();
    if done < 20 {
        assert_eq!(ended.status.code(), Some(130), "{}", told(&ended));
        assert!(stopped.join(format!("checkpoint-{done}")).exists());
        let changed = train(&dataset, &stopped, &[&flags[..], &["--resume", "auto", "--batch-size", "4"]].concat());
        assert!(told(&changed).contains("was made with `batch-size` 2, not 4"), "{}", told(&changed));
        let state = stopped.join(format!("checkpoint-{done}/garden_state.json"));
        let state: Value = serde_json::from_slice(&std::fs::read(state).unwrap()).unwrap();
        let before = state["progress"]["seconds"].as_f64().unwrap();
        let resumed = train(&dataset, &stopped, &[&flags[..], &["--resume", "auto"]].concat());
        assert!(resumed.status.success(), "{}", told(&resumed));
        // The time is that of all starts.
        let logged = std::fs::read_to_string(stopped.join("log.jsonl")).unwrap();
        let logged = logged.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let steps: f64 = logged.filter_map(|line| line["step_seconds"].as_f64()).sum();
        let seconds = result(&stopped)["progress"]["seconds"].as_f64().unwrap();
        assert!(seconds > before && seconds > 0.9 * steps, "{before} before, {seconds} in all, {steps} for steps");
    }
    assert_eq!(losses(&stopped), losses(&whole));
    // A checkpoint that the disk has damaged is told and skipped, and so is one that was cut.
    let damaged = stopped.join("checkpoint-20/optimizer.safetensors");
    let mut bytes = std::fs::read(&damaged).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&damaged, &bytes).unwrap();
    let again = [&flags[..], &["--resume", "auto"]].concat();
    let resumed = train(&dataset, &stopped, &again);
    assert!(told(&resumed).contains("`optimizer.safetensors` is damaged"), "{}", told(&resumed));
    assert_eq!(losses(&stopped), losses(&whole));
    let cut = stopped.join("checkpoint-20/adapter_model.safetensors");
    std::fs::write(&cut, &std::fs::read(&cut).unwrap()[..1000]).unwrap();
    let resumed = train(&dataset, &stopped, &again);
    assert!(told(&resumed).contains("`adapter_model.safetensors` has 1000 bytes"), "{}", told(&resumed));
    assert_eq!(losses(&stopped), losses(&whole));
}

#[test]
fn a_leak_is_survived_within_the_limit() {
    let folder = scratch("train-leak");
    let dataset = dataset(&folder, 40);
    let (whole, leaking) = (folder.join("whole"), folder.join("leaking"));
    let flags = ["--max-steps", "40", "--prefetch", "8MB", "--memory-steps", "1"];
    let first = train(&dataset, &whole, &flags);
    assert!(first.status.success(), "{}", told(&first));
    let most = result(&whole)["resident"]["most"].as_u64().unwrap();
    // Room for some twenty steps of the leak.
    let limit = most + (60 << 20);
    let limited = format!("{limit}B");
    let more = ["--memory-limit", &limited, "--debug-leak", "3MB"];
    let output = train(&dataset, &leaking, &[&flags[..], &more].concat());
    assert!(output.status.success(), "{}", told(&output));
    let trace = std::fs::read_to_string(leaking.join("trace.jsonl")).unwrap();
    let restarts = trace.lines().filter(|line| line.contains("\"restart\"")).count();
    assert!(restarts >= 1, "{}", told(&output));
    let held =
        trace.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()?["anon"].as_u64()).max().unwrap();
    // A step that is under way when the limit is near is finished, and the last of all too.
    assert!(held <= limit + (3 << 20), "{held} of {limit}: {}", told(&output));
    assert_eq!(losses(&leaking), losses(&whole));
    let page = std::fs::read_to_string(leaking.join("report.html")).unwrap();
    assert!(page.contains("Attempts over time") && page.contains("What the guard did"));
}

#[test]
fn memory_is_flat_and_the_trace_has_a_line_for_it() {
    let folder = scratch("train-flat");
    let dataset = dataset(&folder, 40);
    let output = folder.join("out");
    let ended = train(&dataset, &output, &["--max-steps", "120", "--save-steps", "60", "--json"]);
    assert!(ended.status.success(), "{}", told(&ended));
    let told: Value = serde_json::from_slice(&ended.stdout).unwrap();
    let (judged, _) = diagnose(output.join("trace.jsonl").to_str().unwrap(), &[]);
    assert_eq!(told["verdict"], judged["verdict"]);
    assert_eq!(judged["verdict"], "flat", "{judged:#}");
    let trace = std::fs::read_to_string(output.join("trace.jsonl")).unwrap();
    let samples: Vec<Value> = trace.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    for step in (5..120).step_by(5) {
        let sample = samples.iter().find(|sample| sample["step"] == step && sample["rss"].is_u64());
        let sample = sample.unwrap_or_else(|| panic!("no sample of step {step}"));
        assert!(sample["arena"].as_u64().unwrap() > 1 << 20 && sample["tensors"].as_u64().unwrap() > 50, "{sample}");
    }
}

#[test]
fn what_cannot_work_is_told_at_once() {
    let folder = scratch("train-refused");
    let dataset = dataset(&folder, 10);
    let output = folder.join("out");
    let refused = |more: &[&str], expected: &str| {
        let begin = Instant::now();
        let ended = train(&dataset, &output, more);
        assert_eq!(ended.status.code(), Some(2), "{}", told(&ended));
        assert!(told(&ended).contains(expected), "{expected}: {}", told(&ended));
        assert!(begin.elapsed() < Duration::from_secs(20));
    };
    refused(&["--full", "--load-in-4bit"], "cannot be used with");
    refused(&["--batch-size", "0"], "`batch-size` is 0");
    refused(&["--lora-targets", "nothing_like_it"], "has `nothing_like_it`, which matches no linear layer");
    refused(&["--eval-split", "0.99"], "leaves none to train on");
    refused(&["--max-length", "3"], "10 of 10 rows cannot be used");
    refused(&["--config", "nowhere.toml"], "cannot use the recipe `nowhere.toml`");
    refused(&["--base-model", "nobody/nothing-like-it"], "hf download nobody/nothing-like-it");
    let file = folder.join("bad.toml");
    std::fs::write(&file, "learning_rat = 1e-3\n").unwrap();
    refused(&["--config", file.to_str().unwrap()], "did you mean `learning-rate`?");
    std::fs::write(&file, "service = 1\n").unwrap();
    let told_of = told(&train(&dataset, &output, &["--config", file.to_str().unwrap()]));
    assert!(told_of.contains("`service` is not a setting") && !told_of.contains("did you mean"), "{told_of}");
    let rows = std::fs::read_to_string(&dataset).unwrap();
    let labelled: String = rows.lines().map(|row| row.replacen('{', "{\"label\": false, ", 1) + "\n").collect();
    std::fs::write(&dataset, labelled).unwrap();
    refused(&[], "field `label` is false: it looks like a label and is not used");
    refused(&[], "hint: `--ignore-field label` trains without it; `model-garden check` lists them all");
    let dry = train(&dataset, &output, &["--ignore-field", "label", "--dry-run"]);
    assert_eq!(dry.status.code(), Some(0), "{}", told(&dry));
    std::fs::write(&dataset, rows + "{\"prompt\": \"?\", \"image\": \"nowhere.png\", \"response\": \"x\"}\n").unwrap();
    refused(&[], "1 of 11 rows cannot be used; the first: `");
    refused(&[], "train.jsonl:11`: field `image` names");
    assert!(!output.join("checkpoint-1").exists());
    let more = ["--on-bad-row", "skip", "--max-steps", "2", "--warmup-steps", "0", "--bf16", "--report_to", "none"];
    let skipped = train(&dataset, &output, &more);
    assert!(skipped.status.success(), "{}", told(&skipped));
    assert!(told(&skipped).contains("left out: 1 rows that cannot be used"), "{}", told(&skipped));
    assert!(told(&skipped).contains("ignored: `bf16`"), "{}", told(&skipped));
    // One step of a warm-up has rate 0.
    let idle = train(&dataset, &folder.join("idle"), &["--on-bad-row", "skip", "--max-steps", "1"]);
    assert_eq!(idle.status.code(), Some(1), "{}", told(&idle));
    assert!(told(&idle).contains("changes nothing"), "{}", told(&idle));
    let unwritable = train(&dataset, Path::new("/proc/nowhere"), &["--on-bad-row", "skip"]);
    assert!(told(&unwritable).contains("cannot write to the output folder"), "{}", told(&unwritable));
}

/// On a file system of three megabytes there is no room for what the plan says.
#[test]
fn a_disk_that_is_too_small_is_told_before_the_first_step() {
    let folder = scratch("train-full");
    let dataset = dataset(&folder, 20);
    let disk = folder.join("disk");
    std::fs::create_dir_all(&disk).unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=3m", "tmpfs"]).arg(&disk).output();
    if !mounted.is_ok_and(|mounted| mounted.status.success()) {
        garden_testing::skip("a small file system cannot be mounted here");
        return;
    }
    let flags = ["--max-steps", "40", "--save-steps", "2", "--save-total-limit", "30", "--lora-r", "64"];
    let ended = train(&dataset, &disk.join("out"), &flags);
    let planned = train(&dataset, &disk.join("out"), &[&flags[..], &["--dry-run", "--json"]].concat());
    let fits = train(&dataset, &disk.join("out"), &["--max-steps", "2"]);
    let begun = losses(&disk.join("out")).len();
    drop(Command::new("umount").arg(&disk).status());
    assert_eq!(ended.status.code(), Some(2), "{}", told(&ended));
    let words = told(&ended);
    assert!(words.contains(" of disk for 20 checkpoints of ") && words.contains(" is free in `"), "{words}");
    assert!(words.contains("hint: ") && words.contains("`save-total-limit`"), "{words}");
    let planned: Value = serde_json::from_slice(&planned.stdout).unwrap();
    assert_eq!((&planned["would"], &planned["plan"]["disk"]["checkpoints"]), (&"refuse".into(), &20.into()));
    assert!(planned["plan"]["disk"]["total_bytes"].as_u64().unwrap() > 3 << 20, "{planned:#}");
    assert!(fits.status.success() && begun == 2, "{}", told(&fits));
}

/// What the plan says of the disk is what a run leaves there.
#[test]
fn disk_is_planned_as_it_is_used() {
    let folder = scratch("train-disk");
    let dataset = dataset(&folder, 12);
    for (name, more, most) in [("adapter", &["--lora-r", "64"][..], 1.05), ("full", &["--full"], 1.35)] {
        let output = folder.join(name);
        let flags =
            [&["--max-steps", "6", "--save-steps", "2", "--save-total-limit", "5", "--json"][..], more].concat();
        let ended = train(&dataset, &output, &flags);
        assert!(ended.status.success(), "{}", told(&ended));
        let plan = serde_json::from_slice::<Value>(&ended.stdout).unwrap()["plan"]["disk"].clone();
        let used: u64 = files(&output).iter().map(|path| path.metadata().unwrap().len()).sum();
        let planned = plan["total_bytes"].as_u64().unwrap();
        assert_eq!(plan["checkpoints"], 3, "{plan}");
        // A megabyte for what tells about the run is most of it here.
        assert!((used..(most * used as f64) as u64 + (1 << 20)).contains(&planned), "{planned} planned, {used} used");
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// The guard samples once a second, in which such leaks pass any limit.
#[test]
fn a_fast_leak_never_passes_the_limit_by_more_than_a_step() {
    let folder = scratch("train-fast-leak");
    let dataset = dataset(&folder, 40);
    let whole = folder.join("whole");
    let flags = ["--max-steps", "12", "--prefetch", "8MB"];
    let first = train(&dataset, &whole, &flags);
    assert!(first.status.success(), "{}", told(&first));
    let most = result(&whole)["resident"]["most"].as_u64().unwrap();
    for (leak, room) in [(20_u64 << 20, 70 << 20), (200 << 20, 450 << 20)] {
        let output = folder.join(format!("leak-{leak}"));
        let (limit, leaked) = (most + room, format!("{leak}B"));
        let limited = format!("{limit}B");
        let more = ["--memory-limit", &limited, "--debug-leak", &leaked];
        let mut guard = start(&dataset, &output, &[&flags[..], &more].concat());
        let mut highest = 0;
        while guard.try_wait().unwrap().is_none() {
            let held = trainer_of(guard.id()).and_then(anonymous);
            highest = highest.max(held.unwrap_or(0));
            std::thread::sleep(Duration::from_millis(1));
        }
        let ended = guard.wait_with_output().unwrap();
        assert!(ended.status.success(), "{}", told(&ended));
        assert!(highest > most + leak, "nothing was seen of the leak: {highest}");
        assert!(highest <= limit + leak, "{highest} of {limit}: {}", told(&ended));
        // The guard may have looked at the right moment, too.
        assert!(told(&ended).contains("restart 1: "), "{}", told(&ended));
        assert_eq!(losses(&output), losses(&whole));
    }
}

/// Anonymous memory of a process, in bytes.
fn anonymous(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

/// In real processes, as `make nightly` does for thirty configurations.
#[test]
fn no_more_is_resident_than_was_planned() {
    if !crate::common::has_python() {
        return;
    }
    let script = crate::common::repository("testdata/training/plan_peaks.py");
    let mut command = Command::new("python3");
    command.arg(script).args(["--binary", env!("CARGO_BIN_EXE_model-garden"), "--work"]).arg(scratch("plan-peaks"));
    let ended = command.args(["--any-build", "--only", "text", "text-vocabulary", "png"]).output().unwrap();
    assert!(ended.status.success(), "{}", told(&ended));
}

#[test]
fn a_stopped_run_tells_its_own_last_step_and_its_own_answers() {
    let folder = scratch("train-own");
    let dataset = dataset(&folder, 40);
    let output = folder.join("out");
    std::fs::create_dir_all(&output).unwrap();
    // Of another run that ended before its first checkpoint.
    let other =
        r#"{"step":0,"row":1,"place":"other.jsonl:2","question":"?","expected":"a","answer":"b","is_right":false}"#;
    std::fs::write(
        output.join("predictions.jsonl"),
        format!(
            "{other}
"
        ),
    )
    .unwrap();
    let guard = start(&dataset, &output, &["--max-steps", "60", "--logging-steps", "50"]);
    let begin = Instant::now();
    while !output.join("checkpoint-7").exists() {
        assert!(begin.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(2));
    }
    signal("-INT", guard.id());
    let ended = guard.wait_with_output().unwrap();
    let words = told(&ended);
    if ended.status.success() {
        return eprintln!("it was over before it could be stopped");
    }
    let step = words.split("stopped at step ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    assert!(step.parse::<usize>().unwrap() >= 7 && words.contains(&format!("; checkpoint-{step} is saved")), "{words}");
    assert!(!words.contains("other.jsonl"), "{words}");
}

/// An adapter that has learnt something goes on with a rate at which it only unlearns.
#[test]
fn a_result_that_is_worse_than_its_base_is_told() {
    let folder = scratch("train-unlearnt");
    let dataset = dataset(&folder, 20);
    let (learnt, output) = (folder.join("learnt"), folder.join("out"));
    let first = train(&dataset, &learnt, &["--max-steps", "30", "--eval-split", "0.2", "--warmup-steps", "0"]);
    assert!(first.status.success() && !told(&first).contains("worse"), "{}", told(&first));
    let flags = ["--max-steps", "4", "--eval-split", "0.2", "--eval-steps", "2", "--warmup-steps", "0"];
    let more = ["--adapter", learnt.to_str().unwrap(), "--learning-rate", "3", "--lr-scheduler", "constant"];
    let ended = train(&dataset, &output, &[&flags[..], &more].concat());
    let words = told(&ended);
    assert!(words.contains(": worse than before training"), "{words}");
    assert!(!words.contains("(best by "), "nothing is better than the start: {words}");
    let page = std::fs::read_to_string(output.join("report.html")).unwrap();
    assert!(page.contains("0 (best by loss)") && page.contains(" (the result)"), "the page marks the start");
}

#[test]
fn going_back_to_an_older_checkpoint_keeps_what_it_needs() {
    let folder = scratch("train-back");
    let dataset = dataset(&folder, 40);
    let output = folder.join("out");
    let flags = ["--max-steps", "12", "--save-steps", "3", "--save-total-limit", "4", "--eval-split", "0.1"];
    let first = train(&dataset, &output, &[&flags[..], &["--eval-steps", "3"]].concat());
    assert!(first.status.success(), "{}", told(&first));
    let whole = losses(&output);
    let from = output.join("checkpoint-6");
    let more = ["--eval-steps", "3", "--resume", from.to_str().unwrap(), "--save-total-limit", "1"];
    let second = train(&dataset, &output, &[&flags[..], &more].concat());
    assert!(second.status.success(), "{}", told(&second));
    assert_eq!(losses(&output), whole);
    assert!(output.join("checkpoint-12").is_dir() && !output.join("checkpoint-9").exists());
    assert!(output.join("abandoned-9-1").is_dir() && output.join("abandoned-12-1").is_dir());
    // The best one so far is not in another folder, and other settings are told.
    let other = folder.join("other");
    let from = output.join("checkpoint-12");
    let more =
        ["--eval-steps", "3", "--max-steps", "15", "--resume", from.to_str().unwrap(), "--learning-rate", "1e-3"];
    let third = train(&dataset, &other, &[&flags[..], &more].concat());
    assert!(third.status.success(), "{}", told(&third));
    assert!(told(&third).contains("changed: `learning-rate` from 0.005 to 0.001"), "{}", told(&third));
    // A checkpoint that is further than the run is refused.
    let short = train(&dataset, &output, &[&flags[..], &["--max-steps", "5", "--resume", "auto"]].concat());
    assert!(told(&short).contains("it is at step 12, but the run ends at step 5"), "{}", told(&short));
}

#[test]
fn a_broken_validation_split_is_no_reason_to_take_another() {
    let folder = scratch("train-split");
    let data = folder.join("data");
    std::fs::create_dir_all(&data).unwrap();
    let dataset = dataset(&data, 12);
    std::fs::write(data.join("validation.jsonl"), "").unwrap();
    let flags = ["--max-steps", "3", "--eval-dataset", data.to_str().unwrap()];
    let refused = train(&dataset, &folder.join("out"), &flags);
    assert_eq!(refused.status.code(), Some(2), "{}", told(&refused));
    assert!(told(&refused).contains("validation.jsonl"), "{}", told(&refused));
    std::fs::remove_file(data.join("validation.jsonl")).unwrap();
    let same = train(&dataset, &folder.join("out"), &flags);
    assert!(told(&same).contains("evaluation uses the training rows"), "{}", told(&same));
}

/// With `--early-stopping` a run that gets no better ends, its result is the best step, and the numbers are those of the result.
#[test]
fn early_stopping_gives_the_best_step() {
    let folder = scratch("train-early");
    let dataset = dataset(&folder, 30);
    let output = folder.join("out");
    let flags = [
        "--max-steps",
        "60",
        "--eval-split",
        "0.2",
        "--eval-steps",
        "2",
        "--early-stopping",
        "2",
        "--learning-rate",
        "0.1",
    ];
    let ended = train(&dataset, &output, &[&flags[..], &["--json"]].concat());
    assert!(ended.status.success(), "{}", told(&ended));
    let told: Value = serde_json::from_slice(&ended.stdout).unwrap();
    let progress = &told["result"]["progress"];
    let (step, best) = (progress["step"].as_u64().unwrap(), progress["best"]["step"].as_u64().unwrap());
    assert_eq!((told["result"]["end"].as_str(), step), (Some("early_stopping"), best + 4));
    assert_eq!(told["evaluations"]["last"]["step"].as_u64(), Some(best));
    assert_eq!(told["predictions"][0]["step"].as_u64(), Some(best));
    // Going on with the same patience is over at once.
    let again = train(&dataset, &output, &[&flags[..], &["--resume"]].concat());
    assert!(again.status.success());
    assert_eq!(result(&output)["progress"]["step"].as_u64(), Some(step));
}

#[test]
fn micro_batches_by_tokens_are_bounded_planned_and_go_on_as_they_were() {
    let folder = scratch("train-batch-tokens");
    let dataset = dataset(&folder, 40);
    let [whole, stopped] = ["whole", "stopped"].map(|name| folder.join(name));
    let flags = ["--batch-tokens", "160", "--gradient-accumulation", "2", "--epochs", "2", "--eval-split", "0.1"];
    let done = train(&dataset, &whole, &flags);
    assert!(done.status.success(), "{}", told(&done));
    assert!(told(&done).contains("2 x up to 160 tokens"), "{}", told(&done));
    let job: Value = serde_json::from_slice(&std::fs::read(whole.join(".job.json")).unwrap()).unwrap();
    let job = &job["job"];
    let lengths: Vec<u64> = serde_json::from_value(job["train"]["lengths"].clone()).unwrap();
    let (limits, batches) = (&job["limits"], job["token_batches"].as_u64().unwrap());
    assert!(limits["tokens"].as_u64().unwrap() <= 160, "{limits}");
    assert!(limits["rows"].as_u64().unwrap() >= 2 && batches < 36, "{limits}, {batches}");
    // Every epoch has the same steps, and reads every row once.
    let steps = losses(&whole).len() as u64;
    assert_eq!(steps, 2 * batches.div_ceil(2));
    let result = result(&whole);
    let read: u64 = lengths
        .iter()
        .enumerate()
        .filter(|(row, _)| !job["train"]["left_out"].as_array().unwrap().contains(&Value::from(*row)))
        .map(|(_, tokens)| tokens)
        .sum();
    assert_eq!(result["progress"]["tokens"].as_u64(), Some(2 * read), "{result}");
    // A run that was killed goes on with the same micro-batches.
    let mut guard = start(&dataset, &stopped, &flags);
    wait_for_step(&stopped, 9);
    signal("-INT", guard.id());
    guard.wait().unwrap();
    let resumed = train(&dataset, &stopped, &[&flags[..], &["--resume", "auto"]].concat());
    assert!(resumed.status.success(), "{}", told(&resumed));
    assert_eq!(losses(&whole), losses(&stopped));
    assert_eq!(evaluations(&whole), evaluations(&stopped));
    let other = train(
        &dataset,
        &stopped,
        &[
            "--batch-tokens",
            "170",
            "--gradient-accumulation",
            "2",
            "--epochs",
            "3",
            "--eval-split",
            "0.1",
            "--resume",
            "auto",
        ],
    );
    assert!(told(&other).contains("`batch-tokens` 160, not 170"), "{}", told(&other));
    // A row that no micro-batch has room for.
    let small = train(&dataset, &folder.join("small"), &["--batch-tokens", "30"]);
    assert_eq!(small.status.code(), Some(2));
    assert!(told(&small).contains("tokens; a micro-batch holds at most 30 (`batch-tokens`)"), "{}", told(&small));
    assert!(told(&small).contains("hint: use `--batch-tokens "), "{}", told(&small));
}

#[test]
fn the_best_checkpoint_is_chosen_by_the_metric_that_is_asked_for() {
    let folder = scratch("train-metric");
    let dataset = dataset(&folder, 24);
    let flags = [
        "--epochs",
        "4",
        "--eval-split",
        "0.2",
        "--eval-steps",
        "4",
        "--batch-size",
        "2",
        "--gradient-accumulation",
        "1",
    ];
    let state = |output: &Path| -> Value {
        serde_json::from_slice(&std::fs::read(output.join("result.json")).unwrap()).unwrap()
    };
    let [lowest, highest] = ["lowest", "highest"].map(|name| folder.join(name));
    let done = train(&dataset, &lowest, &flags);
    assert!(done.status.success(), "{}", told(&done));
    // The wrong way round, which tells the two apart whatever the model learns.
    let done = train(
        &dataset,
        &highest,
        &[&flags[..], &["--metric_for_best_model", "eval_loss", "--greater_is_better", "True"]].concat(),
    );
    assert!(done.status.success(), "{}", told(&done));
    let losses: Vec<f64> = evaluations(&highest).iter().skip(1).map(|loss| loss.as_f64().unwrap()).collect();
    assert_eq!(evaluations(&lowest), evaluations(&highest));
    let most = losses.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let least = losses.iter().copied().fold(f64::INFINITY, f64::min);
    assert_eq!(state(&highest)["progress"]["best"]["metric"].as_f64(), Some(most));
    assert_eq!(state(&lowest)["progress"]["best"]["metric"].as_f64(), Some(least));
    let page = std::fs::read_to_string(highest.join("README.md")).unwrap();
    assert!(page.contains("which had the highest loss on held-out rows"), "{page}");
    // By a share of answers, and by one that these rows cannot have.
    let exact = folder.join("exact");
    let done = train(&dataset, &exact, &[&flags[..], &["--metric-for-best-model", "field_accuracy"]].concat());
    assert!(done.status.success(), "{}", told(&done));
    assert!(told(&done).contains("(best by correct fields so far)"), "{}", told(&done));
    let boxes =
        train(&dataset, &folder.join("boxes"), &[&flags[..], &["--metric-for-best-model", "mean_iou"]].concat());
    assert!(!boxes.status.success());
    assert!(told(&boxes).contains("needs answers with boxes among the rows to evaluate on"), "{}", told(&boxes));
}

#[test]
fn modules_to_save_are_trained_saved_and_merged() {
    let folder = scratch("train-modules");
    let dataset = dataset(&folder, 24);
    let [whole, stopped, merged] = ["whole", "stopped", "merged"].map(|name| folder.join(name));
    let flags = [
        "--epochs",
        "2",
        "--batch-size",
        "2",
        "--gradient-accumulation",
        "1",
        "--modules_to_save",
        "visual.merger",
        "--merger-lr",
        "1e-3",
    ];
    let done = train(&dataset, &whole, &flags);
    assert!(done.status.success(), "{}", told(&done));
    let config: Value = serde_json::from_slice(&std::fs::read(whole.join("adapter_config.json")).unwrap()).unwrap();
    assert_eq!(config["modules_to_save"], serde_json::json!(["visual.merger"]));
    let adapter =
        String::from_utf8_lossy(&std::fs::read(whole.join("adapter_model.safetensors")).unwrap()).into_owned();
    for tensor in ["ln_q.weight", "mlp.0.weight", "mlp.0.bias", "mlp.2.weight", "mlp.2.bias"] {
        assert!(adapter.contains(&format!("\"base_model.model.model.visual.merger.{tensor}\"")), "{tensor} is missing");
    }
    let mut guard = start(&dataset, &stopped, &flags);
    wait_for_step(&stopped, 9);
    signal("-INT", guard.id());
    guard.wait().unwrap();
    let resumed = train(&dataset, &stopped, &[&flags[..], &["--resume", "auto"]].concat());
    assert!(resumed.status.success(), "{}", told(&resumed));
    assert_eq!(losses(&whole), losses(&stopped));
    // The merge is proven against the base with its adapter.
    let words = [
        "export",
        "--base-model",
        "testdata/tiny-model",
        "--adapter",
        whole.to_str().unwrap(),
        "--output-dir",
        merged.to_str().unwrap(),
    ];
    let done = run(&words);
    assert!(done.status.success(), "{}", told(&done));
    // Memory that the modules need is planned.
    let planned = |more: &[&str]| -> u64 {
        let fixed = [
            "plan",
            "--base-model",
            "testdata/tiny-model",
            "--dataset",
            dataset.to_str().unwrap(),
            "--device",
            "cpu",
            "--format",
            "json",
        ];
        let done = run(&[&fixed[..], more].concat());
        let plan: Value = serde_json::from_slice(&done.stdout).unwrap_or_else(|_| panic!("{}", told(&done)));
        let lines = plan["plan"]["lines"].as_array().unwrap_or_else(|| panic!("{plan}"));
        lines
            .iter()
            .filter(|line| line["purpose"] == "optimizer" || line["purpose"] == "gradients")
            .map(|line| line["bytes"].as_u64().unwrap())
            .sum()
    };
    // Tied to its embedding, the head cannot be saved alone.
    let head = train(&dataset, &folder.join("head"), &["--modules-to-save", "lm_head"]);
    assert_eq!(head.status.code(), Some(2), "{}", told(&head));
    assert!(told(&head).contains("`lm_head` cannot be among the modules to save"), "{}", told(&head));
    assert!(planned(&["--modules-to-save", "visual.merger"]) > planned(&[]));
}

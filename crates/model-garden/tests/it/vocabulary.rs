//! One word for one thing on the command line, the older words that still work, and what a newcomer types first.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::fs;
use std::path::Path;
use std::process::Output;

use crate::common::{has_python, model_garden, picture_rows, run, scratch, told};
use expect_test::expect;
use serde_json::Value;

const MODEL: &str = "testdata/tiny-model";

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", told(output)))
}

/// Whatever GPUs there are, they are not seen.
fn on_cpu(words: &[&str]) -> Output {
    model_garden(words).env("CUDA_VISIBLE_DEVICES", "").output().unwrap()
}

#[test]
fn older_names_say_the_same() {
    let folder = scratch("vocabulary");
    let rows = picture_rows(&folder, 3, |row| format!("{row}?"));
    let rows = rows.to_str().unwrap();
    let same = |new: &[&str], old: &[&str]| {
        let (new, old) = (run(new), run(old));
        assert!(new.status.success(), "{}", told(&new));
        assert_eq!(json(&new), json(&old));
    };
    same(
        &["check", rows, "--model", MODEL, "--threads", "1", "--format", "json"],
        &["check", rows, "--base-model", MODEL, "--threads", "1", "--format", "json"],
    );
    same(&["preview", rows, "--model", MODEL, "--format", "json"], &["preview", rows, "--base-model", MODEL, "--json"]);
    same(&["devices", "--format", "json"], &["devices", "--json"]);
    let ask = ["generate", "--model", MODEL, "--prompt", "Hello.", "--max-new-tokens", "2", "--device", "cpu"];
    let text = |more: &[&str]| json(&run(&[&ask[..], more].concat()))["answers"].clone();
    let said = text(&["--system-prompt", "Be short.", "--format", "json"]);
    assert!(!said.is_null());
    assert_eq!(said, text(&["--system", "Be short.", "--json"]));
    let packed = |name: &str, words: &[&str]| {
        let to = folder.join(name);
        let words: Vec<&str> =
            words.iter().map(|word| if *word == "OUT" { to.to_str().unwrap() } else { word }).collect();
        let done = run(&[&["quantise"], &words[..]].concat());
        assert!(done.status.success(), "{}", told(&done));
        fs::read(to.join("config.json")).unwrap()
    };
    let new = packed("new", &["--model", MODEL, "--output-dir", "OUT", "--format", "json"]);
    assert_eq!(new, packed("old", &[MODEL, "OUT", "--json"]));
    let short = run(&["quantise", MODEL]);
    assert_eq!(short.status.code(), Some(2), "{}", told(&short));
}

/// Recipes and the records of runs that an earlier version has written.
#[test]
fn recipes_of_earlier_versions_train_and_resume() {
    let folder = scratch("vocabulary-recipe");
    let rows = picture_rows(&folder, 4, |row| format!("{row}?"));
    let (recipe, output) = (folder.join("run.toml"), folder.join("out"));
    let settings = |name: &str, steps: usize| {
        format!(
            "{name} = '{MODEL}'\ndataset = '{}'\noutput-dir = '{}'\nmax-steps = {steps}\nsave-steps = 2\nmax-pixels = 12544\n\
             warmup-steps = 0\nthreads = 1\ndevice = 'cpu'\nlr-scheduler = 'constant'\n",
            rows.display(),
            output.display()
        )
    };
    fs::write(&recipe, settings("base-model", 2)).unwrap();
    let words = ["train-vision", "--config", recipe.to_str().unwrap()];
    let trained = run(&words);
    assert!(trained.status.success(), "{}", told(&trained));
    // What an earlier version would have left: every record with the older name.
    let mut changed = 0;
    rename_in(&output, &mut changed);
    assert!(changed >= 2, "{changed} records name the model");
    fs::write(&recipe, settings("model", 4)).unwrap();
    let resumed = run(&[&words[..], &["--resume", "auto"]].concat());
    assert!(resumed.status.success(), "{}", told(&resumed));
    assert!(told(&resumed).contains("resuming from"), "{}", told(&resumed));
    let written = fs::read_to_string(output.join("recipe.toml")).unwrap();
    assert!(written.contains("model = ") && !written.contains("base-model"), "{written}");
}

/// Writes the model's older name into every record of a run.
fn rename_in(folder: &Path, changed: &mut usize) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rename_in(&path, changed);
        } else if let Ok(text) = fs::read_to_string(&path) {
            let older = text.replace("\nmodel = ", "\nbase-model = ").replace("\"model\":\"", "\"base-model\":\"");
            let older = older.replace("\"model\": \"testdata", "\"base-model\": \"testdata");
            if older != text {
                *changed += 1;
                fs::write(&path, older).unwrap();
            }
        }
    }
}

#[test]
fn hidden_commands_and_options_are_never_suggested() {
    for (words, wrong) in [
        (&["train"][..], "train-worker"),
        (&["train-work"], "train-worker"),
        (&["serve-jo"], "serve-job"),
        (&["audit", "a:b", "--forge"], "--forget"),
        (&["train-vision", "--debug-leek", "1"], "--debug-leak"),
        (&["generate", "--jsn"], "--json"),
        // Not hidden, but something else.
        (&["train-vision", "--train-vision"], "--train-file"),
        (&["train-vision", "--lora-vision"], "--lora-r"),
        (&["check", "--dataset", "x"], "--dataset-weights"),
    ] {
        let refused = run(words);
        assert_eq!(refused.status.code(), Some(2), "{words:?}");
        assert!(!told(&refused).contains(wrong), "{}", told(&refused));
    }
    expect![[r#"
        exit 2
        ----- stderr
        error: unrecognized subcommand 'train'

          tip: a similar subcommand exists: 'train-vision'

        Usage: model-garden <COMMAND>

        For more information, try '--help'.
    "#]]
    .assert_eq(&told(&run(&["train"])));
    assert!(told(&run(&["train-vision", "--learning-rte", "1"])).contains("exists: '--learning-rate'"));
    let help = told(&run(&["--help"]));
    assert!(!help.contains("serve-job") && !help.contains("train-worker"), "{help}");
}

/// Our own options come before the command, and its own are left to it, with `--` or without.
#[test]
fn a_command_needs_no_dashes_before_it() {
    if !has_python() {
        return;
    }
    let folder = scratch("vocabulary-monitor");
    let trace = folder.join("trace.jsonl");
    let script = "import sys, time; print('given', sys.argv[1:]); time.sleep(0.8)";
    let ours = ["--plain", "--interval", "100ms", "-o", trace.to_str().unwrap()];
    for dashes in [&[][..], &["--"]] {
        for command in ["monitor", "run"] {
            let words =
                [&[command], &ours[..], dashes, &["python3", "-c", script, "--interval", "7", "--help"]].concat();
            let output = run(&words);
            assert!(told(&output).contains("given ['--interval', '7', '--help']"), "{words:?}: {}", told(&output));
        }
    }
    let mistyped = run(&["monitor", "--intervl", "1s", "python3", "x.py"]);
    assert!(told(&mistyped).contains("'--interval'"), "{}", told(&mistyped));
    let script = folder.join("train.py");
    fs::write(&script, "print(1)\n").unwrap();
    let refused = run(&["monitor", "-o", trace.to_str().unwrap(), script.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        told(&refused).contains(&format!("hint: a Python file needs its interpreter: `python {}`", script.display()))
    );
}

/// The step pattern of the help, as it is shown there.
#[test]
fn the_step_pattern_of_the_help_finds_steps() {
    if !has_python() {
        return;
    }
    let help = told(&run(&["monitor", "--help"]));
    let after = help.split("--step-pattern").nth(1).unwrap();
    let pattern = after.split("for example '").nth(1).unwrap().split('\'').next().unwrap();
    let folder = scratch("vocabulary-pattern");
    let trace = folder.join("trace.jsonl");
    let script = "import time\nfor n in range(8): print('iter', n, flush=True); time.sleep(0.15)";
    let words = ["monitor", "--plain", "--interval", "100ms", "-o", trace.to_str().unwrap(), "--step-pattern", pattern];
    run(&[&words[..], &["python3", "-c", script]].concat());
    let written = fs::read_to_string(&trace).unwrap();
    assert!(written.contains("\"step\":7"), "{written}");
}

#[test]
fn a_dry_run_works_on_a_used_folder_and_says_what_would_happen() {
    let folder = scratch("vocabulary-dry");
    let rows = picture_rows(&folder, 4, |row| format!("{row}?"));
    let output = folder.join("out");
    let (rows, output) = (rows.to_str().unwrap(), output.to_str().unwrap());
    let fixed = ["train-vision", "--model", MODEL, "--dataset", rows, "--output-dir", output, "--device", "cpu"];
    let rest = ["--max-pixels", "12544", "--threads", "1", "--max-steps", "2", "--warmup-steps", "0"];
    let words = [&fixed[..], &rest].concat();
    let dry = |more: &[&str]| on_cpu(&[&words[..], &["--dry-run"], more].concat());
    let before = dry(&[]);
    assert!(before.status.success(), "{}", told(&before));
    assert!(told(&before).contains("Training would start in"), "{}", told(&before));
    assert!(!Path::new(output).exists());
    assert_eq!(json(&dry(&["--format", "json"]))["would"], "start");
    assert!(on_cpu(&words).status.success());
    let refused = dry(&[]);
    assert_eq!(refused.status.code(), Some(0), "{}", told(&refused));
    let text = told(&refused);
    assert!(text.contains("fits into") && text.contains("Training would be refused:"), "{text}");
    assert!(text.contains("--resume auto"), "{text}");
    let told_so = json(&dry(&["--format", "json"]));
    assert_eq!((&told_so["would"], &told_so["fits"]), (&"refuse".into(), &true.into()));
    let resumed = json(&dry(&["--resume", "auto", "--format", "json"]));
    assert_eq!(resumed["would"], "resume");
    assert!(resumed["resume_from"].as_str().unwrap().ends_with("checkpoint-2"), "{resumed}");
    // Without the look it is refused as before.
    assert_eq!(on_cpu(&words).status.code(), Some(2));
}

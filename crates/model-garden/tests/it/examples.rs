//! The examples of every `--help`, run as they stand there in a folder that has what they name. A test beside the command line's definition parses all of
//! them; those that cannot run here are listed with the reason.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::common::{has_python, picture_rows, repository, run, scratch, told};

/// Commands whose examples run here, and what some of their words are replaced by: what a released model would take minutes for, a tiny one does.
const RUN: [&str; 13] = [
    "", "diagnose", "compare", "monitor", "run", "check", "preview", "plan", "generate", "quantise", "export",
    "doctor", "man",
];

/// Parts of examples that cannot run here, and why.
const LEFT_OUT: [(&str, &str); 7] = [
    ("mprof run", "needs memory_profiler"),
    ("nvidia-smi", "needs a GPU, and never ends"),
    ("--pid 4711", "that is no process"),
    ("--find-training", "would watch somebody else's training"),
    ("--prompts questions.jsonl", "sampling at length; the other two examples load and answer"),
    ("model-garden demo", "a minute; it has a test of its own"),
    ("man -l -", "needs man"),
];

/// The examples in the help of a command.
fn examples(command: &str) -> Vec<String> {
    let words: Vec<&str> = [command, "--help"].into_iter().filter(|word| !word.is_empty()).collect();
    let help = String::from_utf8(run(&words).stdout).unwrap();
    let after = help.split("Examples:\n").nth(1).unwrap_or_else(|| panic!("`{command}` has no examples")).to_string();
    let mut examples: Vec<String> = Vec::new();
    for line in after.lines().take_while(|line| line.starts_with("  ")) {
        match examples.last_mut().filter(|last| last.ends_with('\\')) {
            Some(last) => *last += &format!("\n{line}"),
            None => examples.push(line.trim().to_string()),
        }
    }
    examples
}

/// Everything that examples name.
fn furnish(folder: &Path) {
    let link = |from: &str, to: &str| {
        let to = folder.join(to);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        symlink(repository(from).canonicalize().unwrap(), to).unwrap();
    };
    link("testdata/production/run2.log", "train.log");
    link("testdata/production/run2.csv", "memory.csv");
    link("testdata/production/run1.csv", "before.csv");
    link("testdata/production/run2.csv", "after.csv");
    link("testdata/traces/c_flat.csv", "before.jsonl");
    link("testdata/traces/c_flat.csv", "after.jsonl");
    for name in ["a1", "a2", "a3", "b1", "b2", "b3"] {
        link("testdata/traces/c_flat.csv", &format!("{name}.jsonl"));
    }
    link("testdata/tiny-model", "DIR");
    link("testdata/tiny-model", "Qwen/Qwen2.5-VL-3B-Instruct");
    let seconds: String =
        (0..30).map(|second| format!("2026/11/16 10:00:{second:02}.000, 1, 1000 MiB, 24000 MiB\n")).collect();
    fs::write(folder.join("gpus.csv"), format!("timestamp, index, memory.used [MiB], memory.total [MiB]\n{seconds}"))
        .unwrap();
    fs::write(
        folder.join("train.py"),
        "import time\nfor n in range(120): print(f'Step {n}', flush=True); time.sleep(0.01)\n",
    )
    .unwrap();
    let rows = picture_rows(folder, 12, |row| format!("{row}?"));
    fs::copy(&rows, folder.join("boxes.jsonl")).unwrap();
    // Row 17 is previewed.
    let lines = fs::read_to_string(&rows).unwrap().repeat(2);
    fs::write(&rows, &lines).unwrap();
    fs::create_dir_all(folder.join("data")).unwrap();
    fs::write(folder.join("data/validation.jsonl"), &lines).unwrap();
    for (name, picture) in [("sign.jpg", "jpg"), ("a.png", "png"), ("b.png", "png")] {
        let mut all: Vec<_> = fs::read_dir(repository("testdata/data/recorded/pictures"))
            .unwrap()
            .map(|file| file.unwrap().path())
            .filter(|path| path.extension().is_some_and(|ending| ending == picture))
            .collect();
        all.sort();
        fs::copy(&all[0], folder.join(name)).unwrap();
    }
}

fn shell(folder: &Path, line: &str) -> Output {
    let binary = Path::new(env!("CARGO_BIN_EXE_model-garden")).parent().unwrap().to_str().unwrap();
    let path = format!("{binary}:{}:{}", folder.join("bin").display(), std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("bash");
    command
        .args(["-c", line])
        .current_dir(folder)
        .env("PATH", path)
        .env("HOME", folder)
        .env("CUDA_VISIBLE_DEVICES", "");
    command.env_remove("XDG_STATE_HOME").env_remove("VIRTUAL_ENV").stdin(Stdio::null()).output().unwrap()
}

#[test]
fn the_examples_of_the_help_run() {
    if !has_python() {
        return;
    }
    let folder = scratch("examples");
    furnish(&folder);
    // On a machine without `python` there is `python3`.
    fs::create_dir_all(folder.join("bin")).unwrap();
    fs::write(folder.join("bin/python"), "#!/bin/sh\nexec python3 \"$@\"\n").unwrap();
    fs::write(folder.join("bin/accelerate"), "#!/bin/sh\nshift; exec python3 \"$@\"\n").unwrap();
    assert!(shell(&folder, "chmod +x bin/*").status.success());
    // An adapter for those who use one.
    let trained = shell(
        &folder,
        "model-garden train-vision --model DIR --dataset train.jsonl --output-dir out --max-steps 100 --save-steps 100 --max-pixels 12544 \
         --warmup-steps 0 --threads 2 --device cpu",
    );
    assert!(trained.status.success(), "{}", told(&trained));
    let mut count = 0;
    for command in RUN {
        for example in examples(command) {
            if let Some((_, why)) = LEFT_OUT.iter().find(|(part, _)| example.contains(part)) {
                eprintln!("not run, {why}: {example}");
                continue;
            }
            let output = shell(&folder, &example);
            // Bad news, such as a plan that does not fit into this machine, and too little data are answers; an error is none.
            let is_answer = matches!(output.status.code(), Some(0 | 1 | 3));
            assert!(is_answer, "`{example}`: {}", told(&output));
            count += 1;
        }
    }
    assert!(count >= 30, "only {count} examples ran");
}

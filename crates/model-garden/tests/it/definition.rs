//! Completions and man pages, in the programs that they are for.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::fs;
use std::process::{Command, Stdio};

use crate::common::{run, scratch, told};

fn is_there(program: &str) -> bool {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !found {
        garden_testing::skip(&format!("{program} is not installed"));
    }
    found
}

#[test]
fn bash_completes_commands_and_options() {
    if !is_there("bash") {
        return;
    }
    let folder = scratch("completions");
    let file = folder.join("model-garden");
    fs::write(&file, run(&["completions", "bash"]).stdout).unwrap();
    let complete = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let script = format!(
            "source {}; function=$(complete -p model-garden | sed 's/.*-F \\([^ ]*\\).*/\\1/'); \
             COMP_WORDS=({}); COMP_CWORD={}; $function model-garden '{}' '{}'; echo \"${{COMPREPLY[@]}}\"",
            file.display(),
            words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" "),
            words.len() - 1,
            words[words.len() - 1],
            words[words.len() - 2],
        );
        let done = Command::new("bash").args(["--norc", "-c", &script]).output().unwrap();
        assert!(done.status.success() && done.stderr.is_empty(), "{}", told(&done));
        String::from_utf8(done.stdout).unwrap().trim().to_string()
    };
    assert_eq!(complete("model-garden mon"), "monitor");
    assert_eq!(complete("model-garden train"), "train-vision");
    assert_eq!(complete("model-garden monitor --find"), "--find-training");
    assert_eq!(complete("model-garden diagnose --format j"), "json");
    assert_eq!(complete("model-garden generate --js"), "");
    assert_eq!(complete("model-garden train-vision --debug"), "");
    assert_eq!(complete("model-garden train-vision --load-in"), "--load-in-4bit");
    let all = complete("model-garden ");
    assert!(all.contains("doctor") && !all.contains("serve-job") && !all.contains("train-worker"), "{all}");
}

#[test]
fn zsh_and_fish_know_every_command() {
    for shell in ["zsh", "fish"] {
        let script = String::from_utf8(run(&["completions", shell]).stdout).unwrap();
        assert!(script.contains("train-vision") && !script.contains("train-worker"), "{shell}");
        assert!(script.contains("find-training") && !script.contains("debug-leak"), "{shell}");
        if is_there(shell) {
            let file = scratch(&format!("completions-{shell}")).join("script");
            fs::write(&file, &script).unwrap();
            let read = Command::new(shell).arg("-n").arg(&file).output().unwrap();
            assert!(read.status.success() && read.stderr.is_empty(), "{shell}: {}", told(&read));
        }
    }
}

#[test]
fn man_pages_render_without_warnings() {
    let folder = scratch("man");
    let written = run(&["man", folder.to_str().unwrap()]);
    assert!(written.status.success(), "{}", told(&written));
    let mut pages: Vec<String> =
        fs::read_dir(&folder).unwrap().map(|page| page.unwrap().file_name().into_string().unwrap()).collect();
    pages.sort();
    assert!(pages.contains(&"model-garden.1".to_string()) && pages.contains(&"model-garden-monitor.1".to_string()));
    assert!(!pages.iter().any(|page| page.contains("worker") || page.contains("serve-job")), "{pages:?}");
    assert_eq!(run(&["man"]).stdout, fs::read(folder.join("model-garden.1")).unwrap());
    if !is_there("groff") {
        return;
    }
    for page in &pages {
        let done = Command::new("groff").args(["-man", "-ww", "-Tutf8", "-K", "utf8"]).arg(folder.join(page)).output();
        let done = done.unwrap();
        assert!(done.status.success() && done.stderr.is_empty(), "{page}: {}", told(&done));
    }
    let page = folder.join("model-garden-run.1");
    let shown = Command::new("groff").args(["-man", "-Tascii", "-P-cbou"]).arg(page).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("  model-garden run --memory-limit 28GB python train.py --output_dir out\n"), "{shown}");
}

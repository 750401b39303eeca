//! `model-garden run` on programs that a guard could get wrong.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Killed, has_python, model_garden, run, scratch, told};

/// What a pipe takes before whoever writes to it has to wait.
const PIPE_BYTES: usize = 65_536;

/// The words that guard one mode of `odd.py` with a limit of 500 MiB.
fn words(folder: &Path, mode: &str, steps: &str, flags: &[&str]) -> Vec<String> {
    let out = folder.join("out").to_str().unwrap().to_string();
    let fixed = ["run", "--interval", "100ms", "--memory-limit", "500MB", "--checkpoint-dir", &out, "-o"];
    let trace = folder.join("trace.jsonl").to_str().unwrap().to_string();
    let program = ["--", "python3", "testdata/programs/odd.py", mode, &out, steps];
    let parts: [&[&str]; 4] = [&fixed, &[&trace], flags, &program];
    parts.concat().into_iter().map(String::from).collect()
}

fn guard(mode: &str, steps: &str, flags: &[&str]) -> (Output, PathBuf) {
    let folder = scratch(&format!("odd-{mode}"));
    let words = words(&folder, mode, steps, flags);
    (run(&words.iter().map(String::as_str).collect::<Vec<_>>()), folder)
}

fn talk(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn evaluations_that_give_their_memory_back_are_left_alone() {
    if has_python() {
        let (output, _) = guard("evaluates", "60", &[]);
        assert_eq!(output.status.code(), Some(0), "{}", told(&output));
        assert!(!talk(&output).contains("stopping"), "{}", talk(&output));
    }
}

#[test]
fn a_program_that_is_deaf_on_the_channel_is_ended_after_a_checkpoint() {
    if has_python() {
        let (output, _) = guard("deaf", "200", &["--grace", "20s"]);
        assert_eq!(output.status.code(), Some(75), "{}", told(&output));
        assert!(talk(&output).contains("will ask for a checkpoint over the event channel"), "{}", talk(&output));
        assert!(talk(&output).contains("ending it"), "{}", talk(&output));
    }
}

#[test]
fn a_program_that_tells_no_steps_is_asked_before_it_is_ended() {
    if has_python() {
        let (output, folder) = guard("dicts", "300", &[]);
        assert_eq!(output.status.code(), Some(75), "{}", told(&output));
        assert_eq!(std::fs::read_dir(folder.join("out")).unwrap().count(), 1);
    }
}

#[test]
fn a_daemon_is_guarded_until_it_ends() {
    if has_python() {
        let (output, folder) = guard("daemon", "300", &[]);
        assert_eq!(output.status.code(), Some(75), "{}", told(&output));
        assert!(talk(&output).contains("is still running: it is guarded until it ends"), "{}", talk(&output));
        assert_eq!(std::fs::read_dir(folder.join("out")).unwrap().count(), 1);
    }
}

#[test]
fn a_program_that_starts_itself_again_is_the_one_that_trains() {
    if has_python() {
        let (output, _) = guard("again", "300", &[]);
        assert_eq!(output.status.code(), Some(75), "{}", told(&output));
        assert!(talk(&output).contains("will send SIGTERM to process"), "{}", talk(&output));
    }
}

#[test]
fn what_comes_after_the_last_step_is_guarded_too() {
    if has_python() {
        let (output, _) = guard("finale", "30", &["--total-steps", "30"]);
        assert_eq!(output.status.code(), Some(77), "{}", told(&output));
    }
}

#[test]
fn orphans_do_not_pile_up() {
    if !has_python() {
        return;
    }
    let folder = scratch("odd-orphans");
    let words = words(&folder, "orphans", "100", &[]);
    let mut command = model_garden(&words.iter().map(String::as_str).collect::<Vec<_>>());
    let child = Killed(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    std::thread::sleep(Duration::from_secs(3));
    let children =
        Command::new("ps").args(["--no-headers", "-o", "stat", "--ppid", &child.0.id().to_string()]).output();
    let zombies =
        String::from_utf8_lossy(&children.unwrap().stdout).lines().filter(|line| line.starts_with('Z')).count();
    assert!(zombies < 200, "{zombies} zombies");
}

#[test]
fn a_checkpoint_of_another_run_is_not_ours() {
    if !has_python() {
        return;
    }
    let folder = scratch("odd-older");
    let older = folder.join("out/checkpoint-500");
    std::fs::create_dir_all(&older).unwrap();
    std::fs::write(older.join("state.json"), "{}").unwrap();
    let restart = ["--on-limit", "restart", "--max-restarts", "1", "--resume-with", "--x"];
    for (mode, flags, code) in [("leaks", &[][..], 75), ("leaks", &restart[..], 76)] {
        let words = words(&folder, mode, "300", flags);
        let output = run(&words.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(code), "{}", told(&output));
        assert!(talk(&output).contains("there are checkpoints of an earlier run"), "{}", talk(&output));
        assert!(
            !talk(&output).contains("checkpoint-500 is complete") && !talk(&output).contains("from out/checkpoint-500")
        );
    }
}

#[test]
fn nobody_who_reads_does_not_stop_the_guard() {
    if !has_python() {
        return;
    }
    let folder = scratch("odd-unread");
    // A pipe that is nearly full: some lines fill it before the limit is near.
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(&[b' '; PIPE_BYTES - 1024]).unwrap();
    let words = words(&folder, "slow", "400", &[]);
    let swap = |word: &str| word.replace("100ms", "10ms").replace("500MB", "250MB");
    let words: Vec<String> = words.iter().map(|word| swap(word)).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut child = Killed(model_garden(&words).stdout(Stdio::null()).stderr(writer).spawn().unwrap());
    // Nothing is read until long after the limit would have been reached.
    let saved = || std::fs::read_dir(folder.join("out")).is_ok_and(|found| found.count() > 0);
    let patience = Instant::now() + Duration::from_secs(120);
    while !saved() && Instant::now() < patience {
        std::thread::sleep(Duration::from_millis(50));
    }
    let is_saved = saved();
    let mut talk = String::new();
    reader.read_to_string(&mut talk).unwrap();
    assert!(is_saved, "{talk}");
    assert!(talk.len() > PIPE_BYTES, "the pipe was never full: {} bytes", talk.len());
    assert_eq!(child.0.wait().unwrap().code(), Some(75), "{talk}");
}

#[test]
fn a_trace_that_cannot_be_written_is_known_before_anything_runs() {
    let marker = scratch("odd-trace").join("started");
    let script = format!("touch {}", marker.display());
    for command in ["run", "monitor"] {
        let output = run(&[command, "-o", "/no/such/folder/trace.jsonl", "--", "sh", "-c", &script]);
        assert_eq!(output.status.code(), Some(2), "{}", told(&output));
        assert!(talk(&output).contains("choose a file in an existing, writable folder"), "{}", talk(&output));
    }
    std::thread::sleep(Duration::from_millis(200));
    assert!(!marker.exists());
}

#[test]
fn a_limit_that_is_too_small_is_said_so() {
    if has_python() {
        let folder = scratch("odd-small");
        let trace = folder.join("trace.jsonl");
        let script =
            "import time\nblock = bytearray(200 << 20)\nblock[::4096] = b'1' * len(block[::4096])\ntime.sleep(5)";
        let words = ["run", "--interval", "50ms", "--memory-limit", "60MB", "-o", trace.to_str().unwrap(), "--"];
        let output = run(&[&words[..], &["python3", "-c", script]].concat());
        assert_eq!(output.status.code(), Some(77), "{}", told(&output));
        assert!(talk(&output).contains("the limit is too small for it"), "{}", talk(&output));
    }
}

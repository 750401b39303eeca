//! The picture in a real terminal: taken, drawn, and given back, whatever happens.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::path::Path;
use std::process::{Command, Output};

use crate::common::{has_python, repository, scratch, told};

const TAKEN: &str = "\u{1b}[?1049h";
const GIVEN_BACK: &str = "\u{1b}[?1049l";

/// Runs the binary in a terminal of this size and presses keys, each written as `TEXT=KEYS`: once the text is shown.
fn in_terminal(size: &str, keys: &[&str], words: &[&str]) -> Output {
    let mut command = Command::new("python3");
    command.arg("testdata/programs/in_terminal.py").arg(size).args(keys).arg("--");
    command.arg(env!("CARGO_BIN_EXE_model-garden")).args(words);
    command.env("TERM", "xterm-256color").env_remove("NO_COLOR").current_dir(repository("")).output().unwrap()
}

/// What the terminal was sent, without the escape sequences that move and colour.
fn letters(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout);
    let mut plain = String::new();
    let mut rest = text.chars();
    while let Some(letter) = rest.next() {
        if letter == '\u{1b}' {
            rest.find(|c| c.is_ascii_alphabetic());
        } else {
            plain.push(letter);
        }
    }
    plain
}

fn check_given_back(output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout);
    let (taken, given) = (text.find(TAKEN).unwrap(), text.rfind(GIVEN_BACK).unwrap());
    assert!(taken < given, "{}", told(output));
    assert!(!text[given..].contains("\u{1b}[?25l"), "the cursor is seen again");
}

fn trace(name: &str) -> String {
    scratch(name).join("trace.jsonl").to_str().unwrap().to_string()
}

#[test]
fn a_watched_command_is_drawn_and_reported() {
    if !has_python() {
        return;
    }
    let trace = trace("terminal-monitor");
    let words = ["monitor", "--interval", "50ms", "-o", &trace, "--", "python3", "testdata/programs/leak.py"];
    let output = in_terminal("80x24", &["q stop watching=?", "help=?", "=o", "=p", "=c", "=+"], &words);
    let shown = letters(&output);
    assert!(shown.contains("q stop watching") && shown.contains("1 process"), "{shown}");
    assert!(shown.contains("╭ help ─"), "the explanations: {shown}");
    check_given_back(&output);
    // After the picture: what the program printed last, and the report of the trace.
    let after = String::from_utf8_lossy(&output.stdout);
    let after = &after[after.rfind(GIVEN_BACK).unwrap()..];
    assert!(after.contains("Step 120: loss") && after.contains("In numbers"), "{after}");
    assert!(Path::new(&trace).exists());
}

#[test]
fn leaving_the_picture_leaves_the_command_alone() {
    if !has_python() {
        return;
    }
    let trace = trace("terminal-quit");
    let words = ["monitor", "--interval", "50ms", "-o", &trace, "--", "sh", "-c", "sleep 5; echo not ended"];
    let output = in_terminal("120x40", &["q stop watching=q"], &words);
    check_given_back(&output);
    let text = String::from_utf8_lossy(&output.stdout);
    let after = &text[text.rfind(GIVEN_BACK).unwrap()..];
    assert!(after.contains("the command keeps running") && after.contains("not ended"), "{after}");
}

#[test]
fn ctrl_c_reaches_the_command() {
    if !has_python() {
        return;
    }
    let trace = trace("terminal-interrupt");
    let words = ["monitor", "--passthrough", "--interval", "50ms", "-o", &trace, "--", "sleep", "30"];
    let output = in_terminal("80x24", &["q stop watching=\\x03"], &words);
    check_given_back(&output);
    assert_eq!(output.status.code(), Some(130), "{}", told(&output));
}

#[test]
fn in_plain_form_the_keyboard_is_the_command_s() {
    if !has_python() {
        return;
    }
    let trace = trace("terminal-plain");
    let script = "import os, sys\nname = input('name? ')\nprint('hello', name, os.get_terminal_size().columns, sys.stdin.isatty())";
    let words = ["monitor", "--plain", "--interval", "200ms", "-o", &trace, "--", "python3", "-c", script];
    let output = in_terminal("97x30", &["name? =World\\n"], &words);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("hello World 97 True"), "{}", told(&output));
    assert!(!text.contains(TAKEN), "{}", told(&output));
}

#[test]
fn a_guarded_command_is_asked_to_save_when_somebody_presses_q() {
    if !has_python() {
        return;
    }
    let folder = scratch("terminal-run");
    let place = |name: &str| folder.join(name).to_str().unwrap().to_string();
    let trainer =
        ["python3", "testdata/programs/trainer.py", "--max_steps", "2000", "--on_sigterm", "save", "--output_dir"];
    let (trace, out) = (place("trace.jsonl"), place("out"));
    let words =
        [&["run", "--interval", "100ms", "--memory-limit", "1GB", "-o", &trace, "--"], &trainer[..], &[&out]].concat();
    let output = in_terminal("200x50", &["guard will send SIGTERM=q"], &words);
    check_given_back(&output);
    assert_eq!(output.status.code(), Some(0), "{}", told(&output));
    let shown = letters(&output);
    assert!(shown.contains("q save and stop") && shown.contains("guard will send SIGTERM"), "{shown}");
    assert_eq!(std::fs::read_dir(&out).unwrap().count(), 1, "the checkpoint that was asked for");
}

/// Colours of a report reach the terminal as colours, not as the text of their codes.
#[test]
fn a_report_is_coloured() {
    if !has_python() {
        return;
    }
    let words = ["diagnose", "testdata/production/run2.log", "--examples", "663", "--batch-size", "8"];
    let output = in_terminal("90x30", &[], &words);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("\u{1b}[1;32mSETTLED\u{1b}[0m"), "{text}");
    assert!(text.contains("\u{1b}[1mIn numbers\u{1b}[0m"), "{text}");
    assert!(!text.contains("\\u001b"), "{text}");
}

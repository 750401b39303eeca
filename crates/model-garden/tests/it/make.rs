//! `make demo` and `make story` find what cargo has built, wherever that is.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]
#![allow(clippy::print_stderr, reason = "a test that is skipped says so")]

use std::process::{Command, Output};

use crate::common::{repository, scratch, told};

/// Runs a goal with a target folder of its own, in which the binary is there already.
fn make(name: &str, words: &[&str]) -> Option<(String, Output)> {
    let target = scratch(name);
    std::fs::create_dir_all(target.join("release")).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_model-garden"), target.join("release/model-garden")).unwrap();
    let mut command = Command::new("make");
    command.current_dir(repository("")).env("CARGO_TARGET_DIR", &target).env_remove("MAKEFLAGS").arg("CARGO=true");
    match command.args(words).output() {
        Ok(output) => Some((target.to_str().unwrap().to_string(), output)),
        Err(_) => {
            garden_testing::missing("make");
            None
        }
    }
}

#[test]
fn the_story_is_told_from_another_target_folder() {
    let Some((_, output)) = make("make-story", &["story"]) else { return };
    // The second run's memory is no good news, so the exit code is that of the verdict.
    let text = told(&output);
    assert!(text.contains("== run 2:") && text.contains("SETTLED"), "{text}");
}

#[test]
fn the_demo_runs_in_another_target_folder() {
    let Some((target, output)) = make("make-demo", &["--dry-run", "demo"]) else { return };
    let text = told(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains(&format!("{target}/release/model-garden demo --output-dir {target}/demo")), "{text}");
}

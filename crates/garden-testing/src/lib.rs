//! What tests of several crates share: the seed of everything drawn at random, and a process of its own for a test that measures one.
//! Only tests depend on it.

#![allow(clippy::print_stdout, reason = "what a test tells is shown when it fails")]

use std::process::Command;

/// Set in the process that [`alone`] starts.
const ALONE: &str = "GARDEN_TEST_ALONE";

/// The seed of random tests: `GARDEN_SEED`, else 1. `make soak` sets it.
///
/// # Panics
/// If `GARDEN_SEED` is no number, since a test that silently draws something else would repeat nothing.
pub fn seed() -> u64 {
    match std::env::var("GARDEN_SEED") {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("GARDEN_SEED={text:?} is not a whole number")),
        Err(_) => 1,
    }
}

/// Runs the test of this name (`module::function`) in a process of its own. It is for tests that measure their own process, where
/// the memory of other tests would count too.
///
/// # Panics
/// If the test fails there, or if no test has this name.
pub fn alone(name: &str, test: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some() {
        return test();
    }
    let program = std::env::current_exe().expect("a running program has a path");
    let output = Command::new(program)
        .args(["--exact", name, "--nocapture", "--include-ignored"])
        .env(ALONE, "1")
        .output()
        .expect("a program that runs can be started again");
    let told = String::from_utf8_lossy(&output.stdout);
    println!("{told}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name} failed in a process of its own: {}", output.status);
    assert!(told.contains("running 1 test"), "no test is called {name}");
}

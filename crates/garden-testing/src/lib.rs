//! Helpers for the tests of several crates: the seed of random draws, a separate process for a test that measures one, and reports of skipped tests.
//! Only tests depend on it.

#![allow(clippy::print_stdout, reason = "what a test tells is shown when it fails")]

use std::io::Write as _;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Set in the process that [`alone`] starts.
const ALONE: &str = "GARDEN_TEST_ALONE";

/// The seed of random tests: `GARDEN_SEED`, else 1. `make soak` sets it.
///
/// # Panics
/// If `GARDEN_SEED` is not a number, since a test that silently draws something else would repeat nothing.
pub fn seed() -> u64 {
    match std::env::var("GARDEN_SEED") {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("GARDEN_SEED={text:?} is not a whole number")),
        Err(_) => 1,
    }
}

/// Reports that this test, or the rest of it, is skipped because a machine may lack what it needs: a GPU, large Python packages, privileges.
/// Written past the test harness, which shows the output of a test only if it fails.
pub fn skip(reason: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_string();
    tell_skip(&test, reason);
}

/// Reports once for all tests of this program that need the same thing: a line for each of them would bury the others.
pub fn skip_all(tests: &str, reason: &str) {
    static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    if !told.iter().any(|one| one == tests) {
        told.push(tests.to_string());
        tell_skip(tests, reason);
    }
}

/// Reports that this test is skipped for want of a program that every machine of ours has.
///
/// # Panics
/// In CI, where that means that the test could have run and did not.
pub fn missing(program: &str) {
    assert!(
        std::env::var_os("CI").is_none_or(|ci| ci.is_empty()),
        "CI runs every test that needs `{program}`: install it"
    );
    skip(&format!("`{program}` is not installed"));
}

fn tell_skip(tests: &str, reason: &str) {
    drop(writeln!(std::io::stderr(), "skipped: {tests}: {reason}"));
}

/// Runs the test of this name (`module::function`) in a separate process, for tests that measure their own process: the memory of other tests would
/// count too.
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

/// CPU time of this process so far, in hundredths of a second. Unlike wall time it does not grow on a busy machine.
///
/// # Panics
/// Where there is no /proc, or one that is not Linux's.
pub fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux tells what a process used");
    // Behind the name, which may hold anything: state is the first, user and system time the 12th and 13th.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).map(|field| field.parse::<u64>().expect("times are numbers")).sum();
    Duration::from_millis(10 * ticks)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::time::{Duration, Instant};

    /// `make soak` runs the tests that the Makefile lists under `RANDOM`: each file of tests that draws must be among them.
    #[test]
    fn every_random_test_is_soaked() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let makefile = fs::read_to_string(root.join("Makefile")).expect("the repository has a Makefile");
        let listed = makefile.lines().find_map(|line| line.strip_prefix("RANDOM := ")).expect("it lists random tests");
        let mut count = 0;
        for member in fs::read_dir(root.join("crates")).expect("the repository has crates").flatten() {
            let files = fs::read_dir(member.path().join("tests/it")).into_iter().flatten().flatten();
            for path in files.map(|file| file.path()).filter(|path| path.is_file()) {
                let text = fs::read_to_string(&path).expect("a file of tests is text");
                let module = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default().to_string() + "::";
                if text.contains("garden_testing::seed()") {
                    count += 1;
                    let is_listed = listed.split_whitespace().any(|test| test.starts_with(&module));
                    assert!(is_listed, "{module} draws at random, and `RANDOM` in the Makefile does not list it");
                }
            }
        }
        assert!(count > 5, "{count} files of random tests");
    }

    #[test]
    fn only_what_is_computed_counts() {
        super::alone("tests::only_what_is_computed_counts", || {
            let before = super::cpu_time();
            std::thread::sleep(Duration::from_millis(300));
            assert!(super::cpu_time() - before < Duration::from_millis(100), "sleeping is not computing");
            let begin = Instant::now();
            while super::cpu_time() - before < Duration::from_millis(200) {
                assert!(begin.elapsed() < Duration::from_secs(60), "computing is not counted");
            }
        });
    }
}

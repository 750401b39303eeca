//! Runs the real binary.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot set itself up must fail")]
#![allow(dead_code, reason = "each test file uses its own part of this")]

pub mod browser;
pub mod http;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;

use serde_json::json;

/// A file of the repository, given its path from the root.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// A folder for one test's files; emptied first. Two tests of one folder would empty it under each other's feet.
pub fn scratch(name: &str) -> PathBuf {
    static OWNERS: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());
    let test = std::thread::current().name().unwrap_or_default().to_string();
    let owner = OWNERS.lock().unwrap().entry(name.to_string()).or_insert_with(|| test.clone()).clone();
    assert_eq!(owner, test, "two tests use the folder {name}");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    drop(std::fs::remove_dir_all(&folder));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// The binary with these words, run in the repository's root so that reports show short paths.
pub fn model_garden(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_model-garden"));
    command.args(words).current_dir(repository("")).env_remove("NO_COLOR").stdin(Stdio::null());
    // Traces that a test has no use for.
    command.env("XDG_STATE_HOME", Path::new(env!("CARGO_TARGET_TMPDIR")).join("state"));
    command
}

/// The process that trains under a guard, if there is one by now. A process that looks for a GPU comes before it.
pub fn trainer_of(guard: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{guard}/task/{guard}/children")).unwrap_or_default();
    let trains = |pid: &&str| {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.split(|byte| *byte == 0).any(|word| word == b"train-worker")
    };
    children.split_whitespace().find(trains)?.parse().ok()
}

/// Whether a process catches a signal by now.
pub fn catches(pid: u32, signal: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    mask.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).unwrap() & (1 << (signal - 1)) != 0)
}

/// A process that ends with its test, whatever happens.
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Runs the binary to its end.
pub fn run(words: &[&str]) -> Output {
    model_garden(words).output().unwrap()
}

/// Runs the binary with this text on its standard input.
pub fn run_with_input(words: &[&str], input: &[u8]) -> Output {
    let mut child =
        model_garden(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    let bytes = input.to_vec();
    // Written from another thread: a child that answers before it has read everything must not block us.
    let writer = std::thread::spawn(move || drop(pipe.write_all(&bytes)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

/// Rows about pictures of several kinds and sizes, with answers in JSON; `question` says what is asked about a row.
pub fn picture_rows(folder: &Path, rows: usize, question: impl Fn(usize) -> String) -> PathBuf {
    let mut pictures: Vec<PathBuf> = std::fs::read_dir(repository("testdata/data/recorded/pictures"))
        .unwrap()
        .map(|file| file.unwrap().path().canonicalize().unwrap())
        .filter(|path| path.extension().is_some_and(|ending| ending == "jpg" || ending == "png"))
        .collect();
    pictures.sort();
    let line = |row: usize| {
        let picture = &pictures[row % pictures.len()];
        let answer = json!({"number": row % 10, "kind": if row.is_multiple_of(2) { "even" } else { "odd" }});
        let line = json!({"prompt": question(row), "image": picture, "response": answer.to_string()});
        line.to_string() + "\n"
    };
    let path = folder.join("train.jsonl");
    std::fs::write(&path, (0..rows).map(line).collect::<String>()).unwrap();
    path
}

/// Whether Python is there; says so if not.
pub fn has_python() -> bool {
    let found =
        Command::new("python3").arg("--version").stdout(Stdio::null()).status().is_ok_and(|status| status.success());
    if !found {
        garden_testing::missing("python3");
    }
    found
}

/// Exit code, standard output and standard error as one text, for snapshots.
pub fn told(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let code = output.status.code().map_or("killed".into(), |code| code.to_string());
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    let mut told = format!("exit {code}\n");
    for (name, stream) in [("stdout", out), ("stderr", err)] {
        if !stream.is_empty() {
            told += &format!("----- {name}\n{stream}");
        }
    }
    told
}

/// The diagnosis of a trace as JSON, and the exit code.
pub fn diagnose(trace: &str, flags: &[&str]) -> (serde_json::Value, i32) {
    let words = [&["diagnose", trace, "--format", "json"], flags].concat();
    let output = run(&words);
    let json =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{words:?}: {error}: {}", told(&output)));
    (json, output.status.code().unwrap())
}

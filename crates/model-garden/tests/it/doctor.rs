//! `model-garden doctor` on this machine, and where something is taken away from it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::common::{model_garden, scratch, told};
use serde_json::Value;

/// Whatever GPUs there are, they are not seen.
fn doctor(words: &[&str]) -> Command {
    let mut command = model_garden(&[&["doctor"], words].concat());
    command.env("CUDA_VISIBLE_DEVICES", "").env_remove("VIRTUAL_ENV");
    command
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", told(output)))
}

/// The binary in a shell that does something first.
fn in_shell(first: &str) -> Output {
    let script = format!("{first}; exec \"$0\" doctor --format json");
    let mut command = Command::new("sh");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_model-garden")]);
    command.env("CUDA_VISIBLE_DEVICES", "").env_remove("VIRTUAL_ENV").output().unwrap()
}

#[test]
fn this_machine_is_described() {
    let output = doctor(&["--format", "json"]).output().unwrap();
    let found = json(&output);
    assert_eq!(found["ok"] == true, output.status.code() == Some(0), "{}", told(&output));
    let machine = &found["machine"];
    let total = machine["memory"]["total_bytes"].as_u64().unwrap();
    let free = machine["memory"]["free_bytes"].as_u64().unwrap();
    assert!(0 < free && free <= total, "{machine:#}");
    assert_eq!(machine["cpu"]["usable"], std::thread::available_parallelism().unwrap().get());
    assert!(machine["largest_model"]["needed_bytes"].as_u64() > Some(1 << 30), "{machine:#}");
    let text = String::from_utf8(doctor(&[]).output().unwrap().stdout).unwrap();
    let first = text.lines().next().unwrap();
    assert!(found["summary"].as_str().unwrap().starts_with(&first[..20]), "{first}");
    for name in ["CPU", "memory", "GPU", "/dev/shm", "ulimits", "processes", "disk", "Python"] {
        assert!(text.lines().any(|line| line.starts_with(&format!("  {name} "))), "{name}: {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}

#[test]
fn without_anything_in_the_path_python_is_only_missed_where_it_is_needed() {
    let without = |words: &[&str]| doctor(words).env("PATH", "").output().unwrap();
    let found = json(&without(&["--format", "json", "monitor"]));
    assert_eq!(found["ok"], true, "{found:#}");
    assert!(found["machine"]["python_problem"].as_str().unwrap().contains("python3"), "{found:#}");
    let asked = without(&["python"]);
    assert_eq!(asked.status.code(), Some(1), "{}", told(&asked));
    assert!(told(&asked).contains("No Python: ") && told(&asked).contains("fix: install Python 3"), "{}", told(&asked));
    let gpu = without(&["gpu"]);
    assert_eq!(gpu.status.code(), Some(1), "{}", told(&gpu));
    assert!(told(&gpu).contains("There is no GPU"), "{}", told(&gpu));
}

/// One that never answers, one that says something else, and one that fails.
#[test]
fn a_python_that_is_none_does_not_keep_anybody_waiting() {
    let folder = scratch("doctor-python");
    let program = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    };
    let ask = |path: &Path| {
        let begin = Instant::now();
        let output = doctor(&["python", "--python", path.to_str().unwrap()]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", told(&output));
        assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
        told(&output)
    };
    // Its child holds the pipe open after it.
    let slow = ask(&program("slow", "sleep 60 & wait"));
    assert!(slow.contains("has not answered within 5 s"), "{slow}");
    let wrong = ask(&program("wrong", "echo hello"));
    assert!(wrong.contains("is no Python that works"), "{wrong}");
    let failing = ask(&program("failing", "exit 3"));
    assert!(failing.contains("is no Python that works"), "{failing}");
    let missing = ask(&folder.join("none"));
    assert!(missing.contains("cannot start"), "{missing}");
}

#[test]
fn limits_of_the_shell_are_named_with_what_lifts_them() {
    let output = in_shell("ulimit -v 4000000; ulimit -n 200");
    let found = json(&output);
    assert_eq!(output.status.code(), Some(1), "{found:#}");
    assert!(found["summary"].as_str().unwrap().starts_with("The address space of a process is limited to 3.81 GiB"));
    assert_eq!(found["machine"]["ulimits"]["open_files"], 200);
    let findings = found["findings"].as_array().unwrap();
    let of = |part: &str| findings.iter().find(|one| one["what"].as_str().unwrap().contains(part)).unwrap();
    assert_eq!(of("address space")["level"], "problem");
    assert!(of("address space")["fix"].as_str().unwrap().contains("ulimit -v unlimited"));
    assert_eq!(of("200 files")["level"], "note");
}

/// A control group of our own, removed in the end.
struct Group(PathBuf);

impl Group {
    /// One with a memory limit; `None` where we may not make any.
    fn with(limit: u64) -> Option<Group> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let older = own.lines().find_map(|line| line.split_once(":memory:").map(|(_, path)| path.to_string()));
        let newer = own.lines().find_map(|line| line.strip_prefix("0::").map(str::to_string));
        let name = format!("doctor-test-{}", std::process::id());
        let (folder, file) = match older {
            Some(path) => (format!("/sys/fs/cgroup/memory{path}"), "memory.limit_in_bytes"),
            None => (format!("/sys/fs/cgroup{}", newer?), "memory.max"),
        };
        let folder = Path::new(&folder).join(name);
        fs::create_dir(&folder).ok()?;
        let group = Group(folder);
        fs::write(group.0.join(file), limit.to_string()).ok()?;
        Some(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        drop(fs::remove_dir(&self.0));
    }
}

#[test]
fn a_control_group_that_is_too_small_is_named() {
    let Some(group) = Group::with(1 << 30) else {
        return garden_testing::skip("control groups cannot be made here");
    };
    let output = in_shell(&format!("echo $$ > {}/cgroup.procs || exit 9", group.0.display()));
    if output.status.code() == Some(9) {
        return garden_testing::skip("processes cannot be moved to a control group here");
    }
    let found = json(&output);
    assert_eq!(output.status.code(), Some(1), "{found:#}");
    assert_eq!(found["machine"]["memory"]["group_limit_bytes"], 1 << 30);
    let summary = found["summary"].as_str().unwrap();
    assert!(summary.starts_with("Too little memory: ") && summary.contains("qwen2.5-vl-3b"), "{summary}");
    assert!(found["facts"]["limit"].as_str().unwrap().starts_with("1.00 GiB by the control group /"), "{found:#}");
}

//! `model-garden monitor` as a gate for CI: what a failed command, a leak and a failed assertion end with.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::{has_python, model_garden, run, scratch, told};

/// Watches a command with these flags.
fn monitor(name: &str, flags: &[&str], command: &[&str]) -> Output {
    let trace = scratch(&format!("gate-{name}")).join("trace.jsonl");
    let fixed = ["monitor", "--interval", "50ms", "-o", trace.to_str().unwrap()];
    run(&[&fixed[..], flags, &["--"], command].concat())
}

#[test]
fn a_command_that_fails_has_a_code_of_its_own() {
    for script in ["exit 5", "kill -9 $$", "sleep 0.2; kill -15 $$"] {
        let output = monitor("failed", &[], &["sh", "-c", script]);
        assert_eq!(output.status.code(), Some(4), "{script}: {}", told(&output));
    }
    let output = monitor("passed-through", &["--passthrough"], &["sh", "-c", "exit 5"]);
    assert_eq!(output.status.code(), Some(5), "{}", told(&output));
    // Too little data, but no failure.
    assert_eq!(monitor("fine", &[], &["true"]).status.code(), Some(3));
}

#[test]
fn a_command_that_was_told_to_end_has_not_failed() {
    let folder = scratch("gate-told");
    let (trace, ready) = (folder.join("trace.jsonl"), folder.join("ready"));
    let script = format!("touch {}; sleep 60", ready.display());
    let words = ["monitor", "--interval", "50ms", "-o", trace.to_str().unwrap(), "--", "sh", "-c", &script];
    let mut child = model_garden(&words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let patience = Instant::now() + Duration::from_secs(30);
    while !ready.exists() && Instant::now() < patience {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    // Flat, or too little of it to say so.
    let code = child.wait().unwrap().code();
    assert!(matches!(code, Some(0 | 3)), "{code:?}");
}

#[test]
fn memory_that_grows_fails_and_memory_that_falls_does_not() {
    if !has_python() {
        return;
    }
    let watch = |name: &str, flags: &[&str], change: &str| {
        // 80 MiB, and from step 20 on so much more or less with each step.
        let script = format!(
            "import time\nblocks = [bytearray(b'1' * (1 << 20)) for _ in range(80)]\nfor step in range(1, 61):\n    \
             time.sleep(0.03)\n    if step > 20: {change}\n    print(f'Step {{step}}: loss 0.1', flush=True)"
        );
        monitor(name, flags, &["python3", "-c", &script])
    };
    let (grows, falls) = ("blocks.append(bytearray(b'1' * (1 << 20)))", "blocks.pop()");
    let growth = ["--stable-after", "20", "--max-growth", "20MB"];
    let output = watch("grows", &growth, grows);
    assert_eq!(output.status.code(), Some(1), "{}", told(&output));
    assert!(told(&output).contains("memory rose by at most"), "{}", told(&output));
    let output = watch("falls", &growth, falls);
    assert_eq!(output.status.code(), Some(0), "{}", told(&output));
    let output = watch("varies", &["--stable-after", "20", "--max-variation", "20MB"], falls);
    assert_eq!(output.status.code(), Some(1), "{}", told(&output));
    let output = watch("window", &["--stable-between", "5..15", "--max-variation", "20MB"], falls);
    assert_eq!(output.status.code(), Some(0), "{}", told(&output));
}

//! `model-garden monitor` on real programs.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Killed, diagnose, has_python, model_garden, repository, run, scratch, told};
use serde_json::Value;

/// Watches a command every 20 ms; gives the output and the trace.
fn monitor(name: &str, flags: &[&str], command: &[&str]) -> (Output, PathBuf) {
    let trace = scratch(name).join("trace.jsonl");
    let interval: &[&str] = if flags.contains(&"--interval") { &[] } else { &["--interval", "20ms"] };
    let output = run(&[&["monitor", "-o", trace.to_str().unwrap()], interval, flags, &["--"], command].concat());
    (output, trace)
}

fn judged(trace: &Path) -> Value {
    diagnose(trace.to_str().unwrap(), &[]).0
}

fn mib_per_step(found: &Value) -> f64 {
    found["growth"]["bytes_per_step"].as_f64().unwrap() / 1_048_576.0
}

#[test]
fn an_unmodified_script_behind_a_shell_is_judged_per_step() {
    if !has_python() {
        return;
    }
    let (output, trace) =
        monitor("shell", &["--steps-per-epoch", "20"], &["bash", "-c", "python3 testdata/programs/leak.py"]);
    let found = judged(&trace);
    assert_eq!((output.status.code(), &found["verdict"]), (Some(1), &"leak".into()), "{}", told(&output));
    assert!((0.9..1.1).contains(&mib_per_step(&found)), "{}", found["growth"]);
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(out.contains("Step 120: loss"), "what the program prints is passed on");
    assert!(out.contains(&format!("LEAK  {}", &found["summary"].as_str().unwrap()[..40])), "{out}");
}

/// What a program of testdata is judged to be, and the process that grew most with its part in the run.
#[track_caller]
fn check_program(program: &str, flags: &[&str], verdicts: &[&str], mechanisms: &[&str], grew: Option<&str>) -> Value {
    let path = format!("testdata/programs/{program}");
    let (output, trace) = monitor(program, &[&["--interval", "50ms"], flags].concat(), &["python3", &path]);
    let found = judged(&trace);
    let verdict = found["verdict"].as_str().unwrap();
    assert!(verdicts.contains(&verdict), "{program} is {verdict}: {}", told(&output));
    let mechanism = found["mechanism"].as_str().unwrap();
    assert!(mechanisms.contains(&mechanism), "{program} is {mechanism}: {}", told(&output));
    if let Some(role) = grew {
        let most = &found["processes"][0];
        assert_eq!(most["role"], role, "{program}: {}", found["processes"]);
        let out = String::from_utf8_lossy(&output.stdout);
        assert!(out.contains(&format!("(process {}, {role}) grew most", most["pid"])), "{program}: {out}");
    }
    found
}

#[test]
fn a_native_leak_is_a_leak() {
    if has_python() {
        let found = check_program("native_leak.py", &[], &["leak"], &["linear"], None);
        assert!((0.9..1.1).contains(&mib_per_step(&found)), "{}", found["growth"]);
    }
}

#[test]
fn garbage_in_cycles_is_a_sawtooth() {
    if has_python() {
        check_program("sawtooth.py", &[], &["sawtooth"], &["sawtooth"], None);
    }
}

#[test]
fn pages_that_forked_workers_copy_are_seen_and_the_workers_named() {
    if has_python() {
        let found =
            check_program("forked_workers.py", &[], &["settled", "growing"], &["copy_on_write"], Some("worker"));
        let grown = found["processes"].as_array().unwrap().iter().filter(|process| {
            process["to_bytes"].as_u64().unwrap() > process["from_bytes"].as_u64().unwrap() + (20 << 20)
        });
        assert_eq!(grown.count(), 3, "{}", found["processes"]);
    }
}

#[test]
fn pages_of_a_mapped_file_are_harmless() {
    if has_python() {
        check_program("mapped_file.py", &[], &["growing", "settled"], &["file_pages"], None);
    }
}

#[test]
fn a_worker_that_grows_is_named_not_its_parent() {
    if has_python() {
        let found = check_program("growing_worker.py", &[], &["leak"], &["linear"], Some("worker"));
        assert!((0.9..1.1).contains(&mib_per_step(&found)), "{}", found["growth"]);
    }
}

#[test]
fn children_that_come_and_go_leave_a_flat_run_flat() {
    if has_python() {
        // Children that live longer on a busy machine are spikes, and that is what they are called.
        let found = check_program("forks_and_exits.py", &[], &["flat", "sawtooth"], &["none", "spikes"], None);
        assert!(found["level"]["bytes"].as_u64().unwrap() < 90 << 20, "{}", found["level"]);
    }
}

#[test]
fn the_training_at_the_end_of_a_chain_of_wrappers_is_named() {
    if has_python() {
        let found = check_program("spawns.py", &[], &["leak"], &["linear"], Some("training"));
        let most = found["processes"][0]["command"].as_str().unwrap();
        assert!(most.contains("native_leak.py"), "{most}");
    }
}

/// The causes that are named for a program that keeps 2 MiB for each example and has these files loaded.
fn causes_of_a_fill(name: &str, loaded: &[&str]) -> Vec<String> {
    let command = [&["python3", "testdata/programs/lazy_cache.py"], loaded].concat();
    let (output, trace) = monitor(name, &[], &command);
    let found = judged(&trace);
    assert_eq!(found["verdict"], "settled", "{}", told(&output));
    found["causes"].as_array().unwrap().iter().map(|cause| cause["id"].as_str().unwrap().to_string()).collect()
}

#[test]
fn decoded_images_are_suspected_where_something_can_decode_images() {
    if !has_python() {
        return;
    }
    let package = scratch("decoder").join("site-packages/PIL");
    std::fs::create_dir_all(&package).unwrap();
    let library = package.join("_imaging.cpython-312-x86_64-linux-gnu.so");
    std::fs::write(&library, [0xc3; 8192]).unwrap();
    let with = causes_of_a_fill("with-decoder", &[library.to_str().unwrap()]);
    assert_eq!(with[0], "decoded_images_kept", "{with:?}");
    let without = causes_of_a_fill("without-decoder", &[]);
    assert_eq!(without[0], "large_examples_kept", "{without:?}");
}

#[test]
fn growth_names_the_command_that_finds_its_place_also_behind_a_script() {
    if !has_python() {
        return;
    }
    let script = scratch("behind-a-script").join("go.sh");
    std::fs::write(&script, "#!/bin/sh\npython3 testdata/programs/leak.py\n").unwrap();
    let (output, trace) = monitor("script", &[], &["sh", script.to_str().unwrap()]);
    let advice = judged(&trace)["advice"].to_string();
    assert!(advice.contains("`model-garden bisect testdata.programs.leak:pieces`"), "{advice}: {}", told(&output));
}

#[test]
fn steps_are_found_by_a_pattern_of_the_user() {
    if !has_python() {
        return;
    }
    let script = "import time\nkept = []\nfor i in range(1, 61):\n    kept.append(bytearray(1 << 20))\n    time.sleep(0.01)\n    \
                  print(f'>> update={i}k of 9999', flush=True)";
    let flags = ["--step-pattern", r"update=(\d+)k", "--steps-per-epoch", "10"];
    let (output, trace) = monitor("pattern", &flags, &["python3", "-c", script]);
    let found = judged(&trace);
    assert_eq!(found["clock"], "step", "{}", told(&output));
    assert!((0.9..1.1).contains(&mib_per_step(&found)), "{}", found["growth"]);
    let wrong = run(&["monitor", "--step-pattern", "(", "--", "true"]);
    assert_eq!(wrong.status.code(), Some(2));
}

#[test]
fn a_command_goes_on_when_the_watching_is_over() {
    let (output, _) = monitor("goes-on", &["--duration", "300ms"], &["sh", "-c", "sleep 3; echo still here"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("still here"), "{}", told(&output));
    assert!(String::from_utf8_lossy(&output.stderr).contains("the command keeps running"), "{}", told(&output));
}

#[test]
fn the_process_that_grows_is_named_not_its_wrapper() {
    if !has_python() {
        return;
    }
    let (output, trace) =
        monitor("wrapper", &["--steps-per-epoch", "20"], &["python3", "testdata/programs/wrapper.py"]);
    let talk = String::from_utf8_lossy(&output.stderr);
    let root: u64 = talk.split("watching ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    let found = judged(&trace);
    assert_ne!(found["processes"][0]["pid"], root, "{}", found["processes"]);
}

#[test]
fn facts_that_the_program_prints_need_no_flags() {
    if !has_python() {
        return;
    }
    let (output, trace) = monitor("facts", &[], &["python3", "testdata/programs/lazy_cache.py"]);
    let found = judged(&trace);
    assert_eq!(
        (&found["verdict"], &found["mechanism"]),
        (&"settled".into(), &"epoch_fill".into()),
        "{}",
        told(&output)
    );
    let knee = found["knee"]["step"].as_f64().unwrap();
    assert!((36.0..=44.0).contains(&knee), "{knee}");
}

#[test]
fn the_event_channel_tells_steps_facts_and_counts() {
    if !has_python() {
        return;
    }
    let (output, trace) = monitor("channel", &[], &["python3", "testdata/programs/event_channel.py"]);
    let found = judged(&trace);
    assert_eq!(found["verdict"], "leak", "{}", told(&output));
    assert!((0.9..1.1).contains(&mib_per_step(&found)), "{}", found["growth"]);
    assert_eq!(found["causes"][0]["id"], "graph_kept", "tensors rose along");
}

#[test]
fn the_command_s_own_code_is_passed_through() {
    assert_eq!(monitor("code", &["--passthrough"], &["sh", "-c", "exit 7"]).0.status.code(), Some(7));
    assert_eq!(monitor("signal", &["--passthrough"], &["sh", "-c", "kill -9 $$"]).0.status.code(), Some(137));
}

#[test]
fn a_running_process_is_watched_and_left_alone() {
    let mut sleeper = Killed(Command::new("sleep").arg("60").spawn().unwrap());
    let trace = scratch("attach").join("trace.jsonl");
    let pid = sleeper.0.id().to_string();
    let output =
        run(&["monitor", "--pid", &pid, "--interval", "20ms", "--duration", "3s", "-o", trace.to_str().unwrap()]);
    assert!(sleeper.0.try_wait().unwrap().is_none());
    assert_eq!((output.status.code(), &judged(&trace)["verdict"]), (Some(0), &"flat".into()), "{}", told(&output));
}

#[test]
fn a_trace_survives_the_sudden_end_of_the_monitor() {
    let trace = scratch("killed").join("trace.jsonl");
    let words = ["monitor", "--interval", "20ms", "-o", trace.to_str().unwrap(), "--", "cat"];
    // `cat` ends with its standard input, that is with this test.
    let mut command = model_garden(&words);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut watcher = Killed(command.spawn().unwrap());
    let patience = Instant::now() + Duration::from_secs(60);
    let samples = || std::fs::read_to_string(&trace).map_or(0, |text| text.matches("\"rss\"").count());
    while samples() < 12 && Instant::now() < patience {
        std::thread::sleep(Duration::from_millis(20));
    }
    watcher.0.kill().unwrap();
    let found = judged(&trace);
    assert!(found["input"]["samples"].as_u64().unwrap() >= 10, "{}", found["input"]);
}

#[test]
fn what_cannot_be_watched_is_an_error_with_a_hint() {
    let output = run(&["monitor", "--pid", "4194999"]);
    assert_eq!(output.status.code(), Some(2));
    let talk = String::from_utf8_lossy(&output.stderr);
    assert!(talk.contains("cannot watch process `4194999`") && talk.contains("hint:"), "{talk}");
    let trace = scratch("not-started").join("trace.jsonl");
    for command in ["monitor", "run"] {
        let output = run(&[command, "-o", trace.to_str().unwrap(), "--", "/no/such/program"]);
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains("cannot start `/no/such/program`"));
        assert!(!trace.exists(), "a trace of nothing");
    }
}

#[test]
fn a_process_that_was_not_started_here_can_still_tell() {
    if !has_python() {
        return;
    }
    let folder = scratch("told");
    let (trace, socket) =
        (folder.join("trace.jsonl"), PathBuf::from(format!("/tmp/garden-told-{}", std::process::id())));
    // The program waits for its watcher, tells, and goes on after it has said that it ends.
    let script = "import os, sys, time\nwhile not os.path.exists(os.environ['MODEL_GARDEN_EVENTS']): time.sleep(0.02)\n\
                  exec(open('testdata/programs/event_channel.py').read())\ntell(event='exit')\ntime.sleep(20)";
    let mut command = Command::new("python3");
    command.args(["-c", script]).env("MODEL_GARDEN_EVENTS", &socket).current_dir(repository(""));
    let program = Killed(command.spawn().unwrap());
    let pid = program.0.id().to_string();
    let flags = ["--interval", "20ms", "-o", trace.to_str().unwrap(), "--channel", socket.to_str().unwrap()];
    let output = run(&[&["monitor", "--pid", &pid][..], &flags[..]].concat());
    let found = judged(&trace);
    assert_eq!((&found["verdict"], &found["clock"]), (&"leak".into(), &"step".into()), "{}", told(&output));
    assert!(!socket.exists());
}

/// Somebody tidies up while the program runs: the trace is gone, but not what was seen.
#[test]
fn a_trace_that_was_deleted_is_judged_all_the_same() {
    if !has_python() {
        return;
    }
    for command in ["monitor", "run"] {
        let folder = scratch(&format!("deleted-{command}"));
        let (trace, page) = (folder.join("trace.jsonl"), folder.join("page.html"));
        let script = format!(
            "import os, time\nkept = []\nfor step in range(1, 61):\n    kept.append(bytearray(b'x' * (1 << 20)))\n    \
             time.sleep(0.02)\n    print(f'Step {{step}}: loss 1', flush=True)\n    if step == 20: os.remove({:?})\n",
            trace.to_str().unwrap()
        );
        let flags = ["--plain", "--interval", "20ms", "--steps-per-epoch", "10", "-o", trace.to_str().unwrap()];
        let page = ["--report", page.to_str().unwrap(), "--", "python3", "-c", &script];
        let output = run(&[&[command][..], &flags, &page].concat());
        let talk = told(&output);
        assert!(talk.contains("was deleted meanwhile") && talk.contains("LEAK  Memory leaks"), "{command}: {talk}");
        assert!(folder.join("page.html").is_file(), "{command}: {talk}");
    }
}

/// A program that tells a hundred thousand events between two samples makes the trace no longer than a few of them would.
#[test]
fn a_flood_of_events_does_not_grow_the_trace() {
    if !has_python() {
        return;
    }
    let script = "import os, socket\nchannel = socket.socket(socket.AF_UNIX)\nchannel.connect(os.environ['MODEL_GARDEN_EVENTS'])\n\
                  for _ in range(1000): channel.sendall(b'{\"event\":\"gc\"}\\n' * 100)\n\
                  channel.sendall(b'{\"event\":\"eval_start\"}\\n')\nimport time; time.sleep(1)";
    let (output, trace) = monitor("flood", &["--interval", "200ms"], &["python3", "-c", script]);
    let text = std::fs::read_to_string(&trace).unwrap();
    let events = text.lines().filter(|line| line.contains("\"gc\"")).count();
    let samples = text.lines().filter(|line| line.contains("\"rss\"")).count();
    assert!(events >= 1 && events <= 64 * (samples + 1), "{events} events, {samples} samples: {}", told(&output));
    assert!(text.contains("\"activity\":\"eval\""), "what an event means is followed all the same");
}

/// More programs connect than there are descriptors: whoever waits outside must not cost a processor.
#[test]
fn a_channel_without_descriptors_waits_instead_of_spinning() {
    if !has_python() {
        return;
    }
    let script = "import os, resource, socket, time\n\
                  resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)\nticks = lambda: sum(map(int, open(f'/proc/{os.getppid()}/stat').read().rsplit(')', 1)[1].split()[11:13]))\n\
                  programs = []\nfor _ in range(80):\n    channel = socket.socket(socket.AF_UNIX)\n    \
                  channel.connect(os.environ['MODEL_GARDEN_EVENTS'])\n    programs.append(channel)\n\
                  time.sleep(0.5)\nbefore = ticks()\ntime.sleep(3)\nprint('share', (ticks() - before) / os.sysconf('SC_CLK_TCK') / 3)";
    let trace = scratch("descriptors").join("trace.jsonl");
    let binary = env!("CARGO_BIN_EXE_model-garden");
    let line = format!(
        "ulimit -S -n 48; exec {binary} monitor --plain --interval 1s -o {} -- python3 -c \"$0\"",
        trace.display()
    );
    let output = Command::new("sh").args(["-c", &line, script]).output().unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    let share = out.lines().find_map(|line| line.strip_prefix("share ")?.parse::<f64>().ok());
    assert!(share.is_some_and(|share| share < 0.25), "{share:?}: {}", told(&output));
}

/// Runs a command of ours without a named trace, in a folder of its own; gives the traces that it told of and what is in the folder.
fn unnamed(
    folder: &Path,
    words: &[&str],
    environment: &[(&str, Option<&Path>)],
) -> (Vec<PathBuf>, Vec<PathBuf>, String) {
    let present = folder.join("present");
    std::fs::create_dir_all(&present).unwrap();
    let mut command = model_garden(&[words, &["--interval", "20ms", "--plain", "--", "sleep", "0.2"]].concat());
    command.current_dir(&present);
    for (name, value) in environment {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let output = command.output().unwrap();
    let talk = told(&output);
    let named = talk.lines().filter_map(|line| line.rsplit_once("trace: ")).map(|(_, path)| present.join(path));
    let mut named: Vec<PathBuf> = named.collect();
    named.sort();
    named.dedup();
    (named, files_in(&present), talk)
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).map_or_else(|_| Vec::new(), |entries| entries.flatten().collect());
    entries.into_iter().map(|entry| entry.path()).collect()
}

#[test]
fn a_trace_that_nobody_named_is_in_one_folder_of_the_user_and_told() {
    let folder = scratch("unnamed");
    let state = folder.join("state");
    for words in [["monitor"], ["run"]] {
        let before = files_in(&state.join("model-garden/traces"));
        let (named, present, talk) = unnamed(&folder, &words, &[("XDG_STATE_HOME", Some(&state))]);
        assert_eq!(present, [""; 0].map(PathBuf::from), "{talk}");
        let mut new = files_in(&state.join("model-garden/traces"));
        new.retain(|path| !before.contains(path));
        assert_eq!(named, new, "{talk}");
        assert!(judged(&new[0])["input"]["samples"].as_u64().unwrap() > 0);
    }
    let home = folder.join("home");
    let (named, _, talk) = unnamed(&folder, &["monitor"], &[("XDG_STATE_HOME", None), ("HOME", Some(&home))]);
    assert_eq!(named[0].parent(), Some(home.join(".local/state/model-garden/traces").as_path()), "{talk}");
    // A command that cannot be started leaves nothing behind.
    let failed = [&["monitor", "--"][..], &["run", "--"]].map(|words| {
        let mut command = model_garden(&[words, &["/no/such/program"]].concat());
        command.env("XDG_STATE_HOME", folder.join("other")).output().unwrap()
    });
    assert!(files_in(&folder.join("other/model-garden/traces")).is_empty(), "{}", told(&failed[0]));
}

#[test]
fn without_a_home_to_write_to_the_trace_is_among_temporary_files() {
    let folder = scratch("homeless");
    let temporary = folder.join("temporary");
    std::fs::create_dir(&temporary).unwrap();
    // Nothing can be made below a device, whoever we are.
    for home in [None, Some(Path::new("/dev/null"))] {
        let environment = [("XDG_STATE_HOME", None), ("HOME", home), ("TMPDIR", Some(temporary.as_path()))];
        let (named, present, talk) = unnamed(&folder, &["monitor"], &environment);
        assert_eq!((named[0].parent(), present.len()), (Some(temporary.as_path()), 0), "{talk}");
        assert!(named[0].is_file(), "{talk}");
    }
}

#[test]
fn old_traces_make_room_and_that_is_told() {
    let folder = scratch("room");
    let traces = folder.join("state/model-garden/traces");
    std::fs::create_dir_all(&traces).unwrap();
    let hour = Duration::from_secs(3600);
    let named = |number: u32| traces.join(format!("model-garden-1760000{number:03}-1.jsonl"));
    for number in 0..110 {
        let file = std::fs::File::create(named(number)).unwrap();
        file.set_modified(std::time::SystemTime::now() - (200 - number) * hour).unwrap();
    }
    let mine = traces.join("my-own.jsonl");
    std::fs::write(&mine, "").unwrap();
    // Somebody writes the oldest one, slowly.
    let written = std::fs::File::open(named(0)).unwrap();
    written.lock_shared().unwrap();
    let (new, _, talk) = unnamed(&folder, &["run"], &[("XDG_STATE_HOME", Some(&folder.join("state")))]);
    assert!(talk.contains("the oldest 10 traces were removed from"), "{talk}");
    // The last hundred with the new one, the one that is written, and what is none of ours.
    assert_eq!(files_in(&traces).len(), 100 + 1 + 1, "{talk}");
    let kept = [&new[0], &mine, &named(0), &named(11)];
    assert!(kept.iter().all(|path| path.is_file()) && !named(1).exists() && !named(10).exists(), "{talk}");
}

#[test]
fn two_that_begin_in_the_same_second_have_a_trace_each() {
    let folder = scratch("same-second");
    let start = || {
        let mut command = model_garden(&["monitor", "--interval", "20ms", "--", "sleep", "0.5"]);
        command.env("XDG_STATE_HOME", &folder).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    for mut child in [start(), start(), start()] {
        child.wait().unwrap();
    }
    assert_eq!(files_in(&folder.join("model-garden/traces")).len(), 3);
}

/// The ending of the file says which form the report has; what it says is what `diagnose` says of the trace.
#[test]
fn a_report_has_the_form_of_its_file() {
    for (name, beginning) in [("report.json", "{"), ("report.md", "## "), ("report.txt", ""), ("report.html", "<!")] {
        let path = scratch(&format!("form-{name}")).join(name);
        let (output, trace) =
            monitor(&format!("form-of-{name}"), &["--report", path.to_str().unwrap()], &["sleep", "0.5"]);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{error}: {}", told(&output)));
        assert!(text.starts_with(beginning), "{name}: {text}");
        if name == "report.json" {
            let report: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(report["verdict"], judged(&trace)["verdict"]);
            assert!(report["memory"]["last_bytes"].is_u64(), "{text}");
        }
    }
}

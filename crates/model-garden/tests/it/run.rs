//! `model-garden run` on real trainers that leak, save, die and resume.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Killed, diagnose, has_python, model_garden, run, scratch, told};
use serde_json::Value;

const RESUME: [&str; 4] = ["--on-limit", "restart", "--resume-with", "--resume_from_checkpoint {checkpoint}"];

/// A guarded trainer: what it printed, and where its files are.
struct Guarded {
    output: Output,
    folder: PathBuf,
}

impl Guarded {
    fn talk(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    fn code(&self) -> Option<i32> {
        self.output.status.code()
    }

    fn verdict(&self) -> Value {
        diagnose(self.folder.join("trace.jsonl").to_str().unwrap(), &[]).0
    }

    /// Steps in the order in which they were done, over all attempts.
    fn ledger(&self) -> Vec<u64> {
        let text = std::fs::read_to_string(self.folder.join("ledger")).unwrap_or_default();
        text.lines().map(|line| line.split(' ').nth(1).unwrap().parse().unwrap()).collect()
    }

    /// Steps that the newest checkpoint holds.
    fn kept(&self) -> Vec<u64> {
        let folder = self.folder.join("out");
        let names = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let newest = names.filter_map(|name| name.strip_prefix("checkpoint-")?.parse::<u64>().ok()).max().unwrap();
        let text = std::fs::read(folder.join(format!("checkpoint-{newest}/trainer_state.json"))).unwrap();
        let state: Value = serde_json::from_slice(&text).unwrap();
        state["steps_done"].as_array().unwrap().iter().map(|step| step.as_u64().unwrap()).collect()
    }
}

/// The words that run the trainer of testdata under guard, with a limit of 300 MiB.
fn words(folder: &Path, flags: &[&str], trainer: &[&str]) -> Vec<String> {
    let place = |name: &str| folder.join(name).to_str().unwrap().to_string();
    let fixed = ["run", "--interval", "100ms", "--memory-limit", "300MB"].map(String::from).to_vec();
    let program = ["--", "python3", "testdata/programs/trainer.py", "--output_dir"].map(String::from).to_vec();
    let own = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<String>>();
    let ledger = vec![place("out"), "--ledger".into(), place("ledger")];
    let trace = if flags.contains(&"--state-dir") { vec![] } else { vec!["-o".to_string(), place("trace.jsonl")] };
    [fixed, trace, own(flags), program, ledger, own(trainer)].concat()
}

fn guard(name: &str, flags: &[&str], trainer: &[&str]) -> Guarded {
    let folder = scratch(&format!("run-{name}"));
    let words = words(&folder, flags, trainer);
    let output = run(&words.iter().map(String::as_str).collect::<Vec<_>>());
    Guarded { output, folder }
}

fn each_once(steps: &[u64], last: u64) -> bool {
    steps == (1..=last).collect::<Vec<u64>>()
}

#[test]
fn a_trainer_that_saves_on_sigterm_is_stopped_with_a_checkpoint() {
    if !has_python() {
        return;
    }
    let trainer = ["--max_steps", "300", "--base", "60", "--grow", "4", "--on_sigterm", "save", "--save_time", "0.3"];
    let found = guard("stop", &[], &trainer);
    assert_eq!(found.code(), Some(75), "{}", told(&found.output));
    let talk = found.talk();
    assert!(talk.contains("guard: will send SIGTERM to process"), "{talk}");
    assert!(talk.contains("is complete, nothing is lost (exit code 75)"), "{talk}");
    // All that was done is kept, and it was not stopped while there was plenty of room.
    let kept = found.kept();
    assert!(each_once(&kept, kept.len() as u64) && kept == found.ledger(), "{kept:?}");
    assert!(kept.len() >= 35, "stopped after {} steps of about 50 that fit", kept.len());
    // The report is that of `diagnose` on the trace.
    let (out, verdict) = (String::from_utf8_lossy(&found.output.stdout).into_owned(), found.verdict());
    let word = verdict["verdict"].as_str().unwrap().to_uppercase();
    assert!(out.contains(&format!("{word}  {}", &verdict["summary"].as_str().unwrap()[..40])), "{out}");
}

#[test]
fn it_goes_on_from_the_checkpoint_and_no_step_is_lost_or_done_twice() {
    if !has_python() {
        return;
    }
    let trainer = ["--max_steps", "120", "--base", "60", "--grow", "4", "--on_sigterm", "save", "--save_memory", "20"];
    let found = guard("restart", &RESUME, &trainer);
    assert_eq!(found.code(), Some(0), "{}", told(&found.output));
    assert!(each_once(&found.ledger(), 120) && each_once(&found.kept(), 120), "{:?}", found.ledger());
    let attempts = found.talk().matches("model-garden: attempt ").count();
    assert!((3..=4).contains(&attempts), "{}", found.talk());
    // One trace across the restarts, judged part by part.
    assert_eq!(found.verdict()["parts"].as_array().unwrap().len(), attempts);
}

#[test]
fn the_event_channel_is_asked_first() {
    if !has_python() {
        return;
    }
    let trainer = ["--max_steps", "90", "--base", "60", "--grow", "4", "--channel", "--quiet", "--workers", "2"];
    let found = guard("channel", &RESUME, &trainer);
    assert_eq!(found.code(), Some(0), "{}", told(&found.output));
    assert!(found.talk().contains("will ask for a checkpoint over the event channel"), "{}", found.talk());
    assert!(each_once(&found.ledger(), 90), "{:?}", found.ledger());
}

#[test]
fn one_that_only_saves_periodically_is_ended_just_after_a_checkpoint() {
    if !has_python() {
        return;
    }
    for on_sigterm in ["die", "ignore"] {
        let trainer = ["--max_steps", "80", "--base", "60", "--grow", "4", "--save_steps", "8", "--save_time", "0.2"];
        let found =
            guard(&format!("periodic-{on_sigterm}"), &RESUME, &[&trainer[..], &["--on_sigterm", on_sigterm]].concat());
        assert_eq!(found.code(), Some(0), "{}", told(&found.output));
        assert!(found.talk().contains("does not catch SIGTERM"), "{}", found.talk());
        assert!(found.talk().contains("stopping just after a checkpoint"), "{}", found.talk());
        assert!(each_once(&found.kept(), 80), "{:?}", found.kept());
        // A step may have begun before the signal came; it is done again, since no checkpoint could have kept it. The second start
        // is on trial: it may come to the limit and do the steps since its last checkpoint again.
        let ledger = found.ledger();
        let twice = ledger.len() - ledger.iter().collect::<BTreeSet<_>>().len();
        let restarts = found.talk().matches("starting from").count();
        assert!(twice <= restarts + 8, "{twice} steps twice: {ledger:?}");
    }
}

#[test]
fn a_torn_checkpoint_is_skipped_and_said_so() {
    if !has_python() {
        return;
    }
    let trainer = ["--max_steps", "50", "--base", "40", "--grow", "1", "--save_steps", "10", "--die_while_saving", "3"];
    let found = guard("torn", &RESUME, &trainer);
    assert_eq!(found.code(), Some(0), "{}", told(&found.output));
    let talk = found.talk();
    assert!(talk.contains("checkpoint-30 (now ") && talk.contains("is truncated"), "{talk}");
    assert!(talk.contains("starting from") && talk.contains("checkpoint-20"), "{talk}");
    assert!(each_once(&found.kept(), 50), "{:?}", found.kept());
}

#[test]
fn a_run_that_settles_below_the_limit_is_left_alone() {
    if !has_python() {
        return;
    }
    let trainer = ["--max_steps", "120", "--base", "60", "--grow", "4", "--settle_at", "40", "--on_sigterm", "save"];
    let found = guard("settled", &["--steps-per-epoch", "40"], &trainer);
    assert_eq!(found.code(), Some(0), "{}", told(&found.output));
    assert!(!found.talk().contains("stopping"), "{}", found.talk());
    assert_eq!((&found.verdict()["verdict"], found.ledger().len()), (&"settled".into(), 120));
}

#[test]
fn without_a_way_to_save_the_truth_is_told() {
    if !has_python() {
        return;
    }
    let found = guard("unsaved", &[], &["--max_steps", "300", "--base", "60", "--grow", "8", "--step_time", "0.03"]);
    assert_eq!(found.code(), Some(77), "{}", told(&found.output));
    assert!(found.talk().contains("there is no complete checkpoint"), "{}", found.talk());
}

#[test]
fn starts_that_bring_no_newer_checkpoint_go_to_the_limit_and_end() {
    if !has_python() {
        return;
    }
    // It cannot even get to its first checkpoint.
    let trainer = ["--max_steps", "300", "--base", "60", "--grow", "8", "--save_steps", "200", "--step_time", "0.02"];
    let folder = scratch("run-stuck-state");
    let state = ["--max-restarts", "2", "--state-dir", folder.to_str().unwrap()];
    let found = guard("stuck", &[&RESUME[..], &state].concat(), &trainer);
    assert_eq!(found.code(), Some(76), "{}", told(&found.output));
    let talk = found.talk();
    assert!(talk.contains("its last 3 starts brought no newer checkpoint"), "{talk}");
    assert!(talk.contains("(no newer checkpoint, 1 of 2: it may go up to the limit)"), "{talk}");
    // All but the first one were ended at the limit, not before.
    let attempts = json(&folder.join("exit.json"))["attempts"].as_array().unwrap().clone();
    let highest: Vec<u64> = attempts.iter().map(|attempt| attempt["highest_bytes"].as_u64().unwrap() >> 20).collect();
    assert!(highest.len() == 3 && highest[1..].iter().all(|mib| *mib >= 300), "{highest:?}");
}

#[test]
fn only_starts_without_a_newer_checkpoint_count_as_restarts_used() {
    if !has_python() {
        return;
    }
    let trainer = ["--max_steps", "140", "--base", "60", "--grow", "4", "--on_sigterm", "save", "--step_time", "0.03"];
    let found = guard("budget", &[&RESUME[..], &["--max-restarts", "0"]].concat(), &trainer);
    assert_eq!(found.code(), Some(0), "{}", told(&found.output));
    assert!(each_once(&found.ledger(), 140), "{:?}", found.ledger());
    assert!(found.talk().matches("starting from").count() >= 2, "{}", found.talk());
}

#[test]
fn a_cache_that_fits_is_not_stopped_at_every_checkpoint() {
    if !has_python() {
        return;
    }
    // In each process it fills 150 of 300 MiB until the first checkpoint and peaks at 87 %.
    let trainer = ["--max_steps", "150", "--base", "60", "--grow", "5", "--cache_steps", "40", "--save_steps", "30"];
    let found = guard("cache", &RESUME, &[&trainer[..], &["--on_sigterm", "die"]].concat());
    assert_eq!(found.code(), Some(0), "{}", told(&found.output));
    let stops = found.talk().matches("stopping just after").count();
    assert!(stops <= 1 && found.talk().matches("starting from").count() == stops, "{}", found.talk());
    assert!(each_once(&found.kept(), 150), "{:?}", found.kept());
    // Many small saves cost nothing, however much the cache grows between them.
    let trainer = ["--max_steps", "120", "--base", "60", "--grow", "3.5", "--cache_steps", "50", "--save_steps", "3"];
    let found = guard("small-saves", &RESUME, &[&trainer[..], &["--on_sigterm", "die"]].concat());
    assert_eq!(found.code(), Some(0), "{}", told(&found.output));
    assert!(!found.talk().contains("stopping"), "{}", found.talk());
}

#[test]
fn one_that_catches_sigterm_and_goes_on_does_not_get_far_beyond_the_limit() {
    if !has_python() {
        return;
    }
    let folder = scratch("run-deaf").join("state");
    let state = ["--state-dir", folder.to_str().unwrap()];
    // 80 MiB per second: with a fixed patience of three seconds it would hold nearly twice the limit.
    let trainer = ["--max_steps", "400", "--base", "60", "--grow", "4", "--on_sigterm", "catch"];
    let found = guard("deaf", &state, &trainer);
    assert_eq!(found.code(), Some(77), "{}", told(&found.output));
    let attempt = &json(&folder.join("exit.json"))["attempts"][0];
    let highest = attempt["highest_bytes"].as_u64().unwrap() >> 20;
    assert!((290..330).contains(&highest), "{highest} MiB of 300: {}", found.talk());
    assert_eq!(attempt["lost_steps"].as_f64(), attempt["last_step"].as_f64(), "{attempt}");
}

#[test]
fn a_checkpoint_of_somebody_s_own_layout_is_gone_on_from() {
    if !has_python() {
        return;
    }
    let trainer = ["--max_steps", "80", "--base", "60", "--grow", "5", "--on_sigterm", "save", "--own_layout"];
    let found = guard("own-layout", &RESUME, &trainer);
    assert_eq!(found.code(), Some(0), "{}", told(&found.output));
    assert!(found.talk().contains("starting from") && !found.talk().contains("skipping"), "{}", found.talk());
    assert!(each_once(&found.ledger(), 80) && each_once(&found.kept(), 80), "{:?}", found.ledger());
}

#[test]
fn if_the_newest_checkpoint_cannot_be_gone_on_from_the_one_before_is_tried() {
    if !has_python() {
        return;
    }
    // Its third save kills it; the second cannot be gone on from, though nothing is wrong that could be seen.
    let trainer =
        ["--max_steps", "50", "--base", "40", "--save_steps", "10", "--die_while_saving", "3", "--fail_from", "20"];
    let found = guard("one-before", &RESUME, &trainer);
    assert_eq!(found.code(), Some(0), "{}", told(&found.output));
    let talk = found.talk();
    assert!(talk.contains("checkpoint-20: leaving it in place and trying the one before"), "{talk}");
    assert!(talk.contains("out/checkpoint-10 (no newer checkpoint, 1 of 5"), "{talk}");
    assert!(each_once(&found.kept(), 50) && found.folder.join("out/checkpoint-20").is_dir(), "{talk}");
    // Without another one the program's own code is ours.
    let trainer =
        ["--max_steps", "50", "--base", "40", "--save_steps", "10", "--die_while_saving", "2", "--fail_from", "10"];
    let found = guard("none-before", &RESUME, &trainer);
    assert_eq!(found.code(), Some(1), "{}", told(&found.output));
    assert!(found.talk().contains("there is no other checkpoint to try"), "{}", found.talk());
}

#[test]
fn a_checkpoint_that_is_removed_is_not_called_complete_again() {
    if !has_python() {
        return;
    }
    let trainer = ["--max_steps", "30", "--base", "20", "--save_steps", "5", "--keep", "1", "--save_time", "0.4"];
    for layout in [&["--own_layout"][..], &[]] {
        let found = guard(&format!("rotated-{}", layout.len()), &[], &[&trainer[..], layout].concat());
        assert_eq!(found.code(), Some(0), "{}", told(&found.output));
        for step in [5, 10, 15, 20, 25, 30] {
            let news = format!("checkpoint-{step} is complete");
            assert_eq!(found.talk().matches(&news).count(), 1, "{news}: {}", found.talk());
        }
    }
}

#[test]
fn steps_after_the_last_checkpoint_are_counted() {
    if !has_python() {
        return;
    }
    let folder = scratch("run-lost").join("state");
    let state = ["--state-dir", folder.to_str().unwrap()];
    // Steps of 5 ms; each save is noticed only a second after it, when two hundred more steps are done.
    let trainer =
        ["--max_steps", "100000", "--base", "60", "--grow", "0.4", "--save_steps", "250", "--step_time", "0.005"];
    let found = guard("lost", &state, &[&trainer[..], &["--own_layout", "--on_sigterm", "die"]].concat());
    let exit = json(&folder.join("exit.json"));
    let attempt = &exit["attempts"][0];
    let (last, kept) = (*found.ledger().last().unwrap() as f64, found.kept().len() as f64);
    assert_eq!(attempt["checkpoint_step"].as_f64(), Some(kept), "{attempt}");
    // What it did last may not have been heard any more.
    let lost = attempt["lost_steps"].as_f64().unwrap();
    assert!((last - kept - 3.0..=last - kept).contains(&lost), "{lost} lost of {}: {attempt}", last - kept);
}

#[test]
fn a_run_that_must_be_stable_fails_if_it_is_not() {
    if !has_python() {
        return;
    }
    let gate = |name: &str, flags: &[&str], trainer: &[&str]| {
        let fixed = ["--max_steps", "60", "--base", "40", "--step_time", "0.02"];
        guard(&format!("gate-{name}"), flags, &[&fixed[..], trainer].concat())
    };
    let after = ["--stable-after", "20", "--max-growth", "20MB"];
    assert_eq!(gate("flat", &after, &[]).code(), Some(0));
    let grown = gate("grown", &after, &["--grow", "2"]);
    assert_eq!(grown.code(), Some(1), "{}", told(&grown.output));
    assert!(grown.talk().contains("but the stability check failed (exit code 1)"), "{}", grown.talk());
    // Its own failure comes first.
    let found = gate("killed", &after, &["--grow", "2", "--save_steps", "55", "--die_while_saving", "1"]);
    assert_eq!(found.code(), Some(77), "{}", told(&found.output));
}

#[test]
fn the_program_s_own_end_is_ours() {
    let folder = scratch("run-own");
    let trace = folder.join("trace.jsonl");
    let run = |script| run(&["run", "--interval", "50ms", "-o", trace.to_str().unwrap(), "--", "sh", "-c", script]);
    assert_eq!(run("exit 7").status.code(), Some(7));
    assert_eq!(run("sleep 0.2; kill -15 $$").status.code(), Some(143));
    let killed = run("kill -9 $$");
    assert_eq!(killed.status.code(), Some(77), "{}", told(&killed));
    // What it left behind is waited for, then ended.
    let begin = Instant::now();
    assert_eq!(run("sleep 1 & exit 3").status.code(), Some(3));
    assert!(begin.elapsed() >= Duration::from_millis(900), "{:?}", begin.elapsed());
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let patience = Instant::now() + Duration::from_secs(120);
    while !is_so() {
        assert!(Instant::now() < patience, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn json(path: &Path) -> Value {
    std::fs::read(path).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or(Value::Null)
}

#[test]
fn a_signal_to_the_guard_saves_first() {
    if !has_python() {
        return;
    }
    let folder = scratch("run-asked");
    let trainer = ["--max_steps", "2000", "--base", "20", "--on_sigterm", "save", "--workers", "2"];
    let words = words(&folder, &[], &trainer);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut child = Killed(model_garden(&words).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
    let ledger = folder.join("ledger");
    wait_until("ten steps", || std::fs::read_to_string(&ledger).unwrap_or_default().lines().count() > 10);
    let asked = Command::new("kill").args(["-INT", &child.0.id().to_string()]).status().unwrap();
    assert!(asked.success());
    wait_until("its end", || child.0.try_wait().unwrap().is_some());
    assert_eq!(child.0.wait().unwrap().code(), Some(0));
    let names: Vec<_> = std::fs::read_dir(folder.join("out")).unwrap().collect();
    assert_eq!(names.len(), 1, "the checkpoint that was asked for: {names:?}");
}

#[test]
fn another_process_finds_follows_and_stops_a_run_in_the_background() {
    if !has_python() {
        return;
    }
    let folder = scratch("run-state");
    let state = folder.join("state");
    let state_dir = state.to_str().unwrap();
    let trainer = ["--max_steps", "2000", "--base", "20", "--on_sigterm", "save"];
    let words = words(&folder, &["--state-dir", state_dir, "--detach"], &trainer);
    let started = run(&words.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(started.status.code(), Some(0), "{}", told(&started));
    wait_until("a step in state.json", || json(&state.join("state.json"))["step"].as_f64().is_some());
    let told_state = json(&state.join("state.json"));
    let pid: u64 = std::fs::read_to_string(state.join("pid")).unwrap().trim().parse().unwrap();
    assert_eq!((&told_state["pid"], &told_state["state"]), (&pid.into(), &"running".into()), "{told_state}");
    let second = run(&words.iter().map(String::as_str).filter(|word| *word != "--detach").collect::<Vec<_>>());
    assert_eq!(second.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&second.stderr).contains("follow it with --attach"), "{}", told(&second));
    let follower = model_garden(&["run", "--state-dir", state_dir, "--attach"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let follower = follower.unwrap();
    let stopped = run(&["run", "--state-dir", state_dir, "--stop"]);
    assert_eq!(stopped.status.code(), Some(0), "{}", told(&stopped));
    let followed = follower.wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&followed.stdout).contains("Step 1:"), "{}", told(&followed));
    assert_eq!(followed.status.code(), Some(0), "{}", told(&followed));
    let exit = json(&state.join("exit.json"));
    assert_eq!((&exit["code"], &exit["attempts"][0]["lost_steps"]), (&0.into(), &0.0.into()), "{exit}");
    assert!(diagnose(state.join("trace.jsonl").to_str().unwrap(), &[]).0["input"]["samples"].as_u64().unwrap() > 0);
}

#[test]
fn a_program_with_a_log_survives_the_sudden_end_of_its_guard() {
    if !has_python() {
        return;
    }
    let folder = scratch("run-killed");
    let state = folder.join("state");
    let trainer = ["--max_steps", "60", "--base", "20", "--on_sigterm", "save"];
    let words = words(&folder, &["--state-dir", state.to_str().unwrap()], &trainer);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut child = Killed(model_garden(&words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let ledger = folder.join("ledger");
    wait_until("five steps", || std::fs::read_to_string(&ledger).unwrap_or_default().lines().count() > 5);
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    wait_until("its last checkpoint", || folder.join("out/checkpoint-60/trainer_state.json").exists());
    let attach = run(&["run", "--state-dir", state.to_str().unwrap(), "--attach"]);
    assert_eq!(attach.status.code(), Some(2), "{}", told(&attach));
    assert!(String::from_utf8_lossy(&attach.stderr).contains("the supervisor was killed"), "{}", told(&attach));
}

#[test]
fn a_fence_ends_what_the_forecast_could_not_foresee() {
    if !has_python() {
        return;
    }
    let trace = scratch("run-fence").join("trace.jsonl");
    // One step that takes three times the limit at once: no forecast sees that coming.
    let script = "import time\nprint('Step 1: loss 1', flush=True)\ntime.sleep(0.3)\nblock = bytearray(900 << 20)\n\
                  block[::4096] = b'1' * len(block[::4096])\nprint('Step 2: loss 1', flush=True)\ntime.sleep(20)";
    let words = ["run", "--fence", "--memory-limit", "300MB", "--interval", "100ms", "-o", trace.to_str().unwrap()];
    let output = run(&[&words[..], &["--", "python3", "-c", script]].concat());
    let talk = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(77), "{}", told(&output));
    if talk.contains("no fence, so only the forecast protects the machine") {
        garden_testing::skip("no fence can be built here");
    } else {
        // The kernel is usually first; if a sample came just before, the guard was.
        let is_ended = talk.contains("was killed (signal 9") || talk.contains("almost nothing is left");
        assert!(talk.contains("fence of 300 MiB") && is_ended, "{talk}");
        let found = diagnose(trace.to_str().unwrap(), &[]).0;
        let highest = found["processes"].as_array().unwrap().iter().map(|p| p["to_bytes"].as_u64().unwrap()).max();
        assert!(highest.unwrap() < 310 << 20, "{}", found["processes"]);
    }
}

#[test]
fn where_checkpoints_are_can_be_learnt_from_the_program() {
    if !has_python() {
        return;
    }
    let folder = scratch("run-learnt");
    let place = |name: &str| folder.join(name).to_str().unwrap().to_string();
    // What a shell is told to run says nothing about --output_dir, and steps are printed that are none.
    let trainer = format!(
        "python3 testdata/programs/trainer.py --output_dir {} --max_steps 300 --base 60 --grow 4 --channel --quiet; echo Step 3: loss 9",
        place("out")
    );
    let trace = place("trace.jsonl");
    let words = ["run", "--interval", "100ms", "--memory-limit", "300MB", "-o", &trace, "--", "sh", "-c", &trainer];
    let output = run(&words);
    assert_eq!(output.status.code(), Some(75), "{}", told(&output));
    let talk = String::from_utf8_lossy(&output.stderr);
    assert!(talk.contains("checkpoint-") && talk.contains("is complete, nothing is lost"), "{talk}");
    assert!(!talk.contains("nothing kept"), "{talk}");
}

//! SIGUSR1 and SIGUSR2, by which batch schedulers warn: real processes, real signals.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on must fail")]

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Killed, catches, has_python, model_garden, scratch, told, trainer_of};
use crate::resume::{Running, STEPS, Scene, TRIES, checkpoints, drafts, is_in_evaluation, losses, signal};

const USR1: u32 = 10;
/// How long anything here may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Start it again later: `EX_TEMPFAIL` of `sysexits.h`.
const REQUEUE: Option<i32> = Some(75);

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let patience = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < patience, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends a signal to several processes with one command; one that has ended meanwhile is no failure.
fn signal_all(name: &str, to: &[String]) {
    Command::new("kill").arg(name).arg("--").args(to).stderr(Stdio::null()).status().unwrap();
}

/// Whom a scheduler signals.
#[derive(Clone, Copy, Debug)]
enum To {
    /// The process that it started.
    First,
    /// That process's group, which the trainer is not in.
    Group,
    /// The trainer alone.
    Trainer,
    /// Every process of the job.
    All,
}

/// When it does so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// As early as the signal is caught: rows are read, or memory is planned.
    Preparing,
    /// The trainer was started a moment ago, and may not catch it yet.
    Loading,
    InStep,
    InEvaluation,
    InSave,
    /// The last step is done.
    AtEnd,
}

/// Warns a run at a moment; `None` if the moment had passed.
fn warn(scene: &Scene, name: &str, to: To, when: When, output: &Path) -> Option<Output> {
    drop(std::fs::remove_dir_all(output));
    let evaluation = ["--eval-dataset", scene.evaluation.to_str().unwrap()];
    let flags: &[&str] = match when {
        When::InEvaluation => &evaluation,
        When::InSave => &["--save-steps", "1"],
        // The only checkpoint is the one that the signal is for.
        _ => &["--save-steps", "1000"],
    };
    let mut running = scene.start(output, flags);
    let first = running.guard.id();
    match when {
        When::Preparing => wait_until("its handler", || catches(first, USR1) || trainer_of(first).is_some()),
        When::Loading => signal("-STOP", running.worker()),
        When::InStep => drop(running.halt(&|| (3..STEPS - 2).contains(&losses(output).len()))?),
        When::AtEnd => drop(running.halt(&|| losses(output).len() == STEPS)?),
        When::InEvaluation => drop(running.halt(&|| is_in_evaluation(output))?),
        When::InSave => drop(running.halt(&|| drafts(output) > 0 && !losses(output).is_empty())?),
    }
    let worker = if when == When::Preparing { first } else { running.worker() };
    let to = match to {
        To::First => vec![first.to_string()],
        To::Group => vec![format!("-{first}")],
        To::Trainer => vec![worker.to_string()],
        To::All => vec![first.to_string(), worker.to_string()],
    };
    signal_all(name, &to);
    signal_all("-CONT", &[worker.to_string()]);
    Some(running.end())
}

/// Resumes a run to its end, which must be that of one that nothing happened to.
fn check_resumed(scene: &Scene, output: &Path, whole: &Path, flags: &[&str], what: &str) {
    let resumed = scene.train(output, &[&["--save-steps", "1000", "--resume", "auto"], flags].concat());
    assert!(resumed.status.success(), "{what}: {}", told(&resumed));
    check_result(output, whole, what);
}

fn check_result(output: &Path, whole: &Path, what: &str) {
    let adapter = |output: &Path| std::fs::read(output.join("adapter_model.safetensors")).unwrap();
    assert_eq!(losses(output), losses(whole), "{what}");
    assert!(adapter(output) == adapter(whole), "{what}: another result");
}

#[test]
fn a_warned_training_saves_once_and_goes_on_to_the_same_bytes() {
    let scene = Scene::new("signals-train");
    let [whole, evaluated, output] = ["whole", "evaluated", "warned"].map(|name| scene.folder.join(name));
    let evaluation = ["--eval-dataset", scene.evaluation.to_str().unwrap()];
    assert!(scene.train(&whole, &["--save-steps", "1000"]).status.success());
    assert!(scene.train(&evaluated, &evaluation).status.success());
    let cases = [
        ("-USR1", To::First, When::Preparing),
        ("-USR2", To::Group, When::Preparing),
        ("-USR2", To::First, When::Loading),
        ("-USR1", To::Trainer, When::Loading),
        ("-USR2", To::All, When::Loading),
        ("-USR1", To::First, When::InStep),
        ("-USR2", To::Group, When::InStep),
        ("-USR1", To::Trainer, When::InStep),
        ("-USR1", To::All, When::InStep),
        ("-USR2", To::All, When::InStep),
        ("-USR1", To::All, When::InEvaluation),
        ("-USR2", To::All, When::InSave),
    ];
    for (name, to, when) in cases {
        let what = format!("{name}, {to:?}, {when:?}");
        // The last step may have been made before it was heard.
        let try_to = |_| warn(&scene, name, to, when, &output).filter(|ended| !ended.status.success());
        let ended = (0..TRIES).find_map(try_to).unwrap_or_else(|| panic!("{what} did not happen in {TRIES} runs"));
        let text = told(&ended);
        assert_eq!(ended.status.code(), REQUEUE, "{what}: {text}");
        assert_eq!(drafts(&output), 0, "{what}: {text}");
        assert!(!text.contains("asked again"), "{what}: {text}");
        let (saved, step) = (checkpoints(&output).len(), losses(&output).len());
        match when {
            When::Preparing | When::Loading => assert!(saved <= 1, "{what}: {text}"),
            When::InStep => {
                let news = format!("stopped at step {step} of {STEPS}; checkpoint-{step} is saved");
                assert!(saved == 1 && text.contains(&news), "{what}: {text}");
            }
            _ => assert!(output.join(format!("checkpoint-{step}")).is_dir(), "{what}: {text}"),
        }
        match when {
            When::InEvaluation => check_resumed(&scene, &output, &evaluated, &evaluation, &what),
            _ => check_resumed(&scene, &output, &whole, &[], &what),
        }
    }
    // Nothing is left to stop.
    let ended = (0..TRIES).find_map(|_| warn(&scene, "-USR1", To::All, When::AtEnd, &output)).unwrap();
    assert!(ended.status.success(), "{}", told(&ended));
    check_result(&output, &whole, "at the end");
}

/// Starts a run and halts its trainer between two steps.
fn halted(scene: &Scene, output: &Path) -> (Running, u32) {
    let in_step = || (3..STEPS - 2).contains(&losses(output).len());
    let start = |_| {
        drop(std::fs::remove_dir_all(output));
        let mut running = scene.start(output, &["--save-steps", "1000"]);
        let worker = running.halt(&in_step)?;
        Some((running, worker))
    };
    (0..TRIES).find_map(start).unwrap()
}

/// Reads what a run says until it has said this.
fn hear(talk: &mut BufReader<impl Read>, words: &str) -> String {
    let mut said = String::new();
    while !said.contains(words) {
        assert!(talk.read_line(&mut said).unwrap() > 0, "it ended without {words:?}: {said}");
    }
    said
}

#[test]
fn a_second_signal_ends_a_training_at_once_but_an_echo_does_not() {
    let scene = Scene::new("signals-twice");
    let [whole, output] = ["whole", "warned"].map(|name| scene.folder.join(name));
    assert!(scene.train(&whole, &["--save-steps", "1000"]).status.success());
    // Its trainer is halted and cannot save.
    let (mut running, _) = halted(&scene, &output);
    let mut talk = BufReader::new(running.guard.stderr.take().unwrap());
    signal("-USR1", running.guard.id());
    hear(&mut talk, "saving a checkpoint before stopping");
    signal("-TERM", running.guard.id());
    hear(&mut talk, "asked again: ending it now");
    hear(&mut talk, "it did not end on SIGTERM: killed");
    let rest = std::thread::spawn(move || talk.read_to_end(&mut Vec::new()).unwrap());
    assert_eq!(running.end().status.code(), Some(137), "as after a second SIGTERM");
    rest.join().unwrap();
    assert_eq!((checkpoints(&output).len(), drafts(&output)), (0, 0));
    check_resumed(&scene, &output, &whole, &[], "ended at once");
    // A launcher that got the signal, too, passes it on.
    let (mut running, worker) = halted(&scene, &output);
    let guard = running.guard.id();
    let twice = format!("kill -USR1 {guard}; sleep 0.1; kill -USR1 {guard}; sleep 0.1; kill -CONT {worker}");
    assert!(Command::new("sh").args(["-c", &twice]).status().unwrap().success());
    let ended = running.end();
    assert_eq!(ended.status.code(), REQUEUE, "{}", told(&ended));
    assert_eq!(checkpoints(&output).len(), 1, "{}", told(&ended));
    check_resumed(&scene, &output, &whole, &[], "an echo");
}

/// The environment variable by which a program of these tests is known.
const MARK: &str = "GARDEN_TEST_TRACE";

/// A program under `run` or `monitor` that has said that it is ready.
struct Watched {
    watcher: Killed,
    program: u32,
    out: BufReader<ChildStdout>,
    trace: PathBuf,
}

impl Drop for Watched {
    fn drop(&mut self) {
        if self.is_alive() {
            signal_all("-KILL", &[self.program.to_string()]);
        }
    }
}

impl Watched {
    /// Whether the program runs: one that has ended has no environment any more, and another of its number has a different one.
    fn is_alive(&self) -> bool {
        let environment = std::fs::read(format!("/proc/{}/environ", self.program)).unwrap_or_default();
        let mark = format!("{MARK}={}", self.trace.display());
        environment.split(|&byte| byte == 0).any(|variable| variable == mark.as_bytes())
    }

    /// Starts a program that prints its process id when it is ready.
    fn start(name: &str, command: &str, flags: &[&str], program: &[&str]) -> Watched {
        let trace = scratch(&format!("signals-{command}-{name}")).join("trace.jsonl");
        let words =
            [&[command, "--plain", "--interval", "50ms", "-o", trace.to_str().unwrap()], flags, &["--"], program];
        let mut command = model_garden(&words.concat());
        let command = command.process_group(0).env(MARK, &trace).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut watcher = Killed(command.spawn().unwrap());
        let mut out = BufReader::new(watcher.0.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let program = line.trim().parse().unwrap_or_else(|_| panic!("not ready: {line}"));
        // Seen as it is now: a program that ends on the signal has no handlers any more.
        let samples = || std::fs::read_to_string(&trace).unwrap_or_default().matches("\"rss\"").count();
        let before = samples();
        wait_until("two samples", || samples() > before + 1);
        Watched { watcher, program, out, trace }
    }

    fn warn(&self, name: &str, to: To) {
        let first = self.watcher.0.id();
        signal_all(
            name,
            &match to {
                To::First => vec![first.to_string()],
                To::Group => vec![format!("-{first}")],
                To::Trainer => vec![self.program.to_string()],
                To::All => vec![first.to_string(), self.program.to_string()],
            },
        );
    }

    /// Waits for the end of both.
    fn end(mut self) -> Output {
        let [mut stdout, mut stderr] = [Vec::new(), Vec::new()];
        let mut talk = self.watcher.0.stderr.take().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| talk.read_to_end(&mut stderr).unwrap());
            self.out.read_to_end(&mut stdout).unwrap();
        });
        let status = self.watcher.0.wait().unwrap();
        assert!(self.trace.is_file());
        // Nobody is left to end it.
        wait_until("the end of the program", || !self.is_alive());
        Output { status, stdout, stderr }
    }
}

/// A program that catches both signals, says which one it got and ends with 7.
const CATCHES: [&str; 3] = [
    "python3",
    "-c",
    "import os, signal, time\n\
     heard = []\n\
     for each in (signal.SIGUSR1, signal.SIGUSR2): signal.signal(each, lambda number, frame: heard.append(number))\n\
     print(os.getpid(), flush=True)\n\
     while not heard: time.sleep(0.01)\n\
     print('caught', heard[0], flush=True)\n\
     raise SystemExit(7)",
];
/// A script that catches SIGUSR1; what it runs does not.
const TRAPS: [&str; 3] = ["bash", "-c", "trap 'echo caught 10; exit 7' USR1; echo $$; while :; do sleep 0.05; done"];
/// A program that dies of any signal.
const DIES: [&str; 3] = ["sh", "-c", "echo $$; exec sleep 600"];

#[test]
fn run_passes_a_warning_on_to_a_program_that_catches_it() {
    if !has_python() {
        return;
    }
    for (name, to, program, number) in [
        ("-USR1", To::First, CATCHES, 10),
        ("-USR2", To::Group, CATCHES, 12),
        ("-USR1", To::All, CATCHES, 10),
        ("-USR1", To::Group, TRAPS, 10),
    ] {
        let watched = Watched::start("catches", "run", &[], &program);
        watched.warn(name, to);
        let ended = watched.end();
        assert_eq!(ended.status.code(), Some(7), "its own code: {name}, {to:?}: {}", told(&ended));
        assert!(told(&ended).contains(&format!("caught {number}")), "{name}, {to:?}: {}", told(&ended));
        assert!(!told(&ended).contains("saving a checkpoint"), "{name}, {to:?}: {}", told(&ended));
    }
}

#[test]
fn run_stops_a_program_that_would_die_of_a_warning() {
    for (name, to) in [("-USR1", To::First), ("-USR2", To::Group), ("-USR1", To::All), ("-USR2", To::Trainer)] {
        let watched = Watched::start("dies", "run", &[], &DIES);
        watched.warn(name, to);
        let ended = watched.end();
        assert_eq!(ended.status.code(), REQUEUE, "{name}, {to:?}: {}", told(&ended));
        assert!(told(&ended).contains("there is no complete checkpoint (exit code 75)"), "{}", told(&ended));
    }
}

#[test]
fn run_has_a_program_save_that_saves_on_sigterm() {
    if !has_python() {
        return;
    }
    for (name, to) in [("-USR1", To::First), ("-USR2", To::Group)] {
        let out = scratch("signals-run-out");
        let (ledger, place) = (out.join("ledger"), out.join("out"));
        let script = format!(
            "echo $$; exec python3 testdata/programs/trainer.py --max_steps 2000 --on_sigterm save --quiet --step_time 0.01 --ledger {} --output_dir {}",
            ledger.display(),
            place.display()
        );
        let flags = ["--checkpoint-dir", place.to_str().unwrap()];
        let watched = Watched::start("saves", "run", &flags, &["sh", "-c", &script]);
        wait_until("some steps", || std::fs::read_to_string(&ledger).unwrap_or_default().lines().count() > 3);
        watched.warn(name, to);
        let ended = watched.end();
        assert_eq!(ended.status.code(), REQUEUE, "{}", told(&ended));
        let [saved] = &checkpoints(&place)[..] else { panic!("not one checkpoint: {}", told(&ended)) };
        let steps = std::fs::read_to_string(&ledger).unwrap().lines().count();
        assert!(saved.ends_with(format!("checkpoint-{steps}")), "{}: {}", saved.display(), told(&ended));
    }
}

#[test]
fn monitor_passes_a_warning_on_or_ends_as_on_sigterm() {
    if !has_python() {
        return;
    }
    for (name, to) in [("-USR1", To::First), ("-USR2", To::Group), ("-USR1", To::All)] {
        let watched = Watched::start("catches", "monitor", &["--passthrough"], &CATCHES);
        watched.warn(name, to);
        let ended = watched.end();
        assert_eq!(ended.status.code(), Some(7), "{name}, {to:?}: {}", told(&ended));
        assert!(told(&ended).contains("caught 1"), "{name}, {to:?}: {}", told(&ended));
    }
    for (name, to, code) in
        [("-USR1", To::First, &[143][..]), ("-USR2", To::Group, &[143]), ("-USR2", To::All, &[140, 143])]
    {
        let watched = Watched::start("dies", "monitor", &["--passthrough"], &DIES);
        watched.warn(name, to);
        let ended = watched.end();
        assert!(ended.status.code().is_some_and(|found| code.contains(&found)), "{name}, {to:?}: {}", told(&ended));
        // Without that flag the verdict counts, since the program was told to end.
        let watched = Watched::start("verdict", "monitor", &[], &DIES);
        watched.warn(name, to);
        let ended = watched.end();
        assert!(matches!(ended.status.code(), Some(0 | 3)), "{name}, {to:?}: {}", told(&ended));
    }
}

#[test]
fn an_attached_monitor_reports_and_leaves_the_process_alone() {
    for name in ["-USR1", "-USR2"] {
        let mut sleeper = Killed(Command::new("sleep").arg("600").spawn().unwrap());
        let trace = scratch("signals-attached").join("trace.jsonl");
        let pid = sleeper.0.id().to_string();
        let words = ["monitor", "--pid", &pid, "--interval", "20ms", "-o", trace.to_str().unwrap()];
        let child = model_garden(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait_until("some samples", || {
            std::fs::read_to_string(&trace).is_ok_and(|text| text.matches("\"rss\"").count() > 10)
        });
        signal(name, child.id());
        let ended = child.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(0), "{}", told(&ended));
        assert!(told(&ended).contains("FLAT"), "{}", told(&ended));
        assert!(sleeper.0.try_wait().unwrap().is_none(), "it was signalled");
    }
}

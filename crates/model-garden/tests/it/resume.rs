//! Every pair of what happened to a run and what is asked next: the table of docs/train.md, on a tiny model.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on must fail")]
#![allow(clippy::print_stderr, reason = "a test that is skipped says so")]

use std::cell::Cell;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::{model_garden, picture_rows, run, scratch, told, trainer_of};
use serde_json::Value;

/// How long anything here may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);
/// How often a moment is waited for that may have passed before it is noticed.
pub(crate) const TRIES: usize = 30;
const ROWS: usize = 24;
/// Steps of an epoch.
pub(crate) const STEPS: usize = 12;

/// What happened to a run before the next command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Happened {
    Ended,
    AskedInStep,
    AskedInEvaluation,
    AskedInSave,
    WorkerKilled,
    GuardKilled,
    GuardKilledInEvaluation,
    BothKilled,
    BothKilledInSave,
    DiskFull,
    OnlyDamaged,
    NewestDamaged,
    Empty,
}

const HAPPENED: [Happened; 13] = [
    Happened::Ended,
    Happened::AskedInStep,
    Happened::AskedInEvaluation,
    Happened::AskedInSave,
    Happened::WorkerKilled,
    Happened::GuardKilled,
    Happened::GuardKilledInEvaluation,
    Happened::BothKilled,
    Happened::BothKilledInSave,
    Happened::DiskFull,
    Happened::OnlyDamaged,
    Happened::NewestDamaged,
    Happened::Empty,
];

/// What is asked next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Same,
    Resume,
    ResumeWithEvaluation,
    ResumeLonger,
    ResumeWithOtherRows,
}

/// What must come of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// Exit 2 with these words, and the folder as it was.
    Refused(&'static str),
    /// Trained to the end, with the losses of a run that nothing happened to.
    Exact,
    /// Trained to the end from the beginning, on other rows.
    Anew,
}

/// The table.
fn expected(happened: Happened, next: Next) -> Expected {
    let has_nothing = matches!(happened, Happened::Empty | Happened::OnlyDamaged);
    match (happened, next) {
        (Happened::Empty, Next::Same) => Expected::Exact,
        (_, Next::Same) => Expected::Refused("has checkpoints of an earlier run"),
        (_, Next::ResumeWithOtherRows) if has_nothing => Expected::Anew,
        (_, Next::ResumeWithOtherRows) => Expected::Refused("had different rows"),
        _ => Expected::Exact,
    }
}

/// Files that all runs of a test share.
pub(crate) struct Scene {
    pub(crate) folder: PathBuf,
    dataset: PathBuf,
    pub(crate) evaluation: PathBuf,
    other_evaluation: PathBuf,
}

impl Scene {
    pub(crate) fn new(name: &str) -> Scene {
        let folder = scratch(name);
        let rows = |name: &str, rows: usize, question: &str| {
            let inside = folder.join(name);
            std::fs::create_dir_all(&inside).unwrap();
            picture_rows(&inside, rows, |row| format!("{question} {row}?"))
        };
        Scene {
            dataset: rows("rows", ROWS, "Picture"),
            evaluation: rows("evaluation", 60, "What is"),
            other_evaluation: rows("other-evaluation", 4, "Which is"),
            folder,
        }
    }

    pub(crate) fn words(&self, output: &Path, more: &[&str]) -> Vec<String> {
        let fixed =
            ["train-vision", "--base-model", "testdata/tiny-model", "--dataset", self.dataset.to_str().unwrap()];
        let steps = ["--output-dir", output.to_str().unwrap(), "--epochs", "1", "--batch-size", "2"];
        // A rate that does not depend on how long the run will be.
        let rate = ["--gradient-accumulation", "1", "--learning-rate", "5e-3", "--lr-scheduler", "constant"];
        let small = ["--max-pixels", "12544", "--lora-dropout", "0.1", "--threads", "1", "--logging-steps", "1"];
        let saves = ["--warmup-steps", "0", "--save-steps", "4", "--eval-steps", "4", "--eval-answers", "2"];
        let last = ["--max-new-tokens", "8", "--save-total-limit", "3"];
        let all = [&fixed[..], &steps, &rate, &small, &saves, &last, more].concat();
        all.iter().map(ToString::to_string).collect()
    }

    pub(crate) fn train(&self, output: &Path, more: &[&str]) -> Output {
        let words = self.words(output, more);
        run(&words.iter().map(String::as_str).collect::<Vec<_>>())
    }

    pub(crate) fn start(&self, output: &Path, more: &[&str]) -> Running {
        let words = self.words(output, more);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut command = model_garden(&words);
        // A group of its own, as a scheduler starts a job: who signals it does not mean us.
        let guard = command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Running { guard, worker: Cell::new(None), output: output.to_path_buf() }
    }

    /// The flags that a next command has besides the usual ones.
    fn flags(&self, next: Next, happened: Happened) -> Vec<&str> {
        let evaluation = self.evaluation.to_str().unwrap();
        let is_evaluated = matches!(happened, Happened::AskedInEvaluation | Happened::GuardKilledInEvaluation);
        let mut flags = match next {
            Next::Same => vec![],
            Next::Resume | Next::ResumeWithOtherRows => vec!["--resume", "auto"],
            // One that has an evaluation already gets another.
            Next::ResumeWithEvaluation => {
                return vec!["--resume", "auto", "--eval-dataset", self.other_evaluation.to_str().unwrap()];
            }
            Next::ResumeLonger => vec!["--resume", "auto", "--epochs", "2"],
        };
        if is_evaluated {
            flags.extend(["--eval-dataset", evaluation]);
        }
        flags
    }

    /// Makes it happen to a run in a folder; false where this machine cannot.
    fn happen(&self, happened: Happened, output: &Path) -> bool {
        for _ in 0..TRIES {
            drop(std::fs::remove_dir_all(output));
            match self.try_to(happened, output) {
                Tried::Happened => return true,
                Tried::Missed => {}
                Tried::Impossible => return false,
            }
        }
        panic!("{happened:?} did not happen in {TRIES} runs");
    }

    fn try_to(&self, happened: Happened, output: &Path) -> Tried {
        let evaluated = ["--eval-dataset", self.evaluation.to_str().unwrap()];
        let in_step = || (5..STEPS - 1).contains(&losses(output).len());
        let in_evaluation = || is_in_evaluation(output);
        let in_save = || drafts(output) > 0 && !losses(output).is_empty();
        match happened {
            Happened::Empty => {
                std::fs::create_dir_all(output).unwrap();
                Tried::Happened
            }
            Happened::Ended => {
                let ended = self.train(output, &[]);
                assert!(ended.status.success(), "{}", told(&ended));
                Tried::Happened
            }
            Happened::AskedInStep => self.start(output, &[]).caught(in_step, |it| it.ask()),
            Happened::AskedInEvaluation => {
                let tried = self.start(output, &evaluated).caught(in_evaluation, |it| it.ask());
                // Asked too late if the evaluation ended all the same.
                if is_newest_evaluated(output) { Tried::Missed } else { tried }
            }
            Happened::AskedInSave => self.start(output, &["--save-steps", "1"]).caught(in_save, |it| it.ask()),
            Happened::WorkerKilled => self.start(output, &[]).caught(in_step, |it| {
                signal("-KILL", it.worker());
                let ended = it.end();
                assert!(ended.status.success(), "{}", told(&ended));
            }),
            Happened::GuardKilled => self.start(output, &[]).caught(in_step, Running::kill_guard),
            Happened::GuardKilledInEvaluation => {
                let tried = self.start(output, &evaluated).caught(in_evaluation, Running::kill_guard);
                if is_newest_evaluated(output) { Tried::Missed } else { tried }
            }
            Happened::BothKilled => self.start(output, &[]).caught(in_step, Running::kill_both),
            Happened::BothKilledInSave => {
                let later = || in_save() && losses(output).len() > 2;
                self.start(output, &["--save-steps", "1"]).caught(later, Running::kill_both)
            }
            Happened::DiskFull => self.fill_disk(output),
            Happened::OnlyDamaged | Happened::NewestDamaged => {
                let tried = self.start(output, &[]).caught(in_step, |it| it.ask());
                let mut found = checkpoints(output);
                let newest = found.pop().unwrap();
                if happened == Happened::OnlyDamaged {
                    found.iter().for_each(|path| std::fs::remove_dir_all(path).unwrap());
                } else {
                    assert!(!found.is_empty());
                }
                damage(&newest.join("optimizer.safetensors"));
                tried
            }
        }
    }

    /// On a small file system that somebody else fills, and of which a copy is made: there is room then.
    fn fill_disk(&self, output: &Path) -> Tried {
        let disk = self.folder.join("disk");
        std::fs::create_dir_all(&disk).unwrap();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=32m", "tmpfs"]).arg(&disk).output();
        if !mounted.is_ok_and(|mounted| mounted.status.success()) {
            garden_testing::skip("a small file system cannot be mounted here");
            return Tried::Impossible;
        }
        let mut ended = None;
        let has_steps = || (3..STEPS - 1).contains(&losses(&disk.join("out")).len());
        let tried = self.start(&disk.join("out"), &["--save-steps", "1"]).caught(has_steps, |it| {
            fill(&disk);
            signal("-CONT", it.worker());
            ended = Some(it.end());
        });
        drop(std::fs::remove_file(disk.join("ballast")));
        copy(&disk.join("out"), output);
        assert!(Command::new("umount").arg(&disk).status().unwrap().success());
        let Some(ended) = ended else { return tried };
        // It may have been about to write its log.
        let words = told(&ended);
        assert_eq!(ended.status.code(), Some(2), "{words}");
        assert!(words.contains(" is free in `") || words.contains("No space left on device"), "{words}");
        assert_eq!(drafts(output), 0);
        tried
    }
}

enum Tried {
    Happened,
    /// The moment had passed.
    Missed,
    Impossible,
}

/// A command under way; killed, with the process that trains, when the test ends before it.
pub(crate) struct Running {
    pub(crate) guard: Child,
    worker: Cell<Option<u32>>,
    output: PathBuf,
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.guard.kill());
        drop(self.guard.wait());
        // Whoever has its number now is left alone.
        let is_ours = |pid: &u32| {
            let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&words).contains(self.output.to_str().unwrap())
        };
        if let Some(worker) = self.worker.get().filter(is_ours) {
            drop(Command::new("kill").args(["-KILL", &worker.to_string()]).stderr(Stdio::null()).status());
        }
    }
}

impl Running {
    /// The process that trains.
    pub(crate) fn worker(&self) -> u32 {
        let begin = Instant::now();
        loop {
            if let Some(pid) = trainer_of(self.guard.id()) {
                self.worker.set(Some(pid));
                return pid;
            }
            assert!(begin.elapsed() < PATIENCE, "no process that trains");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits for the end of the command.
    pub(crate) fn end(&mut self) -> Output {
        let [mut stdout, mut stderr] = [Vec::new(), Vec::new()];
        let mut talk = self.guard.stderr.take();
        std::thread::scope(|scope| {
            scope.spawn(|| talk.as_mut().map(|pipe| pipe.read_to_end(&mut stderr)));
            if let Some(pipe) = &mut self.guard.stdout {
                pipe.read_to_end(&mut stdout).unwrap();
            }
        });
        Output { status: self.guard.wait().unwrap(), stdout, stderr }
    }

    /// Halts the process that trains at a moment, and does something then.
    fn caught(mut self, is_now: impl Fn() -> bool, then: impl FnOnce(&mut Running)) -> Tried {
        let Some(worker) = self.halt(&is_now) else { return Tried::Missed };
        then(&mut self);
        // It may be gone.
        drop(Command::new("kill").args(["-CONT", &worker.to_string()]).stderr(Stdio::null()).status());
        Tried::Happened
    }

    /// The process that trains, halted; nothing if the run ended before.
    pub(crate) fn halt(&mut self, is_now: &impl Fn() -> bool) -> Option<u32> {
        let worker = self.worker();
        let begin = Instant::now();
        while self.guard.try_wait().unwrap().is_none() {
            assert!(begin.elapsed() < PATIENCE, "the moment did not come");
            if is_now() {
                signal("-STOP", worker);
                while state(worker) == Some('R') || state(worker) == Some('S') || state(worker) == Some('D') {
                    std::thread::yield_now();
                }
                if is_now() {
                    return Some(worker);
                }
                signal("-CONT", worker);
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        None
    }

    /// Ctrl-C, and the end that follows from it.
    fn ask(&mut self) {
        let worker = self.worker();
        signal("-INT", self.guard.id());
        signal("-CONT", worker);
        let ended = self.end();
        let is_asked = ended.status.code() == Some(130) && !self.output.join("result.json").exists();
        // The last step may have been made before it was heard.
        assert!(is_asked || ended.status.success(), "{}", told(&ended));
    }

    /// The guard alone is killed: the process that trains notices, saves and ends.
    fn kill_guard(&mut self) {
        let worker = self.worker();
        signal("-KILL", self.guard.id());
        self.guard.wait().unwrap();
        signal("-CONT", worker);
        let begin = Instant::now();
        while state(worker).is_some_and(|state| state != 'Z') {
            assert!(begin.elapsed() < PATIENCE, "the process that trains lives on");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn kill_both(&mut self) {
        let worker = self.worker();
        signal("-KILL", self.guard.id());
        signal("-KILL", worker);
        self.guard.wait().unwrap();
        let begin = Instant::now();
        while state(worker).is_some_and(|state| state != 'Z') {
            assert!(begin.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// How the kernel calls what a process does.
fn state(pid: u32) -> Option<char> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit_once(") ")?.1.chars().next()
}

pub(crate) fn signal(name: &str, pid: u32) {
    assert!(Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
}

/// Takes all that is left of a disk.
pub(crate) fn fill(disk: &Path) {
    let mut file = std::fs::File::create(disk.join("ballast")).unwrap();
    while std::io::Write::write_all(&mut file, &[1; 4096]).is_ok() {}
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
}

/// Changes a bit.
fn damage(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

fn log(output: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(output.join("log.jsonl")).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Step, loss, accuracy and norm of gradients of every step, as they are written.
pub(crate) fn losses(output: &Path) -> Vec<[Value; 4]> {
    let lines = log(output).into_iter().filter(|line| line.get("loss").is_some());
    lines.map(|line| ["step", "loss", "mean_token_accuracy", "grad_norm"].map(|name| line[name].clone())).collect()
}

/// The steps of all evaluations in the log.
fn evaluations(output: &Path) -> Vec<u64> {
    let lines = log(output).into_iter().filter(|line| line.get("eval_loss").is_some());
    lines.map(|line| line["step"].as_u64().unwrap()).collect()
}

/// The checkpoints of a folder, the newest last.
pub(crate) fn checkpoints(output: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(output).into_iter().flatten().flatten();
    let step = |path: &Path| path.file_name()?.to_str()?.strip_prefix("checkpoint-")?.parse::<usize>().ok();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| step(path).is_some()).collect();
    found.sort_by_key(|path| step(path));
    found
}

/// Checkpoints that are being written, or that somebody who was killed has left.
pub(crate) fn drafts(output: &Path) -> usize {
    let entries = std::fs::read_dir(output).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(".checkpoint-")).count()
}

/// Whether an evaluation after the first step has begun and not ended, by the trace.
pub(crate) fn is_in_evaluation(output: &Path) -> bool {
    let trace = std::fs::read_to_string(output.join("trace.jsonl")).unwrap_or_default();
    let mut events = trace.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let last = events.rfind(|line| line["event"].as_str().is_some_and(|event| event.starts_with("eval_")));
    last.is_some_and(|line| line["event"] == "eval_start" && line["step"].as_u64().is_some_and(|step| step > 0))
}

/// Whether the newest checkpoint knows that its step was evaluated.
fn is_newest_evaluated(output: &Path) -> bool {
    let state = std::fs::read(checkpoints(output).last().unwrap().join("garden_state.json")).unwrap();
    let progress = &serde_json::from_slice::<Value>(&state).unwrap()["progress"];
    progress["evaluated"] == progress["step"] || !progress["step"].as_u64().unwrap().is_multiple_of(4)
}

#[test]
fn whatever_happened_the_next_command_is_refused_or_exact() {
    let scene = Scene::new("resume-pairs");
    let [whole, longer] = [vec![], vec!["--epochs", "2"]].map(|flags| {
        let output = scene.folder.join(format!("whole-{}", flags.len()));
        let ended = scene.train(&output, &flags);
        assert!(ended.status.success(), "{}", told(&ended));
        losses(&output)
    });
    assert_eq!((whole.len(), longer.len()), (STEPS, 2 * STEPS));
    let rows = std::fs::read_to_string(&scene.dataset).unwrap();
    let mut made = Vec::new();
    for happened in HAPPENED {
        let output = scene.folder.join(format!("{happened:?}"));
        if scene.happen(happened, &output) {
            made.push((happened, output));
        }
    }
    let check = |next: Next| {
        for (happened, before) in &made {
            let output = scene.folder.join(format!("{happened:?}-{next:?}"));
            copy(before, &output);
            let (there, log_before) = (checkpoints(&output), log(&output));
            let ended = scene.train(&output, &scene.flags(next, *happened));
            let what = format!("{happened:?}, {next:?}: {}", told(&ended));
            let expected = expected(*happened, next);
            if let Expected::Refused(words) = expected {
                assert_eq!(ended.status.code(), Some(2), "{what}");
                assert!(told(&ended).contains(words) && told(&ended).contains("hint: "), "{what}");
                assert_eq!((checkpoints(&output), log(&output)), (there, log_before), "{what}");
                continue;
            }
            assert!(ended.status.success(), "{what}");
            assert_eq!(drafts(&output), 0, "{what}");
            for file in ["result.json", "adapter_model.safetensors", "tokenizer.json", "report.html"] {
                assert!(output.join(file).is_file(), "{file}: {what}");
            }
            let wanted = if next == Next::ResumeLonger { &longer } else { &whole };
            if expected == Expected::Exact {
                assert_eq!(&losses(&output), wanted, "{what}");
            } else {
                assert_ne!(&losses(&output), wanted, "{what}");
            }
            let evaluated = evaluations(&output);
            let mut once = evaluated.clone();
            once.dedup();
            assert_eq!(evaluated, once, "an evaluation is in the log twice: {what}");
            if next == Next::ResumeWithEvaluation {
                assert_eq!(evaluated.last(), Some(&(STEPS as u64)), "{what}");
            }
            let newest = checkpoints(&output).pop().unwrap();
            assert!(newest.ends_with(format!("checkpoint-{}", wanted.len())), "{what}");
        }
    };
    for next in [Next::Same, Next::Resume, Next::ResumeWithEvaluation, Next::ResumeLonger] {
        check(next);
    }
    // As many rows as before, and one of them says something else.
    std::fs::write(&scene.dataset, rows.replace("Picture 7?", "Picture 8?")).unwrap();
    check(Next::ResumeWithOtherRows);
    eprintln!("{} of {} happened", made.len(), HAPPENED.len());
}

#[test]
fn one_run_folder_has_one_trainer() {
    let scene = Scene::new("resume-alive");
    let [whole, output] = ["whole", "alive"].map(|name| scene.folder.join(name));
    assert!(scene.train(&whole, &[]).status.success());
    let in_step = || (5..STEPS - 1).contains(&losses(&output).len());
    let (mut running, worker) = (0..TRIES)
        .find_map(|_| {
            drop(std::fs::remove_dir_all(&output));
            let mut running = scene.start(&output, &[]);
            let worker = running.halt(&in_step)?;
            Some((running, worker))
        })
        .unwrap();
    // Both live: whatever is asked is refused.
    for flags in [&[][..], &["--resume", "auto"]] {
        let refused = scene.train(&output, flags);
        assert_eq!(refused.status.code(), Some(2), "{}", told(&refused));
        assert!(told(&refused).contains("is in use: process"), "{}", told(&refused));
    }
    // The guard dies, and its trainer has not noticed yet: it is waited for.
    signal("-KILL", running.guard.id());
    running.guard.wait().unwrap();
    let mut next = scene.start(&output, &["--resume", "auto"]);
    let begin = Instant::now();
    let mut said = String::new();
    let mut talk = BufReader::new(next.guard.stderr.take().unwrap());
    while !said.contains("waiting for it to save and exit") {
        assert!(begin.elapsed() < PATIENCE);
        assert!(talk.read_line(&mut said).unwrap() > 0, "{said}");
    }
    assert!(said.contains(&format!("process {worker} is still working in")), "{said}");
    assert!(next.guard.try_wait().unwrap().is_none());
    signal("-CONT", worker);
    talk.read_to_string(&mut said).unwrap();
    let ended = next.end();
    assert!(ended.status.success(), "{said}");
    assert!(said.contains("resuming from"), "{said}");
    assert_eq!(losses(&output), losses(&whole));
}

/// Checkpoints of versions that had another fingerprint of their rows, or none.
#[test]
fn a_checkpoint_that_does_not_know_its_rows_goes_on() {
    let scene = Scene::new("resume-older");
    let output = scene.folder.join("out");
    assert!(scene.train(&output, &[]).status.success());
    let whole = losses(&output);
    std::fs::remove_dir_all(output.join("checkpoint-12")).unwrap();
    let path = output.join("checkpoint-8/garden_state.json");
    let mut state: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let fields = state.as_object_mut().unwrap();
    assert!(fields.remove("contents").is_some_and(|contents| contents.is_u64()));
    fields.insert("fingerprint".into(), 12_345.into());
    std::fs::write(&path, state.to_string()).unwrap();
    let resumed = scene.train(&output, &["--resume", "auto"]);
    assert!(resumed.status.success(), "{}", told(&resumed));
    assert!(told(&resumed).contains("an earlier version made the checkpoint"), "{}", told(&resumed));
    assert_eq!(losses(&output), whole);
}

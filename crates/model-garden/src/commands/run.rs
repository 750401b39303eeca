//! `model-garden run`: guard a command, from its first start to its last end.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use garden_guard::{
    Fence, GuardConfig, Observer, OnLimit, OnWarning, OutputMode, Remark, StateFolder, Summary, Troubles, ask_to_end,
    start_in_background, supervise, supervisor_of, unguarded,
};
use garden_memory::{Bytes, RunFacts};
use garden_probe::memory_limit;
use garden_run::guarded;

use super::Outcome;
use crate::cli;
use crate::failure::Failure;
use crate::guarding::{guard_failure, leave_on_warnings, say_summary, take_folder};
use crate::judging::{HeldTrace, check_page, judge_and_print, write_page};
use crate::printer::Printer;
use crate::show::Show;
use crate::traces;

/// How long a supervisor in the background may take to begin.
const BEGINNING: Duration = Duration::from_secs(10);
/// How often the files of another supervisor are looked at.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// Runs the command.
pub fn run(arguments: &cli::Run, printer: &Printer) -> Result<Outcome, Failure> {
    match &arguments.state_dir {
        Some(folder) if arguments.attach => attach(folder, printer),
        Some(folder) if arguments.stop => stop(folder, printer),
        Some(folder) if arguments.detach => detach(folder, printer),
        _ => guard(arguments, printer).map(|(outcome, _)| outcome),
    }
}

/// Sees the program through, and says how it ended.
pub fn guard(arguments: &cli::Run, printer: &Printer) -> Result<(Outcome, Summary), Failure> {
    leave_on_warnings()?;
    let watching = &arguments.watching;
    check_page(watching.report.as_deref())?;
    let state = arguments.state_dir.as_deref().map(take_folder).transpose()?;
    let facts = RunFacts::from(&watching.facts);
    let limit = facts.memory_limit;
    let around = memory_limit();
    let smallest = limit.into_iter().chain(around).min();
    let shown = RunFacts { memory_limit: smallest, ..facts.clone() };
    // A program that writes to a log has no terminal to draw.
    let mut show = Show::new(printer, shown.clone(), watching.interval, watching.plain || state.is_some());
    let output_mode =
        state.as_ref().map_or_else(|| show.output_mode(), |state| OutputMode::Log(state.path("output.log")));
    let trace = trace_path(watching.output.as_deref(), state.as_ref())?;
    let held = HeldTrace::at(&trace);
    let checkpoint_dir = arguments.checkpoint_dir.clone().or_else(|| output_dir(&arguments.command));
    let mut say = |line: &str| Observer::say(&mut show, &Remark::News(line.to_string()));
    match (limit, smallest) {
        (Some(asked), Some(smallest)) if smallest < asked => {
            say(&format!(
                "the limit is {smallest}, all that this machine or container has ({asked} was requested); \
                 trace: {}",
                trace.display()
            ));
        }
        (_, Some(smallest)) => say(&format!("the limit is {smallest}; trace: {}", trace.display())),
        (_, None) => say(&format!("no limit is known; trace: {}", trace.display())),
    }
    if let Some(removed) = traces::tidy(&trace) {
        say(&removed);
    }
    match &checkpoint_dir {
        Some(folder) if folder.is_file() => {
            say(&format!(
                "{} is a file, not a folder of checkpoints: pass the folder with --checkpoint-dir",
                folder.display()
            ));
        }
        Some(folder) => say(&format!("looking for checkpoints in {}", folder.display())),
        None => say("no checkpoint folder is known: pass it with --checkpoint-dir"),
    }
    if arguments.resume_with.as_deref().is_some_and(|words| !words.is_empty() && !words.contains("{checkpoint}")) {
        say(
            "--resume-with does not mention {checkpoint}: the program must find it by itself, or in MODEL_GARDEN_RESUME",
        );
    }
    say("how to stop the program is detected once it trains");
    let fence = arguments.fence.then(|| build_fence(smallest, &mut say)).flatten();
    let config = GuardConfig {
        environment: Vec::new(),
        command: arguments.command.clone(),
        limit,
        stop_at: arguments.stop_at,
        grace: arguments.grace,
        on_limit: match arguments.on_limit {
            cli::OnLimit::Stop => OnLimit::Stop,
            cli::OnLimit::Restart => OnLimit::Restart,
        },
        on_warning: OnWarning::Forward,
        max_restarts: arguments.max_restarts,
        resume_with: arguments.resume_with.clone(),
        checkpoint_dir,
        is_folder_given: arguments.checkpoint_dir.is_some(),
        interval: watching.interval,
        facts: shown,
        step_pattern: watching.step_pattern.clone(),
        output_mode,
        fence,
        trace,
        goes_on: false,
        state,
    };
    let title: Vec<String> = arguments.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    show.name(title.join(" "));
    let result = supervise(&config, &mut show);
    show.close();
    let summary = match result {
        Ok(summary) => summary,
        Err(error) => {
            held.drop_empty();
            return Err(guard_failure(error));
        }
    };
    say_summary(&summary, config.limit, printer);
    let stability = watching.gate.stability();
    // The program's own outcome counts, whatever becomes of the report; a run that went well must also pass what was asserted.
    let passed = match judge_and_print(&held, stability, printer) {
        Ok(judged) => {
            if let Some(page) = &watching.report {
                write_page(&judged, &config.trace, page, vec![guarded(&summary)], printer);
            }
            judged.diagnosis.stability.is_none_or(|check| check.passed)
        }
        Err(failure) => {
            printer.failure(&failure);
            stability.is_none()
        }
    };
    let outcome = if summary.code == 0 && !passed { Outcome::BadNews } else { Outcome::Program(summary.code) };
    if summary.troubles.any() {
        let Troubles { late_samples, failed_readings, unwritten_lines } = summary.troubles;
        printer.say(&format!(
            "model-garden: {late_samples} samples were late, {failed_readings} readings failed, {unwritten_lines} lines of the trace could not be written"
        ));
    }
    printer.say(&format!(
        "model-garden: {}{} (exit code {}); trace: {}",
        summary.words,
        if passed { "" } else { ", but the stability check failed" },
        outcome.code(),
        config.trace.display()
    ));
    Ok((outcome, summary))
}

fn trace_path(asked: Option<&Path>, state: Option<&StateFolder>) -> Result<PathBuf, Failure> {
    match (asked, state) {
        (Some(path), _) => Ok(path.to_path_buf()),
        (None, Some(state)) => Ok(state.path("trace.jsonl")),
        (None, None) => traces::claim(),
    }
}

fn build_fence(limit: Option<Bytes>, say: &mut dyn FnMut(&str)) -> Option<Fence> {
    let Some(limit) = limit else {
        say("no fence: no limit is known");
        return None;
    };
    match Fence::build(limit) {
        Ok(fence) => {
            say(&format!("fence of {limit}: {}", fence.words()));
            Some(fence)
        }
        Err(why) => {
            say(&format!("no fence, so only the forecast protects the machine: {why}"));
            None
        }
    }
}

/// Where a command in the manner of Hugging Face saves its checkpoints.
fn output_dir(command: &[OsString]) -> Option<PathBuf> {
    let names = ["--output_dir", "--output-dir"];
    let words: Vec<&str> = command.iter().filter_map(|word| word.to_str()).collect();
    let joined = words.iter().find_map(|word| {
        let (name, value) = word.split_once('=')?;
        names.contains(&name).then_some(value)
    });
    let apart = words.windows(2).find(|pair| names.contains(&pair[0])).map(|pair| pair[1]);
    joined.or(apart).map(PathBuf::from)
}

/// Starts the same command again in the background, in a session of its own.
fn detach(folder: &Path, printer: &Printer) -> Result<Outcome, Failure> {
    let failed = |what: &str, error: &io::Error| {
        let hint = "choose a writable folder with --state-dir".to_string();
        Failure::new(format!("{what} in `{}`", folder.display()), error, Some(hint))
    };
    fs::create_dir_all(folder).map_err(|error| failed("cannot create the state folder", &error))?;
    let log = folder.join("supervisor.log");
    let file = File::create(&log).map_err(|error| failed("cannot write the supervisor's log", &error))?;
    let program =
        garden_guard::own_program().map_err(|error| failed("cannot find this program's executable", &error))?;
    let is_behind = |words: &[OsString]| words.iter().any(|word| word == "--");
    let mut words: Vec<OsString> = Vec::new();
    for word in std::env::args_os().skip(1) {
        // Behind `--` it would be the command's own.
        if word != "--detach" || is_behind(&words) {
            words.push(word);
        }
    }
    let mut child = start_in_background(program, &words, None, file)
        .map_err(|error| failed("cannot start the supervisor", &error))?;
    let patience = Instant::now() + BEGINNING;
    while Instant::now() < patience {
        if supervisor_of(folder).ok().flatten() == Some(child.id()) {
            printer.say(&format!("guarded in the background by process {}; state: {}", child.id(), folder.display()));
            return Ok(Outcome::Fine);
        }
        if let Ok(Some(status)) = child.try_wait() {
            let said = fs::read_to_string(&log).unwrap_or_default();
            printer.say(said.trim_end());
            return Ok(Outcome::Program(status.code().unwrap_or(2)));
        }
        std::thread::sleep(LOOK_PAUSE);
    }
    Err(Failure {
        what: format!("the supervisor in `{}` did not start within {} s", folder.display(), BEGINNING.as_secs()),
        causes: Vec::new(),
        hint: Some(format!("see {}", log.display())),
    })
}

/// Follows a run in another process: what the program prints, until its end.
fn attach(folder: &Path, printer: &Printer) -> Result<Outcome, Failure> {
    let mut pid = find_supervisor(folder)?;
    if let Some(pid) = pid {
        printer.say(&format!("following the run guarded by process {pid}; Ctrl-C leaves it alone"));
    }
    let mut log = File::open(folder.join("output.log")).ok();
    loop {
        // Asked before reading, so that what was printed last is not missed.
        let is_over = pid.is_none();
        if log.is_none() {
            log = File::open(folder.join("output.log")).ok();
        }
        if let Some(log) = &mut log {
            let mut text = Vec::new();
            drop(log.read_to_end(&mut text));
            printer.pass_on(&text);
        }
        if is_over {
            return exit_of(folder, printer);
        }
        std::thread::sleep(LOOK_PAUSE);
        pid = find_supervisor(folder)?;
    }
}

/// Asks a run in another process to save and end.
fn stop(folder: &Path, printer: &Printer) -> Result<Outcome, Failure> {
    let Some(pid) = find_supervisor(folder)? else {
        if let Some(program) = unguarded(folder) {
            return Err(Failure {
                what: format!("the guard of this run was killed; the program is still running as process `{program}`"),
                causes: Vec::new(),
                hint: Some(format!(
                    "end it yourself: with `kill -TERM {program}` if it saves on SIGTERM, else after its next checkpoint"
                )),
            });
        }
        printer.say("the run has already ended");
        return exit_of(folder, printer);
    };
    ask_to_end(pid).map_err(|error| {
        let hint = "run this as the user who started it".to_string();
        Failure::new(format!("cannot ask process `{pid}` to stop"), &error, Some(hint))
    })?;
    printer.say(&format!("asked process {pid} to save and exit"));
    while find_supervisor(folder)?.is_some() {
        std::thread::sleep(LOOK_PAUSE);
    }
    exit_of(folder, printer)
}

fn find_supervisor(folder: &Path) -> Result<Option<u32>, Failure> {
    supervisor_of(folder).map_err(|error| {
        let hint = "pass the folder that was given to `run --state-dir`".to_string();
        Failure::new(format!("no run has its state in `{}`", folder.display()), &error, Some(hint))
    })
}

/// How a run ended, as its supervisor wrote it down.
fn exit_of(folder: &Path, printer: &Printer) -> Result<Outcome, Failure> {
    let path = folder.join("exit.json");
    let wrong = |error: &dyn std::error::Error| {
        let hint = "the supervisor was killed; see state.json, output.log and the trace".to_string();
        Failure::new(format!("`{}` does not say how the run ended", path.display()), error, Some(hint))
    };
    let text = fs::read(&path).map_err(|error| wrong(&error))?;
    let summary: Summary = serde_json::from_slice(&text).map_err(|error| wrong(&error))?;
    printer.say(&format!("{} (exit code {})", summary.words, summary.code));
    Ok(Outcome::Program(summary.code))
}

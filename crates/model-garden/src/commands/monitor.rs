//! `model-garden monitor`: watch a process tree, record it, judge it at the end.
//!
//! The trace on disk is the only record: the verdict at the end is `diagnose` of that file, so the two cannot differ, and the
//! monitor's own memory does not grow with the time it watches.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{self, SyncSender};
use std::time::Instant;

use garden_guard::{
    Channel, Ending, Happening, Launch, Launched, Live, Notice, OutputMode, Recorder, Stop, Watch, forward_warning,
    launch, listen_for_stops, origin, pass_stop_on,
};
use garden_memory::{Bytes, EventKind, MIB, RunFacts};
use garden_probe::{Identity, Sampler, find_training, memory_limit};
use garden_report::JudgedTrace;

use super::Outcome;
use crate::cli;
use crate::failure::Failure;
use crate::guarding::{cannot_create, cannot_start};
use crate::judging::{HeldTrace, check_page, judge_and_print, outcome, write_page};
use crate::printer::Printer;
use crate::show::{Show, Wish};
use crate::traces;

/// Runs the command.
pub fn run(arguments: &cli::Monitor, printer: &Printer) -> Result<Outcome, Failure> {
    let watching = &arguments.watching;
    check_page(watching.report.as_deref())?;
    let (sender, notices) = mpsc::sync_channel(256);
    listen_for_stops(sender.clone()).map_err(|error| Failure::new("cannot listen for signals", &error, None))?;
    let facts = RunFacts::from(&watching.facts);
    let shown_facts = RunFacts { memory_limit: facts.memory_limit.or_else(memory_limit), ..facts.clone() };
    let mut show = Show::new(printer, shown_facts, watching.interval, watching.plain);
    let output_mode = show.output_mode();
    let found = find_target(arguments)?;
    let words: Vec<String> = arguments.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let command =
        found.map_or_else(|| words.join(" "), |pid| Identity::of(pid).map_or(String::new(), |found| found.command));
    // A trace that cannot be written must be known before anything runs.
    let path = watching.output.clone().map_or_else(traces::claim, Ok)?;
    let trace = HeldTrace::at(&path);
    let created = Recorder::create(&path, facts, &origin(&command, watching.interval));
    let recorder = match created {
        Ok(recorder) => recorder,
        Err(error) => {
            trace.drop_empty();
            return Err(cannot_create(&path, &error));
        }
    };
    let opened = Target::open(found, arguments, &output_mode, &sender).and_then(|target| {
        let sampler = Sampler::of(target.pid).map_err(|error| cannot_watch(target.pid, &error))?;
        Ok((target, sampler))
    });
    // A trace of nothing is of no use to anybody.
    let (target, sampler) = opened.inspect_err(|_| drop(std::fs::remove_file(&path)))?;
    let name = sampler.root().name.clone();
    show.name(command);
    show.listen(&sender);
    show.tell(&format!("watching {} ({name}), trace: {}", target.pid, path.display()));
    if let Some(removed) = traces::tidy(&path) {
        show.tell(&removed);
    }
    let watch = Watch::new(sampler, recorder, watching.step_pattern.clone());
    let mut live = Live::new(watch, notices, watching.interval);
    let is_ours = target.launched.is_some();
    if let Some(launched) = target.launched {
        launched.follow(sender);
    }
    let mut was_asked = false;
    let end = follow(&mut live, &mut show, target.pid, is_ours, arguments, &mut was_asked)?;
    show.close();
    let judged = report(&mut live, &end, &trace, watching, printer)?;
    let ending = match end {
        End::Program(ending) => Some(ending),
        End::Watching if is_ours => Some(see_out(&mut live, target.pid, &output_mode, printer, &mut was_asked)?),
        End::Watching => None,
    };
    Ok(match ending {
        Some(ending) if arguments.passthrough => Outcome::Program(ending.code()),
        // How a program ends that was told to is no failure of its own, and a scheduler may have told it without us.
        Some(ending) if ending != Ending::Code(0) && !was_asked && ending.warning().is_none() => Outcome::CommandFailed,
        _ => outcome(&judged),
    })
}

/// What ended.
enum End {
    /// The program that we started.
    Program(Ending),
    /// The watching, or a program of somebody else.
    Watching,
}

/// What is watched.
struct Target {
    pid: u32,
    /// What we started ourselves, and so hear what it prints and how it ends.
    launched: Option<Launched>,
    /// Kept open for as long as we watch.
    _channel: Option<Channel>,
}

impl Target {
    /// Attaches to the process that was found, or starts the command.
    fn open(
        found: Option<u32>,
        arguments: &cli::Monitor,
        output_mode: &OutputMode,
        notices: &SyncSender<Notice>,
    ) -> Result<Target, Failure> {
        let Some(pid) = found else { return Target::start(&arguments.command, output_mode, notices) };
        let open = |path: &PathBuf| {
            Channel::open_at(path, notices.clone()).map_err(|error| {
                let hint = match error.kind() {
                    io::ErrorKind::AddrInUse => {
                        "another watcher may be using it: stop that one, or choose another path"
                    }
                    _ => "choose a path of fewer than 100 characters in an existing folder",
                };
                let hint = hint.to_string();
                Failure::new(format!("cannot listen on `{}`", path.display()), &error, Some(hint))
            })
        };
        Ok(Target { pid, launched: None, _channel: arguments.channel.as_ref().map(open).transpose()? })
    }

    fn start(command: &[OsString], output_mode: &OutputMode, notices: &SyncSender<Notice>) -> Result<Target, Failure> {
        let channel = Channel::open(notices.clone()).ok();
        let variable =
            channel.as_ref().map(|channel| (garden_guard::ENVIRONMENT, channel.path().as_os_str().to_owned()));
        let environment: Vec<(&str, OsString)> = variable.into_iter().collect();
        let what = Launch { words: command, environment: &environment, output_mode, group: None };
        let launched = launch(what, notices).map_err(|error| {
            let name = command.first().map_or_else(String::new, |word| word.to_string_lossy().into_owned());
            cannot_start(&name, &error)
        })?;
        Ok(Target { pid: launched.pid, launched: Some(launched), _channel: channel })
    }
}

/// The process to attach to; `None` if there is a command to start.
fn find_target(arguments: &cli::Monitor) -> Result<Option<u32>, Failure> {
    if !arguments.command.is_empty() {
        return Ok(None);
    }
    let pid = match arguments.pid {
        Some(pid) => pid,
        None => find_training().first().map(|(identity, _)| identity.pid).ok_or_else(|| Failure {
            what: "no training process found".into(),
            causes: vec!["no Python process on this machine can be inspected".into()],
            hint: Some("start it with `model-garden monitor COMMAND`, or pass its --pid".into()),
        })?,
    };
    match Identity::of(pid) {
        Some(_) => Ok(Some(pid)),
        None => Err(cannot_watch(pid, &io::Error::new(io::ErrorKind::NotFound, "there is no such process"))),
    }
}

fn cannot_watch(pid: u32, error: &io::Error) -> Failure {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => "run as the same user, or in a container add `--cap-add SYS_PTRACE`",
        _ => "check the process id; the process may have ended",
    };
    Failure::new(format!("cannot watch process `{pid}`"), error, Some(hint.into()))
}

/// Watches until the tree has gone, the time is over, or we are asked to stop.
fn follow(
    live: &mut Live,
    show: &mut Show<'_>,
    pid: u32,
    is_ours: bool,
    arguments: &cli::Monitor,
    was_asked: &mut bool,
) -> Result<End, Failure> {
    let until = arguments.duration.map(|duration| Instant::now() + duration);
    while let Some(happening) = live.next(until).map_err(cannot_write)? {
        let wish = show.happened(&happening, live, None);
        match happening {
            Happening::Ended(ending) => {
                live.watch.event(EventKind::Exit).map_err(cannot_write)?;
                return Ok(End::Program(ending));
            }
            // Without a terminal there is nobody to show it to, but the trace is still wanted.
            Happening::Asked(Stop::HungUp) if is_ours => {}
            // A program of ours is asked to end and watched until it has; another one is left alone.
            Happening::Asked(stop) if is_ours => *was_asked |= is_asked_to_end(live, pid, stop),
            Happening::Asked(_) => return Ok(End::Watching),
            Happening::Gone if !is_ours => return Ok(End::Watching),
            Happening::Told(message) if message.event == Some(EventKind::Exit) && !is_ours => return Ok(End::Watching),
            _ => {}
        }
        match wish {
            Some(Wish::Interrupt) if is_ours => {
                *was_asked = true;
                pass_stop_on(pid, Stop::Interrupt);
            }
            Some(_) => return Ok(End::Watching),
            None => {}
        }
    }
    Ok(End::Watching)
}

/// Passes a stop on. What a program makes of a scheduler's warning that it catches is its own business, so that is no request to end.
fn is_asked_to_end(live: &Live, pid: u32, stop: Stop) -> bool {
    if let Stop::Warned(warning) = stop
        && forward_warning(&live.watch.tree().processes, pid, warning).is_some()
    {
        return false;
    }
    pass_stop_on(pid, stop);
    true
}

fn cannot_write(error: io::Error) -> Failure {
    Failure::new("cannot write the trace", &error, None)
}

/// Judges the trace that was written, and says what happened.
fn report(
    live: &mut Live,
    end: &End,
    trace: &HeldTrace,
    watching: &cli::Watching,
    printer: &Printer,
) -> Result<JudgedTrace, Failure> {
    let path = live.watch.path().to_path_buf();
    let judged = judge_and_print(trace, watching.gate.stability(), printer)?;
    if let Some(page) = &watching.report {
        write_page(&judged, &path, page, Vec::new(), printer);
    }
    if let End::Program(ending) = end {
        printer.say(&format!("the command {}", ending.words()));
    }
    say_troubles(live, printer);
    printer.say(&format!("trace: {}", path.display()));
    Ok(judged)
}

/// Says what went wrong while watching, if anything did.
pub fn say_troubles(live: &Live, printer: &Printer) {
    let (failed, late) = (live.watch.sampler().failed(), live.late());
    if failed + late > 0 {
        printer.say(&format!("{failed} readings failed, {late} samples were late"));
    }
    let error = live.watch.sampler().counter_error();
    if error >= MIB {
        printer.say(&format!("the kernel's counters were off by up to {}", Bytes(error)));
    }
    if let Some((lines, error)) = live.watch.recorder().failures() {
        printer.say(&format!("{lines} lines of the trace could not be written: {error}"));
    }
}

/// The watching is over but the command is not: it goes on, and its output still needs us to get through.
fn see_out(
    live: &mut Live,
    pid: u32,
    output_mode: &OutputMode,
    printer: &Printer,
    was_asked: &mut bool,
) -> Result<Ending, Failure> {
    printer.say(&format!("the command keeps running as process {pid}; its output is passed on until it ends"));
    // What was drawn is nowhere else; the rest gets through by itself.
    let was_drawn = matches!(output_mode, OutputMode::View { .. });
    loop {
        match live.wait() {
            Some(Notice::Ended(ending)) => return Ok(ending),
            Some(Notice::Asked(stop)) => *was_asked |= is_asked_to_end(live, pid, stop),
            Some(Notice::Output(output)) if was_drawn => printer.pass_on(&output),
            Some(_) => {}
            None => return Ok(Ending::Code(0)),
        }
    }
}

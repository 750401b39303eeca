//! What the commands that guard a program share: its state folder, the summary of its attempts, and failures to start.

use std::io;
use std::path::Path;

use garden_guard::{Error, StateFolder, Summary};
use garden_memory::Bytes;

use crate::failure::Failure;
use crate::printer::Printer;

/// Until a guard listens, a scheduler's warning ends us with the code to start again: nothing has begun.
pub fn leave_on_warnings() -> Result<(), Failure> {
    garden_guard::leave_on_warnings().map_err(|error| Failure::new("cannot listen for signals", &error, None))
}

/// Takes a folder for the state of a run.
pub fn take_folder(folder: &Path) -> Result<StateFolder, Failure> {
    StateFolder::take(folder).map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::ResourceBusy => {
                "its guard was killed, but the program is still running (see program_pid in state.json): end that first"
            }
            io::ErrorKind::AddrInUse => {
                "another run uses it: follow it with --attach, end it with --stop, or choose another folder"
            }
            _ => "choose a writable folder with --state-dir",
        };
        Failure::new(format!("cannot use the state folder `{}`", folder.display()), &error, Some(hint.into()))
    })
}

/// What went wrong before or while guarding.
pub fn guard_failure(error: Error) -> Failure {
    match error {
        Error::Start(program, error) => cannot_start(&program.to_string_lossy(), &error),
        Error::Trace(path, error) => cannot_create(&path, &error),
        other => Failure::new("cannot guard the command", &other, None),
    }
}

/// Says what each attempt cost; one that simply ran needs no words.
pub fn say_summary(summary: &Summary, limit: Option<Bytes>, printer: &Printer) {
    let is_plain = |attempt: &garden_guard::Attempt| attempt.stopped_because.is_none();
    if summary.attempts.iter().all(is_plain) && summary.attempts.len() == 1 {
        return;
    }
    for attempt in &summary.attempts {
        let steps = match (attempt.first_step, attempt.last_step) {
            (Some(first), Some(last)) => format!("steps {first:.0} to {last:.0}, "),
            _ => String::new(),
        };
        let from = attempt.resumed_from.as_ref().map_or(String::new(), |path| format!("from {}, ", name_of(path)));
        let is_over = attempt.stopped_because.is_none() && attempt.number as usize == summary.attempts.len();
        let kept = match (&attempt.checkpoint, attempt.lost_steps) {
            // Nothing is lost of a run that came to its own end.
            (Some(path), _) if is_over => format!("{} is its last checkpoint", name_of(path)),
            (Some(path), Some(lost)) if lost > 0.0 => format!("{} kept, {lost:.0} later steps lost", name_of(path)),
            (Some(path), _) => format!("{} kept, no step lost", name_of(path)),
            (None, _) => "nothing kept".into(),
        };
        let stopping =
            attempt.stopping_seconds.map_or(String::new(), |seconds| format!(", {seconds:.1} s of it stopping"));
        let over = if limit.is_some_and(|limit| attempt.highest_bytes > limit.0) { " (above the limit)" } else { "" };
        printer.say(&format!(
            "model-garden: attempt {}: {from}{steps}{:.1} s{stopping}, peak {}{over}; {kept}; it {}",
            attempt.number,
            attempt.seconds,
            Bytes(attempt.highest_bytes),
            attempt.ending
        ));
    }
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// A trace that cannot be created.
pub fn cannot_create(path: &Path, error: &io::Error) -> Failure {
    let hint = "choose a file in an existing, writable folder with -o".to_string();
    Failure::new(format!("cannot write the trace `{}`", path.display()), error, Some(hint))
}

/// A command that cannot be started.
pub fn cannot_start(name: &str, error: &io::Error) -> Failure {
    let is_script = name.ends_with(".py") && Path::new(name).is_file();
    let hint = match is_script {
        true => format!("a Python file needs its interpreter: `python {name}`"),
        false => "check the command: the program must be in $PATH, or be given with its folder".to_string(),
    };
    Failure::new(format!("cannot start `{name}`"), error, Some(hint))
}

//! The process of a job: told what to do by the job's folder, and telling what came of it there.

pub mod hidden;

use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;

use clap::Parser as _;
use garden_data::{BadRow, Problem};
use garden_files::Allowance;
use garden_guard::{Outcome as End, REQUEUE, StateFolder};
use garden_memory::Bytes;
use garden_run::{GUARD, RunRecord, TRACE};
use garden_server::fetch::{FetchLimits, fetch_pictures};
use garden_server::job::{Findings, JobError, JobFolder, JobOrder, JobOutcome, PlannedMemory, ROWS, RowProblem, Work};
use garden_train::{Error, Prepared, Recipe, RunEnd, Split};

use crate::cli::{self, Cli, Command};
use crate::commands::plan::{GpuShare, of_job};
use crate::commands::{Outcome, devices, run, train};
use crate::failure::Failure;
use crate::printer::Printer;
use hidden::Hidden;

/// Problems of rows that are told, and letters of each.
const SHOWN: usize = 100;
const LONGEST_PROBLEM: usize = 300;
/// A disk with fewer free bytes than this is full.
const FULL: u64 = 4 << 20;
/// Lines of a log that are told with a failure.
const LAST_LINES: usize = 5;
const LAST_BYTES: u64 = 4096;

/// Runs the command.
pub fn run(arguments: &cli::ServeJob, printer: &Printer) -> Result<Outcome, Failure> {
    crate::guarding::leave_on_warnings()?;
    let absolute = std::path::absolute(&arguments.folder).unwrap_or_else(|_| arguments.folder.clone());
    let folder = JobFolder(absolute);
    let broken =
        |error: &io::Error| Failure::new(format!("cannot use the job's folder `{}`", folder.0.display()), error, None);
    // Held to our end, whatever ends us. Whoever holds it already does what we would.
    let _held = match StateFolder::take(&folder.supervisor()) {
        Ok(held) => held,
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Ok(Outcome::Fine),
        Err(error) => return Err(broken(&error)),
    };
    // What its order names begins here.
    std::env::set_current_dir(&folder.0).map_err(|error| broken(&error))?;
    let order = folder.read_order().map_err(|error| broken(&error))?;
    let hidden = Hidden::of(&folder, &order.work);
    if arguments.look {
        if folder.read_findings().is_none() {
            let findings = look(&hidden, &order, printer).map_err(|error| broken(&error))?;
            folder.write_findings(&findings).map_err(|error| broken(&error))?;
        }
        return Ok(Outcome::Fine);
    }
    if folder.read_outcome().is_some_and(|outcome| outcome.is_final()) {
        return Ok(Outcome::Fine);
    }
    folder.forget_outcome().map_err(|error| broken(&error))?;
    let outcome = match order.work {
        Work::Training { recipe } => train_model(&folder, &hidden, *recipe, printer),
        Work::Command { command, memory_limit, checkpoint_dir } => {
            run_command(&folder, &hidden, command, memory_limit, checkpoint_dir, printer)
        }
    };
    let outcome = waits_for_space(&folder, outcome);
    folder.write_outcome(&outcome).map_err(|error| broken(&error))?;
    Ok(Outcome::Fine)
}

/// What failed on a full disk did not fail for good: everything up to the newest checkpoint is there.
fn waits_for_space(folder: &JobFolder, outcome: JobOutcome) -> JobOutcome {
    match outcome {
        JobOutcome::Failed { .. } if is_full(folder) => {
            JobOutcome::NoSpace { words: "no space was left to write to".into() }
        }
        outcome => outcome,
    }
}

fn is_full(folder: &JobFolder) -> bool {
    garden_files::free_bytes(&folder.0).is_ok_and(|free| free < FULL)
}

/// Looks at model, rows and memory.
fn look(hidden: &Hidden, order: &JobOrder, printer: &Printer) -> io::Result<Findings> {
    let Work::Training { recipe } = &order.work else { return Ok(Findings::default()) };
    let mut notes = Vec::new();
    if let Some(allowed) = &order.fetch {
        let allowance = Allowance::given();
        let limits = FetchLimits { allowed, allowance: allowance.as_ref() };
        match fetch(hidden, recipe, &limits, printer)? {
            Fetched::All => {}
            Fetched::Some(note) => notes.push(note),
            Fetched::Refused(findings) => return Ok(*findings),
        }
    }
    let limit = recipe.memory_limit.into_iter().chain(order.memory.map(Bytes)).min();
    let recipe = Recipe { memory_limit: limit, resume: None, ..(**recipe).clone() };
    Ok(match findings(hidden, recipe, printer) {
        Ok(found) => Findings { notes: notes.into_iter().chain(found.notes).collect(), ..found },
        Err(failure) => {
            printer.failure(&failure);
            let message = hidden.text(&words(&failure));
            Findings {
                error: Some(JobError { code: "invalid_job".into(), message, param: None }),
                ..Findings::default()
            }
        }
    })
}

/// What came of fetching pictures.
enum Fetched {
    All,
    /// Some are missing, and their rows are left out.
    Some(String),
    Refused(Box<Findings>),
}

/// Fetches pictures of rows that a client has sent; an operator's own datasets are left as they are.
fn fetch(hidden: &Hidden, recipe: &Recipe, limits: &FetchLimits<'_>, printer: &Printer) -> io::Result<Fetched> {
    let files = [("training_file", recipe.datasets.first()), ("validation_file", recipe.eval_dataset.as_ref())];
    let mut problems = Vec::new();
    for (param, path) in files {
        let is_sent = |path: &&PathBuf| path.starts_with(ROWS) && path.extension().is_some_and(|end| end == "jsonl");
        let Some(path) = path.filter(is_sent) else { continue };
        let fetched = fetch_pictures(path, limits)?;
        if fetched.count > 0 {
            printer.say(&format!("{param}: fetched {} images", fetched.count));
        }
        problems.extend(fetched.problems.into_iter().map(|problem| RowProblem {
            param: param.into(),
            row: problem.line,
            place: format!("{param}.jsonl, line {}", problem.line),
            field: problem.field,
            problem: hidden.text(&problem.problem),
            hint: None,
        }));
    }
    let Some(first) = problems.first() else { return Ok(Fetched::All) };
    if recipe.on_bad_row == BadRow::Skip {
        let note =
            format!("{} images could not be fetched, and their rows are skipped; {}", problems.len(), first.problem);
        return Ok(Fetched::Some(note));
    }
    let message = format!("{} images cannot be fetched{}", problems.len(), first_words(first));
    let (code, param) = (format!("invalid_{}", first.param), Some(first.param.clone()));
    problems.truncate(SHOWN);
    let error = Some(JobError { code, message, param });
    Ok(Fetched::Refused(Box::new(Findings { error, problems, ..Findings::default() })))
}

/// The first of several problems, behind what they are.
fn first_words(one: &RowProblem) -> String {
    let field = if one.field.is_empty() { String::new() } else { format!(", field `{}`", one.field) };
    format!("; the first is {}{field}: {}", one.place, one.problem)
}

/// The parameter that names the rows of a split.
fn param_of(split: Split) -> &'static str {
    match split {
        Split::Train => "training_file",
        Split::Eval => "validation_file",
    }
}

fn findings(hidden: &Hidden, recipe: Recipe, printer: &Printer) -> Result<Findings, Failure> {
    let chosen = devices::choose(recipe.device, printer)?;
    let prepared = match Prepared::of(recipe, chosen.kind(), &mut |_, _| {}) {
        Ok(prepared) => prepared,
        Err(error) => return Ok(refused(hidden, &error)),
    };
    let mut planned = of_job(&prepared, chosen, GpuShare::All, printer)?;
    // By its name, as clients know it.
    planned.told["model"] = prepared.job.base.file_name().map(|name| name.to_string_lossy().into_owned()).into();
    let is_gpu = planned.told["gpu"].is_object();
    Ok(Findings {
        error: None,
        problems: Vec::new(),
        notes: prepared.notes.iter().map(|note| hidden.text(note)).collect(),
        plan: Some(PlannedMemory {
            fits: planned.fits,
            host_bytes: planned.plan.total_bytes,
            gpu_bytes: is_gpu.then_some(planned.plan.device_bytes),
            disk_bytes: Some(planned.plan.disk.total_bytes),
            // The answer; what it is about is the job.
            headline: planned.headline.lines().next().unwrap_or_default().to_string(),
            told: hidden.value(planned.told),
        }),
        rows: Some(prepared.job.train.used()),
        steps: Some(prepared.job.steps()),
    })
}

/// Why a job cannot run, with the parameter that is to blame.
fn refused(hidden: &Hidden, error: &Error) -> Findings {
    let (split, cause) = error.split();
    let param = split.map(param_of);
    if let Error::BadRows { count, rows, problems } = cause {
        return bad_rows(hidden, param.unwrap_or("training_file"), *count, *rows, problems);
    }
    let hint = error.hint().map_or_else(String::new, |hint| format!("; {hint}"));
    let message = hidden.text(&format!("{error}{hint}"));
    let code = param.map_or_else(|| "invalid_job".to_string(), |param| format!("invalid_{param}"));
    Findings { error: Some(JobError { code, message, param: param.map(str::to_string) }), ..Findings::default() }
}

/// Rows that cannot be used, with line and field.
fn bad_rows(hidden: &Hidden, param: &str, count: usize, rows: usize, problems: &[Problem]) -> Findings {
    let told: Vec<RowProblem> = problems
        .iter()
        .take(SHOWN)
        .map(|problem| RowProblem {
            param: param.into(),
            row: problem.row + 1,
            place: hidden.text(&problem.place),
            field: problem.field.clone(),
            problem: shortened(hidden.text(&problem.problem)),
            hint: problem.hint.as_deref().map(|hint| shortened(hidden.text(hint))),
        })
        .collect();
    let first = told.first().map_or_else(String::new, first_words);
    let message = format!("{count} of {rows} rows cannot be used{first}");
    let error = Some(JobError { code: format!("invalid_{param}"), message, param: Some(param.into()) });
    Findings { error, problems: told, ..Findings::default() }
}

/// What rows hold is not repeated at any length: every list of jobs would show it.
fn shortened(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(LONGEST_PROBLEM) {
        text.truncate(end);
        text.push('…');
    }
    text
}

fn words(failure: &Failure) -> String {
    let mut text = failure.what.clone();
    failure.causes.iter().for_each(|cause| text.push_str(&format!(": {cause}")));
    failure.hint.iter().for_each(|hint| text.push_str(&format!("; {hint}")));
    text
}

fn train_model(folder: &JobFolder, hidden: &Hidden, recipe: Recipe, printer: &Printer) -> JobOutcome {
    let output = recipe.output_dir.clone();
    let recipe = Recipe { resume: Some("auto".into()), ..recipe };
    let failed = |code: &str, message: String| JobOutcome::Failed {
        error: JobError { code: code.into(), message: hidden.text(&message), param: None },
    };
    let ran = match train::run_recipe(recipe, false, false, printer) {
        Ok(ran) => ran,
        Err(failure) => {
            printer.failure(&failure);
            return failed("training_failed", words(&failure));
        }
    };
    // However it ended: what describes it can be looked at.
    hidden.in_result(&output);
    let record = RunRecord::read(&output);
    // A trainer that does not listen yet dies of being asked to end.
    let was_asked = record.as_ref().is_ok_and(|record| record.guard.as_ref().is_some_and(|summary| summary.was_asked));
    let answer = record.map_or_else(|error| error.to_string(), |record| record.answer());
    match (ran, RunEnd::read(&output)) {
        (Outcome::Fine | Outcome::BadNews, Some(end)) => {
            JobOutcome::Done { tokens: Some(end.progress.tokens), words: answer }
        }
        (Outcome::Program(train::worker::DISK_FULL), _) => {
            JobOutcome::NoSpace { words: "too little space was left for its checkpoints".into() }
        }
        (Outcome::Program(train::worker::NO_ALLOWANCE), _) => {
            JobOutcome::NoQuota { words: "it stopped at its newest checkpoint".into() }
        }
        (Outcome::BadNews, None) => JobOutcome::NoRoom { words: "the plan does not fit into what is free".into() },
        // Ctrl-C and SIGTERM, or a scheduler's warning.
        (ended, None) if was_asked || matches!(ended, Outcome::Program(130 | REQUEUE)) => {
            let step = garden_train::newest(&output)
                .0
                .and_then(|path| path.file_name()?.to_str()?.strip_prefix("checkpoint-")?.parse().ok());
            JobOutcome::Stopped { step, words: answer }
        }
        (_, _) => failed("training_failed", format!("{answer}{}", last_lines(folder))),
    }
}

/// The end of the log, for whoever only sees the error.
fn last_lines(folder: &JobFolder) -> String {
    let text = || -> io::Result<Vec<u8>> {
        let (mut log, length) = garden_files::open(&folder.work_log())?;
        log.seek(SeekFrom::Start(length.saturating_sub(LAST_BYTES)))?;
        let mut text = Vec::new();
        log.take(LAST_BYTES).read_to_end(&mut text).map(|_| text)
    };
    let text = String::from_utf8_lossy(&text().unwrap_or_default()).into_owned();
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    let last = lines[lines.len().saturating_sub(LAST_LINES)..].join("\n");
    if last.is_empty() { last } else { format!("\n{last}") }
}

/// Runs a command under the guard, in the job's own folder.
fn run_command(
    folder: &JobFolder,
    hidden: &Hidden,
    command: Vec<String>,
    memory_limit: Option<u64>,
    checkpoint_dir: Option<PathBuf>,
    printer: &Printer,
) -> JobOutcome {
    let output = folder.output();
    let failed = |code: &str, message: String| JobOutcome::Failed {
        error: JobError { code: code.into(), message: hidden.text(&message), param: None },
    };
    let mut words: Vec<String> = ["model-garden", "run", "--state-dir"].map(str::to_string).to_vec();
    // From its own folder on, as the program is.
    words.extend([GUARD, "-o", TRACE].map(str::to_string));
    words.extend(memory_limit.map(|bytes| format!("--memory-limit={bytes}B")));
    words.extend(checkpoint_dir.map(|folder| format!("--checkpoint-dir={}", folder.display())));
    words.push("--".into());
    words.extend(command);
    let arguments = match Cli::try_parse_from(words) {
        Ok(Cli { command: Command::Run(arguments) }) => arguments,
        Ok(_) => return failed("invalid_command", "the command cannot be run".into()),
        Err(problem) => return failed("invalid_command", problem.to_string()),
    };
    if let Err(error) = std::env::set_current_dir(&output) {
        return failed("invalid_command", format!("the job's folder cannot be entered: {error}"));
    }
    match run::guard(&arguments, printer) {
        Err(failure) => {
            printer.failure(&failure);
            failed("invalid_command", self::words(&failure))
        }
        // Whatever code it gave then.
        Ok((_, summary)) if summary.was_asked || summary.outcome == End::StoppedByScheduler => {
            JobOutcome::Stopped { step: None, words: summary.words }
        }
        Ok((_, summary)) if summary.code == 0 => JobOutcome::Done { tokens: None, words: summary.words },
        Ok((_, summary)) => {
            // A kill from outside may be the kernel's, for want of memory, or anybody's: only what the guard has stopped was at the limit.
            let is_at_limit = summary.attempts.last().is_some_and(|attempt| attempt.stopped_because.is_some());
            let code = if is_at_limit { "memory_limit" } else { "command_failed" };
            failed(code, format!("{} (exit code {}){}", summary.words, summary.code, last_lines(folder)))
        }
    }
}

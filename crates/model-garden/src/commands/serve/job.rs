//! The process of a job: told what to do by the job's folder, and telling what came of it there.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::Parser as _;
use garden_data::Problem;
use garden_guard::{Outcome as End, REQUEUE, StateFolder, Summary};
use garden_memory::Bytes;
use garden_run::{GUARD, RunRecord, TRACE};
use garden_server::fetch::fetch_pictures;
use garden_server::job::{Findings, JobError, JobFolder, JobOrder, JobOutcome, PlannedMemory, RowProblem, Work};
use garden_train::{Error, Prepared, Recipe, RunEnd};
use serde_json::Value;

use crate::cli::{self, Cli, Command};
use crate::commands::plan::{GpuShare, of_job};
use crate::commands::{Outcome, devices, run, train};
use crate::failure::Failure;
use crate::printer::Printer;

/// Problems of rows that are told.
const SHOWN: usize = 100;
/// Lines of a log that are told with a failure.
const LAST_LINES: usize = 5;

/// Runs the command.
pub fn run(arguments: &cli::ServeJob, printer: &Printer) -> Result<Outcome, Failure> {
    crate::guarding::leave_on_warnings()?;
    let folder = JobFolder(arguments.folder.clone());
    let broken =
        |error: &io::Error| Failure::new(format!("cannot use the job's folder `{}`", folder.0.display()), error, None);
    // Held to our end, whatever ends us. Whoever holds it already does what we would.
    let _held = match StateFolder::take(&folder.supervisor()) {
        Ok(held) => held,
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Ok(Outcome::Fine),
        Err(error) => return Err(broken(&error)),
    };
    let order = folder.read_order().map_err(|error| broken(&error))?;
    if arguments.look {
        if folder.read_findings().is_none() {
            folder.write_findings(&look(&folder, &order, printer)).map_err(|error| broken(&error))?;
        }
        return Ok(Outcome::Fine);
    }
    if folder.read_outcome().is_some_and(|outcome| outcome.is_final()) {
        return Ok(Outcome::Fine);
    }
    folder.forget_outcome().map_err(|error| broken(&error))?;
    let outcome = match order.work {
        Work::Training { recipe } => train_model(&folder, *recipe, printer),
        Work::Command { command, memory_limit, checkpoint_dir } => {
            run_command(&folder, command, memory_limit, checkpoint_dir, printer)
        }
    };
    folder.write_outcome(&outcome).map_err(|error| broken(&error))?;
    Ok(Outcome::Fine)
}

/// Looks at model, rows and memory.
fn look(folder: &JobFolder, order: &JobOrder, printer: &Printer) -> Findings {
    let Work::Training { recipe } = &order.work else { return Findings::default() };
    if let Some(error) = order.fetch.as_deref().and_then(|allowed| fetch(folder, recipe, allowed, printer)) {
        return Findings { error: Some(error), ..Findings::default() };
    }
    let limit = recipe.memory_limit.into_iter().chain(order.memory.map(Bytes)).min();
    let recipe = Recipe { memory_limit: limit, resume: None, ..(**recipe).clone() };
    match findings(folder, recipe, printer) {
        Ok(findings) => findings,
        Err(failure) => {
            printer.failure(&failure);
            let message = hide(folder, &words(&failure));
            Findings {
                error: Some(JobError { code: "invalid_job".into(), message, param: None }),
                ..Findings::default()
            }
        }
    }
}

/// Fetches pictures of rows that a client has sent; an operator's own datasets are left as they are.
fn fetch(folder: &JobFolder, recipe: &Recipe, allowed: &[IpAddr], printer: &Printer) -> Option<JobError> {
    let files = [("training_file", Some(&recipe.dataset)), ("validation_file", recipe.eval_dataset.as_ref())];
    for (param, path) in files {
        let Some(path) =
            path.filter(|path| path.starts_with(&folder.0) && path.extension().is_some_and(|end| end == "jsonl"))
        else {
            continue;
        };
        match fetch_pictures(path, allowed) {
            Ok(0) => {}
            Ok(count) => printer.say(&format!("{param}: fetched {count} images")),
            Err(error) => {
                return Some(JobError {
                    code: format!("invalid_{param}"),
                    message: hide(folder, &format!("{param}.jsonl, {error}")),
                    param: Some(param.into()),
                });
            }
        }
    }
    None
}

fn findings(folder: &JobFolder, recipe: Recipe, printer: &Printer) -> Result<Findings, Failure> {
    let chosen = devices::choose(recipe.device, printer)?;
    let prepared = match Prepared::of(recipe, chosen.kind(), &mut |_, _| {}) {
        Ok(prepared) => prepared,
        Err(Error::BadRows { count, rows, problems }) => return Ok(bad_rows(folder, count, rows, &problems)),
        Err(error) => {
            let message = hide(folder, &error.to_string());
            let message = error.hint().map_or(message.clone(), |hint| format!("{message}; {hint}"));
            let param =
                ["validation_file", "training_file"].into_iter().find(|param| error.to_string().contains(param));
            let code = if param.is_some() { "invalid_training_file" } else { "invalid_job" };
            let error = JobError { code: code.into(), message, param: param.map(str::to_string) };
            return Ok(Findings { error: Some(error), ..Findings::default() });
        }
    };
    let mut planned = of_job(&prepared, chosen, GpuShare::All, printer)?;
    // By its name, as clients know it.
    planned.told["model"] = prepared.job.base.file_name().map(|name| name.to_string_lossy().into_owned()).into();
    let is_gpu = planned.told["gpu"].is_object();
    Ok(Findings {
        error: None,
        problems: Vec::new(),
        notes: prepared.notes.iter().map(|note| hide(folder, note)).collect(),
        plan: Some(PlannedMemory {
            fits: planned.fits,
            host_bytes: planned.plan.total_bytes,
            gpu_bytes: is_gpu.then_some(planned.plan.device_bytes),
            // The answer; what it is about is the job.
            headline: planned.headline.lines().next().unwrap_or_default().to_string(),
            told: hide_in(folder, planned.told),
        }),
        rows: Some(prepared.job.train.used()),
        steps: Some(prepared.job.steps()),
    })
}

/// Rows that cannot be used, with line and field.
fn bad_rows(folder: &JobFolder, count: usize, rows: usize, problems: &[Problem]) -> Findings {
    let told: Vec<RowProblem> = problems
        .iter()
        .take(SHOWN)
        .map(|problem| {
            let param = if problem.place.contains("validation_file") { "validation_file" } else { "training_file" };
            RowProblem {
                param: param.into(),
                row: problem.row + 1,
                place: hide(folder, &problem.place),
                field: problem.field.clone(),
                problem: hide(folder, &problem.problem),
            }
        })
        .collect();
    let first = told.first().map_or_else(String::new, |one| {
        let field = if one.field.is_empty() { String::new() } else { format!(", field `{}`", one.field) };
        format!("; the first is {}{field}: {}", one.place, one.problem)
    });
    let param = told.first().map(|one| one.param.clone());
    let code = format!("invalid_{}", param.as_deref().unwrap_or("training_file"));
    let message = format!("{count} of {rows} rows cannot be used{first}");
    Findings { error: Some(JobError { code, message, param }), problems: told, ..Findings::default() }
}

/// Where the job's folder is on the server's disk is nobody's business.
fn hide(folder: &JobFolder, text: &str) -> String {
    let rows = format!("{}/", folder.all_rows().display());
    let own = folder.0.display().to_string();
    text.replace(&rows, "").replace(&format!("{own}/"), "").replace(&own, "the job's folder")
}

/// The same in every text of a value.
fn hide_in(folder: &JobFolder, value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(hide(folder, &text)),
        Value::Array(items) => items.into_iter().map(|item| hide_in(folder, item)).collect(),
        Value::Object(fields) => fields.into_iter().map(|(name, value)| (name, hide_in(folder, value))).collect(),
        other => other,
    }
}

fn words(failure: &Failure) -> String {
    let mut text = failure.what.clone();
    failure.causes.iter().for_each(|cause| text.push_str(&format!(": {cause}")));
    failure.hint.iter().for_each(|hint| text.push_str(&format!("; {hint}")));
    text
}

fn train_model(folder: &JobFolder, recipe: Recipe, printer: &Printer) -> JobOutcome {
    let output = recipe.output_dir.clone();
    let recipe = Recipe { resume: Some("auto".into()), ..recipe };
    let failed = |code: &str, message: String| JobOutcome::Failed {
        error: JobError { code: code.into(), message: hide(folder, &message), param: None },
    };
    let ran = match train::run_recipe(recipe, false, false, printer) {
        Ok(ran) => ran,
        Err(failure) => {
            printer.failure(&failure);
            return failed("training_failed", words(&failure));
        }
    };
    let answer = RunRecord::read(&output).map(|record| record.answer());
    let answer = answer.unwrap_or_else(|error| error.to_string());
    match (ran, RunEnd::read(&output)) {
        (Outcome::Fine | Outcome::BadNews, Some(end)) => {
            JobOutcome::Done { tokens: Some(end.progress.tokens), words: answer }
        }
        (Outcome::BadNews, None) => JobOutcome::NoRoom { words: "the plan does not fit into what is free".into() },
        // Ctrl-C and SIGTERM, or a scheduler's warning.
        (Outcome::Program(130 | REQUEUE), None) => {
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
    let text = std::fs::read(folder.work_log()).unwrap_or_default();
    let text = String::from_utf8_lossy(&text[text.len().saturating_sub(4096)..]).into_owned();
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    let last = lines[lines.len().saturating_sub(LAST_LINES)..].join("\n");
    if last.is_empty() { last } else { format!("\n{last}") }
}

/// Runs a command under the guard, in the job's own folder.
fn run_command(
    folder: &JobFolder,
    command: Vec<String>,
    memory_limit: Option<u64>,
    checkpoint_dir: Option<PathBuf>,
    printer: &Printer,
) -> JobOutcome {
    let output = folder.output();
    let failed = |code: &str, message: String| JobOutcome::Failed {
        error: JobError { code: code.into(), message: hide(folder, &message), param: None },
    };
    let mut words: Vec<String> = ["model-garden", "run", "--state-dir"].map(str::to_string).to_vec();
    words.push(output.join(GUARD).display().to_string());
    words.extend(["-o".to_string(), output.join(TRACE).display().to_string()]);
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
    if let Err(failure) = run::run(&arguments, printer) {
        printer.failure(&failure);
        return failed("invalid_command", self::words(&failure));
    }
    let exit = std::fs::read(output.join(GUARD).join("exit.json")).ok();
    match exit.and_then(|text| serde_json::from_slice::<Summary>(&text).ok()) {
        // Whatever code it gave then.
        Some(summary) if summary.was_asked || summary.outcome == End::StoppedByScheduler => {
            JobOutcome::Stopped { step: None, words: summary.words }
        }
        Some(summary) if summary.code == 0 => JobOutcome::Done { tokens: None, words: summary.words },
        Some(summary) => {
            let code = match summary.outcome {
                End::Own { .. } | End::StoppedByScheduler => "command_failed",
                End::StoppedWithCheckpoint | End::BudgetSpent | End::CouldNotSave => "memory_limit",
            };
            failed(code, format!("{} (exit code {}){}", summary.words, summary.code, last_lines(folder)))
        }
        None => failed("command_failed", "the guard does not say how the command ended".into()),
    }
}

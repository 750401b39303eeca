//! `model-garden train-vision`: from a recipe to an adapter, with the process that trains under guard.

mod bound;
mod show;
pub mod worker;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use garden_data::{BatchSize, model_folder};
use garden_guard::{GuardConfig, OnLimit, OnWarning, OutputMode, REQUEUE, StateFolder, supervise, supervisor_of};
use garden_memory::{Bytes, RunFacts};
use garden_run::{FileError, GUARD, JOB, JobFile, LeftOut, RECIPE, REPORT, RunOutcome, RunRecord, TRACE, write_text};
use garden_train::{
    DeviceKind, Error, MemoryPlan, Prepared, RUN_END, Recipe, RecipeError, RunLock, check_output, check_resume,
    has_checkpoints, ignored, newest, recover,
};
use serde_json::{Value, json};

use super::plan::GpuShare;
use super::{Outcome, devices};
use crate::cli;
use crate::failure::Failure;
use crate::printer::Printer;
use show::Progress;

/// How often somebody who waits for the look at all rows is told how far it is.
const WORD: Duration = Duration::from_secs(5);
/// Time between two samples of memory; steps bring more of them.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long a checkpoint may take when the run has to stop.
const GRACE: Duration = Duration::from_secs(600);
/// The share of the limit at which the run is stopped at the latest.
const STOP_AT: f64 = 0.95;
/// Starts after the first one.
const RESTARTS: u32 = 20;

/// Large blocks go back to the system when they are freed. The allocator would otherwise keep those of an evaluation for later, and where it could not use
/// them again the run would hold more than was planned.
const ALLOCATOR: (&str, &str) = ("MALLOC_MMAP_THRESHOLD_", "262144");

/// Runs the command.
pub fn run(arguments: &cli::TrainVision, printer: &Printer) -> Result<Outcome, Failure> {
    crate::guarding::leave_on_warnings()?;
    let recipe = read_recipe(arguments.config.as_deref(), &arguments.recipe, printer)?;
    let outcome = run_recipe(recipe, arguments.dry_run, arguments.printed.is_json(), printer)?;
    // A full disk is an error like any other for whoever started us; a server waits for space.
    Ok(if outcome == Outcome::Program(worker::DISK_FULL) { Outcome::Program(2) } else { outcome })
}

/// Trains by a recipe, or with `is_dry` only looks whether it could.
pub fn run_recipe(recipe: Recipe, is_dry: bool, is_json: bool, printer: &Printer) -> Result<Outcome, Failure> {
    check_output_folder(&recipe)?;
    let chosen = devices::choose(recipe.device, printer)?;
    let lock = if is_dry { None } else { Some(take_run_folder(&recipe.output_dir, printer)?) };
    let (resume, refusal) = match find_resume(&recipe, printer) {
        // Whoever only looks wants to see the plan all the same.
        Err(refusal) if is_dry => (None, Some(refusal)),
        found => (found?, None),
    };
    let prepared = prepare(recipe, chosen.kind(), printer)?;
    if let Some(path) = &resume {
        let changes =
            check_resume(&prepared.job, path).map_err(|error| failure("cannot resume from this checkpoint", &error))?;
        changes.iter().for_each(|change| printer.say(&format!("changed: {change}")));
        printer.say(&format!("resuming from {}", path.display()));
    }
    prepared.notes.iter().for_each(|note| printer.say(&format!("note: {note}")));
    let planned = super::plan::of_job(&prepared, chosen, GpuShare::Free, printer)?;
    let space = planned.plan.disk.check(&prepared.job.recipe.output_dir);
    let space = space.map_err(|error| failure("the run cannot start", &error));
    if is_dry || !planned.fits {
        let refusal = refusal.or(space.err());
        let would = Would::of(planned.fits, resume, refusal);
        printer.out(&match is_json {
            true => format!("{:#}\n", would.told(planned.told)),
            false if is_dry => format!("{}\n{}\n", planned.text, would.words(&prepared.job.recipe.output_dir)),
            false => planned.text,
        })?;
        return Ok(if planned.fits { Outcome::Fine } else { Outcome::BadNews });
    }
    printer.say(&planned.headline);
    if let Err(refusal) = space {
        printer.failure(&refusal);
        return Ok(Outcome::Program(worker::DISK_FULL));
    }
    train(prepared, planned.plan, resume, lock, is_json, printer)
}

/// Refuses, before anything is written, an output folder in which a run would overwrite a model or an adapter that it did not make.
fn check_output_folder(recipe: &Recipe) -> Result<(), Failure> {
    let folder = recipe.output_dir.as_path();
    let model = model_folder(&recipe.base_model).map_err(|error| failure("the run cannot start", &error.into()))?;
    super::check_apart(folder, &model, recipe.adapter.as_deref())?;
    let is_run = [JOB, RECIPE].iter().any(|name| folder.join(name).exists());
    let theirs = ["config.json", "adapter_config.json", "model.safetensors", "model.safetensors.index.json"];
    match theirs.iter().find(|name| !is_run && folder.join(name).exists()) {
        Some(name) => Err(Failure {
            what: format!("cannot write to `{}`", folder.display()),
            causes: vec![format!("it has a `{name}` that no run wrote there, which this run would overwrite")],
            hint: Some("choose another folder with --output-dir".into()),
        }),
        None => Ok(()),
    }
}

/// What a run that was only looked at would do.
enum Would {
    Start,
    Resume(PathBuf),
    /// The plan does not fit.
    NotFit,
    /// The output folder has something in it.
    Refuse(Failure),
}

impl Would {
    fn of(fits: bool, resume: Option<PathBuf>, refusal: Option<Failure>) -> Would {
        match (refusal, fits, resume) {
            (Some(refusal), _, _) => Would::Refuse(refusal),
            (None, false, _) => Would::NotFit,
            (None, true, Some(checkpoint)) => Would::Resume(checkpoint),
            (None, true, None) => Would::Start,
        }
    }

    fn words(&self, folder: &Path) -> String {
        match self {
            Would::Start => format!("Training would start in {}; nothing was written.", folder.display()),
            Would::Resume(checkpoint) => {
                format!("Training would resume from {}; nothing was written.", checkpoint.display())
            }
            Would::NotFit => "Training would not start: it does not fit.".to_string(),
            Would::Refuse(refusal) => {
                let hint = refusal.hint.as_ref().map_or_else(String::new, |hint| format!("\nhint: {hint}"));
                format!("Training would be refused: {}{hint}", refusal.what)
            }
        }
    }

    /// The plan as JSON, with what would happen beside it.
    fn told(&self, mut plan: Value) -> Value {
        let (would, checkpoint) = match self {
            Would::Start => ("start", None),
            Would::Resume(checkpoint) => ("resume", Some(checkpoint)),
            Would::NotFit => ("not_fit", None),
            Would::Refuse(_) => ("refuse", None),
        };
        plan["would"] = json!(would);
        plan["resume_from"] = json!(checkpoint);
        plan["problem"] = match self {
            Would::Refuse(refusal) => json!(refusal.what),
            _ => Value::Null,
        };
        plan
    }
}

/// The recipe of a file and flags.
pub fn read_recipe(config: Option<&Path>, flags: &cli::RecipeFlags, printer: &Printer) -> Result<Recipe, Failure> {
    let mut values = Vec::new();
    if let Some(path) = config {
        let what = || format!("cannot use the recipe `{}`", path.display());
        let text = garden_files::read_settings(path).map_err(|error| Failure::new(what(), &error, None))?;
        values.extend(Recipe::read_file(&text).map_err(|error| recipe_failure(what(), error))?);
    }
    values.extend(flags.0.iter().cloned());
    for (name, why) in values.iter().filter_map(|(name, _)| Some((name, ignored(name)?))) {
        printer.say(&format!("ignored: `{name}`: {why}"));
    }
    Recipe::from_values(values).map_err(|error| recipe_failure("the recipe cannot be used".into(), error))
}

fn recipe_failure(what: String, error: RecipeError) -> Failure {
    Failure { what, causes: vec![error.to_string()], hint: error.hint }
}

fn failure(what: impl Into<String>, error: &Error) -> Failure {
    Failure { what: what.into(), causes: vec![error.to_string()], hint: error.hint() }
}

/// Makes the folder of a run ours, until the process that trains takes it over. A trainer whose guard was killed saves and ends: it is waited for.
fn take_run_folder(folder: &Path, printer: &Printer) -> Result<RunLock, Failure> {
    check_output(folder).map_err(|error| failure("cannot write to the output folder", &error))?;
    let refuse_guarded = || match supervisor_of(&folder.join(GUARD)) {
        Ok(Some(pid)) => Err(in_use(&Error::Busy { folder: folder.to_path_buf(), pid })),
        // No guard was ever there, or none is now.
        _ => Ok(()),
    };
    refuse_guarded()?;
    let mut last: Option<Instant> = None;
    let mut tell = |pid: u32| {
        if last.is_none_or(|last| last.elapsed() >= WORD) {
            last = Some(Instant::now());
            printer.say(&format!(
                "process {pid} is still working in {}: waiting for it to save and exit",
                folder.display()
            ));
        }
    };
    let lock = RunLock::take(folder, GRACE, &mut tell).map_err(|error| in_use(&error))?;
    // One that began while we waited has given the folder to its trainer in this moment.
    refuse_guarded()?;
    recover(folder);
    Ok(lock)
}

fn in_use(error: &Error) -> Failure {
    failure("the output folder is in use", error)
}

/// The checkpoint to go on from.
fn find_resume(recipe: &Recipe, printer: &Printer) -> Result<Option<PathBuf>, Failure> {
    let folder = recipe.output_dir.as_path();
    match recipe.resume.as_deref() {
        None | Some("false") if has_checkpoints(folder) => Err(Failure {
            what: format!("`{}` has checkpoints of an earlier run", folder.display()),
            causes: Vec::new(),
            hint: Some("resume from the newest with --resume auto, or start over in another --output-dir".into()),
        }),
        None | Some("false") => Ok(None),
        Some("auto" | "true") => {
            let (found, torn) = newest(folder);
            torn.iter().for_each(|error| printer.say(&format!("skipped: {error}")));
            if found.is_none() {
                printer.say("there is no checkpoint to resume from: starting over");
            }
            Ok(found)
        }
        Some(path) => Ok(Some(PathBuf::from(path))),
    }
}

fn prepare(recipe: Recipe, device: DeviceKind, printer: &Printer) -> Result<Prepared, Failure> {
    let mut last = Instant::now();
    let mut tell = |done: usize, rows: usize| {
        if last.elapsed() >= WORD && done < rows {
            last = Instant::now();
            printer.say(&format!("checking rows: {done} of {rows}"));
        }
    };
    Prepared::of(recipe, device, &mut tell).map_err(|error| failure("the run cannot start", &error))
}

/// Trains in a process of its own, and says what came of it.
fn train(
    prepared: Prepared,
    plan: MemoryPlan,
    resume: Option<PathBuf>,
    lock: Option<RunLock>,
    is_json: bool,
    printer: &Printer,
) -> Result<Outcome, Failure> {
    let job = prepared.job.clone();
    let (recipe, folder) = (&job.recipe, job.recipe.output_dir.as_path());
    let state = crate::guarding::take_folder(&folder.join(GUARD))?;
    drop(std::fs::remove_file(folder.join(RUN_END)));
    // What a run goes on from is in its own folder, and so is the trace of what came before.
    let goes_on = resume.as_ref().is_some_and(|checkpoint| checkpoint.parent() == Some(folder));
    if !goes_on {
        keep_trace(folder);
    }
    write_text(&folder.join(RECIPE), &recipe.to_toml()).map_err(|error| file_failure(&error))?;
    if let Some(template) = &job.chat_template {
        template.write(folder).map_err(|error| Failure::of("cannot write the chat template", &error))?;
    }
    let job_path = folder.join(JOB);
    JobFile { job: job.clone(), resume }.write(&job_path).map_err(|error| file_failure(&error))?;
    let steps = job.steps();
    let batch = match recipe.batch() {
        BatchSize::Rows(rows) => format!("{rows} x {} rows", recipe.gradient_accumulation),
        BatchSize::Tokens(tokens) => format!("{} x up to {tokens} tokens", recipe.gradient_accumulation),
    };
    printer.say(&format!("{} rows, {steps} steps of {batch}", job.train.used()));
    super::datasets_words(&job.datasets()).lines().for_each(|line| printer.say(line));
    let config = GuardConfig { goes_on, ..config(&prepared, &job_path, state)? };
    // From here on it belongs to the process that trains; others see that it has a guard.
    drop(lock);
    let mut progress = Progress::new(printer, steps, recipe.logging_steps, Some(Bytes(plan.total_bytes)));
    let watched = supervise(&config, &mut progress);
    progress.close();
    let summary = watched.map_err(crate::guarding::guard_failure)?;
    crate::guarding::say_summary(&summary, config.limit, printer);
    let mut record = RunRecord::read(folder).map_err(|error| file_failure(&error))?;
    record.guard = Some(summary);
    // The run was not in vain if one of these cannot be written, so it is only said.
    let command = Some(crate::judging::command_line());
    match record.compare_with(&plan).and_then(|()| record.write_pages(command)) {
        Ok(()) => printer.say(&format!("report: {}", folder.join(REPORT).display())),
        Err(error) => printer.failure(&file_failure(&error)),
    }
    let told = RunOutcome { record: &record, plan: &plan, left_out: LeftOut::of(&prepared) };
    printer.out(&if is_json { format!("{:#}\n", told.json()) } else { told.text() })?;
    Ok(outcome(&record))
}

/// The exit code.
fn outcome(record: &RunRecord) -> Outcome {
    match (&record.end, record.guard.as_ref().map_or(0, |summary| summary.code)) {
        // One that was asked to end after its last step has trained all the same.
        (Some(end), 0 | REQUEUE) if end.is_no_op() => Outcome::BadNews,
        (Some(_), 0 | REQUEUE) => Outcome::Fine,
        // It was asked to end and has saved: as a shell tells Ctrl-C.
        (None, 0) => Outcome::Program(130),
        (_, code) => Outcome::Program(code),
    }
}

/// A file of a run that cannot be read or written, in the way all commands say it.
pub fn file_failure(error: &FileError) -> Failure {
    let causes = std::error::Error::source(error).map(ToString::to_string).into_iter().collect();
    Failure { what: error.to_string(), causes, hint: None }
}

/// The trace of another run is kept under another name: this one begins its own.
fn keep_trace(folder: &Path) {
    let free = (1..1000).map(|number| folder.join(format!("trace-{number}.jsonl"))).find(|path| !path.exists());
    if let (true, Some(free)) = (folder.join(TRACE).exists(), free) {
        // If it cannot be kept it is written over, as there is no better use for it.
        drop(std::fs::rename(folder.join(TRACE), free));
    }
}

fn config(prepared: &Prepared, job_path: &Path, state: StateFolder) -> Result<GuardConfig, Failure> {
    let (job, recipe) = (&prepared.job, &prepared.job.recipe);
    let program = garden_guard::own_program()
        .map_err(|error| Failure::new("cannot find this program's executable", &error, None))?;
    let command = vec![program.into(), "train-worker".into(), job_path.as_os_str().to_owned()];
    let around = garden_probe::memory_limit();
    Ok(GuardConfig {
        command,
        environment: vec![(ALLOCATOR.0, ALLOCATOR.1.into())],
        limit: recipe.memory_limit,
        stop_at: STOP_AT,
        grace: GRACE,
        on_limit: OnLimit::Restart,
        on_warning: OnWarning::Stop,
        max_restarts: RESTARTS,
        // The process that trains finds it in its environment.
        resume_with: None,
        checkpoint_dir: Some(recipe.output_dir.clone()),
        is_folder_given: true,
        interval: INTERVAL,
        facts: RunFacts {
            examples: Some(job.train.used() as u64),
            // Where micro-batches are cut by tokens, rows do not tell how long an epoch is.
            batch_size: recipe.batch_tokens.is_none().then_some(recipe.batch_size as u64),
            steps_per_epoch: recipe.batch_tokens.map(|_| job.steps_per_epoch() as u64),
            gradient_accumulation: Some(recipe.gradient_accumulation as u64),
            total_steps: Some(job.steps() as u64),
            memory_limit: recipe.memory_limit.into_iter().chain(around).min(),
        },
        step_pattern: None,
        output_mode: OutputMode::Pipes,
        fence: None,
        trace: recipe.output_dir.join(TRACE),
        goes_on: false,
        state: Some(state),
    })
}

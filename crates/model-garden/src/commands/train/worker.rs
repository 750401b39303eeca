//! The process that trains: told what to do by a job file, and telling what it does over the event channel.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use garden_data::BatchSize;
use garden_device::{Plan, Purpose};
use garden_files::{Allowance, folder_bytes};
use garden_guard::{Command, ENVIRONMENT, Message, Notice, REQUEUE, RESUME, Stop, listen_for_stops};
use garden_memory::Bytes;
use garden_memory::{EventKind, RunFacts};
use garden_probe::{Identity, Process};
use garden_run::{JobFile, percent};
use garden_train::{
    End, Error, EvalReport, Finish, Job, LogLine, Metric, Observer, Resident, RunEnd, StepReport, read_log,
    saving_bytes, train,
};

use super::bound::{Bound, Crossed};
use super::file_failure;
use crate::cli;
use crate::commands::{Outcome, devices};
use crate::failure::Failure;
use crate::printer::Printer;

/// Steps are told no more often than this, but for those that are logged or sampled.
const PAUSE: Duration = Duration::from_secs(1);

/// The exit code of a worker that found the disk full (`EX_IOERR` of `sysexits.h`).
pub const DISK_FULL: i32 = 74;
/// The exit code of a worker that has written what it may (`EX_CANTCREAT`).
pub const NO_ALLOWANCE: i32 = 73;

/// Runs the command.
pub fn run(arguments: &cli::TrainWorker, printer: &Printer) -> Result<Outcome, Failure> {
    let file = JobFile::read(&arguments.job).map_err(|error| file_failure(&error))?;
    let mut teller = Teller::new(&file.job, printer)?;
    let begin = Instant::now();
    // The guard knows a newer checkpoint than the one that the first start went on from.
    let newer = std::env::var_os(RESUME).map(PathBuf::from);
    let resume = newer.or_else(|| file.resume.clone());
    let mut device = devices::open(file.job.device, file.job.recipe.threads, printer)?;
    let finish = match train(&file.job, resume.as_deref(), &mut *device, &mut teller) {
        Ok(finish) => finish,
        // Whoever started us can wait for space and go on.
        Err(error) if error.is_disk_full() => {
            printer.failure(&failure(&error));
            return Ok(Outcome::Program(DISK_FULL));
        }
        Err(error) => return Err(failure(&error)),
    };
    if finish.end == End::Asked && teller.has_written_all {
        return Ok(Outcome::Program(NO_ALLOWANCE));
    }
    if finish.end == End::Asked {
        // The guard may not have got the warning.
        let is_warned = teller.is_warned.load(Ordering::Acquire);
        return Ok(if is_warned { Outcome::Program(REQUEUE) } else { Outcome::Fine });
    }
    teller.look();
    let gpu = device.own_memory().map(|memory| memory.taken);
    let end = run_end(&file.job, finish, &teller, begin.elapsed().as_secs_f64(), gpu);
    garden_run::write_end(&file.job.recipe.output_dir, &end).map_err(|error| file_failure(&error))?;
    Ok(Outcome::Fine)
}

/// What went wrong, in the way all commands say it.
pub fn failure(error: &Error) -> Failure {
    Failure { what: "training cannot continue".into(), causes: vec![error.to_string()], hint: error.hint() }
}

fn run_end(job: &Job, finish: Finish, teller: &Teller, seconds: f64, gpu: Option<usize>) -> RunEnd {
    // From the log, which has all starts of the run.
    let log = read_log(&job.recipe.output_dir);
    let steps = || log.iter().filter_map(|line| if let LogLine::Step(step) = line { Some(step) } else { None });
    let (first, last) = (steps().next(), steps().next_back());
    RunEnd {
        end: finish.end,
        first_loss: first.map(|step| step.loss),
        last_loss: last.map(|step| step.loss),
        first_mean_token_accuracy: first.and_then(|step| step.mean_token_accuracy),
        last_mean_token_accuracy: last.and_then(|step| step.mean_token_accuracy),
        evaluation: finish.evaluation,
        proof: finish.proof,
        seconds: finish.progress.seconds,
        seconds_of_last_start: Some(seconds),
        progress: finish.progress,
        arena: teller.arena.clone(),
        resident: teller.resident,
        gpu_bytes: gpu.map(|bytes| bytes as u64),
        idle_share: (teller.idle.1 > 0.0).then(|| teller.idle.0 / teller.idle.1),
        share_of_telling: teller.telling.as_secs_f64() / teller.steps.max(f64::MIN_POSITIVE),
    }
}

/// Tells the guard how training goes, and hears whether it should end.
struct Teller<'a> {
    printer: &'a Printer,
    /// What this run and others may still write, what is in its folder, and whether that was too much.
    allowance: Option<Allowance>,
    output: PathBuf,
    written: u64,
    has_written_all: bool,
    channel: Option<UnixStream>,
    should_end: Arc<AtomicBool>,
    /// Whether a scheduler's warning came to this process.
    is_warned: Arc<AtomicBool>,
    memory_steps: usize,
    logging_steps: usize,
    /// What the best evaluation is chosen by.
    metric: Metric,
    is_evaluating: bool,
    /// When the last step was told.
    told: Instant,
    /// Buffers of the device, in number and bytes, and bytes by purpose.
    buffers: (u64, u64),
    arena: BTreeMap<String, u64>,
    facts: RunFacts,
    /// What this process may hold.
    bound: Bound,
    me: Option<Process>,
    /// Resident memory at the start, when everything was there, and at most.
    resident: Resident,
    /// What telling has taken of the time of steps, and that time.
    telling: Duration,
    steps: f64,
    /// Seconds that the device had nothing to do between the first step and the last, and these with those that it was at work.
    idle: (f64, f64),
}

impl<'a> Teller<'a> {
    fn new(job: &Job, printer: &'a Printer) -> Result<Teller<'a>, Failure> {
        let [should_end, is_warned] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let (sender, notices) = mpsc::sync_channel(16);
        listen_for_stops(sender).map_err(|error| Failure::new("cannot listen for signals", &error, None))?;
        let (end, warned) = (Arc::clone(&should_end), Arc::clone(&is_warned));
        std::thread::spawn(move || {
            for notice in notices {
                if let Notice::Asked(stop) = notice {
                    warned.fetch_or(matches!(stop, Stop::Warned(_)), Ordering::AcqRel);
                    end.store(true, Ordering::Release);
                }
            }
        });
        let guard = std::env::var_os(ENVIRONMENT);
        let channel = guard.as_ref().and_then(|path| UnixStream::connect(path).ok());
        match &channel {
            Some(channel) => obey(channel, Arc::clone(&should_end)),
            // A guard that is gone already is one that cannot stop us.
            None => should_end.store(guard.is_some(), Ordering::Release),
        }
        let recipe = &job.recipe;
        // Where micro-batches are cut by tokens, rows do not tell how long an epoch is.
        let (batch_size, steps_per_epoch) = match recipe.batch() {
            BatchSize::Rows(rows) => (Some(rows as u64), None),
            BatchSize::Tokens(_) => (None, Some(job.steps_per_epoch() as u64)),
        };
        let facts = RunFacts {
            examples: Some(job.train.used() as u64),
            batch_size,
            gradient_accumulation: Some(recipe.gradient_accumulation as u64),
            steps_per_epoch,
            total_steps: Some(job.steps() as u64),
            memory_limit: None,
        };
        let mut teller = Teller {
            printer,
            allowance: Allowance::given(),
            written: folder_bytes(&job.recipe.output_dir),
            output: job.recipe.output_dir.clone(),
            has_written_all: false,
            channel,
            should_end,
            is_warned,
            memory_steps: recipe.memory_steps,
            logging_steps: recipe.logging_steps,
            metric: recipe.metric_for_best_model,
            is_evaluating: false,
            told: Instant::now(),
            buffers: (0, 0),
            arena: BTreeMap::new(),
            facts,
            bound: Bound::new(recipe.memory_limit.map(|limit| limit.0)),
            me: Identity::of(std::process::id()).and_then(|me| Process::open(me).ok()),
            resident: Resident::default(),
            telling: Duration::ZERO,
            steps: 0.0,
            idle: (0.0, 0.0),
        };
        let memory = teller.memory();
        teller.resident.start = memory.0;
        Ok(teller)
    }

    /// The buffers of the device: all are there from the beginning to the end.
    fn buffers_now(&self) -> Message {
        let (count, bytes) = self.buffers;
        Message { tensors: Some(count), tensors_cpu: Some(count), arena: Some(bytes), ..Message::default() }
    }

    /// Anonymous memory now, and the most that was resident so far.
    fn memory(&mut self) -> (u64, u64) {
        let memory = self.me.as_mut().and_then(|me| me.memory().ok().flatten());
        memory.map_or((0, 0), |memory| (memory.anon, memory.peak))
    }

    fn look(&mut self) {
        let (anon, peak) = self.memory();
        self.resident.most = self.resident.most.max(anon);
        self.resident.peak = peak;
    }

    /// Ends the run with a checkpoint where it holds more than it may: the guard may not look for a second.
    fn end_at_limit(&mut self, crossed: Option<Crossed>) {
        let Some(Crossed { held, limit }) = crossed else { return };
        if self.should_end.swap(true, Ordering::AcqRel) {
            return;
        }
        match self.channel {
            Some(_) => self.send(&Message { at_limit: true, ..Message::default() }),
            None => self.printer.say(&format!("stopping: {} in use of {}", Bytes(held), Bytes(limit))),
        }
    }

    fn send(&mut self, message: &Message) {
        let Some(channel) = &mut self.channel else { return };
        let line = serde_json::to_string(message).unwrap_or_default() + "\n";
        if channel.write_all(line.as_bytes()).is_err() {
            self.channel = None;
        }
    }
}

/// Ends with a checkpoint when the guard asks for it, or when there is no guard any more: a run without one would not be stopped before memory runs out.
fn obey(channel: &UnixStream, should_end: Arc<AtomicBool>) {
    let Ok(back) = channel.try_clone() else { return };
    std::thread::spawn(move || {
        for line in BufReader::new(back).lines() {
            let Ok(line) = line else { break };
            if let Ok(Command::Stop) = serde_json::from_str(&line) {
                should_end.store(true, Ordering::Release);
            }
        }
        should_end.store(true, Ordering::Release);
    });
}

impl Observer for Teller<'_> {
    fn began(&mut self, step: usize, plan: &Plan) {
        self.buffers = (plan.buffers.len() as u64, plan.total() as u64);
        let bytes = |purpose: &Purpose| (purpose.name().to_string(), plan.bytes(*purpose) as u64);
        self.arena = Purpose::ALL.iter().map(bytes).collect();
        self.look();
        self.resident.began = self.resident.most;
        self.bound.begin(saving_bytes(plan));
        self.send(&Message { facts: Some(self.facts.clone()), ..Message::default() });
        self.send(&Message { step: Some(step as f64), sample: true, ..self.buffers_now() });
    }

    fn stepped(&mut self, report: &StepReport) {
        let begin = Instant::now();
        if report.step < report.steps {
            let crossed = self.bound.after_step();
            self.end_at_limit(crossed);
        }
        // The first step of a start waits for the first rows, which says nothing about those to come.
        if self.steps > 0.0 {
            self.idle = (self.idle.0 + report.idle, self.idle.1 + report.idle + report.busy);
        }
        let is_sample = report.step.is_multiple_of(self.memory_steps);
        if is_sample {
            self.look();
        }
        // A message wakes the guard, which takes time from a step where all cores are busy.
        let is_due = is_sample || report.step.is_multiple_of(self.logging_steps) || report.step == report.steps;
        if !is_due && self.told.elapsed() < PAUSE {
            self.telling += begin.elapsed();
            self.steps += report.seconds;
            return;
        }
        self.told = begin;
        self.send(&Message {
            step: Some(report.step as f64),
            epoch: Some(report.epoch),
            // A step all of whose rows were left out has none.
            loss: (report.trained > 0).then_some(report.mean_loss),
            learning_rate: Some(report.rate),
            sample: is_sample,
            ..self.buffers_now()
        });
        self.telling += begin.elapsed();
        self.steps += report.seconds;
    }

    fn evaluating(&mut self) {
        self.is_evaluating = true;
        self.send(&Message { event: Some(EventKind::EvalStart), ..Message::default() });
    }

    fn evaluated(&mut self, report: &EvalReport) {
        self.is_evaluating = false;
        self.look();
        let mut words = format!("evaluation after step {}: loss {:.4}", report.step, report.loss);
        if let Some(share) = report.mean_token_accuracy {
            words += &format!(", token accuracy {}", percent(share));
        }
        if let Some(share) = report.exact_match {
            words += &format!(", {} of {} answers correct", percent(share), report.answers);
        }
        if let Some(share) = report.field_accuracy {
            words += &format!(", {} of fields", percent(share));
        }
        if let (Some(mean), Some(half)) = (report.mean_iou, report.iou_50) {
            words += &format!(", boxes overlap by {} on average, {} of them by half", percent(mean), percent(half));
        }
        if report.is_best {
            words += &format!(" (best by {} so far)", self.metric.name());
        }
        self.send(&Message { event: Some(EventKind::EvalEnd), say: Some(words), ..Message::default() });
    }

    fn saved(&mut self, path: &Path) {
        if let Some(allowance) = &self.allowance {
            let written = folder_bytes(&self.output);
            if allowance.take(written.saturating_sub(self.written)).is_err() {
                self.has_written_all = true;
                self.should_end.store(true, Ordering::Release);
            }
            self.written = written;
        }
        let path = Some(path.to_path_buf());
        self.send(&Message { event: Some(EventKind::Checkpoint), path, ..Message::default() });
    }

    fn say(&mut self, line: &str) {
        match self.channel {
            Some(_) => self.send(&Message { say: Some(line.to_string()), ..Message::default() }),
            None => self.printer.say(line),
        }
    }

    fn wants_end(&mut self) -> bool {
        if self.is_evaluating {
            let crossed = self.bound.in_evaluation();
            self.end_at_limit(crossed);
        }
        self.should_end.load(Ordering::Acquire)
    }
}

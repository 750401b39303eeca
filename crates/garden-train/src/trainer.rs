//! The training loop.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use garden_data::{BatchSize, Loader, MicroBatch, Processor, SkippedRow};
use garden_device::{Device, Dtype, Stage};
use garden_memory::Bytes;
use garden_model::{Adapter, Batch, Checkpoint, Config, Engine, EngineLimits, Limits, Model, Optimizer, read_adapter};
use garden_random::spread;

use crate::checkpoint::{self, Best, Progress};
use crate::error::Error;
use crate::evaluation::{Evaluation, forget_others_answers};
use crate::initial::draw_adapter;
use crate::job::Job;
use crate::lock::RunLock;
use crate::log::{EvalLine, LeftOutLine, Log, LogLine, StepLine};
use crate::metric::Score;
use crate::observer::{EvalReport, Observer, StepReport};
use crate::plan::device_plan;
use crate::result::write_result;
use crate::run_end::{End, Proof};
use crate::schedule::Schedule;

/// How training ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    /// Why.
    pub end: End,
    /// How far it came.
    pub progress: Progress,
    /// The last evaluation.
    pub evaluation: Option<EvalReport>,
    /// What the result was proven by, if training is over.
    pub proof: Option<Proof>,
}

/// How long a trainer waits for its folder: the command that starts it gives it up just before.
const HANDOVER: Duration = Duration::from_secs(10);

/// What an evaluation came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Evaluated {
    /// It is the best so far.
    Better,
    /// It is not.
    NoBetter,
    /// Somebody wants an end: it is made again after going on from the checkpoint.
    Stopped,
}

/// A run under way.
struct Run<'a> {
    job: &'a Job,
    device: &'a mut dyn Device,
    observer: &'a mut dyn Observer,
    model: Model,
    evaluation: Option<Evaluation>,
    processor: Arc<Processor>,
    schedule: Schedule,
    optimizer: Optimizer,
    progress: Progress,
    /// The newest checkpoint that has all steps that were made, and their number.
    saved: Option<(usize, PathBuf)>,
    log: Log,
    evaluated: Option<EvalReport>,
    /// The micro-batch that comes next, where it was there before it was needed, or why it cannot be used.
    next: Option<Result<Waiting, Error>>,
    /// When this start began, and the seconds of those before.
    began: (Instant, f64),
    /// Memory that is lost on purpose.
    leaked: Vec<Vec<u8>>,
}

/// Trains from the beginning, or on from a checkpoint.
pub fn train(
    job: &Job,
    resume: Option<&Path>,
    device: &mut dyn Device,
    observer: &mut dyn Observer,
) -> Result<Finish, Error> {
    let folder = job.recipe.output_dir.as_path();
    std::fs::create_dir_all(folder).map_err(|error| Error::file(folder, error))?;
    // Held to the end. Whoever looks whether the folder is free holds it for a moment.
    let _lock = RunLock::take(folder, HANDOVER, &mut |_| {})?;
    let mut run = Run::begin(job, resume, device, observer)?;
    match run.steps() {
        Err(error) if error.is_of_row() => Err(run.stop_at_row(error)),
        end => run.finish(end?),
    }
}

impl<'a> Run<'a> {
    fn begin(
        job: &'a Job,
        resume: Option<&Path>,
        device: &'a mut dyn Device,
        observer: &'a mut dyn Observer,
    ) -> Result<Run<'a>, Error> {
        let recipe = &job.recipe;
        checkpoint::recover(&recipe.output_dir);
        // Reading a tokenizer takes more memory than it keeps: before the model there is room for that.
        let processor = Arc::new(job.processor()?);
        let mut model = build(job, device)?;
        let (mut progress, mut saved) = (Progress::default(), None);
        match resume {
            Some(path) => {
                let state = checkpoint::open(path)?;
                checkpoint::compare(path, &state, job)?;
                checkpoint::restore(job, &mut model, device, path)?;
                progress = state.progress;
                for aside in checkpoint::set_aside(&recipe.output_dir, Some(progress.step))? {
                    observer.say(&format!("a checkpoint of later steps was moved to {}", aside.display()));
                }
                // What was the best has to be there, whole, and to mean the same.
                let is_there =
                    |best: Best| checkpoint::open(&checkpoint::of_step(&recipe.output_dir, best.step)).is_ok();
                let is_same = checkpoint::has_same_evaluation(&state.recipe, recipe);
                if progress.best.is_some_and(|best| !is_same || !is_there(best)) {
                    observer.say(
                        "the best checkpoint so far cannot be compared with later ones: the search for the best starts over",
                    );
                    (progress.start, progress.best, progress.worse) = (None, None, 0);
                }
                saved = Some((progress.step, path.to_path_buf()));
            }
            None => {
                for aside in checkpoint::set_aside(&recipe.output_dir, None)? {
                    observer.say(&format!("an unusable checkpoint was moved to {}", aside.display()));
                }
                first_values(job, device, &model)?;
            }
        }
        let evaluation = match &job.eval {
            None => None,
            Some(rows) => {
                let engine = job.answers.map(|limits| Engine::beside(device, &model, limits)).transpose()?;
                Some(Evaluation::new(job, rows.open()?, processor.clone(), engine)?)
            }
        };
        forget_others_answers(&recipe.output_dir, &progress)?;
        let log = Log::open(&recipe.output_dir, &progress)?;
        let earlier = progress.seconds;
        Ok(Run {
            job,
            device,
            observer,
            model,
            evaluation,
            processor,
            schedule: Schedule::new(recipe, job.steps()),
            optimizer: recipe.optimizer(),
            progress,
            saved,
            log,
            evaluated: None,
            next: None,
            began: (Instant::now(), earlier),
            leaked: Vec::new(),
        })
    }

    /// Steps until the end, or until somebody asks for one.
    fn steps(&mut self) -> Result<End, Error> {
        let job = self.job;
        let (recipe, steps) = (&job.recipe, job.steps());
        let batches = job.batches();
        let numbers = job.first_batch(self.progress.step)..job.first_batch(steps);
        let settings = job.loader(recipe.ahead());
        let mut loader = Loader::new(job.train.open()?, self.processor.clone(), batches, settings, numbers);
        self.device.time_stages();
        self.observer.began(self.progress.step, self.device.plan());
        // What is known before the first step is what the last one is compared with.
        let step = self.progress.step;
        let is_due = step.is_multiple_of(job.eval_steps()) || step == steps;
        if self.evaluation.is_some() && is_due && self.progress.evaluated != Some(step) {
            match self.evaluate()? {
                Evaluated::Better => self.save()?,
                Evaluated::NoBetter => {}
                Evaluated::Stopped => return self.end_as_asked(),
            }
        }
        let is_over = |progress: &Progress| recipe.early_stopping.is_some_and(|patience| progress.worse >= patience);
        if is_over(&self.progress) {
            return Ok(End::NoBetter);
        }
        while self.progress.step < steps {
            if self.observer.wants_end() {
                return self.end_as_asked();
            }
            self.step(&mut loader)?;
            let step = self.progress.step;
            let is_last = step == steps;
            let is_due = self.evaluation.is_some() && (is_last || step.is_multiple_of(job.eval_steps()));
            let evaluated = if is_due { self.evaluate()? } else { Evaluated::NoBetter };
            if evaluated == Evaluated::Stopped {
                return self.end_as_asked();
            }
            let is_over = is_over(&self.progress);
            if is_last || evaluated == Evaluated::Better || is_over || step.is_multiple_of(recipe.save_steps) {
                self.save()?;
            }
            if is_over && !is_last {
                return Ok(End::NoBetter);
            }
        }
        Ok(End::Done)
    }

    /// Saves where the run is, so that it can go on from there.
    fn end_as_asked(&mut self) -> Result<End, Error> {
        self.save()?;
        Ok(End::Asked)
    }

    /// One step: the gradients of some micro-batches, and an update.
    fn step(&mut self, loader: &mut Loader) -> Result<(), Error> {
        let begin = Instant::now();
        let (job, number) = (self.job, self.progress.step);
        let (first, last) = (job.first_batch(number), job.first_batch(number + 1));
        let mut group = Group::default();
        self.model.begin_step(self.device);
        for batch in first..last {
            let waiting = Instant::now();
            let next = match self.next.take() {
                Some(next) => Some(next),
                None => {
                    let made = loader.next();
                    group.waited += waiting.elapsed().as_secs_f64();
                    made.map(|made| Waiting::of(made, self.model.config(), loader))
                }
            };
            let Some(next) = next.transpose()? else { break };
            self.learn(next, &mut group, loader)?;
            // Behind the last one the update has to be queued first.
            if batch + 1 < last {
                self.look_ahead(loader);
            }
        }
        if job.recipe.debug_fail == Some(number + 1) {
            self.device.fail();
        }
        let divisor = match group.batches {
            0 => 1.0,
            batches => job.recipe.loss_normalisation.divisor(batches, group.trained),
        };
        if group.batches > 0 {
            let rate = self.schedule.rate(number) as f32;
            let scale = (1.0 / divisor) as f32;
            self.model.update(self.device, &self.optimizer, rate, scale, group.had_images);
        }
        self.look_ahead(loader);
        // The one place of a step that waits for the device.
        let result = self.model.step_result(self.device)?;
        let times = self.device.stage_times().map_err(garden_model::Error::from)?;
        let (loss, gradient_norm) = (f64::from(result.loss) / divisor, f64::from(result.gradient_norm));
        for (what, value) in [("loss", loss), ("gradient norm", gradient_norm)] {
            if !value.is_finite() {
                return Err(Error::NotFinite { step: number + 1, what });
            }
        }
        self.leak();
        self.progress.step += 1;
        self.progress.tokens += group.tokens as u64;
        self.progress.dropped += group.dropped;
        self.leave_out(group.skipped, false)?;
        let report = StepReport {
            step: self.progress.step,
            steps: job.steps(),
            epoch: self.progress.step as f64 / job.steps_per_epoch() as f64,
            loss,
            mean_loss: loss,
            gradient_norm,
            rate: self.schedule.rate(number),
            tokens: group.tokens,
            trained: group.trained,
            hits: result.hits,
            seconds: begin.elapsed().as_secs_f64(),
            waited: group.waited,
            idle: times.seconds(Stage::Idle),
            busy: times.total(),
        };
        self.tell(report)
    }

    /// Takes the next micro-batch if it is there already, and brings it to the device while that computes.
    fn look_ahead(&mut self, loader: &mut Loader) {
        let Some(made) = loader.next_if_ready() else { return };
        let next = Waiting::of(made, self.model.config(), loader).and_then(|next| {
            next.batch.as_ref().map_or(Ok(()), |batch| self.model.place(self.device, batch))?;
            Ok(next)
        });
        // What is wrong with it is told when it is its turn.
        self.next = Some(next);
    }

    /// Adds the gradients of a micro-batch; gives its pixels back.
    fn learn(&mut self, mut next: Waiting, group: &mut Group, loader: &Loader) -> Result<(), Error> {
        // They count once the step is made: one that is not made is made again.
        group.dropped += next.dropped;
        group.skipped.append(&mut next.skipped);
        let Some(batch) = next.batch else { return Ok(()) };
        let scale = self.job.recipe.loss_normalisation.scale(next.trained);
        // Each micro-batch drops other inputs, and the same ones after a restart. Zero would drop nothing.
        let seed = spread(self.job.recipe.seed ^ spread(next.number as u64 + 1)).max(1);
        self.model.learn(self.device, &batch, scale, seed)?;
        group.add(&batch, next.trained);
        loader.give_back(batch.into_pixels());
        Ok(())
    }

    /// Counts and names rows that a step, or an evaluation, went without.
    fn leave_out(&mut self, rows: Vec<SkippedRow>, is_evaluated: bool) -> Result<(), Error> {
        for SkippedRow { row, error } in rows {
            let (step, left_out) = (self.progress.step, error.to_string());
            self.observer.say(&format!("left out: {left_out}"));
            self.progress.skip(left_out.clone());
            self.log.add(&LogLine::LeftOut(LeftOutLine { step, left_out, row, is_evaluated }))?;
        }
        Ok(())
    }

    /// Keeps the steps that were made before a row ended the run: that step is made again, with the same bits.
    fn stop_at_row(mut self, error: Error) -> Error {
        let step = self.progress.step;
        let is_saved = |saved: &Option<(usize, PathBuf)>| saved.as_ref().is_some_and(|(at, _)| *at == step);
        if step > 0
            && !is_saved(&self.saved)
            && let Err(why) = self.save()
        {
            self.observer.say(&format!("the steps since the last checkpoint cannot be saved: {why}"));
        }
        let saved = self.saved.filter(|(at, _)| *at == step).map(|(_, path)| path);
        Error::BrokenRow { source: Box::new(error), saved }
    }

    /// Tells a step to whoever watches, and writes it to the log when it is time.
    fn tell(&mut self, mut report: StepReport) -> Result<(), Error> {
        self.progress.window.add(&report);
        if self.progress.window.steps > 0 {
            report.mean_loss = self.progress.window.loss();
        }
        let report = &report;
        if report.step.is_multiple_of(self.job.recipe.logging_steps) || report.step == report.steps {
            let window = std::mem::take(&mut self.progress.window);
            if window.steps == 0 {
                self.observer.stepped(report);
                return Ok(());
            }
            self.log.add(&LogLine::Step(StepLine::of(report, &window, self.progress.tokens)))?;
        }
        self.observer.stepped(report);
        Ok(())
    }

    fn evaluate(&mut self) -> Result<Evaluated, Error> {
        let (step, job) = (self.progress.step, self.job);
        let Some(evaluation) = &mut self.evaluation else { return Ok(Evaluated::NoBetter) };
        // Its batches take the place of the next one.
        self.model.displace();
        self.device.mark(Stage::Elsewhere);
        self.observer.evaluating();
        let observer = &mut *self.observer;
        let found = evaluation.run(job, &mut self.model, self.device, step, &mut || observer.wants_end())?;
        let Some((mut report, skipped)) = found else { return Ok(Evaluated::Stopped) };
        let best_by = job.recipe.best_by();
        let Some(score) = best_by.score(&report) else {
            return Err(Error::NoMetric { name: best_by.metric.name(), needs: best_by.metric.needs() });
        };
        let progress = &mut self.progress;
        let is_better = |best: Best| {
            let loss = best.loss.unwrap_or(f64::NEG_INFINITY);
            best_by.is_better(score, Score { number: best.metric, loss })
        };
        let this = Best { step, metric: score.number, loss: Some(score.loss) };
        // What was there before the first step is no result, but a result may be worse than that.
        let is_result = step > 0 && progress.best.is_none_or(is_better);
        report.is_best = is_result && progress.start.is_none_or(is_better);
        if is_result {
            (progress.best, progress.worse) = (Some(this), 0);
        } else if step > 0 {
            progress.worse += 1;
        } else {
            progress.start = Some(this);
        }
        if is_result || step == 0 {
            evaluation.keep_predictions(&job.recipe.output_dir)?;
        }
        self.leave_out(skipped, true)?;
        let epoch = step as f64 / job.steps_per_epoch() as f64;
        self.log.add(&LogLine::Evaluation(EvalLine::of(&report, epoch)))?;
        self.observer.evaluated(&report);
        self.progress.evaluated = Some(step);
        let evaluated = if is_result { Evaluated::Better } else { Evaluated::NoBetter };
        self.evaluated = Some(report);
        Ok(evaluated)
    }

    fn save(&mut self) -> Result<(), Error> {
        self.device.mark(Stage::Elsewhere);
        self.count_time();
        let recipe = &self.job.recipe;
        let path = checkpoint::save(self.job, &self.progress, &self.log, &self.model, self.device)?;
        self.observer.saved(&path);
        self.saved = Some((self.progress.step, path));
        checkpoint::rotate(&recipe.output_dir, recipe.save_total_limit, self.progress.best.map(|best| best.step))
    }

    /// Writes the result, reads it again, and proves that it does something.
    fn finish(mut self, end: End) -> Result<Finish, Error> {
        self.device.mark(Stage::Elsewhere);
        self.count_time();
        let mut proof = None;
        if end != End::Asked {
            let (job, folder) = (self.job, self.job.recipe.output_dir.as_path());
            // The result is the best one that was seen, where there was an evaluation.
            if let Some(Best { step, metric, .. }) = self.progress.best.filter(|best| best.step != self.progress.step) {
                let path = checkpoint::of_step(folder, step);
                match checkpoint::open(&path) {
                    Ok(_) => {
                        checkpoint::read_trained(job, &self.model, self.device, &path)?;
                        let best_by = job.recipe.best_by();
                        let (words, metric) = (best_by.words(), best_by.metric.shown(metric));
                        self.observer.say(&format!(
                            "the result is from step {step}, which had {words} in evaluations ({metric})"
                        ));
                    }
                    Err(error) => self
                        .observer
                        .say(&format!("the result is from the last step, as the best one cannot be read: {error}")),
                }
            }
            let dtype = write_result(job, &self.model, self.device, self.observer)?;
            proof = Some(self.prove(dtype)?);
        }
        Ok(Finish { end, progress: self.progress, evaluation: self.evaluated, proof })
    }

    /// Reads the result again into the model that it came from, and compares losses with it and without.
    fn prove(&mut self, dtype: Dtype) -> Result<Proof, Error> {
        let (job, folder) = (self.job, self.job.recipe.output_dir.as_path());
        let batches = job.train.batches(BatchSize::Rows(1), None);
        let mut settings = job.loader(garden_data::Ahead { threads: 1, bytes: 0 });
        settings.bad_row = garden_data::BadRow::Skip;
        let numbers = 0..batches.per_epoch();
        let mut loader = Loader::new(job.train.open()?, self.processor.clone(), batches, settings, numbers);
        let found = loader.find_map(|made| made.ok().filter(|made| made.trained > 0));
        let Some(made) = found else { return Err(Error::Empty("no row could be read".into())) };
        let batch = Batch::new(self.model.config(), &made.rows, made.images)?;
        let loss = |model: &mut Model, device: &mut dyn Device| -> Result<f64, Error> {
            let losses = model.evaluate(device, &batch)?;
            Ok(losses.iter().map(|loss| f64::from(*loss)).sum::<f64>() / losses.len().max(1) as f64)
        };
        let mut unrounded = None;
        if dtype != Dtype::F32 {
            unrounded = Some(loss(&mut self.model, self.device)?);
            self.model.round_values(self.device, dtype)?;
        }
        let before = loss(&mut self.model, self.device)?;
        for parameter in self.model.parameters().iter().filter(|parameter| parameter.name.contains(".lora_B.")) {
            self.model.set(self.device, parameter, &vec![0.0; parameter.shape.iter().product()]);
        }
        let without = loss(&mut self.model, self.device)?;
        // With modules that are trained as a whole, this is not the base model.
        let without = (!job.recipe.full && job.recipe.modules_to_save.is_none()).then_some(without);
        checkpoint::read_trained(job, &self.model, self.device, folder)?;
        let with = loss(&mut self.model, self.device)?;
        if with.to_bits() != before.to_bits() {
            let problem = format!("when read back, the result has loss {with} instead of {before}");
            return Err(Error::checkpoint(folder, problem));
        }
        Ok(Proof { with, without, unrounded })
    }

    fn count_time(&mut self) {
        self.progress.seconds = self.began.1 + self.began.0.elapsed().as_secs_f64();
    }

    fn leak(&mut self) {
        if let Some(Bytes(bytes)) = self.job.recipe.debug_leak {
            // Not zeros, which the kernel would not have to keep.
            self.leaked.push(vec![1; bytes as usize]);
        }
    }
}

/// A micro-batch that is about to be learnt.
#[derive(Debug)]
struct Waiting {
    number: usize,
    trained: usize,
    dropped: usize,
    skipped: Vec<SkippedRow>,
    /// What the model is given; nothing where nothing of it is trained.
    batch: Option<Batch>,
}

impl Waiting {
    fn of(made: Result<MicroBatch, garden_data::Error>, config: &Config, loader: &Loader) -> Result<Waiting, Error> {
        let MicroBatch { number, rows, images, trained, skipped, dropped } = made?;
        let batch = match trained {
            0 => {
                loader.give_back(images.pixels);
                None
            }
            _ => Some(Batch::new(config, &rows, images)?),
        };
        Ok(Waiting { number, trained, dropped, skipped, batch })
    }
}

/// The micro-batches of a step.
#[derive(Debug, Default)]
struct Group {
    batches: usize,
    tokens: usize,
    /// Tokens that are trained.
    trained: usize,
    had_images: bool,
    waited: f64,
    dropped: usize,
    skipped: Vec<SkippedRow>,
}

impl Group {
    fn add(&mut self, batch: &Batch, trained: usize) {
        self.batches += 1;
        self.tokens += batch.tokens();
        self.trained += trained;
        self.had_images |= batch.patches() > 0;
    }
}

/// Puts the model on a device as the recipe wants it, after all memory that the run will need was taken.
pub(crate) fn build(job: &Job, device: &mut dyn Device) -> Result<Model, Error> {
    let recipe = &job.recipe;
    let config = Config::read(&job.base.join("config.json"))?;
    let weights = Checkpoint::open(&job.base)?;
    let (training, storage) = (recipe.training(config.family), recipe.storage());
    let limits = with_answers(job.limits, job.answers);
    let planned = device_plan(job, &config, &weights, device.profile())?.total();
    device.prepare(planned).map_err(garden_model::Error::from)?;
    Ok(Model::build(device, &config, &weights, &training, recipe.recomputed(), &storage, limits)?)
}

/// Answers run over their whole context; room for that is made once, with the model's.
pub(crate) fn with_answers(limits: Limits, answers: Option<EngineLimits>) -> Limits {
    Limits { longest: limits.longest.max(answers.map_or(0, |answers| answers.context)), ..limits }
}

fn first_values(job: &Job, device: &mut dyn Device, model: &Model) -> Result<(), Error> {
    match &job.recipe.adapter {
        Some(folder) => {
            let adapter: Adapter = read_adapter(folder, model.family())?;
            Ok(adapter.put(device, model)?)
        }
        None => {
            draw_adapter(device, model, job.recipe.seed);
            Ok(())
        }
    }
}

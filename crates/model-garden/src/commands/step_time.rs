//! `--step-time`: how long a step takes on this machine, from a short profile.
//!
//! The time of a step grows with the number of layers, so models of one to three layers of the same width tell that of the whole: one layer of decoder and tower each, two more
//! of the decoder, two more of the tower, and one whose tower looks at whole images, as some of its blocks do. They train on a micro-batch of the usual size, with the run's own
//! settings. A CPU would take minutes for that: it gets a smaller one. What a micro-batch takes is in part the same for every size, since weights are read whatever they are
//! multiplied with; a still smaller one tells how much, and the rest is scaled by the arithmetic.

use std::time::Instant;

use garden_data::{BatchSize, Survey};
use garden_device::{Device, Planner};
use garden_memory::{elapsed, grouped, short_time};
use garden_model::{Checkpoint, Config, Model, Training};
use garden_train::{DeviceChoice, DeviceKind, Recipe};
use serde::Serialize;

use super::bench::work::Work;
use super::bench::{self, Opened, SEED, failed};
use crate::failure::Failure;
use crate::printer::Printer;

/// Layers that a model has more than the one that it is compared with.
const MORE: usize = 2;
/// Micro-steps before those that count, and those: the shortest is taken, since whatever else the machine does only makes them longer.
const WARM_UP: usize = 1;
const MEASURED: usize = 2;
/// On a GPU they take milliseconds, and the first ones choose algorithms and record what is launched.
const GPU_WARM_UP: usize = 4;
const GPU_MEASURED: usize = 6;
/// Operations of the first micro-step of one layer on a CPU, which any has in a second; and the seconds that those which count should take.
const CPU_FLOP: f64 = 2e10;
const CPU_SECONDS: f64 = 1.0;
/// A row's text has tokens before and behind the first that is trained.
const LEAST_TEXT_OF_ROW: usize = 4;
/// Below this, products are too narrow to tell the speed of larger ones.
const LEAST_TEXT: usize = 32;

/// The usual micro-batch: its rows, and image and text tokens of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usual {
    pub rows: usize,
    pub image_tokens: usize,
    pub text_tokens: usize,
}

/// How long a step takes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepTime {
    pub micro_step_seconds: f64,
    pub step_seconds: f64,
    /// Micro-batches of a step, and tokens of the usual one.
    pub micro_batches: usize,
    pub micro_batch_tokens: usize,
    /// Where the number of steps is known.
    pub epoch_seconds: Option<f64>,
    /// What the profile took.
    pub measured_in_seconds: f64,
}

impl Usual {
    /// Rows with some images of equal size each. Several images do not see each other, so each has a row of its own here, with its share of the text.
    pub fn of_rows(rows: usize, images: usize, image_tokens: usize, text_tokens: usize) -> Usual {
        let images = if image_tokens == 0 { 1 } else { images.max(1) };
        // As square as images usually are: a number of tokens without divisors would make one row of patches.
        let side = (image_tokens as f64 / images as f64).sqrt().round() as usize;
        let image_tokens = side * (image_tokens / images).checked_div(side).unwrap_or(0);
        Usual { rows: rows.max(1) * images, image_tokens, text_tokens: (text_tokens / images).max(LEAST_TEXT_OF_ROW) }
    }

    /// The means of a dataset's rows.
    pub fn of_survey(survey: &Survey, batch: BatchSize) -> Usual {
        let (kept, with_images) = (survey.tokens.count().max(1) as f64, survey.image_tokens.count() as f64);
        let tokens = survey.tokens.mean();
        let image_tokens = survey.image_tokens.mean() * with_images / kept;
        let images = (survey.pictures.count as f64 / with_images.max(1.0)).round() as usize;
        let rows = match batch {
            BatchSize::Rows(rows) => rows,
            BatchSize::Tokens(most) => (most as f64 / tokens.max(1.0)) as usize,
        };
        Usual::of_rows(rows, images, image_tokens.round() as usize, (tokens - image_tokens).round() as usize)
    }
}

impl StepTime {
    /// Measures a profile, or says why it could not; `steps` are those of an epoch.
    pub fn try_measure(
        config: &Config,
        recipe: &Recipe,
        device: DeviceKind,
        usual: Usual,
        steps: Option<usize>,
        printer: &Printer,
    ) -> Option<StepTime> {
        match (Profile { config, recipe, device, printer }).step_time(usual, steps) {
            Ok(time) => Some(time),
            Err(failure) => {
                let causes: String = failure.causes.iter().map(|cause| format!(": {cause}")).collect();
                printer.say(&format!("note: no time of a step: {}{causes}", failure.what));
                None
            }
        }
    }

    /// In a sentence.
    pub fn sentence(&self) -> String {
        let StepTime { step_seconds, micro_batches, micro_batch_tokens, measured_in_seconds, .. } = self;
        let batches = match micro_batches {
            1 => format!("a micro-batch of {} tokens", grouped(*micro_batch_tokens)),
            many => format!("{many} micro-batches of {} tokens", grouped(*micro_batch_tokens)),
        };
        let epoch = self.epoch_seconds.map_or(String::new(), |seconds| format!(", an epoch {}", elapsed(seconds)));
        format!(
            "a step takes about {} here ({batches}){epoch}: estimated from a few layers, measured in {}",
            short_time(*step_seconds),
            short_time(*measured_in_seconds)
        )
    }
}

/// What parts of a step take. They are measured apart, since a GPU works while the host prepares the next micro-batch: in a model of one layer the host is the slower of the
/// two, and more layers would seem to cost nothing.
#[derive(Clone, Copy, Debug)]
struct Seconds {
    /// Forward and backward pass of a micro-batch, until the device is done.
    learn: f64,
    /// The host's part of that: until it may go on. On a CPU this is all of it.
    launch: f64,
    /// Preparing the next micro-batch on the host; the same for any number of layers.
    prepare: f64,
    /// Gradients set to zero, clipped, and the update, once a step.
    update: f64,
}

impl Seconds {
    const LONGEST: Seconds =
        Seconds { learn: f64::INFINITY, launch: f64::INFINITY, prepare: f64::INFINITY, update: f64::INFINITY };

    /// One micro-batch after the other: the host prepares while the device works.
    fn micro_step(self) -> f64 {
        self.learn.max(self.launch + self.prepare)
    }

    fn shortest(self, other: Seconds) -> Seconds {
        Seconds {
            learn: self.learn.min(other.learn),
            launch: self.launch.min(other.launch),
            prepare: self.prepare.min(other.prepare),
            update: self.update.min(other.update),
        }
    }

    /// With `layers` more, each of which takes what the `more` layers of another model take on average.
    fn plus(self, layers: usize, one: Seconds, other: Seconds, more: usize) -> Seconds {
        let each = |one: f64, other: f64| ((other - one) / more as f64).max(0.0) * layers as f64;
        Seconds {
            learn: self.learn + each(one.learn, other.learn),
            launch: self.launch + each(one.launch, other.launch),
            prepare: self.prepare,
            update: self.update + each(one.update, other.update),
        }
    }
}

/// Of a model with one layer in decoder and tower, and of the whole model.
struct Layers {
    one: Seconds,
    whole: Seconds,
}

/// Seconds from lap to lap.
struct Clock(Instant);

impl Clock {
    fn lap(&mut self) -> f64 {
        let before = std::mem::replace(&mut self.0, Instant::now());
        (self.0 - before).as_secs_f64()
    }
}

struct Profile<'a> {
    config: &'a Config,
    recipe: &'a Recipe,
    device: DeviceKind,
    printer: &'a Printer,
}

impl Profile<'_> {
    fn step_time(&self, usual: Usual, steps: Option<usize>) -> Result<StepTime, Failure> {
        let began = Instant::now();
        if self.device == DeviceKind::CpuBf16 {
            let why = "it is only measured for a CPU in f32 and for a GPU".to_string();
            return Err(Failure { what: "--device cpu-bf16".into(), causes: vec![why], hint: None });
        }
        let (micro_step, update) = self.whole(usual)?;
        let micro_batches = self.recipe.gradient_accumulation;
        let step_seconds = micro_step * micro_batches as f64 + update;
        Ok(StepTime {
            micro_step_seconds: micro_step,
            step_seconds,
            micro_batches,
            micro_batch_tokens: usual.rows * (usual.image_tokens + usual.text_tokens),
            epoch_seconds: steps.map(|steps| steps as f64 * step_seconds),
            measured_in_seconds: began.elapsed().as_secs_f64(),
        })
    }

    /// Seconds of a micro-batch of the usual size and of an update, of the whole model.
    fn whole(&self, usual: Usual) -> Result<(f64, f64), Failure> {
        let smallest = match self.device {
            DeviceKind::Cuda => usual,
            _ => self.part(usual, CPU_FLOP),
        };
        if smallest == usual {
            let whole = self.all_layers(usual)?.whole;
            return Ok((whole.micro_step(), whole.update));
        }
        let one_layer = |part: Usual| work(self.of_layers(1, 1, false), part);
        let shortest = self.measure(&one_layer(smallest))?.micro_step();
        let part = self.part(usual, CPU_FLOP * (CPU_SECONDS / shortest).max(1.0));
        let Layers { one, whole } = self.all_layers(part)?;
        let (less, more) = (self.flop(&one_layer(smallest)), self.flop(&one_layer(part)));
        // The share of one layer's time that grows with the work.
        let growing = match more > less {
            true => ((one.micro_step() - shortest) / (more - less) * more / one.micro_step()).clamp(0.0, 1.0),
            false => 1.0,
        };
        let times = self.flop(&work(self.config.clone(), usual)) / self.flop(&work(self.config.clone(), part));
        Ok((whole.micro_step() * (1.0 - growing + growing * times), whole.update))
    }

    fn all_layers(&self, usual: Usual) -> Result<Layers, Failure> {
        let (layers, depth) = (self.config.text.layers.len(), self.config.vision.depth);
        let full = (0..depth).filter(|block| self.config.vision.sees_all(*block)).count();
        let has_images = usual.image_tokens > 0;
        let seconds = |layers, depth, sees_all| self.measure(&work(self.of_layers(layers, depth, sees_all), usual));
        let one = seconds(1, 1, false)?;
        let mut whole = one;
        let more = MORE.min(layers - 1);
        if more > 0 {
            whole = whole.plus(layers - 1, one, seconds(1 + more, 1, false)?, more);
        }
        let more = MORE.min(depth - 1);
        if has_images && more > 0 {
            whole = whole.plus(depth - 1, one, seconds(1, 1 + more, false)?, more);
        }
        if has_images && full > 0 {
            whole = whole.plus(full, one, seconds(1, 1, true)?, 1);
        }
        Ok(Layers { one, whole })
    }

    /// The part of a micro-batch that takes so many operations in a model of one layer.
    fn part(&self, usual: Usual, flop: f64) -> Usual {
        let config = self.of_layers(1, 1, false);
        if self.flop(&work(config.clone(), usual)) <= flop {
            return usual;
        }
        let share = (flop / self.flop(&work(config, Usual { rows: 1, ..usual }))).min(1.0);
        let part = |tokens: usize| (tokens as f64 * share).round() as usize;
        // As square as images are: a long and narrow one has other windows.
        let side = ((part(usual.image_tokens) as f64).sqrt().round() as usize).max(usize::from(usual.image_tokens > 0));
        let text_tokens = part(usual.text_tokens).clamp(LEAST_TEXT.min(usual.text_tokens), usual.text_tokens);
        Usual { rows: 1, image_tokens: (side * side).min(usual.image_tokens), text_tokens }
    }

    /// The shape with other numbers of layers, the first block of whose tower sees whole images or only windows.
    fn of_layers(&self, layers: usize, depth: usize, sees_all: bool) -> Config {
        let mut config = self.config.clone();
        config.text.layers.truncate(layers);
        config.vision.depth = depth;
        if let Some(windows) = &mut config.vision.windows {
            windows.full_blocks = if sees_all { vec![0] } else { Vec::new() };
        }
        config
    }

    fn flop(&self, work: &Work) -> f64 {
        let trains_vision = self.recipe.full || self.recipe.finetune_vision;
        work.flop(trains_vision).needed
    }

    /// Trains a small model for a few steps.
    fn measure(&self, work: &Work) -> Result<Seconds, Failure> {
        let choice = match self.device {
            DeviceKind::Cuda => DeviceChoice::Cuda,
            DeviceKind::Cpu | DeviceKind::CpuBf16 => DeviceChoice::Cpu,
        };
        let mut opened: Opened = bench::open(choice, self.recipe.threads, self.printer)?;
        let free = opened.free()?;
        let mut planner = Planner::like(opened.device().profile());
        let shapes = Checkpoint::of_shapes(&work.config, garden_device::Dtype::Bf16);
        self.build(work, &mut planner, &shapes.map_err(|error| failed(&error))?)?;
        if let Some(refusal) = bench::refusal(work, &opened, planner.plan(), free) {
            return Err(Failure { hint: None, ..refusal });
        }
        let device = opened.device();
        device.prepare(planner.plan().total()).map_err(|error| failed(&error))?;
        let checkpoint = Checkpoint::random(&work.config, SEED).map_err(|error| failed(&error))?;
        let mut model = self.build(work, device, &checkpoint)?;
        drop(checkpoint);
        if !self.recipe.full {
            bench::fill_adapters(device, &model);
        }
        let rows = work.make_rows();
        let mut batch = work.batch(&rows, work.make_pixels()).map_err(|error| failed(&error))?;
        let mut shortest = Seconds::LONGEST;
        let (warm_up, measured) = match self.device {
            DeviceKind::Cuda => (GPU_WARM_UP, GPU_MEASURED),
            _ => (WARM_UP, MEASURED),
        };
        for number in 0..warm_up + measured {
            let mut clock = Clock(Instant::now());
            model.begin_step(device);
            device.finish().map_err(|error| failed(&error))?;
            let zeroed = clock.lap();
            model.learn(device, &batch, 1.0 / batch.targets().max(1) as f32, 0).map_err(|error| failed(&error))?;
            let launch = clock.lap();
            device.finish().map_err(|error| failed(&error))?;
            let learn = launch + clock.lap();
            batch = work.batch(&rows, batch.into_pixels()).map_err(|error| failed(&error))?;
            model.place(device, &batch).map_err(|error| failed(&error))?;
            device.finish().map_err(|error| failed(&error))?;
            let prepare = clock.lap();
            model.update(device, &self.recipe.optimizer(), 1e-4, 1.0, work.image_tokens > 0);
            model.step_result(device).map_err(|error| failed(&error))?;
            if number >= warm_up {
                shortest = shortest.shortest(Seconds { learn, launch, prepare, update: zeroed + clock.lap() });
            }
        }
        Ok(shortest)
    }

    fn build(&self, work: &Work, device: &mut dyn Device, checkpoint: &Checkpoint) -> Result<Model, Failure> {
        let training: Training = self.recipe.training(work.config.family);
        let (recomputed, storage) = (self.recipe.recomputed(), self.recipe.storage());
        Model::build(device, &work.config, checkpoint, &training, recomputed, &storage, work.limits())
            .map_err(|error| failed(&error))
    }
}

fn work(config: Config, usual: Usual) -> Work {
    let Usual { rows, image_tokens, text_tokens } = usual;
    Work { config, rows, image_tokens, text_tokens }
}

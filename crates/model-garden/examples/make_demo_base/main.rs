//! Makes the base of the demo: trains a tiny Qwen2.5-VL from random weights until it can say what is in simple pictures.
//!
//!     cargo run --release -p model-garden --example make_demo_base -- FOLDER [steps] [seed]
//!     cargo run --release -p model-garden --example make_demo_base -- texts
//!
//! The folder has everything but the weights, which are written into it. `texts` prints what the tokenizer was made of. What the base is taught
//! is in `world.rs`; crates/model-garden/assets/demo-base/README.md says how it was made.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a program for developers, which prints how far it is")]

#[path = "../../src/demo"]
mod demo {
    #![allow(dead_code, reason = "the demo needs more of it")]
    pub mod drawing;
    pub mod random;
}
mod weights;
mod world;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use demo::random::Random;
use garden_data::{Collator, Example, ExampleSettings, Outcome, PictureFile, Processor, Record, SpecialTokens};
use garden_device::Cpu;
use garden_model::{
    Batch, Checkpoint, Config, Engine, EngineLimits, GradientCheckpointing, Limits, Model, Optimizer, Prompt, Sampling,
    Storage, Training,
};

const THREADS: usize = 2;
const BATCH: usize = 16;
const PEAK_RATE: f32 = 1.5e-3;
/// The share of steps in which the rate grows.
const WARM_UP: f32 = 0.05;
/// Conversations from which the largest batch is guessed, with room to spare.
const LOOKED_AT: usize = 400;
const HELD_OUT: usize = 200;
const NEW_TOKENS: usize = 16;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize, default: u64| words.get(place).map_or(default, |word| word.parse().unwrap());
    match words.first().map(String::as_str) {
        Some("texts") => texts(),
        Some(folder) => make(Path::new(folder), number(1, 2500) as usize, number(2, 1)),
        None => println!("usage: make_demo_base FOLDER [steps] [seed], or make_demo_base texts"),
    }
}

/// Everything that is said, with what the chat template adds.
fn texts() {
    let mut random = Random::new(0, 0);
    for _ in 0..2000 {
        for message in world::conversation(&mut random).messages.iter().chain(&world::text(&mut random).messages) {
            println!("{}\n{}", message.role, message.words());
        }
        println!("system\nYou are a helpful assistant.");
    }
}

fn make(folder: &Path, steps: usize, seed: u64) {
    let config = Config::read(&folder.join("config.json")).unwrap();
    let processor = Processor::open(folder).unwrap();
    let file = folder.join("model.safetensors");
    weights::write(&file, &weights::random(&config, &mut Random::new(seed, 0)));
    let mut teacher = Teacher::new(&processor, &config, seed);
    let limits = teacher.limits();
    let mut cpu = Cpu::new(THREADS);
    let checkpoint = Checkpoint::open(folder).unwrap();
    let (training, storage) = (Training::Full, Storage::default());
    let mut model =
        Model::build(&mut cpu, &config, &checkpoint, &training, GradientCheckpointing::Off, &storage, limits).unwrap();
    // The file is written anew, so nothing of it may be mapped any more.
    drop(checkpoint);
    let optimizer = Optimizer { beta2: 0.99, decay: 0.01, ..Optimizer::default() };
    let (begin, mut losses) = (Instant::now(), Vec::new());
    for step in 0..steps {
        let batch = teacher.batch();
        model.begin_step(&mut cpu);
        model.learn(&mut cpu, &batch, 1.0 / batch.targets() as f32, 0).unwrap();
        model.update(&mut cpu, &optimizer, rate(step, steps), 1.0, true);
        losses.extend(model.losses(&mut cpu, &batch).unwrap());
        teacher.collator.give_back(batch.into_pixels());
        if (step + 1) % 100 == 0 || step + 1 == steps {
            let mean = losses.iter().sum::<f32>() / losses.len() as f32;
            println!("step {} of {steps}: loss {mean:.4}, {:.0} s", step + 1, begin.elapsed().as_secs_f64());
            losses.clear();
        }
    }
    weights::write(&file, &values(&mut cpu, &model));
    judge(folder, &processor, &config, seed);
}

/// Grows, then falls to 0 like a cosine.
fn rate(step: usize, steps: usize) -> f32 {
    let (done, warm) = (step as f32, WARM_UP * steps as f32);
    if done < warm {
        return PEAK_RATE * (done + 1.0) / warm;
    }
    PEAK_RATE * 0.5 * (1.0 + (std::f32::consts::PI * (done - warm) / (steps as f32 - warm)).cos())
}

/// Makes batches of conversations.
struct Teacher<'a> {
    processor: &'a Processor,
    config: &'a Config,
    collator: Collator,
    random: Random,
}

impl<'a> Teacher<'a> {
    fn new(processor: &'a Processor, config: &'a Config, seed: u64) -> Teacher<'a> {
        let patches = processor.images.max_pixels as usize / config.vision.patch.pow(2);
        let collator = Collator::new(processor, patches * BATCH);
        Teacher { processor, config, collator, random: Random::new(seed, 1) }
    }

    fn add(&mut self, record: &Record) {
        let outcome = Example::of(self.processor, record, &ExampleSettings::default()).unwrap();
        let Outcome::Kept(example) = outcome else { panic!("no length is too long") };
        self.collator.add(example, &record.pictures).unwrap();
    }

    fn finish(&mut self) -> Batch {
        let (rows, images) = self.collator.finish();
        Batch::new(self.config, &rows, images).unwrap()
    }

    fn batch(&mut self) -> Batch {
        for _ in 0..BATCH {
            let record = world::conversation(&mut self.random);
            self.add(&record);
        }
        self.finish()
    }

    /// Enough for a batch of the largest conversations.
    fn limits(&mut self) -> Limits {
        let mut most = Limits::default();
        for _ in 0..LOOKED_AT {
            let record = world::conversation(&mut self.random);
            self.add(&record);
            let batch = self.finish();
            most = most.max(batch.limits());
        }
        let Limits { tokens, rows, targets, patches, images, longest } = most;
        let [tokens, rows, targets, patches, images] = [tokens, rows, targets, patches, images].map(|one| one * BATCH);
        Limits { tokens, rows, targets, patches, images, longest }
    }
}

/// All weights, with the shapes that files have.
fn values(cpu: &mut Cpu, model: &Model) -> Vec<weights::Named> {
    let mut found: BTreeMap<&str, Vec<f32>> = model
        .parameters()
        .iter()
        .map(|parameter| (parameter.name.as_str(), model.value(cpu, parameter).unwrap()))
        .collect();
    let named = |(name, shape): (String, Vec<usize>)| {
        let values = found.remove(name.as_str()).unwrap();
        (name, shape, values)
    };
    weights::shapes(model.config()).into_iter().map(named).collect()
}

/// Says how many questions about pictures that it was not taught are answered as wanted.
fn judge(folder: &Path, processor: &Processor, config: &Config, seed: u64) {
    let mut random = Random::new(seed, 2);
    let records: Vec<Record> = (0..HELD_OUT).map(|_| world::picture(&mut random)).collect();
    let prompt = |record: &Record| {
        let files: Vec<PictureFile> =
            record.pictures.iter().map(|picture| PictureFile { name: &picture.name, data: &picture.data }).collect();
        processor.prompt(&record.messages[..1], &files).unwrap()
    };
    let prompts: Vec<Prompt> = records.iter().map(prompt).collect();
    let (mut cpu, checkpoint) = (Cpu::new(THREADS), Checkpoint::open(folder).unwrap());
    let limits = EngineLimits::of(&prompts, NEW_TOKENS);
    let mut engine = Engine::build(&mut cpu, config, &checkpoint, None, None, limits).unwrap();
    let end = processor.tokenizer.added_token("<|im_end|>").unwrap();
    let sampling = Sampling { max_new_tokens: NEW_TOKENS, end_tokens: vec![end], ..Sampling::default() };
    let answers = engine.generate(&mut cpu, prompts, &sampling, &mut |_| {}).unwrap();
    let mut right: BTreeMap<String, [usize; 2]> = BTreeMap::new();
    for (record, answer) in records.iter().zip(answers) {
        let said = processor.tokenizer.decode(&answer.tokens, SpecialTokens::Skip);
        let counts = right.entry(record.messages[0].words().into_owned()).or_default();
        counts[0] += usize::from(said == record.messages[1].words());
        counts[1] += 1;
    }
    for (question, [right, all]) in right {
        println!("{question} {right} of {all} right");
    }
}

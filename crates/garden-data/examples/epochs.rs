//! Goes through a dataset for some epochs as a trainer would, without a model: rows, tokens, pictures, patches. `bench/epochs.py` watches its memory.
//!
//! usage: epochs DATASET MODEL MAX_PIXELS EPOCHS BATCH_SIZE GRADIENT_ACCUMULATION THREADS PREFETCH_BYTES

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a program for measuring, which prints what it does")]

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use garden_data::{
    Ahead, BadRow, Batches, Dataset, Example, ExampleSettings, Loader, LoaderSettings, Outcome, Processor,
};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize| words[place].parse::<usize>().unwrap();
    let dataset = Arc::new(Dataset::open(Path::new(&words[0])).unwrap());
    let mut processor = Processor::open(Path::new(&words[1])).unwrap();
    processor.images.max_pixels = number(2) as u64;
    let processor = Arc::new(processor);
    let (epochs, batch_size, accumulation) = (number(3), number(4), number(5));
    let example = ExampleSettings::default();
    // The largest example sizes the buffers; here all pictures are about as large.
    let patches = |row| match Example::of(&processor, &dataset.read(row).unwrap(), &example).unwrap() {
        Outcome::Kept(example) => example.patches(),
        Outcome::Dropped(_) => 0,
    };
    let largest = (0..dataset.len().min(10)).map(patches).max().unwrap_or(0);
    let settings = LoaderSettings {
        example,
        bad_row: BadRow::Stop,
        patches: batch_size * largest,
        tokens: usize::MAX,
        ahead: Ahead { threads: number(6), bytes: number(7) },
    };
    let batches = Batches::new(dataset.len(), [].into(), batch_size, Some(42));
    let per_epoch = batches.per_epoch();
    let steps = epochs * per_epoch.div_ceil(accumulation);
    let mut loader = Loader::new(dataset, processor, batches, settings, 0..epochs * per_epoch);
    let (begin, mut step, mut pictures) = (Instant::now(), 0, 0);
    let mut sum = 0.0;
    while let Some(made) = loader.next() {
        let batch = made.unwrap();
        pictures += batch.images.grids.len();
        sum += f64::from(batch.images.pixels.iter().step_by(97).sum::<f32>());
        let in_epoch = batch.number % per_epoch + 1;
        loader.give_back(batch.images.pixels);
        if in_epoch.is_multiple_of(accumulation) || in_epoch == per_epoch {
            step += 1;
            println!("step {step}/{steps}");
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    println!("{pictures} pictures in {seconds:.1} s, checksum {sum:.3}");
}

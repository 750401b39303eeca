//! Micro-batches of a run, prepared ahead of time.
//!
//! A thread reads the rows of one micro-batch, builds examples and decodes their pictures into a buffer of patches. Buffers have the
//! size of the largest micro-batch, are all allocated before the first one, and are reused: the trainer returns each when it is done.
//! So memory is the size given by [`LoaderBuffers`] from the start, whatever the number of rows.

pub(crate) mod batches;
pub(crate) mod collate;
pub(crate) mod mixture;
pub(crate) mod normalisation;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use garden_input::{Images, Row};
use serde::{Deserialize, Serialize};

use crate::dataset::{Ahead, Dataset, Prefetch};
use crate::error::Error;
use crate::example::{Example, ExampleSettings, Outcome};
use crate::image::ImageSettings;
use crate::loader::batches::Batches;
use crate::loader::collate::Collator;
use crate::processor::Processor;

/// How to handle a row that cannot be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BadRow {
    /// End the run.
    #[default]
    Stop,
    /// Leave it out of its micro-batch and count it.
    Skip,
}

/// Loader settings.
#[derive(Clone, Debug)]
pub struct LoaderSettings {
    /// How rows become examples.
    pub example: ExampleSettings,
    /// How to handle a row that cannot be used.
    pub bad_row: BadRow,
    /// Patches of the largest micro-batch; buffers are sized for it.
    pub patches: usize,
    /// Tokens of the largest micro-batch: a row that makes one longer was changed after it was looked at.
    pub tokens: usize,
    /// Threads that read and decode, and the bytes of micro-batches that may wait.
    pub ahead: Ahead,
}

/// A micro-batch.
#[derive(Debug, Default)]
pub struct MicroBatch {
    /// Its number in the run.
    pub number: usize,
    /// Tokens and labels of each row.
    pub rows: Vec<Row>,
    /// The pictures of all rows.
    pub images: Images,
    /// Number of tokens that count in the loss.
    pub trained: usize,
    /// Rows that could not be used and were left out.
    pub skipped: Vec<SkippedRow>,
    /// Number of rows that were too long and left out.
    pub dropped: usize,
}

/// A row that could not be used, and why.
#[derive(Debug)]
pub struct SkippedRow {
    /// Its index in the dataset.
    pub row: usize,
    /// Why; the error names its place.
    pub error: Error,
}

/// Number and size of what a loader holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoaderBuffers {
    /// Number of patch buffers.
    pub buffers: usize,
    /// Bytes per buffer.
    pub buffer_bytes: usize,
    /// Micro-batches that may wait, whatever is in them.
    pub waiting: usize,
    /// Bytes of a micro-batch's tokens and labels.
    pub row_bytes: usize,
}

impl LoaderBuffers {
    /// The buffers for these settings: as many as may wait, but at least one to fill, and one held by the trainer.
    pub fn of(processor: &Processor, (patches, tokens): (usize, usize), ahead: Ahead) -> LoaderBuffers {
        LoaderBuffers::of_settings(&processor.images, (patches, tokens), ahead)
    }

    /// The buffers for the largest micro-batch's patches and tokens, computed without a model folder.
    pub fn of_settings(images: &ImageSettings, (patches, tokens): (usize, usize), ahead: Ahead) -> LoaderBuffers {
        let buffer_bytes = patches * images.patch_values() * size_of::<f32>();
        let row_bytes = 2 * tokens * size_of::<i32>();
        let waiting = match ahead.bytes.checked_div(buffer_bytes.max(row_bytes)) {
            Some(waiting) => waiting.clamp(1, most_waiting(ahead)),
            None => most_waiting(ahead),
        };
        let buffers = if buffer_bytes > 0 { waiting + 1 } else { 0 };
        LoaderBuffers { buffers, buffer_bytes, waiting, row_bytes }
    }

    /// Bytes of all buffers.
    pub fn bytes(self) -> usize {
        self.buffers * self.buffer_bytes
    }

    /// Bytes of the tokens of all micro-batches that wait, and of one that is being made by each thread.
    pub fn token_bytes(self, ahead: Ahead) -> usize {
        (self.waiting + ahead.threads.max(1)) * self.row_bytes
    }
}

/// What a micro-batch takes of the room for those that wait: more than its struct has, whose size counts at least.
const PLACE: usize = 1 << 10;

/// Maximum number of waiting micro-batches: beyond a few per thread they only cost memory.
fn most_waiting(ahead: Ahead) -> usize {
    4 * ahead.threads.max(1)
}

/// Iterates over micro-batches.
#[derive(Debug)]
pub struct Loader {
    prefetch: Prefetch<Result<MicroBatch, Error>>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    dataset: Arc<Dataset>,
    processor: Arc<Processor>,
    batches: Batches,
    settings: LoaderSettings,
    /// One per idle thread.
    collators: Mutex<Vec<Collator>>,
    /// Free buffers.
    buffers: Mutex<Vec<Vec<f32>>>,
}

impl Loader {
    /// Loads the micro-batches of this range.
    pub fn new(
        dataset: Arc<Dataset>,
        processor: Arc<Processor>,
        batches: Batches,
        settings: LoaderSettings,
        numbers: std::ops::Range<usize>,
    ) -> Loader {
        let planned = LoaderBuffers::of(&processor, (settings.patches, settings.tokens), settings.ahead);
        let threads = settings.ahead.threads.max(1);
        let collators = (0..threads).map(|_| Collator::empty(&processor, settings.patches)).collect();
        let buffers = (0..planned.buffers).map(|_| touched(planned.buffer_bytes / size_of::<f32>())).collect();
        // Waiting micro-batches are bounded by their number: one without pictures is small, but then it is not alone.
        let ahead = Ahead { threads, bytes: planned.waiting * PLACE };
        let shared = Arc::new(Shared {
            dataset,
            processor,
            batches,
            settings,
            collators: Mutex::new(collators),
            buffers: Mutex::new(buffers),
        });
        let maker = shared.clone();
        Loader { prefetch: Prefetch::new(ahead, numbers, move |number| maker.make(number), |_| PLACE), shared }
    }

    /// The next micro-batch, if it is ready.
    pub fn next_if_ready(&mut self) -> Option<Result<MicroBatch, Error>> {
        self.prefetch.next_if_ready()
    }

    /// Micro-batches that wait or are being made.
    pub fn waiting(&self) -> usize {
        self.prefetch.held_bytes() / PLACE
    }

    /// Returns the pixel buffer of a finished micro-batch for reuse.
    pub fn give_back(&self, pixels: Vec<f32>) {
        if pixels.capacity() > 0 {
            lock(&self.shared.buffers).push(pixels);
        }
    }
}

impl Iterator for Loader {
    type Item = Result<MicroBatch, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.prefetch.next()
    }
}

impl Shared {
    fn make(&self, number: usize) -> Result<MicroBatch, Error> {
        let mut collator =
            lock(&self.collators).pop().unwrap_or_else(|| Collator::empty(&self.processor, self.settings.patches));
        if let Some(buffer) = lock(&self.buffers).pop() {
            collator.give_back(buffer);
        }
        let made = self.fill(&mut collator, number);
        let (rows, images) = collator.finish();
        lock(&self.buffers).extend(collator.take_spare());
        lock(&self.collators).push(collator);
        match made {
            Ok(made) => Ok(MicroBatch { number, rows, images, ..made }),
            Err(error) => {
                lock(&self.buffers).extend((images.pixels.capacity() > 0).then_some(images.pixels));
                Err(error)
            }
        }
    }

    fn fill(&self, collator: &mut Collator, number: usize) -> Result<MicroBatch, Error> {
        let epoch = self.batches.epoch(number);
        let settings = ExampleSettings {
            selective: self.settings.example.selective.in_epoch(epoch),
            ..self.settings.example.clone()
        };
        let mut made = MicroBatch::default();
        for row in self.batches.rows(number) {
            match self.add(collator, row, &settings) {
                Ok(Some(trained)) => made.trained += trained,
                Ok(None) => made.dropped += 1,
                Err(error) if self.settings.bad_row == BadRow::Skip => made.skipped.push(SkippedRow { row, error }),
                Err(error) => return Err(error),
            }
        }
        Ok(made)
    }

    /// Adds a row; returns its number of tokens that count in the loss, or `None` if it is too long.
    fn add(&self, collator: &mut Collator, row: usize, settings: &ExampleSettings) -> Result<Option<usize>, Error> {
        let record = self.dataset.read(row)?;
        let Outcome::Kept(example) = Example::of(&self.processor, &record, settings)? else { return Ok(None) };
        let (trained, tokens) = (example.trained(), collator.tokens() + example.tokens.len());
        if tokens > self.settings.tokens {
            let most = self.settings.tokens;
            let problem = format!("makes a micro-batch of {tokens} tokens; {most} were planned before step 1");
            return Err(Error::row(&record.place, problem).with_hint("the file was changed after the run began"));
        }
        collator.add(example, &record.pictures)?;
        Ok(Some(trained))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A buffer with all pages resident: planned memory is taken before the first step, and not bit by bit.
fn touched(length: usize) -> Vec<f32> {
    let mut buffer = Vec::with_capacity(length);
    // Zeroed memory from the allocator would be pages that do not exist yet.
    buffer.resize_with(length, || std::hint::black_box(0.0));
    buffer
}

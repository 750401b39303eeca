//! Every row of a dataset, looked at before training: errors, sizes, and the largest batch that any order can bring.
//!
//! Of pictures only headers are read. Threads take stretches of rows in turn, and what they saw is put together in the order of the rows, so the
//! result does not depend on how many threads there are. What is kept does not grow with the rows but for a hash of
//! each, 8 bytes, by which duplicates are found, and 4 bytes more while they are.

mod distribution;
mod largest_batch;
mod problem;
mod row;
pub(crate) mod tally;

use std::sync::mpsc::sync_channel;

use garden_input::{Config, Limits};
use serde::Serialize;

use crate::dataset::Dataset;
use crate::example::ExampleSettings;
use crate::fingerprint::Fingerprint;
use crate::loader::batches::Batches;
use crate::processor::Processor;
use crate::survey::tally::Tally;
use largest_batch::LargestBatch;
use row::{Fit, ReadRow, RowSurvey, SurveyedPicture, Surveyor};

pub use largest_batch::RowSize;

pub use distribution::{Bar, Distribution};
pub use problem::{Problem, ProblemKind};

/// How many problems, duplicates and empty answers are kept one by one; the rest is only counted.
pub const KEPT_PROBLEMS: usize = 1000;
/// Names of ignored fields that are kept; a dataset whose rows have names of their own must not fill memory.
const KEPT_FIELDS: usize = 200;
/// Characters of such a name.
const LONGEST_NAME: usize = 80;
/// Rows that a thread looks at before the next one has its turn.
const STRETCH: usize = 32;
/// Stretches that a thread may be ahead.
const AHEAD: usize = 4;

/// What rows are looked at for.
#[derive(Clone, Copy, Debug)]
pub struct SurveySettings<'a> {
    /// How rows become examples.
    pub example: &'a ExampleSettings,
    /// Rows of a micro-batch.
    pub batch_size: usize,
    /// Whether the size of each row is kept, to know micro-batches that are cut by tokens.
    pub keeps_sizes: bool,
    /// Threads that look at rows.
    pub threads: usize,
}

/// What there is in a dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// Rows.
    pub rows: usize,
    /// What becomes of them, in numbers.
    pub tally: Tally,
    /// Rows that will not be trained, as they are bad or dropped: ascending, counted from 0.
    pub left_out: Vec<u32>,
    /// The first bad rows, [`KEPT_PROBLEMS`] at most.
    pub problems: Vec<Problem>,
    /// Bad rows. Each has one problem: the first that was found.
    pub problem_count: usize,
    /// Rows that are longer than they may be, whether they are bad for it, shrunk or dropped.
    pub too_long: usize,
    /// The first rows that say and show the same as an earlier one, [`KEPT_PROBLEMS`] at most.
    pub duplicates: Vec<Duplicate>,
    /// Rows that say and show the same as an earlier one.
    pub duplicate_count: usize,
    /// The first rows whose last answer says nothing, [`KEPT_PROBLEMS`] at most.
    pub empty_answers: Vec<u32>,
    /// Rows whose last answer says nothing.
    pub empty_answer_count: usize,
    /// Fields that rows have and nothing reads, in the order in which they were met; 200 at most.
    pub ignored: Vec<IgnoredField>,
    /// Fields of other names, counted once for each row.
    pub more_ignored: usize,
    /// The row with the most tokens.
    pub largest: Option<Largest>,
    /// What the largest micro-batch needs that any order of the rows can bring. Each number is a bound of its own: no single
    /// batch need reach all of them.
    pub limits: Limits,
    /// What each row needs, where that was asked for: nothing for those that are left out.
    pub sizes: Vec<RowSize>,
    /// The same for the same rows in the same order.
    pub fingerprint: u64,
    /// Pictures of all rows that can be read.
    pub pictures: PictureTotals,
    /// Bytes of the largest row as it is stored, and of its pictures, still compressed.
    pub row_bytes: u64,
    /// What a thread holds at most that reads rows and decodes their pictures, one after the other.
    pub reading_bytes: u64,
    /// Tokens of rows that are trained.
    pub tokens: Distribution,
    /// Image tokens of rows that are trained and have images.
    pub image_tokens: Distribution,
    /// Tokens that are asked for, of rows that are trained.
    pub trained_tokens: Distribution,
    /// Pixels of pictures, before they are resized.
    pub pixels: Distribution,
}

/// A row that is there twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duplicate {
    /// The row, counted from 0.
    pub row: u32,
    /// The first one that is the same.
    pub first: u32,
}

/// A row that is larger than all others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Largest {
    /// The row, counted from 0.
    pub row: usize,
    /// Where it stands.
    pub place: String,
    /// Its tokens.
    pub tokens: usize,
    /// Those that stand for images.
    pub image_tokens: usize,
    /// Patches of its images.
    pub patches: usize,
    /// Width and height of its pictures as they are shown, before they are resized.
    pub pictures: Vec<[usize; 2]>,
}

/// A field that rows have and nothing reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct IgnoredField {
    /// Its name, such as `id` or `messages[].content[].detail`.
    pub field: String,
    /// Rows that have it.
    pub rows: usize,
    /// Where the first of them stands.
    pub first: String,
}

/// Pictures in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PictureTotals {
    /// How many.
    pub count: u64,
    /// Their pixels.
    pub pixels: u64,
    /// Bytes of their files.
    pub bytes: u64,
    /// Pixels of the largest.
    pub largest_pixels: u64,
    /// Pixels of the largest that has to be decoded as a whole.
    pub largest_whole_pixels: u64,
}

impl Survey {
    /// Looks at every row. `progress` is told how many rows are done.
    pub fn of(
        dataset: &Dataset,
        processor: &Processor,
        config: &Config,
        settings: SurveySettings,
        mut progress: impl FnMut(usize),
    ) -> Survey {
        let looker = Surveyor { dataset, processor, config, settings: settings.example };
        let (rows, threads) = (dataset.len(), settings.threads.max(1));
        let most = LargestBatch::new(settings.batch_size);
        let mut sum = Sum { most, keeps_sizes: settings.keeps_sizes, ..Sum::default() };
        std::thread::scope(|scope| {
            // Each thread has every n-th stretch and a queue of its own: asked in turn, they give the rows in order.
            let looker = &looker;
            let queues: Vec<_> = (0..threads)
                .map(|thread| {
                    let (give, take) = sync_channel::<Vec<RowSurvey>>(AHEAD);
                    scope.spawn(move || {
                        for start in (thread * STRETCH..rows).step_by(threads * STRETCH) {
                            let looks = (start..rows.min(start + STRETCH)).map(|row| looker.survey(row)).collect();
                            if give.send(looks).is_err() {
                                return;
                            }
                        }
                    });
                    take
                })
                .collect();
            for turn in 0..rows.div_ceil(STRETCH) {
                // A thread that panicked ends the scope with its panic.
                let Ok(looks) = queues[turn % threads].recv() else { break };
                looks.into_iter().for_each(|look| sum.add(look));
                progress(sum.survey.rows);
            }
        });
        sum.finish()
    }
}

impl Survey {
    /// What the largest of these micro-batches needs; the sizes of rows have to be known.
    pub fn limits_of(&self, batches: &Batches) -> Limits {
        let of_batch = |number: usize| {
            let rows = batches.rows(number);
            let sizes = rows.iter().map(|row| self.sizes[*row]);
            sizes
                .fold(Limits { longest: self.limits.longest, ..Limits::default() }, |sum, size| sum.plus(size.limits()))
        };
        (0..batches.per_epoch()).map(of_batch).fold(Limits::default(), Limits::max)
    }
}

/// A survey under way.
#[derive(Default)]
struct Sum {
    survey: Survey,
    most: LargestBatch,
    keeps_sizes: bool,
    /// One for each row; that of a row that could not be read means nothing.
    fingerprints: Vec<u64>,
}

impl Sum {
    fn add(&mut self, surveyed: RowSurvey) {
        let survey = &mut self.survey;
        let row = survey.rows;
        survey.rows += 1;
        if self.keeps_sizes {
            survey.sizes.push(surveyed.size());
        }
        let bad = match surveyed {
            RowSurvey::Unread(problem) => {
                self.fingerprints.push(0);
                Some(problem)
            }
            RowSurvey::Read(seen) => {
                self.fingerprints.push(seen.fingerprint);
                self.add_seen(row, seen)
            }
        };
        let Some(problem) = bad else { return };
        let survey = &mut self.survey;
        survey.problem_count += 1;
        survey.too_long += usize::from(problem.kind == ProblemKind::TooLong);
        survey.left_out.push(row as u32);
        if survey.problems.len() < KEPT_PROBLEMS {
            survey.problems.push(problem);
        }
    }

    /// Adds a row that could be read; what is wrong with it comes back.
    fn add_seen(&mut self, row: usize, seen: ReadRow) -> Option<Problem> {
        let survey = &mut self.survey;
        survey.row_bytes = survey.row_bytes.max(seen.bytes);
        survey.reading_bytes = survey.reading_bytes.max(seen.reading_bytes);
        for field in seen.ignored.iter().map(|name| printable(name)) {
            match survey.ignored.iter().position(|known| known.field == field) {
                Some(known) => survey.ignored[known].rows += 1,
                None if survey.ignored.len() < KEPT_FIELDS => {
                    survey.ignored.push(IgnoredField { field, rows: 1, first: seen.place.clone() });
                }
                None => survey.more_ignored += 1,
            }
        }
        for picture in &seen.pictures {
            survey.pictures.add(picture);
            survey.pixels.add(picture.pixels());
        }
        match seen.fit {
            Fit::Bad(problem) => return Some(problem),
            Fit::Dropped => {
                survey.tally.dropped += 1;
                survey.too_long += 1;
                survey.left_out.push(row as u32);
            }
            Fit::Kept { tally, limits, place } => {
                survey.tally = survey.tally.plus(&tally);
                survey.too_long += tally.shrunk;
                survey.tokens.add(tally.tokens as u64);
                survey.trained_tokens.add(tally.trained as u64);
                if limits.images > 0 {
                    survey.image_tokens.add(tally.image_tokens as u64);
                }
                self.most.add(limits);
                if survey.largest.as_ref().is_none_or(|largest| largest.tokens < tally.tokens) {
                    let pictures = seen.pictures.iter().map(|picture| [picture.width, picture.height]).collect();
                    let (tokens, image_tokens, patches) = (tally.tokens, tally.image_tokens, limits.patches);
                    survey.largest = Some(Largest { row, place, tokens, image_tokens, patches, pictures });
                }
                if seen.has_empty_answer {
                    survey.empty_answer_count += 1;
                    if survey.empty_answers.len() < KEPT_PROBLEMS {
                        survey.empty_answers.push(row as u32);
                    }
                }
            }
        }
        None
    }

    fn finish(self) -> Survey {
        let Sum { mut survey, most, fingerprints, .. } = self;
        survey.limits = most.limits();
        let mut made = Fingerprint::default();
        fingerprints.iter().for_each(|row| made.number(*row));
        survey.fingerprint = made.value();
        let mut duplicates = duplicates(&fingerprints, &survey.left_out);
        survey.duplicate_count = duplicates.len();
        duplicates.truncate(KEPT_PROBLEMS);
        survey.duplicates = duplicates;
        survey
    }
}

/// A name that comes from outside: nothing in it moves a terminal's cursor, and it is not long.
fn printable(name: &str) -> String {
    let mut text = String::new();
    for character in name.chars().take(LONGEST_NAME) {
        if character.is_control() { text.extend(character.escape_default()) } else { text.push(character) }
    }
    if name.chars().nth(LONGEST_NAME).is_some() { text + "..." } else { text }
}

/// Rows that are the same as an earlier one, ascending.
fn duplicates(fingerprints: &[u64], left_out: &[u32]) -> Vec<Duplicate> {
    let fingerprint = |row: u32| fingerprints[row as usize];
    let mut rows: Vec<u32> =
        (0..fingerprints.len() as u32).filter(|row| left_out.binary_search(row).is_err()).collect();
    rows.sort_unstable_by_key(|row| (fingerprint(*row), *row));
    let same = rows.chunk_by(|one, other| fingerprint(*one) == fingerprint(*other));
    let mut found: Vec<Duplicate> =
        same.flat_map(|same| same[1..].iter().map(|row| Duplicate { row: *row, first: same[0] })).collect();
    found.sort_unstable_by_key(|duplicate| duplicate.row);
    found
}

impl PictureTotals {
    fn add(&mut self, picture: &SurveyedPicture) {
        let pixels = picture.pixels();
        self.count += 1;
        self.pixels += pixels;
        self.bytes += picture.bytes;
        self.largest_pixels = self.largest_pixels.max(pixels);
        if picture.is_whole {
            self.largest_whole_pixels = self.largest_whole_pixels.max(pixels);
        }
    }
}

//! Surveys every row of a dataset before training: errors, sizes, and the largest batch that any order can produce.
//!
//! Only the headers of pictures are read. Threads take runs of rows in turn, and their results are merged in row order, so the
//! outcome does not depend on the number of threads. Memory does not grow with the number of rows except for a hash of
//! each, 8 bytes, to find duplicates, and 4 more bytes while they are searched.

mod distribution;
mod largest_batch;
mod portions;
mod problem;
mod row;
pub(crate) mod tally;

use std::sync::mpsc::sync_channel;

use garden_input::Limits;
use serde::Serialize;

use crate::dataset::Dataset;
use crate::example::ExampleSettings;
use crate::fingerprint::Fingerprint;
use crate::image::Picture;
use crate::loader::batches::Batches;
use crate::loader::mixture::Mixture;
use crate::processor::Processor;
use crate::survey::tally::Tally;
use largest_batch::{LargestBatch, LargestRows};
use portions::Portions;
use row::{Fit, ReadRow, RowSurvey, SurveyedPicture, Surveyor};

pub use largest_batch::RowSize;

pub use distribution::{Bar, Distribution};
pub use problem::{Problem, ProblemKind};

/// Maximum number of problems, duplicates and empty answers listed individually; the rest are only counted.
pub const KEPT_PROBLEMS: usize = 1000;
/// Maximum number of ignored field names listed; a dataset with unique names in each row must not fill memory.
const KEPT_FIELDS: usize = 200;
/// Maximum characters of such a name.
const LONGEST_NAME: usize = 80;
/// Rows that a thread surveys before the next thread's turn.
const STRETCH: usize = 32;
/// Runs of rows that a thread may be ahead.
const AHEAD: usize = 4;

/// Survey settings.
#[derive(Clone, Copy, Debug)]
pub struct SurveySettings<'a> {
    /// How rows become examples.
    pub example: &'a ExampleSettings,
    /// Rows per micro-batch.
    pub batch_size: usize,
    /// Whether to keep the size of each row, needed for micro-batches cut by tokens.
    pub keeps_sizes: bool,
    /// Whether to decode every picture: only that finds damage behind a header.
    pub decodes: bool,
    /// Number of threads.
    pub threads: usize,
}

/// Survey of a dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// Number of rows.
    pub rows: usize,
    /// Counts over all rows.
    pub tally: Tally,
    /// Rows that will not be trained on because they are bad or dropped: ascending indices.
    pub left_out: Vec<u32>,
    /// The first bad rows, [`KEPT_PROBLEMS`] at most.
    pub problems: Vec<Problem>,
    /// Number of bad rows. Each has one problem: the first found.
    pub problem_count: usize,
    /// Rows over the length limit, whether rejected, shrunk or dropped.
    pub too_long: usize,
    /// The first rows equal to an earlier one, [`KEPT_PROBLEMS`] at most.
    pub duplicates: Vec<Duplicate>,
    /// Number of rows equal to an earlier one.
    pub duplicate_count: usize,
    /// The first rows with an empty last answer, [`KEPT_PROBLEMS`] at most.
    pub empty_answers: Vec<u32>,
    /// Number of rows with an empty last answer.
    pub empty_answer_count: usize,
    /// Unused fields, in the order found; 200 at most.
    pub ignored: Vec<IgnoredField>,
    /// Occurrences of further unused fields, counted once per row.
    pub more_ignored: usize,
    /// The row with the most tokens.
    pub largest: Option<Largest>,
    /// Limits of the largest micro-batch that any order of the rows can produce. Each number is a separate bound: no single
    /// batch need reach all of them.
    pub limits: Limits,
    /// Limits of each row, if requested: zero for rows that are left out.
    pub sizes: Vec<RowSize>,
    /// Equal for equal rows in the same order.
    pub fingerprint: u64,
    /// The datasets that it was joined from, in their order.
    pub portions: Vec<SurveyedPortion>,
    /// Totals over the pictures of all readable rows.
    pub pictures: PictureTotals,
    /// Pictures with several frames or pages, of which the first is used.
    pub several_frames: PartlyUsed,
    /// Pictures in gray of 16 bits, whose values above 255 become white.
    pub clipped_gray: PartlyUsed,
    /// Bytes of the largest stored row with its compressed pictures.
    pub row_bytes: u64,
    /// Peak bytes of a thread that reads rows and decodes their pictures one after the other.
    pub reading_bytes: u64,
    /// Tokens per row, of rows trained on.
    pub tokens: Distribution,
    /// Image tokens per row, of rows trained on that have images.
    pub image_tokens: Distribution,
    /// Tokens that count in the loss per row, of rows trained on.
    pub trained_tokens: Distribution,
    /// Pixels per picture, before resizing.
    pub pixels: Distribution,
}

/// Survey of one of several datasets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SurveyedPortion {
    /// Number of rows.
    pub rows: usize,
    /// Rows that will be trained on.
    pub kept: usize,
    /// Number of bad rows.
    pub bad: usize,
    /// Tokens of the rows that will be trained on.
    pub tokens: u64,
    /// Equal for equal rows in the same order.
    pub fingerprint: u64,
    largest: LargestRows,
}

/// A duplicate row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duplicate {
    /// The row's index.
    pub row: u32,
    /// The first row equal to it.
    pub first: u32,
}

/// The largest row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Largest {
    /// The row's index.
    pub row: usize,
    /// The row's position.
    pub place: String,
    /// Number of tokens.
    pub tokens: usize,
    /// Number of image tokens.
    pub image_tokens: usize,
    /// Number of patches.
    pub patches: usize,
    /// Width and height of its pictures as displayed, before resizing.
    pub pictures: Vec<[usize; 2]>,
}

/// An unused field.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct IgnoredField {
    /// Its name, such as `id` or `messages[].content[].detail`.
    pub field: String,
    /// Number of rows that have it.
    pub rows: usize,
    /// Position of the first such row.
    pub first: String,
}

/// Pictures of which not everything is used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PartlyUsed {
    /// Number of pictures.
    pub pictures: usize,
    /// Position of the first row with one; empty if there is none.
    pub first: String,
}

/// Totals over pictures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PictureTotals {
    /// Number of pictures.
    pub count: u64,
    /// Total pixels.
    pub pixels: u64,
    /// Total bytes of the files.
    pub bytes: u64,
    /// Pixels of the largest.
    pub largest_pixels: u64,
    /// Pixels of the largest that must be decoded whole.
    pub largest_whole_pixels: u64,
}

impl Survey {
    /// Surveys every row. `progress` receives the number of rows done.
    pub fn of(
        dataset: &Dataset,
        processor: &Processor,
        settings: SurveySettings,
        mut progress: impl FnMut(usize),
    ) -> Survey {
        let looker = Surveyor { dataset, processor, settings: settings.example, decodes: settings.decodes };
        let (rows, threads) = (dataset.len(), settings.threads.max(1));
        let most = LargestBatch::new(settings.batch_size);
        let portions = Portions::of(dataset, settings.batch_size);
        let mut sum = Sum { most, portions, keeps_sizes: settings.keeps_sizes, ..Sum::default() };
        std::thread::scope(|scope| {
            // Each thread takes every n-th run of rows and has its own queue: read in turn, the queues give the rows in order.
            let looker = &looker;
            let queues: Vec<_> = (0..threads)
                .map(|thread| {
                    let (give, take) = sync_channel::<Vec<RowSurvey>>(AHEAD);
                    scope.spawn(move || {
                        let mut picture = Picture::default();
                        for start in (thread * STRETCH..rows).step_by(threads * STRETCH) {
                            let looks = (start..rows.min(start + STRETCH))
                                .map(|row| looker.survey(row, &mut picture))
                                .collect();
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
    /// Limits of the largest micro-batch that a mixture of the datasets can produce.
    pub fn limits_of_mixture(&self, mixture: &Mixture, batch_size: usize) -> Limits {
        let largest: Vec<LargestRows> = self.portions.iter().map(|portion| portion.largest.clone()).collect();
        LargestBatch::limits_of_mixed(&largest, &mixture.most_in(batch_size), batch_size)
    }

    /// Limits of the largest of these micro-batches; needs the sizes of rows.
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

/// A survey in progress.
#[derive(Default)]
struct Sum {
    survey: Survey,
    most: LargestBatch,
    portions: Portions,
    keeps_sizes: bool,
    /// One per row; meaningless for a row that could not be read.
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
        self.portions.add(&surveyed);
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

    /// Adds a readable row; returns its problem, if any.
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
            survey.several_frames.count(picture.used.is_first_of_several, &seen.place);
            survey.clipped_gray.count(picture.used.is_clipped_gray, &seen.place);
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
        let Sum { mut survey, most, portions, fingerprints, .. } = self;
        survey.limits = most.limits();
        survey.portions = portions.finish(&fingerprints);
        survey.fingerprint = Fingerprint::of_numbers(&fingerprints);
        let mut duplicates = duplicates(&fingerprints, &survey.left_out);
        survey.duplicate_count = duplicates.len();
        duplicates.truncate(KEPT_PROBLEMS);
        survey.duplicates = duplicates;
        survey
    }
}

/// An untrusted name, shortened and without terminal control characters.
fn printable(name: &str) -> String {
    let mut text = String::new();
    for character in name.chars().take(LONGEST_NAME) {
        if character.is_control() { text.extend(character.escape_default()) } else { text.push(character) }
    }
    if name.chars().nth(LONGEST_NAME).is_some() { text + "..." } else { text }
}

/// Rows equal to an earlier one, ascending.
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

impl PartlyUsed {
    fn count(&mut self, is_one: bool, place: &str) {
        if is_one && self.pictures == 0 {
            self.first = place.to_string();
        }
        self.pictures += usize::from(is_one);
    }
}

impl Survey {
    /// A sentence for each kind of picture of which not everything is used.
    pub fn picture_words(&self) -> Vec<String> {
        let kinds = [
            (&self.several_frames, "several frames or pages: the first one is used"),
            (&self.clipped_gray, "16-bit gray: values above 255 become white, as in Pillow's `convert(\"RGB\")`"),
        ];
        let there = kinds.into_iter().filter(|(kind, _)| kind.pictures > 0);
        there
            .map(|(kind, what)| {
                let pictures = if kind.pictures == 1 {
                    "1 picture has".to_string()
                } else {
                    format!("{} pictures have", kind.pictures)
                };
                format!("{pictures} {what}, first {}", kind.first)
            })
            .collect()
    }
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

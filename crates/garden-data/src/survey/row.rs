//! One row, surveyed: errors, sizes and memory, from headers of its pictures alone.

use garden_input::{Config, Limits};

use super::largest_batch::RowSize;
use super::problem::Problem;
use crate::dataset::Dataset;
use crate::error::Error;
use crate::example::length::SizedPicture;
use crate::example::outline::{Outline, PictureOutline};
use crate::example::{Example, ExampleSettings, Outcome};
use crate::processor::Processor;
use crate::survey::tally::Tally;

/// Everything that surveying a row needs; each thread has a copy.
#[derive(Clone, Copy)]
pub(super) struct Surveyor<'a> {
    pub dataset: &'a Dataset,
    pub processor: &'a Processor,
    pub config: &'a Config,
    pub settings: &'a ExampleSettings,
}

/// A row after the survey.
pub(super) enum RowSurvey {
    /// It cannot be read.
    Unread(Problem),
    /// It can be read.
    Read(ReadRow),
}

/// The contents of a row that can be read.
pub(super) struct ReadRow {
    pub place: String,
    pub fingerprint: u64,
    /// As it is stored, with its pictures still compressed.
    pub bytes: u64,
    /// The most bytes that a thread holds while it reads the row.
    pub reading_bytes: u64,
    pub pictures: Vec<SurveyedPicture>,
    pub has_empty_answer: bool,
    /// Fields that neither we nor the template read, without repetition.
    pub ignored: Vec<String>,
    pub fit: Fit,
}

/// A picture of a row.
pub(super) struct SurveyedPicture {
    pub is_whole: bool,
    pub width: usize,
    pub height: usize,
    pub bytes: u64,
}

/// Whether a row can be trained.
pub(super) enum Fit {
    /// It can, within these limits.
    Kept { tally: Tally, limits: Limits, place: String },
    /// Left out: too long.
    Dropped,
    /// It cannot be trained.
    Bad(Problem),
}

impl RowSurvey {
    /// What the row needs; nothing if it is not trained.
    pub(super) fn size(&self) -> RowSize {
        match self {
            RowSurvey::Read(ReadRow { fit: Fit::Kept { limits, .. }, .. }) => RowSize::of(limits),
            _ => RowSize::default(),
        }
    }
}

impl SurveyedPicture {
    pub(super) fn pixels(&self) -> u64 {
        self.width as u64 * self.height as u64
    }
}

impl Surveyor<'_> {
    pub(super) fn survey(&self, row: usize) -> RowSurvey {
        let mut outline = match self.dataset.outline(row, self.processor.max_decoded_pixels) {
            Ok(outline) => outline,
            Err(error) => return RowSurvey::Unread(Problem::of(row, self.dataset.place(row), error)),
        };
        let fingerprint = outline.fingerprint();
        let has_empty_answer = outline.has_empty_answer();
        let fit = self.fit(row, &outline);
        let seen = |picture: PictureOutline| {
            let PictureOutline { width, height, is_whole, bytes, .. } = picture;
            SurveyedPicture { width, height, is_whole, bytes }
        };
        let mut ignored = std::mem::take(&mut outline.ignored);
        if matches!(fit, Fit::Kept { .. }) {
            ignored.extend(Example::unused_fields(self.processor, outline.chat(), self.settings));
        }
        ignored.sort_unstable();
        ignored.dedup();
        let (bytes, reading_bytes) = (outline.bytes(), outline.reading_bytes());
        let (place, pictures) = (outline.place, outline.pictures.into_iter().map(seen).collect());
        RowSurvey::Read(ReadRow { place, fingerprint, bytes, reading_bytes, pictures, has_empty_answer, ignored, fit })
    }

    fn fit(&self, row: usize, outline: &Outline) -> Fit {
        match self.outcome(outline) {
            Ok(Outcome::Dropped(_)) => Fit::Dropped,
            Ok(Outcome::Kept(example)) => {
                let tally = Tally::of(&example);
                let limits = Limits::of_row(self.config, tally.tokens, tally.trained, &example.grids);
                Fit::Kept { tally, limits, place: example.place }
            }
            Err(error) => Fit::Bad(Problem::of(row, outline.place.clone(), error)),
        }
    }

    fn outcome(&self, outline: &Outline) -> Result<Outcome, Error> {
        let pictures: Vec<SizedPicture> = outline.pictures.iter().map(PictureOutline::sized).collect();
        Example::of_sized(self.processor, outline.said(), &pictures, self.settings)
    }
}

//! Surveys one row: errors, sizes and memory, from the headers of its pictures alone.

use garden_input::Limits;

use super::largest_batch::RowSize;
use super::problem::Problem;
use crate::dataset::Dataset;
use crate::error::Error;
use crate::example::length::SizedPicture;
use crate::example::outline::{Outline, PictureOutline};
use crate::example::{Example, ExampleSettings, Outcome};
use crate::image::{Picture, UsedPart};
use crate::processor::Processor;
use crate::survey::tally::Tally;

/// Context for surveying rows; each thread has a copy.
#[derive(Clone, Copy)]
pub(super) struct Surveyor<'a> {
    pub dataset: &'a Dataset,
    pub processor: &'a Processor,
    pub settings: &'a ExampleSettings,
    /// Whether to decode every picture.
    pub decodes: bool,
}

/// The survey of a row.
pub(super) enum RowSurvey {
    /// The row cannot be read.
    Unread(Problem),
    /// The row can be read.
    Read(ReadRow),
}

/// Survey of a readable row.
pub(super) struct ReadRow {
    pub place: String,
    pub fingerprint: u64,
    /// Bytes as stored, with compressed pictures.
    pub bytes: u64,
    /// Peak bytes of a thread while it reads the row.
    pub reading_bytes: u64,
    pub pictures: Vec<SurveyedPicture>,
    pub has_empty_answer: bool,
    /// Fields read neither by us nor by the template, without repetition.
    pub ignored: Vec<String>,
    pub fit: Fit,
}

/// A picture of a row.
pub(super) struct SurveyedPicture {
    pub is_whole: bool,
    pub width: usize,
    pub height: usize,
    pub bytes: u64,
    pub used: UsedPart,
}

/// Whether a row can be trained on.
pub(super) enum Fit {
    /// Usable, within these limits.
    Kept { tally: Tally, limits: Limits, place: String },
    /// Left out as too long.
    Dropped,
    /// Unusable.
    Bad(Problem),
}

impl RowSurvey {
    /// The row's size; zero if it is not trained on.
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
    /// Surveys a row; `picture` is memory for decoding.
    pub(super) fn survey(&self, row: usize, picture: &mut Picture) -> RowSurvey {
        let mut outline = match self.dataset.outline(row, self.processor.max_decoded_pixels) {
            Ok(outline) => outline,
            Err(error) => return RowSurvey::Unread(Problem::of(row, self.dataset.place(row), error)),
        };
        let fingerprint = outline.fingerprint();
        let has_empty_answer = outline.has_empty_answer();
        let mut fit = self.fit(row, &outline);
        if self.decodes
            && matches!(fit, Fit::Kept { .. })
            && let Err(error) = self.decode(row, picture)
        {
            fit = Fit::Bad(Problem::of(row, outline.place.clone(), error));
        }
        let seen = |picture: PictureOutline| {
            let PictureOutline { width, height, is_whole, bytes, used, .. } = picture;
            SurveyedPicture { width, height, is_whole, bytes, used }
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

    /// Decodes the pictures of a row, one after the other into the same memory.
    fn decode(&self, row: usize, picture: &mut Picture) -> Result<(), Error> {
        let record = self.dataset.read(row)?;
        record
            .pictures
            .iter()
            .try_for_each(|stored| picture.decode(&stored.name, &stored.data, self.processor.max_decoded_pixels))
    }

    fn fit(&self, row: usize, outline: &Outline) -> Fit {
        match self.outcome(outline) {
            Ok(Outcome::Dropped(_)) => Fit::Dropped,
            Ok(Outcome::Kept(example)) => {
                let tally = Tally::of(&example);
                let limits = Limits::of_row(tally.tokens, tally.trained, &example.grids);
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

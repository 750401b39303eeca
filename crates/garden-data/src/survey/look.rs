//! What is seen of one row.

use garden_input::{Config, Limits};

use super::most::RowSize;
use super::problem::Problem;
use crate::dataset::Dataset;
use crate::error::Error;
use crate::example::length::SizedPicture;
use crate::example::outline::{Outline, PictureOutline};
use crate::example::{Example, ExampleSettings, Outcome};
use crate::processor::Processor;
use crate::survey::tally::Tally;

/// Who looks.
#[derive(Clone, Copy)]
pub(super) struct Looker<'a> {
    pub dataset: &'a Dataset,
    pub processor: &'a Processor,
    pub config: &'a Config,
    pub settings: &'a ExampleSettings,
}

/// A row that was looked at.
pub(super) enum Look {
    /// It cannot be read.
    Unread(Problem),
    /// It can.
    Read(Seen),
}

/// What there is in a row.
pub(super) struct Seen {
    pub place: String,
    pub fingerprint: u64,
    /// As it is stored, with its pictures still compressed.
    pub bytes: u64,
    /// What a thread holds at most that reads it.
    pub reading_bytes: u64,
    pub pictures: Vec<SeenPicture>,
    pub has_empty_answer: bool,
    /// Fields that are not read by us or by the template; each once.
    pub ignored: Vec<String>,
    pub fit: Fit,
}

/// A picture of a row.
pub(super) struct SeenPicture {
    pub is_whole: bool,
    pub width: usize,
    pub height: usize,
    pub bytes: u64,
}

/// Whether a row can be trained.
pub(super) enum Fit {
    /// It is, and needs so much.
    Kept { tally: Tally, limits: Limits, place: String },
    /// It is too long, and left out.
    Dropped,
    /// It cannot.
    Bad(Problem),
}

impl Look {
    /// What the row needs; nothing if it is not trained.
    pub(super) fn size(&self) -> RowSize {
        match self {
            Look::Read(Seen { fit: Fit::Kept { limits, .. }, .. }) => RowSize::of(limits),
            _ => RowSize::default(),
        }
    }
}

impl SeenPicture {
    pub(super) fn pixels(&self) -> u64 {
        self.width as u64 * self.height as u64
    }
}

impl Looker<'_> {
    pub(super) fn look(&self, row: usize) -> Look {
        let mut outline = match self.dataset.outline(row, self.processor.max_decoded_pixels) {
            Ok(outline) => outline,
            Err(error) => return Look::Unread(Problem::of(row, self.dataset.place(row), error)),
        };
        let fingerprint = outline.fingerprint();
        let has_empty_answer = outline.has_empty_answer();
        let fit = self.fit(row, &outline);
        let seen = |picture: PictureOutline| {
            let PictureOutline { width, height, is_whole, bytes, .. } = picture;
            SeenPicture { width, height, is_whole, bytes }
        };
        let mut ignored = std::mem::take(&mut outline.ignored);
        if matches!(fit, Fit::Kept { .. }) {
            ignored.extend(Example::unused_fields(self.processor, outline.chat(), self.settings));
        }
        ignored.sort_unstable();
        ignored.dedup();
        let (bytes, reading_bytes) = (outline.bytes(), outline.reading_bytes());
        let (place, pictures) = (outline.place, outline.pictures.into_iter().map(seen).collect());
        Look::Read(Seen { place, fingerprint, bytes, reading_bytes, pictures, has_empty_answer, ignored, fit })
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

//! Counts over rows: rows kept, and their tokens by kind.

use serde::Serialize;

use crate::example::boxes::BoxSource;
use crate::example::{Example, Outcome};

/// Counts over rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Rows trained on.
    pub kept: usize,
    /// Kept rows whose images had to be shrunk.
    pub shrunk: usize,
    /// Rows left out as too long.
    pub dropped: usize,
    /// Tokens of kept rows.
    pub tokens: usize,
    /// Image tokens.
    pub image_tokens: usize,
    /// Tokens that count in the loss.
    pub trained: usize,
    /// Answer tokens, before selective loss.
    pub answer_tokens: usize,
    /// Answer tokens masked by selective loss.
    pub masked: usize,
    /// Boxes and points from `objects`.
    pub boxes: usize,
    /// Boxes and points in texts, left unchanged.
    pub boxes_in_texts: usize,
    /// Boxes and points in texts, converted.
    pub boxes_converted: usize,
}

impl Tally {
    /// The counts of one kept row.
    pub fn of(example: &Example) -> Tally {
        let boxes = |source: BoxSource| example.boxes.iter().filter(|one| one.source == source).count();
        Tally {
            kept: 1,
            shrunk: usize::from(example.shrunk_to.is_some()),
            dropped: 0,
            tokens: example.tokens.len(),
            image_tokens: example.image_tokens,
            trained: example.trained(),
            answer_tokens: example.answer_tokens,
            masked: example.masked,
            boxes: boxes(BoxSource::Objects),
            boxes_in_texts: boxes(BoxSource::Text),
            boxes_converted: boxes(BoxSource::Converted),
        }
    }

    /// Counts a row.
    pub fn add(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Kept(example) => *self = self.plus(&Tally::of(example)),
            Outcome::Dropped(_) => self.dropped += 1,
        }
    }

    /// The sum of both.
    pub fn plus(&self, other: &Tally) -> Tally {
        Tally {
            kept: self.kept + other.kept,
            shrunk: self.shrunk + other.shrunk,
            dropped: self.dropped + other.dropped,
            tokens: self.tokens + other.tokens,
            image_tokens: self.image_tokens + other.image_tokens,
            trained: self.trained + other.trained,
            answer_tokens: self.answer_tokens + other.answer_tokens,
            masked: self.masked + other.masked,
            boxes: self.boxes + other.boxes,
            boxes_in_texts: self.boxes_in_texts + other.boxes_in_texts,
            boxes_converted: self.boxes_converted + other.boxes_converted,
        }
    }

    /// A sentence for each kind of box; empty if there are none.
    pub fn box_words(&self) -> Vec<String> {
        let counted = |count: usize| if count == 1 { "1 box".to_string() } else { format!("{count} boxes") };
        let kinds = [
            (self.boxes, "of `objects`: written in pixels of the resized images"),
            (
                self.boxes_converted,
                "in texts (`bbox_2d`): converted from pixels of the original images to pixels of the resized ones",
            ),
            (
                self.boxes_in_texts,
                "in texts (`bbox_2d`): not converted, assumed to be pixels of the resized images; `--bbox-2d original` converts from pixels of the original ones",
            ),
        ];
        let there = kinds.into_iter().filter(|(count, _)| *count > 0);
        there.map(|(count, what)| format!("{} {what}", counted(count))).collect()
    }

    /// The share of answer tokens masked by selective loss, if there are answers.
    pub fn masked_share(&self) -> Option<f64> {
        (self.answer_tokens > 0).then(|| self.masked as f64 / self.answer_tokens as f64)
    }
}

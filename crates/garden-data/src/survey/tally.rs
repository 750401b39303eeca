//! Counts over many rows: how many were kept, and of what their tokens are.

use serde::Serialize;

use crate::example::boxes::BoxSource;
use crate::example::{Example, Outcome};

/// What became of rows, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Rows that are trained.
    pub kept: usize,
    /// Those of them whose images had to be made smaller.
    pub shrunk: usize,
    /// Rows that were left out because they are too long.
    pub dropped: usize,
    /// Tokens of rows that are trained.
    pub tokens: usize,
    /// Those that stand for images.
    pub image_tokens: usize,
    /// Those that are asked for.
    pub trained: usize,
    /// Tokens of answers, before structure was taken out of them.
    pub answer_tokens: usize,
    /// Those of them that were taken out.
    pub masked: usize,
    /// Boxes and points that came from `objects`.
    pub boxes: usize,
    /// Those that stand in texts and stay as they are.
    pub boxes_in_texts: usize,
    /// Those that stood in texts and were converted.
    pub boxes_converted: usize,
}

impl Tally {
    /// A row that is trained.
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

    /// The rows of both.
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

    /// What was done with boxes, a sentence for each kind of them; empty where there are none.
    pub fn box_words(&self) -> Vec<String> {
        let counted = |count: usize| if count == 1 { "1 box".to_string() } else { format!("{count} boxes") };
        let kinds = [
            (self.boxes, "of `objects`: written in pixels of the resized images"),
            (
                self.boxes_converted,
                "in texts (`bbox_2d`): converted from pixels of the original images to those of the resized ones",
            ),
            (
                self.boxes_in_texts,
                "in texts (`bbox_2d`): not converted, taken for pixels of the resized images; `--bbox-2d original` converts from pixels of the original ones",
            ),
        ];
        let there = kinds.into_iter().filter(|(count, _)| *count > 0);
        there.map(|(count, what)| format!("{} {what}", counted(count))).collect()
    }

    /// The share of answer tokens that selective loss takes out, if there are answers.
    pub fn masked_share(&self) -> Option<f64> {
        (self.answer_tokens > 0).then(|| self.masked as f64 / self.answer_tokens as f64)
    }
}

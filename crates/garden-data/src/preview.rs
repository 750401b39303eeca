//! A row as the model sees it: the text of its tokens, images folded, and what is trained told apart from what is not.

use std::fmt::Write;

use garden_input::IGNORED;
use serde::Serialize;

use crate::example::Example;
use crate::example::boxes::{BoxSource, WrittenBox};
use crate::processor::Processor;
use crate::tokenizer::SpecialTokens;

/// How kinds of tokens are told apart in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    /// Colours of a terminal: trained tokens green, those that selective loss took out yellow, images cyan.
    Ansi,
    /// `«trained»`.
    Marks,
}

/// What tokens of a row are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PieceKind {
    /// Read, and not trained.
    Context,
    /// Trained.
    Trained,
    /// Of an answer, and not trained.
    Masked,
    /// An image.
    Image,
}

/// Neighbouring tokens of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Piece {
    /// What they are.
    pub kind: PieceKind,
    /// What they say; of an image, its columns and rows in tokens.
    pub text: String,
    /// How many they are.
    pub tokens: usize,
}

/// A row as the model sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Preview {
    /// Where it stands.
    pub place: String,
    /// All its tokens.
    pub pieces: Vec<Piece>,
    /// How many there are.
    pub tokens: usize,
    /// Those that stand for images.
    pub image_tokens: usize,
    /// Those whose prediction is trained.
    pub trained: usize,
    /// Tokens of answers that are trained, before structure was taken out of them.
    pub answer_tokens: usize,
    /// Those of them that were taken out.
    pub masked: usize,
    /// The bound on pixels that took the place of `max_pixels`, where the pictures had to be made smaller.
    pub shrunk_to: Option<u64>,
    /// Width and height of each picture as the model sees it.
    pub pictures: Vec<[usize; 2]>,
    /// Boxes and points of its texts.
    pub boxes: Vec<WrittenBox>,
}

impl Preview {
    /// Shows an example.
    pub fn of(processor: &Processor, example: &Example) -> Preview {
        let patch = processor.images.patch;
        let mut pieces = Vec::new();
        let mut grids = example.grids.iter();
        let mut start = 0;
        while start < example.tokens.len() {
            let kind = kind_of(processor, example, start);
            let length = match kind {
                // Images that stand side by side are still two.
                PieceKind::Image => grids.next().map_or(1, |grid| processor.images.tokens(*grid)),
                _ => (start..example.tokens.len())
                    .take_while(|place| kind_of(processor, example, *place) == kind)
                    .count(),
            };
            let tokens = &example.tokens[start..(start + length).min(example.tokens.len())];
            let text = match kind {
                PieceKind::Image => {
                    let grid = example.grids[example.grids.len() - grids.len() - 1];
                    let (columns, rows) = (grid[2] / processor.images.merge, grid[1] / processor.images.merge);
                    format!("<image {columns} x {rows} = {length} tokens>")
                }
                _ => processor.tokenizer.decode(tokens, SpecialTokens::Keep),
            };
            pieces.push(Piece { kind, text, tokens: tokens.len() });
            start += length;
        }
        Preview {
            place: example.place.clone(),
            pieces,
            tokens: example.tokens.len(),
            image_tokens: example.image_tokens,
            trained: example.trained(),
            answer_tokens: example.answer_tokens,
            masked: example.masked,
            shrunk_to: example.shrunk_to,
            pictures: example.grids.iter().map(|grid| [grid[2], grid[1]].map(|side| side * patch)).collect(),
            boxes: example.boxes.clone(),
        }
    }

    /// The row as a text for people, with a line of numbers behind it.
    pub fn text(&self, paint: Paint) -> String {
        let mut text = String::new();
        for piece in &self.pieces {
            let (before, after) = paint.around(piece.kind);
            // Marks stand before a line end, not alone on the next line.
            let words = piece.text.trim_end_matches('\n');
            text += before;
            push_printable(&mut text, words);
            text += after;
            text += &piece.text[words.len()..];
        }
        if !text.ends_with('\n') {
            text.push('\n');
        }
        text + "\n" + &self.numbers() + "\n" + &self.box_lines()
    }

    /// Where the boxes come from, a line for each.
    fn box_lines(&self) -> String {
        let mut text = String::new();
        for one in &self.boxes {
            let numbers: Vec<String> = one.numbers.iter().map(i64::to_string).collect();
            let what = if numbers.len() == 2 { "point" } else { "box" };
            let picture = match one.picture.and_then(|picture| Some((picture + 1, self.pictures.get(picture)?))) {
                Some((number, [width, height])) => format!(" in picture {number} of {width} x {height}"),
                None => String::new(),
            };
            let mut given = String::new();
            push_printable(&mut given, &one.given);
            let source = match one.source {
                BoxSource::Objects => format!("from `objects`: {given}"),
                BoxSource::Converted => format!("converted from {given}"),
                BoxSource::Text => "as the text has it".to_string(),
            };
            let _ = writeln!(text, "  {what} [{}]{picture}, {source}", numbers.join(", "));
        }
        text
    }

    /// The numbers of the row in a line.
    pub fn numbers(&self) -> String {
        let Preview { place, tokens, image_tokens, trained, .. } = self;
        let mut line = format!("{place}: {tokens} tokens, {image_tokens} of images, {trained} trained");
        // Writing to a string does not fail.
        if self.masked > 0 {
            let share = 100.0 * self.masked as f64 / self.answer_tokens as f64;
            let _ = write!(line, "; {} of {} answer tokens masked ({share:.1} %)", self.masked, self.answer_tokens);
        }
        if let Some(pixels) = self.shrunk_to {
            let _ = write!(line, "; images shrunk to {pixels} pixels");
        }
        line
    }
}

impl Paint {
    fn around(self, kind: PieceKind) -> (&'static str, &'static str) {
        match (self, kind) {
            (_, PieceKind::Context) => ("", ""),
            (Paint::Ansi, PieceKind::Trained) => ("\x1b[32m", "\x1b[0m"),
            (Paint::Ansi, PieceKind::Masked) => ("\x1b[33m", "\x1b[0m"),
            (Paint::Ansi, PieceKind::Image) => ("\x1b[36m", "\x1b[0m"),
            (Paint::Marks, PieceKind::Trained) => ("«", "»"),
            (Paint::Marks, _) => ("", ""),
        }
    }
}

fn kind_of(processor: &Processor, example: &Example, place: usize) -> PieceKind {
    let is_answer = || example.answers.iter().any(|answer| answer.contains(&place));
    match example.tokens[place] {
        token if token == processor.image_token() => PieceKind::Image,
        _ if example.labels[place] != IGNORED => PieceKind::Trained,
        token if is_answer() && example.masked > 0 && !processor.is_vision(token) => PieceKind::Masked,
        _ => PieceKind::Context,
    }
}

/// Rows come from outside: what would move a terminal's cursor or change its colours is written out.
fn push_printable(text: &mut String, piece: &str) {
    for character in piece.chars() {
        match character {
            '\n' | '\t' => text.push(character),
            _ if character.is_control() => text.extend(character.escape_default()),
            _ => text.push(character),
        }
    }
}

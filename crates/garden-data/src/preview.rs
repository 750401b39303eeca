//! A row as the model sees it: the text of its tokens, with images folded and loss tokens marked.

use std::fmt::Write;

use garden_input::IGNORED;
use serde::Serialize;

use crate::example::Example;
use crate::example::boxes::{BoxSource, WrittenBox};
use crate::processor::Processor;
use crate::tokenizer::SpecialTokens;

/// How token kinds are marked in text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    /// Terminal colours: trained tokens green, tokens masked by selective loss yellow, images cyan.
    Ansi,
    /// `«trained»`.
    Marks,
}

/// Kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PieceKind {
    /// Input only, not trained.
    Context,
    /// Trained.
    Trained,
    /// Part of an answer, but masked.
    Masked,
    /// An image.
    Image,
}

/// Adjacent tokens of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Piece {
    /// Their kind.
    pub kind: PieceKind,
    /// Their text; for an image, its columns and rows in tokens.
    pub text: String,
    /// Number of tokens.
    pub tokens: usize,
}

/// A row as the model sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Preview {
    /// The row's position.
    pub place: String,
    /// All its tokens.
    pub pieces: Vec<Piece>,
    /// Number of tokens.
    pub tokens: usize,
    /// Number of image tokens.
    pub image_tokens: usize,
    /// Number of tokens that count in the loss.
    pub trained: usize,
    /// Answer tokens that count in the loss, before selective loss.
    pub answer_tokens: usize,
    /// Answer tokens masked by selective loss.
    pub masked: usize,
    /// The bound used instead of `max_pixels`, if the pictures had to be shrunk.
    pub shrunk_to: Option<u64>,
    /// Width and height of each picture as the model sees it.
    pub pictures: Vec<[usize; 2]>,
    /// Boxes and points in its texts.
    pub boxes: Vec<WrittenBox>,
}

impl Preview {
    /// The preview of an example.
    pub fn of(processor: &Processor, example: &Example) -> Preview {
        let patch = processor.images.patch;
        let mut pieces = Vec::new();
        let mut grids = example.grids.iter();
        let mut start = 0;
        while start < example.tokens.len() {
            let kind = kind_of(processor, example, start);
            let length = match kind {
                // Adjacent images remain separate.
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

    /// The row as readable text, followed by a line of counts.
    pub fn text(&self, paint: Paint) -> String {
        let mut text = String::new();
        for piece in &self.pieces {
            let (before, after) = paint.around(piece.kind);
            // Marks go before a line break, not alone on the next line.
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

    /// The source of each box, one per line.
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
                BoxSource::Text => "as in the text".to_string(),
            };
            let _ = writeln!(text, "  {what} [{}]{picture}, {source}", numbers.join(", "));
        }
        text
    }

    /// The row's counts on one line.
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

/// Rows are untrusted: characters that would move a terminal's cursor or change its colours are escaped.
fn push_printable(text: &mut String, piece: &str) {
    for character in piece.chars() {
        match character {
            '\n' | '\t' => text.push(character),
            _ if character.is_control() => text.extend(character.escape_default()),
            _ => text.push(character),
        }
    }
}

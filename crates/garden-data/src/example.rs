//! A training example: a row as tokens, labels and image grids, without the pixels.
//!
//! Everything here follows from the conversation and the headers of its pictures, so a whole dataset can be surveyed without
//! decoding any. A token gets a label if it contains a byte of a trained turn; image tokens never count in the loss.

pub(crate) mod boxes;
pub(crate) mod json;
pub(crate) mod keys;
pub(crate) mod length;
pub(crate) mod outline;
pub(crate) mod selective;
pub(crate) mod turns;

use std::borrow::Cow;
use std::ops::Range;

use garden_input::{Grid, IGNORED};
use serde::{Deserialize, Serialize};

use crate::dataset::record::{Record, StoredPicture};
use crate::error::Error;
use crate::example::boxes::{BoxFormat, BoxSettings, Objects, Sizes, WrittenBox, write_boxes};
use crate::example::length::{LengthLimit, Pictures, Shrunk, SizedPicture, TooLong};
use crate::example::selective::{Level, SelectiveLoss};
use crate::example::turns::{Turn, turns};
use crate::image::picture_size;
use crate::processor::Processor;
use crate::template::unused::{check_used, unused_fields};
use crate::template::{Chat, Ending, Message, Weight};

/// The system role in chat templates.
const SYSTEM: &str = "system";

/// Which tokens count in the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Labels {
    /// Every answer: the text after the header of an assistant turn, the token that ends the turn, and the line break after it.
    #[default]
    Assistant,
    /// The last answer only.
    Completion,
    /// Everything but images.
    All,
}

/// The system prompt of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SystemPrompt {
    /// The row's, else the template's default.
    #[default]
    Own,
    /// The row's, else this one.
    Default(String),
    /// This one, whatever the row has.
    Always(String),
}

/// How rows become examples.
#[derive(Clone, Debug, Default)]
pub struct ExampleSettings {
    /// Which tokens count in the loss.
    pub labels: Labels,
    /// The system prompt.
    pub system: SystemPrompt,
    /// Maximum length of a row; `None` for any length.
    pub length: Option<LengthLimit>,
    /// Tokens of structured answers that do not count in the loss.
    pub selective: SelectiveLoss,
    /// How boxes are read and written.
    pub boxes: BoxSettings,
}

/// A row of a dataset as model input, without the pixels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Example {
    /// The row's position, such as `train.jsonl:17`.
    pub place: String,
    /// The tokens, with one image token per merged token of each picture.
    pub tokens: Vec<i32>,
    /// The token itself if it counts in the loss, else [`IGNORED`].
    pub labels: Vec<i32>,
    /// Frames, rows and columns of each picture, in patches.
    pub grids: Vec<Grid>,
    /// The token range of each answer.
    pub answers: Vec<Range<usize>>,
    /// Number of image tokens.
    pub image_tokens: usize,
    /// Answer tokens that count in the loss, before selective loss.
    pub answer_tokens: usize,
    /// Answer tokens masked by selective loss.
    pub masked: usize,
    /// The bound used instead of `max_pixels`, if the pictures had to be shrunk.
    pub shrunk_to: Option<u64>,
    /// Boxes in the texts.
    pub boxes: Vec<WrittenBox>,
    /// The messages with boxes filled in, if there are any.
    pub written: Option<Vec<Message>>,
}

/// A conversation of a dataset, with the boxes for its texts.
#[derive(Clone, Copy, Debug)]
pub struct Said<'a> {
    /// The row's position.
    pub place: &'a str,
    /// Messages and tools.
    pub chat: Chat<'a>,
    /// Names and boxes.
    pub objects: &'a Objects,
}

/// The result for a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// An example to train on.
    Kept(Example),
    /// Left out for being too long, with its number of tokens.
    Dropped(usize),
}

impl Example {
    /// Makes an example of a row. Only the headers of its pictures are read.
    pub fn of<'a>(processor: &Processor, record: &'a Record, settings: &ExampleSettings) -> Result<Outcome, Error> {
        let sized = |picture: &'a StoredPicture| {
            let (width, height) = picture_size(&picture.name, &picture.data, processor.max_decoded_pixels)?;
            Ok(SizedPicture { name: &picture.name, width, height, bounds: picture.bounds })
        };
        let pictures = record.pictures.iter().map(sized).collect::<Result<Vec<SizedPicture>, Error>>()?;
        Example::of_sized(processor, record.said(), &pictures, settings)
    }

    /// Makes an example of a conversation with pictures of known size.
    pub fn of_sized(
        processor: &Processor,
        said: Said,
        pictures: &[SizedPicture],
        settings: &ExampleSettings,
    ) -> Result<Outcome, Error> {
        let pictures = Pictures { settings: &processor.images, pictures };
        let full = pictures.grids(processor.images.max_pixels)?;
        let mut shrunk = Shrunk { grids: full.clone(), max_pixels: processor.images.max_pixels };
        let mut shrunk_to = None;
        // Boxes have other coordinates in smaller pictures, which may take more tokens; then the pictures are shrunk again.
        loop {
            let text = Text::of(processor, said, pictures.pictures, &shrunk.grids, settings)?;
            let of_images = pictures.tokens(&shrunk.grids);
            let plain = text.tokens.len() - shrunk.grids.len();
            let length = plain + of_images;
            let Some(limit) = settings.length.filter(|limit| length > limit.tokens) else {
                return Ok(Outcome::Kept(text.example(processor, said.place, shrunk.grids, shrunk_to)));
            };
            match limit.too_long {
                TooLong::Drop => return Ok(Outcome::Dropped(length)),
                TooLong::Refuse => {
                    return Err(Error::too_long(said.place, refusal(length, of_images, limit.tokens)));
                }
                TooLong::Shrink => {
                    let room = limit.tokens.checked_sub(plain).ok_or(0);
                    let smaller = room.and_then(|room| pictures.shrunk(&full, room.min(of_images.saturating_sub(1))));
                    shrunk = smaller
                        .map_err(|least| Error::too_long(said.place, still_refused(plain, least, limit.tokens)))?;
                    shrunk_to = Some(shrunk.max_pixels);
                    if text.boxes.is_empty() {
                        return Ok(Outcome::Kept(text.example(processor, said.place, shrunk.grids, shrunk_to)));
                    }
                }
            }
        }
    }

    /// Message fields that the template does not read, such as `messages[].name`, once per message.
    pub(crate) fn unused_fields(processor: &Processor, chat: Chat, settings: &ExampleSettings) -> Vec<String> {
        let messages = settings.system.before(chat.messages);
        unused_fields(&processor.template, Chat { messages: &messages, ..chat })
    }

    /// Number of tokens that count in the loss. The first token of a row has nothing before it to predict it from.
    pub fn trained(&self) -> usize {
        self.labels.iter().skip(1).filter(|label| **label != IGNORED).count()
    }

    /// Patches of all pictures.
    pub fn patches(&self) -> usize {
        self.grids.iter().map(|grid| grid.iter().product::<usize>()).sum()
    }
}

fn refusal(length: usize, of_images: usize, most: usize) -> String {
    let hint = match of_images {
        0 => "raise `max_length`, or use the policy `drop`",
        _ => "raise `max_length`, lower `max_pixels`, or use the policy `shrink` or `drop`",
    };
    format!("the row has {length} tokens, {of_images} of them from images; `max_length` is {most}: {hint}")
}

fn still_refused(plain: usize, least: usize, most: usize) -> String {
    let hint = "raise `max_length`, or use the policy `drop`";
    match least {
        0 => format!("the row has {plain} tokens without images; `max_length` is {most}: {hint}"),
        _ => format!(
            "the row has {plain} tokens without images, and its images {least} at their smallest (`min_pixels`); `max_length` is {most}: {hint}"
        ),
    }
}

/// A conversation as tokens, with one token per image.
#[derive(Default)]
struct Text {
    tokens: Vec<i32>,
    /// Whether each token counts in the loss.
    is_trained: Vec<bool>,
    /// The token range of each answer.
    answers: Vec<Range<usize>>,
    answer_tokens: usize,
    masked: usize,
    boxes: Vec<WrittenBox>,
    written: Option<Vec<Message>>,
}

impl Text {
    /// Renders a conversation with pictures of these sizes.
    fn of(
        processor: &Processor,
        said: Said,
        pictures: &[SizedPicture],
        grids: &[Grid],
        settings: &ExampleSettings,
    ) -> Result<Text, Error> {
        let told = |error: Error| match error {
            Error::Conversation(problem) => Error::row(said.place, problem),
            other => other,
        };
        if settings.boxes.format == BoxFormat::Tokens && !said.objects.is_empty() {
            let mut tokens = processor.family.boxes.tokens.into_iter();
            let missing = tokens.find(|token| processor.tokenizer.added_token(token).is_none());
            if let Some(token) = missing {
                let problem = format!("cannot be written with tokens: the tokenizer has no `{token}`");
                return Err(Error::row_field(said.place, "objects", problem)
                    .with_hint("use `--box-format plain`, which needs none"));
            }
        }
        let sizes = Sizes { settings: &processor.images, pictures, grids };
        let written = write_boxes(said.place, said.chat, said.objects, sizes, settings.boxes, &processor.family.boxes)?;
        let chat = Chat { messages: &written.messages, ..said.chat };
        let mut text = Text::rendered(processor, said.place, chat, settings).map_err(told)?;
        text.check(processor, pictures.len()).map_err(told)?;
        text.boxes = written.boxes;
        if let Cow::Owned(messages) = written.messages {
            text.written = Some(messages);
        }
        Ok(text)
    }

    fn rendered(processor: &Processor, place: &str, chat: Chat, settings: &ExampleSettings) -> Result<Text, Error> {
        let messages = settings.system.before(chat.messages);
        let chat = Chat { messages: &messages, ..chat };
        let rendered = processor.template.render(chat, Ending::Nothing)?;
        check_used(&processor.template, place, chat, &rendered)?;
        let is_all = settings.labels == Labels::All;
        let has_zero = messages.iter().any(|message| message.weight == Weight::Zero);
        // If everything is trained and nothing masked, answers need not be located, and any template works.
        let turns = match is_all && settings.selective.level == Level::Off && !has_zero {
            true => Vec::new(),
            false => turns(&processor.template, chat, &rendered)?,
        };
        let is_wanted = |turn: &Turn| match messages[turn.message].weight {
            Weight::Usual => settings.labels != Labels::Completion || turns.last() == Some(turn),
            Weight::Prompt => is_all,
            Weight::Zero => false,
        };
        if !is_all && !turns.iter().any(is_wanted) {
            let problem = match turns.is_empty() {
                true => "`messages` has no answer (role `assistant`), so nothing would be trained",
                false => "the answers to train on have weight 0, so nothing would be trained",
            };
            return Err(Error::Conversation(problem.to_string()));
        }
        let (tokens, spans) = processor.tokenizer.encode_spans(&rendered);
        let answers: Vec<Range<usize>> = turns.iter().map(|turn| tokens_in(&spans, &turn.bytes)).collect();
        let mut text = Text { is_trained: vec![is_all; tokens.len()], tokens, answers, ..Text::default() };
        for (number, turn) in turns.iter().enumerate() {
            if is_wanted(turn) {
                text.train(processor, settings, &rendered, &turn.bytes, &spans, number);
            } else if messages[turn.message].weight == Weight::Zero {
                text.is_trained[text.answers[number].clone()].fill(false);
            }
        }
        for (token, is_trained) in text.tokens.iter().zip(&mut text.is_trained) {
            *is_trained &= !processor.is_vision(*token);
        }
        Ok(text)
    }

    /// Sets the labels of an answer.
    fn train(
        &mut self,
        processor: &Processor,
        settings: &ExampleSettings,
        rendered: &str,
        turn: &Range<usize>,
        spans: &[Range<usize>],
        number: usize,
    ) {
        let tokens = self.answers[number].clone();
        self.is_trained[tokens.clone()].fill(true);
        self.answer_tokens += self.tokens[tokens.clone()].iter().filter(|token| !processor.is_vision(**token)).count();
        // The template's end-of-turn suffix, which starts with the last special token, is not part of the answer.
        let last = tokens.clone().rev().find(|token| processor.tokenizer.is_special(self.tokens[*token]));
        let end = last.map_or(turn.end, |token| spans[token].start);
        let tokens = tokens.start..last.unwrap_or(tokens.end);
        // A token that starts in the header has no position in the answer, and keeps its loss.
        let place = |span: &Range<usize>| match span.start.checked_sub(turn.start) {
            Some(start) => start..span.end - turn.start,
            None => 0..0,
        };
        let places: Vec<Range<usize>> = spans[tokens.clone()].iter().map(place).collect();
        let Some(masked) = settings.selective.masked(&rendered[turn.start..end.max(turn.start)], &places) else {
            return;
        };
        for (is_trained, is_masked) in self.is_trained[tokens].iter_mut().zip(masked) {
            *is_trained &= !is_masked;
            self.masked += usize::from(is_masked);
        }
    }

    /// Checks that there are as many image placeholders as images.
    fn check(&self, processor: &Processor, images: usize) -> Result<(), Error> {
        let places = self.tokens.iter().filter(|token| **token == processor.image_token()).count();
        if places == images {
            return Ok(());
        }
        Err(Error::Conversation(format!("the conversation has {places} image placeholders and {images} images")))
    }

    /// Expands each image placeholder to the image's number of tokens.
    fn example(self, processor: &Processor, place: &str, grids: Vec<Grid>, shrunk_to: Option<u64>) -> Example {
        let mut counts = grids.iter().map(|grid| processor.images.tokens(*grid));
        let image_tokens: usize = counts.clone().sum();
        let length = self.tokens.len() - grids.len() + image_tokens;
        let (mut tokens, mut labels) = (Vec::with_capacity(length), Vec::with_capacity(length));
        // The new index of each token.
        let mut places = Vec::with_capacity(self.tokens.len() + 1);
        for (token, is_trained) in self.tokens.iter().zip(&self.is_trained) {
            places.push(tokens.len());
            let count = if *token == processor.image_token() { counts.next().unwrap_or(1) } else { 1 };
            tokens.resize(tokens.len() + count, *token);
            labels.resize(tokens.len(), if *is_trained { *token } else { IGNORED });
        }
        places.push(tokens.len());
        let answers = self.answers.iter().map(|answer| places[answer.start]..places[answer.end]).collect();
        let Text { answer_tokens, masked, boxes, written, .. } = self;
        let place = place.to_string();
        Example {
            place,
            tokens,
            labels,
            grids,
            answers,
            image_tokens,
            answer_tokens,
            masked,
            shrunk_to,
            boxes,
            written,
        }
    }
}

/// The tokens that overlap a byte range. A token across its border belongs to it, as in transformers' masks.
fn tokens_in(spans: &[Range<usize>], bytes: &Range<usize>) -> Range<usize> {
    let start = spans.partition_point(|span| span.end <= bytes.start);
    let end = spans.partition_point(|span| span.start < bytes.end);
    start..end.max(start)
}

impl SystemPrompt {
    fn before<'a>(&self, messages: &'a [Message]) -> Cow<'a, [Message]> {
        let has_own = messages.first().is_some_and(|message| message.role == SYSTEM);
        let (text, rest) = match self {
            SystemPrompt::Default(text) if !has_own => (text, messages),
            SystemPrompt::Always(text) => (text, &messages[usize::from(has_own)..]),
            _ => return Cow::Borrowed(messages),
        };
        Cow::Owned(std::iter::once(Message::text(SYSTEM, text)).chain(rest.iter().cloned()).collect())
    }
}

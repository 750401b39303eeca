//! A row with only the headers of its pictures: enough to count tokens, without the pixels.

use crate::dataset::free::Json;
use crate::example::Said;
use crate::example::boxes::Objects;
use crate::example::length::{PixelBounds, SizedPicture};
use crate::fingerprint::Fingerprint;
use crate::image::UsedPart;
use crate::template::{Chat, Content, Message, Part, Weight};

/// The stored row, plus a copy for texts that must be unescaped.
const FIELDS_TOO: u64 = 2;

/// A conversation with the headers of its pictures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outline {
    /// The row's position, such as `train.jsonl:17`.
    pub place: String,
    /// The messages; the last one is an answer.
    pub messages: Vec<Message>,
    /// Tools that the assistant may call.
    pub tools: Vec<Json>,
    /// The row's field for each message, such as `conversations[1]`.
    pub fields: Vec<String>,
    /// Names and boxes for placeholders in the texts.
    pub objects: Objects,
    /// The pictures, in the order of the messages.
    pub pictures: Vec<PictureOutline>,
    /// Bytes of the stored row, without pictures in separate files; 0 for formats whose rows are not contiguous.
    pub stored_bytes: u64,
    /// Unused fields, without list indices: `id`, `messages[].content[].detail`.
    pub ignored: Vec<String>,
}

/// What is known about a picture without decoding it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PictureOutline {
    /// Its name in error messages: position and field, and the file if there is one.
    pub name: String,
    /// Width in pixels, as displayed.
    pub width: usize,
    /// Height in pixels, as displayed.
    pub height: usize,
    /// Whether it must be decoded whole before use; sequential JPEG files need not.
    pub is_whole: bool,
    /// Peak bytes while decoding, besides the file.
    pub decoding_bytes: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Equal for equal files: a hash of the length, the first 64 KiB and the last 4 KiB.
    pub fingerprint: u64,
    /// Pixel bounds requested by the row.
    pub bounds: PixelBounds,
    /// Which part of the file is used.
    pub used: UsedPart,
}

impl PictureOutline {
    /// The picture's name and size.
    pub fn sized(&self) -> SizedPicture<'_> {
        SizedPicture { name: &self.name, width: self.width, height: self.height, bounds: self.bounds }
    }
}

impl Outline {
    /// The template's input.
    pub fn chat(&self) -> Chat<'_> {
        Chat { messages: &self.messages, tools: &self.tools, fields: &self.fields }
    }

    /// Everything an example is built from, except the pictures.
    pub fn said(&self) -> Said<'_> {
        Said { place: &self.place, chat: self.chat(), objects: &self.objects }
    }

    /// Bytes of the stored row and its compressed pictures.
    pub fn bytes(&self) -> u64 {
        self.stored_bytes + self.pictures.iter().map(|picture| picture.bytes).sum::<u64>()
    }

    /// Peak bytes of a thread that reads the row: the compressed pictures, plus either the stored row with its parsed fields
    /// or the memory for decoding one picture.
    pub fn reading_bytes(&self) -> u64 {
        let decoding = self.pictures.iter().map(|picture| picture.decoding_bytes).max().unwrap_or(0);
        let text = FIELDS_TOO * self.stored_bytes;
        self.bytes() - self.stored_bytes + text.max(decoding)
    }

    /// Equal for rows with equal texts and pictures. Checkpoints store it, so it must not change: anything beyond texts and pictures
    /// is hashed only where present.
    pub fn fingerprint(&self) -> u64 {
        let mut made = Fingerprint::default();
        for message in &self.messages {
            made.text(&message.role);
            match &message.content {
                Content::Absent => made.bytes(b"absent"),
                Content::Text(text) => {
                    made.bytes(b"text");
                    made.text(text);
                }
                Content::Parts(parts) => parts.iter().for_each(|part| match part {
                    Part::Text(text) => {
                        made.bytes(b"part");
                        made.text(text);
                    }
                    Part::Image => made.bytes(b"image"),
                }),
            }
            for (name, value) in &message.fields {
                made.bytes(b"field");
                made.text(name);
                value.mark(&mut made);
            }
            match message.weight {
                Weight::Usual => {}
                Weight::Prompt => made.bytes(b"prompt"),
                Weight::Zero => made.bytes(b"weight 0"),
            }
        }
        for tool in &self.tools {
            made.bytes(b"tool");
            tool.mark(&mut made);
        }
        self.objects.mark(&mut made);
        for picture in &self.pictures {
            made.number(picture.fingerprint);
            for (name, bound) in [(b"least", picture.bounds.least), (b"most ", picture.bounds.most)] {
                if let Some(bound) = bound {
                    made.bytes(name);
                    made.number(bound);
                }
            }
        }
        made.value()
    }

    /// Whether the last answer has neither text nor calls.
    pub fn has_empty_answer(&self) -> bool {
        self.messages.last().is_some_and(|message| message.words().trim().is_empty() && message.calls().is_empty())
    }
}

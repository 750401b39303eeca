//! A row whose pictures are known by their headers: what it takes to count tokens, without the pixels.

use crate::dataset::free::Json;
use crate::example::Said;
use crate::example::boxes::Objects;
use crate::example::length::{PixelBounds, SizedPicture};
use crate::fingerprint::Fingerprint;
use crate::template::{Chat, Content, Message, Part, Weight};

/// The row as it is stored, and once more where its texts have to be written anew.
const FIELDS_TOO: u64 = 2;

/// A conversation with what the headers of its pictures say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outline {
    /// Where it stands, such as `train.jsonl:17`.
    pub place: String,
    /// Who says and shows what; the last message is an answer.
    pub messages: Vec<Message>,
    /// Tools that the assistant may call.
    pub tools: Vec<Json>,
    /// What the row calls each message, such as `conversations[1]`.
    pub fields: Vec<String>,
    /// Names and boxes that the texts have places for.
    pub objects: Objects,
    /// The pictures, in the order in which the messages show them.
    pub pictures: Vec<PictureOutline>,
    /// Bytes of the row as it is stored, without pictures in files of their own; 0 where rows do not stand by themselves.
    pub stored_bytes: u64,
    /// Fields that are not read, without the numbers of list elements: `id`, `messages[].content[].detail`.
    pub ignored: Vec<String>,
}

/// What is known of a picture without decoding it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PictureOutline {
    /// What errors call it: place and field, and the file if there is one.
    pub name: String,
    /// Pixels of a row, as it is shown.
    pub width: usize,
    /// Rows, as it is shown.
    pub height: usize,
    /// Whether it has to be decoded as a whole before any of it can be used; sequential JPEG files need not.
    pub is_whole: bool,
    /// What is held at most while it is decoded, besides its file.
    pub decoding_bytes: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// The same for the same file: a hash of its length, its first 64 KiB and its last 4 KiB.
    pub fingerprint: u64,
    /// Bounds on its pixels that the row asks for.
    pub bounds: PixelBounds,
}

impl PictureOutline {
    /// Its name and size.
    pub fn sized(&self) -> SizedPicture<'_> {
        SizedPicture { name: &self.name, width: self.width, height: self.height, bounds: self.bounds }
    }
}

impl Outline {
    /// What a template renders.
    pub fn chat(&self) -> Chat<'_> {
        Chat { messages: &self.messages, tools: &self.tools, fields: &self.fields }
    }

    /// What an example is made of, but for its pictures.
    pub fn said(&self) -> Said<'_> {
        Said { place: &self.place, chat: self.chat(), objects: &self.objects }
    }

    /// Bytes of the row as it is stored, and of its pictures, still compressed.
    pub fn bytes(&self) -> u64 {
        self.stored_bytes + self.pictures.iter().map(|picture| picture.bytes).sum::<u64>()
    }

    /// What a thread holds at most that reads the row: first the row as it is stored and as its fields, with the pictures still compressed; then those
    /// and what decoding one of them takes.
    pub fn reading_bytes(&self) -> u64 {
        let decoding = self.pictures.iter().map(|picture| picture.decoding_bytes).max().unwrap_or(0);
        let text = FIELDS_TOO * self.stored_bytes;
        self.bytes() - self.stored_bytes + text.max(decoding)
    }

    /// The same for rows that say and show the same. Checkpoints have it, so it must stay what it is: what a row may have besides texts and pictures is
    /// added only where it has it.
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

    /// Whether the last answer says nothing and calls nothing.
    pub fn has_empty_answer(&self) -> bool {
        self.messages.last().is_some_and(|message| message.words().trim().is_empty() && message.calls().is_empty())
    }
}
